"""The results as markdown: medians with least and most, and ratios of the same rounds."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.load.heads import DIFFERING, EQUAL
from bench.peers.load import Cell
from bench.peers.roster import OURSELVES, PEERS
from bench.peers.rounds import Found
from bench.peers.settings import Setting

_TITLES = {
    "affine": "y = 2x + 1 on 512 floats",
    "mlp": "MLP 512-2048-2048-512, one thread a worker",
}
_ALONE = 1  # a connection, for the latency


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


def _of(cells: Iterable[Cell], peer: str, model: str, connections: int, heads: str) -> list[Cell]:
    wanted = peer, model, connections, heads
    return [
        cell for cell in cells if (cell.peer, cell.model, cell.connections, cell.heads) == wanted
    ]


def kinds(found: Found, model: str) -> tuple[str, str | None]:
    """The kind of heads that the table shows, and the one whose rates stand beside it."""
    seen = {cell.heads for cell in found.cells if cell.model == model}
    if DIFFERING not in seen:
        return EQUAL, None
    return DIFFERING, EQUAL if EQUAL in seen else None


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


def loads(found: Found, model: str) -> list[int]:
    """Numbers of connections."""
    numbers = {cell.connections for cell in found.cells if cell.model == model}
    return sorted(numbers - {_ALONE})


def _machine(found: Found) -> str:
    told = found.machine
    kind = " (compiled)" if told.get("compiled") else ""
    versions = []
    for peer, told_of in found.peers.items():
        title = told_of["title"].partition(",")[0]
        versions.append(f"{title} {told_of['version']}{kind if peer == 'batchpool' else ''}")
    return (
        f"{told['cpu']}, {told['cores']} cores, {', '.join(told['gpus']) or 'no GPU'}, "
        f"Python {told['python']}; {', '.join(versions)}; wrk {told.get('wrk', '1 thread')}.\n"
        f"`{told['command']}`"
    )


def _table(found: Found, model: str) -> str:
    bare = found.bare.get(model, [])
    many = loads(found, model)
    if not many:
        return f"{_TITLES[model]}: nothing was measured."
    main, beside = kinds(found, model)
    columns = [
        f"{_TITLES[model]}; {main} heads",
        *(f"{n:,} connections, requests/s" for n in many),
        *(f"batchpool / it, {n:,}" for n in many),
        *(f"{n:,} connections, {beside} heads, requests/s" for n in many if beside),
        *(f"batchpool / it, {n:,}, {beside} heads" for n in many if beside),
        "1 connection, p50 ms",
        f"p99 ms at {' / '.join(f'{n:,}' for n in many)}",
        f"server CPU at {many[0]}, us a request",
        *(["share of the bare model, %"] if bare else []),
        "setting: workers x API processes",
    ]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    cells_of = {
        (name, n): _of(found.cells, name, model, n, main)
        for name in found.peers
        for n in (_ALONE, *many)
    }

    def middle(name: str) -> float:
        """Where it stands in the table: by the rate at the fewest connections."""
        rates = [cell.rate for cell in cells_of[name, many[0]]]
        return statistics.median(rates) if rates else 0.0

    for name in sorted(found.peers, key=middle, reverse=True):
        cells = {n: cells_of[name, n] for n in (_ALONE, *many)}
        if not any(cells.values()):
            continue
        failed = sum(cell.failed for of_n in cells.values() for cell in of_n)
        words = [
            PEERS[name].title + (f" ({failed:,} failed)" if failed else ""),
            *_rates(found.cells, name, model, many, main),
            *(_rates(found.cells, name, model, many, beside) if beside else ()),
            shown([cell.p50_us / 1e3 for cell in cells[_ALONE]], 2),
            _p99s(cells[n] for n in many),
            shown([cell.cpu_us for cell in cells[many[0]]]),
        ]
        if bare:
            words.append(shown([100 * share for share in shares(bare, *(cells[n] for n in many))]))
        words.append(_setting(found.peers[name], model))
        lines.append(f"| {' | '.join(words)} |")
    if bare:
        rate = shown(bare_rates(bare))
        lines.append(f"\nThe bare {model_title(model)}, one process: {rate} rows/s.")
    return "\n".join([*lines, *_offered(found, model)])


def _rates(
    cells: Sequence[Cell], name: str, model: str, many: Sequence[int], heads: str
) -> list[str]:
    """Its rates, and ours over them."""
    of = [_of(cells, name, model, n, heads) for n in many]
    ours = [_of(cells, OURSELVES, model, n, heads) for n in many]
    return [
        *(shown([cell.rate for cell in each]) for each in of),
        *(
            "1" if name == OURSELVES else shown(ratios(mine, theirs), 2)
            for mine, theirs in zip(ours, of, strict=True)
        ),
    ]


def _p99s(loads: Iterable[Sequence[Cell]]) -> str:
    """Of one load as the rates are shown; of several the medians."""
    of = [[cell.p99_us / 1e3 for cell in cells] for cells in loads]
    if len(of) == 1:
        return shown(of[0], 1)
    return " / ".join(f"{statistics.median(p99s):,.1f}" if p99s else "-" for p99s in of)


def _offered(found: Found, model: str) -> list[str]:
    """A line a server that got an open loop."""
    lines = []
    for name in found.peers:
        loops = [one for one in found.offered if (one["peer"], one["model"]) == (name, model)]
        if loops:
            p50, p99, late = (
                shown([one[key] for one in loops], 2)
                for key in ("p50_ms", "p99_ms", "behind_p99_ms")
            )
            unanswered = sum(one["refused"] + one["failed"] for one in loops)
            lines.append(
                f"\n{PEERS[name].title}, {loops[0]['offered_per_s']:,.0f} requests/s offered: p50 "
                f"{p50} ms, p99 {p99} ms ({unanswered} not answered; sent late by p99 {late} ms)."
            )
    return lines


def _setting(told: Mapping[str, Any], model: str) -> str:
    kept = dict(told["settings"][model])
    origin = kept.pop("origin")
    setting = Setting(**kept)
    if setting.variant in PEERS:  # a reference, which has nothing to set
        return "one process"
    return str(setting) if origin.startswith("swept") else f"{setting} ({origin})"
