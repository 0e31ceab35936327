"""The conditioning of the UNet by prompts: chunks through the text encoders, weighted and put together.

Two weightings of a chunk's embeddings z [1, tokens, width] by the weights w of its tokens:

- ``a1111``: z * w, times mean(z) / mean(z * w), so that the mean of the chunk stays.
  https://github.com/AUTOMATIC1111/stable-diffusion-webui, modules/sd_emphasis.py, "Original"
- ``comfyui``: e + (z - e) * w, where e is the embedding of the empty prompt at the same token.
  https://github.com/comfyanonymous/ComfyUI, comfy/sd1_clip.py

A chunk without weights stays as the encoder gave it. The chunks of a prompt stand side by side along the tokens; the
pooled embedding is that of the first.

The prompts of a run may have different numbers of chunks, and the UNet takes one number. Attention over all of a
prompt's tokens twice is attention over them once (each weight of the softmax is halved and counted twice), so that
prompts are repeated up to the least common multiple: no image depends on how long other prompts are.

A text encoder that reads plain text has one row of tokens for each prompt, without weights; beside one, CLIP's have one
chunk, as diffusers' pipelines have it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sdort.console import detail, warn
from sdort.generation.prompts.plain_tokenizer import PlainTokenizer
from sdort.generation.prompts.prompt_chunks import MAX_CHUNKS, Chunk, Tokenizer, Vocabulary, WeightedToken, divide
from sdort.generation.prompts.prompt_syntax import read_prompt
from sdort.graph.signature import Array, TensorSpec, static_size
from sdort.pipelines.conditioning import Conditioning

MAX_REPEATED = 12
"""Chunks up to which prompts are repeated, where the longest has fewer: those of 3 and 4, of 2, 4 and 6; 924 tokens."""
_SHOWN = 200
"""Characters of a prompt's lost part that a message repeats."""

Texts = tuple[str, ...]
"""A prompt's text for each text encoder."""


@dataclass(frozen=True)
class EncodedChunk:
    """One chunk's outputs of a text encoder by the UNet's inputs: [1, tokens, width], or [1, width] where pooled."""

    chunk: Chunk
    values: Conditioning


def weighted(values: Array, weights: Sequence[float], empty: Array | None) -> Array:
    """A chunk's embeddings [1, tokens, width] by the weights of its tokens, in their own dtype.

    Args:
        empty: the embeddings of the empty prompt, of the same shape: ComfyUI's weighting; None for A1111's.
    """
    scale = np.asarray(weights, np.float32)[:, None]
    exact = values.astype(np.float32)
    if empty is not None:
        base = empty.astype(np.float32)
        return (base + (exact - base) * scale).astype(values.dtype)
    scaled = exact * scale
    before, after = exact.mean(dtype=np.float64), scaled.mean(dtype=np.float64)
    return (scaled * np.float32(before / after if after else 1.0)).astype(values.dtype)


def joined(parts: Sequence[EncodedChunk], empty: Conditioning) -> Conditioning:
    """The conditioning by all chunks of a prompt: embeddings [1, chunks * tokens, width], pooled ones of the first.

    Args:
        empty: that by the empty prompt, for ComfyUI's weighting; none for A1111's.
    """
    result = {}
    for name, first in parts[0].values.items():
        if first.ndim < 3:
            result[name] = first
            continue
        result[name] = np.concatenate(
            [
                weighted(part.values[name], part.chunk.weights, empty.get(name))
                if part.chunk.weighted
                else part.values[name]
                for part in parts
            ],
            axis=1,
        )
    return result


def same_length(
    conditions: Sequence[Conditioning], tokens: int, target: int | None, empty: Callable[[], Conditioning]
) -> None:
    """Bring conditions to one number of tokens, in place.

    Args:
        conditions: each with arrays [1, chunks * tokens, width].
        tokens: of a chunk.
        target: chunks that the UNet takes; None for any number.
        empty: gives the conditioning by one empty chunk, which pads where a repetition would be too long.
    """
    counts = {_chunks(condition, tokens) for condition in conditions}
    count = target or math.lcm(*counts)
    padding: Conditioning = {}
    if count > max(MAX_REPEATED, *counts) or any(count % each for each in counts):
        count, padding = target or max(counts), empty()
        listed = ", ".join(map(str, sorted(counts)))
        warn(f"prompts of {listed} chunks of tokens are padded with empty chunks to {count}: alone they may differ")
    for condition in conditions:
        for name, value in condition.items():
            if value.ndim == 3:
                condition[name] = _extended(value, padding.get(name), count * tokens)


def _chunks(condition: Conditioning, tokens: int) -> int:
    longest: int = max(value.shape[1] for value in condition.values() if value.ndim == 3)
    return longest // tokens


def _extended(value: Array, padding: Array | None, length: int) -> Array:
    """``value`` [1, tokens, width] with ``length`` tokens: repeated, or padded where there is a ``padding``."""
    if padding is None:
        return value if value.shape[1] == length else np.tile(value, (1, length // value.shape[1], 1))
    return np.concatenate([value, *[padding] * ((length - value.shape[1]) // padding.shape[1])], axis=1)


class PlainVocabulary:
    """The rows of tokens of a text encoder that reads plain text, as chunks without weights."""

    def __init__(self, tokenizer: PlainTokenizer) -> None:
        self._tokenizer = tokenizer

    def chunk(self, text: str, kind: str) -> Chunk:
        """The row of a prompt; what has no room is told.

        Args:
            kind: what the prompt is, for messages.
        """
        row, most = self._tokenizer.row(text), self._tokenizer.plain.limit
        if row.lost:
            lost = _shown(self._tokenizer.text(row.lost[:_SHOWN]), len(row.lost))
            warn(
                f"the {kind} has {most + len(row.lost)} tokens, and the model reads {most}; this part has no effect: "
                f"{lost}"
            )
        return Chunk(row.ids, (1.0,) * len(row.ids))

    @property
    def empty(self) -> Chunk:
        """The row of an empty prompt."""
        return self.chunk("", "prompt")


def _shown(text: str, tokens: int) -> str:
    """A prompt's lost part in a message: as many tokens as are shown at most were decoded."""
    return text if len(text) <= _SHOWN and tokens <= _SHOWN else f"{text[:_SHOWN]}..."


class PromptReader:
    """Divides prompts into chunks of each text encoder's tokens.

    Args:
        tokenizers: of the text encoders, in their order.
        context: the UNet's input ``encoder_hidden_states``, which may say how many tokens it takes; None: any number.
    """

    def __init__(
        self, tokenizers: Mapping[str, Tokenizer | PlainTokenizer], context: TensorSpec | None, *, plain: bool = False
    ) -> None:
        self.vocabularies = {
            component: PlainVocabulary(tokenizer) if isinstance(tokenizer, PlainTokenizer) else Vocabulary(tokenizer)
            for component, tokenizer in tokenizers.items()
        }
        self.chunked = [each for each in self.vocabularies.values() if isinstance(each, Vocabulary)]
        """Those of encoders that read chunks."""
        self.plain = plain or len(self.chunked) < len(tokenizers)
        """Whether an encoder reads plain text, so that each has one row."""
        fixed = static_size(context.shape, 1) if context and len(context.shape) == 3 else None
        self.tokens = min((vocabulary.length for vocabulary in self.chunked), default=1)
        """Tokens of a chunk."""
        self.fixed: int | None = 1 if self.plain else max(1, fixed // self.tokens) if fixed else None
        """Chunks that the UNet takes; None for any number."""

    def chunks(self, texts: Texts, weighting: str, kind: str) -> list[list[Chunk]]:
        """The chunks of a prompt for each text encoder, the same number for all.

        Args:
            kind: what the prompt is, for the message that says what of it is beyond the longest.
        """
        if self.plain:
            return [self._only_chunk(index, texts, kind) for index in range(len(texts))]
        vocabularies = self.chunked
        divided = [
            divide(read_prompt(text, weighting), vocabulary, weighting)
            for text, vocabulary in zip(texts, vocabularies, strict=True)
        ]
        most = self.fixed or MAX_CHUNKS
        for index, tokens in enumerate(divided):
            # The second encoder's prompt is the first one's by default: said once.
            if len(tokens) > most and texts[index] not in texts[:index]:
                self._warn_of_cut(vocabularies[index], tokens, most, kind)
        count = min(max(map(len, divided)), most)
        if count > 1:
            detail(f"the {kind} is read in {count} chunks of {self.tokens - 2} tokens")
        return [
            [vocabulary.chunk(chunk) for chunk in tokens[:count]] + [vocabulary.empty] * (count - len(tokens))
            for vocabulary, tokens in zip(vocabularies, divided, strict=True)
        ]

    def _only_chunk(self, index: int, texts: Texts, kind: str) -> list[Chunk]:
        """The one chunk of an encoder: a row of plain text, or what of it CLIP reads at once."""
        vocabulary = list(self.vocabularies.values())[index]
        if isinstance(vocabulary, PlainVocabulary):
            return [vocabulary.chunk(texts[index], kind)]
        tokens = [(token, 1.0) for token in vocabulary.ids(texts[index])]
        if len(tokens) > vocabulary.room:
            detail(f"CLIP's text encoder reads {vocabulary.room} of the {len(tokens)} tokens of the {kind}")
        return [vocabulary.chunk(tokens[: vocabulary.room])]

    def _warn_of_cut(
        self, vocabulary: Vocabulary, chunks: Sequence[Sequence[WeightedToken]], most: int, kind: str
    ) -> None:
        lost = [token for chunk in chunks[most:] for token, _ in chunk]
        # A prompt of 100,000 characters is no message.
        text = _shown(vocabulary.text(lost[:_SHOWN]), len(lost))
        warn(
            f"the {kind} has {sum(map(len, chunks))} tokens, and the model reads {most * vocabulary.room}; "
            f"this part has no effect: {text}"
        )


EncodeIds = Callable[[str, Sequence[tuple[int, ...]]], list[Conditioning]]
"""The conditioning by each row of token ids, of the text encoder of that name."""


def encode_prompts(
    reader: PromptReader, prompts: Mapping[Texts, str], weighting: str, encode: EncodeIds
) -> dict[Texts, list[Conditioning]]:
    """The conditioning of prompts by each text encoder, in the encoders' order.

    Args:
        prompts: texts -> what the prompt is, for messages.
        encode: runs a text encoder.
    """
    divided = {texts: reader.chunks(texts, weighting, kind) for texts, kind in prompts.items()}
    parts: dict[Texts, list[Conditioning]] = {texts: [] for texts in prompts}
    for index, (component, vocabulary) in enumerate(reader.vocabularies.items()):
        chunks = {texts: each[index] for texts, each in divided.items()}
        listed = [chunk for row in chunks.values() for chunk in row]
        interpolated = weighting == "comfyui" and any(chunk.weighted for chunk in listed)
        rows = list(dict.fromkeys([*(chunk.ids for chunk in listed), *[vocabulary.empty.ids] * interpolated]))
        encoded = dict(zip(rows, encode(component, rows), strict=True))
        empty = encoded[vocabulary.empty.ids] if interpolated else {}
        for texts, row in chunks.items():
            parts[texts].append(joined([EncodedChunk(chunk, encoded[chunk.ids]) for chunk in row], empty))
    return parts
