"""The tokens of prompts that a text encoder reads as plain text, such as T5's and Qwen3's.

What a text goes through is written in ``tokenizer.json``, which ``sdort export`` has of transformers' own tokenizer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sdort.checkpoints.configs import read_config
from sdort.checkpoints.tokenizer_files import MAX_TEXT_FILE
from sdort.errors import BadModelError
from sdort.families.family import PlainText
from sdort.files.input_file import read_input

PLAIN_FILES = _CONFIG, _WHOLE = "tokenizer_config.json", "tokenizer.json"
"""The files that it reads."""


@dataclass(frozen=True)
class Row:
    """A prompt as its text encoder reads it."""

    ids: tuple[int, ...]
    """Of its tokens, with the template's, the end's and padding."""
    lost: tuple[int, ...]
    """Ids of the tokens that have no room."""


class PlainTokenizer:
    """The tokenizer of a text encoder that reads plain text.

    Args:
        folder: its files.
        plain: how the encoder reads prompts.

    Raises:
        BadModelError: there is no ``tokenizer.json``, or a file is too large.
        Exception: of any other kind, where the library does not take what they say.
    """

    def __init__(self, folder: Path, plain: PlainText) -> None:
        from tokenizers import Tokenizer

        whole, config = folder / _WHOLE, read_config(folder / _CONFIG, limit=MAX_TEXT_FILE)
        if not os.path.lexists(whole):
            raise BadModelError(
                f"{whole} is missing", hint="Export the pipeline again: sdort export writes it with transformers."
            )
        self.plain = plain
        self._tokenizer = Tokenizer.from_str(read_input(whole, limit=MAX_TEXT_FILE).decode())
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(plain.limit)
        self._tokenizer.encode_special_tokens = bool(config.get("split_special_tokens"))
        pad = config.get("pad_token")
        number = self._tokenizer.token_to_id(str(pad["content"] if isinstance(pad, dict) else pad))
        if number is None:
            raise ValueError("it has no pad_token")
        self.padding: int = number

    @property
    def size(self) -> int:
        """The number of tokens that it knows."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def row(self, prompt: str) -> Row:
        """The row of a prompt."""
        read = self._tokenizer.encode(f"{self.plain.before}{prompt}{self.plain.after}")
        room = self.plain.limit - len(read.ids)
        padding = [self.padding] * (room if self.plain.padded else min(room, self.plain.masked))
        rest = [
            number
            for part in read.overflowing
            for number, special in zip(part.ids, part.special_tokens_mask, strict=True)
            if not special
        ]
        return Row((*read.ids, *padding), tuple(rest))

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))
