"""Residual streams in front of root mean square norms, kept 64 times as small in fp16.

T5's stream passes fp16's 65504 (https://github.com/huggingface/transformers/issues/9295), and so do others that no norm
holds down. A root mean square norm does not see a factor of its input, but for its epsilon: x / 64 with epsilon / 64^2
gives what x and epsilon give; nor does a LayerNormalization that reads such a stream too. So all that writes to the
stream is scaled, weights before they are rounded: by a power of two, which is exact down to fp16's subnormal numbers,
and costs nothing. A stream goes on in pieces of it, and where it is joined with another one. Where it is an output of
the graph, as Qwen3's states before the last layer are, that gets its size back in fp32.

Of streams that layer norms alone read, those are scaled to which gated branches are added: Flux' and Stable Diffusion
3's, which diffusers clips in fp16 (https://github.com/huggingface/diffusers/issues/9097).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from sdort.console import warn
from sdort.graph.signature import Array
from sdort.graph.weights import Scaled, Weight
from sdort.rewrite.editor import Editor, producer, scalar

FACTOR = 2.0**-6
"""fp16 then ends at 4.2 million; an element of 0.004 still has all of its bits."""
_NORMS = frozenset({"RMSNormalization", "SimplifiedLayerNormalization"})


_PIECES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ("Reshape", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather", "Split", "Identity", "Pad"), (0,)
    ),
    **dict.fromkeys(("ScatterElements", "ScatterND"), (0, 2)),
    "Where": (1, 2),
}
"""Operators that hand the elements of a stream on, and the inputs that they have them of; beside Concat."""


@dataclass
class _Norm:
    """A root mean square norm: the nodes that read its input, and where its epsilon is."""

    node: gs.Node
    readers: list[gs.Node]


@dataclass
class _Stream:
    """Tensors that are added to each other, and the norms that read them."""

    sums: dict[int, gs.Node] = field(default_factory=dict)
    """The sums, and what hands their results on."""
    tensors: dict[int, gs.Tensor] = field(default_factory=dict)
    given: list[gs.Tensor] = field(default_factory=list)
    """Those that are outputs of the graph."""
    outsider: str = ""
    """A reader that is neither a sum nor a norm, and would see the factor."""


def run(editor: Editor) -> int:
    """Scale the streams of a graph in fp32 that is to be fp16, in place; warn of those that cannot be.

    Returns:
        The number of streams.
    """
    norms: dict[int, list[_Norm]] = {}
    for norm in _norms(editor):
        norms.setdefault(id(norm.readers[0].inputs[0]), []).append(norm)
    layers: dict[int, list[_Norm]] = {}
    for node in editor.graph.nodes:
        wide = node.op == "LayerNormalization" and not node.domain and editor.dtype(node.inputs[0]) == np.float32
        if wide and not _shows_root(editor, node):
            layers.setdefault(id(node.inputs[0]), []).append(_Norm(node, [node]))
    done, streams = set[int](), 0
    for norm in [norm for found in (*norms.values(), *layers.values()) for norm in found]:
        tensor = norm.readers[0].inputs[0]
        if id(tensor) in done or _carrier(tensor) is None:
            continue
        stream = _follow(editor, tensor, norms, layers)
        done |= set(stream.tensors)
        if not any(_is_residual(node) for node in stream.sums.values()):
            continue
        if not any(key in norms for key in stream.tensors) and not any(map(_is_gated, stream.sums.values())):
            continue
        if stream.outsider:
            warn(
                f"{editor.model.component}: the residual stream {tensor.name!r} is not kept small for fp16, as "
                f"{stream.outsider} reads it: it is infinite above 65504. --fp16 auto measures it."
            )
            continue
        readers = {key: norms.get(key, []) + layers.get(key, []) for key in stream.tensors}
        _scale(editor, stream, readers)
        streams += 1
    editor.finish()
    return streams


# --- finding ---


def _norms(editor: Editor) -> list[_Norm]:
    whole = [
        _Norm(node, [node])
        for node in editor.graph.nodes
        if node.op in _NORMS and editor.dtype(node.inputs[0]) == np.float32 and not _shows_root(editor, node)
    ]
    means = [node for node in editor.graph.nodes if node.op == "ReduceMean" and not node.domain]
    apart = [_decomposed(editor, node) for node in means]
    return whole + [norm for norm in apart if norm is not None and editor.dtype(norm.node.outputs[0]) == np.float32]


def _shows_root(editor: Editor, norm: gs.Node) -> bool:
    """Whether the root that a norm divides by is read as well, or goes out: it is as small as the stream."""
    return any(tensor.name and (tensor.outputs or editor.is_output(tensor)) for tensor in norm.outputs[1:])


def _decomposed(editor: Editor, mean: gs.Node) -> _Norm | None:
    """x / sqrt(mean(x^2) + epsilon) of single operators that nothing else reads, by its mean."""
    square = producer(mean.inputs[0])
    if square is None or not (
        (square.op == "Mul" and square.inputs[0] is square.inputs[1])
        or (square.op == "Pow" and scalar(square.inputs[1]) == 2)
    ):
        return None
    x, shifted = square.inputs[0], _only_reader(editor, mean, "Add")
    if (
        shifted is None
        or _only_reader(editor, square, "ReduceMean") is None
        or not any(scalar(tensor) is not None for tensor in shifted.inputs)
    ):
        return None
    root = _only_reader(editor, shifted, "Sqrt", "Pow")
    if root is None or (root.op == "Pow" and scalar(root.inputs[1]) != -0.5):
        return None
    inverse = root if root.op == "Pow" else _only_reader(editor, root, "Reciprocal", "Div")
    end = inverse
    if inverse is not None and (inverse.op != "Div" or inverse.inputs[0] is not x):
        one = inverse.op != "Div" or scalar(inverse.inputs[0]) is not None
        end = _only_reader(editor, inverse, "Mul") if one else None
    if end is None or not any(tensor is x for tensor in end.inputs):
        return None
    return _Norm(shifted, [square, end])


def _only_reader(editor: Editor, node: gs.Node, *operators: str) -> gs.Node | None:
    readers = [] if editor.is_output(node.outputs[0]) else node.outputs[0].outputs
    return readers[0] if len(readers) == 1 and readers[0].op in operators and not readers[0].domain else None


def _follow(
    editor: Editor, tensor: gs.Tensor, norms: dict[int, list[_Norm]], layers: dict[int, list[_Norm]]
) -> _Stream:
    """The sums that a tensor comes from and goes to."""
    stream, stack = _Stream(), [tensor]
    while stack:
        current = stack.pop()
        if id(current) in stream.tensors:
            continue
        stream.tensors[id(current)] = current
        known = (*norms.get(id(current), []), *layers.get(id(current), []))
        reading = {id(reader) for norm in known for reader in norm.readers}
        made = _carrier(current)
        if made is not None:
            stream.sums[id(made)] = made
            stack.extend(t for t in _carried(made) if _comes_from_sum(t) or id(t) in norms or id(t) in layers)
            stack.extend(t for t in made.outputs if t.name)
            if editor.is_output(current):
                stream.given.append(current)
        for reader in current.outputs:
            if (reader.op == "Add" or _hands_on(reader)) and not reader.domain and _reads(reader, current):
                stream.sums[id(reader)] = reader
                stack.extend(t for t in reader.outputs if t.name)
            elif id(reader) not in reading and made is not None and reader.op not in ("Shape", "Size"):
                stream.outsider = stream.outsider or f"{reader.op} {reader.name!r}"
    return stream


def _carrier(tensor: gs.Tensor) -> gs.Node | None:
    """The sum that a tensor is, or the node that hands on a sum."""
    node = producer(tensor)
    if node is None or node.domain:
        return None
    return node if node.op == "Add" or (_hands_on(node) and any(map(_comes_from_sum, _carried(node)))) else None


def _hands_on(node: gs.Node) -> bool:
    """Whether a node hands the elements of its input on, and no others."""
    if node.op == "Pad":
        filled = node.inputs[2:3]
        zeros = not filled or not filled[0].name or scalar(filled[0]) == 0
        return zeros and node.attrs.get("mode", "constant") == "constant"
    if node.attrs.get("reduction", "none") not in ("none", b"none"):
        return False
    return node.op in _PIECES or node.op == "Concat"


def _places(node: gs.Node) -> tuple[int, ...]:
    """The inputs of a sum, or of what hands elements on, whose elements are in the result."""
    return _PIECES.get(node.op, tuple(range(len(node.inputs))))


def _carried(node: gs.Node) -> list[gs.Tensor]:
    return [node.inputs[index] for index in _places(node)]


def _reads(node: gs.Node, tensor: gs.Tensor) -> bool:
    """Whether a node has a tensor's elements, and does not read it as anything else, as a shape or an index."""
    return all(index in _places(node) for index, each in enumerate(node.inputs) if each is tensor)


def _comes_from_sum(tensor: gs.Tensor) -> bool:
    """Whether a tensor is a sum, or is handed on from one."""
    stack, steps = [tensor], 0
    while stack and steps < _STEPS:
        steps += 1
        node = producer(stack.pop())
        if node is None or node.domain:
            continue
        if node.op == "Add":
            return True
        if _hands_on(node):
            stack.extend(_carried(node))
    return False


_STEPS = 32
"""Nodes between a sum and what hands it on, at most."""


def _is_residual(node: gs.Node) -> bool:
    return not any(isinstance(tensor, gs.Constant) for tensor in node.inputs)


def _is_gated(node: gs.Node) -> bool:
    """Whether a sum adds a branch times a gate, as blocks do that a timestep modulates."""
    gates = [producer(tensor, "Mul") for tensor in node.inputs] if node.op == "Add" else []
    return any(gate is not None and not any(isinstance(t, gs.Constant) for t in gate.inputs) for gate in gates)


# --- scaling ---


def _scale(editor: Editor, stream: _Stream, norms: dict[int, list[_Norm]]) -> None:
    for tensor in stream.given:
        _give_back(editor, tensor)
    inside = {id(node) for node in stream.sums.values()}
    scaled: dict[int, gs.Tensor] = {}
    for node in stream.sums.values():
        for index in _places(node):
            tensor = node.inputs[index]
            if isinstance(tensor, gs.Constant):
                node.inputs[index] = _constant(editor, tensor)
            elif not any(id(made) in inside for made in tensor.inputs):
                if id(tensor) not in scaled:
                    scaled[id(tensor)] = _written(editor, tensor, inside, norms)
                node.inputs[index] = scaled[id(tensor)]
    for tensor in (t for node in stream.sums.values() for t in node.outputs if t.name):
        _rename(editor, tensor)
    for norm in (norm for key in stream.tensors for norm in norms.get(key, [])):
        _shrink_epsilon(editor, norm)
        for reader in norm.readers:
            for index, tensor in enumerate(reader.inputs):
                reader.inputs[index] = scaled.get(id(tensor), tensor)


def _give_back(editor: Editor, tensor: gs.Tensor) -> None:
    """Let an output of the graph have the size that it has without the factor, computed in fp32."""
    node = producer(tensor)
    assert node is not None
    index = next(index for index, made in enumerate(node.outputs) if made is tensor)
    inner = gs.Variable(editor.name(tensor.name), tensor.dtype, tensor.shape)
    editor.facts.set(inner, editor.facts.of(tensor))
    for reader in list(tensor.outputs):
        for place, read in enumerate(reader.inputs):
            if read is tensor:
                reader.inputs[place] = inner
    node.outputs[index] = inner
    whole = editor.constant(np.array(1 / FACTOR, np.float32), "factor")
    editor.wide.add(editor.node("Mul", [inner, whole], outputs=[tensor]).name)


def _written(editor: Editor, tensor: gs.Tensor, inside: set[int], norms: dict[int, list[_Norm]]) -> gs.Tensor:
    """Scale a summand of a stream: by its weights, where nothing else reads it."""
    reading = {id(reader) for norm in norms.get(id(tensor), []) for reader in norm.readers}
    alone = all(id(reader) in inside | reading for reader in tensor.outputs) and not editor.is_output(tensor)
    changed: list[gs.Node] = []
    places = _weights(editor, tensor, changed) if alone else None
    if places is None:
        return editor.op("Mul", [tensor, editor.constant(np.array(FACTOR, np.float32), "factor")])
    for node, index in places:
        node.inputs[index] = _constant(editor, node.inputs[index])
    for node in changed:
        _rename(editor, node.outputs[0])
    return tensor


def _weights(editor: Editor, tensor: gs.Tensor, changed: list[gs.Node]) -> list[tuple[gs.Node, int]] | None:
    """The constants, by node and position, whose scaling is the tensor's; None where it takes more than that.

    Args:
        changed: takes the nodes whose results are scaled.
    """
    node = producer(tensor)
    if node is None or node.domain:
        return None
    constant = [index for index, each in enumerate(node.inputs) if isinstance(each, gs.Constant)]
    index = {"MatMul": 1, "Gather": 0, "Gemm": 1, "RMSNormalization": 1}.get(node.op)
    places: list[tuple[gs.Node, int]] | None = None
    if index is not None and index in constant and (node.op != "Gemm" or len(node.inputs) < 3 or 2 in constant):
        places = [(node, index)] + [(node, 2)] * (node.op == "Gemm" and len(node.inputs) > 2)
    elif node.op == "Mul":  # a gate, or the branch that it is for
        inner = (_inner(editor, each, changed) for each in node.inputs)
        places = next((found for found in inner if found is not None), None)
    elif node.op == "Add" and len(constant) == 1:  # a bias
        found = _inner(editor, node.inputs[1 - constant[0]], changed)
        places = None if found is None else [*found, (node, constant[0])]
    if places is not None:
        changed.append(node)
    return places


def _inner(editor: Editor, tensor: gs.Tensor, changed: list[gs.Node]) -> list[tuple[gs.Node, int]] | None:
    """The constants of a tensor that one node alone reads."""
    alone = len(tensor.outputs) == 1 and not editor.is_output(tensor)
    return _weights(editor, tensor, changed) if alone else None


def _rename(editor: Editor, tensor: gs.Tensor) -> None:
    """Under its own name it would be taken for the original's, by who compares the two."""
    fact = editor.facts.of(tensor)
    tensor.name = editor.name(tensor.name)
    editor.facts.set(tensor, fact)


def _constant(editor: Editor, tensor: gs.Constant, factor: float = FACTOR) -> gs.Constant:
    values: Array | Weight = tensor._values
    if isinstance(values, Weight):
        return editor.constant(Scaled(values, factor), tensor.name)
    return editor.constant(np.asarray(values * factor, values.dtype), tensor.name)


def _shrink_epsilon(editor: Editor, norm: _Norm) -> None:
    if norm.node.op != "Add":
        norm.node.attrs["epsilon"] = norm.node.attrs.get("epsilon", 1e-5) * FACTOR**2
        return
    index = next(index for index, tensor in enumerate(norm.node.inputs) if isinstance(tensor, gs.Constant))
    norm.node.inputs[index] = _constant(editor, norm.node.inputs[index], FACTOR**2)
