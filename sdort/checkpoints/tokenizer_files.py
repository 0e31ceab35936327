"""The files of a CLIP tokenizer, held against each other.

transformers takes a merges.txt that was cut in half, a vocabulary with other ids, or a pair of files of two models, and
makes other tokens of the same prompt: another image, and no error. Byte-pair encoding leaves no freedom here: every
token is a letter of the byte alphabet, the result of a merge, or a special token, and ids grow with the merges.
transformers 5 saves tokenizer.json alone, which holds both tables; older versions the two files, or all three.
https://github.com/openai/CLIP, simple_tokenizer.py
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Set
from itertools import pairwise
from pathlib import Path
from typing import Any

from sdort.checkpoints.config_schemas import component_schema
from sdort.checkpoints.configs import optional_config
from sdort.errors import BadModelError
from sdort.files.input_file import read_input
from sdort.files.json_text import parse_json

"""Folders of a pipeline's CLIP tokenizers."""

MAX_TEXT_FILE = 64 << 20
"""Upper bound in bytes of a config or a tokenizer's file; CLIP's largest has 2 MB, those of other models 30 MB."""

_VOCABULARY, _MERGES, _WHOLE = "vocab.json", "merges.txt", "tokenizer.json"
_FILES = (_VOCABULARY, _MERGES, _WHOLE)
TABLES = (_VOCABULARY, _WHOLE)
"""The JSON files that :func:`check_tokenizer` reads whole."""
_SPECIALS = ("special_tokens_map.json", "tokenizer_config.json", "added_tokens.json")
_WORD_END = "</w>"
_AGAIN = "Copy or download the tokenizer again: the same prompt would give another image."

_LINES = re.compile(r"(?:[^ \n]+ [^ \n]+\n)+")


def is_clip_tokenizer(folder: Path) -> bool:
    """Whether a folder's tokenizer is CLIP's; where no ``tokenizer_config.json`` says so, by its files."""
    name = optional_config(folder / "tokenizer_config.json").get("tokenizer_class")
    return any(os.path.lexists(folder / file) for file in _FILES) and str(name or "CLIP").startswith("CLIP")


def check_tokenizer(folder: Path) -> None:
    """Check that the files of a CLIP tokenizer are whole and belong together, and to the text encoder beside them.

    Of CLIP's own size, 49,408 tokens, in 0.1 s of one core.

    Raises:
        BadModelError: a file is missing, cut off, damaged, or contradicts another one.
    """
    whole = _read_whole(folder / _WHOLE) if os.path.lexists(folder / _WHOLE) else None
    if whole and not any(os.path.lexists(folder / name) for name in (_VOCABULARY, _MERGES)):
        where, vocabulary = str(folder / _WHOLE), _checked(folder / _WHOLE, whole["model"]["vocab"])
        merges = _merges_within(folder / _WHOLE, whole)
    else:
        where = f"{_VOCABULARY} and {_MERGES} in {folder}"
        vocabulary = _checked(folder / _VOCABULARY, _read_json(folder / _VOCABULARY))
        merges = _read_merges(folder / _MERGES)
        if whole and whole["model"]["vocab"] != vocabulary:
            raise _damaged(folder / _WHOLE, f"it disagrees with {_VOCABULARY} beside it")
        if whole and _merges_within(folder / _WHOLE, whole) != merges:
            raise _damaged(folder / _WHOLE, f"it disagrees with {_MERGES} beside it")
    specials, added = _other_tokens(folder, whole or {})
    _check_tokens(where, vocabulary, _check_merges(where, vocabulary, merges), specials)
    _check_size(folder, len(vocabulary.keys() | added))


def _checked(path: Path, vocabulary: Any) -> dict[str, int]:
    if not isinstance(vocabulary, dict) or set(map(type, vocabulary.values())) != {int}:
        raise _damaged(path, "it is no table of tokens and their numbers")
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise _damaged(path, f"its {len(vocabulary)} tokens are not numbered from 0 to {len(vocabulary) - 1}")
    return vocabulary


def _read_merges(path: Path) -> str:
    try:
        text = read_input(path, limit=MAX_TEXT_FILE, hint=_AGAIN).decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise _damaged(path, "it is no text in UTF-8") from error
    if not text.startswith("#version"):
        raise _damaged(path, "it does not begin with a line #version, so the first merge would be lost")
    return _pairs(path, text.partition("\n")[2].rstrip("\n"))


def _merges_within(path: Path, whole: Mapping[str, Any]) -> str:
    """The merges of a ``tokenizer.json``: pairs, or texts with a space in between."""
    try:
        lines = [pair if isinstance(pair, str) else " ".join(pair) for pair in whole["model"]["merges"]]
    except TypeError as error:
        raise _damaged(path, "its merges are no pairs of tokens") from error
    return _pairs(path, "\n".join(lines))


def _pairs(path: Path, merges: str) -> str:
    """The text of merges, if each line is two tokens: 50,000 are checked sooner as one text than as pairs."""
    if merges and not _LINES.fullmatch(merges + "\n"):
        lines = merges.split("\n")
        number, line = next((n, line) for n, line in enumerate(lines, 1) if not _LINES.fullmatch(line + "\n"))
        raise _damaged(path, f"merge {number} is no pair of tokens: {line[:40]!r}")
    return merges


def _check_merges(where: str, vocabulary: Mapping[str, int], merges: str) -> set[int]:
    """Every merge joins tokens to a token, and later ones have higher numbers; the numbers of all results."""
    lines = merges.split("\n") if merges else []
    results = merges.replace(" ", "").split("\n") if merges else []
    found = list(map(vocabulary.get, results))
    if None in found or not set(merges.replace("\n", " ").split(" ")) - {""} <= vocabulary.keys():
        number, token = next(
            (number, token)
            for number, line in enumerate(lines, 1)
            for token in (*line.split(" "), line.replace(" ", ""))
            if token not in vocabulary
        )
        raise _disagree(where, f"merge {number} needs the token {token!r}, which is missing")
    numbers = list(dict.fromkeys(map(vocabulary.__getitem__, results)))
    if numbers != sorted(numbers):
        wrong = next(two for one, two in pairwise(numbers) if two < one)
        token = next(token for token in results if vocabulary[token] == wrong)
        raise _disagree(where, f"the token {token!r} is out of order")
    return set(numbers)


def _check_tokens(where: str, vocabulary: Mapping[str, int], merged: Set[int], specials: Set[str]) -> None:
    """The tokens that are neither a merge's result nor special are letters."""
    rest = [token for token, number in vocabulary.items() if number not in merged and token not in specials]
    lost = [token for token in rest if len(token.removesuffix(_WORD_END) or token) > 1]
    if lost:
        reason = f"{len(lost)} of {len(vocabulary)} tokens are no merge's result, such as {lost[0]!r}"
        raise _disagree(where, f"{reason}: the merges were cut off or belong to another model")


def _check_size(folder: Path, tokens: int) -> None:
    """The text encoder has an embedding for each token: what a GPU reads for others is whatever lies behind."""
    encoder = folder.with_name(folder.name.replace("tokenizer", "text_encoder"))
    size = optional_config(encoder / "config.json", component_schema(encoder.name)).get("vocab_size")
    if size is not None and tokens > size:
        raise BadModelError(
            f"the tokenizer in {folder} has {tokens} tokens, and {encoder} has embeddings for {size}",
            hint="They belong to different models; or tokens were added, and the pipeline has to be saved again after"
            "\n    text_encoder.resize_token_embeddings(len(tokenizer))",
        )


def _other_tokens(folder: Path, whole: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """The tokens that no merge makes: those of the files that name them, with CLIP's own two; and which are added.

    Added ones, as of textual inversion, have ids behind the vocabulary's, if they are not in it.
    """
    files = {name: _read_json(folder / name) for name in _SPECIALS if os.path.lexists(folder / name)}
    config, table = files.get("tokenizer_config.json"), files.get("added_tokens.json")
    decoder = config.get("added_tokens_decoder") if isinstance(config, dict) else None
    entries = [*(decoder.values() if isinstance(decoder, dict) else ()), *(whole.get("added_tokens") or ())]
    added = {str(entry.get("content")) for entry in entries if isinstance(entry, dict)}
    added |= table.keys() if isinstance(table, dict) else set()
    return {"<|startoftext|>", "<|endoftext|>", *_texts(list(files.values()), -1), *added}, added


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


def _read_whole(path: Path) -> dict[str, Any]:
    content = _read_json(path)
    model = content.get("model") if isinstance(content, dict) else None
    added = content.get("added_tokens") if isinstance(content, dict) else None
    if not isinstance(model, dict) or "vocab" not in model or not isinstance(model.get("merges"), list):
        raise _damaged(path, "it has no vocabulary and merges")
    if not isinstance(added, (list, type(None))):
        raise _damaged(path, "its added tokens are no list")
    return dict(content)


def _read_json(path: Path) -> Any:
    try:
        return parse_json(read_input(path, limit=MAX_TEXT_FILE, hint=_AGAIN))
    except ValueError as error:
        raise _damaged(path, f"it {error}") from error


def _damaged(path: Path, reason: str) -> BadModelError:
    return BadModelError(f"the tokenizer's {path} is damaged: {reason}", hint=_AGAIN)


def _disagree(where: str, reason: str) -> BadModelError:
    return BadModelError(f"the tokenizer's {where} do not belong together: {reason}", hint=_AGAIN)
