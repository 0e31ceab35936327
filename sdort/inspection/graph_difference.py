"""Places in which two graphs compute something else, whatever their tensors and nodes are called.

Both graphs are walked from their outputs. A tensor has two hashes: of all that it is computed from, and of the
operators alone. Where the first are equal nothing differs; where only the second are, the difference is one of
attributes, wiring or constants further up; where neither are, other operators stand in between.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from sdort.errors.plain_text import cut
from sdort.graph.domains import MICROSOFT
from sdort.graph.model import Model
from sdort.graph.weights import Weight
from sdort.inspection.description import operator_name
from sdort.rewrite.editor import producer
from sdort.rewrite.pattern import COMMUTATIVE, default_attribute, has_default
from sdort.tables import counted

ATTRIBUTE, WIRING, CONSTANT, OPERATOR = "attribute", "wiring", "constant", "operators"


@dataclass(frozen=True)
class Place:
    """A place in which two graphs differ in what they compute."""

    kind: str
    """``attribute``, ``wiring`` (the same inputs in other places), ``constant`` or ``operators``."""
    operator: str
    """The operator there, in the first model."""
    before_name: str
    """The node, or constant, in the first model."""
    after_name: str
    """The one in its place in the second model."""
    what: str
    """The difference, with both values."""


def differing_places(before: Model, after: Model) -> list[Place]:
    """Places in which two models differ, from the inputs to the outputs; weights are read.

    Outputs correspond by their names, or where these are others by their order. Linear in the sizes of both.
    """
    return _Walk(_Side(before), _Side(after)).places()


class _Side:
    """One of the graphs, with the hashes of its tensors."""

    def __init__(self, model: Model) -> None:
        self.graph = model.graph
        self.position = {id(node): index for index, node in enumerate(self.graph.nodes)}
        self.full: dict[int, bytes] = {}
        self.structure: dict[int, bytes] = {}
        self.with_structure: defaultdict[bytes, list[gs.Tensor]] = defaultdict(list)
        """Inputs, and tensors that nodes make, by their structure, in order."""
        for index, tensor in enumerate(self.graph.inputs):
            # Inputs correspond by name; what their sizes are called says nothing of what is computed.
            self._set(tensor, _hash(b"input", str(tensor.name)), _hash(b"input", str(index)))
            self.with_structure[self.structure[id(tensor)]].append(tensor)
        for node in self.graph.nodes:  # a loaded graph is in topological order
            self._add(node)

    def _add(self, node: gs.Node) -> None:
        inputs = [self._hashes_of(tensor) for tensor in node.inputs]
        full, structure = [one for one, _ in inputs], [other for _, other in inputs]
        if commutes(node):
            full, structure = sorted(full), sorted(structure)
        name = operator_name(node)
        whole = _hash(b"node", name, repr(sorted(attributes(node).items())), *full)
        shape = _hash(b"node", name, *structure)
        for index, tensor in enumerate(node.outputs):
            self._set(tensor, _hash(whole, str(index)), _hash(shape, str(index)))
            self.with_structure[self.structure[id(tensor)]].append(tensor)

    def _hashes_of(self, tensor: gs.Tensor) -> tuple[bytes, bytes]:
        if id(tensor) not in self.full:
            whole = _hash_constant(tensor) if isinstance(tensor, gs.Constant) else _hash(b"none")
            self._set(tensor, whole, _hash(b"constant" if isinstance(tensor, gs.Constant) else b"none"))
        return self.full[id(tensor)], self.structure[id(tensor)]

    def _set(self, tensor: gs.Tensor, full: bytes, structure: bytes) -> None:
        self.full[id(tensor)], self.structure[id(tensor)] = full, structure


class _Walk:
    """The walk of both graphs from their outputs, in pairs of tensors that stand in each other's place."""

    def __init__(self, before: _Side, after: _Side) -> None:
        self.before, self.after = before, after
        self._found: list[tuple[int, Place]] = []
        self._seen: set[tuple[int, int]] = set()
        self._stack: list[tuple[gs.Tensor, gs.Tensor]] = []
        self._told: set[int] = set()
        """Nodes, of both graphs, that a place has counted: another one does not walk them again."""

    def places(self) -> list[Place]:
        self._stack = list(_paired(self.before.graph.outputs, self.after.graph.outputs))[::-1]
        while self._stack:
            one, other = self._stack.pop()
            if (id(one), id(other)) not in self._seen:
                self._seen.add((id(one), id(other)))
                if self.before._hashes_of(one)[0] != self.after._hashes_of(other)[0]:
                    self._compare(one, other)
        return [place for _, place in sorted(self._found, key=lambda found: found[0])]

    def _compare(self, one: gs.Tensor, other: gs.Tensor) -> None:
        node, twin = producer(one), producer(other)
        if isinstance(one, gs.Constant) and isinstance(other, gs.Constant):
            self._add_constant(one, other)
        elif node is not None and twin is not None and _alike(node, twin, one, other):
            if (id(node), id(twin)) not in self._seen:
                self._seen.add((id(node), id(twin)))
                self._compare_nodes(node, twin)
        else:
            self._compare_regions(one, other)

    def _compare_nodes(self, node: gs.Node, twin: gs.Node) -> None:
        ours, theirs = attributes(node), attributes(twin)
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                texts = [_text(values, node, name) for values in (ours, theirs)]
                self._add_node(node, twin, ATTRIBUTE, f"{name}: {texts[0]} -> {texts[1]}")
        pairs = self._pair_inputs(node, twin)
        if len(node.inputs) != len(twin.inputs):
            self._add_node(node, twin, WIRING, f"{len(node.inputs)} inputs -> {len(twin.inputs)}")
        self._stack += reversed(pairs)

    def _pair_inputs(self, node: gs.Node, twin: gs.Node) -> list[tuple[gs.Tensor, gs.Tensor]]:
        """Inputs that differ, in pairs; none where the same ones are in another order, which is a place of its own."""
        ours, theirs = list(node.inputs), list(twin.inputs)
        if commutes(node):
            return self._unordered(ours, theirs)
        pairs = [(one, other) for one, other in zip(ours, theirs, strict=False) if self._differ(one, other)]
        mine, others = ([*each] for each in zip(*pairs, strict=True)) if pairs else ([], [])
        full = self.before.full, self.after.full
        for hashes in (full, (self.before.structure, self.after.structure)):
            left, right = [hashes[0][id(one)] for one in mine], [hashes[1][id(other)] for other in others]
            if left != right and sorted(left) == sorted(right):
                numbered = enumerate(zip(ours, theirs, strict=False), 1)
                moved = ", ".join(str(index) for index, pair in numbered if self._differ(*pair))
                self._add_node(node, twin, WIRING, f"inputs {moved} are the same ones in another order")
                return [] if hashes is full else self._unordered(mine, others)
        return pairs

    def _unordered(self, ours: list[gs.Tensor], theirs: list[gs.Tensor]) -> list[tuple[gs.Tensor, gs.Tensor]]:
        """The inputs of a commutative operator that differ, those of equal structure together."""
        left, rest, pairs = list(theirs), list[gs.Tensor](), list[tuple[gs.Tensor, gs.Tensor]]()
        for one in ours:
            if self._take(left, self.after.full, self.before.full[id(one)]) is None:
                rest.append(one)
        for one in rest:
            twin = self._take(left, self.after.structure, self.before.structure[id(one)])
            pairs += [(one, twin)] if twin is not None else []
        alone = [one for one in rest if all(one is not each for each, _ in pairs)]
        return [*pairs, *zip(alone, left, strict=False)]

    @staticmethod
    def _take(tensors: list[gs.Tensor], hashes: Mapping[int, bytes], wanted: bytes) -> gs.Tensor | None:
        """Take the first tensor of this hash out of a list."""
        index = next((index for index, tensor in enumerate(tensors) if hashes[id(tensor)] == wanted), None)
        return None if index is None else tensors.pop(index)

    def _compare_regions(self, one: gs.Tensor, other: gs.Tensor) -> None:
        """Other operators in between: all up to what has a twin of the same structure on the other side."""
        ours, known = self._region(one, self.before, self.after)
        theirs, others = self._region(other, self.after, self.before)
        if ours or theirs:
            kind, what = OPERATOR, f"{_counted(ours)} -> {_counted(theirs)}"
        elif {id(producer(tensor)) for tensor in (one, other)} & self._told:
            return
        else:
            kind, what = WIRING, "another tensor is read"
        node = producer(one)
        position = -1 if node is None else self.before.position[id(node)]
        self._add(position, kind, "" if node is None else operator_name(node), str(one.name), str(other.name), what)
        if kind == OPERATOR:
            of = defaultdict(list)
            for tensor in others:
                of[self.after.structure[id(tensor)]].append(tensor)
            pairs = [(tensor, of[self.before.structure[id(tensor)]]) for tensor in known]
            self._stack += [(tensor, twins.pop(0)) for tensor, twins in pairs if twins]

    def _region(self, tensor: gs.Tensor, side: _Side, twin: _Side) -> tuple[list[gs.Node], list[gs.Tensor]]:
        """The nodes that lead to a tensor, and the tensors before them whose structure the other side has."""
        nodes, edge, stack, seen = list[gs.Node](), list[gs.Tensor](), [tensor], set[int]()
        while stack:
            current = stack.pop()
            if id(current) in seen:
                continue
            seen.add(id(current))
            node = producer(current)
            if side.structure[id(current)] in twin.with_structure:
                edge.append(current)
            elif node is not None and id(node) not in self._told:
                self._told.add(id(node))
                nodes.append(node)
                stack += reversed(node.inputs)
        return nodes, edge

    def _differ(self, one: gs.Tensor, other: gs.Tensor) -> bool:
        return self.before.full[id(one)] != self.after.full[id(other)]

    def _add_node(self, node: gs.Node, twin: gs.Node, kind: str, what: str) -> None:
        names = _name(node), _name(twin)
        self._add(self.before.position[id(node)], kind, operator_name(node), *names, what)

    def _add_constant(self, one: gs.Constant, other: gs.Constant) -> None:
        reader = one.outputs[0] if one.outputs else None
        position = self.before.position.get(id(reader), -1)
        operator = operator_name(reader) if reader is not None else ""
        self._add(position, CONSTANT, operator, str(one.name), str(other.name), _constants(one, other))

    def _add(self, position: int, *place: str) -> None:
        self._found.append((position, Place(*place)))


def attributes(node: gs.Node) -> dict[str, Any]:
    """A node's attributes as comparable values, without those that say what is meant where nothing is said."""
    found = {}
    for name, value in node.attrs.items():
        plain = _plain(value)
        default = default_attribute(node.op, node.domain or "", name)
        if not has_default(default) or plain != _plain(default):
            found[name] = plain
    return found


def commutes(node: gs.Node) -> bool:
    """Whether the order of a node's inputs makes no difference."""
    return node.op in COMMUTATIVE and not node.domain


def _plain(value: Any) -> Any:
    """A value of an attribute that equals another one of the same sense, and is written alike in another process."""
    if isinstance(value, gs.Graph):
        return _hash_graph(value).hex()
    if isinstance(value, gs.Constant):
        return _hash_constant(value).hex()
    if isinstance(value, np.ndarray):
        return _hash(str(value.dtype), str(value.shape), value.tobytes()).hex()
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return float(np.float32(value)) if isinstance(value, float) else value


def _hash_graph(graph: gs.Graph) -> bytes:
    """The hash of a branch or a body, whose names of tensors count: they may be those of the graph around."""
    parts = [
        (operator_name(node), sorted(attributes(node).items()), _names(node.inputs), _names(node.outputs))
        for node in graph.nodes
    ]
    constants = {
        tensor.name: _hash_constant(tensor).hex()
        for node in graph.nodes
        for tensor in node.inputs
        if isinstance(tensor, gs.Constant)
    }
    return _hash(repr(parts), repr(sorted(constants.items())), repr(_names(graph.outputs)))


def _names(tensors: Sequence[gs.Tensor]) -> list[str]:
    return [str(tensor.name) for tensor in tensors]


def _hash(*parts: str | bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode() if isinstance(part, str) else part
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.digest()


def _hash_constant(constant: gs.Constant) -> bytes:
    """The hash of a constant's type, shape and values, which are read piece by piece."""
    import xxhash

    values = constant._values
    digest = xxhash.xxh3_128()
    for piece in values.pieces() if isinstance(values, Weight) else [constant.values]:
        digest.update(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)  # numpy lends no bfloat16 as it is
    return _hash(b"constant", str(constant.dtype), str(tuple(constant.shape)), digest.digest())


def _paired(ours: Sequence[gs.Tensor], theirs: Sequence[gs.Tensor]) -> Iterator[tuple[gs.Tensor, gs.Tensor]]:
    """Outputs of one name; the others in their order."""
    named = {str(tensor.name): tensor for tensor in theirs}
    pairs = [(tensor, named.pop(str(tensor.name), None)) for tensor in ours]
    left = iter(named.values())
    for tensor, twin in pairs:
        other = twin if twin is not None else next(left, None)
        if other is not None:
            yield tensor, other


def _alike(node: gs.Node, twin: gs.Node, one: gs.Tensor, other: gs.Tensor) -> bool:
    """Whether two tensors are the same output of the same operator."""
    places = [next(i for i, t in enumerate(n.outputs) if t is tensor) for n, tensor in ((node, one), (twin, other))]
    return operator_name(node) == operator_name(twin) and places[0] == places[1]


def _name(node: gs.Node) -> str:
    return str(node.name or (node.outputs[0].name if node.outputs else ""))


def _constants(one: gs.Constant, other: gs.Constant) -> str:
    kinds = [f"{np.dtype(each.dtype)}{list(each.shape)}" for each in (one, other)]
    if kinds[0] != kinds[1]:
        return f"{kinds[0]} -> {kinds[1]}"
    if int(np.prod(one.shape)) <= _SHOWN:
        return f"{one.values.ravel().tolist()} -> {other.values.ravel().tolist()}"
    return f"other values, {kinds[0]}"


_SHOWN = 4
"""Values of a constant that are shown."""


def _text(values: Mapping[str, Any], node: gs.Node, name: str) -> str:
    """A node's value of an attribute, or what is meant where it has none."""
    default = default_attribute(node.op, node.domain or "", name)
    value = values.get(name, default if has_default(default) else None)
    if value is None:
        return "not given"
    return f"{value:.7g}" if isinstance(value, float) else cut(str(value))


def _counted(nodes: Sequence[gs.Node]) -> str:
    """``3 nodes (2 MatMul, 1 Add)``."""
    if not nodes:
        return "no node"
    counts = Counter(operator_name(node).removeprefix(f"{MICROSOFT}.") for node in nodes).most_common()
    shown = ", ".join(f"{count} {name}" for name, count in counts[:3]) + (", ..." if len(counts) > 3 else "")
    return f"{counted(len(nodes), 'node')} ({shown})"
