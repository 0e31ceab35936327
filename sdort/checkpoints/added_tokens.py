"""Tokens that are added to a CLIP tokenizer behind its vocabulary: the words of textual inversion.

A word of several vectors has as many tokens, named as diffusers' ``load_textual_inversion`` does it: ``word``,
``word_1``, ``word_2``, ...; whoever reads a prompt puts all of them in the place of the first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sdort.checkpoints.configs import TABLE_BYTES, read_config, write_json

_ADDED, _CONFIG, _WHOLE, _VOCABULARY = "added_tokens.json", "tokenizer_config.json", "tokenizer.json", "vocab.json"


def read_tokens(folder: Path) -> dict[str, int]:
    """All tokens of a tokenizer that :func:`sdort.checkpoints.tokenizer_files.check_tokenizer` has taken, with their
    ids.

    Raises:
        BadModelError: a file is damaged.
    """
    whole = _optional(folder / _WHOLE)
    tokens = dict(whole["model"]["vocab"]) if whole else _optional(folder / _VOCABULARY)
    for number, entry in (_optional(folder / _CONFIG).get("added_tokens_decoder") or {}).items():
        tokens[str(entry["content"])] = int(number)
    for entry in whole.get("added_tokens") or []:
        tokens[str(entry["content"])] = int(entry["id"])
    return tokens | _optional(folder / _ADDED)


def add_tokens(folder: Path, tokens: Mapping[str, int]) -> None:
    """Add tokens to the files of a tokenizer: to each of those that libraries look for them in.

    Args:
        tokens: the new ones with their ids.

    Raises:
        BadModelError: a file is damaged.
        OutputError: one cannot be written.
    """
    write_json(folder / _ADDED, _optional(folder / _ADDED) | dict(tokens))
    config = _optional(folder / _CONFIG)
    decoder = config.get("added_tokens_decoder") or {}
    config["added_tokens_decoder"] = decoder | {str(number): _entry(token) for token, number in tokens.items()}
    write_json(folder / _CONFIG, config)
    if whole := _optional(folder / _WHOLE):
        entries = [{"id": number, **_entry(token)} for token, number in tokens.items()]
        write_json(folder / _WHOLE, {**whole, "added_tokens": [*(whole.get("added_tokens") or []), *entries]})


def token_groups(added: Mapping[str, int]) -> dict[int, list[int]]:
    """The ids of the tokens of each word of several vectors, by the id of its first.

    Args:
        added: a tokenizer's added tokens with their ids.
    """
    groups = {}
    for token, number in added.items():
        group = [number]
        while (following := added.get(f"{token}_{len(group)}")) is not None:
            group.append(following)
        if len(group) > 1:
            groups[number] = group
    return groups


def expand_words(ids: Sequence[int], groups: Mapping[int, Sequence[int]]) -> list[int]:
    """Token ids of a prompt in which every word of several vectors stands with all of its tokens.

    Args:
        groups: as :func:`token_groups` has them.
    """
    return [each for number in ids for each in groups.get(number, (number,))]


def _entry(token: str) -> dict[str, Any]:
    # Normalized, as transformers' add_tokens makes it, so that a prompt's upper and lower case find it alike. A name of
    # letters is a whole word, as in A1111, and not the beginning of a longer name; <name> says itself where it ends.
    whole = token[:1].isalnum() or token[-1:].isalnum()
    flags = {"lstrip": False, "normalized": True, "rstrip": False, "single_word": whole, "special": False}
    return {"content": token, **flags}


def _optional(path: Path) -> dict[str, Any]:
    return read_config(path, limit=TABLE_BYTES) if os.path.lexists(path) else {}
