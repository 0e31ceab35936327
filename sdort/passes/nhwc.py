"""Move regions of a graph to another layout: a convolutional trunk to channels-last, or what is so back to ONNX's own.

:mod:`sdort.passes.layout_rules` says what a node is in the other layout, :mod:`sdort.passes.layout_choice` which nodes
turn. A forward sweep then keeps, for every image of a region, its twin; a transpose to or from the layout is only a
change of name. What is left are the transposes at the regions' borders.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx_graphsurgeon as gs

from sdort.graph.domains import MICROSOFT
from sdort.graph.symbolic import Shape
from sdort.graph.weights import Transposed, as_weight, cast_values
from sdort.passes import layout_choice
from sdort.passes.layout_choice import choose
from sdort.passes.layout_rules import TO_FIRST, TO_LAST, Layout, Turn, Twin, is_turning, plan
from sdort.rewrite.editor import Editor
from sdort.rewrite.fusion import Support


def run(editor: Editor, support: Support) -> int:
    """Turn to channels-last what has a kernel there, and what lies between.

    Returns:
        The number of nodes that are channels-last now, and of transposes at the regions' borders.
    """
    layout = Layout(editor, TO_LAST)
    found = plans(layout, support)
    return turn(layout, found, choose(layout, found))


def to_first(editor: Editor) -> int:
    """Turn to channels-first, ONNX's own layout, what transposes lead there: as of a model that was channels-last.

    Returns:
        The number of nodes that are channels-first now, and of transposes at the regions' borders.
    """
    layout = Layout(editor, TO_FIRST)
    found = plans(layout, None)
    return turn(layout, found, choose(layout, found))


def plans(layout: Layout, support: Support | None) -> dict[int, Turn]:
    """The nodes that can turn, by their ``id``, and how; ``support`` is asked for channels-last kernels."""
    made: dict[int, Turn] = {}
    for node in list(layout.editor.graph.nodes):
        kernel = support is not None and node.op in ("Conv", "GroupNormalization") and not node.domain
        turning = _kernel(layout, node, support) if kernel and support is not None else plan(layout, node)
        if turning is not None:
            made[id(node)] = turning
    return made


def turn(layout: Layout, turns: Mapping[int, Turn], chosen: Collection[int]) -> int:
    """Turn the chosen nodes; returns the number of changes."""
    region = _Region(layout)
    for node in list(layout.editor.graph.nodes):
        if id(node) in chosen:
            region.convert(node, turns[id(node)])
        elif node.outputs:
            region.pass_on(node)
    region.leave()
    layout.editor.finish()
    return region.changes


class _Region:
    """The twins found so far."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.editor = layout, layout.editor
        self.twins: dict[str, gs.Tensor] = {}
        self.originals: dict[str, gs.Tensor] = {}
        self.renamed: dict[str, gs.Tensor] = {}
        """By the name of what a Transpose gave that is gone, what is read in its place."""
        self.changes = 0

    def twin(self, image: gs.Tensor) -> gs.Tensor:
        """The twin, made where it enters the region."""
        if isinstance(image, gs.Constant):
            return self.editor.constant(Transposed(as_weight(image._values), self.layout.to), image.name)
        image = self.renamed.get(image.name, image)
        if image.name not in self.twins:
            self._remember(image, self._turned(image, self.layout.to))
        return self.twins[image.name]

    def _turned(self, image: gs.Tensor, perm: tuple[int, ...]) -> gs.Tensor:
        if self.layout.is_pixel(image):  # channels-last is a view
            target = [0, -1, 1, 1] if perm == TO_FIRST else [0, 1, 1, -1]
            return self.editor.op("Reshape", [image, self.editor.ints(target)])
        return self.editor.op("Transpose", [image], {"perm": list(perm)})

    def _remember(self, image: gs.Tensor, twin: gs.Tensor) -> None:
        self.twins[image.name] = twin
        self.originals[image.name] = image
        self.editor.layouts[twin.name] = image.name

    def convert(self, node: gs.Node, turning: Turn) -> None:
        """The node's outputs are computed in the other layout from now on."""
        self.changes += 1
        made, outputs = turning.build(self.twin), list(node.outputs)
        node.inputs.clear()
        node.outputs.clear()
        for output, new in zip(outputs, made, strict=True):
            if turning.turned:
                self._remember(output, new)
            else:
                self._take_over(output, new)

    def _take_over(self, old: gs.Tensor, new: gs.Tensor) -> None:
        """Let what makes ``new``, which nobody reads yet, make ``old``."""
        (maker,) = new.inputs
        maker.outputs[maker.outputs.index(new)] = old
        self.editor.place(maker)

    def pass_on(self, node: gs.Node) -> None:
        """Transposes to and from the layout."""
        if is_turning(node, self.layout.to) and node.inputs[0].name in self.twins:
            self.changes += 1
            twin = self.renamed[node.outputs[0].name] = self.twins[node.inputs[0].name]
            self.editor.replace(node.outputs[0], twin)
            node.inputs.clear()
            node.outputs.clear()
        elif is_turning(node, self.layout.to):
            self._remember(node.inputs[0], node.outputs[0])
        elif is_turning(node, self.layout.back):
            self._remember(node.outputs[0], node.inputs[0])

    def leave(self) -> None:
        """Give readers outside the region their images back."""
        for name, image in self.originals.items():
            lost = isinstance(image, gs.Variable) and not image.inputs
            if lost and not any(image is i for i in self.editor.graph.inputs):
                self._restore(self.twins[name], image)
                self.changes += 1

    def _restore(self, twin: gs.Tensor, image: gs.Tensor) -> None:
        if self.layout.is_pixel(image):
            target = [0, -1, 1, 1] if self.layout.last else [0, 1, 1, -1]
            self.editor.node("Reshape", [twin, self.editor.ints(target)], outputs=[image])
        else:
            self.editor.node("Transpose", [twin], {"perm": list(self.layout.back)}, outputs=[image])


# --- kernels ---


def _kernel(layout: Layout, node: gs.Node, support: Support) -> Turn | None:
    """Conv -> NhwcConv (weights OHWI), GroupNormalization -> GroupNorm, if the target has the kernel."""
    if not layout.is_image(node.inputs[0]) or isinstance(node.inputs[0], gs.Constant):
        return None
    if node.op == "Conv":
        return _convolution(layout, node, support) if _can_turn(node) else None
    return _norm(layout, node, support) if _fixed_channels(layout, node) else None


def _can_turn(conv: gs.Node) -> bool:
    """Whether the filters can be turned, and how far the image is padded is no question of its size."""
    return isinstance(conv.inputs[1], gs.Constant) and conv.attrs.get("auto_pad", "NOTSET") == "NOTSET"


def _convolution(layout: Layout, node: gs.Node, support: Support) -> Turn | None:
    editor, (x, filters, *bias) = layout.editor, list(node.inputs)
    # ORT infers shapes from this attribute: from the weights it would take the wrong axes.
    attrs = {**node.attrs, "kernel_shape": [int(d) for d in filters.shape[2:]]}

    def build(twin: Twin) -> list[gs.Tensor]:
        kernel = editor.constant(Transposed(as_weight(filters._values), TO_LAST), filters.name)
        return [editor.op("NhwcConv", [twin(x), kernel, *bias], attrs, domain=MICROSOFT)]

    # Depthwise filters have channels-first kernels of their own, and of one pixel nothing is turned.
    gain = 0 if node.attrs.get("group", 1) > 1 or layout.is_pixel(x) else layout_choice.CONVOLUTION
    return None if _refusal(layout, x, build, support) else Turn((x,), build, gain=gain)


def _norm(layout: Layout, node: gs.Node, support: Support) -> Turn:
    """A GroupNorm of a form that the kernel refuses is decomposed later: in the midst of a region, where it is."""
    editor, (x, *weights) = layout.editor, list(node.inputs)
    attrs = {"groups": node.attrs["num_groups"], "epsilon": node.attrs.get("epsilon", 1e-5)}
    attrs |= {"activation": 0, "channels_last": 1}

    def build(twin: Twin) -> list[gs.Tensor]:
        single = [_float32(editor, tensor) for tensor in weights]
        return [editor.op("GroupNorm", [twin(x), *single], attrs, domain=MICROSOFT)]

    refused = _refusal(layout, x, build, support)
    return Turn((x,), build, gain=layout_choice.DECOMPOSED_NORM if refused else layout_choice.NORM)


def _refusal(layout: Layout, x: gs.Tensor, build: object, support: Support) -> str | None:
    """Why the target does not run what is made of an image; nothing stays of the try."""
    editor, count = layout.editor, len(layout.editor.graph.nodes)
    probe = editor.op("Transpose", [x], {"perm": list(TO_LAST)})
    (made,) = build(lambda image: probe)  # type: ignore[operator]
    reason = support.unsupported(made.inputs[0], editor)
    for node in reversed(editor.graph.nodes[count:]):
        node.inputs.clear()
        node.outputs.clear()
    del editor.graph.nodes[count:]
    return reason


def _fixed_channels(layout: Layout, norm: gs.Node) -> bool:
    """Whether the image has as many channels as gamma and beta, and a number of them: its kernel asks for both."""
    shapes: list[Shape] = [layout.editor.shape(tensor) or () for tensor in norm.inputs]
    image, *weights = shapes
    return isinstance(image[1], int) and all(shape == image[1:2] for shape in weights)


def _float32(editor: Editor, tensor: gs.Tensor) -> gs.Tensor:
    """ORT's kernels read gamma and beta as fp32 whatever the image is."""
    dtype = editor.dtype(tensor)
    if dtype is None or dtype == np.float32:  # not "in": numpy takes None for float64
        return tensor
    if isinstance(tensor, gs.Constant):
        return editor.constant(cast_values(tensor._values, np.float32), tensor.name)
    return editor.cast(tensor, np.dtype(np.float32)).outputs[0]
