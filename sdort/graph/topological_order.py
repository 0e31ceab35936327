"""Order of a graph's nodes in which each follows those it reads from."""

from __future__ import annotations

from collections.abc import Sequence


def topological_order(needs: Sequence[set[int]]) -> tuple[list[int], int | None]:
    """Indices such that each follows those it needs, and an index that lies on a cycle, if there is one.

    Depth first: a node keeps its place or moves right before its first consumer. Linear, and no recursion.
    """
    unseen, waiting, placed = 0, 1, 2
    state = bytearray(len(needs))
    order: list[int] = []
    for start in range(len(needs)):
        stack = [start]
        while stack:
            index = stack[-1]
            if state[index] == unseen:
                state[index] = waiting
                missing = sorted((n for n in needs[index] if state[n] != placed), reverse=True)
                if any(state[n] == waiting for n in missing):
                    return order, index
                stack.extend(missing)
                continue
            stack.pop()
            if state[index] == waiting:
                state[index] = placed
                order.append(index)
    return order, None
