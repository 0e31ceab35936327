"""Operators in another layout of the image: what each reads and writes turned, and how it is written then.

A layout is a permutation ``to`` of the four axes: an image's twin is its Transpose by it. Whatever computes element by
element has a form in every layout (:mod:`sdort.graph.element_operators`), as has what takes axes as numbers.
Convolutions and norms have one where the target has a kernel of it (:mod:`sdort.passes.nhwc`). Max and average pooling,
transposed convolutions, InstanceNormalization, BatchNormalization and GridSample have none in ONNX Runtime on GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from sdort.graph.element_operators import BROADCAST, is_unary
from sdort.graph.weights import Reshaped, Transposed, as_weight
from sdort.rewrite.editor import Editor, array

Perm = tuple[int, int, int, int]
TO_LAST: Perm = (0, 2, 3, 1)
TO_FIRST: Perm = (0, 3, 1, 2)
RANK = 4

Twin = Callable[[gs.Tensor], gs.Tensor]
"""From an image, variable or constant, to its twin."""
Build = Callable[[Twin], Sequence[gs.Tensor]]


@dataclass(frozen=True)
class Turn:
    """A node in another layout.

    Attributes:
        images: the variables of which it reads the twins.
        build: makes the node; returns what stands for its outputs.
        turned: whether that are the outputs' twins; else the outputs themselves, which are the same in any layout.
        gain: what it saves, in the units of :mod:`sdort.passes.layout_choice`; negative what it costs.
    """

    images: tuple[gs.Tensor, ...]
    build: Build
    turned: bool = True
    gain: int = 0


@dataclass(frozen=True)
class Layout:
    """The state of a turn to a layout."""

    editor: Editor
    to: Perm
    back: Perm = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "back", TO_FIRST if self.to == TO_LAST else TO_LAST)

    @property
    def last(self) -> bool:
        """Whether it is to channels-last."""
        return self.to == TO_LAST

    def axis(self, axis: int) -> int:
        """The twin's number of an axis."""
        return self.to.index(axis % RANK)

    def is_image(self, tensor: gs.Tensor) -> bool:
        shape = self.editor.shape(tensor) if tensor.name else None
        return shape is not None and len(shape) == RANK

    def is_pixel(self, tensor: gs.Tensor) -> bool:
        """Whether an image is one pixel for each channel, so that both layouts are views of one another."""
        shape = self.editor.shape(tensor) or ()
        return len(shape) == RANK and all(shape[axis] == 1 for axis in ((2, 3) if self.last else (1, 2)))


def is_turning(node: gs.Node, perm: Perm) -> bool:
    """Whether a node is the Transpose by a permutation."""
    return node.op == "Transpose" and not node.domain and tuple(node.attrs.get("perm", ())) == perm


def _images(layout: Layout, tensors: Sequence[gs.Tensor]) -> tuple[gs.Tensor, ...] | None:
    """The variables among images; None where one is no image, or none is a variable."""
    if not all(map(layout.is_image, tensors)):
        return None
    variables = {tensor.name: tensor for tensor in tensors if isinstance(tensor, gs.Variable)}
    return tuple(variables.values()) or None


def plan(layout: Layout, node: gs.Node) -> Turn | None:
    """The node in the layout; None if it has no such form."""
    domain = node.domain or ""
    if is_unary(node.op, domain, len(node.inputs)):
        return _elementwise(layout, node, node.inputs[:1])
    rule = None if domain else RULES.get(node.op)
    return rule(layout, node) if rule else None


# --- element by element ---


def _elementwise(layout: Layout, node: gs.Node, operands: Sequence[gs.Tensor]) -> Turn | None:
    if not layout.is_image(node.outputs[0]) or not all(_has_twin(layout, tensor) for tensor in operands):
        return None
    wide = [t for t in operands if isinstance(t, gs.Variable) and not _is_one(layout, t)]
    images = tuple({tensor.name: tensor for tensor in wide}.values())
    count = len(operands)

    def build(twin: Twin) -> list[gs.Tensor]:
        inputs = [*(_operand(layout, tensor, twin) for tensor in node.inputs[:count]), *node.inputs[count:]]
        if node.op == "Relu" and layout.last:
            return [_relu(layout.editor, inputs[0])]
        return [layout.editor.op(node.op, inputs, dict(node.attrs), domain=node.domain or "")]

    return Turn(images, build) if images else None


def _relu(editor: Editor, x: gs.Tensor) -> gs.Tensor:
    """Relu -> Max with 0.

    Of a NhwcConv and a Relu behind it ONNX Runtime makes a NhwcFusedConv (its ConvActivationFusion), which no
    provider has a kernel for.
    """
    return editor.op("Max", [x, editor.constant(np.zeros((), editor.dtype(x) or np.float32), "zero")])


def _is_one(layout: Layout, tensor: gs.Tensor) -> bool:
    shape = layout.editor.shape(tensor)
    return shape is not None and all(size == 1 for size in shape)


def _has_twin(layout: Layout, tensor: gs.Tensor) -> bool:
    """Whether an operand has a twin; lower ranks broadcast from the right, so only constants among them have."""
    shape = layout.editor.shape(tensor)
    if shape is None or len(shape) > RANK:
        return False
    return len(shape) == RANK or _is_one(layout, tensor) or isinstance(tensor, gs.Constant)


def _operand(layout: Layout, tensor: gs.Tensor, twin: Twin) -> gs.Tensor:
    if _is_one(layout, tensor):
        return tensor
    if isinstance(tensor, gs.Constant) and len(tensor.shape) < RANK:
        return _widened(layout, tensor)
    return twin(tensor)


def _widened(layout: Layout, tensor: gs.Constant) -> gs.Constant:
    """The twin of a constant of fewer axes, as few as it can have."""
    four = [1] * (RANK - len(tensor.shape)) + list(tensor.shape)
    turned = [four[axis] for axis in layout.to]
    weight = Transposed(Reshaped(as_weight(tensor._values), four), layout.to)
    while turned[0] == 1:
        turned.pop(0)
    return layout.editor.constant(Reshaped(weight, turned), tensor.name)


def _broadcast(layout: Layout, node: gs.Node) -> Turn | None:
    return _elementwise(layout, node, node.inputs)


# --- axes by number ---


def _one_axis(layout: Layout, node: gs.Node) -> Turn | None:
    """Softmax and its like, Concat, Split."""
    inputs = node.inputs if node.op == "Concat" else node.inputs[:1]
    images = _images(layout, inputs)
    if images is None or not all(map(layout.is_image, node.outputs)):
        return None
    attrs = {**node.attrs, "axis": layout.axis(node.attrs.get("axis", 0 if node.op == "Split" else -1))}
    count = len(node.outputs)

    def build(twin: Twin) -> Sequence[gs.Tensor]:
        read = [*map(twin, inputs), *node.inputs[len(inputs) :]]
        return list(layout.editor.node(node.op, read, attrs, outputs=count).outputs)

    return Turn(images, build)


def _ints(layout: Layout, tensor: gs.Tensor) -> list[int] | None:
    dims = layout.editor.dims(tensor)
    return None if dims is None or not all(isinstance(d, int) for d in dims) else [int(d) for d in dims]  # type: ignore[arg-type]


def _reduce(layout: Layout, node: gs.Node) -> Turn | None:
    images = _images(layout, node.inputs[:1])
    given = len(node.inputs) > 1 and bool(node.inputs[1].name)
    axes = _ints(layout, node.inputs[1]) if given else None
    if images is None or axes is None:
        return None
    return _reduced(layout, node, images, [layout.axis(a) for a in axes], axes, as_input=True)


def _arg(layout: Layout, node: gs.Node) -> Turn | None:
    images, axis = _images(layout, node.inputs[:1]), node.attrs.get("axis", 0)
    return _reduced(layout, node, images, [layout.axis(axis)], [axis], as_input=False) if images else None


def _reduced(
    layout: Layout, node: gs.Node, images: tuple[gs.Tensor, ...], turned: list[int], axes: list[int], *, as_input: bool
) -> Turn | None:
    """Without their axes the others may still stand in one order in both layouts."""
    kept = bool(node.attrs.get("keepdims", 1))
    left = [axis for axis in layout.to if axis not in {a % RANK for a in axes}]
    if not kept and left != sorted(left):
        return None

    def build(twin: Twin) -> list[gs.Tensor]:
        if as_input:
            return [layout.editor.op(node.op, [twin(images[0]), layout.editor.ints(turned)], dict(node.attrs))]
        return [layout.editor.op(node.op, [twin(images[0])], {**node.attrs, "axis": turned[0]})]

    return Turn(images, build, turned=kept)


def _global_pool(layout: Layout, node: gs.Node) -> Turn | None:
    """Over height and width: a reduction by another name."""
    images = _images(layout, node.inputs)
    if images is None:
        return None
    op = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}[node.op]
    axes = layout.editor.ints([layout.axis(2), layout.axis(3)])
    return Turn(images, lambda twin: [layout.editor.op(op, [twin(images[0]), axes], {"keepdims": 1})])


def _slice(layout: Layout, node: gs.Node) -> Turn | None:
    images = _images(layout, node.inputs[:1])
    if images is None or len(node.inputs) < 3:
        return None
    axes = _ints(layout, node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3].name else None
    count = (layout.editor.shape(node.inputs[1]) or (None,))[0]
    if axes is None and len(node.inputs) > 3 and node.inputs[3].name:
        return None
    if axes is None and not isinstance(count, int):
        return None
    places = [layout.axis(a) for a in (range(int(count)) if axes is None else axes)]  # type: ignore[arg-type]

    def build(twin: Twin) -> list[gs.Tensor]:
        read = [twin(images[0]), *node.inputs[1:3], layout.editor.ints(places), *node.inputs[4:]]
        return [layout.editor.op("Slice", read)]

    return Turn(images, build)


def _pad(layout: Layout, node: gs.Node) -> Turn | None:
    images, pads = _images(layout, node.inputs[:1]), _ints(layout, node.inputs[1])
    if images is None or len(node.inputs) > 3 or pads is None or len(pads) != 2 * RANK:
        return None
    permuted = [pads[start + axis] for start in (0, RANK) for axis in layout.to]

    def build(twin: Twin) -> list[gs.Tensor]:
        read = [twin(images[0]), layout.editor.ints(permuted), *node.inputs[2:]]
        return [layout.editor.op("Pad", read, dict(node.attrs))]

    return Turn(images, build)


def _resize(layout: Layout, node: gs.Node) -> Turn | None:
    """Scales and sizes move with their axes.

    To channels-last only where no neighbours are weighed: ORT's linear and cubic kernels take the last two axes for
    height and width (onnxruntime/core/providers/cuda/tensor/resize_impl.cu).
    """
    cropping = node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    weighing = layout.last and node.attrs.get("mode", "nearest") != "nearest"
    images = _images(layout, node.inputs[:1])
    if weighing or cropping or "axes" in node.attrs or images is None:
        return None
    scales = array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2].name else None
    by_scales = scales is not None and scales.size == RANK
    if not by_scales and not (len(node.inputs) == RANK and node.inputs[3].name):
        return None

    def build(twin: Twin) -> list[gs.Tensor]:
        editor, empty = layout.editor, gs.Variable.empty()
        if by_scales:
            permuted = editor.constant(np.asarray(scales)[list(layout.to)], "scales")
            return [editor.op("Resize", [twin(images[0]), empty, permuted], dict(node.attrs))]
        # All four sizes: ORT's transpose optimizer does not know Resize's ``axes``.
        sizes = editor.op("Gather", [node.inputs[3], editor.ints(layout.to)], {"axis": 0})
        return [editor.op("Resize", [twin(images[0]), empty, empty, sizes], dict(node.attrs))]

    return Turn(images, build)


def _shape(layout: Layout, node: gs.Node) -> Turn | None:
    """Sizes are read off the twin, and put in order."""
    images = _images(layout, node.inputs)
    axes = list(range(RANK))[node.attrs.get("start", 0) : node.attrs.get("end", RANK)]
    order = layout.editor.ints([layout.axis(axis) for axis in axes])

    def build(twin: Twin) -> list[gs.Tensor]:
        sizes = layout.editor.op("Shape", [twin(node.inputs[0])])
        return [layout.editor.op("Gather", [sizes, order], {"axis": 0})]

    return Turn(images, build, turned=False, gain=-1) if images else None


def _transpose(layout: Layout, node: gs.Node) -> Turn | None:
    """Another Transpose reads whichever of both is there."""
    images, perm = _images(layout, node.inputs), tuple(node.attrs.get("perm", (3, 2, 1, 0)))
    if images is None or perm in (layout.to, layout.back):
        return None
    attrs = {"perm": [layout.axis(axis) for axis in perm]}
    return Turn(images, lambda twin: [layout.editor.op("Transpose", [twin(images[0])], attrs)], turned=False)


def _space(layout: Layout, node: gs.Node) -> Turn | None:
    """DepthToSpace and SpaceToDepth: views and one Transpose, as their kernels are inside."""
    images, block = _images(layout, node.inputs), node.attrs["blocksize"]
    channels = (layout.editor.shape(node.inputs[0]) or (None, None))[1]
    if images is None or not layout.last or not isinstance(channels, int):
        return None
    build = _depth_to_space if node.op == "DepthToSpace" else _space_to_depth
    return Turn(images, lambda twin: [build(layout.editor, twin(images[0]), node, block, channels)], gain=-1)


def _sizes(editor: Editor, x: gs.Tensor, block: int, rest: list[int], *, divided: bool = False) -> gs.Tensor:
    """[-1, height, width, rest] of an image with both made ``block`` times as large, or small."""
    plane = editor.op("Shape", [x], {"start": 1, "end": 3})
    scaled = editor.op("Div" if divided else "Mul", [plane, editor.ints([block])])
    return editor.op("Concat", [editor.ints([-1]), scaled, editor.ints(rest)], {"axis": 0})


def _depth_to_space(editor: Editor, x: gs.Tensor, node: gs.Node, block: int, channels: int) -> gs.Tensor:
    depth = channels // block**2
    crd = node.attrs.get("mode", "DCR") == "CRD"
    parts = editor.ints([0, 0, 0, *((depth, block, block) if crd else (block, block, depth))])
    apart = editor.op("Reshape", [x, parts])
    perm = [0, 1, 4, 2, 5, 3] if crd else [0, 1, 3, 2, 4, 5]
    return editor.op("Reshape", [editor.op("Transpose", [apart], {"perm": perm}), _sizes(editor, x, block, [depth])])


def _space_to_depth(editor: Editor, x: gs.Tensor, node: gs.Node, block: int, channels: int) -> gs.Tensor:
    plane = editor.op("Div", [editor.op("Shape", [x], {"start": 1, "end": 3}), editor.ints([block])])
    height, width = editor.node("Split", [plane], {"axis": 0, "num_outputs": 2}, outputs=2).outputs
    by = editor.ints([block])
    parts = editor.op("Concat", [editor.ints([-1]), height, by, width, by, editor.ints([channels])], {"axis": 0})
    apart = editor.op("Transpose", [editor.op("Reshape", [x, parts])], {"perm": [0, 1, 3, 2, 4, 5]})
    return editor.op("Reshape", [apart, editor.ints([0, 0, 0, channels * block**2])])


Rule = Callable[[Layout, gs.Node], "Turn | None"]
_REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
               "ReduceProd", "ReduceSum", "ReduceSumSquare")  # fmt: skip
RULES: dict[str, Any] = {
    **dict.fromkeys(BROADCAST, _broadcast),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg),
    **dict.fromkeys(("Concat", "Split", "Softmax", "LogSoftmax", "Hardmax", "LpNormalization"), _one_axis),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _global_pool),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _space),
    "Pad": _pad,
    "Resize": _resize,
    "Shape": _shape,
    "Slice": _slice,
    "Transpose": _transpose,
}
