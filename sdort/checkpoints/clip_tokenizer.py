"""The files of a CLIP tokenizer, written from its merges."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from sdort.families.family import BOS, CHUNK, EOS


def write_clip_tokenizer(folder: Path, merges: Sequence[str], pad: str = EOS) -> int:
    """Write the files that transformers' ``CLIPTokenizer`` reads; returns the size of the vocabulary.

    The vocabulary follows from the merges: the 256 bytes, the same at the end of a word, what the merges make, and
    last the begin and end tokens (openai/CLIP, simple_tokenizer.py).

    Args:
        folder: made if it does not exist.
        merges: pairs of tokens with a space in between, in the order in which byte-pair encoding joins them.
        pad: the token that fills up short prompts.
    """
    letters = _byte_alphabet()
    joined = ["".join(pair.split(" ")) for pair in merges]
    entries = [*letters, *(f"{letter}</w>" for letter in letters), *joined, BOS, EOS]
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")
    specials = {"bos_token": BOS, "eos_token": EOS, "unk_token": EOS, "pad_token": pad}
    (folder / "special_tokens_map.json").write_text(json.dumps(specials, indent=2), encoding="utf-8")
    config = {"tokenizer_class": "CLIPTokenizer", "model_max_length": CHUNK, "do_lower_case": True, **specials}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return len(entries)


def vocabulary_size(merges: Sequence[str]) -> int:
    """The number of tokens that follow from the merges: the bytes inside and at the end of a word, begin and end."""
    return 2 * 256 + len(merges) + 2


def _byte_alphabet() -> list[str]:
    """One printable letter for each of the 256 bytes, in CLIP's order (openai/CLIP, simple_tokenizer.py)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    # The bytes that do not print take the letters from 256 on.
    return [chr(byte) for byte in printable] + [chr(256 + index) for index in range(len(others))]
