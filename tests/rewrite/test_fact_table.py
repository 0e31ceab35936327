"""The table of a graph's facts by itself: what it takes, keeps, names and hands to ONNX's own inference."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from support.small_graphs import Described, edit

from sdort.errors import BadModelError
from sdort.graph.fact import MAX_VALUE, NOTHING, Fact
from sdort.graph.symbolic import Dim, is_known, symbol, unknown
from sdort.rewrite.equal_sizes import equal_sizes
from sdort.rewrite.inference.facts import Facts, _constant_fact, _name_unknowns, plain_attributes

B, H, W = symbol("B"), symbol("H"), symbol("W")
FLOAT, HALF, INT64 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.int64)


def table(**facts: Fact) -> tuple[Facts, dict[str, gs.Variable]]:
    tensors = {name: gs.Variable(name) for name in facts}
    made = Facts(23, "unet")
    for name, fact in facts.items():
        made.set(tensors[name], fact)
    made.changed.clear()
    return made, tensors


@pytest.mark.parametrize(
    ("dtype", "shape", "followed"),
    [("int64", (2, 3), True), ("int32", (4,), True), ("uint8", (3,), True), ("bool", (2,), True),
     ("float32", (2,), False), ("int64", (), True), ("int64", (0,), True), ("int64", (MAX_VALUE,), True),
     ("int64", (MAX_VALUE + 1,), False),
     ("int64", (8, 8), True), ("int64", (13, 5), False)],
)  # fmt: skip
def test_small_whole_numbers_are_followed(dtype: str, shape: tuple[int, ...], followed: bool) -> None:
    values = np.asarray(np.arange(np.prod(shape)).reshape(shape) % 2, dtype)
    value = tuple(int(v) for v in values.reshape(-1)) if followed else None
    assert _constant_fact(gs.Constant("c", values)) == Fact(np.dtype(dtype), shape, value)


def test_a_described_weight_is_not_read() -> None:
    tensor = gs.Constant("w", np.zeros(2, np.int64))
    tensor._values = Described([2, 3], np.int64)
    assert _constant_fact(tensor) == Fact(INT64, (2, 3))
    facts = Facts(23, "unet")
    assert facts.of(tensor) == Fact(INT64, (2, 3))
    assert facts.shape(tensor) == (2, 3)
    assert facts.of(gs.Variable("w2")) is NOTHING
    assert not facts.changed


KNOWN = Fact(FLOAT, (B, 4), (7, H))


@pytest.mark.parametrize(
    ("said", "now"),
    [
        (NOTHING, KNOWN), (Fact(HALF), Fact(HALF, (B, 4), (7, H))), (Fact(None, (B * H, 44)), KNOWN),
        (Fact(None, (B, 4)), KNOWN), (Fact(None, (B, 4, 1)), Fact(FLOAT, (B, 4, 1), (7, H))),
        (Fact(None, (W, 4)), Fact(FLOAT, (W, 4), (7, H))), (Fact(None, None, (7, 2 * H)), KNOWN),
        (Fact(None, None, (8,)), Fact(FLOAT, (B, 4), (8,))), (Fact(FLOAT, None, (77, 9)), Fact(FLOAT, (B, 4), (7, 9))),
    ],
)  # fmt: skip
def test_a_fact_stays_where_the_next_says_no_more(said: Fact, now: Fact) -> None:
    facts, tensors = table(t=KNOWN)
    facts.set(tensors["t"], said)
    assert facts.of(tensors["t"]) == now
    assert (facts.changed == {}) is (now == KNOWN)
    assert all(tensor is tensors["t"] for tensor in facts.changed.values())


def test_of_two_spellings_the_clearer_is_kept_for_each_axis() -> None:
    facts, tensors = table(t=Fact(FLOAT, (B * H, unknown(), 4), (unknown(), 3)))
    facts.set(tensors["t"], Fact(None, (B, W * H, unknown()), (5, 2 * W)))
    assert facts.of(tensors["t"]) == Fact(FLOAT, (B, H * W, 4), (5, 3))


def test_a_learnt_size_is_written_everywhere_it_occurs() -> None:
    tokens = symbol("tokens")
    facts, tensors = table(
        shape=Fact(FLOAT, (B, 2 * tokens)),
        value=Fact(INT64, (2,), (tokens, 3)),
        other=Fact(FLOAT, (B, 5)),
        late=NOTHING,
    )
    facts._learn(W, tokens)
    assert facts.of(tensors["shape"]) == Fact(FLOAT, (B, 2 * W))
    assert facts.of(tensors["value"]) == Fact(INT64, (2,), (W, 3))
    assert {name: tensor is tensors[name] for name, tensor in facts.changed.items()} == {"shape": True, "value": True}
    facts.changed.clear()
    facts.set(tensors["late"], Fact(FLOAT, (tokens, tokens + 1), (tokens,)))
    assert facts.of(tensors["late"]) == Fact(FLOAT, (W, W + 1), (W,))
    facts._learn(B, B)
    facts._learn(4, 5)
    assert sorted(facts.changed) == ["late"]
    facts._learn(9, W)
    assert facts.of(tensors["late"]) == Fact(FLOAT, (9, 10), (9,))
    assert facts.shape(tensors["shape"]) == (B, 18)
    assert facts.of(tensors["other"]) == Fact(FLOAT, (B, 5))


def test_unknown_sizes_are_called_after_their_place() -> None:
    one, two = unknown(), unknown()
    tensors = [gs.Variable("a"), gs.Variable("b"), gs.Variable("c")]
    facts = [Fact(FLOAT, (one, B, two)), Fact(INT64, (3,), (3, two, two + 1)), Fact(FLOAT)]
    first, second, third = _name_unknowns(tensors, facts)
    assert first == Fact(FLOAT, (symbol("?a.0"), B, symbol("?a.2")))
    assert second == Fact(INT64, (3,), (3, symbol("?a.2"), symbol("?b[2]")))  # one size has one name
    assert third == Fact(FLOAT)
    again = _name_unknowns(tensors, [Fact(FLOAT, (unknown(), B, unknown())), Fact(INT64, (2,), (3, unknown()))])
    assert again[0] == first
    assert again[1] == Fact(INT64, (2,), (3, symbol("?b[1]")))
    assert not is_known(symbol("?a.0"))


def test_attributes_as_make_node_takes_them() -> None:
    node = gs.Node("Any", "any", {"axis": 2, "text": "x", "list": [1, 2], "value": gs.Constant("", np.array([3, 4]))})
    plain = plain_attributes(node)
    assert {**plain, "value": None} == {"axis": 2, "text": "x", "list": [1, 2], "value": None}
    assert np.array_equal(onnx.numpy_helper.to_array(plain["value"]), [3, 4])


@pytest.mark.parametrize(
    ("dims", "shape"),
    [
        (["B", 4], (B, 4)), ([0, 4], (0, 4)), ([-1, 4], None), (["?", 4], None), (["-1", 4], None), (["", 4], None),
        (["2*B", "B"], (2 * B, B)), (None, None), ([], ()),
    ],
)  # fmt: skip
def test_declared_sizes(dims: list[int | str] | None, shape: tuple[Dim, ...] | None) -> None:
    facts = Facts(23, "unet")
    tensor = gs.Variable("x", np.float16, dims)
    facts.declare([tensor])
    found = facts.of(tensor)
    assert found.dtype == HALF
    if shape is not None or dims is None:
        assert found.shape == shape
    else:
        assert found.shape == (symbol("?x.0"), 4)


NUMBERS = itertools.count()


def infer(facts: Facts, op: str, inputs: list[gs.Tensor], outputs: int = 1, **attributes: Any) -> list[Fact]:
    domain = attributes.pop("domain", None)
    made = [gs.Variable(f"made{next(NUMBERS)}") for _ in range(outputs)]
    node = gs.Node(op, "node", attributes, inputs, made, domain=domain)
    facts.infer(node)
    return [facts.of(t) for t in made]


def test_pieces_have_their_sizes_however_many_there_are() -> None:
    """Those of all modulations of a transformer are more than values are followed of."""
    facts, t = table(x=Fact(HALF, (B, 900, 4)))
    sizes = gs.Constant("sizes", np.arange(1, MAX_VALUE + 7, dtype=np.int64))
    found = infer(facts, "Split", [t["x"], sizes], MAX_VALUE + 6, axis=1)
    assert found == [Fact(HALF, (B, size, 4)) for size in range(1, MAX_VALUE + 7)]


def test_what_no_rule_knows_is_asked_of_onnx() -> None:
    facts, t = table(
        x=Fact(HALF, (B, 2 * H, 6)), axes=Fact(INT64, (1,), (-1,)), open=Fact(INT64, (1,)), untyped=Fact(None, (B, 4))
    )
    assert infer(facts, "ReduceMean", [t["x"], t["axes"]], keepdims=1) == [Fact(HALF, (B, 2 * H, 1))]
    assert infer(facts, "ReduceMean", [t["x"], t["axes"]], keepdims=0) == [Fact(HALF, (B, 2 * H))]
    assert infer(facts, "Split", [t["x"]], 2, axis=2, num_outputs=2) == [Fact(HALF, (B, 2 * H, 3))] * 2
    (vague,) = infer(facts, "ReduceMean", [t["x"], t["open"]], keepdims=1)
    assert (vague.dtype, vague.shape) == (HALF, None)
    assert infer(facts, "Trilu", [t["untyped"]]) == [NOTHING]
    assert infer(facts, "Trilu", [t["x"], gs.Variable.empty()]) == [Fact(HALF, (B, 2 * H, 6))]
    assert infer(facts, "Trilu", [t["x"]], domain="elsewhere") == [NOTHING]
    assert infer(facts, "Unheard", [t["x"]], 2) == [NOTHING, NOTHING]
    assert infer(facts, "Split", [t["x"]], 2, axis=7, num_outputs=2) == [NOTHING, NOTHING]


def test_onnxs_answer_is_read_with_the_sizes_it_was_given() -> None:
    facts, t = table(x=Fact(HALF, (B * H, 4)))
    assert facts._fact(None) is NOTHING
    assert facts._fact(onnx.TypeProto()) is NOTHING
    make = onnx.helper.make_tensor_type_proto
    assert facts._fact(make(10, None)) == Fact(HALF)
    assert facts._fact(make(0, [2])) == Fact(None, (2,))
    assert facts._fact(make(10, [2, 0])) == Fact(HALF, (2, 0))
    proto = facts.type_proto(t["x"])
    assert proto is not None
    assert [d.dim_param or d.dim_value for d in proto.tensor_type.shape.dim] == [str(B * H), 4]
    assert facts._fact(proto) == Fact(HALF, (B * H, 4))
    strange = facts._fact(make(10, ["nobody", 3]))
    assert strange.shape is not None
    assert (is_known(strange.shape[0]), strange.shape[1]) == (False, 3)
    assert facts.type_proto(gs.Variable("nothing")) is None
    shapeless = facts._type(Fact(FLOAT))
    assert not shapeless.tensor_type.HasField("shape")


def test_a_contradiction_names_component_and_node() -> None:
    facts, t = table(x=Fact(HALF, (2, 3)))
    with pytest.raises(
        BadModelError, match="the inputs and attributes of this Transpose do not fit together"
    ) as caught:
        infer(facts, "Transpose", [t["x"]], perm=[0, 5])
    assert (caught.value.component, caught.value.node) == ("unet", "node")


@pytest.mark.parametrize(
    ("op", "attributes", "inputs"),
    [
        ("Conv", {"strides": [0, 0]}, "xk"), ("Concat", {}, "xx"), ("Reshape", {}, "nt"),
        ("Transpose", {"perm": 3}, "x"), ("Gather", {"axis": 0}, "ni"),
    ],
)  # fmt: skip
def test_whatever_a_rule_stumbles_over_is_the_models_fault(op: str, attributes: dict[str, Any], inputs: str) -> None:
    """Divisions by 0, missing keys, numbers that do not fit, wrong types, places that are not there."""
    facts, t = table(
        x=Fact(HALF, (2, 4, 6, 6)), k=Fact(HALF, (3, 4, 1, 1)), n=Fact(INT64, (2,), (1, 2)),
        t=Fact(INT64, (1,), (3,)), i=Fact(INT64, (1,), (9,)),
    )  # fmt: skip
    with pytest.raises(BadModelError, match=f"of this {op} do not fit together"):
        infer(facts, op, [t[name] for name in inputs], **attributes)


def test_inference_learns_sizes_and_names_those_that_it_cannot_tell() -> None:
    tokens = symbol("tokens")
    facts, t = table(
        x=Fact(HALF, (B, tokens)),
        y=Fact(HALF, (W, 5)),
        open=Fact(INT64, (2,)),
        z=Fact(HALF, (2, tokens)),
        g=Fact(HALF, (4,)),
    )
    (joined,) = infer(facts, "MatMul", [t["x"], t["y"]])
    assert joined == Fact(HALF, (B, 5))
    assert facts.shape(t["x"]) == (B, W)
    assert facts.shape(t["z"]) == (2, W)
    made = gs.Variable("made")
    node = gs.Node("Reshape", "node", {}, [t["x"], t["open"]], [made])
    for _ in range(2):
        facts.infer(node)
        assert facts.shape(made) == (symbol("?made.0"), symbol("?made.1"))
    (bias,) = infer(facts, "BiasGelu", [t["x"], t["g"]], domain="com.microsoft")
    assert bias == Fact(HALF, (B, W))
    assert infer(facts, "Unheard", [t["x"]], domain="com.microsoft") == [NOTHING]


def test_outputs_without_a_name_are_not_kept() -> None:
    facts, t = table(x=Fact(HALF, (2, 3)))
    node = gs.Node("Dropout", "node", {}, [t["x"]], [gs.Variable("y"), gs.Variable.empty()])
    facts.infer(node)
    assert sorted(facts.changed) == ["y"]


def test_a_node_is_called_as_its_operators_file_states_it() -> None:
    editor = edit("""
        g (float[B, 6] x, float[6] g) => (float[B, 6] y, float[B, 6] s, float[B, 6] z) {
            y, , , s = com.microsoft.SkipLayerNormalization <epsilon = 0.5> (x, x, g)
            z = Clip (x, , )
        }""")
    skip, clip = editor.graph.nodes
    call = editor.facts.call(skip)
    assert list(call.inputs) == ["input", "skip", "gamma"]
    assert len(call.outputs) == 2
    assert (call.attributes["epsilon"], call.shape("gamma"), call.shape("beta")) == (0.5, (6,), None)
    assert list(editor.facts.call(clip).inputs) == ["input"]
    for domain, spelled in (("elsewhere", "elsewhere"), ("com.microsoft", "com.microsoft"), (None, "ai.onnx")):
        with pytest.raises(LookupError, match=rf"no file of sdort/operators/ is {spelled}\.Unheard"):
            editor.facts.call(gs.Node("Unheard", "u", {}, [], [], domain=domain))


def test_sizes_that_operators_equate() -> None:
    two_h, two_w, two_b = 2 * H, 2 * W, 2 * B
    rows: list[tuple[str, dict[str, Any], list[Any], list[tuple[Dim, Dim]]]] = [
        ("Concat", {"axis": 1}, [(B, 3, H), (W, 4, H), (2, 5, 6)], [(B, W), (B, 2), (H, H), (H, 6)]),
        ("Concat", {"axis": -1}, [(B, 3), (W, 4)], [(B, W)]),
        ("Concat", {"axis": 0}, [(B, 3), None], []),
        ("Concat", {"axis": 0}, [(B, 3), (B, 3, 1)], []),
        ("MatMul", {}, [(B, H), (W, 4)], [(H, W)]),
        ("MatMul", {}, [(B, H), (W,)], [(H, W)]),
        ("MatMul", {}, [(two_b, 3, H), (two_h, W, 4)], [(H, W), (two_b, two_h)]),
        ("MatMul", {}, [(B, 3, H), (H, W, 4)], [(H, W)]),
        ("MatMul", {}, [None, (W, 4)], []),
        ("MatMul", {}, [(W, 4), None], []),
        ("Attention", {}, [(B, 3, 8), (H, W, 8), (2, 5, 9)], [(B, H), (B, 2), (H, 2), (W, 5)]),
        ("Attention", {}, [(B, 2, 3, H), (B, 2, 5, W), (B, 2, 7, 9)], [(B, B)] * 3 + [(5, 7), (H, W)]),
        ("Attention", {}, [(B, 3, 8), (H, 2, W, 8), (2, 2, 5, 9), (1, 1)], [(B, H), (B, 2), (H, 2), (W, 5)]),
        ("Attention", {}, [(B, 3, 8), (H, W, 8), (2, 2, 5, 9)], [(B, H), (B, 2), (H, 2)]),
        ("Attention", {}, [None, (H, W, 8), (2, 5, 9)], [(H, 2), (W, 5)]),
        ("Attention", {}, [(B, 3, 8), None, (2, 5, 9)], [(B, 2)]),
        ("Attention", {}, [(B, 3, 8), (H, W, 8), None], [(B, H)]),
        *((op, {}, [(two_b, two_h), (two_w,)], [(two_h, two_w)]) for op in (
            "Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "Sum", "Mean", "And", "Or", "Xor", "Equal", "Less",
            "LessOrEqual", "Greater", "GreaterOrEqual")),
        ("Where", {}, [(two_b,), (two_h,), (two_w,)], [(two_b, two_h), (two_b, two_w), (two_h, two_w)]),
        ("Sum", {}, [(two_b,), None, (two_w,)], [(two_b, two_w)]),
        ("Add", {}, [(B,), (two_w,)], []), ("Add", {}, [(two_w,), (B,)], []), ("Add", {}, [(two_w,), (two_w,)], []),
        ("Add", {}, [(B + 1,), (2,)], [(B + 1, 2)]),
        ("Relu", {}, [(two_b,), (two_w,)], []),
    ]  # fmt: skip
    for op, attributes, shapes, wanted in rows:
        node = gs.Node(op, "node", attributes)
        assert list(equal_sizes(node, shapes)) == wanted, f"{op} {attributes} {shapes}"
        node.domain = "elsewhere"
        assert list(equal_sizes(node, shapes)) == []
