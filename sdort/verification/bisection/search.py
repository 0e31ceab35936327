"""Search for a divergence: the first tensor that is out of tolerance while all it is computed from agrees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sdort.console import detail
from sdort.verification.bisection.tensor_pairs import (
    TENSORS_PER_SESSION,
    GraphPair,
    TensorPair,
    ancestors,
    tolerance_share,
)
from sdort.verification.limits import Tolerance

Measure = Callable[[Sequence[int]], Mapping[int, float]]
"""Positions of pairs -> error of each as a multiple of the tolerance."""


@dataclass(frozen=True)
class Divergence:
    """The first wrong tensor."""

    pair: TensorPair
    share: float
    """Its error as a multiple of the tolerance; above 1."""
    sources: dict[TensorPair, float]
    """The nearest corresponding tensors that it is computed from, which are all within tolerance."""
    sessions: int
    """Pairs of sessions that the search took."""


def find_divergence(graphs: GraphPair, output: str, limit: Tolerance) -> Divergence | None:
    """Find the first wrong tensor of the candidate.

    Args:
        output: the output that is out of tolerance.

    Returns:
        None if the output is right as soon as tensors are recorded: then no node of the graph is wrong, but a fusion of
        ONNX Runtime's own, which extra outputs prevent.
    """
    pairs = graphs.pairs(output)
    shares: dict[int, float] = {}
    sessions = 0

    def measure(positions: Sequence[int]) -> Mapping[int, float]:
        nonlocal sessions
        missing = [position for position in positions if position not in shares]
        for first in range(0, len(missing), TENSORS_PER_SESSION):
            batch = missing[first : first + TENSORS_PER_SESSION]
            sessions += 1
            values = graphs.values([pairs[position] for position in batch])
            for position in batch:
                shares[position] = tolerance_share(limit, *values[pairs[position]])
            detail(f"{graphs.component}: recorded {len(batch)} of {len(pairs)} tensors")
        return {position: shares[position] for position in positions}

    graph = graphs.graph(graphs.candidate).graph
    positions = {pair.candidate: position for position, pair in enumerate(pairs)}

    def sources(position: int) -> list[int]:
        tensors = ancestors(graph, [pairs[position].candidate], positions.keys())
        return sorted(positions[name] for name in tensors[1:] if name in positions)

    first = search(len(pairs), measure, sources)
    if first is None:
        return None
    nearest = {pairs[position]: shares[position] for position in sources(first)}
    return Divergence(pairs[first], shares[first], nearest, sessions)


def search(
    count: int, measure: Measure, sources: Callable[[int], Iterable[int]], width: int = TENSORS_PER_SESSION
) -> int | None:
    """The position of a wrong tensor all of whose sources are right; None if the last one is right.

    The range between what is known to be right and what is known to be wrong is narrowed ``width`` tensors at a time,
    as if all after a wrong one were wrong. Branches make that untrue: a right tensor may come after a wrong one. So the
    sources of the result are measured, and the search goes on before one that is wrong.

    Args:
        count: tensors, in an order in which sources come first; the last one is the output.
    """
    wrong, right = count - 1, -1
    if count == 0 or measure([wrong])[wrong] <= 1:
        return None
    while True:
        while wrong - right > 1:
            step = -(-(wrong - right - 1) // width)
            probes = measure(list(range(right + step, wrong, step))[:width] or [right + 1])
            wrong = min([wrong, *(position for position, share in probes.items() if share > 1)])
            right = max([right, *(position for position in probes if position < wrong)])
        near = measure([position for position in sources(wrong) if position < wrong])
        bad = [position for position, share in near.items() if share > 1]
        if not bad:
            return wrong
        wrong, right = min(bad), -1
