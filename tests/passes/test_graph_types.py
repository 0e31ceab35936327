"""Types of a graph: what does not fit its operator in an opset, and what sdort does not compute in."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from support.small_graphs import edit

from sdort.errors import BadModelError
from sdort.passes import types
from sdort.rewrite.editor import Editor

INPUTS = """float16[2, 4] h, float16[2, 4] h2, float[2, 4] f, float[4] f4, double[2, 4] d, int64[2, 4] i, int32[2, 4] j,
uint8[2, 4] u, bool[2, 4] b, float16[1, 2, 2, 4] image, float16[1, 2, 8] rows, float[4] g, float16[4] g16, float[8] w,
float16[24] w16"""
NORM = "<groups = 2, activation = 0>"


def built(body: str) -> Editor:
    """The graph of a body that other inputs may be given to than its operators take; its output is of any type."""
    editor = edit(f"g ({INPUTS}) => (float[] y) {{ {body} }}")
    editor.graph.outputs[0].dtype = None
    return editor


FITS = {
    "floats of one type": "y = Add (h, h2)",
    "as many as there are": "y = Concat <axis = 0> (h, h2, h)",
    "an input that is left out": "y = Clip (h, , h2)",
    "types of their own": "y = Where (b, f, f)",
    "integers beside floats": "y = Gather (f, i)",
    "weights in single": f"y = com.microsoft.GroupNorm {NORM} (image, g, g)",
    "a second image": f"y = com.microsoft.SkipGroupNorm {NORM} (image, g, g, image)",
    "a bias of the image's type": f"y = com.microsoft.SkipGroupNorm {NORM} (image, g, g, image, g16)",
    "an attention with lengths": "y = com.microsoft.MultiHeadAttention <num_heads = 2> (rows, rows, rows, w16, j)",
}
TOLD: dict[str, tuple[str, str]] = {
    "the second": ("y = Sub (h, f)", "input 1 of this Sub ('f') is float32, another is float16"),
    "the first is the measure": ("y = Sub (f, h)", "input 1 of this Sub ('h') is float16, another is float32"),
    "the third of several": ("y = Max (h, h2, f)", "input 2 of this Max ('f') is float32, another is float16"),
    "the fourth of several": ("y = Sum (d, d, d, f)", "input 3 of this Sum ('f') is float32, another is float64"),
    "behind one that is left out": ("y = Clip (h, , f4)", "input 2 of this Clip ('f4') is float32, another is float16"),
    "one of a choice": ("y = Where (b, i, j)", "input 2 of this Where ('j') is int32, another is int64"),
    "a condition": ("y = Where (u, f, f)", "input 0 of this Where ('u') is uint8, which it does not take"),
    "the second, alone": ("y = Gather (f, h)", "input 1 of this Gather ('h') is float16, which it does not take"),
    "one of several, alone": ("y = Max (b, b)", "input 0 of this Max ('b') is bool, which it does not take"),
    "floats of two types": (
        "y = com.microsoft.BiasGelu (h, g)", "input 1 of this BiasGelu ('g') is float32, not float16",
    ),
    "weights in half": (
        f"y = com.microsoft.GroupNorm {NORM} (image, g, g16)",
        "input 2 of this GroupNorm ('g16') is float16, not float32",
    ),
    "weights in half in front": (
        f"y = com.microsoft.GroupNorm {NORM} (image, g16, g)",
        "input 1 of this GroupNorm ('g16') is float16, not float32",
    ),
    "a bias in single": (
        f"y = com.microsoft.SkipGroupNorm {NORM} (image, g, g, image, g)",
        "input 4 of this SkipGroupNorm ('g') is float32, not float16",
    ),
    "behind what is left out": (
        "y = com.microsoft.MultiHeadAttention <num_heads = 2> (rows, , , w)",
        "input 3 of this MultiHeadAttention ('w') is float32, not float16",
    ),
}  # fmt: skip


@pytest.mark.parametrize("body", FITS.values(), ids=FITS)
def test_types_that_fit_are_taken(body: str) -> None:
    editor = built(body)
    types.check(editor, 23, "advice")
    editor.graph.outputs[0].dtype = editor.dtype(editor.graph.outputs[0])
    types.check(editor, 23, "advice")


@pytest.mark.parametrize("case", TOLD.values(), ids=TOLD)
def test_the_input_that_does_not_fit_is_named_with_its_type(case: tuple[str, str]) -> None:
    body, message = case
    with pytest.raises(BadModelError) as caught:
        types.check(built(f"{body.replace('y =', 'a =')}  y = Identity (f)"), 23, "advice")
    assert message in str(caught.value)
    assert (caught.value.component, caught.value.hint) == ("test", "advice")
    assert caught.value.node == f"{message.split(' this ')[1].split(' ')[0]}.0"


@pytest.mark.parametrize(
    ("declared", "said"), [(np.float32, "float32"), (np.int64, "int64"), (np.float16, ""), (None, "")]
)
def test_a_declared_type_is_the_computed_one(declared: type | None, said: str) -> None:
    editor = built("y = Neg (h)")
    editor.graph.outputs[0].dtype = declared
    if not said:
        types.check(editor, 23, "advice")
        return
    with pytest.raises(BadModelError, match=f"output 'y' is declared {said} and computed as float16") as caught:
        types.check(editor, 23, "advice")
    assert (caught.value.component, caught.value.node, caught.value.hint) == ("test", "y", "advice")


def test_of_types_that_are_not_known_nothing_is_said() -> None:
    editor = built("a = Add (h, h2)  c = com.microsoft.BiasGelu (h, g16)  y = Max (a, h)")
    for node in editor.graph.nodes:
        node.inputs[1 if node.op == "Max" else 0] = gs.Variable("who_knows")
    types.check(editor, 23, "advice")


UNTAKEN: dict[str, tuple[str, int, str | None]] = {
    "a type that came later": ("y = Add (u, u)", 13, "input 0 of this Add ('u') is uint8, which it does not take"),
    "a type that came": ("y = Add (u, u)", 14, None),
    "the second input": ("y = Pow (f, b)", 23, "input 1 of this Pow ('b') is bool, which it does not take"),
    "a result that came later": (
        "y = Cast <to = 16> (h)", 9, "output 0 of this Cast ('y') is bfloat16, which it does not give",
    ),
    "a result that came": ("y = Cast <to = 16> (h)", 13, None),
    "a second result": ("y, where = TopK (f, one)", 23, None),
    "an operator that came later": ("y = Gelu (f)", 18, None),
    "an operator that came": ("y = Gelu (i)", 20, "input 0 of this Gelu ('i') is int64, which it does not take"),
    "types that do not go together": ("y = Add (h, f)", 23, None),
}  # fmt: skip


@pytest.mark.parametrize("case", UNTAKEN.values(), ids=UNTAKEN)
def test_what_an_operator_takes_is_asked_of_its_opset(case: tuple[str, int, str | None]) -> None:
    body, opset, wanted = case
    weights = {"one": np.array([1])} if "one)" in body else {}
    editor = edit(f"g ({INPUTS}) => (float[] y) {{ {body} }}", weights)
    (node,) = editor.graph.nodes
    assert types.untaken(node, editor, opset) == wanted


QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "QLinearConv",
             "QLinearMatMul", "QLinearAdd", "QGemm", "QAttention", "QMoE", "MatMulInteger", "ConvInteger",
             "MatMulIntegerToFloat", "MatMulNBits", "MatMulBnb4", "MatMulFpQ4")  # fmt: skip
PLAIN = ("MatMul", "QuickGelu", "FusedMatMul", "SequenceAt", "Equal", "Unique", "Conv", "Gemm")


@pytest.mark.parametrize("op", [*QUANTIZED, *PLAIN])
def test_operators_of_quantized_numbers_are_refused(op: str) -> None:
    editor = built("a = Neg (f)  y = Abs (a)")
    editor.dtype(editor.graph.outputs[0])
    node = editor.graph.nodes[1]
    node.op = op
    if op in PLAIN:
        types.refuse_types(editor)
        return
    with pytest.raises(BadModelError, match=f"this {op} computes in a quantized form") as caught:
        types.refuse_types(editor)
    assert (caught.value.component, caught.value.node) == ("test", "Abs.1")
    assert caught.value.hint == "Optimize the model that this one was quantized from."


@pytest.mark.parametrize(
    ("body", "node"),
    [
        ("a = Neg (f)  c = Cast <to = 16> (a)  y = Shape (c)", "Cast.1"),
        ("s = Shape (k)  y = Neg (s)", "Shape.0"),
        ("a = Neg (f)  y = Where (b, a, a)", ""),
    ],
)
def test_the_first_node_with_bfloat16_on_either_side_is_refused(body: str, node: str) -> None:
    editor = edit(f"g ({INPUTS}, bfloat16[2] k) => (float[] y) {{ {body} }}")
    if not node:
        types.refuse_types(editor)
        return
    with pytest.raises(BadModelError, match=f"this {node[:-2]} computes in bfloat16") as caught:
        types.refuse_types(editor)
    assert (caught.value.component, caught.value.node) == ("test", node)
    assert "--bf16" in (caught.value.hint or "")
