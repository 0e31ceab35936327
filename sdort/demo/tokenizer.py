"""Small tokenizers: the real vocabularies are larger than the demo model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sdort.checkpoints.clip_tokenizer import write_clip_tokenizer
from sdort.families.family import PlainText
from sdort.machine.optional_packages import need_packages

# Pairs in the order in which byte-pair encoding joins them; </w> ends a word.
MERGES = (
    "t h",
    "th e</w>",
    "i n",
    "in g</w>",
    "a n",
    "an d</w>",
    "e r</w>",
    "o u",
    "o f</w>",
    "a t</w>",
    "l i",
    "o n</w>",
    "e d</w>",
    "s t",
    "h o",
    "u s",
    "us k</w>",
    "ho us",
)


def write_letters(folder: Path, plain: PlainText, merges: Sequence[str] = ()) -> None:
    """Write the files of a tokenizer of plain text that knows single letters, as transformers saves it.

    Args:
        plain: how the encoder reads prompts: with a chat template as Qwen3's tokenizer, without one as T5's.
        merges: pairs that Qwen3's tokenizer joins, in their order.
    """
    need_packages("transformers", what="a tokenizer of plain text")
    import transformers
    from tokenizers import AddedToken
    from tokenizers.pre_tokenizers import ByteLevel

    made: Any = getattr(transformers, plain.tokenizer)
    if plain.before:
        letters = sorted(ByteLevel.alphabet())
        pairs = [tuple(merge.split()) for merge in merges]
        tokens = [*letters, *("".join(pair) for pair in pairs)]
        tokenizer = made(vocab={token: number for number, token in enumerate(tokens)}, merges=pairs)
        tokenizer.add_tokens([AddedToken(token, special=True) for token in ("<|im_start|>", "<|im_end|>")])
        tokenizer.chat_template = _TEMPLATE
    else:
        pieces = ["<pad>", "</s>", "<unk>", "\u2581", *map(chr, range(0x21, 0x7F))]
        tokenizer = made(vocab=[(piece, -float(number)) for number, piece in enumerate(pieces)], extra_ids=0)
    tokenizer.save_pretrained(folder)


_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""Qwen3's, for one message of a user who lets it think."""


def write_tokenizer(folder: Path, merges: Sequence[str] = MERGES) -> int:
    """Write the files of a small tokenizer; returns the size of its vocabulary."""
    return write_clip_tokenizer(folder, merges)
