"""Prompts of any length as chunks of token ids, each as long as the text encoder reads (77: 75 and two special ones).

Chunks are divided as the program does whose weighting is asked for. A1111 begins a new chunk after the last comma, if
that is at most 20 tokens back (its option "Prompt word wrap length limit", at its default); ComfyUI never divides a
word of less than 8 tokens; without weighting chunks are filled, so that the first is what diffusers reads.

https://github.com/AUTOMATIC1111/stable-diffusion-webui, modules/sd_hijack_clip.py
https://github.com/comfyanonymous/ComfyUI, comfy/sd1_clip.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from sdort.checkpoints.added_tokens import expand_words, token_groups
from sdort.generation.prompts.prompt_syntax import Prompt, Segment

MAX_CHUNKS = 32
"""Chunks of a prompt that are read, 2,400 tokens: a UNet attends to all of them at every step."""
COMMA_BACKTRACK = 20
"""Tokens after the last comma that A1111 moves into the next chunk."""
_WORD = 8
"""Tokens of a word from which on ComfyUI divides it."""

WeightedToken = tuple[int, float]


class Tokenizer(Protocol):
    """A CLIP tokenizer: sdort's own, or transformers' in a pipeline of torch."""

    length: int
    """Tokens of a text with its begin and end, as many as the text encoder reads."""
    begin: int
    end: int
    padding: int

    @property
    def added(self) -> dict[str, int]:
        """The tokens that are found before a text is split, with their ids: special ones, and words of embeddings."""

    def ids(self, text: str) -> list[int]:
        """The ids of a text's tokens, without begin and end."""

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids."""

    def number(self, token: str) -> int | None:
        """The id of a token; None if there is none."""


@dataclass(frozen=True)
class Chunk:
    """Token ids and their weights, both of the tokenizer's length; special tokens and padding weigh 1."""

    ids: tuple[int, ...]
    weights: tuple[float, ...]

    @property
    def weighted(self) -> bool:
        """Whether any token has a weight of its own."""
        return any(weight != 1.0 for weight in self.weights)


class Vocabulary:
    """A CLIP tokenizer's tokens.

    Args:
        tokenizer: from :func:`sdort.generation.requests.tokenizers.load_tokenizer`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.length = tokenizer.length
        self._words = token_groups(tokenizer.added)
        self.comma = tokenizer.number(",</w>")

    @property
    def room(self) -> int:
        """Tokens of a text that a chunk takes."""
        return self.length - 2

    def ids(self, text: str) -> list[int]:
        """The token ids of a text, without special ones; words of textual inversion stand with all of their tokens."""
        return expand_words(self._tokenizer.ids(text), self._words)

    def chunk(self, tokens: Sequence[WeightedToken]) -> Chunk:
        """A whole chunk of at most :attr:`room` tokens, with special ones and padding."""
        tokenizer, padding = self._tokenizer, self.room - len(tokens)
        ids = (tokenizer.begin, *(token for token, _ in tokens), tokenizer.end, *[tokenizer.padding] * padding)
        return Chunk(ids, (1.0, *(weight for _, weight in tokens), *[1.0] * (padding + 1)))

    @property
    def empty(self) -> Chunk:
        """The chunk of an empty prompt."""
        return self.chunk([])

    def text(self, tokens: Sequence[int]) -> str:
        """The text of token ids."""
        return self._tokenizer.text(tokens)


def divide(prompt: Prompt, vocabulary: Vocabulary, weighting: str) -> list[list[WeightedToken]]:
    """The tokens of a prompt's chunks, at least one chunk; an empty prompt has an empty one."""
    if weighting == "comfyui":
        words = [word for part in prompt.parts for segment in part for word in _words(segment, vocabulary)]
        return list(_by_words(words, vocabulary.room))
    chunks = []
    for part in prompt.parts:
        tokens = [(token, segment.weight) for segment in part for token in vocabulary.ids(segment.text)]
        chunks.append(list(_by_commas(tokens, vocabulary, COMMA_BACKTRACK if weighting == "a1111" else 0)))
    # A BREAK at the end begins nothing.
    while len(chunks) > 1 and chunks[-1] == [[]]:
        chunks.pop()
    return [chunk for part in chunks for chunk in part]


def _by_commas(
    tokens: Sequence[WeightedToken], vocabulary: Vocabulary, backtrack: int
) -> Iterator[list[WeightedToken]]:
    """A1111's chunks of one part, which end at a comma that is at most ``backtrack`` tokens from the end."""
    chunk: list[WeightedToken] = []
    comma: int | None = None
    for token in tokens:
        is_comma = token[0] == vocabulary.comma
        if len(chunk) == vocabulary.room:
            near = comma is not None and len(chunk) - comma <= backtrack
            cut = comma + 1 if comma is not None and near and not is_comma else len(chunk)
            yield chunk[:cut]
            chunk, comma = chunk[cut:], None
        elif is_comma:
            comma = len(chunk)
        chunk.append(token)
    yield chunk


def _words(segment: Segment, vocabulary: Vocabulary) -> Iterator[list[WeightedToken]]:
    for word in segment.text.split():
        yield [(token, segment.weight) for token in vocabulary.ids(word)]


def _by_words(words: Sequence[list[WeightedToken]], room: int) -> Iterator[list[WeightedToken]]:
    """ComfyUI's chunks."""
    chunk: list[WeightedToken] = []
    for word in words:
        begin = 0  # of what is left of the word
        while len(chunk) + len(word) - begin > room:
            if len(word) >= _WORD or len(word) - begin > room:
                left = room - len(chunk)
                chunk, begin = chunk + word[begin : begin + left], begin + left
            yield chunk
            chunk = []
        chunk = chunk + word[begin:]
    yield chunk
