"""Words of textual inversion in tables and configs: rows, ids, ends, and words that are taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from sdort.adapters.embedding_file import EmbeddingChoice
from sdort.checkpoints.added_tokens import add_tokens, expand_words, read_tokens, token_groups
from sdort.errors import BadModelError, UsageError
from sdort.exporter.new_words import NewWords, read_new_words, with_rows
from sdort.exporter.signatures import describe_component
from sdort.graph.weights import Inline

TABLE = "embeddings.token_embedding.weight"


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("rows", "first", "count"), [(6, 6, 1), (6, 6, 3), (6, 4, 1), (6, 4, 2), (6, 4, 5), (6, 0, 6)])
def test_rows_behind_and_over_a_table(dtype: Any, rows: int, first: int, count: int) -> None:
    table = np.random.default_rng(0).standard_normal((rows, 5)).astype(dtype)
    new = np.random.default_rng(1).standard_normal((count, 5)).astype(np.float32)
    found = with_rows(Inline(table), first, new)
    expected = np.zeros((max(rows, first + count), 5), np.float32)
    expected[:rows] = table
    expected[first : first + count] = new
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found.load(), expected)
    np.testing.assert_array_equal(
        np.concatenate([piece.reshape(-1) for piece in found.pieces(5)]), expected.reshape(-1)
    )


def tokenizer(folder: Path, tokens: dict[str, int], **config: Any) -> None:
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps(tokens))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def pipeline(folder: Path, *choices: EmbeddingChoice, rows: tuple[int, int] = (4, 7)) -> NewWords:
    tables = {
        "text_encoder": {f"text_model.{TABLE}": Inline(np.zeros((rows[0], 8), np.float32))},
        "text_encoder_2": {TABLE: Inline(np.zeros((rows[1], 16), np.float16))},
        "unet": {"a": Inline(np.zeros(1, np.float32))},
    }
    return read_new_words(choices, lambda name: folder / name, tables)


def word(path: Path, name: str, count: int) -> EmbeddingChoice:
    random = np.random.default_rng(count)
    file = path / f"{name}.safetensors"
    save_file({"clip_l": random.standard_normal((count, 8)).astype(np.float32),
               "clip_g": random.standard_normal((count, 16)).astype(np.float32)}, file)  # fmt: skip
    return EmbeddingChoice(file)


def test_words_of_two_encoders(tmp_path: Path) -> None:
    tokenizer(tmp_path / "tokenizer", {"a": 0, "b</w>": 1, "<|endoftext|>": 2, "c": 3})
    tokenizer(tmp_path / "tokenizer_2", {"a": 0, "<|endoftext|>": 4, "c": 1, "d": 2, "e": 3})
    choices = [word(tmp_path, "one", 2), word(tmp_path, "two", 1)]
    found = pipeline(tmp_path, *choices)
    assert found.extensions["text_encoder"].tokens == {"one": 4, "one_1": 5, "two": 6}
    assert found.extensions["text_encoder_2"].tokens == {"one": 5, "one_1": 6, "two": 7}
    assert (found.extensions["text_encoder"].end, found.extensions["text_encoder_2"].end) == (2, 4)
    assert [(each.word, each.vectors) for each in found.words] == [("one", 2), ("two", 1)]
    tensors = found.tensors({
        "text_encoder": {TABLE: Inline(np.ones((4, 8), np.float32)), "b": Inline(np.ones(3, np.float32))},
        "text_encoder_2": {TABLE: Inline(np.ones((7, 16), np.float32))},
        "unet": {TABLE: Inline(np.ones((7, 16), np.float32))},
    })  # fmt: skip
    first, second = tensors["text_encoder"][TABLE].load(), tensors["text_encoder_2"][TABLE].load()
    assert (first.shape, second.shape, tensors["unet"][TABLE].shape) == ((7, 8), (8, 16), (7, 16))
    assert (first[:4] == 1).all()
    assert (second[:5] == 1).all()
    for number, rows in (("text_encoder", first[4:]), ("text_encoder_2", second[5:])):
        np.testing.assert_array_equal(rows, found.extensions[number].vectors)
    assert found.parameters("text_encoder", {TABLE: (4, 8), "b": (3,)}) == {TABLE: (7, 8), "b": (3,)}
    assert found.parameters("text_encoder", {TABLE: (9, 8)}) == {TABLE: (9, 8)}
    assert found.parameters("unet", {"a": (1,)}) == {"a": (1,)}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"vocab_size": 4, "eos_token_id": 2}, {"vocab_size": 7, "eos_token_id": 3}),
        ({"vocab_size": 4, "eos_token_id": 3}, {"vocab_size": 7, "eos_token_id": 3}),
        ({"vocab_size": 4, "eos_token_id": 1}, {"vocab_size": 7, "eos_token_id": 1}),
        ({"vocab_size": 9, "eos_token_id": 2}, {"vocab_size": 9, "eos_token_id": 3}),
        ({"vocab_size": 4}, {"vocab_size": 7, "eos_token_id": None}),
    ],
)
def test_the_end_of_a_text_stays_the_tokenizers(tmp_path: Path, config: Any, expected: dict[str, Any]) -> None:
    """With an old end of 2, transformers takes the token of the highest id for the end: a new word's."""
    tokenizer(tmp_path / "tokenizer", {"a": 0, "b": 1, "c": 2, "<|endoftext|>": 3})
    tokenizer(tmp_path / "tokenizer_2", {"a": 0})
    found = pipeline(tmp_path, word(tmp_path, "one", 3))
    assert found.config("text_encoder", {**config, "other": 5}) == {**expected, "other": 5}
    assert found.config("unet", {"a": 1}) == {"a": 1}
    assert found.config("text_encoder_2", {"vocab_size": 1, "eos_token_id": 2})["eos_token_id"] == 2
    traced = describe_component("text_encoder", "CLIPTextModel", {"hidden_size": 8, "num_hidden_layers": 1, **config})
    changed = found.component(traced).config
    assert changed["vocab_size"] == config["vocab_size"]  # what is traced has the old table
    assert changed["eos_token_id"] == expected["eos_token_id"]
    assert NewWords().component(traced) == traced


def test_words_that_are_taken(tmp_path: Path) -> None:
    tokenizer(tmp_path / "tokenizer", {"a": 0, "Cat</w>": 1, "one_2": 2, "two": 3})
    tokenizer(tmp_path / "tokenizer_2", {"dog": 0})
    for name, count, taken in (("cat", 1, "cat"), ("one", 2, "one_2"), ("TWO", 1, "TWO"), ("dog", 1, "dog")):
        with pytest.raises(UsageError, match=f"the tokenizer has a token '{taken}' already") as caught:
            pipeline(tmp_path, word(tmp_path, name, count))
        assert f"--embedding {tmp_path / name}.safetensors:WORD" in str(caught.value.hint)
    # one_1 would be the next token of the word before it, and a word of its own
    with pytest.raises(UsageError, match="already"):
        pipeline(tmp_path, word(tmp_path, "new", 2), word(tmp_path, "new_1", 1))
    with pytest.raises(UsageError, match="already"):
        pipeline(tmp_path, word(tmp_path, "new", 1), word(tmp_path, "NEW", 1))
    assert pipeline(tmp_path, word(tmp_path, "one", 1)).extensions["text_encoder"].tokens == {"one": 4}
    assert pipeline(tmp_path) == NewWords()


def test_a_word_needs_a_text_encoder_with_a_table(tmp_path: Path) -> None:
    choice = word(tmp_path, "one", 1)
    with pytest.raises(UsageError, match="no text encoder is exported"):
        read_new_words([choice], lambda name: tmp_path / name, {"unet": {}})
    with pytest.raises(BadModelError, match=f"the checkpoint has no {TABLE}") as caught:
        read_new_words([choice], lambda name: tmp_path / name, {"text_encoder": {}})
    assert caught.value.component == "text_encoder"


ENTRY = {"lstrip": False, "normalized": True, "rstrip": False, "special": False}


@pytest.mark.parametrize(
    ("token", "whole"),
    [("word", True), ("<word>", False), ("<word", True), ("word>", True), ("<w_1", True), ("_", False)],
)
def test_how_a_token_is_written_into_each_file(tmp_path: Path, token: str, whole: bool) -> None:
    tokenizer(tmp_path / "t", {"a": 0}, errors="replace", added_tokens_decoder={"0": {"content": "a"}})
    (tmp_path / "t" / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0}}, "added_tokens": None}))
    add_tokens(tmp_path / "t", {token: 1})
    read = {path.name: json.loads(path.read_text()) for path in (tmp_path / "t").glob("*.json")}
    entry = {"content": token, "single_word": whole, **ENTRY}
    assert read["added_tokens.json"] == {token: 1}
    assert read["tokenizer_config.json"] == {
        "errors": "replace", "added_tokens_decoder": {"0": {"content": "a"}, "1": entry},
    }  # fmt: skip
    assert read["tokenizer.json"] == {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 1, **entry}]}
    assert read["vocab.json"] == {"a": 0}
    assert read_tokens(tmp_path / "t") == {"a": 0, token: 1}


def test_tokens_are_read_from_each_file(tmp_path: Path) -> None:
    tokenizer(tmp_path / "t", {"a": 0, "b": 1}, added_tokens_decoder={"5": {"content": "five"}})
    assert read_tokens(tmp_path / "t") == {"a": 0, "b": 1, "five": 5}
    (tmp_path / "t" / "added_tokens.json").write_text('{"six": 6}')
    assert read_tokens(tmp_path / "t") == {"a": 0, "b": 1, "five": 5, "six": 6}
    whole = {"model": {"vocab": {"x": 0}}, "added_tokens": [{"content": "seven", "id": 7}]}
    (tmp_path / "t" / "tokenizer.json").write_text(json.dumps(whole))
    assert read_tokens(tmp_path / "t") == {"x": 0, "five": 5, "six": 6, "seven": 7}


def test_words_of_several_vectors_stand_with_all_of_them() -> None:
    added = {"a": 10, "a_1": 11, "a_2": 12, "b": 20, "c_1": 31, "d": 40, "d_2": 42, "e_1": 51, "e": 50}
    groups = token_groups(added)
    assert groups == {10: [10, 11, 12], 50: [50, 51]}
    assert expand_words([1, 10, 20, 50, 11, 10], groups) == [1, 10, 11, 12, 20, 50, 51, 11, 10, 11, 12]
    assert expand_words([1, 2], {}) == [1, 2]
