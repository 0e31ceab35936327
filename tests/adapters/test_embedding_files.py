"""Textual inversion's files: which text encoder each tensor is for, the word, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from sdort.adapters.embedding_file import EmbeddingChoice, parse_embedding_choice, read_embedding
from sdort.errors import BadModelError, UsageError
from sdort.graph.signature import Array

ONE = {"text_encoder": 768}
TWO = {"text_encoder": 768, "text_encoder_2": 1280}
SD2 = {"text_encoder": 1024}


def values(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(
    ("tensors", "widths", "word", "vectors"),
    [
        ({"emb_params": values(3, 768)}, ONE, "file", {"text_encoder": 3}),
        ({"string_to_param.*": values(2, 768)}, ONE, "file", {"text_encoder": 2}),
        ({"*": values(2, 1024)}, SD2, "file", {"text_encoder": 2}),
        ({"<cat>": values(768)}, ONE, "<cat>", {"text_encoder": 1}),
        ({"<cat>": values(1, 768)}, ONE, "<cat>", {"text_encoder": 1}),
        ({"emb_params": values(75, 768)}, ONE, "file", {"text_encoder": 75}),
        ({"clip_l": values(2, 768), "clip_g": values(2, 1280)}, TWO, "file", {"text_encoder": 2, "text_encoder_2": 2}),
        ({"clip_g": values(768), "clip_l": values(768)}, {"text_encoder_2": 768, "text_encoder": 768}, "file",
         {"text_encoder": 1, "text_encoder_2": 1}),
        ({"clip_l": values(2, 768)}, ONE, "file", {"text_encoder": 2}),
        ({"clip_g": values(2, 1280)}, {"text_encoder_2": 1280}, "file", {"text_encoder_2": 2}),
    ],
)  # fmt: skip
def test_each_tensor_is_for_its_encoder(
    tmp_path: Path, tensors: dict[str, Array], widths: dict[str, int], word: str, vectors: dict[str, int]
) -> None:
    path = tmp_path / "file.safetensors"
    save_file(tensors, path)
    found = read_embedding(EmbeddingChoice(path), widths)
    assert found.word == word
    assert {encoder: len(rows) for encoder, rows in found.vectors.items()} == vectors
    count = next(iter(vectors.values()))
    assert found.tokens == [word, *(f"{word}_{number}" for number in range(1, count))]
    for encoder, rows in found.vectors.items():
        name = next(iter(tensors)) if len(tensors) == 1 else {"text_encoder": "clip_l"}.get(encoder, "clip_g")
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(rows, tensors[name].reshape(-1, tensors[name].shape[-1]))
    assert read_embedding(EmbeddingChoice(path, "mine"), widths).word == "mine"


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_vectors_of_other_types_become_float32(tmp_path: Path, dtype: Any) -> None:
    rows = values(2, 768, dtype=dtype)
    save_file({"emb_params": rows}, tmp_path / "a.safetensors")
    found = read_embedding(EmbeddingChoice(tmp_path / "a.safetensors"), ONE).vectors["text_encoder"]
    np.testing.assert_array_equal(found, rows.astype(np.float32))


@pytest.mark.parametrize(
    ("tensors", "widths", "words"),
    [
        ({"emb_params": values(2, 1024)}, ONE, r"1024 numbers \(SD 2.x\), and this model takes those of 768 .*SD 1.x"),
        ({"emb_params": values(2, 768)}, TWO, r"768 numbers \(SD 1.x\), and .* 768 and 1280 numbers \(SDXL\)"),
        ({"clip_l": values(2, 768), "clip_g": values(2, 1280)}, ONE, r"768 and 1280 numbers \(SDXL\), and this model"),
        ({"clip_l": values(2, 768)}, TWO, "has vectors of 768 numbers"),
        ({"clip_l": values(2, 768), "clip_g": values(3, 1280)}, TWO, "another number of vectors for each text encoder"),
        ({"clip_l": values(2, 768), "x": values(2, 768)}, ONE, r"is no embedding: it holds 2 tensors \(clip_l, x\)"),
        ({"x": values(2, 768), "y": values(2, 768)}, ONE, r"is no embedding: it holds 2 tensors"),
        ({"emb_params": values(76, 768)}, ONE, r"1 to 75 vectors: its tensor is \[76, 768\]"),
        ({"emb_params": values(1, 2, 768)}, ONE, "1 to 75 vectors"),
        ({"emb_params": values(0, 768)}, ONE, "1 to 75 vectors"),
        ({"emb_params": np.ones((2, 768), np.int32)}, ONE, "its values are int32"),
        ({"emb_params": np.full((2, 768), np.inf, np.float32)}, ONE, "infinite values or NaN"),
        ({"emb_params": np.full((2, 768), np.nan, np.float16)}, ONE, "infinite values or NaN"),
    ],
)
def test_what_is_no_embedding_of_this_model(
    tmp_path: Path, tensors: dict[str, Array], widths: dict[str, int], words: str
) -> None:
    save_file(tensors, tmp_path / "a.safetensors")
    with pytest.raises(BadModelError, match=words):
        read_embedding(EmbeddingChoice(tmp_path / "a.safetensors"), widths)


def test_other_files_are_refused_with_the_right_option(tmp_path: Path) -> None:
    lora = {"lora_unet_x.lora_up.weight": values(2, 2), "lora_unet_x.lora_down.weight": values(2, 2)}
    for tensors in (lora, {"lora_unet_x.hada_w1_a": values(2, 2)}):
        save_file(tensors, tmp_path / "a.safetensors")
        with pytest.raises(BadModelError, match="not an embedding") as caught:
            read_embedding(EmbeddingChoice(tmp_path / "a.safetensors"), ONE)
        assert caught.value.hint == f"Give it as an adapter: --lora {tmp_path / 'a.safetensors'}"
    (tmp_path / "a.pt").write_bytes(b"\x80\x02")
    with pytest.raises(BadModelError, match="may run code") as caught:
        read_embedding(EmbeddingChoice(tmp_path / "a.pt"), ONE)
    assert "string_to_param" in str(caught.value.hint)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(BadModelError, match="not an embedding"):
        read_embedding(EmbeddingChoice(tmp_path / "a.txt"), ONE)
    with pytest.raises(UsageError, match=r"the embedding .* does not exist") as missing:
        read_embedding(EmbeddingChoice(tmp_path / "a.safetensor"), ONE)
    assert missing.value.hint == f"Is it {tmp_path / 'a.safetensors'}?"


@pytest.mark.parametrize(
    ("text", "path", "word"),
    [
        ("a.safetensors", "a.safetensors", None),
        ("a.safetensors:word", "a.safetensors", "word"),
        ("a:b:word", "a:b", "word"),
        ("a:dir/b.safetensors", "a:dir/b.safetensors", None),
        ("a.safetensors:<word>", "a.safetensors", "<word>"),
        ("a:" + "w" * 100, "a", "w" * 100),
    ],
)
def test_a_file_and_its_word(text: str, path: str, word: str | None) -> None:
    assert parse_embedding_choice(text) == EmbeddingChoice(Path(path), word)


def test_texts_that_name_no_file_or_no_word(tmp_path: Path) -> None:
    for text in ("", ":word", "a:"):
        with pytest.raises(UsageError, match="expected FILE or FILE:WORD"):
            parse_embedding_choice(text)
    for word in ("two words", "a\tb", "w" * 101, "a\u200bb", "\x1b"):
        with pytest.raises(UsageError, match="is no word for prompts"):
            parse_embedding_choice(f"a:{word}")
    whole = tmp_path / "a:b"
    whole.touch()
    assert parse_embedding_choice(str(whole)) == EmbeddingChoice(whole)
    save_file({"two words": values(768)}, tmp_path / "x.safetensors")
    with pytest.raises(UsageError, match="'two words' is no word for prompts"):
        read_embedding(EmbeddingChoice(tmp_path / "x.safetensors"), ONE)
    assert read_embedding(EmbeddingChoice(tmp_path / "x.safetensors", "one"), ONE).tokens == ["one"]
