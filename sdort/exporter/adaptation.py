"""Additions of a user to a checkpoint on its way to ONNX: adapters in its weights, words in its vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sdort.adapters.adapter_choice import AdapterChoice
from sdort.adapters.embedding_file import EmbeddingChoice
from sdort.exporter.baked_adapters import AppliedAdapter, Tensors, apply_adapters
from sdort.exporter.new_words import NewWords, read_new_words


@dataclass(frozen=True)
class Adaptation:
    """A checkpoint's tensors with all that was added to them, described and not computed."""

    tensors: Tensors
    adapters: list[AppliedAdapter]
    words: NewWords


def adapt(
    tensors: Tensors,
    adapters: Sequence[AdapterChoice],
    embeddings: Sequence[EmbeddingChoice],
    part: Callable[[str], Path],
) -> Adaptation:
    """Add adapters and embeddings to a checkpoint.

    Args:
        tensors: the checkpoint's, by folder.
        part: tells the folder of ``tokenizer`` and ``tokenizer_2``.

    Raises:
        UsageError: a file does not exist, or a word is known already.
        BadModelError: a file is broken, of another kind, or for another family of models.
    """
    words = read_new_words(embeddings, part, tensors)
    changed, applied = apply_adapters(adapters, tensors)
    return Adaptation(words.tensors(changed), applied, words)
