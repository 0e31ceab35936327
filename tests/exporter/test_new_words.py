"""``sdort export --embedding``: words that every reader of the folder knows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.adapters import save
from support.tiny_pipeline import byte_tokenizer

from sdort.adapters.embedding_file import EmbeddingChoice, parse_embedding_choice, read_embedding
from sdort.checkpoints.added_tokens import add_tokens, expand_words, read_tokens, token_groups
from sdort.checkpoints.tokenizer_files import check_tokenizer
from sdort.errors import BadModelError, UsageError
from sdort.exporter.new_words import NewWords, read_new_words, with_rows
from sdort.graph.weights import Inline


def embedding(folder: Path, name: str, **tensors: torch.Tensor) -> EmbeddingChoice:
    return EmbeddingChoice(save(folder / f"{name}.safetensors", tensors))


def words(folder: Path, *choices: EmbeddingChoice, width: int = 8, rows: int = 514) -> NewWords:
    table = Inline(np.zeros((rows, width), np.float32))
    tensors = {"text_encoder": {"text_model.embeddings.token_embedding.weight": table}}
    return read_new_words(choices, lambda name: folder / name, tensors)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    byte_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "tokenizer/tokenizer_config.json").write_text('{"model_max_length": 77}')
    return tmp_path / "tokenizer"


@pytest.mark.parametrize("whole", [False, True])
def test_a_word_has_a_token_for_each_vector(tmp_path: Path, tokenizer: Path, whole: bool) -> None:
    from transformers import CLIPTokenizer

    if whole:  # as transformers 5 saves it
        CLIPTokenizer.from_pretrained(tokenizer).save_pretrained(tmp_path / "saved")
        shutil.rmtree(tokenizer)
        (tmp_path / "saved").rename(tokenizer)
    vectors = torch.randn(3, 8)
    added = words(
        tmp_path,
        embedding(tmp_path, "My-Style", emb_params=vectors),
        embedding(tmp_path, "x", **{"<cat>": torch.ones(8)}),
    )
    added.write(tmp_path)
    check_tokenizer(tokenizer)
    loaded: Any = CLIPTokenizer.from_pretrained(tokenizer)
    assert len(loaded) == 518
    groups = token_groups(loaded.added_tokens_encoder)
    ids = expand_words(loaded("a my-style <cat>", add_special_tokens=False).input_ids, groups)
    assert ids[1:] == [514, 515, 516, 517]
    (table,) = added.tensors({"text_encoder": {"embeddings.token_embedding.weight": Inline(np.zeros((514, 8), "f4"))}})[
        "text_encoder"
    ].values()
    assert np.array_equal(table.load()[514:], torch.cat([vectors, torch.ones(1, 8)]).numpy())
    config = added.config("text_encoder", {"vocab_size": 514, "eos_token_id": 2})
    assert config == {"vocab_size": 518, "eos_token_id": 513}
    assert added.config("unet", {"a": 1}) == {"a": 1}
    assert [(word.word, word.vectors) for word in added.words] == [("My-Style", 3), ("<cat>", 1)]


def test_rows_that_no_token_uses_are_filled_first() -> None:
    table = np.arange(12, dtype=np.float32).reshape(6, 2)
    filled = with_rows(Inline(table), 4, np.full((3, 2), -1, np.float32))
    assert filled.shape == (7, 2)
    assert np.array_equal(filled.load(), [*table[:4], *[[-1, -1]] * 3])


def test_words_that_cannot_be_are_refused(tmp_path: Path, tokenizer: Path) -> None:
    style = embedding(tmp_path, "style", emb_params=torch.ones(2, 8))
    with pytest.raises(BadModelError, match=r"8 numbers, and this model takes those of 768 numbers \(SD 1\.x\)"):
        read_embedding(style, {"text_encoder": 768})
    with pytest.raises(UsageError, match="has a token 'STYLE' already"):
        words(tmp_path, style, EmbeddingChoice(style.path, "STYLE"))
    with pytest.raises(UsageError, match="has a token 'a' already"):
        words(tmp_path, EmbeddingChoice(style.path, "a"))
    with pytest.raises(UsageError, match="no word for prompts"):
        parse_embedding_choice(f"{style.path}:two words")
    pickle = tmp_path / "style.pt"
    pickle.write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(BadModelError, match=r"(?s)may run code.*python -c"):
        read_embedding(EmbeddingChoice(pickle), {"text_encoder": 8})


def test_tokens_are_added_to_what_was_added(tokenizer: Path) -> None:
    add_tokens(tokenizer, {"one": 514})
    add_tokens(tokenizer, {"two": 515})
    assert {name: number for name, number in read_tokens(tokenizer).items() if number > 513} == {"one": 514, "two": 515}
