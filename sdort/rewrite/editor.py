"""The one way in which passes change a graph.

An :class:`Editor` wraps a model's graph with its facts and keeps every change linear in cost: new nodes are
appended with their facts inferred, dead ones are swept and the order is restored once, in :meth:`Editor.finish`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from onnx import helper

from sdort.errors import BadModelError
from sdort.graph.model import Model
from sdort.graph.signature import Array
from sdort.graph.symbolic import Dim, Shape
from sdort.graph.topological_order import topological_order
from sdort.graph.weights import Absent, Weight, as_weight
from sdort.rewrite.inference.facts import Facts

SMALL_ELEMENTS = 1024
"""Constants of up to this many elements may be read by passes; larger ones are only described."""


class Editor:
    """A graph under change.

    ``step`` names the fusion or step at work; ``origins`` keeps it for every new node, ``layouts`` the original of
    every channels-last tensor (:mod:`sdort.rewrite.provenance`). The facts are inferred when they are first asked for.

    Args:
        model: the model; its graph is changed in place.
        half: whether it becomes fp16 after all fusions.
    """

    def __init__(self, model: Model, *, half: bool = False) -> None:
        self.model = model
        self.half = half
        self._counter = 0
        self.step = ""
        self.origins: dict[str, tuple[str, ...]] = {}
        self.layouts: dict[str, str] = {}
        self.wide: set[str] = set()
        """Names of nodes that stay in fp32 in a model that becomes fp16."""
        self._names: set[str] = set()
        self._facts: Facts | None = None
        self._positions: dict[int, int] = {}
        self._fillings: dict[int, tuple[Array | Weight, float | None]] = {}
        self.refresh()

    @property
    def graph(self) -> gs.Graph:
        return self.model.graph

    @property
    def facts(self) -> Facts:
        """Types, shapes and small values of all tensors."""
        if self._facts is None:
            facts = Facts(self.graph.opset, self.model.component)
            facts.declare(self.graph.inputs)
            for node in self.graph.nodes:
                facts.infer(node)
            self._facts = facts
        return self._facts

    def refresh(self) -> None:
        """Take the model's graph as it is now: its names, its order, and what is known of it."""
        self._names |= {t.name for t in (*self.graph.tensors().values(), *self.graph.outputs)}
        self._names |= {node.name for node in self.graph.nodes}  # another editor may have named them, as loading does
        self._separate_constants()
        self._set_order(sort_nodes(self.graph.nodes, self.model.component))
        self._facts = None

    def _separate_constants(self) -> None:
        """Give a constant that has another tensor's name its own: facts and the fp16 converter know tensors by name."""
        computed = (t for node in self.graph.nodes for t in node.outputs if t.name)
        owners = {t.name: t for t in (*self.graph.inputs, *self.graph.outputs, *computed)}
        for tensor in (t for node in self.graph.nodes for t in node.inputs if isinstance(t, gs.Constant)):
            if owners.setdefault(tensor.name, tensor) is not tensor:
                tensor.name = self.name(tensor.name)

    # --- reading ---

    def shape(self, tensor: gs.Tensor) -> Shape | None:
        return self.facts.shape(tensor)

    def dtype(self, tensor: gs.Tensor) -> np.dtype[Any] | None:
        return self.facts.of(tensor).dtype

    def dims(self, tensor: gs.Tensor) -> tuple[Dim, ...] | None:
        """The elements of a small integer tensor, as far as they are known symbolically."""
        return self.facts.of(tensor).value

    def integer(self, tensor: gs.Tensor) -> int | None:
        """The element of an integer tensor that has one, where it is a known number."""
        value = self.dims(tensor)
        return value[0] if value is not None and len(value) == 1 and isinstance(value[0], int) else None

    def filling(self, tensor: gs.Tensor) -> float | None:
        """The number that every element of a constant is, whatever its size; None if there is none.

        Values are read once, in pieces, and no further than to the first that differs.
        """
        values = weight(tensor)
        if values is None:
            return None
        if id(values) not in self._fillings:
            self._fillings[id(values)] = values, filling(values)  # the values too: an id belongs to what is alive
        return self._fillings[id(values)][1]

    def position(self, node: gs.Node) -> int:
        """The node's number in topological order: none that it reads from has a larger one."""
        return self._positions[id(node)]

    def is_output(self, tensor: gs.Tensor) -> bool:
        return any(tensor is output for output in self.graph.outputs)

    # --- building ---

    def name(self, hint: str) -> str:
        """A tensor name that is not taken yet."""
        while True:
            self._counter += 1
            name = f"{hint}_{self._counter}"
            if name not in self._names:
                self._names.add(name)
                return name

    def constant(self, values: Array | Weight, hint: str = "const") -> gs.Constant:
        return gs.Constant(self.name(hint), values)

    def ints(self, values: Sequence[int], hint: str = "ints") -> gs.Constant:
        return self.constant(np.array(values, np.int64), hint)

    def node(
        self,
        op: str,
        inputs: Sequence[gs.Tensor],
        attrs: dict[str, Any] | None = None,
        *,
        outputs: int | Sequence[gs.Tensor] = 1,
        domain: str = "",
        hint: str = "",
    ) -> gs.Node:
        """Append a node; ``outputs``: how many new tensors, or the tensors themselves (their producers give way)."""
        name = self.name(hint or op)
        if isinstance(outputs, int):
            outputs = [gs.Variable(f"{name}_{i}" if i else name) for i in range(outputs)]
        for tensor in outputs:
            tensor.inputs.clear()
        node = gs.Node(op, name, attrs or {}, list(inputs), list(outputs), domain=domain or None)
        self.graph.nodes.append(node)
        self.place(node)
        self.facts.infer(node)
        if self.step:
            self.origins[name] = (self.step,)
        return node

    def op(self, op: str, inputs: Sequence[gs.Tensor], attrs: dict[str, Any] | None = None, **more: Any) -> gs.Tensor:
        """Append a node of one output and return that output."""
        return self.node(op, inputs, attrs, **more).outputs[0]

    def cast(self, tensor: gs.Tensor, dtype: np.dtype[Any], output: gs.Tensor | None = None) -> gs.Node:
        """Append a Cast to ``dtype``, into ``output`` where that is given."""
        outputs = 1 if output is None else [output]
        return self.node("Cast", [tensor], {"to": helper.np_dtype_to_tensor_dtype(dtype)}, outputs=outputs)

    def replace(self, old: gs.Tensor, new: gs.Tensor) -> None:
        """Let every consumer of ``old`` read ``new``; a graph output keeps its name through an Identity."""
        for consumer in list(old.outputs):
            for index, tensor in enumerate(consumer.inputs):
                if tensor is old:
                    consumer.inputs[index] = new
        if self.is_output(old):
            self.node("Identity", [new], outputs=[old])

    # --- finishing ---

    def finish(self) -> None:
        """Drop what no output needs and restore the topological order."""
        self._set_order(sort_nodes(live_nodes(self.graph), self.model.component))

    def _set_order(self, nodes: list[gs.Node]) -> None:
        self.graph.nodes = nodes
        self._positions = {id(node): index for index, node in enumerate(nodes)}

    def place(self, node: gs.Node) -> None:
        """Give a new node the position of the last that it reads from, and those that read from it one not before."""
        producers = (p for tensor in node.inputs for p in tensor.inputs)
        self._positions[id(node)] = max((self._positions[id(p)] for p in producers), default=0)
        stack = [node]
        while stack:
            current = stack.pop()
            least = self._positions[id(current)]
            for reader in (r for tensor in current.outputs for r in tensor.outputs):
                if self._positions[id(reader)] < least:
                    self._positions[id(reader)] = least
                    stack.append(reader)


def live_nodes(graph: gs.Graph) -> list[gs.Node]:
    """The nodes that an output depends on; the others are cut from their inputs."""
    alive: set[int] = set()
    stack = [node for tensor in graph.outputs for node in tensor.inputs]
    while stack:
        node = stack.pop()
        if id(node) not in alive:
            alive.add(id(node))
            stack.extend(producer for tensor in node.inputs for producer in tensor.inputs)
    kept = []
    for node in graph.nodes:
        if id(node) in alive:
            kept.append(node)
        else:
            node.inputs.clear()
            node.outputs.clear()
    return kept


def sort_nodes(nodes: list[gs.Node], component: str) -> list[gs.Node]:
    """Nodes in topological order, which keeps the present order where it can.

    Raises:
        BadModelError: the graph has a cycle.
    """
    position = {id(node): index for index, node in enumerate(nodes)}
    if _is_sorted(nodes, position):
        return nodes
    needs = [{position[id(p)] for t in node.inputs for p in t.inputs if id(p) in position} for node in nodes]
    order, cyclic = topological_order(needs)
    if cyclic is not None:
        raise BadModelError("the graph has a cycle", component=component, node=nodes[cyclic].name or nodes[cyclic].op)
    return [nodes[index] for index in order]


def _is_sorted(nodes: list[gs.Node], position: dict[int, int]) -> bool:
    """Whether every node comes after those that it reads: the usual case, and much cheaper to see than to sort."""
    return all(
        position.get(id(producer), -1) < index
        for index, node in enumerate(nodes)
        for tensor in node.inputs
        for producer in tensor.inputs
    )


# --- small helpers on tensors ---


def producer(tensor: gs.Tensor, op: str | None = None, domain: str = "") -> gs.Node | None:
    """The node that computes a tensor, if there is one (and it is an ``op``)."""
    node = tensor.inputs[0] if tensor.inputs else None
    if node is None or (op is not None and (node.op != op or (node.domain or "") != domain)):
        return None
    return node


def array(tensor: gs.Tensor, limit: float = SMALL_ELEMENTS) -> Array | None:
    """The values of a constant of up to ``limit`` elements; None of others, of variables and of absent weights."""
    if not isinstance(tensor, gs.Constant) or math.prod(tensor.shape) > limit:
        return None
    values = tensor._values
    if isinstance(values, Weight):
        return values.load() if all(_readable(leaf) for leaf in values.leaves()) else None
    return np.asarray(tensor.values)


def filling(values: Array | Weight) -> float | None:
    """The number that every element is; None if there is none, no element, or weights are absent."""
    described = as_weight(values)
    if not math.prod(described.shape) or not all(map(_readable, described.leaves())):
        return None
    number: float | None = None
    for piece in described.pieces():
        numbers = piece.reshape(-1)
        number = float(numbers[0]) if number is None else number
        if not (numbers == numbers.dtype.type(number)).all():
            return None
    return number


def _readable(leaf: Weight) -> bool:
    return not isinstance(leaf, Absent)


def scalar(tensor: gs.Tensor) -> float | None:
    """The value of a one-element constant."""
    values = array(tensor)
    return None if values is None or values.size != 1 else float(values.reshape(-1)[0])


def weight(tensor: gs.Tensor) -> Weight | Array | None:
    """A constant's values, described or in memory; None for variables."""
    return tensor._values if isinstance(tensor, gs.Constant) else None
