"""A CLIP tokenizer of the byte alphabet and a few merges: CLIP's own vocabulary is larger than the demo model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sdort.checkpoints.clip_tokenizer import write_clip_tokenizer

# Pairs in the order in which byte-pair encoding joins them; </w> ends a word.
MERGES = (
    "t h",
    "th e</w>",
    "i n",
    "in g</w>",
    "a n",
    "an d</w>",
    "e r</w>",
    "o u",
    "o f</w>",
    "a t</w>",
    "l i",
    "o n</w>",
    "e d</w>",
    "s t",
    "h o",
    "u s",
    "us k</w>",
    "ho us",
)


def write_tokenizer(folder: Path, merges: Sequence[str] = MERGES) -> int:
    """Write the files of a small tokenizer; returns the size of its vocabulary."""
    return write_clip_tokenizer(folder, merges)
