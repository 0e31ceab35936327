"""The cheapest cut of a network in two, by Dinic's algorithm (https://en.wikipedia.org/wiki/Max-flow_min-cut_theorem)."""

from __future__ import annotations

from collections import deque

UNLIMITED = 1 << 60
"""The capacity of an edge that is never cut."""


class Network:
    """Nodes by number, and edges between them with capacities; node 0 is the source, node 1 the sink."""

    SOURCE, SINK = 0, 1

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[], []]  # by node, the numbers of the edges that leave it
        self._to: list[int] = []
        self._left: list[int] = []  # what may still flow; the edge back has the next number, or the one before

    def node(self) -> int:
        """A new node's number."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, start: int, end: int, capacity: int) -> None:
        """Cutting ``start`` (with the source) from ``end`` (with the sink) costs ``capacity``."""
        if start != end and capacity > 0:
            for node, other, left in ((start, end, capacity), (end, start, 0)):
                self._edges[node].append(len(self._to))
                self._to.append(other)
                self._left.append(left)

    def source_side(self) -> set[int]:
        """The nodes on the source's side of a cheapest cut; of several cuts the one with the most of them."""
        while levels := self._levels():
            self._block(levels)
        sink_side, queue = {self.SINK}, [self.SINK]
        while queue:
            for number in self._edges[queue.pop()]:
                before = self._to[number]
                if self._left[number ^ 1] and before not in sink_side:
                    sink_side.add(before)
                    queue.append(before)
        return set(range(len(self._edges))) - sink_side

    def _levels(self) -> dict[int, int]:
        """Each node's distance from the source; empty where nothing more reaches the sink."""
        levels, queue = {self.SOURCE: 0}, deque([self.SOURCE])
        while queue:
            node = queue.popleft()
            for number in self._edges[node]:
                end = self._to[number]
                if self._left[number] and end not in levels:
                    levels[end] = levels[node] + 1
                    queue.append(end)
        return levels if self.SINK in levels else {}

    def _block(self, levels: dict[int, int]) -> None:
        """Fill shortest paths until each has a full edge."""
        following = [0] * len(self._edges)
        path: list[int] = []  # edges from the source on
        node = self.SOURCE
        while True:
            if node == self.SINK:
                flow = min(self._left[number] for number in path)
                for number in path:
                    self._left[number] -= flow
                    self._left[number ^ 1] += flow
                path, node = [], self.SOURCE
                continue
            edges = self._edges[node]
            while following[node] < len(edges) and not self._leads_on(edges[following[node]], node, levels):
                following[node] += 1
            if following[node] < len(edges):
                path.append(edges[following[node]])
                node = self._to[path[-1]]
            elif not path:
                return
            else:  # a dead end
                node = self._to[path.pop() ^ 1]
                following[node] += 1

    def _leads_on(self, number: int, node: int, levels: dict[int, int]) -> bool:
        return self._left[number] > 0 and levels.get(self._to[number]) == levels[node] + 1
