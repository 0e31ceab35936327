"""Local rules, applied until none of them changes anything, at a cost that is linear in the graph.

Nodes wait in topological order. A node is looked at again when it may look different to a rule: when what is known of
a tensor that it reads or writes has changed, when one of its neighbours was replaced, or when it became the only
reader of a tensor. What nobody reads any more is removed at once. A rule that sees further than that is found by a
sweep over all nodes at the end, and the work goes on from there.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

import onnx_graphsurgeon as gs

from sdort.rewrite.editor import Editor

RewriteRule = Callable[[Editor, gs.Node], bool]
"""Changes the graph at a node of the standard domain whose facts are up to date; returns whether it did."""

PER_NODE = 64
"""Changes for each node of a graph; as many mean that two rules undo each other."""
SHAPE_ONLY = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand"})
"""Rules look through chains of these."""


def apply_rules(editor: Editor, rules: Sequence[RewriteRule]) -> int:
    """Apply ``rules`` at every node until a sweep over all of them changes nothing.

    Returns:
        The number of changes.

    Raises:
        RuntimeError: the rules undo each other.
    """
    work = _Worklist(editor, rules)
    changes = 0
    while changed := work.sweep():
        changes += changed
    editor.finish()
    return changes


class _Worklist:
    def __init__(self, editor: Editor, rules: Sequence[RewriteRule]) -> None:
        self.editor = editor
        self.rules = rules
        self._heap: list[tuple[int, int]] = []
        self._waiting: dict[int, gs.Node] = {}
        self._left = PER_NODE * (len(editor.graph.nodes) + 1)
        self._settled: set[int] = set()
        """Nodes that look as they did when their outputs were inferred."""

    def sweep(self) -> int:
        """Look at every node, and at whatever is to be looked at for it."""
        for node in self.editor.graph.nodes:
            self._queue(node)
        self.editor.facts.changed.clear()
        changes = 0
        while self._heap:
            _, key = heapq.heappop(self._heap)
            node = self._waiting.pop(key)
            if node.outputs:
                if key not in self._settled:
                    self.editor.facts.infer(node)
                    self._settled.add(key)
                changes += self._visit(node)
                self._push_changed()
        return changes

    def _visit(self, node: gs.Node) -> bool:
        if node.domain:
            return False
        nodes = self.editor.graph.nodes
        inputs, readers, length = list(node.inputs), _readers(node.outputs), len(nodes)
        for rule in self.rules:
            if rule(self.editor, node):
                self._spend(rule, node)
                made = nodes[length:]
                self._push([node, *readers, *made])
                for new in made:
                    self._push(_readers(new.outputs))
                self._remove_dead([node, *(p for t in inputs for p in t.inputs)])
                for tensor in inputs:
                    self._lost_reader(tensor)
                return True
        return False

    def _spend(self, rule: RewriteRule, node: gs.Node) -> None:
        self._left -= 1
        if self._left < 0:
            name = getattr(rule, "__name__", str(rule)).strip("_")
            raise RuntimeError(f"simplifications undo each other, {name} at {node.op} {node.name!r} among them")

    def _push(self, nodes: Iterable[gs.Node]) -> None:
        """Nodes that look different than before: to be inferred anew."""
        for node in nodes:
            self._settled.discard(id(node))
            self._queue(node)

    def _queue(self, node: gs.Node) -> None:
        if node.outputs and id(node) not in self._waiting:
            self._waiting[id(node)] = node
            heapq.heappush(self._heap, (self.editor.position(node), id(node)))

    def _push_changed(self) -> None:
        """Whoever reads or writes a tensor of which something else is known now."""
        changed = self.editor.facts.changed
        while changed:
            _, tensor = changed.popitem()
            self._push(tensor.inputs)
            self._push_readers(tensor)

    def _push_readers(self, tensor: gs.Tensor) -> None:
        stack = [tensor]
        while stack:
            for node in stack.pop().outputs:
                new = id(node) not in self._waiting
                self._push([node])
                if new and node.op in SHAPE_ONLY and not node.domain:
                    stack.extend(node.outputs)

    def _lost_reader(self, tensor: gs.Tensor) -> None:
        if len(tensor.outputs) == 1:
            self._push(tensor.outputs)

    def _remove_dead(self, nodes: list[gs.Node]) -> None:
        """Cut off what nobody reads, and what was only there for it."""
        while nodes:
            node = nodes.pop()
            if any(t.outputs or self.editor.is_output(t) for t in node.outputs):
                continue
            inputs = list(node.inputs)
            node.inputs.clear()
            node.outputs.clear()
            for tensor in inputs:
                self._lost_reader(tensor)
                nodes.extend(tensor.inputs)


def _readers(tensors: Iterable[gs.Tensor]) -> list[gs.Node]:
    return [node for tensor in tensors for node in tensor.outputs]
