"""Attentions, norms, Gelus and rotary embeddings that a graph has in parts, by what they compute, whatever rules say.

Fusions know spellings; here one fact decides: a softmax between two products of computed tensors, the root of a mean
square that something is divided by, an error function or a hyperbolic tangent plus one. So what no fusion takes is
still seen.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_graphsurgeon as gs

from sdort.rewrite.editor import Editor, producer, scalar
from sdort.rewrite.match import same_tensor

ATTENTION, GELU, ROTARY = "attention", "Gelu", "rotary embedding"
LAYER_NORM, GROUP_NORM, RMS_NORM, OTHER_NORM = "layer norm", "group norm", "RMS norm", "norm over inner axes"

_STEPS = 16
"""Nodes between a softmax and the products around it, at most."""
_SCORES = frozenset({"Mul", "Div", "Add", "Sub", "Where", "Cast", "Tanh", "Clip", "Min", "Max", "Reshape", "Identity"})
"""Operations on scores before the softmax."""
_SHARES = frozenset({"Cast", "Where", "Mul", "Dropout", "Identity", "Reshape"})
"""Operations on shares before they weigh values."""
_PRODUCTS = frozenset({"MatMul", "FusedMatMul", "Einsum"})


def find_decomposed(editor: Editor) -> Iterator[tuple[str, gs.Node]]:
    """Kind and one node of every attention, norm and Gelu that stands in parts in the graph, in order."""
    for node in editor.graph.nodes:
        kind = None if node.domain else _kind(editor, node)
        if kind is not None:
            yield kind, node


def _kind(editor: Editor, node: gs.Node) -> str | None:
    if node.op == "Softmax":
        return ATTENTION if is_attention(editor, node) else None
    if node.op in ("Sqrt", "Pow"):
        return _norm(editor, node)
    if node.op == "InstanceNormalization":
        return GROUP_NORM if is_grouped(node) else None
    if node.op == "Add":
        return ROTARY if is_rotary(editor, node) else None
    return GELU if node.op in ("Erf", "Tanh") and _is_gelu(editor, node) else None


def is_rotary(editor: Editor, node: gs.Node) -> bool:
    """Whether a sum is x cos + turned(x) sin, of the elements of pairs that a rotary embedding turns, or of each."""
    products = [producer(_uncast(tensor), "Mul") for tensor in node.inputs]
    if any(each is None for each in products):
        return False
    left, right = (list(each.inputs) for each in products if each is not None)
    turned = any(_is_turned(editor, b, _uncast(a)) or _is_turned(editor, a, _uncast(b)) for a in left for b in right)
    return turned or any(_is_real_part(reader, left, right) for t in left for reader in t.outputs)


def _is_turned(editor: Editor, tensor: gs.Tensor, source: gs.Tensor) -> bool:
    """Whether a tensor has the elements of another in pairs that have changed places, one of each negated."""
    node = producer(_uncast(tensor))
    if node is not None and node.op == "Gather" and not node.domain and _uncast(node.inputs[0]) is source:
        shape, order = editor.shape(node.inputs[0]), editor.dims(node.inputs[1])
        if shape is None or order is None or node.attrs.get("axis", 0) not in (-1, len(shape) - 1):
            return False
        return all(isinstance(place, int) and place != i and order[place] == i for i, place in enumerate(order))
    while node is not None and node.op in _VIEWS:
        node = producer(node.inputs[0])
    if node is None or node.op != "Concat" or len(node.inputs) != 2:
        return False
    first, second = (_pieces(part) for part in node.inputs)
    return first == (id(source), True) and second == (id(source), False)


_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Identity", "Cast"})


def _pieces(tensor: gs.Tensor) -> tuple[int, bool]:
    """The tensor that one is a piece of, by ``id``, and whether it is negated."""
    negated, node = False, producer(tensor)
    while node is not None and node.op in _VIEWS | {"Neg", "Split", "Slice", "Gather"}:
        negated ^= node.op == "Neg"
        tensor = node.inputs[0]
        node = producer(tensor)
    return id(tensor), negated


def _number(known: list[gs.Tensor], tensor: gs.Tensor) -> int:
    """The place of a tensor among those that are known; a new one is added."""
    place = next((index for index, other in enumerate(known) if same_tensor(other, tensor)), len(known))
    known += [tensor] * (place == len(known))
    return place


def _is_real_part(node: gs.Node, left: list[gs.Tensor], right: list[gs.Tensor]) -> bool:
    """Whether a node makes its products of the same four tensors, with the factors exchanged, and subtracts."""
    difference = [reader for t in node.outputs for reader in t.outputs] if node.op == "Mul" and not node.domain else []
    for sub in (reader for reader in difference if reader.op == "Sub" and not reader.domain):
        products = [producer(tensor, "Mul") for tensor in sub.inputs]
        if any(each is None for each in products):
            continue
        known: list[gs.Tensor] = []
        factors = (left, right, *(list(each.inputs) for each in products if each is not None))
        a, b, c, d = ({_number(known, tensor) for tensor in each} for each in factors)
        if len(known) == 4 and all(len(x & y) == 1 for x in (a, b) for y in (c, d)):
            return True
    return False


def is_attention(editor: Editor, softmax: gs.Node) -> bool:
    """Whether a softmax over the last axis shares out the products of two computed tensors, and weighs a third."""
    shape = editor.shape(softmax.inputs[0])
    last = -1 if shape is None else len(shape) - 1
    if softmax.attrs.get("axis", -1) not in (-1, last) or (shape is not None and len(shape) < 3):
        return False
    return any(map(_is_computed, _before(softmax))) and any(map(_is_computed, _behind(softmax)))


def _is_computed(product: gs.Node) -> bool:
    return len(product.inputs) > 1 and not any(isinstance(t, gs.Constant) for t in product.inputs[:2])


def _before(node: gs.Node) -> list[gs.Node]:
    """The products that a softmax's scores are made of."""
    products, frontier = [], [node]
    for _ in range(_STEPS):
        above = [p for n in frontier for t in n.inputs if (p := producer(t)) is not None]
        products += [n for n in above if n.op in _PRODUCTS]
        frontier = [n for n in above if n.op in _SCORES and not n.domain][:_STEPS]
    return products


def _behind(node: gs.Node) -> list[gs.Node]:
    """The products whose first factor a softmax's shares are."""
    products, frontier = [], [node]
    for _ in range(_STEPS):
        pairs = [(reader, t) for n in frontier for t in n.outputs for reader in t.outputs]
        products += [n for n, t in pairs if n.op in _PRODUCTS and (n.op == "Einsum" or n.inputs[0] is t)]
        frontier = [n for n, _ in pairs if n.op in _SHARES and not n.domain][:_STEPS]
    return products


def _norm(editor: Editor, root: gs.Node) -> str | None:
    """The kind of norm whose root of a mean square this is."""
    if root.op == "Pow" and scalar(root.inputs[1]) not in (0.5, -0.5):
        return None
    mean = _mean_square(root)
    if mean is None or not _divides(root, root.op == "Pow" and scalar(root.inputs[1]) == -0.5):
        return None
    square = producer(_uncast(mean.inputs[0]))
    centered = None if square is None else producer(_uncast(square.inputs[0]))
    if centered is None or centered.op != "Sub":
        return RMS_NORM
    shape = editor.shape(mean.inputs[0])
    axes = editor.dims(mean.inputs[1]) if len(mean.inputs) > 1 else None
    last = shape is not None and axes is not None and tuple(axes) in ((-1,), (len(shape) - 1,))
    if last:
        return LAYER_NORM
    viewed = any(producer(_uncast(tensor), "Reshape") is not None for tensor in centered.inputs)
    return GROUP_NORM if viewed else OTHER_NORM


def is_of_norm(editor: Editor, mean: gs.Node) -> bool:
    """Whether what is computed of a mean is soon divided by the root of a mean square."""
    frontier = [mean]
    for _ in range(_NORM_STEPS):
        frontier = [reader for node in frontier for t in node.outputs for reader in t.outputs][:_STEPS]
        if any(node.op in ("Sqrt", "Pow") and _norm(editor, node) is not None for node in frontier):
            return True
    return False


_NORM_STEPS = 8
"""Nodes between a mean and the root of its variance, Casts included, at most."""


def _uncast(tensor: gs.Tensor) -> gs.Tensor:
    while (node := producer(tensor, "Cast")) is not None:
        tensor = node.inputs[0]
    return tensor


def _mean_square(root: gs.Node) -> gs.Node | None:
    """The ReduceMean of squares that a root is of, with a small number added."""
    node = producer(_uncast(root.inputs[0]))
    if node is not None and node.op in ("Add", "Max", "Clip"):
        node = next((p for t in node.inputs[:2] if (p := producer(_uncast(t))) is not None), None)
    if node is None or node.op != "ReduceMean" or node.domain:
        return None
    square = producer(_uncast(node.inputs[0]))
    if square is None or square.op not in ("Mul", "Pow"):
        return None
    squared = square.inputs[0] is square.inputs[1] if square.op == "Mul" else scalar(square.inputs[1]) == 2
    return node if squared else None


def _divides(root: gs.Node, inverse: bool) -> bool:
    """Whether something is divided by the root, or multiplied with its inverse."""
    pairs = [(reader, t) for t in root.outputs for reader in t.outputs]
    pairs += [(later, r.outputs[0]) for r, _ in pairs if r.op == "Cast" for later in r.outputs[0].outputs]
    return inverse or any(n.op == "Reciprocal" or (n.op == "Div" and n.inputs[1] is t) for n, t in pairs)


def is_grouped(node: gs.Node) -> bool:
    """Whether an InstanceNormalization normalizes groups of channels: views before and behind it."""
    before = producer(_uncast(node.inputs[0]))
    readers = [reader for t in node.outputs for reader in t.outputs]
    readers += [later for r in readers if r.op == "Cast" for later in r.outputs[0].outputs]
    return before is not None and before.op == "Reshape" and any(reader.op == "Reshape" for reader in readers)


def _is_gelu(editor: Editor, node: gs.Node) -> bool:
    """Whether an error function, or a tanh of a cubic, plus one is a factor."""
    readers = [r for t in node.outputs for r in t.outputs if r.op == "Add" and any(scalar(i) == 1 for i in r.inputs)]
    if not any(later.op == "Mul" for reader in readers for later in reader.outputs[0].outputs):
        return False
    inner = producer(node.inputs[0])
    return inner is not None and inner.op in (("Mul", "Div") if node.op == "Erf" else ("Mul",))
