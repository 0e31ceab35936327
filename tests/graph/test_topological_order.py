"""Topological order: stable, linear, and cycles are found."""

from __future__ import annotations

from sdort.graph.topological_order import topological_order


def test_sorting_moves_no_more_than_it_must() -> None:
    assert topological_order([set(), {0}, set(), {1, 2}]) == ([0, 1, 2, 3], None)
    assert topological_order([{1, 2, 3}, set(), {3}, set()]) == ([1, 3, 2, 0], None)  # each right before its consumer
    assert topological_order([set(), {3}, {1}, {2}])[1] in (1, 2, 3)
