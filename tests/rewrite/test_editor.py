"""The editor of a graph: names, positions, what replaces what, small constants, and the record of who made a node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from support.small_graphs import Described, edit, load, operators

from sdort.errors import BadModelError
from sdort.graph.signature import Array
from sdort.graph.symbolic import symbol
from sdort.graph.weights import Absent, Cast, Concatenated, Inline
from sdort.rewrite.editor import SMALL_ELEMENTS, Editor, array, producer, scalar, weight
from sdort.rewrite.provenance import PROVENANCE_KEY, Provenance, provenance_json, read_provenance

TEXT = """
g (float[B, 4] x, int64[1] one) => (float[B, 4] y, float[B, 4] z) <float c = {2.0}> {
    a = Neg (x)  b = Mul (a, c)  y = Abs (b)  z = Sin (b)
}"""


def named(editor: Editor) -> dict[str, gs.Node]:
    return {node.outputs[0].name: node for node in editor.graph.nodes}


def test_no_name_is_given_twice() -> None:
    editor = edit(TEXT)
    tensors = {"x", "one", "y", "z", "a", "b", "c"}
    nodes = {node.name for node in editor.graph.nodes}
    editor._names |= {"n_2", "n_4"}
    made = [editor.name("n") for _ in range(3)]
    assert made == ["n_1", "n_3", "n_5"]
    assert tensors | nodes <= editor._names
    again = Editor(editor.model)
    assert tensors | nodes <= again._names


def test_a_node_is_appended_with_names_facts_and_its_maker() -> None:
    editor = edit(TEXT)
    x = editor.graph.inputs[0]
    first = editor.node("Split", [x], {"axis": 1, "num_outputs": 2}, outputs=2, hint="part")
    assert editor.graph.nodes[-1] is first
    assert [t.name for t in first.outputs] == [first.name, f"{first.name}_1"]
    assert first.name.startswith("part_")
    assert [editor.shape(t) for t in first.outputs] == [(symbol("B"), 2)] * 2
    assert first.name not in editor.origins
    editor.step = "step"
    second = editor.node("QuickGelu", [x], domain="com.microsoft")
    assert (second.domain, editor.origins[second.name]) == ("com.microsoft", ("step",))
    assert second.name.startswith("QuickGelu_")
    assert first.domain is None
    b = named(editor)["b"].outputs[0]
    taken = editor.op("Cos", [x], outputs=[b])
    assert taken is b
    assert [node.op for node in b.inputs] == ["Cos"]
    third = editor.cast(x, np.dtype(np.float16))
    assert (third.op, third.attrs) == ("Cast", {"to": 10})
    assert editor.dtype(third.outputs[0]) == np.float16
    into = gs.Variable("into")
    assert editor.cast(x, np.dtype(np.int64), into).outputs == [into]


def test_positions_keep_every_reader_behind_what_it_reads() -> None:
    editor = edit(TEXT)
    nodes = named(editor)
    order = [editor.position(nodes[name]) for name in "abyz"]
    assert order == sorted(order)
    assert editor.position(nodes["a"]) == 0
    late = editor.node("Add", [nodes["y"].outputs[0], nodes["z"].outputs[0]])
    assert editor.position(late) == max(order)
    free = editor.node("Cos", [editor.graph.inputs[0]])
    assert editor.position(free) == 0
    # A new producer of ``a`` that reads the last node's sibling moves all that follow.
    branch = editor.node("Tan", [late.outputs[0]])
    other = editor.node("Exp", [free.outputs[0]])
    other.inputs[0] = branch.outputs[0]
    follower = editor.node("Erf", other.outputs)
    behind = editor.node("Sign", follower.outputs)
    assert (editor.position(follower), editor.position(behind)) == (0, 0)
    editor.place(other)
    assert editor.position(other) == editor.position(branch) == max(order)
    assert editor.position(follower) == editor.position(behind) == max(order)


def test_what_reads_a_tensor_reads_another_and_an_output_keeps_its_name() -> None:
    editor = edit(TEXT)
    nodes = named(editor)
    twice = editor.node("Add", [nodes["b"].outputs[0]] * 2)
    new = editor.op("Cos", [editor.graph.inputs[0]])
    editor.replace(nodes["b"].outputs[0], new)
    assert [id(t) for t in twice.inputs] == [id(new)] * 2
    assert nodes["y"].inputs[0] is nodes["z"].inputs[0] is new
    count = len(editor.graph.nodes)
    assert [editor.is_output(nodes[name].outputs[0]) for name in "abyz"] == [False, False, True, True]
    assert not editor.is_output(gs.Variable("y"))
    editor.replace(nodes["y"].outputs[0], new)
    assert len(editor.graph.nodes) == count + 1
    editor.finish()
    assert operators(editor) == {"Cos": 1, "Identity": 1, "Sin": 1}
    assert [t.name for t in editor.graph.outputs] == ["y", "z"]
    assert editor.graph.outputs[0].inputs[0].op == "Identity"


def test_constants_of_one_name_are_told_apart() -> None:
    model = load(TEXT)
    nodes = {node.outputs[0].name: node for node in model.graph.nodes}
    clashing = [
        gs.Constant(name, np.array(float(i), np.float32)) for i, name in enumerate(("c", "x", "y", "a", "alone"))
    ]
    for index, constant in enumerate(clashing):
        model.graph.nodes.append(gs.Node("Add", f"n{index}", {}, [constant, constant], [gs.Variable(f"o{index}")]))
    editor = Editor(model)
    names = [constant.name for constant in clashing]
    assert names[-1] == "alone"
    assert nodes["b"].inputs[1].name == "c"
    everything = [*names, "c", "x", "one", "y", "z", "a", "b"]
    assert len(set(everything)) == len(everything)
    assert [name.rpartition("_")[0] for name in names[:-1]] == ["c", "x", "y", "a"]
    assert editor.shape(clashing[1]) == ()
    assert editor.shape(model.graph.inputs[0]) == (symbol("B"), 4)


def test_a_graph_that_was_changed_from_outside_is_taken_as_it_is() -> None:
    editor = edit(TEXT)
    facts = editor.facts
    assert editor.facts is facts
    assert (editor.half, Editor(editor.model, half=True).half) == (False, True)
    editor.graph.nodes.append(gs.Node("Cos", "mine", {}, [editor.graph.outputs[0]], [gs.Variable("w")]))
    editor.graph.nodes.reverse()
    editor.refresh()
    assert editor.facts is not facts
    assert editor.shape(editor.graph.tensors()["w"]) == (symbol("B"), 4)
    assert [node.outputs[0].name for node in editor.graph.nodes][:2] == ["a", "b"]
    assert {"w", "mine"} <= editor._names
    nodes = named(editor)
    nodes["a"].inputs[0] = nodes["b"].outputs[0]
    with pytest.raises(BadModelError, match="the graph has a cycle") as caught:
        editor.finish()
    assert caught.value.component == "test"


@pytest.mark.parametrize(
    ("values", "integer"), [([3], 3), (3, 3), ([3, 4], None), ([], None), (3.0, None), ([[3]], 3)], ids=str
)
def test_the_element_of_an_integer_tensor(values: Any, integer: int | None) -> None:
    editor = edit(TEXT)
    tensor = editor.constant(np.asarray(values, None if np.size(values) else np.int64))
    assert editor.integer(tensor) == integer
    assert editor.integer(editor.graph.inputs[1]) is None
    sizes = editor.op("Shape", [editor.graph.inputs[0]], {"end": 1})
    assert editor.dims(sizes) == (symbol("B"),)
    assert editor.integer(sizes) is None
    assert editor.ints([4, 5]).values.tolist() == [4, 5]
    assert editor.ints([4, 5]).dtype == np.int64


def constant(values: Any) -> gs.Constant:
    made = gs.Constant("c", np.zeros(1))
    made._values = values
    return made


def test_small_constants_are_read_and_others_are_not() -> None:
    at_most, more = np.zeros(SMALL_ELEMENTS), np.zeros(SMALL_ELEMENTS + 1)
    for values, limit, read in (
        (at_most, None, True), (more, None, False), (more, SMALL_ELEMENTS + 1, True), (np.zeros((32, 33)), None, False),
        (np.zeros((2, 3)), 5, False), (np.zeros((2, 3)), 6, True),
    ):  # fmt: skip
        found = array(constant(values)) if limit is None else array(constant(values), limit)
        assert (found is not None) is read
    inline = Inline(np.arange(4.0))
    read_back = array(constant(Cast(inline, np.float16)))
    assert read_back is not None
    assert read_back.tolist() == [0.0, 1.0, 2.0, 3.0]
    absent = Absent("p", [4], np.float32)
    assert array(constant(absent)) is None
    assert array(constant(Concatenated([Cast(inline, np.float32), absent], 0))) is None
    assert array(gs.Variable("v")) is None
    assert weight(gs.Variable("v")) is None
    described = Described([2], np.float32)
    assert weight(constant(described)) is described
    for values, wanted in (
        (np.array([[2.5]]), 2.5),
        (np.array(3), 3.0),
        (np.array([1.0, 2.0]), None),
        (np.zeros(0), None),
    ):
        assert scalar(constant(values)) == wanted
    assert scalar(gs.Variable("v")) is None


class Counted(Inline):
    """Values that count how often they are read."""

    reads = 0

    def pieces(self, row: int = 1) -> Iterator[Array]:
        self.reads += 1
        return super().pieces(row)


def test_the_number_that_fills_a_constant_of_any_size() -> None:
    editor = edit(TEXT)
    ones = np.ones(300_000, np.float32)
    late = ones.copy()
    late[-1] = 2
    absent = Absent("p", [4], np.float32)
    for values, wanted in (
        (ones, 1.0), (late, None), (Inline(ones), 1.0), (Inline(late), None), (Cast(Inline(ones), np.float16), 1.0),
        (np.full((1, 2), 0.1, np.float32), float(np.float32(0.1))), (np.zeros(0, np.float32), None), (np.array(3), 3.0),
        (np.full(5, np.nan), None), (absent, None), (Concatenated([Inline(np.ones(2, np.float32)), absent], 0), None),
    ):  # fmt: skip
        assert editor.filling(constant(values)) == wanted
    assert editor.filling(gs.Variable("v")) is None
    counted = Counted(ones)
    assert [editor.filling(constant(counted)) for _ in range(3)] == [1.0] * 3
    assert counted.reads == 1


def test_the_node_that_computes_a_tensor() -> None:
    tensor, free = gs.Variable("t"), gs.Variable("f")
    node: Any = gs.Node("Gelu", "g", {}, [free], [tensor], domain="com.microsoft")
    assert producer(free) is None
    assert producer(tensor) is node
    assert producer(tensor, "Gelu", "com.microsoft") is node
    assert producer(tensor, "Gelu") is None
    assert producer(tensor, "Relu", "com.microsoft") is None
    tensor.inputs[0].domain = None
    assert producer(tensor, "Gelu") is node
    assert producer(tensor, "Gelu", "com.microsoft") is None


def test_who_made_a_node_comes_back_from_a_model() -> None:
    editor = edit(TEXT)
    nodes = named(editor)
    a, b, y = (nodes[name].name for name in "aby")
    editor.origins.update({a: ("one", "two"), b: ("two",), y: ("one", "two"), "gone": ("one",)})
    editor.layouts.update({"b": "original", "lost": "other"})
    text = provenance_json(editor)
    assert json.loads(text) == {"makers": {"one,two": [a, y], "two": [b]}, "layouts": {"b": "original"}}
    assert text == json.dumps(json.loads(text), separators=(",", ":"), sort_keys=True)
    proto = onnx.ModelProto()
    assert read_provenance(proto) == Provenance()
    proto.metadata_props.add(key="other", value="{}")
    proto.metadata_props.add(key=PROVENANCE_KEY, value=text)
    found = read_provenance(proto)
    assert found.makers == {a: ("one", "two"), y: ("one", "two"), b: ("two",)}
    assert found.layouts == {"b": "original"}
    damaged = (
        "",
        "{",
        "[]",
        "{}",
        '{"makers": {}}',
        '{"makers": [], "layouts": {}}',
        '{"makers": {"a": 1}, "layouts": {}}',
    )
    for text in damaged:
        proto.metadata_props[1].value = text
        assert read_provenance(proto) == Provenance(), text
