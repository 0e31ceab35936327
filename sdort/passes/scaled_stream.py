"""Residual streams in front of root mean square norms, kept 64 times as small in fp16.

T5's stream passes fp16's 65504 (https://github.com/huggingface/transformers/issues/9295), and so do others that no norm
holds down. A root mean square norm does not see a factor of its input, but for its epsilon: x / 64 with epsilon / 64^2
gives what x and epsilon give. So all that writes to the stream is scaled, weights before they are rounded: by a power
of two, which is exact down to fp16's subnormal numbers, and costs nothing.
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


@dataclass
class _Norm:
    """A root mean square norm: the nodes that read its input, and where its epsilon is."""

    node: gs.Node
    readers: list[gs.Node]


@dataclass
class _Stream:
    """Tensors that are added to each other, and the norms that read them."""

    sums: dict[int, gs.Node] = field(default_factory=dict)
    tensors: dict[int, gs.Tensor] = field(default_factory=dict)
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
    done, streams = set[int](), 0
    for norm in [norm for found in norms.values() for norm in found]:
        tensor = norm.readers[0].inputs[0]
        if id(tensor) in done or producer(tensor, "Add") is None:
            continue
        stream = _follow(editor, tensor, norms)
        done |= set(stream.tensors)
        if not any(_is_residual(node) for node in stream.sums.values()):
            continue
        if stream.outsider:
            warn(
                f"{editor.model.component}: the residual stream {tensor.name!r} is not kept small for fp16, as "
                f"{stream.outsider} reads it: it is infinite above 65504. --fp16 auto measures it."
            )
            continue
        _scale(editor, stream, norms)
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


def _follow(editor: Editor, tensor: gs.Tensor, norms: dict[int, list[_Norm]]) -> _Stream:
    """The sums that a tensor comes from and goes to."""
    stream, stack = _Stream(), [tensor]
    while stack:
        current = stack.pop()
        if id(current) in stream.tensors:
            continue
        stream.tensors[id(current)] = current
        reading = {id(reader) for norm in norms.get(id(current), []) for reader in norm.readers}
        made = producer(current, "Add")
        if made is not None:
            stream.sums[id(made)] = made
            stack.extend(t for t in made.inputs if producer(t, "Add") is not None or id(t) in norms)
            if editor.is_output(current):
                stream.outsider = "the graph's output"
        for reader in current.outputs:
            if reader.op == "Add" and not reader.domain:
                stream.sums[id(reader)] = reader
                stack.append(reader.outputs[0])
            elif id(reader) not in reading and made is not None:
                stream.outsider = stream.outsider or f"{reader.op} {reader.name!r}"
    return stream


def _is_residual(node: gs.Node) -> bool:
    return not any(isinstance(tensor, gs.Constant) for tensor in node.inputs)


# --- scaling ---


def _scale(editor: Editor, stream: _Stream, norms: dict[int, list[_Norm]]) -> None:
    inside = {id(node) for node in stream.sums.values()}
    scaled: dict[int, gs.Tensor] = {}
    for node in stream.sums.values():
        for index, tensor in enumerate(node.inputs):
            if isinstance(tensor, gs.Constant):
                node.inputs[index] = _constant(editor, tensor)
            elif producer(tensor, "Add") is None or id(producer(tensor)) not in inside:
                if id(tensor) not in scaled:
                    scaled[id(tensor)] = _written(editor, tensor, inside, norms)
                node.inputs[index] = scaled[id(tensor)]
    for node in stream.sums.values():
        _rename(editor, node.outputs[0])
    for norm in (norm for key in stream.tensors for norm in norms.get(key, [])):
        _shrink_epsilon(editor, norm)
        for reader in norm.readers:
            for index, tensor in enumerate(reader.inputs):
                reader.inputs[index] = scaled.get(id(tensor), tensor)


def _written(editor: Editor, tensor: gs.Tensor, inside: set[int], norms: dict[int, list[_Norm]]) -> gs.Tensor:
    """Scale a summand of a stream: by its weights, where nothing else reads it."""
    node = producer(tensor)
    reading = {id(reader) for norm in norms.get(id(tensor), []) for reader in norm.readers}
    alone = all(id(reader) in inside | reading for reader in tensor.outputs) and not editor.is_output(tensor)
    if node is not None and alone and not node.domain:
        index = {"MatMul": 1, "Gather": 0, "Gemm": 1}.get(node.op)
        linear = node.op != "Gemm" or len(node.inputs) < 3 or isinstance(node.inputs[2], gs.Constant)
        if index is not None and linear and isinstance(node.inputs[index], gs.Constant):
            node.inputs[index] = _constant(editor, node.inputs[index])
            if node.op == "Gemm" and len(node.inputs) > 2:
                node.inputs[2] = _constant(editor, node.inputs[2])
            _rename(editor, tensor)
            return tensor
    return editor.op("Mul", [tensor, editor.constant(np.array(FACTOR, np.float32), "factor")])


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
