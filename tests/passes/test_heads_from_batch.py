"""Heads that an exporter merged into an attention's batch: each condition under which they are known, and each size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.small_graphs import edit

from sdort.passes import attention_form
from sdort.rewrite.editor import Editor, producer

MERGED = "qm = Reshape (q, mq)  km = Reshape (k, mk)  vm = Reshape (v, mv)"
ONE = "q_num_heads = 1, kv_num_heads = 1"
TARGETS: dict[str, Any] = {
    "mq": [-1, 5, 4], "mk": [-1, 7, 4], "mv": [-1, 7, 6], "mq2": [6, 10, 2],
}  # fmt: skip


def built(body: str, q: str = "2, 3, 5, 4", k: str = "2, 3, 7, 4", v: str = "2, 3, 7, 6", more: str = "") -> Editor:
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    used = {name: np.array(values) for name, values in TARGETS.items() if name in words}
    return edit(f"g (float[{q}] q, float[{k}] k, float[{v}] v{more}) => (float[] y) {{ {body} }}", used)


CASES: dict[str, tuple[str, dict[str, str], bool]] = {
    "merged": (f"{MERGED}  y = Attention <{ONE}> (qm, km, vm)", {}, True),
    "of two heads": (f"{MERGED}  y = Attention <q_num_heads = 2, kv_num_heads = 2> (qm, km, vm)", {}, False),
    "of two heads of queries": (f"{MERGED}  y = Attention <q_num_heads = 2, kv_num_heads = 1> (qm, km, vm)", {}, False),
    "of two heads of keys": (f"{MERGED}  y = Attention <q_num_heads = 1, kv_num_heads = 2> (qm, km, vm)", {}, False),
    "other heads": (f"{MERGED}  y = Attention <{ONE}> (qm, km, vm)", {"k": "3, 2, 7, 4"}, False),
    "other heads of values": (f"{MERGED}  y = Attention <{ONE}> (qm, km, vm)", {"v": "6, 1, 7, 6"}, False),
    "unknown heads": (
        f"{MERGED}  y = Attention <{ONE}> (qm, km, vm)",
        {"q": "2, N, 5, 4", "k": "2, N, 7, 4", "v": "2, N, 7, 6"}, False,
    ),
    "an unknown batch": (
        f"{MERGED}  y = Attention <{ONE}> (qm, km, vm)",
        {"q": "B, 3, 5, 4", "k": "B, 3, 7, 4", "v": "B, 3, 7, 6"}, True,
    ),
    "an unmerged query": (f"{MERGED}  y = Attention <{ONE}> (q3, km, vm)", {"more": ", float[6, 5, 4] q3"}, False),
    "an unmerged key": (f"{MERGED}  y = Attention <{ONE}> (qm, k3, vm)", {"more": ", float[6, 7, 4] k3"}, False),
    "an unmerged value": (f"{MERGED}  y = Attention <{ONE}> (qm, km, v3)", {"more": ", float[6, 7, 6] v3"}, False),
    "a mask for all": (f"{MERGED}  y = Attention <{ONE}> (qm, km, vm, m)", {"more": ", float[1, 1, 5, 7] m"}, True),
    "a mask for each": (f"{MERGED}  y = Attention <{ONE}> (qm, km, vm, m)", {"more": ", float[6, 1, 5, 7] m"}, True),
    "a mask of two axes": (f"{MERGED}  y = Attention <{ONE}> (qm, km, vm, m)", {"more": ", float[5, 7] m"}, False),
    "a past": (
        f"{MERGED}  y = Attention <{ONE}> (qm, km, vm, , p, r)",
        {"more": ", float[6, 1, 3, 4] p, float[6, 1, 3, 6] r"}, False,
    ),
    "causal": (f"{MERGED}  y = Attention <{ONE}, is_causal = 1, scale = 0.25, softcap = 2.0> (qm, km, vm)", {}, True),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_heads_are_taken_out_of_the_batch_where_they_were_merged(case: tuple[str, dict[str, str], bool]) -> None:
    body, shapes, apart = case
    editor = built(body, **shapes)
    node = editor.graph.nodes[-1]
    attrs, inputs = dict(node.attrs), [tensor.name for tensor in node.inputs]
    made = attention_form._heads_from_batch(editor, node)
    if not apart:
        assert made is node
        assert (node.attrs, [tensor.name for tensor in node.inputs]) == (attrs, inputs)
        return
    assert [tensor.name for tensor in made.inputs[:3]] == ["q", "k", "v"]
    assert made.attrs == {key: value for key, value in attrs.items() if "heads" not in key}
    (view,) = made.outputs[0].outputs
    assert (view.op, [tensor.name for tensor in view.outputs]) == ("Reshape", ["y"])
    assert editor.dims(view.inputs[1]) == (-1, 5, 6)
    assert (node.inputs, node.outputs) == ([], [])
    if len(inputs) > 3:
        mask = producer(made.inputs[3], "Reshape")
        assert (mask is None) == (made.inputs[3].name == "m")
        assert mask is None or editor.dims(mask.inputs[1]) == (-1, 3, 0, 0)
        assert editor.shape(made.inputs[3]) == ((1, 1, 5, 7) if mask is None else (2, 3, 5, 7))


MASKS: dict[str, tuple[str, tuple[Any, ...] | None]] = {
    "1, 1, 5, 7": ("m", (1, 1, 5, 7)), "6, 1, 5, 7": ("made", (2, 3, 5, 7)), "6, 1, 1, 7": ("made", (2, 3, 1, 7)),
    "1, 1, 1, K": ("m", (1, 1, 1, "K")), "2, 3, 5, 7": ("", None), "1, 3, 5, 7": ("", None), "5, 7": ("", None),
    "6, 5, 7": ("", None), "1, 1, 1, 5, 7": ("", None),
}  # fmt: skip


@pytest.mark.parametrize("shape", MASKS)
def test_a_mask_for_each_of_the_batch_is_one_for_each_head(shape: str) -> None:
    kind, wanted = MASKS[shape]
    editor = edit(f"g (float[{shape}] m) => (float[] y) {{ y = Neg (m) }}")
    found = attention_form._mask_before_merge(editor, editor.graph.inputs[0], 3)
    assert (found is None) == (kind == "")
    if found is not None:
        assert (found is editor.graph.inputs[0]) == (kind == "m")
        assert tuple(map(str, editor.shape(found) or ())) == tuple(map(str, wanted or ()))


BEFORE: dict[str, tuple[str, bool]] = {
    "merged": ("y = Reshape (q, mq)", True),
    "rows that were merged": ("y = Reshape (q, mq2)", False),
    "to four axes": ("y = Reshape (q, rows)", False),
    "from three axes": ("y = Reshape (t, mq)", False),
    "no view": ("y = Neg (t)", False),
    "of an unknown shape": ("y = Reshape (u, mq)", False),
}


@pytest.mark.parametrize("case", BEFORE.values(), ids=BEFORE)
def test_what_was_merged_has_four_axes_of_which_two_stay(case: tuple[str, bool]) -> None:
    body, wanted = case
    values = {**TARGETS, "rows": [6, 1, 5, 4]}
    used = {name: np.array(value) for name, value in values.items() if f"{name})" in body}
    before = "u = Reshape (q, s)  " if "(u," in body else ""
    text = f"g (float[2, 3, 5, 4] q, float[6, 5, 4] t, int64[S] s) => (float[] y) {{ {before}{body} }}"
    editor = edit(text, used)
    found = attention_form._before_merge(editor, editor.graph.outputs[0])
    assert (found is editor.graph.inputs[0]) == wanted
    assert wanted or found is None


@pytest.mark.parametrize(("rows", "fixed"), [("5", True), ("S", False)])
def test_the_merged_result_has_the_queries_rows(rows: str, fixed: bool) -> None:
    editor = edit(f"g (float[2, 3, {rows}, 4] q) => (float[] y) {{ y = Neg (q) }}")
    (q,) = editor.graph.inputs
    shape = editor.shape(q)
    assert shape is not None
    target = attention_form._sizes(editor, shape, 6, q)
    if fixed:
        assert editor.dims(target) == (-1, 5, 6)
    else:
        parts = target.inputs[0].inputs
        assert [editor.dims(part) for part in (parts[0], parts[2])] == [(-1,), (6,)]
        assert [str(dim) for dim in editor.dims(parts[1]) or ()] == ["S"]
