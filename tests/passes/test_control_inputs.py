"""What a control adds moves to the skip connection of its block, where nothing but the next sum reads the block's."""

from __future__ import annotations

import pytest
from support.small_graphs import check_step, edit

from sdort.passes import control_inputs
from sdort.rewrite.editor import Editor

MID, DOWN = "mid_block_additional_residual", "down_block_additional_residuals.0"
SIZES = {"B": 2, "H": 3, "W": 5}


def text(body: str, outputs: str = "float[] y") -> str:
    images = ", ".join(f"float[B, 4, H, W] {name}" for name in "xzr")
    return f"g ({images}) => ({outputs}) {{ {body} }}"


def named(body: str, residual: str, **more: str) -> Editor:
    """The graph with its input ``r`` under a control's name, which ONNX's text syntax does not know."""
    editor = edit(text(body, **more))
    editor.graph.inputs[2].name = residual
    editor.refresh()
    return editor


def sums(editor: Editor) -> list[list[str]]:
    """Of each sum the operators, or inputs, that it adds up."""
    return [
        [tensor.inputs[0].op if tensor.inputs else tensor.name for tensor in node.inputs]
        for node in editor.graph.nodes
        if node.op == "Add"
    ]


BLOCK = "s = Sqrt (x)  b = Exp (s)  t = Add ({0})  u = Add ({1})  y = Neg (u)"


@pytest.mark.parametrize("residual", [MID, DOWN, "down_intrablock_additional_residuals.1"])
@pytest.mark.parametrize("order", ["s, b", "b, s"])
@pytest.mark.parametrize("last", ["t, r", "r, t"])
def test_it_is_added_to_the_skip_connection(residual: str, order: str, last: str) -> None:
    editor = named(BLOCK.format(order, last), residual)
    assert control_inputs.run(editor) == 1
    steered, whole = sums(editor)
    assert steered == ["Sqrt", residual]
    assert whole == [{"s": "Add", "b": "Exp"}[name] for name in order.split(", ")]
    assert control_inputs.run(editor) == 0


def test_of_two_branches_the_second_is_steered() -> None:
    editor = named("b = Exp (x)  c = Sqrt (z)  t = Add (b, c)  u = Add (t, r)  y = Neg (u)", MID)
    assert control_inputs.run(editor) == 1
    assert sums(editor) == [["Sqrt", MID], ["Exp", "Add"]]


STAYING = {
    "no control": (BLOCK.format("s, b", "t, r"), "residual", {}),
    "another operator": (BLOCK.format("s, b", "t, r").replace("u = Add", "u = Sub"), MID, {}),
    "a product before it": (BLOCK.format("s, b", "t, r").replace("t = Add", "t = Mul"), MID, {}),
    "a sum that others read": (
        BLOCK.format("s, b", "t, r") + "  w = Relu (t)", MID, {"outputs": "float[] y, float[] w"}),
    "a sum that is an output": (BLOCK.format("s, b", "t, r"), MID, {"outputs": "float[] y, float[] t"}),
    "a sum that repeats a branch": (
        "s = Sqrt (x)  b = ReduceMax <keepdims = 1> (s)  t = Add (s, b)  u = Add (t, r)  y = Neg (u)", MID, {}),
    "another domain's": (BLOCK.format("s, b", "t, r").replace("u = Add", "u = com.microsoft.BiasGelu"), MID, {}),
    "an image that comes in": ("s = Sqrt (x)  u = Add (s, r)  y = Neg (u)", MID, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", STAYING)
def test_others_stay(name: str) -> None:
    body, residual, more = STAYING[name]
    editor = named(body, residual, **more)
    before = sums(editor)
    assert control_inputs.run(editor) == 0
    assert sums(editor) == before


def test_what_a_control_was_added_to_already_is_left() -> None:
    editor = edit("g (float[4] x, float[4] r, float[4] q) => (float[] y) { t = Add (x, r)  y = Add (t, q) }")
    for tensor, name in zip(editor.graph.inputs[1:], (MID, DOWN), strict=True):
        tensor.name = name
    editor.refresh()
    assert control_inputs.run(editor) == 0


def test_the_sum_is_the_same() -> None:
    def step(editor: Editor) -> None:
        name = editor.graph.inputs[2].name
        editor.graph.inputs[2].name = MID
        editor.refresh()
        assert control_inputs.run(editor) == 1
        editor.graph.inputs[2].name = name

    body = "s = Sigmoid (x)  b = Exp (s)  t = Add (s, b)  u = Add (t, r)  y = Neg (u)"
    assert check_step(text(body), step, SIZES, rtol=1e-6) == {"Add": 2, "Exp": 1, "Neg": 1, "Sigmoid": 1}
