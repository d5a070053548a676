"""The tokenizer of a generator: the text of a prompt to tokens, and tokens to text."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from batchpool.core.errors import ConfigError, InvalidRequest
from batchpool.text.incremental_decoder import IncrementalDecoder
from batchpool.text.libraries import text_libraries

_SETTINGS = "tokenizer_config.json"  # beside the tokenizer; names the special tokens
# Of a text that may be too long, so many characters are counted at a time, and the text is refused
# once its pieces have so many times the tokens that are allowed: the border of two pieces may
# split a token, and makes a few more of it.
_PIECE_CHARACTERS = 32 * 1024
_CERTAINLY_TOO_MANY = 2
_SLACK_TOKENS = 64
_SUSPICIOUS_CHARACTERS = 8  # to a token; ordinary text has three to five


class Tokenizer:
    """A `tokenizer.json`. special_names: as bos_token and eos_token, where `tokenizer_config.json`
    lies beside it, with the text of each. size: token ids are below it.

    Raises ConfigError for a file that is none, and where the library is not installed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # One request has one thread; the library's own would be as many as cores, in each process.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        with text_libraries():
            import tokenizers
        file = Path(path)
        if not file.is_file():
            raise ConfigError(
                f"the tokenizer {os.fspath(path)!r} is no file; the path of a tokenizer.json was"
                f" expected (the working directory is {os.getcwd()!r})"
            )
        try:
            self._library: Any = tokenizers.Tokenizer.from_file(str(file))
        except Exception as exc:  # the library raises Exception itself
            raise ConfigError(
                f"the tokenizer {str(file)!r} cannot be read: {exc}; a tokenizer.json of the"
                " library tokenizers was expected"
            ) from exc
        # A file may say that texts are cut or filled up, of which no caller would be told.
        self._library.no_truncation()
        self._library.no_padding()
        self.size: int = self._library.get_vocab_size()
        added = self._library.get_added_tokens_decoder()
        self._special = frozenset(number for number, token in added.items() if token.special)
        self.special_names = _special_names(file.with_name(_SETTINGS))

    def encode(self, text: str, most_tokens: int, *, special_tokens: bool) -> list[int]:
        """The tokens of a text. special_tokens: with those that the tokenizer adds by itself.

        Other threads run meanwhile. The time it takes is bounded by `most_tokens`, whatever the
        length of the text. InvalidRequest says how many tokens came, or how many at least, where
        they are more.
        """
        if len(text) > max(_PIECE_CHARACTERS, _SUSPICIOUS_CHARACTERS * most_tokens):
            self._check_length(text, most_tokens)
        tokens = self._tokens(text, special_tokens)
        if len(tokens) > most_tokens:
            raise too_long(f"{len(tokens)}", most_tokens)
        return tokens

    def _check_length(self, text: str, most_tokens: int) -> None:
        limit = _CERTAINLY_TOO_MANY * most_tokens + _SLACK_TOKENS
        count = 0
        for start in range(0, len(text), _PIECE_CHARACTERS):
            count += len(self._tokens(text[start : start + _PIECE_CHARACTERS], False))
            if count > limit:
                raise too_long("more than " + str(count - limit + most_tokens), most_tokens)

    def _tokens(self, text: str, special_tokens: bool) -> list[int]:
        # Of the methods that encode, this one does least under the interpreter's lock.
        (encoding,) = self._library.encode_batch_fast([text], add_special_tokens=special_tokens)
        tokens: list[int] = encoding.ids
        return tokens

    def check(self, tokens: Sequence[int], most_tokens: int) -> Sequence[int]:
        """A prompt that came as tokens. InvalidRequest for one that is too long, and for numbers
        that are no tokens."""
        if len(tokens) > most_tokens:
            raise too_long(f"{len(tokens)}", most_tokens)
        for token in (min(tokens, default=0), max(tokens, default=0)):
            if not 0 <= token < self.size:
                raise InvalidRequest(
                    f"the prompt has the token {token}; 0 to {self.size - 1} were expected"
                )
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without the special ones among them."""
        text: str = self._library.decode(tokens, skip_special_tokens=True)
        return text

    def incremental_decoder(self) -> IncrementalDecoder:
        """A decoder for the tokens of one sequence as they come."""
        return IncrementalDecoder(self.decode, self._special)


def too_long(count: str, most_tokens: int) -> InvalidRequest:
    """The error of a prompt of so many tokens."""
    return InvalidRequest(
        f"the prompt has {count} tokens; the model takes at most {most_tokens}: shorten it"
    )


def _special_names(file: Path) -> dict[str, str]:
    """The special tokens that a `tokenizer_config.json` names, {} without one."""
    try:
        settings = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{str(file)!r} beside the tokenizer cannot be read: {exc}") from exc
    found = {}
    for name, value in settings.items() if isinstance(settings, dict) else ():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found
