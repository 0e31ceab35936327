"""Steps of an operator by how its nodes are connected, and a divergence's cause in words."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from sdort.verification.bisection import blame
from sdort.verification.bisection.blame import CAST, FUSION, NODE, SUM, Culprit, _kind, _message, find_cause
from sdort.verification.bisection.decomposition import _layer_normalization, _logical_tensors
from sdort.verification.bisection.fused_steps import StepComparison, WrongStep, _origin
from sdort.verification.bisection.search import Divergence
from sdort.verification.bisection.step_detection import after_casts, detect_steps
from sdort.verification.bisection.subgraph import _wide_value, _widened, nodes_between, source_values
from sdort.verification.bisection.tensor_pairs import TensorPair
from sdort.verification.limits import Tolerance


def nodes_of(body: str) -> list[onnx.NodeProto]:
    header = '<ir_version: 10, opset_import: ["": 23]> g (float[2, 2] x, float[2, 2] y) => ()'
    return list(parser.parse_model(f"{header} {{ {body} }}").graph.node)


PROJECTIONS = """qm = MatMul (x, wq)  qb = Add (qm, bq)  qr = Reshape (qb, n)  q = Transpose (qr)
    km = Gemm (x, wk, bk)  kr = Reshape (km, n)  kt = Transpose (kr)  k = Mul (kt, c)
    vm = MatMul (y, wv)  vr = Reshape (vm, n)  v = Transpose (vr)
"""
ALL = {"query": "qb", "key": "km", "value": "vm", "shares": "p", "sums": "o"}
STEPS: dict[str, tuple[str, dict[str, str]]] = {
    "an attention": (f"{PROJECTIONS} s = MatMul (q, k)  p = Softmax (s)  o = MatMul (p, v)", {**ALL, "scores": "s"}),
    "scaled scores": (
        f"{PROJECTIONS} s = MatMul (q, k)  d = Div (s, c)  p = Softmax (d)  o = MatMul (p, v)",
        {**ALL, "scores": "d"},
    ),
    "scaled twice, cast and masked": (
        f"""{PROJECTIONS} s = MatMul (q, k)  d = Div (s, c)  e = Cast <to = 1> (d)  f = Mul (c, e)
        m = Add (mask, f)  h = Mul (m, c)  p = Softmax (h)  r = Cast <to = 10> (p)  o = MatMul (r, v)""",
        {**ALL, "scores": "f"},
    ),
    "masked by replacement": (
        f"{PROJECTIONS} s = MatMul (q, k)  m = Where (open, s, low)  p = Softmax (m)  o = MatMul (p, v)",
        {**ALL, "scores": "s"},
    ),
    "a product that the softmax does not come from": (
        "s = MatMul (x, y)  n = Tanh (s)  p = Softmax (n)  o = MatMul (p, y)", {"shares": "p", "sums": "o"},
    ),
    "no product behind it": ("s = MatMul (x, y)  p = Softmax (s)  z = Tanh (p)", {"shares": "p", "scores": "s"}),
    "inputs that are shared": (
        "a = Identity (x)  b = Transpose (a)  s = MatMul (x, b)  p = Softmax (s)  o = MatMul (p, a)",
        {"key": "a", "value": "a", "shares": "p", "scores": "s", "sums": "o"},
    ),
    "a group normalization": ("n = GroupNormalization <num_groups = 1> (x, g, b)", {"shifted": "n"}),
    "what is normalized is made here": (
        "a = Relu (x)  n = LayerNormalization (a, g)", {"normalized": "a", "shifted": "n"},
    ),
    "an instance normalization and its parts": (
        """a = Relu (x)  r = Reshape (a, n)  c = Cast <to = 1> (r)  i = InstanceNormalization (c, one, zero)
        b = Reshape (i, m)  s = Mul (b, g)  d = Cast <to = 10> (s)  t = Add (d, e)""",
        {"normalized": "a", "normal": "i", "scaled": "s", "shifted": "t"},
    ),
    "without a shift": (
        "i = InstanceNormalization (x, one, zero)  s = Mul (i, g)  t = Relu (s)", {"normal": "i", "scaled": "s"},
    ),
    "without a scale": ("i = InstanceNormalization (x, one, zero)  t = Add (i, e)", {"normal": "i"}),
    "in parts": (
        """a = Relu (x)  u = Reshape (a, n)  m = ReduceMean (u)  c = Sub (u, m)  v = Mul (c, c)  w = ReduceMean (v)
        r = Sqrt (w)  q = Div (c, r)  s = Mul (g, q)  t = Add (e, s)""",
        {"normalized": "a", "normal": "q", "scaled": "s", "shifted": "t"},
    ),
    "a mean that is turned round": ("m = ReduceMean (x)  c = Sub (m, x)  r = Sqrt (y)  q = Div (c, r)", {}),
    "a root above": ("m = ReduceMean (x)  c = Sub (x, m)  r = Sqrt (y)  q = Div (r, c)", {}),
    "no root": ("m = ReduceMean (x)  c = Sub (x, m)  r = Exp (y)  q = Div (c, r)", {}),
    "through every view": (
        """a = Relu (x)  b = Identity (a)  c = Squeeze (b, n)  d = Unsqueeze (c, n)
        i = InstanceNormalization (d, one, zero)""",
        {"normalized": "a", "normal": "i"},
    ),
    "in one and in parts": (
        "m = ReduceMean (x)  c = Sub (x, m)  r = Sqrt (y)  q = Div (c, r)  n = LayerNormalization (y, g)", {},
    ),
    "a gate": ("a = Mul (x, c)  s = Sigmoid (a)  z = Mul (x, s)", {"bent": "a", "gate": "s"}),
    "a gate of no product": ("a = Add (x, c)  s = Sigmoid (a)  z = Mul (x, s)", {"gate": "s"}),
    "an error function behind a split": (
        "b = Add (x, c)  h, g = Split <num_outputs = 2> (b)  d = Div (g, r)  e = Erf (d)", {"biased": "b", "erf": "e"},
    ),
    "one behind a slice and a cast": (
        "b = Add (x, c)  g = Slice (b, i, j)  t = Cast <to = 1> (g)  d = Mul (r, t)  e = Erf (d)",
        {"biased": "b", "erf": "e"},
    ),
    "one behind something else": ("b = Add (x, c)  t = Relu (b)  e = Erf (t)", {"erf": "e"}),
}  # fmt: skip


@pytest.mark.parametrize(("body", "steps"), STEPS.values(), ids=STEPS)
def test_steps_are_found_by_their_connections(body: str, steps: dict[str, str]) -> None:
    assert detect_steps(nodes_of(body)) == steps


def test_a_tensor_after_all_casts_of_it() -> None:
    nodes = nodes_of("a = Cast <to = 10> (x)  b = Relu (a)  c = Cast <to = 1> (a)  d = Cast <to = 1> (y)")
    assert [after_casts(nodes, name) for name in ("x", "a", "b", "y", "d")] == ["c", "c", "b", "d", "d"]


def test_the_nodes_between_and_the_values_that_go_in() -> None:
    nodes = nodes_of("a = Relu (x)  b = Relu (y)  u = Relu (a)  c = Add (a, b)  d = Neg (c)  e = Neg (u)")
    graph = helper.make_graph(nodes, "g", [], [])
    assert [node.output[0] for node in nodes_between(graph, "d", {"a"})] == ["b", "c", "d"]
    assert [node.output[0] for node in nodes_between(graph, "d", set())] == ["a", "b", "c", "d"]
    assert [node.output[0] for node in nodes_between(graph, "e", {"a", "b"})] == ["u", "e"]
    pairs = {name: TensorPair(name, f"{name}'") for name in ("a", "whole", "open", "target")}
    single, half = np.ones(2, np.float32) / 3, np.ones(2, np.float16)
    values: dict[TensorPair, tuple[Any, Any]] = {
        pairs["a"]: (single, half),
        pairs["whole"]: (np.array([7], np.int64), np.array([8], np.int32)),
        pairs["open"]: (np.array([True]), np.array([1], np.float16)),
        pairs["target"]: (single, half),
    }
    for wide in (False, True):
        found = source_values(pairs["target"], values, wide)
        assert list(found) == ["a'", "whole'", "open'"]
        assert found["open'"].dtype == np.bool_
        assert (str(found["a'"].dtype), str(found["whole'"].dtype)) == ("float32" if wide else "float16", "int64")
        np.testing.assert_array_equal(found["a'"], single if wide else single.astype(np.float16))
        assert found["whole'"][0] == 7


def test_fp16_is_widened_wherever_a_node_says_it() -> None:
    half, single = TensorProto.FLOAT16, TensorProto.FLOAT
    values = np.array([[0.5, 3]], np.float16)
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(values))
    (wide,) = _widened(constant).attribute
    widened = numpy_helper.to_array(wide.t)
    assert (str(widened.dtype), widened.tolist()) == ("float32", [[0.5, 3]])
    assert constant.attribute[0].t.data_type == half
    for name, before, after in (("to", half, single), ("dtype", half, single), ("to", 7, 7), ("axis", half, half)):
        attribute: dict[str, Any] = {name: before}
        node = helper.make_node("Any", ["a", "b"], ["c"], name="n", domain="d", **attribute)
        changed = _widened(node)
        assert (changed.attribute[0].i, node.attribute[0].i) == (after, before)
        assert (changed.name, changed.domain, list(changed.input)) == ("n", "d", ["a", "b"])
    whole = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array([3])))
    assert _widened(whole) == whole
    for kind, wanted in ((half, single), (single, single), (TensorProto.INT64, TensorProto.INT64)):
        value = helper.make_tensor_value_info("x", kind, [2, "n"])
        assert _wide_value(value) == helper.make_tensor_value_info("x", wanted, [2, "n"])
        assert value.type.tensor_type.elem_type == kind


def test_the_tensors_of_booleans() -> None:
    text = """<ir_version: 10, opset_import: ["": 18]> g (bool[2] open, float[2] x, float[2] y) => (float[2] z) {
        less = Less (x, y)  both = And (less, open)  z = Where (both, x, y) }"""
    assert _logical_tensors(parser.parse_model(text)) == {"open", "less", "both"}


@pytest.mark.parametrize(
    ("axis", "outputs", "known"), [(-1, 1, True), (None, 1, True), (1, 1, False), (0, 1, False), (-1, 2, False)]
)
def test_a_layer_normalization_over_the_last_axis_alone_is_taken_apart(
    axis: int | None, outputs: int, known: bool
) -> None:
    for beta in ("", "B"):
        for epsilon in (None, 0.25):
            given = {"axis": axis, "epsilon": epsilon}
            call: Any = SimpleNamespace(
                attributes={name: value for name, value in given.items() if value is not None},
                outputs=["Y", "Mean"][:outputs],
                has=lambda name, beta=beta: name == beta,
            )
            body = _layer_normalization(call)
            assert (body is not None) is known
            if body is not None:
                assert ("B" in body.replace("Broadcast", "")) == bool(beta)
                assert (str(epsilon or 1e-05) in body) or (f"{epsilon or 1e-5:.20f}" in body)


def test_a_step_of_a_taken_apart_attention_belongs_to_that_attention() -> None:
    original = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 23]> g (float[1, 2, 4] x) => (float[1, 2, 4] z) {
        [first] a = Relu (x)  [second] b, c = Split <num_outputs = 2> (a)
        [other] u = Attention <q_num_heads = 1, kv_num_heads = 1> (x, x, x)
        [mine] y = Attention <q_num_heads = 1, kv_num_heads = 1> (a, a, a)  [last] z = Add (y, u) }"""
    )
    graphs: Any = SimpleNamespace(original=Path("o"), graph=lambda path: original if path == Path("o") else None)
    sides: Any = SimpleNamespace(nodes=nodes_of("s = MatMul (a, a)  p = Softmax (s)  y = MatMul (p, a)"))
    assert _origin(graphs, sides, "c") == ("second", "Split", "c")
    assert _origin(graphs, sides, "y") == ("mine", "Attention", "y")
    assert _origin(graphs, sides, "s") == ("mine", "Attention", "y")


# The cause


@pytest.mark.parametrize(
    ("narrow", "wide", "made", "kind"),
    [
        (1.0, 9.0, True, SUM), (0.5, 0.5, False, SUM), (1.5, 1.0, True, CAST), (1.5, 0.0, False, CAST),
        (1.5, 1.5, True, FUSION), (1.5, 1.5, False, NODE), (1.5, None, True, FUSION), (None, 0.5, False, NODE),
        (None, 0.5, True, FUSION), (None, None, False, NODE), (math.inf, 1.0, True, CAST),
    ],
)  # fmt: skip
def test_the_kind_of_a_cause(narrow: float | None, wide: float | None, made: bool, kind: str) -> None:
    graphs: Any = SimpleNamespace(provenance=SimpleNamespace(makers={"b": ("gelu",)} if made else {}))
    culprits = [onnx.NodeProto(name="a"), onnx.NodeProto(name="b")]
    assert _kind((narrow, wide), culprits, graphs) == kind


OFF = WrongStep("the scores", "node", "MatMul", "t", 3.0, 700.0, 40.0, ("the query", "the key"))
INF = WrongStep("the scores", "", "MatMul", "t", math.inf, 70000.0, 40.0, ())
WRONG = "it does not compute what the original's nodes do, or has other weights"
MESSAGES: dict[str, tuple[dict[str, Any], str]] = {
    "another operator of a fusion": (
        {"kind": FUSION, "culprits": ("Gelu", "Mul", "Gelu"), "fusions": ("gelu", "bias")},
        f"Gelu, Mul, made by gelu, bias: {WRONG}",
    ),
    "the same operator of a fusion": (
        {"kind": FUSION, "culprits": ("MatMul",), "fusions": ("gelu",)}, f"MatMul, made by gelu: {WRONG}",
    ),
    "the same operator of a step": ({"kind": FUSION, "culprits": ("MatMul",)}, WRONG),
    "two of a step": ({"kind": FUSION, "culprits": ("MatMul", "Add")}, f"MatMul, Add: {WRONG}"),
    "rounding to fp16": (
        {"kind": CAST, "culprits": ("MatMul",), "precision": "fp16"},
        "rounding to fp16 does it: it is right in fp32 on the same inputs; values up to 1.23e+03 come out, and fp16 "
        "ends at 65504; sdort optimize --fp16 auto keeps such nodes in fp32",
    ),
    "rounding to bf16 of a fusion": (
        {"kind": CAST, "culprits": ("Gelu",), "fusions": ("gelu",), "precision": "bf16"},
        "rounding to bf16 does it: Gelu, made by gelu is right in fp32 on the same inputs; values up to 1.23e+03 come "
        "out",
    ),
    "a node": (
        {"kind": NODE, "culprits": ("MatMul",), "precision": "fp16"},
        "no fusion touched it; its weights, its attributes or the provider's kernel differ",
    ),
    "a sum": (
        {"kind": SUM, "culprits": ("MatMul",), "precision": "fp16"},
        "it is right on the original's own values: the errors before it have added up",
    ),
    "no step": (
        {"kind": FUSION, "culprits": ("MatMul",), "steps": StepComparison(None, "none is known")},
        f"{WRONG}; none is known",
    ),
    "a step of a fusion": (
        {"kind": FUSION, "culprits": ("MatMul",), "steps": StepComparison(OFF)},
        f"{WRONG}; its first wrong step is the scores, node (MatMul): off by 3 times the tolerance; right before it: "
        "the query, the key",
    ),
    "a step that is too coarse": (
        {"kind": CAST, "culprits": ("MatMul",), "precision": "fp16", "steps": StepComparison(OFF)},
        "rounding to fp16 does it: it is right in fp32 on the same inputs; its first wrong step is the scores, node "
        "(MatMul): off by 3 times the tolerance; values up to 40 go in, where fp16 has steps of 0.0312; right before "
        "it: the query, the key; sdort optimize --fp16 auto keeps such nodes in fp32",
    ),
    "a step that overflows": (
        {"kind": CAST, "culprits": ("MatMul",), "precision": "fp16", "steps": StepComparison(INF)},
        "rounding to fp16 does it: it is right in fp32 on the same inputs; its first wrong step is the scores, t "
        "(MatMul): values up to 7e+04 come out, and fp16 ends at 65504; sdort optimize --fp16 auto keeps such nodes "
        "in fp32",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "words"), MESSAGES.values(), ids=MESSAGES)
def test_a_cause_in_words(given: dict[str, Any], words: str) -> None:
    culprits = [onnx.NodeProto(op_type=name) for name in given["culprits"]]
    parts = {"fusions": (), "precision": "fp32", "steps": None} | given | {"culprits": culprits, "largest": 1234.0}
    for name, first in (("one", "one"), ("", "out")):
        producer = onnx.NodeProto(name=name, op_type="MatMul", output=["out"])
        assert _message(producer=producer, **parts) == f"the graphs diverge at {first} (MatMul): {words}"


@pytest.mark.parametrize("makers", [("tidy", "gelu", "gelu"), ("tidy", "half")], ids=["a fusion", "steps alone"])
@pytest.mark.parametrize("kind", [FUSION, SUM])
def test_a_cause_has_each_number_in_its_field(
    kind: str, makers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = {
        Path("o"): nodes_of("[a] s = Relu (x)  [b] t = Neg (s)  [c] u = Exp (t)"),
        Path("c"): nodes_of("[f] s1 = Relu (x)  [g] u1 = com.microsoft.Gelu (s1)  [h] w = Relu (u1)"),
    }
    models = {path: helper.make_model(helper.make_graph(each, "g", [], [])) for path, each in nodes.items()}
    pair, source = TensorPair("u", "u1"), TensorPair("s", "s1")
    values = {pair: (np.array([-5.0, 2.0]), np.array([9.0])), source: (np.array([1.0]), np.array([8.0]))}
    graphs: Any = SimpleNamespace(
        component="unet", original=Path("o"), candidate=Path("c"), graph=models.__getitem__,
        values=lambda pairs: {each: values[each] for each in pairs},
        provenance=SimpleNamespace(makers={"g": makers, "f": ("other",)}),
    )  # fmt: skip
    shares: list[tuple[Any, ...]] = []

    def share(_: Any, culprits: Any, target: Any, given: Any, limit: Any, wide: bool) -> float:
        shares.append(([node.name for node in culprits], target, list(given), limit, wide))
        return 0.5 if kind == SUM else 3.0

    compared: list[tuple[Any, ...]] = []

    def compare(_: Any, culprits: Any, target: Any, given: Any, limit: Any) -> StepComparison:
        compared.append(([node.name for node in culprits], target, list(given), limit))
        return StepComparison(OFF)

    monkeypatch.setattr(blame, "_share", share)
    monkeypatch.setattr(blame, "compare_steps", compare)
    monkeypatch.setattr(blame, "_precision", lambda graphs: "fp32")
    limit = Tolerance(0.1, 0.2)
    finding = find_cause(graphs, "sample", Divergence(pair, 7.0, {source: 0.25}, 4), limit)
    given = (["g"], pair, [pair, source], limit)
    assert shares == [(*given, False), (*given, True)]
    assert compared == ([] if kind == SUM else [given])
    assert (finding.component, finding.output, finding.kind) == ("unet", "sample", kind)
    assert (finding.node, finding.operator, finding.tensor) == ("c", "Exp", "u")
    assert (finding.share, finding.largest_value, finding.sessions) == (7.0, 5.0, 4)
    assert finding.culprits == (Culprit("g", "Gelu", makers),)
    assert (finding.originals, finding.sources) == (("b", "c"), {"s": 0.25})
    assert finding.blamed == (() if kind == SUM else ("gelu",) if "gelu" in makers else makers)
    assert finding.inside == (None if kind == SUM else OFF)
    assert ("made by gelu" in finding.message) is ("gelu" in makers)
