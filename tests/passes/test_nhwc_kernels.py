"""Kernels of images whose channels are last: which nodes have one, what it saves, and what a try leaves behind."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_graphsurgeon as gs
import pytest
from support.small_graphs import Described, edit

from sdort.graph.weights import Transposed, Weight
from sdort.passes import nhwc
from sdort.passes.layout_rules import TO_FIRST, TO_LAST, Layout
from sdort.rewrite.editor import Editor


class Kernels:
    """A target that lacks some operators, and keeps the nodes that it was asked for."""

    def __init__(self, *lacks: str) -> None:
        self.lacks = lacks
        self.asked: list[tuple[str, str, dict[str, Any], list[Any]]] = []

    def unsupported(self, node: gs.Node, editor: Editor) -> str | None:
        shapes = [editor.shape(tensor) for tensor in node.inputs]
        self.asked.append((node.op, node.domain or "", dict(node.attrs), shapes))
        return "no kernel" if node.op in self.lacks else None


WEIGHTS: dict[str, Weight] = {
    "w": Described([8, 4, 3, 5], np.float32), "each": Described([4, 1, 3, 3], np.float32),
    "thin": Described([8, 4, 3], np.float32), "point": Described([8, 4, 1, 1], np.float32),
    "g": Described([4], np.float32), "b": Described([8], np.float32), "g2": Described([2], np.float32),
    "g16": Described([4], np.float16), "x4": Described([2, 4, 6, 5], np.float32),
}  # fmt: skip
INPUTS = (
    "float[2, 4, 6, 5] x, float[2, 4, 1, 1] pixel, float[2, C, 6, 5] open, float[2, 4, 6] rows, float[8, 4, 3, 5] v"
)
INPUTS += ", float[4] s"


def built(body: str) -> Editor:
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    used = {name: weight for name, weight in WEIGHTS.items() if name in words}
    return edit(f"g ({INPUTS}) => (float[] y) {{ {body} }}", used)


GAINS: dict[str, tuple[str, str, int | None]] = {
    # the operator that the target lacks; what the node saves, None where it has no kernel
    "a convolution": ("Conv (x, w)", "", 14),
    "a convolution with a bias": ("Conv (x, w, b)", "", 14),
    "a convolution of one group": ("Conv <group = 1> (x, w)", "", 14),
    "a depthwise convolution": ("Conv <group = 4> (x, each)", "", 0),
    "a convolution of pixels": ("Conv (pixel, point)", "", 0),
    "a convolution without padding": ('Conv <auto_pad = "NOTSET"> (x, w)', "", 14),
    "a convolution whose padding hangs on the size": ('Conv <auto_pad = "SAME_UPPER"> (x, w)', "", None),
    "a convolution that needs no padding by name": ('Conv <auto_pad = "VALID"> (x, w)', "", None),
    "a convolution with computed weights": ("Conv (x, v)", "", None),
    "a convolution of a sequence": ("Conv (rows, thin)", "", None),
    "a convolution of a constant": ("Conv (x4, w)", "", None),
    "a convolution without a kernel": ("Conv (x, w)", "NhwcConv", None),
    "a convolution where norms have none": ("Conv (x, w)", "GroupNorm", 14),
    "a norm": ("GroupNormalization <num_groups = 2> (x, g, g)", "", 24),
    "a norm with computed scales": ("GroupNormalization <num_groups = 2> (x, s, s)", "", 24),
    "a norm without a kernel": ("GroupNormalization <num_groups = 2> (x, g, g)", "GroupNorm", -8),
    "a norm where convolutions have none": ("GroupNormalization <num_groups = 2> (x, g, g)", "NhwcConv", 24),
    "a norm of unknown channels": ("GroupNormalization <num_groups = 2> (open, g, g)", "", None),
    "a norm of a sequence": ("GroupNormalization <num_groups = 2> (rows, g, g)", "", None),
    "a norm of a constant": ("GroupNormalization <num_groups = 2> (x4, g, g)", "", None),
    "another domain's": ("com.microsoft.FusedConv (x, w)", "", None),
}


@pytest.mark.parametrize("case", GAINS.values(), ids=GAINS)
def test_what_a_kernel_saves_and_nothing_stays_of_the_try(case: tuple[str, str, int | None]) -> None:
    body, lacks, gain = case
    editor = built(f"y = {body}")
    (node,) = editor.graph.nodes
    support = Kernels(*([lacks] if lacks else []))
    readers = {tensor.name: list(tensor.outputs) for tensor in node.inputs}
    found = nhwc.plans(Layout(editor, TO_LAST), support)
    assert (found[id(node)].gain if found else None) == gain
    assert not found or found[id(node)].images == (node.inputs[0],)
    assert editor.graph.nodes == [node]
    assert {tensor.name: list(tensor.outputs) for tensor in node.inputs} == readers


def test_a_convolution_is_asked_for_as_it_would_be_made() -> None:
    editor = built("y = Conv <strides = [2, 1], pads = [1, 2, 1, 2]> (x, w, b)")
    support = Kernels()
    (turn,) = nhwc.plans(Layout(editor, TO_LAST), support).values()
    attrs = {"strides": [2, 1], "pads": [1, 2, 1, 2], "kernel_shape": [3, 5]}
    assert support.asked == [("NhwcConv", "com.microsoft", attrs, [(2, 6, 5, 4), (8, 3, 5, 4), (8,)])]
    (made,) = turn.build(lambda image: image)
    weight = made.inputs[0].inputs[1]._values
    assert isinstance(weight, Transposed)
    assert list(weight.leaves()) == [WEIGHTS["w"]]


@pytest.mark.parametrize(("stated", "epsilon"), [("", 1e-5), (", epsilon = 0.25", 0.25)])
def test_a_norm_is_asked_for_as_it_would_be_made(stated: str, epsilon: float) -> None:
    editor = built(f"y = GroupNormalization <num_groups = 2{stated}> (x, g, s)")
    support = Kernels()
    (turn,) = nhwc.plans(Layout(editor, TO_LAST), support).values()
    attrs = {"groups": 2, "epsilon": epsilon, "activation": 0, "channels_last": 1}
    assert support.asked == [("GroupNorm", "com.microsoft", attrs, [(2, 6, 5, 4), (4,), (4,)])]
    (made,) = turn.build(lambda image: image)
    assert [tensor.name for tensor in made.inputs[0].inputs] == ["x", "g", "s"]


@pytest.mark.parametrize("to", [TO_LAST, TO_FIRST])
def test_without_a_target_no_kernel_is_asked_for(to: Any) -> None:
    editor = built("c = Conv (x, w)  n = GroupNormalization <num_groups = 2> (x, g, g)  a = Neg (x)  y = Sum (a, a)")
    found = nhwc.plans(Layout(editor, to), None)
    assert [node.op for node in editor.graph.nodes if id(node) in found] == ["Neg", "Sum"]


@pytest.mark.parametrize(("image", "weights", "fixed"), [
    ("2, 4, 6, 5", "4", True), ("2, C, 6, 5", "4", False), ("2, 4, 6, 5", "2", False), ("2, 4, 6, 5", "C", False),
    ("2, 4, 6, 5", "4, 1", False), ("4, 6, 4, 4", "4", False),
])  # fmt: skip
def test_gamma_and_beta_have_a_number_for_each_channel(image: str, weights: str, fixed: bool) -> None:
    editor = edit(f"g (float[{image}] x, float[{weights}] s, float[4] t) => (float[] y) {{ y = Neg (x) }}")
    x, s, t = editor.graph.inputs
    for pair in ((s, t), (t, s)):
        norm = gs.Node("GroupNormalization", "n", {}, [x, *pair])
        assert nhwc._fixed_channels(Layout(editor, TO_LAST), norm) == fixed
        norm.inputs.clear()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_gamma_and_beta_are_single_whatever_they_were(dtype: Any) -> None:
    editor = edit("g (float16[4] h, float[4] f) => (float[] y) { y = Neg (f) }")
    h, f = editor.graph.inputs
    assert nhwc._float32(editor, f) is f
    cast = nhwc._float32(editor, h)
    assert (cast.inputs[0].op, cast.inputs[0].attrs["to"], cast.inputs[0].inputs[0]) == ("Cast", 1, h)
    single = editor.constant(np.ones(4, np.float32), "g")
    assert nhwc._float32(editor, single) is single
    constant = nhwc._float32(editor, editor.constant(np.array([1, 2, 3, 4], dtype), "g"))
    assert (constant.dtype, np.asarray(constant.values).tolist()) == (np.dtype(np.float32), [1, 2, 3, 4])
    unknown = gs.Variable("who_knows")
    assert nhwc._float32(editor, unknown) is unknown
