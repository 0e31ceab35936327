"""CLIP's byte-pair merges, which single-file checkpoints do not hold.

``clip_merges.txt.gz`` has the 48,894 merges that CLIP uses: lines 2 to 48,895 of ``bpe_simple_vocab_16e6.txt`` of
https://github.com/openai/CLIP, MIT licensed (``clip_merges.LICENSE``).
"""

from __future__ import annotations

import gzip
from importlib.resources import files

CLIP_TOKENS = 49_408
"""Size of the vocabulary that follows from them: 512 letters, the merges' results and two special tokens."""


def read_clip_merges() -> list[str]:
    """Pairs of tokens with a space in between, in their order."""
    return gzip.decompress((files(__package__) / "clip_merges.txt.gz").read_bytes()).decode().splitlines()
