"""A damaged tokenizer is told: each of these loads in transformers, and makes other tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sdort.checkpoints.tokenizer_files import check_tokenizer
from sdort.demo.tokenizer import write_tokenizer
from sdort.engines.torch_prompts import TransformersTokenizer
from sdort.errors import BadModelError
from sdort.generation.requests.tokenizers import load_tokenizer

TOKENS = 256 * 2 + 18 + 2
"""Of the demo's tokenizer: letters, with and without a word's end; merges; begin and end."""

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


def alone(pairs: list[object] | None = None, **more: object) -> Change:
    """Leaves a tokenizer.json, as transformers 5 saves it."""

    def edit(folder: Path) -> None:
        whole()(folder)
        content = json.loads((folder / "tokenizer.json").read_text())
        content["model"]["merges"] = content["model"]["merges"] if pairs is None else pairs
        (folder / "tokenizer.json").write_text(json.dumps(content | more))
        for name in ("vocab.json", "merges.txt"):
            (folder / name).unlink()

    return edit


def embeddings(size: int) -> Change:
    """Gives the text encoder beside the tokenizer embeddings for so many tokens."""

    def edit(folder: Path) -> None:
        (folder.parent / "text_encoder").mkdir()
        (folder.parent / "text_encoder" / "config.json").write_text(json.dumps({"vocab_size": size}))

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
    (alone(pairs=[["t", "h"]]), "tokens are no merge's result"),
    (alone(pairs=[5]), "are no pairs of tokens"),
    (alone(pairs=[["t", "h", "e"]]), "merge 1 is no pair of tokens: 't h e'"),
    (alone(pairs=[[["t"], ["h"]]]), "are no pairs of tokens"),
    (alone(added_tokens=5), "added tokens are no list"),
    (alone(model=5), "no vocabulary and merges"),
    (embeddings(TOKENS - 1), f"has {TOKENS} tokens, and"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGES)
def test_damage_is_told(tmp_path: Path, damage: Change, words: str) -> None:
    folder = tmp_path / "tokenizer"
    write_tokenizer(folder)
    damage(folder)
    with pytest.raises(BadModelError, match=r"tokenizer|belong together|cannot read") as caught:
        load_tokenizer(folder)
    assert words in str(caught.value)


def test_what_transformers_saves_is_taken(tmp_path: Path) -> None:
    """In each form; with tokens of textual inversion, which have to have embeddings."""
    from transformers import CLIPTokenizer

    made = tmp_path / "made"
    write_tokenizer(made)
    tokenizer: Any = CLIPTokenizer.from_pretrained(made)
    tokenizer.add_tokens(["<cat-toy>", "hello world"])
    folder = tmp_path / "tokenizer"
    tokenizer.save_pretrained(folder)
    embeddings(TOKENS + 2)(folder)
    assert load_tokenizer(folder).ids("a <cat-toy>") == TransformersTokenizer(tokenizer).ids("a <cat-toy>")
    tokenizer.backend_tokenizer.model.save(str(folder))
    assert {path.name for path in folder.iterdir()} > {"merges.txt", "tokenizer.json", "vocab.json"}
    check_tokenizer(folder)
    (tmp_path / "text_encoder" / "config.json").write_text(json.dumps({"vocab_size": TOKENS + 1}))
    with pytest.raises(BadModelError, match=f"has {TOKENS + 2} tokens, and .* has embeddings for {TOKENS + 1}"):
        check_tokenizer(folder)


def test_older_forms_are_taken(tmp_path: Path) -> None:
    """Merges as texts, lines of Windows, a blank line at the end, added tokens in a file of their own."""
    write_tokenizer(tmp_path)
    whole()(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    merges(lambda lines: [*(line + "\r" for line in lines), ""])(tmp_path)
    (tmp_path / "added_tokens.json").write_text('{"<style>": 999}')
    check_tokenizer(tmp_path)
