"""The rules between a vocabulary, its merges and its special tokens, each by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sdort.checkpoints.clip_tokenizer import _byte_alphabet
from sdort.checkpoints.tokenizer_files import (
    _check_merges,
    _check_size,
    _check_tokens,
    _merges_within,
    _other_tokens,
    _pairs,
    _read_json,
    _read_merges,
    _read_whole,
    is_clip_tokenizer,
)
from sdort.errors import BadModelError

WORDS = {"a": 0, "b": 1, "c</w>": 2, "ab": 3, "abc</w>": 4, "bc</w>": 5}


@pytest.mark.parametrize(
    ("merges", "found"),
    [
        ("", set()),
        ("a b", {3}),
        ("a b\nab c</w>", {3, 4}),
        ("a b\nab c</w>\na bc</w>", {3, 4}),  # the same result once more
        ("a b\nb c</w>", {3, 5}),
        ("b c</w>\na b", "the token 'ab' is out of order"),
        ("b c</w>\na b\nab c</w>", "the token 'ab' is out of order"),
        ("a b\nb c</w>\nab c</w>", "the token 'abc</w>' is out of order"),
        ("a d", "merge 1 needs the token 'd', which is missing"),
        ("a b\nd b", "merge 2 needs the token 'd', which is missing"),
        ("a b\nb a", "merge 2 needs the token 'ba', which is missing"),
        ("b a\nx y", "merge 1 needs the token 'ba', which is missing"),
    ],
)
def test_a_merge_joins_tokens_to_a_later_one(merges: str, found: Any) -> None:
    if isinstance(found, set):
        assert _check_merges("w", WORDS, merges) == found
        return
    with pytest.raises(BadModelError) as caught:
        _check_merges("the files", WORDS, merges)
    assert caught.value.message == f"the tokenizer's the files do not belong together: {found}"


@pytest.mark.parametrize(
    ("vocabulary", "merged", "specials", "lost"),
    [
        ({"a": 0, "a</w>": 1, "ab": 2, "<s>": 3}, {2}, {"<s>"}, None),
        ({"</w>": 0, "é": 1}, set(), set(), "'</w>'"),
        ({"a": 0, "ab": 1, "cd": 2}, {1}, set(), "1 of 3 tokens are no merge's result, such as 'cd'"),
        ({"a": 0, "ab": 1, "cd</w>": 2}, set(), set(), "2 of 3 tokens are no merge's result, such as 'ab'"),
        ({"a": 0, "<s>": 1}, set(), {"<e>"}, "such as '<s>'"),
        ({"a": 0, "<s>": 1}, {1}, set(), None),
    ],
)
def test_other_tokens_are_letters(
    vocabulary: dict[str, int], merged: set[int], specials: set[str], lost: str | None
) -> None:
    if lost is None:
        _check_tokens("w", vocabulary, merged, specials)
        return
    with pytest.raises(BadModelError) as caught:
        _check_tokens("w", vocabulary, merged, specials)
    assert lost in caught.value.message


@pytest.mark.parametrize(
    ("name", "encoder", "size", "tokens", "taken"),
    [
        ("tokenizer", "text_encoder", 10, 10, True),
        ("tokenizer", "text_encoder", 10, 9, True),
        ("tokenizer", "text_encoder", 10, 11, False),
        ("tokenizer_2", "text_encoder_2", 10, 11, False),
        ("tokenizer_2", "text_encoder", 10, 11, True),
        ("tokenizer", "text_encoder_2", 10, 11, True),
        ("tokenizer", "text_encoder", None, 11, True),
    ],
)
def test_an_encoder_has_an_embedding_for_each_token(
    name: str, encoder: str, size: int | None, tokens: int, taken: bool, tmp_path: Path
) -> None:
    (tmp_path / encoder).mkdir()
    (tmp_path / encoder / "config.json").write_text(json.dumps({} if size is None else {"vocab_size": size}))
    if taken:
        _check_size(tmp_path / name, tokens)
        return
    words = f"{name} has {tokens} tokens, and {tmp_path / encoder} has embeddings for {size}"
    with pytest.raises(BadModelError, match=words) as caught:
        _check_size(tmp_path / name, tokens)
    assert "resize_token_embeddings" in str(caught.value.hint)


OWN = {"<|startoftext|>", "<|endoftext|>"}


@pytest.mark.parametrize(
    ("files", "whole", "others", "added"),
    [
        ({}, {}, set(), set()),
        ({"special_tokens_map.json": {"pad_token": "!", "more": {"content": "<m>"}}}, {}, {"!", "<m>"}, set()),
        ({"special_tokens_map.json": {"extra": ["<x>", {"content": "<y>"}]}}, {}, {"<x>", "<y>"}, set()),
        ({"added_tokens.json": {"<cat>": 50, "<dog>": 51}}, {}, {"<cat>", "<dog>"}, {"<cat>", "<dog>"}),
        ({"added_tokens.json": ["<cat>"]}, {}, {"<cat>"}, set()),
        ({"tokenizer_config.json": {"added_tokens_decoder": {"9": {"content": "<z>"}, "10": "w"}}}, {}, {"<z>", "w"},
         {"<z>"}),
        ({"tokenizer_config.json": {"added_tokens_decoder": ["<q>"]}}, {}, {"<q>"}, set()),
        ({"tokenizer_config.json": ["<l>"]}, {}, {"<l>"}, set()),
        ({}, {"added_tokens": [{"content": "<w>", "id": 3}, "no"]}, {"<w>"}, {"<w>"}),
        ({}, {"added_tokens": None}, set(), set()),
        ({"other.json": {"x": "<o>"}}, {}, set(), set()),
        ({"added_tokens.json": {"<a>": 1},
          "tokenizer_config.json": {"added_tokens_decoder": {"1": {"content": "<b>"}}}},
         {"added_tokens": [{"content": "<c>"}]}, {"<a>", "<b>", "<c>"}, {"<a>", "<b>", "<c>"}),
    ],
    ids=lambda value: repr(sorted(value) if isinstance(value, set) else value),
)  # fmt: skip
def test_tokens_that_no_merge_makes(
    files: dict[str, Any], whole: dict[str, Any], others: set[str], added: set[str], tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert _other_tokens(tmp_path, whole) == (OWN | others, added)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"#version: 0.2\na b\nc d\n", "a b\nc d"),
        (b"#version: 0.2\r\na b\r\nc d\r\n\r\n", "a b\nc d"),
        (b"#version: 0.2", ""),
        (b"#version: 0.2\n\n", ""),
        (b"a b\nc d\n", "does not begin with a line #version"),
        (b" #version\na b\n", "does not begin with a line #version"),
        (b"#version\na b\nc\n", "merge 2 is no pair of tokens: 'c'"),
        (b"#version\n\na b\n", "merge 1 is no pair of tokens: ''"),
        (b"#version\na b c\n", "merge 1 is no pair of tokens: 'a b c'"),
        (b"#version\na  b\n", "merge 1 is no pair of tokens: 'a  b'"),
        (b"#version\n" + b"x" * 50, "merge 1 is no pair of tokens: '" + "x" * 40 + "'"),
        (b"#version\n\xff", "it is no text in UTF-8"),
    ],
)
def test_lines_of_merges(content: bytes, found: str, tmp_path: Path) -> None:
    path = tmp_path / "merges.txt"
    path.write_bytes(content)
    if "merge" not in found and "it" not in found and "does" not in found:
        assert _read_merges(path) == found
        return
    with pytest.raises(BadModelError, match="is damaged") as caught:
        _read_merges(path)
    assert found in caught.value.message


def test_merges_within_a_whole_file_are_pairs_or_texts() -> None:
    path = Path("tokenizer.json")
    merges: Any
    for merges in ([["a", "b"], ["c", "d"]], ["a b", "c d"], ["a b", ["c", "d"]]):
        assert _merges_within(path, {"model": {"merges": merges}}) == "a b\nc d"
    assert _merges_within(path, {"model": {"merges": []}}) == ""
    for merges, words in (
        ([5], "its merges are no pairs"), ([["a", 5]], "its merges are no pairs"), ([["a"]], "merge 1 is no pair"),
        (["a b", ["c", "d e"]], "merge 2 is no pair"),
    ):  # fmt: skip
        with pytest.raises(BadModelError, match=words):
            _merges_within(path, {"model": {"merges": merges}})
    assert _pairs(path, "") == ""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"model": {"vocab": {}, "merges": []}}, None),
        ({"model": {"vocab": {}, "merges": []}, "added_tokens": []}, None),
        ({"model": {"vocab": {}, "merges": []}, "added_tokens": None}, None),
        ({"model": {"vocab": {}, "merges": []}, "added_tokens": {}}, "its added tokens are no list"),
        ({"model": {"vocab": {}, "merges": {}}}, "it has no vocabulary and merges"),
        ({"model": {"vocab": {}}}, "it has no vocabulary and merges"),
        ({"model": {"merges": []}}, "it has no vocabulary and merges"),
        ({"model": []}, "it has no vocabulary and merges"),
        ({}, "it has no vocabulary and merges"),
        ([], "it has no vocabulary and merges"),
    ],
    ids=str,
)
def test_the_parts_of_a_whole_file(content: Any, words: str | None, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    if words is None:
        assert _read_whole(path) == content
        return
    with pytest.raises(BadModelError, match=words):
        _read_whole(path)
    path.write_text("{")
    with pytest.raises(BadModelError, match=r"the tokenizer's .* is damaged: it is no JSON"):
        _read_json(path)


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "tokenizer.json", None])
@pytest.mark.parametrize(("said", "is_clip"), [(None, True), ("CLIPTokenizerFast", True), ("T5Tokenizer", False)])
def test_a_tokenizer_by_its_class_and_files(name: str | None, said: str | None, is_clip: bool, tmp_path: Path) -> None:
    if name:
        (tmp_path / name).touch()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": said} if said else {}))
    assert is_clip_tokenizer(tmp_path) == (is_clip and name is not None)


def test_the_letters_of_bytes_are_those_of_openai() -> None:
    """``bytes_to_unicode`` of openai/CLIP: the order of its vocabulary, and the letters that print."""
    codes = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, more = list(codes), 0
    for byte in range(256):
        if byte not in codes:
            letters.append(256 + more)
            more += 1
    assert _byte_alphabet() == [chr(code) for code in letters]
    assert len(set(_byte_alphabet())) == 256
