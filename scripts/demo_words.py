"""The demo models' vocabularies: byte-pair merges learned from the words of their captions."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from sdort.demo.prompt_language import AND, BACKGROUND, POSITIONS, RELATION_PHRASES
from sdort.demo.scenes import BACKGROUNDS, RGB, SHAPES, SIZES


def caption_words() -> list[str]:
    """Every word of every caption, sorted."""
    phrases = [phrase for phrases in (*POSITIONS.values(), *RELATION_PHRASES.values()) for phrase in phrases]
    names = [*SHAPES, *RGB, *BACKGROUNDS, *SIZES, AND, "a", "an"]
    grounds = [form.format("") for form in BACKGROUND]
    return sorted({word for phrase in (*phrases, *names, *grounds) for word in phrase.split()})


def chat_words() -> list[str]:
    """Every word of a caption in Qwen3's chat template, at its beginning and behind a space (\u0120), sorted."""
    words = caption_words()
    return sorted({*words, *(f"\u0120{word}" for word in words), "user", "assistant"})


def learn_merges(words: list[str], end: str = "</w>") -> list[str]:
    """Pairs to join, in their order, until every word is one token: the most frequent pair first.

    Args:
        words: all that shall be one token.
        end: what CLIP's tokenizers write behind the last letter of a word; Qwen3's write nothing.
    """
    pieces = [[*word[:-1], f"{word[-1]}{end}"] for word in words]
    merges = []
    while any(len(piece) > 1 for piece in pieces):
        pairs = Counter(pair for piece in pieces for pair in pairwise(piece))
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(" ".join(best))
        pieces = [_join(piece, best) for piece in pieces]
    return merges


def _join(piece: list[str], pair: tuple[str, str]) -> list[str]:
    joined: list[str] = []
    for part in piece:
        if joined and (joined[-1], part) == pair and not joined[-1].endswith("</w>"):
            joined[-1] += part
        else:
            joined.append(part)
    return joined
