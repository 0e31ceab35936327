"""What is computed differently is found wherever it is, and names, orders and defaults make no difference."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from support.changed_models import OPEN, changed_models, copy
from support.fusion_models import CASES, before_model
from support.small_graphs import parse, run

import sdort
from sdort.cli import cli
from sdort.errors import SdortError
from sdort.graph.operator import REQUIRED, Operator
from sdort.inspection.graph_difference import Place, differing_places
from sdort.onnx_io.load import from_proto
from sdort.operators import load_operators
from sdort.rewrite.fusion import load_fusions

NUMBERS = ", ".join(str(number) for number in range(64))
TEXT = f"""g (float[B, 8] x, float[B, 8] v) => (float[B, 8] y, float[B, 8] e)
    <float[8, 8] w = {{{NUMBERS}}}, float[8] b = {{0, 1, 2, 3, 4, 5, 6, 7}}> {{
    q = MatMul (x, w)
    k = Add (q, b)
    n = LayerNormalization <epsilon = 1e-5> (k, b, b)
    m = Mul (n, v)
    c = Concat <axis = 1> (m, k)
    s = Softmax <axis = -1> (c)
    z, t = Split <axis = 1, num_outputs = 2> (s)
    y = Sub (z, t)
    e = Elu (k)
}}"""


def places(before: onnx.ModelProto | str, after: onnx.ModelProto | str) -> list[Place]:
    protos = [copy(parse(each) if isinstance(each, str) else each) for each in (before, after)]
    return differing_places(*(from_proto(proto, None, "test") for proto in protos))


ANOTHER_ORDER = "inputs 1, 2 are the same ones in another order"
CHANGES = {
    "an attribute": ("epsilon = 1e-5", "epsilon = 1e-3", "attribute", "epsilon: 1e-05 -> 0.001"),
    "a default": ("Softmax <axis = -1>", "Softmax <axis = 0>", "attribute", "axis: -1 -> 0"),
    "a default that was not written": ("Elu (k)", "Elu <alpha = 2.0> (k)", "attribute", "alpha: 1 -> 2"),
    "the order of a Concat": ("(m, k)", "(k, m)", "wiring", ANOTHER_ORDER),
    "the outputs of a Split": ("Sub (z, t)", "Sub (t, z)", "wiring", ANOTHER_ORDER),
    "an input of the model": ("MatMul (x, w)", "MatMul (v, w)", "wiring", "another tensor is read"),
    "what is read": ("Elu (k)", "Elu (q)", "wiring", "another tensor is read"),
    "a weight": (
        "{0, 1, 2, 3, 4, 5, 6, 7, 8,",
        "{0, 1, 2, 3, 4, 5, 6, 7, 9,",
        "constant",
        "other values, float32[8, 8]",
    ),
    "an operator": ("k = Add", "k = Max", "operators", "1 node (1 Add) -> 1 node (1 Max)"),
    "one more": ("m = Mul (n, v)", "a = Abs (n)\n m = Mul (a, v)", "operators", "no node -> 1 node (1 Abs)"),
}


@pytest.mark.parametrize(("old", "new", "kind", "what"), CHANGES.values(), ids=CHANGES)
def test_each_change_is_one_place(old: str, new: str, kind: str, what: str) -> None:
    assert TEXT.count(old) == 1
    [place] = places(TEXT, TEXT.replace(old, new))
    assert (place.kind, place.what) == (kind, what)
    [back] = places(TEXT.replace(old, new), TEXT)
    assert back.kind == kind
    assert "->" not in what or set(back.what.split(": ")[-1].split(" -> ")) == set(what.split(": ")[-1].split(" -> "))


def test_two_changes_are_two_places_in_their_order() -> None:
    changed = TEXT.replace("1e-5", "1e-2").replace("(m, k)", "(k, m)").replace("Elu (k)", "Elu <alpha = 0.5> (k)")
    assert [place.operator for place in places(TEXT, changed)] == ["LayerNormalization", "Concat", "Elu"]


def test_names_orders_and_defaults_make_no_difference() -> None:
    named = re.sub(r"\b([qknmcszt])\b(?! *=? *\d)", r"other_\1", TEXT)
    assert named != TEXT
    same = {
        "names": named,
        "a default that is written": TEXT.replace("Elu (k)", "Elu <alpha = 1.0> (k)"),
        "a default that is not": TEXT.replace("LayerNormalization <epsilon = 1e-5>", "LayerNormalization"),
        "summands": TEXT.replace("Add (q, b)", "Add (b, q)").replace("Mul (n, v)", "Mul (v, n)"),
    }
    for name, text in same.items():
        assert places(TEXT, text) == [], name
    proto = parse(TEXT)
    nodes = list(proto.graph.node)
    order = [0, 1, 8, 2, 3, 4, 5, 6, 7]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes[index] for index in order)
    assert places(TEXT, proto) == []


DEFAULTS = [
    (operator, name)
    for operator in load_operators().values()
    for name, value in operator.attributes.items()
    if value is not REQUIRED and value is not None
]
"""Operators of other domains than ONNX's, and their attributes that may be left out."""


@pytest.mark.parametrize(("operator", "name"), DEFAULTS, ids=lambda each: getattr(each, "qualified_name", each))
def test_a_default_that_is_written_makes_no_difference_in_any_domain(operator: Operator, name: str) -> None:
    """A file has it in fp32, which 1e-5 is not."""
    needed: dict[str, Any] = {key: 1 for key, value in operator.attributes.items() if value is REQUIRED}

    def model(**more: Any) -> onnx.ModelProto:
        node = onnx.helper.make_node(operator.name, ["x"], ["y"], domain=operator.domain, **needed, **more)
        infos = [onnx.helper.make_tensor_value_info(each, onnx.TensorProto.FLOAT, [4]) for each in ("x", "y")]
        graph = onnx.helper.make_graph([node], "g", infos[:1], infos[1:])
        opsets = [onnx.helper.make_opsetid(domain, 1 if domain else 23) for domain in ("", operator.domain)]
        return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)

    default = operator.attributes[name]
    assert places(model(), model(**{name: default})) == []
    other: Any = "SAME_UPPER" if isinstance(default, str) else default + 1 if isinstance(default, int | float) else [7]
    assert [place.kind for place in places(model(), model(**{name: other}))] == ["attribute"]


@pytest.mark.parametrize("name", sorted({name for name, _ in CASES}))
def test_what_is_called_the_same_computes_the_same(name: str) -> None:
    """Of every graph that is changed anywhere: where no place is found, ONNX Runtime gives the same numbers."""
    rng, tried = np.random.default_rng([*name.encode()]), 0
    index = next(index for other, index in CASES if other == name)
    model = before_model(load_fusions()[name], index, rng)
    for what, changed in changed_models(model):
        try:
            found = places(model, changed)
        except SdortError:
            continue
        tried += 1
        if found:
            continue
        if len(changed.graph.output) != len(model.graph.output):
            continue  # which the inputs and outputs tell
        feeds = {
            info.name: rng.standard_normal([*map(_size, info.type.tensor_type.shape.dim)]).astype(np.float32)
            for info in model.graph.input
        }
        try:
            wanted, given = run(copy(model), feeds), run(copy(changed), feeds)
        except Exception:  # one of them does not run at these sizes
            continue
        for one, other in zip(wanted, given, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=what)
    assert tried > 3


def _size(dim: onnx.TensorShapeProto.Dimension) -> int:
    return dim.dim_value or int(dim.dim_param.removeprefix(OPEN))


def test_steps_grow_with_the_graphs() -> None:
    """Of a chain, whose outputs all differ by its first constant."""
    counts = []
    for length in (100, 200):
        lines = "\n".join(f"t{n + 1} = {random.Random(n).choice(['Relu', 'Abs', 'Neg'])} (t{n})" for n in range(length))
        text = f"g (float[4] x) => (float[4] t{length}) <float[4] w = {{1, 2, 3, 4}}> {{ t0 = Mul (x, w)\n{lines} }}"
        from sdort.inspection import graph_difference as module

        calls, real = [0], module._hash

        def counted(*parts: str | bytes, calls: list[int] = calls, real: object = real) -> bytes:
            calls[0] += 1
            return real(*parts)  # type: ignore[operator, no-any-return]

        module._hash = counted
        try:
            assert len(places(text, text.replace("{1, 2", "{1, 3"))) == 1
        finally:
            module._hash = real
        counts.append(calls[0])
    assert counts[1] <= 2 * counts[0]


# --- the command ---


def saved(folder: Path, text: str) -> Path:
    folder.mkdir()
    onnx.save(parse(text), folder / "model.onnx")
    return folder / "model.onnx"


def test_the_command_tells_it_first_and_by_its_exit_code(tmp_path: Path) -> None:
    one, other = saved(tmp_path / "a", TEXT), saved(tmp_path / "b", TEXT.replace("1e-5", "1e-3"))

    def command(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli, ["inspect", "--diff", *words])
        return result.exit_code, result.stdout

    code, text = command(str(one), str(other))
    assert code == 0
    assert text.strip().startswith("What is computed differently")
    assert "epsilon: 1e-05 -> 0.001" in text
    assert text.splitlines()[-1].startswith("1 component differs: computed differently in 1 place, as many nodes")
    assert command(str(one), str(other), "--exit-code")[0] == 1
    assert command(str(one), str(one), "--exit-code") == (0, "No differences.\n")
    result = CliRunner().invoke(cli, ["inspect", str(one), "--exit-code"])
    assert (result.exit_code, "--exit-code is for --diff" in result.stderr) == (2, True)
    assert sdort.compare(one, other).differ
    assert not sdort.compare(one, one).differ


def test_the_order_of_summands_hides_no_difference_behind_them() -> None:
    """And is none itself, though what is summed was computed in another way."""
    text = """g (float[4] x, float[4] v) => (float[4] y) {
        a = Abs (x)
        b = Neg (v)
        s = Add (a, b)
        t = Relu (s)
        u = Elu <alpha = 2.0> (t)
        y = Tanh (u) }"""
    changed = text.replace("Add (a, b)", "Add (b, a)").replace("alpha = 2.0", "alpha = 3.0")
    changed = changed.replace("b = Neg (v)", "c = Ceil (v)\n b = Neg (c)")
    assert [(place.kind, place.what) for place in places(text, changed)] == [
        ("operators", "no node -> 1 node (1 Ceil)"), ("attribute", "alpha: 2 -> 3")
    ]  # fmt: skip
    widened = text.replace("t = Relu (s)", "r = Sqrt (s)\n t = Relu (r)").replace("Add (a, b)", "Add (b, a)")
    assert [place.what for place in places(text, widened)] == ["no node -> 1 node (1 Sqrt)"]


@pytest.mark.parametrize("count", [1, 4, 2000])
def test_weights_that_numpy_does_not_lend_are_hashed(count: int) -> None:
    def model(kind: int, value: float) -> onnx.ModelProto:
        weight = onnx.helper.make_tensor("w", kind, [count], [value] * count)
        nodes = [onnx.helper.make_node("Cast", ["w"], ["c"], to=1), onnx.helper.make_node("Add", ["x", "c"], ["y"])]
        infos = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [count]) for name in ("x", "y")]
        graph = onnx.helper.make_graph(nodes, "g", infos[:1], infos[1:], [weight])
        return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)], ir_version=10)

    bfloat16, float16 = onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT16
    assert places(model(bfloat16, 1.0), model(bfloat16, 1.0)) == []
    for other in (model(bfloat16, 2.0), model(float16, 1.0)):
        assert [place.kind for place in places(model(bfloat16, 1.0), other)] == ["constant"]


def test_no_node_is_walked_for_each_output_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of chains of other operators, each of whose tensors is an output."""
    from sdort.inspection import graph_difference as module
    from sdort.rewrite import editor

    real, calls = editor.producer, [0]

    def counted(tensor: Any) -> Any:
        calls[0] += 1
        return real(tensor)

    monkeypatch.setattr(module, "producer", counted)
    steps = []
    for length in (60, 120):
        outputs = ", ".join(f"float[4] t{n + 1}" for n in range(length))
        text = f"g (float[4] t0) => ({outputs}) {{ {' '.join(f't{n + 1} = Relu (t{n})' for n in range(length))} }}"
        calls[0] = 0
        found = places(text, text.replace("Relu", "Abs"))
        steps.append(calls[0])
        told = [int(place.what.split()[0]) for place in found if place.what.split()[0].isdigit()]
        assert sum(told) == length
    assert steps[1] <= 2 * steps[0] + 10
