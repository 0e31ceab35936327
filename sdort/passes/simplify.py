"""Small algebra that makes the graphs of different exporters alike."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs
from onnx import helper

from sdort.graph.signature import Array
from sdort.graph.symbolic import Dim, Shape, is_natural, numbers
from sdort.graph.weights import Weight
from sdort.passes.always_true import choose_without_condition, drop_true_operand
from sdort.passes.fold import RANDOM_OPERATORS
from sdort.rewrite.editor import Editor, array, producer, scalar
from sdort.rewrite.inference.facts import plain_attributes
from sdort.rewrite.match import is_float
from sdort.rewrite.worklist import RewriteRule

LARGEST_AXIS = 2**31 - 1
"""No axis is as long: a Slice that ends here ends with its tensor."""
APART = frozenset({"MatMul", "Gemm", "Conv"}) | RANDOM_OPERATORS


def _last_axis(editor: Editor, node: gs.Node) -> bool:
    """The last axis is called -1, whatever the exporter calls it."""
    if node.op not in ("Concat", "Split", "Softmax", "LayerNormalization", "Gather") or node.attrs.get("axis", 0) <= 0:
        return False
    shape = editor.shape(node.inputs[0])
    if shape is None or node.attrs["axis"] != len(shape) - 1:
        return False
    node.attrs["axis"] = -1
    return True


def _allow_zero(editor: Editor, node: gs.Node) -> bool:
    """A Reshape target without a literal 0 means the same with and without ``allowzero``."""
    if node.op != "Reshape" or "allowzero" not in node.attrs:
        return False
    target = editor.dims(node.inputs[1])
    if node.attrs["allowzero"] and (target is None or 0 in target):
        return False
    del node.attrs["allowzero"]
    return True


def _no_affine(editor: Editor, node: gs.Node) -> bool:
    """A LayerNormalization times ones, plus zeros, as TorchScript writes one without an affine -> without the zeros."""
    if node.op != "LayerNormalization" or node.domain or len(node.inputs) < 3 or editor.filling(node.inputs[2]) != 0:
        return False
    if editor.filling(node.inputs[1]) != 1:
        return False
    node.inputs.pop()
    return True


def _plain_resize(editor: Editor, node: gs.Node) -> bool:
    """The default, which MIGraphX takes only unspoken (2.14: parse_resize.cpp)."""
    if node.op != "Resize" or node.attrs.get("keep_aspect_ratio_policy") != "stretch":
        return False
    del node.attrs["keep_aspect_ratio_policy"]
    return True


def _all_axes(editor: Editor, node: gs.Node) -> bool:
    """A Resize of named axes is one of all: the others keep their sizes. Not where it crops, or keeps proportions."""
    shape = editor.shape(node.inputs[0]) if node.op == "Resize" and "axes" in node.attrs else None
    crops = node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    if shape is None or crops or node.attrs.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return False
    axes = [axis % len(shape) for axis in node.attrs["axes"]]
    x, empty = node.inputs[0], gs.Variable.empty()
    attrs = {key: value for key, value in node.attrs.items() if key != "axes"}
    if len(node.inputs) > 3 and node.inputs[3].name:
        places = editor.constant(np.array(axes, np.int64).reshape(-1, 1), "axes")
        sizes = editor.op("ScatterND", [editor.op("Shape", [x]), places, node.inputs[3]])
        inputs = [x, empty, empty, sizes]
    else:
        scales = array(node.inputs[2])
        if scales is None or scales.size != len(axes):
            return False
        every = np.ones(len(shape), np.float32)
        every[axes] = scales
        inputs = [x, empty, editor.constant(every, "scales")]
    rebuild(editor, node, "Resize", inputs, attrs)
    return True


def _explicit_pads(editor: Editor, node: gs.Node) -> bool:
    """The pads that a Conv's ``auto_pad`` asks for, where they are known: not every kernel infers them."""
    mode = node.attrs.get("auto_pad")
    if node.op != "Conv" or mode is None:
        return False
    if mode != "NOTSET":
        shape, weight = editor.shape(node.inputs[0]), editor.shape(node.inputs[1])
        kernel = numbers(weight[2:]) if weight is not None else None
        if shape is None or kernel is None:
            return False
        pads = [_same_pads(node, shape[2:], kernel, axis) for axis in range(len(kernel))] if mode != "VALID" else []
        if any(pad is None for pad in pads):
            return False
        begins, ends = ([pad[end] for pad in pads if pad is not None] for end in (0, 1))
        node.attrs["pads"] = [*begins, *ends] or [0] * (2 * len(kernel))
    del node.attrs["auto_pad"]
    return True


def _same_pads(node: gs.Node, sizes: Shape, kernel: list[int], axis: int) -> tuple[int, int] | None:
    """The padding of SAME_UPPER or SAME_LOWER before and behind an axis; None where that is not to be said.

    The output has ceil(size / stride) elements (https://onnx.ai/onnx/operators/onnx__Conv.html). The padding may depend
    on an unknown size, and where strides leave more than a kernel out it is negative: ONNX Runtime cuts elements off
    then, by a rounding of its own, and ONNX's reference does not.
    """
    stride, size = node.attrs.get("strides", [1] * len(kernel))[axis], sizes[axis]
    reach = node.attrs.get("dilations", [1] * len(kernel))[axis] * (kernel[axis] - 1) + 1
    if isinstance(size, int):
        total = (-(-size // stride) - 1) * stride + reach - size
    elif stride == 1:
        total = reach - 1
    else:
        return None
    if total < 0:
        return None
    small, large = total // 2, total - total // 2
    return (small, large) if node.attrs["auto_pad"] == "SAME_UPPER" else (large, small)


def _cast_like(editor: Editor, node: gs.Node) -> bool:
    """CastLike -> Cast: what it is like is known."""
    dtype = editor.dtype(node.inputs[1]) if node.op == "CastLike" else None
    if dtype is None:
        return False
    rebuild(editor, node, "Cast", [node.inputs[0]], {"to": helper.np_dtype_to_tensor_dtype(dtype)})
    return True


def _divide_to_multiply(editor: Editor, node: gs.Node) -> bool:
    """x / c -> x * (1/c) where that is exact: 1/c is a power of two. Other divisions: :mod:`sdort.passes.scales`."""
    exact = node.op == "Div" and np.frexp(scalar(node.inputs[1]) or 0.0)[0] in (-0.5, 0.5)
    return exact and multiply_instead(editor, node)


def multiply_instead(editor: Editor, node: gs.Node) -> bool:
    """Make a division of floats by a scalar a product with its reciprocal, if that is a normal number of their type."""
    value, dtype = scalar(node.inputs[1]), editor.dtype(node.inputs[0])
    if not value or dtype is None or not is_float(dtype) or not keeps_shape(editor, node, 0):
        return False
    factor = normal_number(1.0 / value, dtype)
    if factor is None:
        return False
    rebuild(editor, node, "Mul", [node.inputs[0], editor.constant(factor, "factor")])
    return True


def normal_number(value: float, dtype: np.dtype[Any]) -> Array | None:
    """The number in a floating-point type; None where it is zero, infinite or below the normal ones there."""
    with np.errstate(over="ignore", under="ignore"):
        number = np.array(value, dtype)
    limits = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # it knows numpy's types too
    return number if limits.tiny <= abs(number) <= limits.max else None


def keeps_shape(editor: Editor, node: gs.Node, index: int) -> bool:
    """Whether a node's output has the shape of this input."""
    shape = editor.shape(node.outputs[0])
    return shape is not None and editor.shape(node.inputs[index]) == shape


def rebuild(
    editor: Editor, node: gs.Node, op: str, inputs: list[gs.Tensor], attrs: dict[str, Any] | None = None
) -> None:
    """Put another node in the place of one that has a single output."""
    output = node.outputs[0]
    node.inputs.clear()
    editor.node(op, inputs, attrs, outputs=[output])


def _merge_transposes(editor: Editor, node: gs.Node) -> bool:
    inner = producer(node.inputs[0], "Transpose") if node.op == "Transpose" else None
    if inner is None or "perm" not in node.attrs or "perm" not in inner.attrs:
        return False
    perm = [inner.attrs["perm"][p] for p in node.attrs["perm"]]
    rebuild(editor, node, "Transpose", [inner.inputs[0]], {"perm": perm})
    return True


def _bounds(editor: Editor, node: gs.Node) -> tuple[int, int, int] | None:
    """(axis, start, end) of a Slice of one axis with step 1 and known bounds."""
    if node.op != "Slice" or node.domain or len(node.inputs) < 4:
        return None
    start, end, axis = (editor.integer(t) for t in node.inputs[1:4])
    shape = editor.shape(node.inputs[0])
    if start is None or end is None or axis is None or shape is None:
        return None
    size = shape[axis]
    if not isinstance(size, int) or (len(node.inputs) > 4 and editor.integer(node.inputs[4]) != 1):
        return None
    fit = [min(max(b + size if b < 0 else b, 0), size) for b in (start, end)]
    return axis % len(shape), fit[0], fit[1]


def _slice_of_concat(editor: Editor, node: gs.Node) -> bool:
    """A Slice that takes exactly one input of a Concat is that input."""
    bounds = _bounds(editor, node)
    concat = producer(node.inputs[0], "Concat") if bounds else None
    if bounds is None or concat is None:
        return False
    shape = editor.shape(concat.outputs[0])
    if shape is None or concat.attrs["axis"] % len(shape) != bounds[0]:
        return False
    start = 0
    for tensor in concat.inputs:
        part = editor.shape(tensor)
        size = part[bounds[0]] if part is not None else None
        if not isinstance(size, int):
            return False
        if (start, start + size) == bounds[1:]:
            editor.replace(node.outputs[0], tensor)
            _discard(node)
            return True
        start += size
    return False


def _rejoined(editor: Editor, node: gs.Node) -> bool:
    """A Concat of all pieces of a tensor in their order, as Slices or a Split cut them -> the tensor."""
    if node.op != "Concat" or node.domain or len(node.inputs) < 2:
        return False
    cuts = [producer(tensor) for tensor in node.inputs]
    first = cuts[0]
    shape = editor.shape(first.inputs[0]) if first is not None and first.inputs else None
    if first is None or shape is None or any(cut is None or cut.inputs[:1] != first.inputs[:1] for cut in cuts):
        return False
    axis = node.attrs["axis"] % len(shape)
    if first.op == "Split" and not first.domain:
        whole = all(cut is first for cut in cuts) and list(node.inputs) == list(first.outputs)
        if not whole or first.attrs.get("axis", 0) % len(shape) != axis:
            return False
    elif not _follow_each_other([_cut(editor, cut, axis, len(shape)) for cut in cuts if cut is not None], shape[axis]):
        return False
    editor.replace(node.outputs[0], first.inputs[0])
    _discard(node)
    return True


def _cut(editor: Editor, node: gs.Node, axis: int, rank: int) -> tuple[Dim, Dim] | None:
    """Start and end of a Slice of this axis alone with step 1."""
    if node.op != "Slice" or node.domain or len(node.inputs) < 4:
        return None
    start, end, axes = (editor.dims(tensor) for tensor in node.inputs[1:4])
    steps = editor.dims(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4].name else (1,)
    if start is None or end is None or steps != (1,) or axes not in ((axis,), (axis - rank,)):
        return None
    return start[0], end[0]


def _follow_each_other(cuts: Sequence[tuple[Dim, Dim] | None], size: Dim) -> bool:
    """Whether cuts are a whole axis. Of two, the first may end anywhere; more have to be in order."""
    known = [cut for cut in cuts if cut is not None]
    if len(known) < len(cuts) or known[0][0] != 0 or any(a[1] != b[0] for a, b in pairwise(known)):
        return False
    last = known[-1][1]
    ends = last == size or (isinstance(last, int) and last >= LARGEST_AXIS)
    return ends and (len(known) == 2 or all(is_natural(end - start) for start, end in known[:-1]))


def _split_slices(editor: Editor, node: gs.Node) -> bool:
    """Slices that cut a tensor into consecutive pieces -> Split."""
    bounds = _bounds(editor, node)
    if bounds is None:
        return False
    axis, source = bounds[0], node.inputs[0]
    slices = [(n, _bounds(editor, n)) for n in source.outputs if n.inputs[0] is source]
    parts = sorted(((b[1], b[2], n) for n, b in slices if b and b[0] == axis), key=lambda part: part[0])
    shape = editor.shape(source)
    edges = [0, *(end for _, end, _ in parts)]
    if shape is None or len(parts) < 2:
        return False
    if edges[-1] != shape[axis] or [start for start, _, _ in parts] != edges[:-1]:
        return False
    outputs, sizes = [part.outputs[0] for _, _, part in parts], [end - start for start, end, _ in parts]
    for _, _, part in parts:
        part.inputs.clear()
    even = len(set(sizes)) == 1
    inputs = [source] if even else [source, editor.ints(sizes, "sizes")]
    editor.node("Split", inputs, {"axis": axis, **({"num_outputs": len(parts)} if even else {})}, outputs=outputs)
    return True


def _split_sequence(editor: Editor, node: gs.Node) -> bool:
    """SplitToSequence whose elements are taken one by one -> Split (torch's chunk, before its exporter's optimizer)."""
    if node.op != "SplitToSequence" or len(node.inputs) != 2:
        return False
    readers = list(node.outputs[0].outputs)
    picks = [editor.integer(r.inputs[1]) if r.op == "SequenceAt" else None for r in readers]
    shape, axis = editor.shape(node.inputs[0]), node.attrs.get("axis", 0)
    sizes = None if shape is None else _piece_sizes(editor, node.inputs[1], shape[axis])
    computed = 0 if sizes else _computed_sizes(editor, node.inputs[1])
    if not (sizes or computed) or None in picks:
        return False
    attrs, inputs = {"axis": axis}, list(node.inputs)
    if sizes:
        even = len(set(sizes)) == 1
        attrs |= {"num_outputs": len(sizes)} if even else {}
        inputs = [node.inputs[0]] if even else [node.inputs[0], editor.ints(sizes)]
    parts = editor.node("Split", inputs, attrs, outputs=len(sizes) if sizes else computed).outputs
    for reader, pick in zip(readers, picks, strict=True):
        editor.replace(reader.outputs[0], parts[pick])
        _discard(reader)
    return True


def _even_split(editor: Editor, node: gs.Node) -> bool:
    """A Split into pieces of listed sizes that are all alike is one into so many."""
    if node.op != "Split" or len(node.inputs) < 2:
        return False
    sizes = numbers(editor.dims(node.inputs[1]) or ())
    if not sizes or len(set(sizes)) > 1 or len(sizes) != len(node.outputs):
        return False
    del node.inputs[1]
    node.attrs["num_outputs"] = len(sizes)
    return True


def _piece_sizes(editor: Editor, split: gs.Tensor, length: Dim) -> list[int] | None:
    """The pieces' sizes: ``split`` is a list of them, or the one of all but the last."""
    sizes = numbers(editor.dims(split) or ())
    if not sizes or not isinstance(length, int) or min(sizes) < 1:
        return None
    if len(sizes) > 1:
        return sizes if sum(sizes) == length else None
    return [min(sizes[0], length - start) for start in range(0, length, sizes[0])]


def _computed_sizes(editor: Editor, split: gs.Tensor) -> int:
    """The number of pieces whose sizes are listed and computed; 0 where the list is a constant, or no list."""
    shape = None if isinstance(split, gs.Constant) else editor.shape(split)
    return shape[0] if shape and isinstance(shape[0], int) and shape[0] > 1 else 0


def _discard(node: gs.Node) -> None:
    """Take out a node that nobody reads any more."""
    node.inputs.clear()
    node.outputs.clear()


RULES: tuple[RewriteRule, ...] = (
    _last_axis,
    _allow_zero,
    _no_affine,
    _plain_resize,
    _all_axes,
    _explicit_pads,
    _cast_like,
    _divide_to_multiply,
    _merge_transposes,
    _slice_of_concat,
    _rejoined,
    _split_slices,
    _split_sequence,
    _even_split,
    choose_without_condition,
    drop_true_operand,
)


def merge_equal_nodes(editor: Editor) -> int:
    """Common subexpressions: nodes that compute the same from the same are one.

    Projections stay apart even where their weights are equal (exporters merge equal parameters): each belongs to a
    fusion of its own. So do random numbers, each drawn anew.
    """
    seen: dict[Any, gs.Node] = {}
    changes = 0
    for node in list(editor.graph.nodes):
        if node.op in APART or any(editor.is_output(t) for t in node.outputs):
            continue
        key = (node.op, node.domain or "", tuple(_key(t) for t in node.inputs), _attribute_key(node), len(node.outputs))
        twin = seen.setdefault(key, node)
        if twin is not node:
            for mine, theirs in zip(node.outputs, twin.outputs, strict=True):
                editor.replace(mine, theirs)
            changes += 1
    if changes:
        editor.finish()
    return changes


def _key(tensor: gs.Tensor) -> Any:
    if isinstance(tensor, gs.Constant) and not isinstance(tensor._values, Weight):
        values = np.asarray(tensor.values)
        return (str(values.dtype), values.shape, values.tobytes())
    return id(tensor._values) if isinstance(tensor, gs.Constant) else tensor.name


def _attribute_key(node: gs.Node) -> str:
    return repr(sorted((k, str(v)) for k, v in plain_attributes(node).items()))
