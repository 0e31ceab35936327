"""Attentions whose heads are merged into the batch get them back, and every part of the form by itself."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from support.small_graphs import check_step, edit, feeds_for, parse, to_proto

from sdort.passes import attention_form
from sdort.rewrite.editor import Editor

CONSTANTS = """<int64[3] merge_q = {-1, 5, 4}, int64[3] merge_k = {-1, 7, 4}, int64[3] merge_v = {-1, 7, 6},
int64[3] open_q = {-1, 0, 4}>"""
MERGED = "qm = Reshape (q, merge_q)  km = Reshape (k, merge_k)  vm = Reshape (v, merge_v)"
HEADS = "q_num_heads = 1, kv_num_heads = 1"
SIZES = {"B": 2, "N": 3, "S": 5}


def graph(body: str, more: str = "", outputs: str = "float[] y", q: str = "2, 3, 5, 4", k: str = "2, 3, 7, 4") -> str:
    value = k.rpartition(",")[0]
    inputs = f"float[{q}] q, float[{k}] k, float[{value}, 6] v{more}"
    return f"g ({inputs}) => ({outputs}) {CONSTANTS} {{ {body} }}"


def heads(editor: Editor) -> int:
    (node,) = (node for node in editor.graph.nodes if node.op == "Attention")
    assert node.attrs["q_num_heads"] == node.attrs["kv_num_heads"]
    return int(node.attrs["q_num_heads"])


APART: dict[str, tuple[str, str]] = {
    "plain": (f"y = Attention <{HEADS}> (qm, km, vm)", ""),
    "scaled": (f"y = Attention <{HEADS}, scale = 0.3> (qm, km, vm)", ""),
    "capped": (f"y = Attention <{HEADS}, softcap = 0.5> (qm, km, vm)", ""),
    "causal": (f"y = Attention <{HEADS}, is_causal = 1> (qm, qm2, vm2)", ""),
    "a mask for all": (f"y = Attention <{HEADS}> (qm, km, vm, m)", ", float[1, 1, 5, 7] m"),
    "a mask for each": (f"y = Attention <{HEADS}> (qm, km, vm, m)", ", float[6, 1, 5, 7] m"),
    "a mask of two axes, apart": (
        f"axes = Constant <value_ints = [0, 1]> ()  n = Unsqueeze (m, axes)  y = Attention <{HEADS}> (qm, km, vm, n)",
        ", float[5, 7] m",
    ),
}


@pytest.mark.parametrize("name", APART)
def test_heads_in_the_batch_are_heads_again(name: str) -> None:
    attention, more = APART[name]
    again = "qm2 = Reshape (k2, merge_q)  vm2 = Reshape (v2, merge_v2)"
    body, causal = f"{MERGED}  {attention}", "qm2" in attention
    text = graph(f"qm = Reshape (q, merge_q)  {again}  {attention}" if causal else body, more)
    if causal:
        text = (
            text.replace(" k,", " k2,").replace(" v)", " v2)").replace("7, ", "5, ").replace("merge_v =", "merge_v2 =")
        )
    check_step(text, attention_form.run, SIZES, rtol=2e-5)
    editor = edit(text)
    attention_form.run(editor)
    assert heads(editor) == 3


@pytest.mark.parametrize("rows", ["S", "5"])
@pytest.mark.parametrize("batch", ["B", "2"])
def test_sizes_may_have_names(batch: str, rows: str) -> None:
    body = MERGED.replace("merge_q", "merge_s") + f"  y = Attention <{HEADS}> (qm, km, vm)"
    text = graph(body, q=f"{batch}, 3, {rows}, 4", k=f"{batch}, 3, 7, 4").replace(
        "<int64[3]", "<int64[1] o = {2}, int64[1] e = {3}, int64[1] any = {-1}, int64[1] four = {4}, int64[3]", 1
    )
    shape = "s = Shape (q)  r = Slice (s, o, e)  merge_s = Concat <axis = 0> (any, r, four)  "
    text = text.replace("{ qm", f"{{ {shape} qm")
    check_step(text, attention_form.run, SIZES, rtol=2e-5)
    editor = edit(text)
    attention_form.run(editor)
    assert heads(editor) == 3


STAYING: dict[str, tuple[str, dict[str, str]]] = {
    "a query that was not merged": (
        "km = Reshape (k, merge_k)  vm = Reshape (v, merge_v)  y = Attention <{0}> (q3, km, vm)",
        {"more": ", float[6, 5, 4] q3"},
    ),
    "a key that was not merged": (
        "qm = Reshape (q, merge_q)  vm = Reshape (v, merge_v)  y = Attention <{0}> (qm, k3, vm)",
        {"more": ", float[6, 7, 4] k3"},
    ),
    "a value that was not merged": (
        "qm = Reshape (q, merge_q)  km = Reshape (k, merge_k)  y = Attention <{0}> (qm, km, v3)",
        {"more": ", float[6, 7, 6] v3"},
    ),
    "other heads of keys": (MERGED + "  y = Attention <{0}> (qm, km, vm)", {"k": "3, 2, 7, 4"}),
    "heads of an unknown number": (
        MERGED + "  y = Attention <{0}> (qm, km, vm)", {"q": "2, N, 5, 4", "k": "2, N, 7, 4"}
    ),
    "scores that are asked for": (
        MERGED + '  y, , , p = Attention <{0}> (qm, km, vm)', {"outputs": "float[] y, float[] p"}
    ),
    "a mask of three axes": (MERGED + "  y = Attention <{0}> (qm, km, vm, m)", {"more": ", float[1, 5, 7] m"}),
    "rows that were merged": (
        "qm = Reshape (w, merge_q)  km = Reshape (k, merge_k)  vm = Reshape (v, merge_v)"
        "  y = Attention <{0}> (qm, km, vm)",
        {"more": ", float[2, 3, 10, 2] w"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STAYING)
def test_others_are_one_head(name: str) -> None:
    body, more = STAYING[name]
    text = graph(body.format(HEADS), **more)
    check_step(text, attention_form.run, SIZES, rtol=2e-5)
    editor = edit(text)
    attention_form.run(editor)
    assert heads(editor) == 1


# --- the second result ---


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("cap", ["", ", softcap = 0.5"])
@pytest.mark.parametrize("mask", ["", ", m", ", b", ", causal"])
def test_scores_are_given_as_they_are_asked_for(mode: int, cap: str, mask: str) -> None:
    settings = f"q_num_heads = 3, kv_num_heads = 3, scale = 0.7, qk_matmul_output_mode = {mode}{cap}"
    if mask == ", causal":
        mask, settings = "", f"{settings}, is_causal = 1"
    inputs = "float[2, 5, 12] q, float[2, 7, 12] k, float[2, 7, 18] v"
    given = {", m": ", float[2, 3, 5, 7] m", ", b": ", bool[5, 7] b"}.get(mask, "")
    text = f"g ({inputs}{given}) => (float[] y, float[] p) {{ y, , , p = Attention <{settings}> (q, k, v{mask}) }}"
    proto, editor = parse(text), edit(text)
    feeds = feeds_for(proto, {})
    if "b" in feeds:
        feeds["b"] = np.tri(5, 7, 1, dtype=bool)
    attention_form.run(editor)
    before, after = (
        [np.asarray(value) for value in ReferenceEvaluator(model).run(None, feeds)]
        for model in (proto, to_proto(editor.model))
    )
    if mode == 0:  # the products themselves, which onnx.reference caps
        apart = [feeds[name].reshape(2, -1, 3, 4) for name in "qk"]
        before[1] = 0.7 * np.einsum("bihd,bjhd->bhij", *apart)
    for found, wanted in zip(after, before, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)
