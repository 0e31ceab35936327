"""Every reason for which a fusion's check refuses a match has a graph that is refused for it, and for it alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import numpy_helper
from support.fusion_models import before_model

from sdort.onnx_io.load import from_proto
from sdort.rewrite.apply import apply_fusion
from sdort.rewrite.editor import Editor
from sdort.rewrite.fusion import load_fusions
from sdort.rewrite.match import Refusal

Change = Callable[[onnx.ModelProto], None]


def constant(name: str, values: Any) -> Change:
    """Another value of a constant, of the same dtype."""

    def change(model: onnx.ModelProto) -> None:
        (tensor,) = [each for each in model.graph.initializer if each.name == name]
        dtype = numpy_helper.to_array(tensor).dtype
        tensor.CopyFrom(numpy_helper.from_array(np.array(values, dtype), name))

    return change


def open_axis(name: str, axis: int) -> Change:
    """A size of an input that is not known before it comes."""

    def change(model: onnx.ModelProto) -> None:
        (info,) = [each for each in model.graph.input if each.name == name]
        info.type.tensor_type.shape.dim[axis].dim_param = "open"

    return change


def widths(width: int | str) -> Change:
    """Another size of the last axis of all inputs, or a name where it is not known."""

    def change(model: onnx.ModelProto) -> None:
        for info in model.graph.input:
            size = info.type.tensor_type.shape.dim[-1]
            size.CopyFrom(type(size)(**{"dim_value" if isinstance(width, int) else "dim_param": width}))

    return change


def attribute(name: str, value: Any) -> Change:
    """Another value of an attribute, wherever it is."""

    def change(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            for each in node.attribute:
                if each.name == name:
                    each.CopyFrom(onnx.helper.make_attribute(name, value))

    return change


def both(*changes: Change) -> Change:
    def change(model: onnx.ModelProto) -> None:
        for each in changes:
            each(model)

    return change


def shape(name: str, dims: list[int] | None) -> Change:
    """Another shape of an input; None for none at all."""

    def change(model: onnx.ModelProto) -> None:
        (info,) = [each for each in model.graph.input if each.name == name]
        info.CopyFrom(onnx.helper.make_tensor_value_info(name, info.type.tensor_type.elem_type, dims))

    return change


def angles(*dims: int) -> Change:
    """Tables of another shape."""
    return both(shape("cos", [*dims]), shape("sin", [*dims]))


OPEN_VIEWS = both(
    constant("apart", [0, 0, 0, 4, 2]), constant("inner", [0, 0, 0, 4]), constant("outer", [0, 0, 0, 4, 1]),
    constant("back", [0, 0, 0, 8]),
)  # fmt: skip
"""Views of heads that hand on the sizes before the last."""
REFUSED: list[tuple[str, int, Change, str]] = [
    (
        "channels_last_sequence",
        0,
        both(open_axis("x", 1), constant("flat", [0, 0, -1])),
        "the number of channels is not fixed",
    ),
    ("group_normalization", 0, constant("ones", [1, 1, 1, 2]), "the inner normalization's ones are not all 1"),
    ("group_normalization", 1, constant("ones", [2, 1, 1, 1]), "the inner normalization's ones are not all 1"),
    ("group_normalization", 0, constant("zeros", [0, 0, 0, 1]), "the inner normalization's zeros are not all 0"),
    ("group_normalization", 1, constant("zeros", [-1, 0, 0, 0]), "the inner normalization's zeros are not all 0"),
    *(
        (name, index, constant("ungroup", sizes), reason)
        for name, index in (("group_normalization", 2), ("group_normalization_parts", 0))
        for sizes, reason in (
            ([8, 2, 3, 5], "its views do not group the channels of an image"),
            ([2, 6, 4, 5], "the channels are no multiple of the groups"),
        )
    ),
    ("group_normalization_parts", 0, constant("axes", [1]), "the mean is not over all axes behind the groups"),
    ("layer_normalization", 2, shape("x", None), "the axes are not known"),
    ("layer_normalization", 2, constant("axes", [1]), "the mean is not over the last axes"),
    ("layer_normalization", 2, open_axis("x", 2), "the last sizes are not fixed"),
    ("attention_to_standard", 0, both(open_axis("q", 2), open_axis("k", 2)), "the width is not fixed"),
    ("attention_to_standard", 0, open_axis("v", 2), "the width is not fixed"),
    (
        "attention_to_standard",
        0,
        both(attribute("q_num_heads", 5), attribute("kv_num_heads", 5)),
        "the width is no multiple of the heads",
    ),
    ("attention_to_standard", 0, shape("v", [2, 5, 13]), "the width is no multiple of the heads"),
    ("attention_to_standard", 1, attribute("softmax_precision", 12), "softmax_precision is no floating-point type"),
    (
        "group_norm_to_standard",
        0,
        both(open_axis("x", 3), open_axis("gamma", 0), open_axis("beta", 0)),
        "the number of channels is not fixed",
    ),
    ("group_normalization_to_standard", 0, shape("x", None), "the image's rank is not known"),
    ("restore_fused_mat_mul", 0, shape("a", None), "the number of axes is not known, or one"),
    ("restore_fused_mat_mul", 0, shape("b", [5]), "the number of axes is not known, or one"),
    *(
        ("restore_multi_head_attention", index, change, reason)
        for index, change, reason in (
            (9, attribute("num_heads", 0), "the number of heads is not positive"),
            (4, open_axis("qkv", 4), "the head size is not fixed"),
            (4, attribute("num_heads", 6), "its packed inputs have another number of heads"),
            (10, open_axis("q", 2), "the widths of its bias are not known"),
            (16, shape("projection", [35]), "its bias is not as wide as query, key and value"),
            (
                9,
                shape("q", [2, 3, 12]),
                "kernels differ in what is causal where rows are not as many as keys",
            ),
            (
                10,
                both(shape("v", [2, 5, 6]), constant("projection", [0] * 30)),
                "the projections are of several widths",
            ),
        )
    ),
    *(
        ("restore_attention", index, change, reason)
        for index, change, reason in (
            (4, attribute("num_heads", 0), "the number of heads is not positive"),
            (3, both(open_axis("weight", 1), open_axis("shift", 0)), "the width of its projections is not fixed"),
            (4, attribute("qkv_hidden_sizes", [12, 12, 11]), "qkv_hidden_sizes are not the widths of its weights"),
            (4, attribute("num_heads", 5), "the widths are no multiples of the heads"),
            (4, attribute("qkv_hidden_sizes", [9, 9, 18]), "the projections are of several widths"),
        )
    ),
    ("restore_fused_conv", 8, attribute("activation_params", [0.25]), "its HardSigmoid needs 2 activation_params"),
    (
        "restore_skip_group_norm",
        0,
        attribute("channels_last", 0),
        "it is not channels-last, of which ONNX Runtime has no definition",
    ),
    ("restore_skip_group_norm", 2, shape("skip", [2, 1, 5, 8]), "its skip is neither an image nor one pixel"),
    ("restore_group_norm", 0, attribute("groups", 3), "the channels are no multiple of the groups"),
    ("restore_skip_layer_normalization", 0, shape("skip", [4, 3, 8]), "its skip is larger than what it is added to"),
    ("group_norm_to_standard", 0, attribute("groups", 3), "the channels are no multiple of the groups"),
    ("group_norm_to_standard", 0, attribute("groups", 0), "the channels are no multiple of the groups"),
    ("group_norm_to_standard", 0, attribute("groups", -2), "the channels are no multiple of the groups"),
    ("pooled_token", 0, constant("number", [1, 2]), "the prompts are not numbered 0, 1, 2"),
    ("pooled_token", 2, constant("number", [[1], [0]]), "the prompts are not numbered 0, 1, 2"),
    ("pooled_token", 0, constant("size", [4]), "the rows are not as long as the prompts"),
    ("pooled_token", 1, constant("start", [0, 4]), "the rows do not begin at 0, S, 2 S"),
    ("pooled_token", 1, constant("start", [5, 0]), "the rows do not begin at 0, S, 2 S"),
    *(
        ("upsampling_phases", 2, constant("sizes", sizes), "its image is not always made twice as large")
        for sizes in ([2, 4, 5, 10], [2, 4, 6, 9], [2, 4, 9, 10])
    ),
    (
        "upsampling_phases",
        0,
        attribute("nearest_mode", "ceil"),
        "its nearest neighbours are others than of pixel k pixel k // 2",
    ),
    *(
        ("upsampling_convolution", 2, constant("sizes", sizes), "its image is not made twice as large")
        for sizes in ([2, 7, 10, 4], [2, 4, 10, 4], [2, 6, 11, 4])
    ),
    *(
        ("upsampling_convolution", index, change, "its nearest neighbours are others than of pixel k pixel k // 2")
        for index, change in (
            (0, attribute("nearest_mode", "ceil")),
            (1, attribute("coordinate_transformation_mode", "align_corners")),
            (2, attribute("nearest_mode", "round_prefer_floor")),
            (3, both(attribute("nearest_mode", "round_prefer_floor"), constant("sizes", [2, 5, 9, 4]))),
        )
    ),
    ("rotary_pairs", 0, both(open_axis("x", 2), OPEN_VIEWS), "the heads are not fixed, or not of pairs"),
    ("rotary_pairs", 1, both(open_axis("x", 1), OPEN_VIEWS), "the heads are not fixed, or not of pairs"),
    *(
        (name, index, constant("cos", np.arange(80).reshape(2, 5, 1, 8) if index == 0 else table), reason)
        for name in ("rotary_pairs", "rotary_halves")
        for index, table in ((0, None), (1, np.arange(80).reshape(2, 1, 5, 8)))
        for reason in ("the two elements of a pair may have angles of their own",)
    ),
    *(("rotary_unbound", index, open_axis("x", axis), "the heads are not fixed") for index, axis in ((1, 2), (3, 1))),
    ("rotary_unbound", 1, angles(2, 5, 1, 1), "the tables are not of one angle for each pair"),
    *(
        ("restore_rotary_embedding", index, change, reason)
        for index, change, reason in (
            (0, attribute("scale", 0.5), "rotary embeddings of packed batches, or of a scale, are not known"),
            (
                2,
                attribute("is_packed_batching", 1),
                "rotary embeddings of packed batches, or of a scale, are not known",
            ),
            (0, attribute("rotary_embedding_dim", 4), "heads are not turned as a whole"),
            (1, attribute("num_heads", 1), "not the heads are turned that there are"),
            (2, shape("x", [2, 3, 5, 10]), "the tables are not of a head's size"),
            (3, angles(7, 4), "the tables have more rows than the input"),
        )
    ),
    *(
        (name, index, change, reason)
        for name in ("rotary_embedding", "rotary_embedding_to_standard")
        for index, change, reason in (
            (0, attribute("num_heads", 2), "not whole heads are turned"),
            (0, attribute("num_heads", 0), "not whole heads are turned"),
            (1 if name == "rotary_embedding" else 2, shape("x", [2, 3, 5, 10]), "not whole heads are turned"),
            (0, angles(2, 4, 4), "the tables are not of as many rows"),
            (0, angles(3, 5, 4), "the tables are not of as many rows"),
        )
    ),
    *(
        (name, index, constant("gamma", [1.0] * 7 + [1.5]), "the normalization has a weight of its own")
        for name, forms in (("modulated_layer_norm", 2), ("gated_modulated_layer_norm", 4))
        for index in range(forms)
    ),
    ("gated_sum", 1, widths("C"), "the width is not fixed"),
    *(
        (name, 0, change, reason)
        for name in ("sdort_rotary_embedding", "rms_norm_rotary_embedding")
        for change, reason in (
            (attribute("interleaved", 2), "neither neighbours nor halves are turned"),
            (attribute("num_heads", 2), "not whole heads are turned"),
            (attribute("num_heads", 0), "not whole heads are turned"),
            (angles(2, 4, 4), "the tables are not of as many rows"),
            (angles(3, 5, 4), "the tables are not of as many rows"),
        )
    ),
    ("sdort_rotary_embedding", 0, open_axis("x", 2), "not whole heads are turned"),
    (
        "rms_norm_rotary_embedding",
        0,
        both(shape("x", [2, 5, 6, 4]), constant("scale", np.ones(4, np.float32))),
        "not the heads are normalized that are turned",
    ),
    (
        "rotary_embedding",
        0,
        both(*(open_axis(name, 0) for name in ("x", "cos", "sin"))),
        "images of an open number have angles of their own",
    ),
    *(
        ("wide_attention", 0, change, "its heads are not wider than 256 and of whole 32s")
        for change in (attribute("num_heads", 2), attribute("num_heads", 0), widths(256), widths(280), widths("C"))
    ),
]


@pytest.mark.parametrize(("name", "index", "change", "reason"), REFUSED)
def test_refused(name: str, index: int, change: Change, reason: str) -> None:
    fusion = load_fusions()[name]
    model = before_model(fusion, index, np.random.default_rng(0))
    change(model)
    editor = Editor(from_proto(model, None, "test"))
    refused: dict[str, Refusal] = {}
    assert apply_fusion(fusion, editor, refused=refused).matched == 0
    assert {refusal.reason for refusal in refused.values()} == {reason}


def reasons(name: str) -> list[str]:
    """The sentences with which a fusion's file refuses or declines, as regular expressions."""
    found = []
    for node in ast.walk(ast.parse(Path(str(load_fusions()[name].module.__file__)).read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("refuse", "decline"):
            parts = node.args[0].values if isinstance(node.args[0], ast.JoinedStr) else [node.args[0]]
            found.append("".join(re.escape(str(p.value)) if isinstance(p, ast.Constant) else ".*" for p in parts))
    return found


OTHERS = [name for name, fusion in load_fusions().items() if fusion.anchor not in ("Attention", "Softmax")]
"""Those of attention have tests of their own, form by form."""


@pytest.mark.parametrize("name", OTHERS)
def test_every_reason_has_a_graph(name: str) -> None:
    """A condition that nothing meets would not be missed if it were gone."""
    seen = [reason for fusion, _, _, reason in REFUSED if fusion == name]
    assert [each for each in reasons(name) if not any(re.fullmatch(each, reason) for reason in seen)] == []


SKIPS: list[tuple[list[int | str], list[int | str], bool]] = [
    ([2, 3, 8], [2, 3, 8], True),
    ([2, 3, 8], [1, 3, 8], True),
    ([2, 3, 8], [2, 1, 8], True),
    ([2, 3, 8], [3, 8], True),
    (["B", 3, 8], [2, 3, 8], True),
    ([2, 3, 8], ["B", 3, 8], True),
    ([1, 3, 8], [2, 3, 8], False),
    ([1, 3, 8], ["B", 3, 8], False),
    ([2, 1, 8], [2, 3, 8], False),
    ([3, 8], [1, 3, 8], False),
]


@pytest.mark.parametrize(("image", "skip", "fits"), SKIPS)
def test_a_skip_is_no_larger_than_what_it_is_added_to(
    image: list[int | str], skip: list[int | str], fits: bool
) -> None:
    fusion = load_fusions()["restore_skip_layer_normalization"]
    model = before_model(fusion, 0, np.random.default_rng(0))
    for name, dims in (("x", image), ("skip", skip)):
        (info,) = [each for each in model.graph.input if each.name == name]
        info.CopyFrom(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims))
    assert apply_fusion(fusion, Editor(from_proto(model, None, "test"))).matched == fits


@pytest.mark.parametrize("name", [name for name, fusion in load_fusions().items() if fusion.module.ANCHOR == "Resize"])
def test_a_mode_that_is_left_out_is_nearest(name: str) -> None:
    """As ONNX has it (https://onnx.ai/onnx/operators/onnx__Resize.html)."""
    concerns = load_fusions()[name].module.concerns
    modes = {None: True, "nearest": True, "linear": False, "cubic": False}
    found = {}
    for mode in modes:
        node = gs.Node("Resize", attrs={} if mode is None else {"mode": mode})
        found[mode] = bool(concerns(None, node))
    assert found == modes


HEADS = {(1, 256): False, (1, 288): True, (1, 272): False, (2, 512): False, (2, 576): True, (2, 544): False,
         (3, 768): False, (3, 864): True, (3, 800): False, (4, 1088): False}  # fmt: skip
"""Heads and width of an attention -> whether each of its heads is wider than 256 and of whole 32s."""


@pytest.mark.parametrize(("heads", "width"), HEADS)
def test_wide_heads_are_measured_one_by_one(heads: int, width: int) -> None:
    """The width of all of them may be of whole 32s where one is not: the kernel that takes any size is slow."""
    fusion = load_fusions()["wide_attention"]
    model = before_model(fusion, 0, np.random.default_rng(0))
    both(attribute("num_heads", heads), widths(width))(model)
    assert apply_fusion(fusion, Editor(from_proto(model, None, "test"))).matched == HEADS[heads, width]


MULTI_HEAD = load_fusions()["restore_multi_head_attention"]
INPUTS = [
    {each.name for each in before_model(MULTI_HEAD, index, np.random.default_rng(0)).graph.input}
    for index in range(len(MULTI_HEAD.module.BEFORE))
]
OF_QUERIES = [index for index, names in enumerate(INPUTS) if "q" in names and not names & {"past_key", "bias"}]
"""Forms whose queries come by themselves, without a past and a bias of the scores, which have sizes of their own."""


@pytest.mark.parametrize("rows", [3, 5])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("index", OF_QUERIES)
def test_rows_are_as_many_as_keys_where_what_comes_later_is_closed_alone(index: int, causal: int, rows: int) -> None:
    """Cross attention has other rows than keys."""
    model = before_model(MULTI_HEAD, index, np.random.default_rng(0))
    both(shape("q", [2, rows, 12]), attribute("unidirectional", causal))(model)
    assert apply_fusion(MULTI_HEAD, Editor(from_proto(model, None, "test"))).matched == (rows == 5 or not causal)
