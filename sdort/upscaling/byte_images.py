"""The ends of an upscaler's graph: it takes and gives the bytes of images, so that no float passes the host.

What the host would do with fp32 values the provider does, by the same operations: x / 255 before the network; behind
it the clamp to [0, 1], times 255, to nearest (half a level to the even one), and [height, width, channels].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_graphsurgeon as gs

from sdort.graph.model import Model
from sdort.graph.symbolic import Dim
from sdort.passes import upgrade
from sdort.rewrite.editor import Editor, producer

_LEVELS = 255.0
_SMALL = 2.0**-40
"""The factor of what is summed: no sum of as many finite values as fit into memory overflows. It is not 0, which a
compiler may multiply by without reading the other factor."""
_BYTES, _FLOATS = np.dtype(np.uint8), np.dtype(np.float32)
_ENDS = frozenset({"Cast", "Clip", "Identity", "Mul", "ReduceSum", "Round", "Transpose"})
"""Operators behind the network."""
_LAST, _FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


def use_bytes(model: Model) -> None:
    """Let a graph, in place, take and give uint8 in place of floats from 0 to 1.

    Its one input and its first output become uint8 [images, height, width, channels]. A second output, fp32 [images],
    is finite where all values of the network's result are: infinities and NaN stay what they are in a sum, which
    maxima and comparisons do not promise on every provider.

    Args:
        model: a graph of one input and one output, floats [images, channels, height, width].
    """
    editor = Editor(model)
    upgrade.run(editor)
    _take_bytes(editor)
    _give_bytes(editor)
    editor.finish()
    editor.refresh()


def _take_bytes(editor: Editor) -> None:
    (image,) = editor.graph.inputs
    pixels = gs.Variable(editor.name("pixels"), _BYTES, _moved(image.shape, _LAST))
    editor.graph.inputs = [pixels]
    editor.refresh()
    shares = editor.op("Div", [editor.cast(pixels, _FLOATS).outputs[0], _number(editor, _LEVELS)])
    if image.dtype != _FLOATS:
        shares = editor.cast(shares, np.dtype(image.dtype)).outputs[0]
    editor.node("Transpose", [shares], {"perm": _FIRST}, outputs=[image])


def _give_bytes(editor: Editor) -> None:
    (result,) = editor.graph.outputs
    shape = result.shape if result.shape and len(result.shape) == 4 else [None] * 4
    wide = result if editor.dtype(result) == _FLOATS else editor.cast(result, _FLOATS).outputs[0]
    small = editor.op("Mul", [wide, _number(editor, _SMALL)])
    finite = editor.op("ReduceSum", [small, editor.ints([1, 2, 3])], {"keepdims": 0}, hint="finite")
    shares = editor.op("Clip", [wide, _number(editor, 0), _number(editor, 1)])
    levels = editor.op("Round", [editor.op("Mul", [shares, _number(editor, _LEVELS)])])
    pixels = editor.op("Transpose", [editor.cast(levels, _BYTES).outputs[0]], {"perm": _LAST}, hint="pixels")
    pixels.dtype, pixels.shape = _BYTES, _moved(shape, _LAST)
    finite.dtype, finite.shape = _FLOATS, shape[:1]
    editor.graph.outputs = [pixels, finite]


def _number(editor: Editor, value: float) -> gs.Constant:
    return editor.constant(np.array(value, np.float32))


def _moved(shape: Sequence[Dim | None], order: Sequence[int]) -> list[Dim | None]:
    return [shape[axis] for axis in order]


def byte_ends(editor: Editor) -> set[str]:
    """Names of the nodes that :func:`use_bytes` added, wherever passes moved them: they stay in fp32, as fp16 has no
    255 levels below 1."""
    pixels, finite = editor.graph.outputs
    ends = *_behind(editor.graph.inputs[0]), *_before(pixels, "Clip"), *_before(finite, "Mul")
    return {node.name for node in ends}


def _behind(tensor: gs.Tensor) -> Iterator[gs.Node]:
    """The nodes from the bytes to the shares of 255."""
    for node in tensor.outputs:
        if node.op in ("Cast", "Transpose", "Div"):
            yield node
            yield from () if node.op == "Div" else _behind(node.outputs[0])


def _before(tensor: gs.Tensor, first: str) -> Iterator[gs.Node]:
    """The nodes from ``first``, which reads the network's result, to an output."""
    node = producer(tensor)
    while node is not None and node.op in _ENDS:
        yield node
        node = producer(node.inputs[0]) if node.op != first else None
