"""What a rewrite takes over, refuses and leaves: precision, positions, origins, readers, optional outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest
from support.small_graphs import edit, operators

from sdort.errors import BadModelError
from sdort.graph.symbolic import Shape, symbol
from sdort.rewrite.editor import Editor, live_nodes, sort_nodes
from sdort.rewrite.match import Progress, Refusal, find
from sdort.rewrite.pattern import parse_pattern
from sdort.rewrite.substitute import _contradict, _discard, _reads_removed, _take_over, _trim, substitute


class OnlyStandard:
    """A target that runs none of the operators named."""

    def __init__(self, *missing: str) -> None:
        self.missing = missing

    def unsupported(self, node: gs.Node, editor: Editor) -> str | None:
        return f"no kernel of {node.op}" if node.op in self.missing else None


def rewrite(
    editor: Editor,
    before: str,
    after: str,
    derived: dict[str, Any] | None = None,
    *,
    support: OnlyStandard | None = None,
    through_casts: bool = False,
) -> Refusal | None:
    pattern = parse_pattern(before)
    root = editor.graph.outputs[0].inputs[0]
    match = find(editor, pattern, root, Progress(), through_casts=through_casts)
    assert match is not None
    return substitute(editor, pattern, parse_pattern(after), match, derived or {}, support)


H, W = symbol("H"), symbol("W")


@pytest.mark.parametrize(
    ("before", "after", "contradict"),
    [
        (None, (2, 3), False), ((2, 3), None, False), (None, None, False), ((2, 3), (2, 3), False),
        ((2, 3), (2, 4), True), ((3, 2), (4, 2), True), ((2, 3), (2, 3, 1), True), ((2, 3), (2,), True),
        ((2, H), (2, 3), False), ((2, H), (2, W), False), ((2, 3), (2, H), False), ((2, H), (3, H), True),
        ((), (), False), ((), (1,), True),
    ],
)  # fmt: skip
def test_shapes_that_cannot_be_one(before: Shape | None, after: Shape | None, contradict: bool) -> None:
    assert _contradict(before, after) is contradict


TEXT = "g (float[B, 4] t) => (float[B, 4] r, float[B, 4] other) { n = Neg (t)  r = Abs (n)  other = Relu (r) }"
BEFORE = "g (float[N, C] x) => (float[N, C] y) { n = Neg (x)  y = Abs (n) }"


def test_readers_outputs_and_origins_stay() -> None:
    editor = edit(TEXT)
    first, second = editor.graph.nodes[0].name, editor.graph.nodes[1].name
    editor.origins.update({first: ("one", "two"), second: ("two", "three")})
    editor.step = "mine"
    after = "g (float[N, C] x) => (float[N, C] y) { s = Sin (x)  y = Cos (s) }"
    assert rewrite(editor, BEFORE, after) is None
    editor.finish()
    assert operators(editor) == {"Cos": 1, "Relu": 1, "Sin": 1}
    sin, cos, relu = editor.graph.nodes
    assert [t.name for t in editor.graph.outputs] == ["r", "other"]
    assert cos.outputs[0] is relu.inputs[0] is editor.graph.outputs[0]
    for made in (sin, cos):
        assert editor.origins[made.name][:1] in (("one",), ("two",))
        assert sorted(editor.origins[made.name]) == ["mine", "one", "three", "two"]
        assert editor.origins[made.name][-1] == "mine"
    assert relu.name not in editor.origins
    assert editor.shape(cos.outputs[0]) == (symbol("B"), 4)


@pytest.mark.parametrize("missing", ["Sin", "Cos", "Tan"])
def test_what_a_target_does_not_run_leaves_the_graph_as_it_was(missing: str) -> None:
    editor = edit(TEXT)
    nodes = list(editor.graph.nodes)
    after = "g (float[N, C] x) => (float[N, C] y) { s = Sin (x)  c = Cos (s)  y = Tan (c) }"
    refusal = rewrite(editor, BEFORE, after, support=OnlyStandard(missing))
    assert refusal == Refusal(f"no kernel of {missing}", applicable=False, by_target=True)
    assert list(map(id, editor.graph.nodes)) == list(map(id, nodes))
    assert [t.name for n in nodes for t in (*n.inputs, *n.outputs)] == ["t", "n", "n", "r", "r", "other"]
    assert len(editor.graph.inputs[0].outputs) == 1


def test_a_result_of_another_shape_is_declined() -> None:
    editor = edit(TEXT)
    after = "g (float[N, C] x) => (float[N, C] y) <int64[1] a = {0}> { s = Unsqueeze (x, a)  y = Abs (s) }"
    refusal = rewrite(editor, BEFORE, after)
    assert refusal is not None
    assert (str(refusal), refusal.applicable, refusal.by_target) == ("its result has another shape (r)", False, False)
    assert operators(editor) == {"Abs": 1, "Neg": 1, "Relu": 1}


def test_attributes_are_captured_derived_or_left_out() -> None:
    before = "g (float[N, C] x) => (float[N, C] y) { n = Softmax <axis: int = @axis> (x)  y = Abs (n) }"
    after = """g (float[N, C] x) => (float[N, C] y) <float[C] scale> {
        s = Mul (x, scale)  y = LayerNormalization <axis: int = @axis, epsilon: float = @eps, stash_type: int = @none>
        (s, scale)
    }"""
    editor = edit("g (float[B, 4] t) => (float[B, 4] r) { n = Softmax <axis = 1> (t)  r = Abs (n) }")
    scale = editor.constant(np.arange(4, dtype=np.float32), "scale")
    assert rewrite(editor, before, after, {"eps": 0.25, "none": None, "scale": scale}) is None
    editor.finish()
    norm = editor.graph.nodes[-1]
    assert norm.attrs == {"axis": 1, "epsilon": 0.25}
    assert norm.inputs[1] is scale


@pytest.mark.parametrize(("inner", "through"), [("float16", False), ("double", False), ("float", True)])
def test_numbers_take_the_precision_of_the_match(inner: str, through: bool) -> None:
    number = {"float16": 10, "float": 1, "double": 11}[inner]
    outer = "float16" if through else inner
    text = f"g ({outer}[B, 4] t, {outer}[4] u) => ({outer}[B, 4] r) {{ "
    text += f"c = Cast <to = {number}> (t)  n = Neg (c)  d = Cast <to = 10> (n)  r = Abs (d)" if through else ""
    editor = edit(text + ("" if through else "n = Neg (t)  r = Abs (n)") + " }")
    after = """g (float[N, C] x) => (float[N, C] y) <float half = {0.5}, int64[1] last = {-1}> {
        a = Mul (x, half)  m = ReduceMean <keepdims = 1> (a, last)  y = Add (a, m)
    }"""
    assert rewrite(editor, BEFORE, after, through_casts=through) is None
    editor.finish()
    wanted = np.dtype({"float16": "float16", "float": "float32", "double": "float64"}[inner])
    mul = next(node for node in editor.graph.nodes if node.op == "Mul")
    assert mul.inputs[1].dtype == editor.dtype(mul.inputs[0]) == editor.dtype(mul.outputs[0]) == wanted
    mean = next(node for node in editor.graph.nodes if node.op == "ReduceMean")
    assert mean.inputs[1].dtype == np.int64
    # Single inside of half: what flows in and out is cast, and nothing else.
    assert [node.op for node in editor.graph.nodes].count("Cast") == (2 if through else 0)
    assert editor.dtype(editor.graph.outputs[0]) == np.dtype("float16" if through else wanted)


def test_constants_that_a_match_reads_are_cast_with_it() -> None:
    text = """g (float16[B, 4] t) => (float16[B, 4] r) {
        c = Cast <to = 1> (t)  n = Neg (c)  d = Cast <to = 10> (n)  r = Mul (d, w)
    }"""
    editor = edit(text, {"w": np.arange(4, dtype=np.float16)})
    before = "g (float[N, C] x) => (float[N, C] y) <float[C] w> { n = Neg (x)  y = Mul (n, w) }"
    after = "g (float[N, C] x) => (float[N, C] y) <float[C] w> { y = Mul (x, w) }"
    assert rewrite(editor, before, after, through_casts=True) is None
    editor.finish()
    mul = next(node for node in editor.graph.nodes if node.op == "Mul")
    assert mul.inputs[1].dtype == np.float32
    assert [editor.dtype(t) for t in mul.inputs] == [np.float32] * 2


GATED = """
g (float[2, C] x, float[2, C] by) => (float[2, C] y, float[2, C] n) {{ n = {op} (x)  y = Mul (n, by) }}"""


@pytest.mark.parametrize(("by", "circular"), [("s = Sin (n)", True), ("s = Sin (t)", False)])
def test_what_is_computed_from_one_output_is_not_read_for_another(by: str, circular: bool) -> None:
    editor = edit(f"g (float[2, 8] t) => (float[2, 8] r, float[2, 8] n) {{ n = Neg (t)  {by}  r = Mul (n, s) }}")
    before, after = parse_pattern(GATED.format(op="Neg")), parse_pattern(GATED.format(op="Abs"))
    match = find(editor, before, editor.graph.outputs[0].inputs[0], Progress())
    assert match is not None
    refusal = substitute(editor, before, after, match, {}, None)
    assert str(refusal) == ("the result would need what it replaces (by)" if circular else "None")
    editor.finish()


CIRCLE = "g (float[2, C] x, int64[] s) => (float[] y) {{ n = {op} (x)  y = Reshape (n, s) }}"


@pytest.mark.parametrize(
    ("sizes", "circular"),
    [
        ("s = Shape (n)", True), ("h = Shape (n)  s = Add (h, one)", True), ("s = Shape (t)", False),
        ("h = Shape (n)  i = Shape (t)  s = Add (i, h)", True), ("h = Shape (t)  s = Add (h, h)", False),
    ],
)  # fmt: skip
def test_a_size_of_what_is_replaced_cannot_be_read(sizes: str, circular: bool) -> None:
    editor = edit(f"g (float[2, 8] t, int64[2] one) => (float[] r) {{ n = Neg (t)  {sizes}  r = Reshape (n, s) }}")
    before, after = CIRCLE.format(op="Neg"), CIRCLE.format(op="Abs")
    pattern = parse_pattern(before)
    match = find(editor, pattern, editor.graph.outputs[0].inputs[0], Progress())
    assert match is not None
    assert _reads_removed(editor, pattern, parse_pattern(after), match) == ("s" if circular else None)
    unread = parse_pattern("g (float[2, C] x, int64[] s) => (float[] y) { y = Abs (x) }")
    assert _reads_removed(editor, pattern, unread, match) is None
    refusal = substitute(editor, pattern, parse_pattern(after), match, {}, None)
    assert str(refusal) == ("the result would need a size of what it replaces (s)" if circular else "None")
    assert refusal is None or refusal.applicable
    editor.finish()
    assert ("Neg" in operators(editor)) is circular


def test_nodes_that_were_appended_last_are_taken_out() -> None:
    editor = edit(TEXT)
    before = list(editor.graph.nodes)
    made = [editor.node("Sin", [editor.graph.inputs[0]])]
    made.append(editor.node("Cos", made[0].outputs))
    _discard(editor, made)
    assert list(map(id, editor.graph.nodes)) == list(map(id, before))
    assert [(len(n.inputs), len(n.outputs)) for n in made] == [(0, 0), (0, 0)]
    assert [reader.op for reader in editor.graph.inputs[0].outputs] == ["Neg"]
    stray = editor.node("Sin", [editor.graph.inputs[0]])
    editor.node("Cos", stray.outputs)
    with pytest.raises(AssertionError):
        _discard(editor, [stray])


def test_what_is_made_has_the_outputs_and_the_domain_of_after() -> None:
    editor = edit("g (float[2, 3, 8] t, float[8] g) => (float[2, 3, 8] r) { n = Neg (t)  r = Abs (n) }")
    before = "g (float[N, S, C] x) => (float[N, S, C] y) { n = Neg (x)  y = Abs (n) }"
    after = """g (float[N, S, C] x) => (float[N, S, C] y) {
        y, , , sum = com.microsoft.SkipLayerNormalization (x, x, g)
    }"""
    gamma = editor.graph.inputs[1]
    assert rewrite(editor, before, after, {"g": gamma, "unused": 3}) is None
    (made,) = editor.graph.nodes[-1:]
    assert (made.op, made.domain) == ("SkipLayerNormalization", "com.microsoft")
    assert made.name.startswith("SkipLayerNormalization_")
    assert [t.name for t in made.outputs] == ["r"]  # nobody reads the sum
    assert made.inputs[2] is gamma


def test_a_result_that_the_pattern_does_not_have_is_none() -> None:
    editor = edit("g (float[4] t) => (float[4] r) { n = Neg (t)  r = Abs (n) }")
    after = "g (float[N] x) => (float[N] y, float[N] more) { more = Sin (x)  y = Cos (more) }"
    assert rewrite(editor, BEFORE.replace("N, C", "N"), after) is None
    editor.finish()
    assert operators(editor) == {"Cos": 1, "Sin": 1}


def test_a_cycle_is_told_with_its_place() -> None:
    for name, told in (("loop", "loop"), ("", "Abs")):
        a, b = gs.Variable("a"), gs.Variable("b")
        nodes = [gs.Node("Abs", name, {}, [a], [b]), gs.Node("Abs", name, {}, [b], [a])]
        with pytest.raises(BadModelError, match="the graph has a cycle") as caught:
            sort_nodes(nodes, "vae_decoder")
        assert (caught.value.component, caught.value.node) == ("vae_decoder", told)


def test_a_producer_takes_over_one_of_its_outputs() -> None:
    editor = edit("g (float[4, 6] t) => (float[4, 3] r) { r = Neg (t) }")
    old = editor.graph.outputs[0]
    split = editor.node("Split", [editor.graph.inputs[0]], {"axis": 1, "num_outputs": 2}, outputs=2)
    keep, new = split.outputs
    twice = editor.node("Mul", [new, new])
    assert _take_over(editor, old, new) == []
    assert [id(t) for t in split.outputs] == [id(keep), id(old)]
    assert [id(t) for t in twice.inputs] == [id(old), id(old)]
    assert old.inputs == [split]
    assert not new.outputs
    assert editor.shape(old) == (4, 3)


@pytest.mark.parametrize(
    ("old", "new", "casts"),
    [("float16", "float", 1), ("float", "float", 0), ("int64", "int32", 0), ("int64", "float", 0)],
)
def test_a_result_of_another_float_is_cast(old: str, new: str, casts: int) -> None:
    numbers = {"float": 1, "int32": 6, "int64": 7, "float16": 10}
    editor = edit(f"g (float[4] t) => ({old}[4] r) {{ r = Cast <to = {numbers[old]}> (t) }}")
    target = editor.graph.outputs[0]
    made = editor.op("Cast", [editor.graph.inputs[0]], {"to": numbers[new]})
    taken = _take_over(editor, target, made)
    assert [node.op for node in taken] == ["Cast"] * casts
    assert [node.attrs["to"] for node in taken] == [numbers[old]] * casts
    assert target.inputs == (taken or editor.graph.nodes[-1:])


@pytest.mark.parametrize(
    ("read", "names"),
    [
        ("", ["y"]), ("abc", ["y", "a", "b", "c"]), ("a", ["y", "a"]), ("b", ["y", "", "b"]), ("c", ["y", "", "", "c"]),
        ("ac", ["y", "a", "", "c"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by", ["node", "output"])
def test_optional_outputs_that_nobody_reads_go(read: str, names: list[str], by: str) -> None:
    editor = edit("g (float[2, 3] t) => (float[2, 3] r) { r = Neg (t) }")
    outputs = [gs.Variable(name) for name in "yabc"]
    node = gs.Node("Many", "many", {}, [editor.graph.inputs[0]], outputs)
    for tensor in outputs:
        if tensor.name in read:
            if by == "node":
                gs.Node("Reader", "reader", {}, [tensor], [gs.Variable("z")])
            else:
                editor.graph.outputs.append(tensor)
    _trim(editor, node)
    assert [t.name for t in node.outputs] == names


def test_a_call_of_a_function_has_all_of_its_outputs() -> None:
    """ONNX Runtime refuses one with fewer; those that nobody reads lose their names alone."""
    editor = edit("g (float[2, 3] t) => (float[2, 3] r) { r = Neg (t) }")
    node = gs.Node("Many", "many", {}, [editor.graph.inputs[0]], [gs.Variable(n) for n in "yab"], domain="sdort")
    _trim(editor, node)
    assert [t.name for t in node.outputs] == ["y", "", ""]


def test_nodes_that_no_output_needs_are_cut_off() -> None:
    editor = edit("g (float[4] t) => (float[4] r, float[4] s) { r = Neg (t)  s = Abs (r)  x = Sin (r)  y = Cos (x) }")
    nodes = {node.op: node for node in editor.graph.nodes}
    assert [node.op for node in live_nodes(editor.graph)] == ["Neg", "Abs"]
    for op in ("Sin", "Cos"):
        assert (len(nodes[op].inputs), len(nodes[op].outputs)) == (0, 0)
    assert [reader.op for reader in nodes["Neg"].outputs[0].outputs] == ["Abs"]


@pytest.mark.parametrize("order", ["abcd", "dcba", "bdac", "acbd"])
def test_an_order_is_kept_where_it_can(order: str) -> None:
    text = "g (float[4] t) => (float[4] d, float[4] c) { a = Neg (t)  b = Abs (a)  c = Sin (a)  d = Add (b, a) }"
    nodes = {node.outputs[0].name: node for node in edit(text).graph.nodes}
    given = [nodes[name] for name in order]
    found = sort_nodes(given, "unet")
    names = "".join(node.outputs[0].name for node in found)
    assert sorted(names) == list("abcd")
    assert all(names.index(x) < names.index(y) for x, y in ("ab", "ac", "bd"))
    assert (found is given) is (order in ("abcd", "acbd"))
