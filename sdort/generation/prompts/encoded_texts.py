"""Encoded texts, for images whose prompts say the same again."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from sdort.pipelines.conditioning import Conditioning

MAX_BYTES = 32 * 2**20
"""Of all arrays that are kept: some 130 texts of SD 1.x, 40 of SDXL."""

Tokens = tuple[int, ...]


class EncodedTexts:
    """The conditioning by rows of token ids, up to :data:`MAX_BYTES`; what was used longest ago goes first."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Hashable, Tokens], Conditioning] = {}

    def get(self, state: Hashable, rows: Iterable[Tokens]) -> dict[Tokens, Conditioning]:
        """Rows that an encoder gave in a state, such as with these adapters, as far as they are kept."""
        found = {row: self._kept.pop((state, row)) for row in dict.fromkeys(rows) if (state, row) in self._kept}
        self._kept |= {(state, row): values for row, values in found.items()}
        return found

    def keep(
        self, state: Hashable, rows: Sequence[Tokens], values: Sequence[Conditioning]
    ) -> dict[Tokens, Conditioning]:
        """Keep what an encoder gave, and return it by its rows."""
        made = dict(zip(rows, values, strict=True))
        for array in (array for each in values for array in each.values()):
            array.flags.writeable = False  # the next image has it too
        self._kept |= {(state, row): each for row, each in made.items()}
        left = sum(map(_nbytes, self._kept.values()))
        for key in list(self._kept):
            if left <= MAX_BYTES:
                break
            left -= _nbytes(self._kept.pop(key))
        return made

    def clear(self) -> None:
        """Forget everything: the next images run the encoders."""
        self._kept.clear()


def _nbytes(values: Conditioning) -> int:
    return sum(value.nbytes for value in values.values())
