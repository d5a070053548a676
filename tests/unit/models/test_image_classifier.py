"""A classifier of torchvision gives the scores of its network behind its own transforms."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchpool.model import Batch, make_instance, spec_of
from batchpool.models.image_classifier import ImageClassifier
from tests.unit.models.staged import Pair
from tests.unit.models.test_pictures import photo, written

# torchvision raises RuntimeError beside a torch that it was not built for.
torchvision = pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))
torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")
Image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def network() -> Any:
    torch.manual_seed(3)
    return torchvision.models.get_model("shufflenet_v2_x0_5", weights=None, num_classes=7).eval()


@pytest.fixture(scope="module")
def folder(network: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("network")
    safetensors.save_file(network.state_dict(), folder / "shufflenet_v2_x0_5.safetensors")
    torch.save(network.state_dict(), folder / "shufflenet_v2_x0_5-3a.pth")
    (folder / "labels.txt").write_text("\n".join(f"läbel {i}" for i in range(7)) + "\n")
    return folder


def made(path: Path, **options: Any) -> ImageClassifier:
    model = make_instance(ImageClassifier, "m", {"path": path, **options})
    assert isinstance(model, ImageClassifier)
    return model


def pair(path: Path, **options: Any) -> Pair:
    return Pair(lambda: made(path, **options))


def infer(model: Pair, pictures: list[bytes]) -> dict[str, Any]:
    return model.run(Batch(len(pictures), {"image": np.array(pictures, object)}))


def pictures() -> list[bytes]:
    sizes = [(60, 40), (300, 500), (256, 256), (700, 230)]
    return [written(photo(*size), form) for size in sizes for form in ("JPEG", "PNG", "WEBP")]


def test_scores_are_those_of_torchvision_alone_and_in_company(folder: Path, network: Any) -> None:
    from torchvision.transforms._presets import ImageClassification

    path, labels_file = folder / "shufflenet_v2_x0_5.safetensors", folder / "labels.txt"
    model = pair(path, labels=labels_file, threads=2)
    raw = pictures()
    transform = ImageClassification(crop_size=224, resize_size=256)
    pixels = torch.stack([transform(Image.open(io.BytesIO(each)).convert("RGB")) for each in raw])
    with torch.inference_mode():
        best = network(pixels).softmax(dim=1).topk(5, dim=1)
    together = infer(model, raw)
    assert not model.refused
    np.testing.assert_allclose(together["score"], best.values.numpy(), atol=1e-6)
    labels = [[f"läbel {i}".encode() for i in row] for row in best.indices.tolist()]
    assert together["label"].tolist() == labels
    for row in (0, len(raw) - 1):
        alone = infer(model, [raw[row]])
        np.testing.assert_allclose(alone["score"][0], together["score"][row], atol=1e-6)
    model.preprocess.unload_preprocess()


def test_a_truncated_picture_among_64_fails_alone(folder: Path) -> None:
    model = pair(folder / "shufflenet_v2_x0_5.safetensors")
    raw = [written(photo(40, 40))] * 64
    raw[17] = raw[17][:-40]
    found = infer(model, raw)
    assert list(model.refused) == [17]
    assert "image file is truncated" in str(model.refused[17])
    others = np.delete(found["score"], 17, axis=0)
    np.testing.assert_allclose(others, np.repeat(others[:1], 63, axis=0), atol=1e-6)
    model.preprocess.unload_preprocess()


def test_the_warm_up_row_is_a_picture(folder: Path) -> None:
    model = pair(folder / "shufflenet_v2_x0_5.safetensors", resize=32, crop=32, top_k=2)
    found = infer(model, [model.infer.warm_up_row()["image"]])
    assert not model.refused
    assert found["label"].shape == (1, 2)
    assert set(found["label"][0]) <= {str(i).encode() for i in range(7)}
    model.preprocess.unload_preprocess()


def test_the_file_tells_the_tensors(folder: Path, tmp_path: Path) -> None:
    path = folder / "shufflenet_v2_x0_5.safetensors"
    label, score = spec_of(made(path, top_k=9)).outputs
    assert (label.shape, score.shape, label.max_bytes) == ((7,), (7,), 128)
    label, score = spec_of(made(path, labels=folder / "labels.txt")).outputs
    assert (label.shape, label.max_bytes) == ((5,), 8)
    squeeze = torchvision.models.get_model("squeezenet1_1", weights=None, num_classes=3)
    safetensors.save_file(squeeze.state_dict(), tmp_path / "x.safetensors")
    model = made(tmp_path / "x.safetensors", architecture="squeezenet1_1")
    assert spec_of(model).outputs[0].shape == (3,)
    model.load("cpu")


def test_what_is_no_classifier_is_told(folder: Path, tmp_path: Path) -> None:
    safetensors.save_file({"w": torch.ones(3)}, tmp_path / "w.safetensors")
    with pytest.raises(
        ValueError, match=r"not the weights of a classifier of torchvision: none is"
    ):
        made(tmp_path / "w.safetensors")
    path = folder / "shufflenet_v2_x0_5.safetensors"
    with pytest.raises(ValueError, match=r"no classifier 'resnet17' .near it: resnet1.*; set"):
        made(path, architecture="resnet17").load("cpu")
    with pytest.raises(RuntimeError, match=r"size mismatch|Missing key"):
        made(path, architecture="squeezenet1_1").load("cpu")
    (tmp_path / "two").write_text("a\nb\n")
    refused = r"option labels names a file of 2 lines, and .*x0_5{} has 7 classes; a line for each"
    with pytest.raises(ValueError, match=refused.format(".safetensors")):
        made(path, labels=tmp_path / "two")
    pickled = made(folder / "shufflenet_v2_x0_5-3a.pth", labels=tmp_path / "two", trust=True)
    with pytest.raises(ValueError, match=refused.format("-3a.pth")):
        pickled.load("cpu")


def test_pickled_weights_need_trust(folder: Path) -> None:
    path = folder / "shufflenet_v2_x0_5-3a.pth"
    with pytest.raises(
        ValueError, match=r"3a.pth, which is no safetensors, can hold code .* trust"
    ):
        made(path)
    model = pair(path, trust=True)
    assert infer(model, [written(photo())])["score"].shape == (1, 5)
    model.preprocess.unload_preprocess()


def test_a_missing_extra_is_told_with_its_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made(folder / "shufflenet_v2_x0_5.safetensors")
    monkeypatch.setitem(sys.modules, "torchvision", None)
    for load in (lambda: model.load("cpu"), model.load_preprocess):
        with pytest.raises(RuntimeError, match=r"torchvision, .* 'batchpool\[image-classifier\]'"):
            load()
