"""The demo model's vocabulary: byte-pair merges learned from the words of its captions."""

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


def learn_merges(words: list[str]) -> list[str]:
    """Pairs to join, in their order, until every word is one token: the most frequent pair first."""
    pieces = [[*word[:-1], f"{word[-1]}</w>"] for word in words]
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
