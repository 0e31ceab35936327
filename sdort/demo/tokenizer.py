"""A CLIP tokenizer made without a download: the byte alphabet and a few merges."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

BOS, EOS = "<|startoftext|>", "<|endoftext|>"
LENGTH = 77

# Pairs in the order in which byte-pair encoding joins them; </w> ends a word.
_MERGES = (
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


def write_tokenizer(folder: Path, merges: Sequence[str] = _MERGES) -> int:
    """Write the files that transformers' ``CLIPTokenizer`` reads; returns the size of the vocabulary.

    The last two entries are the begin and end tokens, as in CLIP's own vocabulary.
    """
    letters = _byte_alphabet()
    joined = ["".join(pair.split(" ")) for pair in merges]
    entries = [*letters, *(f"{letter}</w>" for letter in letters), *joined, BOS, EOS]
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")
    specials = {"bos_token": BOS, "eos_token": EOS, "unk_token": EOS, "pad_token": EOS}
    (folder / "special_tokens_map.json").write_text(json.dumps(specials, indent=2), encoding="utf-8")
    config = {"tokenizer_class": "CLIPTokenizer", "model_max_length": LENGTH, "do_lower_case": True, **specials}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return len(entries)


def _byte_alphabet() -> list[str]:
    """One printable letter for each of the 256 bytes, in CLIP's order (openai/CLIP, simple_tokenizer.py)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    # The bytes that do not print take the letters from 256 on.
    return [chr(byte) for byte in printable] + [chr(256 + index) for index in range(len(others))]
