"""Files and folders of every ready model that can be made here, and their tables in a pool."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from tests.unit.models import onnx_files, text_folders

READY = "batchpool.models"


def importable(name: str) -> bool:
    try:
        importlib.import_module(name)
    except (ImportError, RuntimeError):  # RuntimeError: of a torchvision for another torch
        return False
    return True


def tables(folder: Path) -> list[dict[str, Any]]:
    """The [[model]] tables of all ready models whose libraries are installed."""
    found = []
    if importable("onnxruntime"):
        path = str(onnx_files.masked(folder))
        found.append(table("onnx:Onnx", "masked", path=path, max_dim=16))
    if importable("sentence_transformers"):
        (folder / "st").mkdir()
        path = str(text_folders.sentence_transformer(folder / "st", prompts={"query": "query : "}))
        found.append(table("sentence_transformer:SentenceTransformer", "vectors", path=path))
    if importable("transformers") and importable("torch"):
        path = str(text_folders.classifier(folder / "classifier"))
        found.append(table("text_classifier:TextClassifier", "sentiment", path=path))
    if importable("torch"):
        found.append(table("exported:Exported", "program", path=str(program(folder)), trust=True))
    if importable("torchvision") and importable("safetensors"):
        path = str(network(folder))
        found.append(table("image_classifier:ImageClassifier", "pictures", path=path, top_k=2))
    return found


def table(import_name: str, name: str, **options: Any) -> dict[str, Any]:
    model = {"import": f"{READY}.{import_name}", "name": name, "options": options}
    return {**model, "max_batch": 64, "slots": 128, "max_wait_ms": 50}


def program(folder: Path) -> Path:
    """An exported program: y = 2 * x, [n, 4] of each."""
    import torch

    class Double(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"y": x * 2}

    shapes = {"x": {0: torch.export.Dim("batch")}}
    made = torch.export.export(Double(), (torch.ones(2, 4),), dynamic_shapes=shapes)
    torch.export.save(made, folder / "program.pt2")
    return folder / "program.pt2"


def network(folder: Path) -> Path:
    """A network of random weights for seven classes."""
    import torch
    from safetensors.torch import save_file
    from torchvision import models

    torch.manual_seed(3)
    made = models.get_model("shufflenet_v2_x0_5", weights=None, num_classes=7)
    save_file(made.state_dict(), folder / "shufflenet_v2_x0_5.safetensors")
    return folder / "shufflenet_v2_x0_5.safetensors"
