"""Words of textual inversion, added to the tokenizers and text encoders of an export."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sdort.adapters.embedding_file import Embedding, EmbeddingChoice, read_embedding
from sdort.checkpoints.added_tokens import add_tokens, read_tokens
from sdort.errors import BadModelError, UsageError
from sdort.exporter.baked_adapters import Tensors
from sdort.exporter.component_configs import DOWNLOAD_AGAIN
from sdort.exporter.signatures import ComponentSpec
from sdort.exporter.template import StaticShape
from sdort.families.known_families import FAMILIES
from sdort.files.file_digest import file_digest
from sdort.graph.signature import Array
from sdort.graph.weights import Cast, Concatenated, Inline, Weight

_TOKENIZERS = {each.component: each.tokenizer for family in FAMILIES.values() for each in family.encoders}
_TABLE = "embeddings.token_embedding.weight"
_OLD_EOS = 2
"""An end of text of CLIP configs with which transformers takes the token of the highest id for the prompt's end."""
_END = "<|endoftext|>"


@dataclass(frozen=True)
class AddedWord:
    """A word of textual inversion in an export."""

    word: str
    """The word in prompts."""
    vectors: int
    """The number of its vectors, and of the tokens that a prompt spends on it."""
    path: str
    """The file as the user named it."""
    sha256: str
    """The hash of the file."""


@dataclass(frozen=True)
class _Extension:
    """Rows that words add to one text encoder and its tokenizer."""

    tokens: Mapping[str, int]
    """Token -> id."""
    vectors: Array
    """[tokens, width] in fp32."""
    end: int
    """The id of the end of a text."""


@dataclass(frozen=True)
class NewWords:
    """The words that embeddings add to a pipeline; without any nothing is changed."""

    words: Sequence[AddedWord] = ()
    extensions: Mapping[str, _Extension] = field(default_factory=dict)
    """Text encoder -> what is added to it."""

    def tensors(self, tensors: Tensors) -> Tensors:
        """The tensors, with rows for the new tokens."""
        return {folder: self._extended(folder, weights) for folder, weights in tensors.items()}

    def component(self, component: ComponentSpec) -> ComponentSpec:
        """The component that is traced: the vocabulary is the old one, and the end of a text the tokenizer's own."""
        config = self.config(component.name, component.config)
        if "vocab_size" in component.config:
            config["vocab_size"] = component.config["vocab_size"]
        return replace(component, config=config)

    def parameters(self, name: str, shapes: Mapping[str, StaticShape]) -> Mapping[str, StaticShape]:
        """The shapes of a component's parameters, whose vocabulary has the new tokens."""
        if name not in self.extensions:
            return shapes
        table = _table_name(shapes, name)
        rows, width = shapes[table]
        return {**shapes, table: (max(rows, self._size(name)), width)}

    def config(self, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """A component's config, whose vocabulary has the new tokens."""
        extension = self.extensions.get(name)
        if extension is None:
            return dict(config)
        size = max(int(config["vocab_size"]), self._size(name))
        # The pooled output is the end's, not that of a new token, whose id is higher still.
        end = extension.end if config.get("eos_token_id") == _OLD_EOS else config.get("eos_token_id")
        return {**config, "vocab_size": size, "eos_token_id": end}

    def _size(self, name: str) -> int:
        return 1 + max(self.extensions[name].tokens.values())

    def write(self, folder: Path) -> None:
        """Add the tokens to the tokenizers in a folder."""
        for encoder, extension in self.extensions.items():
            add_tokens(folder / _TOKENIZERS[encoder], extension.tokens)

    def _extended(self, folder: str, weights: Mapping[str, Weight]) -> Mapping[str, Weight]:
        if folder not in self.extensions:
            return weights
        extension = self.extensions[folder]
        name = _table_name(weights, folder)
        return {**weights, name: with_rows(weights[name], min(extension.tokens.values()), extension.vectors)}


class _Overwritten(Weight):
    """``operand`` in fp32 with other rows from ``first`` on: some tables have more rows than there are tokens."""

    def __init__(self, operand: Weight, first: int, rows: Array) -> None:
        super().__init__((max(operand.shape[0], first + len(rows)), operand.shape[1]), np.float32)
        self.operand, self.first, self.rows = operand, first, rows

    @property
    def operands(self) -> tuple[Weight, ...]:
        return (self.operand,)

    def load(self) -> Array:
        table = np.empty(self.shape, self.dtype)
        table[: self.operand.shape[0]] = self.operand.load()
        table[self.first : self.first + len(self.rows)] = self.rows
        return table


def read_new_words(choices: Sequence[EmbeddingChoice], part: Callable[[str], Path], tensors: Tensors) -> NewWords:
    """The words that embeddings add to a pipeline.

    Args:
        part: tells the folder of ``tokenizer`` and ``tokenizer_2``.
        tensors: the checkpoint's, by folder.

    Raises:
        UsageError: a file does not exist; two have the same word; or it is one that the tokenizer has already.
        BadModelError: a file is broken, no embedding, or for other text encoders.
    """
    if not choices:
        return NewWords()
    encoders = {name: _table_name(tensors[name], name) for name in _TOKENIZERS if name in tensors}
    if not encoders:
        raise UsageError("--embedding: no text encoder is exported, whose vocabulary it would extend")
    widths = {name: tensors[name][table].shape[1] for name, table in encoders.items()}
    embeddings = [read_embedding(choice, widths) for choice in choices]
    extensions = {}
    for encoder in encoders:
        known = read_tokens(part(_TOKENIZERS[encoder]))
        names = _new_tokens(embeddings, known)
        first = 1 + max(known.values())
        vectors = np.concatenate([embedding.vectors[encoder] for embedding in embeddings])
        tokens = {token: first + number for number, token in enumerate(names)}
        extensions[encoder] = _Extension(tokens, vectors, known.get(_END, _OLD_EOS))
    return NewWords([_added(embedding) for embedding in embeddings], extensions)


def _added(embedding: Embedding) -> AddedWord:
    return AddedWord(embedding.word, len(embedding.tokens), str(embedding.path), file_digest(embedding.path))


def with_rows(table: Weight, first: int, rows: Array) -> Weight:
    """A table in fp32 whose rows from ``first`` on are ``rows``; it grows where it is too short."""
    table = table if table.dtype == np.float32 else Cast(table, np.float32)
    return Concatenated([table, Inline(rows)], 0) if first == table.shape[0] else _Overwritten(table, first, rows)


def _new_tokens(embeddings: Sequence[Embedding], known: Mapping[str, int]) -> list[str]:
    """The tokens of all embeddings, none of which may be there already, in any case of letters."""
    taken = {token.removesuffix("</w>").lower() for token in known}
    names: list[str] = []
    for embedding in embeddings:
        for token in (*embedding.tokens, f"{embedding.word}_{len(embedding.tokens)}"):
            if token.lower() in taken:
                raise UsageError(
                    f"--embedding {embedding.path}: the tokenizer has a token {token!r} already",
                    hint=f"Give it another word: --embedding {embedding.path}:WORD",
                )
        taken.update(token.lower() for token in embedding.tokens)
        names += embedding.tokens
    return names


def _table_name(names: Iterable[str], encoder: str) -> str:
    table = next((name for name in names if name.endswith(_TABLE)), None)
    if table is None:
        raise BadModelError(f"the checkpoint has no {_TABLE}", component=encoder, hint=DOWNLOAD_AGAIN)
    return table
