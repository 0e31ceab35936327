"""The semantic score as lines and cells."""

from __future__ import annotations

from sdort.verification.outcome import FAILED, PASSED
from sdort.verification.semantic import Counts, Miss, SemanticScore

MOST_LINES = 8
"""Wrong images that the terminal lists."""
KIND_HEADS = ("right in", "candidate", "original", "wanted", "")


def semantic_lines(score: SemanticScore) -> list[str]:
    """Right images out of those judged, then each wrong one."""
    verdict = PASSED if score.passed else FAILED
    parts = [f"semantic score: {_counted(score.counts)} (wanted: {score.wanted}): {verdict}"]
    if score.original is not None:
        parts.append(f"semantic score of the original: {_counted(score.original)}")
    originals = [miss.original_right for miss in score.misses if miss.original_right is not None]
    if originals:
        parts.append(f"semantic score: {len(originals)} wrong, {originals.count(False)} of them by the original too")
    parts += [miss_line(miss) for miss in score.misses[:MOST_LINES]]
    left = len(score.misses) - MOST_LINES
    return [*parts, *([f"and {left} more wrong images; --json and --report have all"] if left > 0 else [])]


def _counted(counts: Counts) -> str:
    return ", ".join(f"{kind} {right} of {judged}" for kind, (right, judged) in counts.items() if judged)


def miss_line(miss: Miss) -> str:
    """A wrong image: its prompt, and what it shows."""
    description = f"{', '.join(miss.wrong)} wrong, seed {miss.seed}: {miss.prompt!r} shows {miss.seen}"
    return description if miss.original is None else f"{description}; {original_words(miss)}"


def original_words(miss: Miss) -> str:
    """The original's image of the same noise, in words."""
    return f"the original, {'right' if miss.original_right else 'wrong too'}, {miss.original}"


def kind_cells(score: SemanticScore) -> list[tuple[str, ...]]:
    """Rows under :data:`KIND_HEADS`; only the first two kinds have a bar."""
    rows = []
    for kind, (right, judged) in score.counts.items():
        original = "not run" if score.original is None else _of(score.original[kind])
        bar = score.bars.get(kind)
        verdict = "" if bar is None else PASSED if right >= bar * judged else FAILED
        rows.append((kind, _of((right, judged)), original, "" if bar is None else f"{100 * bar:.0f} %", verdict))
    return [row for row, (_, judged) in zip(rows, score.counts.values(), strict=True) if judged]


def _of(counted: tuple[int, int]) -> str:
    return f"{counted[0]} of {counted[1]}"
