"""Textual inversion: vectors that stand for a new word of prompts, read for the text encoders of a pipeline.

Files of diffusers (one tensor, named as its word), A1111 and sd-scripts (``emb_params``), and of SDXL (``clip_l`` and
``clip_g``, one for each text encoder); https://arxiv.org/abs/2208.01618.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sdort.adapters.module_index import TEXT_1, TEXT_2
from sdort.adapters.refusals import refuse_missing
from sdort.checkpoints.file_kind import recognise_file
from sdort.checkpoints.safetensors import describe_tensors, read_header
from sdort.checkpoints.weight_names import FAMILY_OF_WIDTH, Kind
from sdort.errors import BadModelError, UsageError
from sdort.errors.plain_text import cut, one_line
from sdort.graph.float16 import convert
from sdort.graph.signature import Array
from sdort.graph.stored_values import StoredValues

MOST_VECTORS = 75
"""Vectors of a word: a prompt's chunk has no room for more tokens."""
_LONGEST_WORD = 100
_TENSORS = {"clip_l": TEXT_1, "clip_g": TEXT_2}
"""Tensors of SDXL's embeddings, and the text encoder that each is for."""
_NAMELESS = re.compile(r"emb_params|string_to_param\..*|\*")
"""Tensors that are not named as their word."""


@dataclass(frozen=True)
class EmbeddingChoice:
    """An embedding's file, and the word that prompts have for it; None takes the file's own."""

    path: Path
    word: str | None = None


@dataclass(frozen=True)
class Embedding:
    """A word for prompts."""

    path: Path
    word: str
    vectors: Mapping[str, Array]
    """Text encoder -> its vectors, [number, width] in fp32."""

    @property
    def tokens(self) -> list[str]:
        """The tokens that stand for the vectors, as diffusers calls them: ``word``, ``word_1``, ``word_2``, ..."""
        count = len(next(iter(self.vectors.values())))
        return [self.word, *(f"{self.word}_{number}" for number in range(1, count))]


def parse_embedding_choice(text: str) -> EmbeddingChoice:
    """The choice that ``FILE`` or ``FILE:WORD`` names; a file of that whole name goes before a word.

    Raises:
        UsageError: there is no file's name in it, or the word is none.
    """
    path, colon, word = text.rpartition(":")
    if not colon or Path(text).is_file() or "/" in word:
        path, word = text, ""
    if not path or (colon and path != text and not word):
        raise UsageError(f"--embedding {cut(text)!r}: expected FILE or FILE:WORD, such as style.safetensors:my-style")
    return EmbeddingChoice(Path(path), _checked_word(word, "--embedding") if word else None)


def read_embedding(choice: EmbeddingChoice, widths: Mapping[str, int]) -> Embedding:
    """The embedding in a safetensors file.

    Args:
        widths: the pipeline's text encoders -> the width of their embeddings.

    Raises:
        UsageError: there is no such file, or its word is none.
        BadModelError: it is broken, no embedding, or for other text encoders.
    """
    path = choice.path
    _refuse_other_kind(path)
    tensors = describe_tensors(read_header(path))
    named = {encoder: tensors[name] for name, encoder in _TENSORS.items() if name in tensors}
    if not named and len(tensors) == 1:
        (name, values), *_ = tensors.items()
        encoder = next((encoder for encoder, width in widths.items() if values.shape[-1:] == (width,)), None)
        named = {encoder or next(iter(widths)): values}
    else:
        name = ""
    if not named or len(named) < len(tensors):
        raise BadModelError(f"{path} is no embedding: it holds {len(tensors)} tensors ({cut(', '.join(tensors))})")
    found = {encoder: values.shape[-1] for encoder, values in named.items() if values.shape}
    if found != widths:
        raise _other_family(path, list(found.values()), widths)
    word = choice.word or _checked_word(path.stem if not name or _NAMELESS.fullmatch(name) else name, str(path))
    vectors = {encoder: _vectors(path, values) for encoder, values in named.items()}
    if len({len(rows) for rows in vectors.values()}) > 1:
        raise BadModelError(f"{path} has another number of vectors for each text encoder", hint="It is damaged.")
    return Embedding(path, word, vectors)


def _refuse_other_kind(path: Path) -> None:
    refuse_missing(path, "the embedding")
    found = recognise_file(path)
    if found.kind is Kind.PICKLE:
        target = str(path.with_suffix(".safetensors"))
        code = (
            "import torch; from safetensors.torch import save_file; "
            f"d = torch.load({str(path)!r}, weights_only=True, map_location='cpu'); "
            f"save_file({{'emb_params': d['string_to_param']['*'].detach()}}, {target!r})"
        )
        raise BadModelError(
            f"the embedding {path} is {found.what}, which may run code when it is read",
            hint=f'Get it as .safetensors, or convert A1111\'s form of it:\n    python -c "{code}"',
        )
    if found.kind not in (Kind.EMBEDDING, Kind.UNKNOWN) or found.architecture is None:
        lora = found.kind in (Kind.LORA, Kind.LYCORIS)
        hint = f"Give it as an adapter: --lora {path}" if lora else found.advice
        raise BadModelError(f"{path} is {found.what}, not an embedding", hint=hint)


def _other_family(path: Path, found: list[int], widths: Mapping[str, int]) -> BadModelError:
    return BadModelError(
        f"the embedding {path} has vectors of {_described(found)}, and this model takes those of "
        f"{_described(list(widths.values()))}",
        hint="An embedding works with the text encoders that it was trained for.",
    )


def _described(widths: list[int]) -> str:
    """Widths of vectors, with the family of models that has them: ``768 numbers (SD 1.x)``."""
    family = "SDXL" if widths == [768, 1280] else FAMILY_OF_WIDTH.get(widths[0]) if len(widths) == 1 else None
    return f"{' and '.join(map(str, widths))} numbers{f' ({family})' if family else ''}"


def _vectors(path: Path, values: StoredValues) -> Array:
    shape, dtype = values.shape, values.dtype
    if len(shape) not in (1, 2) or not 1 <= math.prod(shape[:-1]) <= MOST_VECTORS or not shape[-1]:
        raise BadModelError(f"{path} is no embedding of 1 to {MOST_VECTORS} vectors: its tensor is {list(shape)}")
    if not np.issubdtype(dtype, np.floating) and str(dtype) != "bfloat16":
        raise BadModelError(f"{path} is no embedding: its values are {dtype}, not floating-point numbers")
    rows = convert(values.load(), np.float32).reshape(-1, shape[-1])
    if not np.isfinite(rows).all():
        raise BadModelError(
            f"{path} has infinite values or NaN", hint="Its training failed, or it is damaged: get another version."
        )
    return rows


def _checked_word(word: str, where: str) -> str:
    """A word that prompts can have.

    Raises:
        UsageError: it has white space in it, is too long or cannot be seen.
    """
    if not word or len(word) > _LONGEST_WORD or any(map(str.isspace, word)) or one_line(word) != word:
        raise UsageError(
            f"{where}: {cut(one_line(word))!r} is no word for prompts: it has white space, more than {_LONGEST_WORD} "
            "characters, or some that are not seen",
            hint="Name another one: --embedding FILE:WORD.",
        )
    return word
