"""A damaged tokenizer is told: each of these loads in transformers, and makes other tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sdort.demo.tokenizer import write_tokenizer
from sdort.errors import BadModelError
from sdort.generation.prompts import load_tokenizer
from sdort.pipelines.tokenizer_files import check_tokenizer

Change = Callable[[Path], object]


def vocabulary(change: Callable[[dict[str, int]], object]) -> Change:
    def edit(folder: Path) -> None:
        path = folder / "vocab.json"
        tokens = json.loads(path.read_text())
        change(tokens)
        path.write_text(json.dumps(tokens))

    return edit


def merges(change: Callable[[list[str]], list[str]]) -> Change:
    def edit(folder: Path) -> None:
        path = folder / "merges.txt"
        path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")

    return edit


def whole(vocab: dict[str, int] | None = None, pairs: list[list[str]] | None = None) -> Change:
    """Adds a tokenizer.json that differs in what is given."""

    def edit(folder: Path) -> None:
        lines = (folder / "merges.txt").read_text().splitlines()[1:]
        tokens = json.loads((folder / "vocab.json").read_text())
        model = {"vocab": tokens if vocab is None else vocab, "merges": pairs or [line.split(" ") for line in lines]}
        (folder / "tokenizer.json").write_text(json.dumps({"model": model}))

    return edit


def swapped(tokens: dict[str, int]) -> None:
    tokens["th"], tokens["hous"] = tokens["hous"], tokens["th"]


DAMAGES: list[tuple[Change, str]] = [
    (merges(lambda lines: lines[: len(lines) // 2]), "tokens are no merge's result"),
    (merges(lambda lines: [*lines[:-1], lines[-1][:-1]]), "needs the token 'hou"),
    (merges(lambda lines: lines[1:]), "does not begin with a line #version"),
    (merges(lambda lines: [*lines, "q zz"]), "needs the token 'zz', which is missing"),
    (merges(lambda lines: [*lines, "one"]), "is no pair of tokens: 'one'"),
    (vocabulary(swapped), "is out of order"),
    (vocabulary(lambda tokens: tokens.pop("th")), "are not numbered from 0 to"),
    (vocabulary(lambda tokens: tokens.update(th=10**9)), "are not numbered from 0 to"),
    (
        vocabulary(lambda tokens: tokens.update(th=1.5)),  # type: ignore[call-overload]
        "no table of tokens",
    ),
    (lambda folder: (folder / "vocab.json").write_text((folder / "vocab.json").read_text()[:999]), "is no JSON"),
    (lambda folder: (folder / "merges.txt").write_bytes(b"#version\n\xff \xff"), "no text in UTF-8"),
    (lambda folder: (folder / "merges.txt").unlink(), "No such file"),
    (lambda folder: (folder / "vocab.json").unlink(), "No such file"),
    (whole(vocab={"a": 0}), "disagrees with vocab.json"),
    (whole(pairs=[["t", "h"]]), "disagrees with merges.txt"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGES)
def test_damage_is_told(tmp_path: Path, damage: Change, words: str) -> None:
    write_tokenizer(tmp_path)
    damage(tmp_path)
    with pytest.raises(BadModelError, match=r"tokenizer|belong together|cannot read") as caught:
        load_tokenizer(tmp_path)
    assert words in str(caught.value)


def test_whole_ones_are_taken(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    whole()(tmp_path)
    (tmp_path / "added_tokens.json").write_text('{"<style>": 999}')
    check_tokenizer(tmp_path)
