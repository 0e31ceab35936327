"""The files of a CLIP tokenizer, held against each other.

transformers takes a merges.txt that was cut in half, a vocabulary with other ids, or a pair of files of two models, and
makes other tokens of the same prompt: another image, and no error. Byte-pair encoding leaves no freedom here: every
token is a letter of the byte alphabet, the result of a merge, or a special token, and ids grow with the merges.
https://github.com/openai/CLIP, simple_tokenizer.py
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from sdort.errors import BadModelError
from sdort.machine.input_file import read_input
from sdort.machine.json_text import parse_json

TOKENIZERS = ("tokenizer", "tokenizer_2")
"""Folders of a pipeline's CLIP tokenizers."""

MAX_TEXT_FILE = 64 << 20
"""Upper bound in bytes of a config or a tokenizer's file; CLIP's largest has 2 MB, those of other models 30 MB."""

_VOCABULARY, _MERGES, _WHOLE = "vocab.json", "merges.txt", "tokenizer.json"
_SPECIALS = ("special_tokens_map.json", "tokenizer_config.json", "added_tokens.json")
_WORD_END = "</w>"
_AGAIN = "Copy or download the tokenizer again: the same prompt would give another image."

Pair = tuple[str, str]


def is_clip_tokenizer(folder: Path) -> bool:
    """Whether a folder has one of a CLIP tokenizer's two files: other tokenizers have neither."""
    return os.path.lexists(folder / _VOCABULARY) or os.path.lexists(folder / _MERGES)


def check_tokenizer(folder: Path) -> None:
    """Check that the files of a CLIP tokenizer are whole and belong together; of CLIP's own size in 0.15 s.

    Raises:
        BadModelError: a file is missing, cut off, damaged, or contradicts another one.
    """
    vocabulary = _read_vocabulary(folder / _VOCABULARY)
    merges = _read_merges(folder / _MERGES)
    specials = _special_tokens(folder)
    _check_merges(folder, vocabulary, merges)
    _check_tokens(folder, vocabulary, merges, specials)
    if os.path.lexists(folder / _WHOLE):
        _check_whole(folder / _WHOLE, vocabulary, merges)


def _read_vocabulary(path: Path) -> dict[str, int]:
    vocabulary = _read_json(path)
    if not isinstance(vocabulary, dict) or not all(type(number) is int for number in vocabulary.values()):
        raise _damaged(path, "it is no table of tokens and their numbers")
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise _damaged(path, f"its {len(vocabulary)} tokens are not numbered from 0 to {len(vocabulary) - 1}")
    return vocabulary


def _read_merges(path: Path) -> list[Pair]:
    try:
        lines = read_input(path, limit=MAX_TEXT_FILE, hint=_AGAIN).decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise _damaged(path, "it is no text in UTF-8") from error
    if not lines[0].startswith("#version"):
        raise _damaged(path, "it does not begin with a line #version, so the first merge would be lost")
    while lines[-1] == "":
        lines.pop()
    merges = []
    for number, line in enumerate(lines[1:], 2):
        parts = line.removesuffix("\r").split(" ")
        if len(parts) != 2 or not all(parts):
            raise _damaged(path, f"line {number} is no pair of tokens: {line[:40]!r}")
        merges.append((parts[0], parts[1]))
    return merges


def _check_merges(folder: Path, vocabulary: dict[str, int], merges: list[Pair]) -> None:
    """Every merge joins tokens to a token, and later ones have higher numbers."""
    seen: set[str] = set()
    last = -1
    for number, (left, right) in enumerate(merges, 2):
        for token in (left, right, left + right):
            if token not in vocabulary:
                raise _disagree(folder, f"line {number} of {_MERGES} needs the token {token!r}, which is missing")
        if left + right not in seen and vocabulary[left + right] < last:
            raise _disagree(folder, f"the token {left + right!r} is out of order")
        last = max(last, vocabulary[left + right])
        seen.add(left + right)


def _check_tokens(folder: Path, vocabulary: dict[str, int], merges: list[Pair], specials: Collection[str]) -> None:
    """Every token that is no letter and no special one is the result of a merge."""
    results = {left + right for left, right in merges}
    lost = [
        token
        for token in vocabulary
        if token not in results and token not in specials and len(token.removesuffix(_WORD_END) or token) > 1
    ]
    if lost:
        reason = f"{len(lost)} of {len(vocabulary)} tokens are no merge's result, such as {lost[0]!r}"
        raise _disagree(folder, f"{reason}: {_MERGES} was cut off or belongs to another model")


def _special_tokens(folder: Path) -> set[str]:
    """The tokens that no merge makes, by the files that name them, and CLIP's own two."""
    specials = {"<|startoftext|>", "<|endoftext|>"}
    for name in _SPECIALS:
        if os.path.lexists(folder / name):
            specials.update(_texts(_read_json(folder / name)))
    return specials


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    """The strings and the names of numbers in a table of special tokens."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict) and depth < 4:
        for key, inner in value.items():
            yield from (key,) if type(inner) is int else _texts(inner, depth + 1)
    elif isinstance(value, list) and depth < 4:
        for inner in value:
            yield from _texts(inner, depth + 1)


def _check_whole(path: Path, vocabulary: dict[str, int], merges: list[Pair]) -> None:
    """``tokenizer.json`` says the same: some versions of transformers read it, others the two files."""
    content = _read_json(path)
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict):
        raise _damaged(path, "it has no model")
    spaced, listed = [f"{left} {right}" for left, right in merges], [list(pair) for pair in merges]
    same_merges = (model.get("merges") or []) in (spaced, listed)  # as text, or since tokenizers 0.20 as pairs
    for what, same in ((_VOCABULARY, model.get("vocab") == vocabulary), (_MERGES, same_merges)):
        if not same:
            raise _damaged(path, f"it disagrees with {what} beside it")


def _read_json(path: Path) -> Any:
    try:
        return parse_json(read_input(path, limit=MAX_TEXT_FILE, hint=_AGAIN))
    except ValueError as error:
        raise _damaged(path, f"it {error}") from error


def _damaged(path: Path, reason: str) -> BadModelError:
    return BadModelError(f"the tokenizer's {path} is damaged: {reason}", hint=_AGAIN)


def _disagree(folder: Path, reason: str) -> BadModelError:
    return BadModelError(f"{_VOCABULARY} and {_MERGES} in {folder} do not belong together: {reason}", hint=_AGAIN)
