"""The semantic score as lines and cells."""

from __future__ import annotations

from sdort.verification.result import FAILED, PASSED
from sdort.verification.semantic import Counts, Miss, SemanticScore

MOST_LINES = 8
"""Wrong pictures that are told in the terminal."""
KIND_HEADS = ("right in", "candidate", "original", "wanted", "")


def semantic_lines(found: SemanticScore) -> list[str]:
    """Right pictures out of those judged, then each wrong one."""
    verdict = PASSED if found.passed else FAILED
    said = [f"semantic score: {_counted(found.counts)} (wanted: {found.wanted}): {verdict}"]
    if found.original is not None:
        said.append(f"semantic score of the original: {_counted(found.original)}")
    drawn = [each.original_right for each in found.misses if each.original_right is not None]
    if drawn:
        said.append(f"semantic score: {len(drawn)} drawn wrong, {drawn.count(False)} of them by the original too")
    said += [miss_line(each) for each in found.misses[:MOST_LINES]]
    left = len(found.misses) - MOST_LINES
    return [*said, *([f"and {left} more wrong pictures; --json and --report have all"] if left > 0 else [])]


def _counted(counts: Counts) -> str:
    return ", ".join(f"{kind} {right} of {judged}" for kind, (right, judged) in counts.items() if judged)


def miss_line(miss: Miss) -> str:
    """What a wrong picture was to be, and what it is."""
    told = f"{', '.join(miss.wrong)} wrong, seed {miss.seed}: {miss.prompt!r} shows {miss.seen}"
    return told if miss.original is None else f"{told}; {original_words(miss)}"


def original_words(miss: Miss) -> str:
    """What the original draws there."""
    return f"the original, {'right' if miss.original_right else 'wrong too'}, {miss.original}"


def kind_cells(found: SemanticScore) -> list[tuple[str, ...]]:
    """Rows under :data:`KIND_HEADS`; only the first two kinds have a bar."""
    rows = []
    for kind, (right, judged) in found.counts.items():
        original = "not drawn" if found.original is None else _of(found.original[kind])
        bar = found.bars.get(kind)
        verdict = "" if bar is None else PASSED if right >= bar * judged else FAILED
        rows.append((kind, _of((right, judged)), original, "" if bar is None else f"{bar:.0%}", verdict))
    return [row for row, (_, judged) in zip(rows, found.counts.values(), strict=True) if judged]


def _of(counted: tuple[int, int]) -> str:
    return f"{counted[0]} of {counted[1]}"
