"""Folding: constants are computed or described, what does nothing is removed, all else is left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from support.rules import run_fold
from support.small_graphs import Array, Described, check_step, edit, operators, parse, to_proto

from sdort.graph.weights import Inline, Stored, Weight

W = np.random.default_rng(0).standard_normal((24, 32)).astype(np.float32)
"""3 KiB: large enough to be a described weight."""

DESCRIBED = {
    "Identity": ("v = Identity (w)", (24, 32)),
    "Transpose": ("v = Transpose <perm = [1, 0]> (w)", (32, 24)),
    "Transpose of all axes": ("v = Transpose (w)", (32, 24)),
    "Cast": ("v = Cast <to = 10> (w)", (24, 32)),
    "Reshape": ("v = Reshape (w, shape)", (4, 6, 32)),
    "Unsqueeze": ("v = Unsqueeze (w, axis)", (24, 1, 32)),
    "Squeeze": ("u = Unsqueeze (w, axis)  v = Squeeze (u, axis)", (24, 32)),
    "Flatten": ("v = Flatten <axis = 0> (w)", (1, 768)),
    "Concat": ("v = Concat <axis = -1> (w, w)", (24, 64)),
    "a chain": ("a = Transpose (w)  c = Cast <to = 10> (a)  v = Concat <axis = 0> (c, c)", (64, 24)),
}
SHAPES = "<int64[3] shape = {4, -1, 32}, int64[1] axis = {1}>"


@pytest.mark.parametrize("nodes", DESCRIBED.values(), ids=DESCRIBED)
def test_weights_are_described_not_loaded(nodes: tuple[str, tuple[int, ...]]) -> None:
    text = f"g () => (float[a, b] v) {SHAPES} {{ {nodes[0]} }}"
    editor = edit(text, {"w": Described([24, 32], np.float32)})
    run_fold(editor)
    assert operators(editor) == {"Identity": 1}
    constant = editor.graph.outputs[0].inputs[0].inputs[0]
    assert isinstance(constant._values, Weight)
    assert constant._values.shape == nodes[1]
    with pytest.raises(AssertionError, match="was loaded"):
        constant._values.load()


@pytest.mark.parametrize("nodes", DESCRIBED.values(), ids=DESCRIBED)
def test_described_weights_have_the_values_of_their_operators(nodes: tuple[str, tuple[int, ...]]) -> None:
    text = f"g () => (float[a, b] z) {SHAPES} {{ {nodes[0]}  z = Identity (v) }}"
    for name in ("float16", "float"):
        typed = text.replace("float[a, b] z", f"{name}[{', '.join(['d'] * len(nodes[1]))}] z")
        if ("Cast" in text) == (name == "float16"):
            assert check_step(typed, run_fold, weights={"w": W}) == {"Identity": 1}


@pytest.mark.parametrize(
    "operator", ["Mul (w, two)", "Neg (w)", "MatMul (w, w)", "Concat <axis = 0> (row, w)", "Sqrt (w)"]
)
def test_arithmetic_on_stored_weights_is_left(operator: str) -> None:
    text = f"g () => (float[a, b] v) <float two = {{2.0}}, float[1, 2] row = {{1.0, 2.0}}> {{ v = {operator} }}"
    for weight in (Described([2, 2], np.float32), Described([24, 2], np.float32)):
        editor = edit(text, {"w": weight})
        assert run_fold(editor) == 0


def test_weights_in_memory_are_computed() -> None:
    assert check_step("g () => (float[a, b] v) { v = Neg (w) }", run_fold, weights={"w": W}) == {"Identity": 1}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("curve", ["Exp", "Log", "Sin", "Cos", "Tan", "Tanh", "Sigmoid", "Pow"])
def test_curves_are_rounded_once(curve: str, dtype: Any) -> None:
    """numpy's own float32 is an ulp off in four of ten values of Exp."""
    values = (np.arange(1, 201) / 37).astype(dtype)
    power = ", third" if curve == "Pow" else ""
    name = {np.float32: "float", np.float16: "float16"}[dtype]
    editor = edit(f"g () => ({name}[n] v) {{ v = {curve} (values{power}) }}", {"values": values, "third": dtype(1 / 3)})
    run_fold(editor)
    wide, third = values.astype(np.float64), np.float64(dtype(1 / 3))
    exact = {"Sigmoid": 1 / (1 + np.exp(-wide)), "Pow": wide**third}
    wanted = exact[curve] if curve in exact else getattr(np, curve.lower())(wide)
    found = editor.graph.outputs[0].inputs[0].inputs[0].values
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, wanted.astype(dtype))


def test_weights_on_disk_are_not_read(tmp_path: Path) -> None:
    editor = edit("g () => (float[a, b] v) { v = Neg (w) }", {"w": Stored(tmp_path / "none", 0, [24, 32], np.float32)})
    assert run_fold(editor) == 0


CONSTANT = {
    "arithmetic": "y = Add (one, two)",
    "a chain": "a = Add (one, two)  b = Mul (a, a)  y = Sqrt (b)",
    "an absent input": "y = Clip (two, , one)",
    "filled": "a = ConstantOfShape (three)  y = Add (a, one)",
    "expanded": "y = Expand (one, three)",
    "a range": "r = Range (i, j, k)  y = Cast <to = 1> (r)",
    "a range of floats": "y = Range (one, seven, two)",
    "a size that data tells": "n = NonZero (three)  y = Cast <to = 1> (n)",
    "a Constant": "c = Constant <value_float = 2.5> ()  y = Add (c, one)",
}
VALUES = """<float one = {1.0}, float two = {2.0}, float seven = {7.0}, int64[1] three = {3},
int64 i = {2}, int64 j = {9}, int64 k = {3}>"""


@pytest.mark.parametrize("nodes", CONSTANT.values(), ids=CONSTANT)
def test_small_constants_are_computed(nodes: str) -> None:
    rank = "[m, n]" if "NonZero" in nodes else "[n]" if "Range" in nodes or "three" in nodes else ""
    assert check_step(f"g () => (float{rank} y) {VALUES} {{ {nodes} }}", run_fold) == {"Identity": 1}


LEFT = {
    "a large Expand": "g () => (float[n] y) <float one = {1.0}, int64[1] n = {100000}> { y = Expand (one, n) }",
    "a large fill": "g () => (float[n] y) <int64[1] n = {100000}> { y = ConstantOfShape (n) }",
    "a large range": "g () => (int64[n] y) <int64 o = {0}, int64 n = {100000}, int64 s = {1}> { y = Range (o, n, s) }",
    "an endless range": "g () => (float[n] y) <float o = {0.0}, float n = {9.0}> { y = Range (o, n, o) }",
    "a random number": "g () => (float[n] y) { y = RandomNormal <shape = [3]> () }",
    "random numbers of a shape": "g () => (float[n] y) <float[2] c = {0.5, 0.5}> { y = RandomUniformLike (c) }",
    "several outputs": "g () => (float[2] y, float[2] z) <float[4] c = {1.0, 2.0, 3.0, 4.0}> "
    "{ y, z = Split <axis = 0, num_outputs = 2> (c) }",
    "another domain": "g () => (float[1] y) <float[1] c = {1.0}> { y = com.microsoft.QuickGelu (c) }",
    "data": "g (float[2] x) => (float[2] y) { y = Neg (x) }",
}


@pytest.mark.parametrize("text", LEFT.values(), ids=LEFT)
def test_what_is_large_or_random_is_left(text: str) -> None:
    editor = edit(text)
    assert run_fold(editor) == 0


def test_what_reads_a_large_tensor_is_left() -> None:
    large: dict[str, Array | Weight] = {"w": np.ones([300, 300], np.float32)}
    assert run_fold(edit("g () => (float[a, b] v) { v = ReduceSum (w) }", large)) == 0


def test_operators_of_other_domains_are_not_evaluated() -> None:
    editor = edit("g () => (float y) <float c = {2.0}> { y = Identity (c) }")
    (identity,) = editor.graph.nodes
    identity.inputs[0] = editor.op("Neg", [identity.inputs[0]], domain="elsewhere")
    assert run_fold(editor) == 0


def test_a_broken_constant_is_left_to_the_runtime() -> None:
    editor = edit("g () => (float[2] y) <float[2] a = {1.0, 2.0}, float[3] b = {1.0, 2.0, 3.0}> { y = Sub (a, b) }")
    assert run_fold(editor) == 0


SHAPE_CHAIN = """
g (float[{b}, 320, {h}, {w}] x) => (float[n, m, c] y)
<int64 zero = {{0}}, int64 two = {{2}}, int64 three = {{3}}, int64[1] at = {{0}}, int64[1] width = {{320}}> {{
    s = Shape (x)
    b = Gather (s, zero)
    h = Gather (s, two)
    w = Gather (s, three)
    hw = Mul (h, w)
    b1 = Unsqueeze (b, at)
    hw1 = Unsqueeze (hw, at)
    t = Concat <axis = 0> (b1, hw1, width)
    p = Transpose <perm = [0, 2, 3, 1]> (x)
    y = Reshape (p, t)
}}"""


def test_shape_arithmetic_of_known_sizes_becomes_a_constant() -> None:
    assert check_step(SHAPE_CHAIN.format(b=2, h=3, w=5), run_fold) == {"Reshape": 1, "Transpose": 1}


def test_shape_arithmetic_of_named_sizes_stays() -> None:
    left = check_step(SHAPE_CHAIN.format(b="B", h="H", w=5), run_fold, {"B": 2, "H": 3})
    assert left["Shape"] == 1
    assert left["Gather"] == 2  # the width is known


NOTHING = {
    "Identity": "Identity (x)",
    "Dropout": "Dropout (x)",
    "Dropout that says it is not training": "Dropout (x, zero, false)",
    "Concat of one": "Concat <axis = 0> (x)",
    "Cast to its own type": "Cast <to = 1> (x)",
    "Reshape to its own shape": "Reshape (x, shape)",
    "Expand to its own shape": "Expand (x, shape)",
    "Expand to less": "Expand (x, four)",
    "Flatten of a matrix": "Flatten (x)",
    "Slice of everything": "Slice (x, zeros, shape)",
    "Slice of everything in steps of 1": "Slice (x, zeros, shape, axes, ones)",
    "Transpose to the same order": "Transpose <perm = [0, 1]> (x)",
    "Add 0": "Add (x, zero)",
    "Add to 0": "Add (zero, x)",
    "Sub 0": "Sub (x, zero)",
    "Mul by 1": "Mul (x, one)",
    "Mul of 1": "Mul (one, x)",
    "Div by 1": "Div (x, one)",
}
SOMETHING = {
    "Cast": ("Cast <to = 10> (x)", "float16[2, 4]"),
    "Reshape": ("Reshape (x, turned)", "float[4, 2]"),
    "Slice backwards": ("Slice (x, last, low, axis1, minus)", "float[2, 4]"),
    "Slice of a part": ("Slice (x, zeros, part)", "float[2, 3]"),
    "Transpose": ("Transpose (x)", "float[4, 2]"),
    "0 - x": ("Sub (zero, x)", "float[2, 4]"),
    "1 / x": ("Div (one, x)", "float[2, 4]"),
    "Add 1": ("Add (x, one)", "float[2, 4]"),
    "Mul by 0": ("Mul (x, zero)", "float[2, 4]"),
    "Add 0 of a larger shape": ("Add (x, many)", "float[3, 2, 4]"),
    "Mul by 1 of a larger shape": ("Mul (x, wide)", "float[1, 2, 4]"),
    "Neg": ("Neg (x)", "float[2, 4]"),
    "Dropout in training": ("Dropout <seed = 1> (x, zero, true)", "float[2, 4]"),
}
CONSTANTS = """<int64[2] shape = {2, 4}, int64[1] four = {4}, int64[2] zeros = {0, 0}, int64[2] axes = {0, 1},
int64[2] ones = {1, 1}, int64[2] turned = {4, 2}, int64[2] part = {2, 3}, int64[1] last = {-1}, int64[1] low = {-9},
int64[1] axis1 = {1}, int64[1] minus = {-1}, bool true = {1}, bool false = {0},
float zero = {0.0}, float one = {1.0}, float[3, 1, 1] many = {0.0, 0.0, 0.0}, float[1, 1, 1] wide = {1.0}>"""


@pytest.mark.parametrize("node", NOTHING.values(), ids=NOTHING)
def test_what_does_nothing_is_removed(node: str) -> None:
    text = f"g (float[2, 4] w) => (float[2, 4] y) {CONSTANTS} {{ x = Neg (w)  b = {node}  y = Neg (b) }}"
    assert check_step(text, run_fold) == {"Neg": 2}


@pytest.mark.parametrize("node", SOMETHING.values(), ids=SOMETHING)
def test_what_does_something_stays(node: tuple[str, str]) -> None:
    text = f"g (float[2, 4] x) => ({node[1]} y) {CONSTANTS} {{ y = {node[0]} }}"
    assert check_step(text, run_fold, constant=node[0] == "Mul (x, zero)") == {node[0].split()[0]: 1}


def test_outputs_keep_their_names() -> None:
    text = "g (float[2, 4] x) => (float[2, 4] y, float[2, 4] z) { a = Neg (x)  y = Dropout (a)  z = Identity (x) }"
    assert check_step(text, run_fold) == {"Identity": 2, "Neg": 1}


def test_folding_ends() -> None:
    outputs = "float[2] y, float z, float[2] w"
    editor = edit(
        f"g (float[2] x) => ({outputs}) <float c = {{2.0}}> {{ y = Identity (x)  z = Neg (c)  w = Dropout (x) }}"
    )
    assert run_fold(editor) == 2
    assert run_fold(editor) == 0


ZERO = {
    "ConstantOfShape": "z = ConstantOfShape (n)",
    "a value": "z = ConstantOfShape <value: tensor = float[1] {0.0}> (n)",
    "times something": "a = ConstantOfShape (n)  z = Mul (a, x)",
    "expanded": "a = Expand (zero, n)  z = Reshape (a, n)",
}


@pytest.mark.parametrize("nodes", ZERO.values(), ids=ZERO)
def test_a_computed_zero_is_not_added(nodes: str) -> None:
    """What is left of baddbmm with beta = 0."""
    body = f"n = Shape (x)  {nodes}  p = Neg (x)  y = Add (z, p)"
    text = f"g (float[B, 4] x) => (float[B, 4] y) <float zero = {{0.0}}> {{ {body} }}"
    assert check_step(text, run_fold, {"B": 3}) == {"Identity": 1, "Neg": 1}


ADDED = "g (float[6, 20, 20] x) => (float[6, 20, 20] y) { p = Neg (x)  y = Add (p, w) }"


def test_a_constant_zero_of_the_scores_shape_is_not_added() -> None:
    zeros = np.zeros([6, 20, 20], np.float32)
    assert check_step(ADDED, run_fold, weights={"w": zeros}) == {"Identity": 1, "Neg": 1}
    zeros[-1, -1, -1] = 1e-6
    assert check_step(ADDED, run_fold, weights={"w": zeros}) == {"Add": 1, "Neg": 1}


@pytest.mark.parametrize("shape", [[20], [6, 1, 20], [20, 20]])
def test_a_bias_of_zeros_is_kept(shape: list[int]) -> None:
    assert check_step(ADDED, run_fold, weights={"w": np.zeros(shape, np.float32)}) == {"Add": 1, "Neg": 1}


@pytest.mark.parametrize(
    "nodes",
    [
        "z = Expand (one, n)",
        "a = ConstantOfShape (n)  z = Sqrt (a)",
        "z = ConstantOfShape <value: tensor = float[1] {1.0}> (n)",
        "a = ConstantOfShape (n)  z = Add (a, x)",
    ],
)
def test_what_may_not_be_zero_is_added(nodes: str) -> None:
    body = f"n = Shape (x)  {nodes}  p = Exp (x)  y = Add (z, p)"
    text = f"g (float[B, 4] x) => (float[B, 4] y) <float one = {{1.0}}> {{ {body} }}"
    assert "Add" in check_step(text, run_fold, {"B": 3})


def test_integer_sums_keep_their_type() -> None:
    weights: dict[str, Array | Weight] = {"zero": np.array([0], np.int64)}
    assert check_step("g (int64[B] x) => (int64[B] y) { y = Add (x, zero) }", run_fold, {"B": 3}, weights) == {"Add": 1}


# --- weights that are stored as integers ---

QUANTIZED = {
    "one scale": ("float", "s0", ""),
    "one scale and zero": ("float", "s0, z0", ""),
    "one scale in a vector": ("float", "s1", ""),
    "by column": ("float", "s4", ""),
    "by column and zero": ("float", "s4, z4", "axis = 1"),
    "by row": ("float", "s3", "axis = 0"),
    "by the last but one": ("float", "s3, z3", "axis = -2"),
    "in half precision": ("float16", "h4, z4", "axis = -1"),
}
NO_WEIGHTS = {
    "in blocks": ("float", "s32, z32", "axis = 1, block_size = 2"),
    "a scale that is computed": ("float", "given", ""),
}


def quantized() -> dict[str, Array | Weight]:
    rng = np.random.default_rng(0)
    scales = {f"s{n}": rng.uniform(0.1, 2, n).astype(np.float32) for n in (1, 3, 4)}
    zeros = {f"z{n}": rng.integers(-9, 9, n).astype(np.int8) for n in (3, 4)}
    more: dict[str, Array] = {"s0": np.array(0.3, np.float32), "z0": np.array(-5, np.int8)}
    more |= {"h4": scales["s4"].astype(np.float16), "s32": rng.uniform(1, 2, (3, 2)).astype(np.float32)}
    more |= {"z32": rng.integers(-9, 9, (3, 2)).astype(np.int8)}
    return {**scales, **zeros, **more, "w": rng.integers(-128, 128, (3, 4)).astype(np.int8)}


def dequantizing(kind: str, arguments: str, settings: str) -> tuple[str, dict[str, Array | Weight]]:
    given = "float given" if "given" in arguments else ""
    text = f"g ({given}) => ({kind}[a, b] y) {{ v = DequantizeLinear <{settings}> (w, {arguments})  y = Neg (v) }}"
    names = {"w", *arguments.split(", ")}
    return text.replace("<> ", ""), {name: values for name, values in quantized().items() if name in names}


@pytest.mark.parametrize("case", QUANTIZED.values(), ids=QUANTIZED)
def test_integers_become_described_weights(case: tuple[str, str, str]) -> None:
    text, weights = dequantizing(*case)
    editor = edit(text, {**weights, "w": Described([3, 4], np.int8)})
    run_fold(editor)
    (neg,) = (node for node in editor.graph.nodes if node.op == "Neg")
    described = neg.inputs[0]._values
    assert isinstance(described, Weight)
    assert (described.shape, described.dtype) == ((3, 4), np.dtype(np.float32 if case[0] == "float" else np.float16))
    (wanted,) = map(np.asarray, ReferenceEvaluator(parse(text, weights)).run(None, {}))
    found = edit(text, {**weights, "w": Inline(np.asarray(weights["w"]))})
    run_fold(found)
    (result,) = map(np.asarray, ReferenceEvaluator(to_proto(found.model)).run(None, {}))
    np.testing.assert_allclose(result, wanted, rtol=2e-3 if case[0] == "float16" else 1e-6)
    assert operators(found).get("DequantizeLinear", 0) == 0


@pytest.mark.parametrize("case", NO_WEIGHTS.values(), ids=NO_WEIGHTS)
def test_other_forms_of_integers_stay(case: tuple[str, str, str]) -> None:
    text, weights = dequantizing(*case)
    editor = edit(text, {**weights, "w": Described([3, 4], np.int8)})
    run_fold(editor)
    assert operators(editor) == {"DequantizeLinear": 1, "Neg": 1}
