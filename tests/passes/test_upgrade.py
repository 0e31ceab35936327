"""Opsets: what an operator meant in the model's opset it means in ours; what cannot be said is refused by name."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from support.small_graphs import Array, feeds_for, load, parse, run, to_proto

from sdort.errors import BadModelError
from sdort.graph.model import Model
from sdort.lowering.component_report import count_operators
from sdort.passes import target_opset, upgrade
from sdort.passes.target_opset import declare_opset
from sdort.passes.upgrade import set_opset
from sdort.rewrite.editor import Editor
from sdort.rewrite.pattern import OPSET

CHANGED = {
    "ReduceMean 13": (13, "y = ReduceMean <axes = [1]> (x)", ""),
    "ReduceMean of negative axes": (17, "y = ReduceMean <axes = [-1, 1], keepdims = 0> (x)", ""),
    "ReduceMean of everything": (17, "y = ReduceMean <keepdims = 0> (x)", ""),
    "ReduceMax 12": (12, "y = ReduceMax <axes = [2]> (x)", ""),
    "ReduceMin 17": (17, "y = ReduceMin <axes = [2]> (x)", ""),
    "ReduceL2 14": (14, "y = ReduceL2 <axes = [2]> (x)", ""),
    "ReduceSum 11": (11, "y = ReduceSum <axes = [0, 2]> (x)", ""),
    "ReduceSum 13": (13, "y = ReduceSum (x, one)", "<int64[1] one = {1}>"),
    "Unsqueeze 11": (11, "y = Unsqueeze <axes = [0, 4]> (x)", ""),
    "Unsqueeze 13": (13, "y = Unsqueeze (x, one)", "<int64[1] one = {1}>"),
    "Squeeze 11": (11, "u = Unsqueeze <axes = [1]> (x)  y = Squeeze <axes = [1]> (u)", ""),
    "Squeeze of what it finds": (11, "u = Unsqueeze <axes = [1]> (x)  y = Squeeze (u)", ""),
    "Split 11": (11, "a, b, y = Split <axis = 1, split = [1, 1, 2]> (x)", ""),
    "Split 11 in halves": (11, "a, y = Split <axis = 1> (x)", ""),
    "Split 13": (13, "a, y = Split <axis = 1> (x, sizes)", "<int64[2] sizes = {1, 3}>"),
    "Split 17 in halves": (17, "a, y = Split <axis = 2> (x)", ""),
    "Softmax 11 of the last axis": (11, "y = Softmax <axis = 2> (x)", ""),
    "Softmax 12 of -1": (12, "y = Softmax <axis = -1> (x)", ""),
    "Softmax 13 of any axis": (13, "y = Softmax <axis = 1> (x)", ""),
    **{
        f"{op} {opset} {axis}": (opset, f"y = {op} <axis = {axis}> (x)", "")
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for opset in (11, 12)
        for axis in (0, 1, 2, -1, -2)
    },
    "Softmax of a view": (11, "r = Reshape (x, z)  y = Softmax <axis = 1> (r)", "<int64[3] z = {2, -1, 3}>"),
    "Dropout 11": (11, "y = Dropout <ratio = 0.5> (x)", ""),
    "BatchNormalization 11": (
        11,
        "y = BatchNormalization (x, s, s, s, s)",
        "<float[4] s = {1.0, 2.0, 3.0, 4.0}>",
    ),
    **{
        f"{op} {opset} of axes": (opset, f"a = Abs (x)  y = {op} <axes = [-1, 1]> (a)", "")
        for op, opset in (
            ("ReduceProd", 17),
            ("ReduceL1", 12),
            ("ReduceL2", 17),
            ("ReduceSumSquare", 17),
            ("ReduceLogSum", 13),
            ("ReduceLogSumExp", 17),
            ("ReduceMax", 17),
            ("ReduceMin", 11),
            ("ReduceMean", 11),
            ("ReduceSum", 12),
        )
    },
    "LogSoftmax 11 of its default": (11, "y = LogSoftmax (x)", ""),
    "Hardmax 12 of its default": (12, "y = Hardmax (x)", ""),
    "ReduceLogSumExp 13": (13, "y = ReduceLogSumExp <axes = [1], keepdims = 1> (x)", ""),
    "GroupNormalization 18": (
        18,
        "y = GroupNormalization <num_groups = 2> (x, s, b)",
        "<float[2] s = {0.5, 2.0}, float[2] b = {1.0, -1.0}>",
    ),
    "Pad 13": (13, "y = Pad (x, sides)", "<int64[6] sides = {1, 0, 2, 0, 1, 0}>"),
    "what is as it was": (14, "s = Shape (x)  a = Transpose <perm = [0, 2, 1]> (x)  y = Reshape (a, s)", ""),
}
RANKS = {"ReduceMean of negative axes": 1, "ReduceMean of everything": 0, "Unsqueeze 11": 5, "Unsqueeze 13": 4}


def upgraded(text: str, opset: int) -> Model:
    model = load(text, opset=opset)
    upgrade.run(Editor(model))
    assert model.graph.opset == OPSET
    return model


@pytest.mark.parametrize("name", CHANGED)
def test_old_forms_mean_what_they_meant(name: str) -> None:
    opset, body, constants = CHANGED[name]
    dims = ", ".join("abcde"[: RANKS.get(name, 3)])
    text = f"g (float[2, 4, 6] x) => (float{f'[{dims}]' if dims else ''} y) {constants} {{ {body} }}"
    proto = parse(text, opset=opset)
    feeds = feeds_for(proto, {})
    model = upgraded(text, opset)
    assert {entry.domain: entry.version for entry in to_proto(model).opset_import}[""] == OPSET
    for found, wanted in zip(run(model, feeds), run(proto, feeds), strict=True):
        np.testing.assert_array_equal(found, wanted)


NEWER = {
    "Cast that says its default": (24, 'h = Cast <to = 10, round_mode = "up"> (x)  y = Cast <to = 1> (h)'),
    "Attention without what is new": (25, "y = Attention <q_num_heads = 2, kv_num_heads = 2> (x, x, x)"),
    # Defined by operators that are older.
    "an attribute that came later": (
        25,
        "y = Attention <q_num_heads = 2, kv_num_heads = 2, left_window_size = 1> (x, x, x)",
    ),
    "an input that came later": (24, "y = Attention <q_num_heads = 2, kv_num_heads = 2> (x, x, x, , , , i)"),
    "Swish": (24, "y = Swish (x)"),
    "Swish of another slope": (25, "a = Swish <alpha = 1.702> (x)  y = Neg (a)"),
    "shapes": (25, "s = Shape (x)  t = Transpose <perm = [0, 2, 1]> (x)  y = Reshape (t, s)"),
}


def _by_reference(proto: onnx.ModelProto, feeds: dict[str, Array]) -> Array:
    outputs: Any = ReferenceEvaluator(proto).run(None, feeds)
    return np.asarray(outputs[0])


@pytest.mark.parametrize("name", NEWER)
def test_newer_forms_mean_what_they_meant(name: str) -> None:
    """Against ONNX's reference: ONNX Runtime does not have all of them."""
    opset, body = NEWER[name]
    lengths = "<int64[2] i = {2, 3}>" if "i)" in body else ""
    text = f"g (float[2, 4, 6] x) => (float[a, b, c] y) {lengths} {{ {body} }}"
    proto = parse(text, opset=opset)
    feeds = feeds_for(proto, {})
    model = upgraded(text, opset)
    found, wanted = (_by_reference(each, feeds) for each in (to_proto(model), proto))
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    declare_opset(model, 23)
    assert not {"Swish", "round_mode"} & {*count_operators(model), *(a for n in model.graph.nodes for a in n.attrs)}


def test_softmax_of_all_axes_but_the_first() -> None:
    """Before opset 13 the default was axis 1, flattened: of a matrix, that is the last one."""
    text = "g (float[2, 6] x) => (float[2, 6] y) { y = Softmax (x) }"
    proto = parse(text, opset=11)
    feeds = feeds_for(proto, {})
    np.testing.assert_array_equal(run(upgraded(text, 11), feeds)[0], run(proto, feeds)[0])


REFUSED = {
    "statistics": (
        11,
        "y, a, b, c, d = BatchNormalization (x, s, s, s, s)",
        "this BatchNormalization of opset 11 trains",
    ),
    "a default that is another now": (17, "y = DFT (x)", "DFT of opset 17 has changed"),
    "an attribute that is an input now": (17, "y = DFT <axis = 2> (x)", "DFT of opset 17 has changed"),
    "a word that is gone": (
        11,
        'y = Resize <coordinate_transformation_mode = "tf_half_pixel_for_nn"> (x, s, s)',
        "Resize of opset 11 has changed",
    ),
    "what came later": (24, "y = TensorScatter (x, x, i)", "TensorScatter as opset 24 has it cannot be expressed"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_changed_its_meaning_is_refused(case: tuple[int, str, str]) -> None:
    opset, body, message = case
    constants = "<float[4] s = {1.0, 2.0, 3.0, 4.0}, int64[2] i = {4, 4}>"
    model = load(f"g (float[2, 4, 6] x) => (float[a, b, c] y) {constants} {{ {body} }}", opset=opset)
    with pytest.raises(BadModelError, match=message) as caught:
        upgrade.run(Editor(model))
    assert caught.value.component == "test"
    assert re.fullmatch(r"[A-Z]\w+\.0", caught.value.node or "")
    assert "Export the model again" in (caught.value.hint or "")


# --- down to a target ---


def test_targets_get_their_opset() -> None:
    body = "a = Softmax (x)  s, b = Split <axis = 1, num_outputs = 2> (a)  y = ReduceMean (b, one)"
    text = f"g (float[2, 4, 6] x) => (float[a, b, c] y) <int64[1] one = {{1}}> {{ {body} }}"
    model = load(text)
    feeds = feeds_for(parse(text), {})
    (before,) = run(model, feeds)
    declare_opset(model, 18)
    assert [(d.domain, d.version) for d in model.graph.import_domains] == [("", 18)]
    np.testing.assert_array_equal(run(model, feeds)[0], before)


@pytest.mark.parametrize(
    ("body", "operator"),
    [
        ("y = Gelu (x)", "Gelu"),
        ("y = RMSNormalization (x, x)", "RMSNormalization"),
        ("q = Cast <to = 10, saturate = 0> (x)  y = Cast <to = 1> (q)", "Cast"),
        ("y = GroupNormalization <num_groups = 2> (x, s, s)", "GroupNormalization"),
    ],
)
def test_what_a_target_has_no_opset_for_is_refused(body: str, operator: str) -> None:
    constants = "<float[4] s = {1.0, 2.0, 3.0, 4.0}>"
    model = load(f"g (float[2, 4, 4] x) => (float[a, b, c] y) {constants} {{ {body} }}")
    with pytest.raises(BadModelError, match=f"{operator} of opset 23 cannot be expressed in opset 18") as caught:
        declare_opset(model, 18)
    assert caught.value.node == f"{operator}.0"
    assert model.graph.opset == OPSET


def test_operators_of_other_domains_have_opsets_of_their_own() -> None:
    text = "g (float[B] x) => (float[B] y) { a = com.microsoft.Gelu (x)  y = com.microsoft.QuickGelu (a) }"
    model = load(text, opset=14)
    upgrade.run(Editor(model))
    declare_opset(model, 18)
    assert count_operators(model) == {"com.microsoft.Gelu": 1, "com.microsoft.QuickGelu": 1}


def test_one_entry_a_domain_is_declared() -> None:
    model = load("g (float[B] x) => (float[B] y) { y = com.microsoft.Gelu (x) }", opset=14)
    for opset in (17, 18):
        set_opset(model, opset)
        assert [(d.domain, d.version) for d in model.graph.import_domains] == [("", opset), ("com.microsoft", 1)]


@pytest.mark.parametrize(
    ("opset", "mode"),
    [(16, ""), (16, "bilinear"), (18, "bicubic"), (18, "nearest"), (20, ""), (20, "linear"), (20, "cubic")],
)
def test_grid_samples_are_called_as_each_opset_calls_them(opset: int, mode: str) -> None:
    words = f' <mode = "{mode}">' if mode else ""
    text = f"g (float[1, 2, 5, 6] x, float[1, 3, 4, 2] g) => (float[a, b, c, d] y) {{ y = GridSample{words} (x, g) }}"
    proto = parse(text, opset=opset)
    feeds = feeds_for(proto, {})
    model = upgraded(text, opset)
    (wanted,) = run(proto, feeds)
    np.testing.assert_array_equal(run(model, feeds)[0], wanted)
    declare_opset(model, 18)
    np.testing.assert_array_equal(run(model, feeds)[0], wanted)


def test_a_word_that_came_later_is_not_written_into_an_earlier_opset() -> None:
    text = '<int64[6] p = {0, 0, 1, 0, 0, 1}> { y = Pad <mode = "wrap"> (x, p) }'
    model = upgraded(f"g (float[2, 4, 6] x) => (float[a, b, c] y) {text}", 19)
    (node,) = model.graph.nodes
    assert upgrade.inexpressible(node, 19) is None
    assert upgrade.inexpressible(node, 18) is not None


@pytest.mark.parametrize("opset", [11, 15, 16])
def test_regions_lie_where_each_opset_has_them(opset: int) -> None:
    """Before opset 16 no coordinate was shifted by half a pixel."""
    settings = "output_height = 3, output_width = 2, sampling_ratio = 2, spatial_scale = 0.5"
    text = f"""g (float[1, 2, 8, 8] x) => (float[a, b, c, d] y)
        <float[2, 4] r = {{2.0, 2.0, 11.0, 13.0, 0.0, 5.0, 14.0, 15.0}}, int64[2] i = {{0, 0}}> {{
        y = RoiAlign <{settings}> (x, r, i) }}"""
    proto = parse(text, opset=opset)
    feeds = feeds_for(proto, {})
    model = upgraded(text, opset)
    declare_opset(model, 18)
    np.testing.assert_array_equal(run(model, feeds)[0], run(proto, feeds)[0])


@pytest.mark.parametrize(
    ("shape", "groups", "said"),
    [
        ("2, C, 6", 2, "has 2 groups of C channels"),
        ("2, 4, 6", 3, "has 3 groups of 4 channels"),
        ("2", 1, "has 1 groups of an unknown number of channels"),
    ],
)
def test_groups_of_no_known_size_are_refused(shape: str, groups: int, said: str) -> None:
    weights = f"<float[{groups}] s = {{{', '.join(['1.0'] * groups)}}}>"
    body = f"{weights} {{ y = GroupNormalization <num_groups = {groups}> (x, s, s) }}"
    with pytest.raises(BadModelError, match=f"this GroupNormalization of opset 18 {said}") as caught:
        upgraded(f"g (float[{shape}] x) => (float[] y) {body}", 18)
    assert (caught.value.component, caught.value.node) == ("test", "GroupNormalization.0")
    assert "Export the model again with opset 21" in (caught.value.hint or "")


def test_groups_of_several_channels_share_their_scale() -> None:
    constants = "<float[2] s = {0.5, 2.0}, float[2] b = {1.0, -1.0}>"
    body = f"{constants} {{ y = GroupNormalization <num_groups = 2> (x, s, b) }}"
    text = f"g (float[2, 6, 5, 3] x) => (float[a0, a1, a2, a3] y) {body}"
    proto = parse(text, opset=18)
    feeds = feeds_for(proto, {})
    (found,) = run(upgraded(text, 18), feeds)
    parts = feeds["x"].astype(np.float64).reshape(2, 2, -1)
    normal = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + 1e-5)
    wanted = (normal * [[[0.5], [2.0]]] + [[[1.0], [-1.0]]]).reshape(2, 6, 5, 3)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_written_graph_states_its_ends_alone() -> None:
    """ONNX Runtime infers the rest, which is so never stale."""
    body = "a = Softmax (x)  h, s = Split <axis = 1, num_outputs = 2> (a)  z = Neg (h)  y = Exp (z)"
    model = load(f"g (float[2, 4, 6] x) => (float[2, 2, 6] y, float[2, 2, 6] s) {{ {body} }}")
    editor = Editor(model)
    inner = [tensor for node in editor.graph.nodes for tensor in node.outputs if tensor.name in "ahz"]
    for tensor in inner:
        tensor.shape, tensor.dtype = (1, 2, 3), np.dtype(np.float64)
    assert target_opset.run(editor, 20, 9) == 0
    assert (model.graph.opset, model.graph.ir_version) == (20, 9)
    assert [(tensor.shape, tensor.dtype) for tensor in inner] == [(None, None)] * 3
    ends = (*editor.graph.inputs, *editor.graph.outputs)
    assert [(list(tensor.shape), tensor.dtype) for tensor in ends] == [
        ([2, first, 6], np.dtype(np.float32)) for first in (4, 2, 2)
    ]


def test_nodes_that_lose_a_stated_default_are_counted() -> None:
    body = "h = Cast <to = 10, saturate = 1> (x)  c = Cast <to = 1> (h)  y = Cast <to = 1, saturate = 1> (c)"
    model = load(f"g (float[2, 4] x) => (float[2, 4] y) {{ {body} }}")
    assert declare_opset(model, 18) == 2
    assert [dict(node.attrs) for node in model.graph.nodes] == [{"to": 10}, {"to": 1}, {"to": 1}]
    assert declare_opset(model, 18) == 0
