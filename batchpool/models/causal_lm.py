"""Text of any decoder of Hugging Face transformers, by continuous batching.

    pip install 'batchpool[causal-lm,text]'
    batchpool serve --model causal_lm:models/SmolLM2-135M-Instruct

    curl -s localhost:8000/v1/completions -d '{"model": "SmolLM2-135M-Instruct", "prompt": "Once"}'

The folder has the model as the library saves it, with tokenizer.json for text and a chat template
for chats. The model's own code runs unchanged, over a KV cache with a slot of `max_length` tokens
for each running sequence; docs/generation.md tells more.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import batchpool as bp
from batchpool.models.decoder.model_folder import ModelFolder
from batchpool.models.extras import check_attention, check_weights, extra, folder_with
from batchpool.models.pretrained import keep_weights, whole_model
from batchpool.models.tokens import Dtype, dtype_on

if TYPE_CHECKING:
    import torch

    from batchpool.models.decoder.graphs import Capture
    from batchpool.models.decoder.packed_attention import Attention
    from batchpool.models.decoder.sampling import Sampling
    from batchpool.models.decoder.slot_cache import LayerShape

_CHUNK_TOKENS, _CHUNK_TOKENS_ON_CPU = 1024, 128
_PART_OF_FREE_MEMORY = 0.8  # the rest is for the tensors of the calls
_GIB = 2**30


class CausalLM(bp.Generator):
    """`prompt` [tokens] int32 -> `token` int32, one after another, until the model's end.

    path: the folder. max_length: tokens of a sequence, its prompt among them; 0 for what the model
    takes, at most 2,048. max_tokens: the most that a request gets; 0 for half of max_length.
    kv_gib: memory of the KV cache; 0 for what the sequences need, on a GPU at most 80 % of what is
    free. dtype: of the weights; "auto" is half precision on a GPU. stop_ids: tokens that end a
    sequence, besides those of the model. chunk_tokens: tokens of prompts that one step takes; 0 for
    1,024 on a GPU and 128 on a CPU. graphs: CUDA graphs on a GPU. compile: fuse kernels of the
    model by torch.compile on a GPU, for shorter steps and a longer start. trust: load weights that
    are pickled, and code of the folder.

    Parameters of a request: temperature (0 for the likeliest token), top_k (0 for any), top_p,
    seed (below 0 for a random one), ignore_eos (go on behind the end).
    Raises RuntimeError without the extra, FileNotFoundError and ValueError for another folder.
    """

    name = "causal_lm"

    def __init__(
        self,
        path: Path,
        max_length: int = 0,
        max_tokens: int = 0,
        kv_gib: float = 0.0,
        dtype: Dtype = "auto",
        stop_ids: list[int] | None = None,
        chunk_tokens: int = 0,
        graphs: bool = True,
        compile: bool = False,
        trust: bool = False,
    ) -> None:
        folder = self._folder = ModelFolder.read(folder_with(path, "config.json"))
        self._length = length = folder.checked_length(max_length)
        folder.check(length)
        check_weights(folder.path, trust)
        check_attention(folder.path, trust)
        if not 0 <= max_tokens < length:
            raise ValueError(
                f"option max_tokens is {max_tokens}; 1 to {length - 1} was expected, because"
                f" sequences have {length} tokens with their prompts (max_length), or 0 for half"
            )
        if chunk_tokens < 0 or kv_gib < 0:
            raise ValueError("options chunk_tokens and kv_gib: 0 or more was expected")
        self.max_tokens = max_tokens or length // 2
        self.prompt = bp.Tensor("prompt", "int32", (bp.Dim(length - 1, "tokens"),))
        temperature, top_k, top_p = folder.sampling_defaults()
        self.parameters = [
            bp.Tensor("temperature", "float32", default=temperature),
            bp.Tensor("top_k", "int64", default=top_k),
            bp.Tensor("top_p", "float32", default=top_p),
            bp.Tensor("seed", "int64", default=-1),
            bp.Tensor("ignore_eos", "bool", default=False),
        ]
        if folder.tokenizer:
            self.text = bp.Text(folder.tokenizer, folder.chat_template)
        self._stop_ids = folder.stop_ids(stop_ids or ())
        self._kv_gib, self._chunk_tokens = kv_gib, chunk_tokens
        self._full: list[int] = []  # sequences without room that have not been told of so
        self._dtype, self._graphs, self._trust = dtype, graphs, trust
        self._compile = compile

    def load(self, device: str) -> None:
        with extra("causal-lm"):
            import torch
            import transformers  # noqa: F401
        check_weights(self._folder.path, self._trust)  # which may have gone since
        on = torch.device(device)
        with torch.inference_mode():
            self._build(*self._loaded(on), on)

    def _loaded(self, device: torch.device) -> tuple[Any, bool]:
        """The model, and whether its attention adds a mask to its scores."""
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        reason = ""
        # PyTorch's attention, which takes a mask of truths; else that of the model's own code.
        for attention, adds_mask in (("sdpa", False), ("eager", True)):
            try:
                return self._with_attention(attention, device), adds_mask
            except ValueError as error:
                reason = str(error).partition(". ")[0].partition("\n")[0]
        raise ValueError(f"the model in {self._folder.path} cannot be served: {reason}")

    def _with_attention(self, attention: str, device: torch.device) -> Any:
        """Raises ValueError for a model that has no such attention, or is no decoder."""
        import torch
        from transformers import AutoModelForCausalLM

        name = dtype_on(device.type, self._dtype, self._folder.config)
        model = whole_model(
            AutoModelForCausalLM,
            self._folder.path,
            self._trust,
            dtype=getattr(torch, name),
            attn_implementation=attention,
        )
        return keep_weights(model.to(device).eval())

    def _build(self, model: Any, adds_mask: bool, device: torch.device) -> None:
        """Check the model, and make the engine."""
        from batchpool.models.decoder.build import checked, engine_of

        attention = self._attention(device, model.dtype)
        found = checked(model, adds_mask, device, attention, self._fuse if self._compile else None)
        self._vocabulary: int = model.get_input_embeddings().num_embeddings
        self.sequences = slots = self._slots(found.layers, model.dtype, device)
        usual = _CHUNK_TOKENS if device.type == "cuda" else _CHUNK_TOKENS_ON_CPU
        budget = min(self._chunk_tokens or usual, self._length)
        self._engine = engine_of(found, slots, self._length, budget, self._capture(device))

    def _attention(self, device: torch.device, dtype: torch.dtype) -> Attention | None:
        """That which takes sequences one behind another, None where the device has none."""
        from batchpool.models.decoder.packed_attention import flash_attention

        return flash_attention(device, dtype)

    def _fuse(self, model: Any, layers: int) -> None:
        from batchpool.models.decoder.fusion import fuse

        fuse(model, layers)

    def _capture(self, device: torch.device) -> Capture | None:
        """That which makes graphs of calls, None where they run as they are."""
        from batchpool.models.decoder.graphs import capture_on

        return capture_on(device) if self._graphs and device.type == "cuda" else None

    def _slots(self, layers: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> int:
        """The number of sequences that run at once: as many as asked for, as far as the memory
        goes."""
        import torch

        from batchpool.models.decoder.slot_cache import slot_bytes

        each = slot_bytes(layers, self._length, dtype)
        room = self._kv_gib * _GIB
        if not room and device.type == "cuda":
            room = torch.cuda.mem_get_info(device)[0] * _PART_OF_FREE_MEMORY
        wanted = self.sequences or 1
        # One slot more takes what padding writes.
        slots = min(wanted, int(room // each) - 1) if room else wanted
        if slots < 1:
            raise ValueError(
                f"the KV cache has room for {room / _GIB:.2f} GiB, but a sequence of"
                f" {self._length} tokens needs {each / _GIB:.3f} GiB, and padding as much again;"
                " raise the option kv_gib or lower max_length"
            )
        return slots

    def join(self, sequences: Sequence[bp.JoiningSequence]) -> Mapping[int, Exception]:
        refused: dict[int, Exception] = {}
        for sequence in sequences:
            try:
                self._check(sequence)
                sampling = _sampling(sequence.parameters)
            except bp.InvalidInput as error:
                refused[sequence.number] = error
                continue
            done = sequence.tokens.tolist()
            ids = [*sequence.prompt.tolist(), *done]
            stop_ids = frozenset() if sequence.parameters["ignore_eos"] else self._stop_ids
            left = min(sequence.max_tokens, self._length - len(sequence.prompt)) - len(done)
            if left < 1 and done[-1] not in stop_ids:  # its worker was lost before it could say so
                self._full.append(sequence.number)
                continue
            self._engine.join(sequence.number, ids, left, stop_ids, sampling)
            if done and done[-1] in stop_ids:  # its worker was lost before it could say so
                self._engine.end(sequence.number)
        return refused

    def _check(self, sequence: bp.JoiningSequence) -> None:
        """Raises InvalidInput."""
        prompt, tokens = sequence.prompt, sequence.max_tokens
        if not len(prompt):
            raise bp.InvalidInput("the prompt has no token; 1 or more was expected")
        # Whoever asks for no number, or for the default, gets what there is room for.
        if len(prompt) + tokens > self._length and tokens != self.max_tokens:
            raise bp.InvalidInput(
                f"the prompt has {len(prompt)} tokens and max_tokens is {tokens}, together more"
                f" than the {self._length} of a sequence; ask for at most"
                f" {self._length - len(prompt)}"
            )
        # Those made already stand in memory that a local client may have written since.
        for what, ids in (("prompt has", prompt), ("tokens made so far have", sequence.tokens)):
            unknown = ids[(ids < 0) | (ids >= self._vocabulary)]
            if len(unknown):
                raise bp.InvalidInput(
                    f"the {what} the token {unknown[0]}; the model knows 0 to"
                    f" {self._vocabulary - 1}"
                )

    def step(self) -> bp.StepTokens:
        made = self._engine.step()
        full, self._full = made.full + self._full, []
        return bp.StepTokens(
            made.numbers, np.array(made.tokens, np.int32), None, made.stopped, full
        )

    def leave(self, numbers: Sequence[int]) -> None:
        self._engine.leave(numbers)
        self._full = [number for number in self._full if number not in numbers]


def _sampling(parameters: Mapping[str, Any]) -> Sampling | None:
    """The choice of tokens that a request asks for; None for the likeliest. Raises InvalidInput."""
    from batchpool.models.decoder.sampling import Sampling

    temperature, top_p = float(parameters["temperature"]), float(parameters["top_p"])
    top_k, seed = int(parameters["top_k"]), int(parameters["seed"])
    if not 0 <= temperature < float("inf"):
        raise _wrong("temperature", f"{temperature:g}; 0 or more was expected")
    if not 0 < top_p <= 1:
        raise _wrong("top_p", f"{top_p:g}; more than 0 and at most 1 was expected")
    if top_k < 0:
        raise _wrong("top_k", f"{top_k}; 0 (any number of tokens) or more was expected")
    if not temperature:
        return None
    if seed < 0:
        seed = int.from_bytes(os.urandom(8), "little")
    return Sampling(temperature, top_k, top_p, seed)


def _wrong(parameter: str, text: str) -> bp.InvalidInput:
    return bp.InvalidInput(f"{parameter} is {text}", {"parameter": parameter})
