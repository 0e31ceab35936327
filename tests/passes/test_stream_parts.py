"""Residual streams kept small in fp16: what each writer costs, each reader that forbids it, and each form of a norm."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from support.small_graphs import Array, Described, check_step, edit, operators

from sdort.graph.weights import Scaled
from sdort.passes import scaled_stream
from sdort.passes.scaled_stream import FACTOR
from sdort.rewrite.editor import Editor

RNG = np.random.default_rng(0)
WEIGHTS: dict[str, Array] = {
    **{name: RNG.standard_normal((8, 8)).astype(np.float32) for name in ("w", "v", "table")},
    **{name: RNG.standard_normal(8).astype(np.float32) for name in ("b", "gamma")},
    "eps": np.array(0.5, np.float32), "row": np.full(8, 0.5, np.float32), "two": np.array(2, np.float32),
    "three": np.array(3, np.float32), "half": np.array(0.5, np.float32), "minus": np.array(-0.5, np.float32),
    "one": np.array(1, np.float32), "last": np.array([-1]), "kernel": np.ones((5, 5, 1), np.float32),
}  # fmt: skip
NORM = "RMSNormalization <epsilon = 0.5>"


def graph(body: str, outputs: str = "float[n0, n1] y") -> tuple[str, dict[str, Array]]:
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    used = {name: values for name, values in WEIGHTS.items() if name in words}
    return f"g (float[5, 8] x, float[5, 8] z, float[8, 8] m, int64[5] i) => ({outputs}) {{ {body} }}", used


WRITERS: dict[str, tuple[str, int]] = {
    # what is added to the input x, which is scaled by a product; the products that it costs beside that one
    "a projection": ("o = MatMul (z, w)", 0),
    "a projection of data": ("o = MatMul (z, m)", 1),
    "a projection by the other side": ("o0 = Transpose (z)  o1 = MatMul (w, o0)  o = Transpose (o1)", 1),
    "a table": ("o = Gather (table, i)", 0),
    "a table that is given": ("o = Gather (m, i)", 1),
    "a layer": ("o = Gemm (z, w)", 0),
    "a layer with a bias": ("o = Gemm (z, w, b)", 0),
    "a layer with a computed bias": ("o = Gemm (z, w, x)", 1),
    "a layer that is computed": ("o = Gemm (z, m, b)", 1),
    "a scaled layer": ("o = Gemm <alpha = 0.5, beta = 2.0, transB = 1> (z, w, b)", 0),
    "a function": ("o = Sigmoid (z)", 1),
    "another domain's product": ("o = com.microsoft.FusedMatMul (z, w)", 1),
    "an input": ("o = Identity (z)", 1),
    "a projection and a constant": ("o0 = MatMul (z, w)  o = Add (o0, b)", 0),
    "two projections": ("o0 = MatMul (z, w)  o1 = MatMul (z, v)  o = Add (o0, o1)", 0),
    "a projection twice": ("o0 = MatMul (z, w)  o = Add (o0, o0)", 0),
    "a weight twice": ("o0 = MatMul (z, w)  o1 = MatMul (x, w)  o = Add (o0, o1)", 0),
    "a projection behind a gate": ("q = MatMul (z, w)  o = Mul (z, q)", 0),
    "a layer with a bias behind a gate": ("q0 = MatMul (z, w)  q = Add (b, q0)  o = Mul (q, z)", 0),
    "a function behind a gate": ("q = Sigmoid (z)  o = Mul (q, z)", 1),
    "a projection by itself": ("q = MatMul (z, w)  o = Mul (q, q)", 1),
    "a projection that a function reads, behind a gate": ("q = MatMul (z, w)  r = Sigmoid (q)  o = Mul (q, r)", 1),
    "an input twice": ("o0 = MatMul (z, w)  o = Add (o0, x)", 0),
}


@pytest.mark.parametrize("case", WRITERS.values(), ids=WRITERS)
def test_what_is_added_is_scaled_by_its_weights_where_it_has_any(case: tuple[str, int]) -> None:
    body, products = case
    text, weights = graph(f"{body}  h = Add (x, o)  y = {NORM} (h, gamma)")

    def step(editor: Editor) -> None:
        before = operators(editor)
        assert scaled_stream.run(editor) == 1
        added = {op: count - before.get(op, 0) for op, count in operators(editor).items() if count != before.get(op, 0)}
        assert added == {"Mul": 1 + products}
        (norm,) = (node for node in editor.graph.nodes if node.op == "RMSNormalization")
        assert "h" not in editor.graph.tensors(), "what is scaled has the name of what is not"
        assert (editor.shape(norm.inputs[0]), editor.dtype(norm.inputs[0])) == ((5, 8), np.dtype(np.float32))

    check_step(text, step, weights=weights, rtol=1e-5)


@pytest.mark.parametrize("writer", ["MatMul (z, big)", "Gemm (z, big, shift)", "Gather (big, i)"])
def test_weights_are_scaled_when_they_are_written(writer: str) -> None:
    big, shift = Described([8, 8], np.float32), Described([8], np.float32)
    text, weights = graph(f"o = {writer}  h = Add (x, o)  y = {NORM} (h, gamma)")
    words = writer.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {name: weight for name, weight in {"big": big, "shift": shift}.items() if name in words}
    editor = edit(text, {**weights, **used})
    assert scaled_stream.run(editor) == 1
    node = editor.graph.nodes[0]
    made = [tensor._values for tensor in node.inputs if isinstance(tensor, gs.Constant)]
    assert [(type(values), values.factor, list(values.leaves())) for values in made] == [
        (Scaled, FACTOR, [weight]) for weight in used.values()
    ]
    assert node.outputs[0].name != "o"


READ_ELSEWHERE = {
    "by a function": ("k = Sigmoid (o)", "float[n0, n1] y, float[5, 8] k", 1),
    "as an output": ("", "float[n0, n1] y, float[5, 8] o", 1),
    "by a norm": ("k = RMSNormalization <epsilon = 0.25> (o, gamma)", "float[n0, n1] y, float[5, 8] k", 0),
    "by another sum of the stream": (f"h2 = Add (h, o)  k = {NORM} (h2, gamma)", "float[n0, n1] y, float[5, 8] k", 0),
}


@pytest.mark.parametrize("case", READ_ELSEWHERE.values(), ids=READ_ELSEWHERE)
def test_a_summand_that_others_read_is_scaled_beside_them(case: tuple[str, str, int]) -> None:
    more, outputs, products = case
    text, weights = graph(f"o = MatMul (z, w)  h = Add (x, o)  y = {NORM} (h, gamma)  {more}", outputs)

    def step(editor: Editor) -> None:
        assert scaled_stream.run(editor) == 1
        assert operators(editor)["Mul"] == 1 + products

    check_step(text, step, weights=weights, rtol=1e-5)


OUTSIDERS: dict[str, tuple[str, str, str]] = {
    "a function": ("k = Sigmoid (h)", "float[] y, float[] k", "Sigmoid 'Sigmoid.3' reads it"),
    "a function of a later sum": (f"h2 = Add (h, z)  k = {NORM} (h2, gamma)  e = Neg (h2)",
                                  "float[] y, float[] k, float[] e", "Neg 'Neg.5' reads it"),
    "a product": ("k = MatMul (h, w)", "float[] y, float[] k", "MatMul 'MatMul.3' reads it"),
}  # fmt: skip


@pytest.mark.parametrize("case", OUTSIDERS.values(), ids=OUTSIDERS)
def test_whoever_reads_a_stream_is_named(case: tuple[str, str, str], capsys: pytest.CaptureFixture[str]) -> None:
    more, outputs, reader = case
    text, weights = graph(f"o = MatMul (z, w)  h = Add (x, o)  y = {NORM} (h, gamma)  {more}", outputs)
    editor = edit(text, weights)
    before = operators(editor)
    assert scaled_stream.run(editor) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "test: the residual stream 'h" in told
    assert reader in told
    assert told.count("is not kept small") == 1
    assert operators(editor) == before
    assert [n.attrs["epsilon"] for n in editor.graph.nodes if n.op == "RMSNormalization"][:1] == [0.5]


STREAMS: dict[str, tuple[str, str, int, int]] = {
    "two": (f"h = Add (x, z)  y = {NORM} (h, gamma)  s = Sigmoid (y)  k = Add (s, z)  e = {NORM} (k, gamma)",
            "float[] y, float[] e", 2, 0),
    "one of two": (f"h = Add (x, z)  y = {NORM} (h, gamma)  k = Sub (h, z)  s = Sigmoid (y)  j = Add (s, z)"
                   f"  e = {NORM} (j, gamma)", "float[] k, float[] e", 1, 1),
    "a sum with a constant": (f"h = Add (x, b)  y = {NORM} (h, gamma)  k = Sigmoid (h)", "float[] y, float[] k", 0, 0),
    "sums with and without a constant": (f"h0 = Add (x, b)  h = Add (h0, z)  y = {NORM} (h, gamma)", "float[] y", 1, 0),
    "a norm of a product": (f"h = Mul (x, z)  y = {NORM} (h, gamma)", "float[] y", 0, 0),
    "two norms": (f"h = Add (x, z)  y = {NORM} (h, gamma)  e = {NORM} (h, b)", "float[] y, float[] e", 1, 0),
    "another norm": ("h = Add (x, z)  y = LayerNormalization (h, gamma)", "float[] y", 0, 0),
    "a norm in half": (
        f"h0 = Add (x, z)  h = Cast <to = 10> (h0)  g = Cast <to = 10> (gamma)  k = Add (h, h)  e = {NORM} (k, g)"
        "  y = Cast <to = 1> (e)", "float[] y", 0, 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STREAMS.values(), ids=STREAMS)
def test_streams_are_counted_and_refusals_told(
    case: tuple[str, str, int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    body, outputs, streams, refusals = case
    assert scaled_stream.run(edit(*graph(body, outputs))) == streams
    assert capsys.readouterr().err.count("residual stream") == refusals


@pytest.mark.parametrize(
    ("norm", "epsilon"),
    [
        ("RMSNormalization", 1e-5),
        ("RMSNormalization <epsilon = 0.25>", 0.25),
        ("SimplifiedLayerNormalization", 1e-5),
        ("SimplifiedLayerNormalization <epsilon = 0.001>", 0.001),
    ],
)
def test_an_epsilon_is_scaled_by_the_factors_square(norm: str, epsilon: float) -> None:
    editor = edit(*graph(f"h = Add (x, z)  y = {norm} (h, gamma)"))
    assert scaled_stream.run(editor) == 1
    (node,) = (n for n in editor.graph.nodes if n.op == norm.partition(" ")[0])
    assert node.attrs["epsilon"] == pytest.approx(epsilon / 4096, rel=1e-6)
    assert FACTOR == 1 / 64


APART: dict[str, tuple[str, bool]] = {
    "a quotient": ("q = Mul (x, x)  m0 = M  a = Add (m0, eps)  r = Sqrt (a)  y = Div (x, r)", True),
    "a guard in front": ("q = Mul (x, x)  m0 = M  a = Add (eps, m0)  r = Sqrt (a)  y = Div (x, r)", True),
    "a power": ("q = Pow (x, two)  m0 = M  a = Add (m0, eps)  r = Pow (a, minus)  y = Mul (x, r)", True),
    "a product behind": ("q = Pow (x, two)  m0 = M  a = Add (m0, eps)  r = Pow (a, minus)  y = Mul (r, x)", True),
    "a reciprocal": ("q = Mul (x, x)  m0 = M  a = Add (m0, eps)  r = Sqrt (a)  v0 = Reciprocal (r)  y = Mul (x, v0)",
                     True),
    "one by it": ("q = Mul (x, x)  m0 = M  a = Add (m0, eps)  r = Sqrt (a)  v0 = Div (one, r)  y = Mul (v0, x)", True),
    "two by it": ("q = Mul (x, x)  m0 = M  a = Add (m0, eps)  r = Sqrt (a)  v0 = Div (two, r)  y = Mul (v0, x)", True),
    "a product of two": ("q = Mul (x, z)  m0 = M  a = Add (m0, eps)  r = Sqrt (a)  y = Div (x, r)", False),
    "a cube": ("q = Pow (x, three)  m0 = M  a = Add (m0, eps)  r = Sqrt (a)  y = Div (x, r)", False),
    "a sum of squares": ("q = Add (x, x)  m0 = M  a = Add (m0, eps)  r = Sqrt (a)  y = Div (x, r)", False),
    "no guard": ("q = Mul (x, x)  m0 = M  r = Sqrt (m0)  y = Div (x, r)", False),
    "a guard for each": ("q = Mul (x, x)  m0 = M  a = Add (m0, row)  r = Sqrt (a)  y = Div (x, r)", False),
    "a guard that is computed": ("q = Mul (x, x)  m0 = M  a = Add (m0, z)  r = Sqrt (a)  y = Div (x, r)", False),
    "a guard that is subtracted": ("q = Mul (x, x)  m0 = M  a = Sub (m0, eps)  r = Sqrt (a)  y = Div (x, r)", False),
    "another root": ("q = Mul (x, x)  m0 = M  a = Add (m0, eps)  r = Pow (a, half)  y = Div (x, r)", False),
    "another dividend": ("q = Mul (x, x)  m0 = M  a = Add (m0, eps)  r = Sqrt (a)  y = Div (z, r)", False),
    "a root by it": ("q = Mul (x, x)  m0 = M  a = Add (m0, eps)  r = Sqrt (a)  y = Div (r, x)", False),
    "another factor": ("q = Mul (x, x)  m0 = M  a = Add (m0, eps)  r = Pow (a, minus)  y = Mul (r, z)", False),
    "a sum behind": ("q = Mul (x, x)  m0 = M  a = Add (m0, eps)  r = Pow (a, minus)  y = Add (r, x)", False),
    "a function behind": ("q = Mul (x, x)  m0 = M  a = Add (m0, eps)  y = Exp (a)", False),
    "a second reader of the square": (
        "q = Mul (x, x)  m0 = M  a = Add (m0, eps)  r = Sqrt (a)  y = Div (x, r)  e = Neg (q)", False,
    ),
    "a second reader of the root": (
        "q = Mul (x, x)  m0 = M  a = Add (m0, eps)  r = Sqrt (a)  y = Div (x, r)  e = Neg (r)", False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", APART.values(), ids=APART)
def test_a_norm_of_single_operators_is_known_by_all_of_them(case: tuple[str, bool]) -> None:
    body, wanted = case
    outputs = "float[] y, float[] e" if " e = " in body else "float[] y"
    editor = edit(*graph(body.replace(" M ", " ReduceMean (q, last) "), outputs))
    made: dict[str, gs.Node] = {node.outputs[0].name: node for node in editor.graph.nodes}
    found = scaled_stream._decomposed(editor, made["m0"])
    assert (found is not None) == wanted
    if found is not None:
        assert (found.node, found.readers) == (made["a"], [made["q"], made["y"]])
        for name in "qr":
            editor.graph.outputs.append(made[name].outputs[0])
            assert scaled_stream._decomposed(editor, made["m0"]) is None, "it goes out"
            editor.graph.outputs.pop()


# --- pieces ---

PIECES = {
    "a view": "k = Reshape (h, plain)",
    "rows": "k = Slice (h, first, second, axis0)",
    "one row": "k = Gather (h, first)",
    "exchanged axes": "k0 = Reshape (h, cube)  k = Transpose <perm = [1, 0, 2]> (k0)",
    "one of two pieces": "k, rest = Split <axis = 0> (h, cut)",
    "joined with another sum": "o2 = MatMul (z, v)  h2 = Add (z, o2)  k = Concat <axis = 0> (h, h2)",
    "joined with an input": "k = Concat <axis = 0> (z, h)",
    "joined with a constant": "k = Concat <axis = 0> (h, table)",
    "padded": "k = Pad (h, ends)",
    "chosen": "c = Greater (x, z)  k = Where (c, h, table5)",
    "with elements of its own": "k = ScatterElements <axis = 0> (h, first2, row2)",
    "as what is put in": "k = ScatterND (table, place, h)",
    "padded with a zero": "k = Pad (h, ends, zero)",
    "read by two norms": f"k = Slice (h, first, second, axis0)  g = {NORM} (h, gamma)",
    "summed again": "k0 = Slice (h, first, second, axis0)  o2 = MatMul (z, v)  k1 = Slice (o2, first, second, axis0)  "
    "k = Add (k0, k1)",
}
STAY = {
    "chosen by it": "c = Cast <to = 9> (h)  k = Where (c, h, z)",
    "with elements added": 'k = ScatterElements <axis = 0, reduction = "add"> (h, first2, row2)',
    "padded with ones": "k = Pad (h, ends, one)",
    "padded with what is there": 'k = Pad <mode = "edge"> (h, ends)',
    "a function of a piece": "k0 = Slice (h, first, second, axis0)  k = Sigmoid (k0)  g = RMSNormalization (h, gamma)",
    "a sum of a view": "k = Reshape (h, plain)  g0 = ReduceSum (k)  g1 = Sigmoid (g0)",
}
PLACES: dict[str, Array] = {
    "plain": np.array([5, 8]), "first": np.array([0]), "second": np.array([3]), "axis0": np.array([0]),
    "cube": np.array([5, 1, 8]), "cut": np.array([2, 3]), "ends": np.array([1, 0, 2, 0]),
    "zero": np.array(0, np.float32), "table5": RNG.standard_normal((5, 8)).astype(np.float32),
    "first2": np.array([[3, 1]]), "row2": np.array([[0.5, -2]], np.float32),
    "place": np.array([[0], [2], [4], [6], [7]]),
}  # fmt: skip


def piece(body: str, norm: str = NORM) -> tuple[str, dict[str, Array]]:
    more = "  e = Neg (g)" if " g = " in body else ""
    given = f"o = MatMul (z, w)  h = Add (x, o)  {body}  y = {norm} (k, gamma){more}"
    text, weights = graph(given, "float[] y, float[] e" if more else "float[] y")
    words = set(given.replace("(", " ").replace(")", " ").replace(",", " ").split())
    return text, {**weights, **{name: values for name, values in PLACES.items() if name in words}}


@pytest.mark.parametrize("body", PIECES.values(), ids=PIECES)
def test_a_stream_goes_on_in_pieces_of_it(body: str) -> None:
    text, weights = piece(body)

    def step(editor: Editor) -> None:
        assert scaled_stream.run(editor) == 1
        assert all(node.attrs["epsilon"] == 0.5 * FACTOR**2 for node in editor.graph.nodes if "RMS" in node.op)

    check_step(text, step, weights=weights, rtol=1e-5)


@pytest.mark.parametrize("body", STAY.values(), ids=STAY)
def test_what_would_see_the_factor_of_a_piece_forbids_it(body: str) -> None:
    text, weights = piece(body)
    editor = edit(text, weights)
    assert scaled_stream.run(editor) == 0


def test_a_layer_norm_reads_a_stream_too_and_alone_makes_none() -> None:
    layer = "LayerNormalization <epsilon = 0.5>"
    text, weights = piece(f"k = Reshape (h, plain)  g = {layer} (h, gamma)")

    def step(editor: Editor) -> None:
        assert scaled_stream.run(editor) == 1
        (norm,) = (node for node in editor.graph.nodes if node.op == "LayerNormalization")
        assert norm.attrs["epsilon"] == 0.5 * FACTOR**2

    check_step(text, step, weights=weights, rtol=1e-5)
    assert scaled_stream.run(edit(*piece("k = Reshape (h, plain)", layer))) == 0


def test_a_norm_behind_a_gate_is_scaled_by_its_weight() -> None:
    text, weights = graph(f"q = RMSNormalization (z, b)  o = Mul (z, q)  h = Add (x, o)  y = {NORM} (h, gamma)")

    def step(editor: Editor) -> None:
        assert scaled_stream.run(editor) == 1
        assert operators(editor)["Mul"] == 2  # the gate, and the input's

    check_step(text, step, weights=weights, rtol=1e-5)


GATED = "o = MatMul (z, w)  a = Mul (z, o)  h = Add (x, a)"


@pytest.mark.parametrize(
    ("body", "streams"),
    [
        (GATED, 1),
        (GATED.replace("h = Add (x, a)", "h = Add (a, x)"), 1),
        ("o = MatMul (z, w)  h = Add (x, o)", 0),
        (GATED.replace("Mul (z, o)", "Mul (row, o)"), 0),
        (f"{GATED}  g = Sigmoid (h)  e = Neg (g)", 0),
    ],
    ids=["a gate", "a gate, first", "no gate", "a gate of a constant", "read elsewhere"],
)
def test_streams_of_layer_norms_alone_are_those_of_gated_branches(body: str, streams: int) -> None:
    text, weights = graph(f"{body}  y = LayerNormalization <epsilon = 0.5> (h, gamma, b)",
                          "float[] y, float[] e" if " e = " in body else "float[] y")  # fmt: skip

    def step(editor: Editor) -> None:
        assert scaled_stream.run(editor) == streams
        (norm,) = (node for node in editor.graph.nodes if node.op == "LayerNormalization")
        assert norm.attrs["epsilon"] == 0.5 * (FACTOR**2 if streams else 1)

    check_step(text, step, weights=weights, rtol=1e-5)
