"""What was found, as markdown: medians with least and most, and ratios of the same rounds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.peers.load import Cell
from bench.peers.roster import OURSELVES, PEERS
from bench.peers.rounds import Found
from bench.peers.settings import Setting

_TITLES = {
    "affine": "y = 2x + 1 on 512 floats",
    "mlp": "MLP 512-2048-2048-512, one thread a worker",
}
_RATES = (64, 256)


def shown(values: Sequence[float], digits: int = 0) -> str:
    """The median, and least and most where there were several rounds."""
    if not values:
        return "-"
    text = f"{statistics.median(values):,.{digits}f}"
    if len(values) == 1:
        return text
    return f"{text} ({min(values):,.{digits}f} .. {max(values):,.{digits}f})"


def ratios(ours: Iterable[Cell], theirs: Iterable[Cell]) -> list[float]:
    """Our rate over theirs, of the rounds that both have."""
    rate_of = {cell.round: cell.rate for cell in ours}
    return [rate_of[cell.round] / cell.rate for cell in theirs if cell.round in rate_of]


def _of(cells: Iterable[Cell], peer: str, model: str, connections: int) -> list[Cell]:
    return [
        cell
        for cell in cells
        if (cell.peer, cell.model, cell.connections) == (peer, model, connections)
    ]


def bare_rates(rounds: Sequence[Mapping[str, float]]) -> list[float]:
    """Rows per second of the model alone, of each round: of the best batch."""
    return [max(rates.values()) for rates in rounds]


def shares(bare: Sequence[Mapping[str, float]], *loads: Iterable[Cell]) -> list[float]:
    """Of the bare rate of the same round: the better load's rate."""
    rates: dict[int, float] = {}
    for cell in (cell for of_load in loads for cell in of_load):
        rates[cell.round] = max(rates.get(cell.round, 0.0), cell.rate)
    of_round = bare_rates(bare)
    return [rate / of_round[round_] for round_, rate in rates.items() if round_ < len(of_round)]


def markdown(found: Found) -> str:
    blocks = [_machine(found)]
    for model in found.wanted["models"]:
        blocks.append(_table(found, model))
    notes = [
        f"- {PEERS[note['peer']].title}, {model_title(note['model'])}, round "
        f"{note['round'] + 1}: {note['reason']}"
        for note in found.notes
    ]
    if found.cells:
        others = [cell.others_cores for cell in found.cells]
        blocks.append(
            f"Other processes used {statistics.median(others):.2f} cores meanwhile, "
            f"{max(others):.2f} at most."
        )
    if notes:
        blocks.append("What was skipped or failed:\n\n" + "\n".join(notes))
    return "\n\n".join(blocks) + "\n"


def model_title(model: str) -> str:
    return _TITLES[model].partition(",")[0]


def _machine(found: Found) -> str:
    told = found.machine
    versions = [
        f"{told_of['title'].partition(',')[0]} {told_of['version']}"
        for told_of in found.peers.values()
    ]
    return (
        f"{told['cpu']}, {told['cores']} cores, {', '.join(told['gpus']) or 'no GPU'}, "
        f"Python {told['python']}; {', '.join(versions)}.\n"
        f"`{told['command']}`"
    )


def _table(found: Found, model: str) -> str:
    bare = found.bare.get(model, [])
    columns = [
        _TITLES[model],
        *(f"{n} connections, requests/s" for n in _RATES),
        *(f"batchpool / it, {n}" for n in _RATES),
        "1 connection, p50 ms",
        "p99 ms at 64",
        "server CPU, us a request",
        *(["share of the bare model, %"] if bare else []),
        "setting: workers x API processes",
    ]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    names = [name for name in found.peers if _of(found.cells, name, model, 64)]
    names.sort(
        key=lambda name: statistics.median(c.rate for c in _of(found.cells, name, model, 64)),
        reverse=True,
    )
    for name in names:
        cells = {n: _of(found.cells, name, model, n) for n in (1, *_RATES)}
        ours = {n: _of(found.cells, OURSELVES, model, n) for n in _RATES}
        rates = {n: [cell.rate for cell in cells[n]] for n in _RATES}
        failed = sum(cell.failed for of_n in cells.values() for cell in of_n)
        words = [
            PEERS[name].title + (f" ({failed:,} failed)" if failed else ""),
            *(shown(rates[n]) for n in _RATES),
            *("1" if name == OURSELVES else shown(ratios(ours[n], cells[n]), 2) for n in _RATES),
            shown([cell.p50_us / 1e3 for cell in cells[1]], 2),
            shown([cell.p99_us / 1e3 for cell in cells[64]], 1),
            shown([cell.cpu_us for cell in cells[64]]),
        ]
        if bare:
            words.append(
                shown([100 * share for share in shares(bare, *(cells[n] for n in _RATES))])
            )
        words.append(_setting(found.peers[name], model))
        lines.append(f"| {' | '.join(words)} |")
    if bare:
        rate = shown(bare_rates(bare))
        lines.append(f"\nThe bare {model_title(model)}, one process: {rate} rows/s.")
    return "\n".join(lines)


def _setting(told: Mapping[str, Any], model: str) -> str:
    kept = dict(told["settings"][model])
    origin = kept.pop("origin")
    setting = Setting(**kept)
    if setting.variant in PEERS:  # a reference, which has nothing to set
        return "one process"
    return str(setting) if origin.startswith("swept") else f"{setting} ({origin})"
