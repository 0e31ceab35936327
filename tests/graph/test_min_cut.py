"""A minimum cut costs what the cheapest of all cuts costs, and has the most nodes that one can have."""

from __future__ import annotations

import itertools

import numpy as np
from support.drawn import Generator, drawn

from sdort.graph.min_cut import Network


def network(rng: Generator, seed: int) -> tuple[int, list[tuple[int, int, int]]]:
    """A number of nodes, source and sink among them, and edges with capacities; some twice, some both ways."""
    count = int(rng.integers(2, 8))
    edges = int(rng.integers(0, 3 * count))
    return count, [tuple(int(v) for v in (*rng.integers(0, count, 2), rng.integers(0, 6))) for _ in range(edges)]  # type: ignore[misc]


@drawn(60, network)
def test_the_cheapest_cut_with_the_most_nodes(case: tuple[int, list[tuple[int, int, int]]]) -> None:
    count, edges = case
    graph = Network()
    for _ in range(count - 2):
        graph.node()
    for edge in edges:
        graph.edge(*edge)

    def cost(side: set[int]) -> int:
        return sum(capacity for start, end, capacity in edges if start in side and end not in side)

    others = range(2, count)
    sides = [{Network.SOURCE, *chosen} for size in range(count - 1) for chosen in itertools.combinations(others, size)]
    least = min(map(cost, sides))
    most = max(len(side) for side in sides if cost(side) == least)
    found = graph.source_side()
    assert Network.SINK not in found
    assert (cost(found), len(found)) == (least, most)


def test_a_long_chain_is_cut_at_its_weakest_edge() -> None:
    graph = Network()
    nodes = [Network.SOURCE, *(graph.node() for _ in range(5000)), Network.SINK]
    for index, (start, end) in enumerate(itertools.pairwise(nodes)):
        graph.edge(start, end, 3 if index == 1234 else 4)
    assert graph.source_side() == set(np.array(nodes)[: 1234 + 1].tolist())
