"""Labels of JPEG uploads on a GPU, beside the decoding alone and the network alone.

    python -m bench.pictures [--connections 64 256] [--seconds 5] [--rounds 3] [--senders 4]
                             [--device 0] [--save FILE.json]

ResNet-50 of torchvision behind `image_classifier`, in half precision; 64 JPEGs of 500 x 375. The
weights are random, and the last layer has a class for each picture, which is chosen by the CPU in
single precision: an answer is right if its best label is its picture's. In turns:

    HTTP      one JPEG a request, heads that differ, from so many sending processes
    decoding  the stage `preprocess` alone, in as many processes as the pool has for it
    network   batches of pixels through the stage `infer` alone, in one process

The pool is idle while the others run. At the end 64 JPEGs come together, one of them cut in half:
63 right answers, one refusal with its reason, no retry, and the processes that were there before.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import batchpool as bp
from batchpool.client.control import ask_status
from bench.load.picture_sender import best_label, read_pictures
from bench.support.children import Child, together
from bench.support.machine import percentile, report, spread
from bench.support.rounds import Rounds, cores_used, run_in_turns
from bench.support.serving import Served, serving

_PICTURES, _WIDTH, _HEIGHT = 64, 500, 375
_BATCH = 64  # pictures of a batch of the network alone
_CUT = 7  # the picture that is cut


def write_pictures(folder: Path) -> None:
    """JPEGs with large areas and fine grain, as photographs have."""
    from PIL import Image

    random = np.random.default_rng(5)
    for number in range(_PICTURES):
        coarse = Image.fromarray(random.integers(0, 256, (6, 8, 3), np.uint8))
        smooth = np.asarray(coarse.resize((_WIDTH, _HEIGHT), Image.Resampling.BICUBIC), np.int16)
        grain = random.normal(0, 12, smooth.shape).astype(np.int16)
        picture = Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8))
        picture.save(folder / f"{number}.jpg", "JPEG", quality=90)


def write_network(folder: Path) -> None:
    """Weights of which each picture has a class of its own, and the labels, which are numbers."""
    import torch
    from PIL import Image
    from safetensors.torch import save_file
    from torchvision import models
    from torchvision.transforms._presets import ImageClassification

    torch.manual_seed(7)
    network: Any = models.resnet50(num_classes=_PICTURES).eval()
    for name, weight in network.named_parameters():
        if name.endswith("bn3.weight"):
            torch.nn.init.constant_(weight, 0.3)  # else values grow with each block
    prepared = ImageClassification(crop_size=224, resize_size=256)
    raw = read_pictures(folder)
    pixels = torch.stack([prepared(Image.open(io.BytesIO(each)).convert("RGB")) for each in raw])
    last, network.fc = network.fc, torch.nn.Identity()
    with torch.inference_mode():
        features = torch.cat([network(pixels[at : at + 8]) for at in range(0, _PICTURES, 8)])
        mean = features.mean(dim=0)
        towards = torch.nn.functional.normalize(features - mean, dim=1)
        scale = 20 / (features - mean).norm(dim=1).mean()
        weight, bias = towards * scale, -(towards @ mean) * scale
        chosen = (features @ weight.T + bias).argmax(dim=1)
    if chosen.tolist() != list(range(_PICTURES)):
        raise SystemExit("the pictures are so alike that a mix-up would not show")
    network.fc = last
    state = {**network.state_dict(), "fc.weight": weight, "fc.bias": bias}
    save_file({name: each.clone() for name, each in state.items()}, folder / "resnet50.safetensors")
    (folder / "labels.txt").write_text("".join(f"{n}\n" for n in range(_PICTURES)))


class Network:
    """The stage `infer` in this process."""

    def __init__(self, folder: Path, device: str) -> None:
        import torch

        from batchpool.model import make_instance
        from batchpool.models.image_classifier import ImageClassifier

        options = {"path": folder / "resnet50.safetensors", "labels": folder / "labels.txt"}
        self._model: Any = make_instance(ImageClassifier, "resnet50", options)
        self._model.load_preprocess()
        images = np.array(read_pictures(folder), object)
        decoded = self._model.preprocess(bp.Batch(len(images), {"image": images}))["pixels"]
        self._pixels = torch.from_numpy(np.stack(decoded))
        if device != "cpu":
            self._pixels = self._pixels.pin_memory()
        self._model.load(device)
        self._device = device

    def run(self, seconds: float) -> float:
        """Pictures a second."""
        import torch

        done, begun_s = 0, time.monotonic()
        with torch.inference_mode():
            while time.monotonic() - begun_s < seconds:
                on_device = self._pixels[:_BATCH].to(self._device, non_blocking=True)
                found = self._model.infer(bp.Batch(_BATCH, {"pixels": on_device}))
                labels = [int(each) for each in found["label"][:, 0]]
                assert labels == list(range(_BATCH)), labels
                done += _BATCH
        return done / (time.monotonic() - begun_s)


def ask(served: Served, picture: bytes) -> tuple[int, str]:
    """The status, and the best label or the reason of the refusal."""
    url = f"http://127.0.0.1:{served.port}/v2/models/resnet50/infer"
    request = urllib.request.Request(url, picture, {"Content-Type": "image/jpeg"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, best_label(b"", answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]


def cut_picture(served: Served, pictures: list[bytes]) -> dict[str, Any]:
    """All pictures together, one of them cut in half. SystemExit: another one was hurt."""
    before = served.pids()
    sent = [*pictures]
    sent[_CUT] = sent[_CUT][: len(sent[_CUT]) // 2]
    with ThreadPoolExecutor(len(sent)) as threads:
        answers = list(threads.map(lambda each: ask(served, each), sent))
    right = sum(answer == (200, str(row)) for row, answer in enumerate(answers))
    status = ask_status(served.socket)["models"]["resnet50"]
    told = {
        "right": right,
        "the cut one": list(answers[_CUT]),
        "retries": status["retried"],
        "processes ended": sum(served.pids().get(name) != pid for name, pid in before.items()),
    }
    if right != len(sent) - 1 or answers[_CUT][0] != 400 or told["retries"]:
        raise SystemExit(f"a cut picture among {len(sent)}: {told}")
    return told


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rounds: Rounds = defaultdict(list)
    network = Network(folder, "cpu" if args.device == "cpu" else f"cuda:{args.device}")
    model = f"image_classifier:{folder / 'resnet50.safetensors'}"
    flags = ["--devices", args.device, "--option", f"labels={folder / 'labels.txt'}", *args.serve]
    with ExitStack() as stack:
        served = stack.enter_context(serving([model], *flags))
        status = ask_status(served.socket)["models"]["resnet50"]
        stages = [name for name in served.pids() if name.startswith("preprocess")]

        def children(n: int) -> list[Child]:
            arguments = "bench.load.picture_sender", str(folder)
            return [stack.enter_context(Child(*arguments)) for _ in range(n)]

        senders, decoders = children(args.senders), children(max(1, len(stages)))
        together(decoders, "decode", 0.0)  # each loads the stage

        def over_http(connections: int) -> None:
            of = f"HTTP, {connections} connections"
            each_has = connections // len(senders)
            with cores_used(served, rounds, of):
                found = together(
                    senders, "upload", args.seconds, port=served.port, at_once=each_has
                )
            took_ms = [each for one in found for each in one["took_ms"]]
            rate = sum(each["answers"] / each["seconds"] for each in found)
            rounds[f"{of}: pictures/s"].append(rate)
            rounds[f"{of}: p50 ms"].append(percentile(took_ms, 0.5))
            rounds[f"{of}: p99 ms"].append(percentile(took_ms, 0.99))

        def decoding() -> None:
            found = together(decoders, "decode", args.seconds)
            rate = sum(each["pictures"] for each in found) / args.seconds
            rounds[f"decoding alone, {len(decoders)} processes: pictures/s"].append(rate)

        def alone() -> None:
            rounds["network alone: pictures/s"].append(network.run(args.seconds))

        turns: list[Callable[[], None]] = [
            *(lambda n=n: over_http(n) for n in args.connections),
            decoding,
            alone,
        ]
        run_in_turns(turns, args.rounds, rounds)
        cut = cut_picture(served, read_pictures(folder))
    figures: dict[str, Any] = {of: spread(values, 2) for of, values in rounds.items()}
    figures["preprocess"] = status["preprocess"]
    figures["a cut picture among 64"] = cut
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.pictures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--connections", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--senders", type=int, default=4, help="processes that send")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="0", help='"0", or "cpu"')
    parser.add_argument("--serve", action="append", default=[], help="a flag of batchpool serve")
    parser.add_argument("--save")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bp-") as place:
        folder = Path(place)
        write_pictures(folder)
        write_network(folder)
        report("JPEGs of 500 x 375 to labels", measure(args, folder), args.save)


if __name__ == "__main__":
    main()
