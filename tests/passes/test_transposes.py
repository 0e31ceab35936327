"""Transposes and views go behind norms and Concats, and only where nothing else would see it."""

from __future__ import annotations

import pytest
from support.small_graphs import check_step, edit, operators

from sdort.passes import tidy, transposes

SIZES = {"B": 2, "S": 3, "L": 5}
HEADS = "<int64[4] apart = {0, 0, 2, 4}, int64[3] flat = {0, 0, 8}, float[4] g = {1.0, 2.0, 3.0, 0.5}>"
TURN = "Transpose <perm = [0, 2, 1, 3]>"


@pytest.mark.parametrize("norm", ["RMSNormalization <axis = -1>", "RMSNormalization <axis = 3>", "LayerNormalization"])
def test_heads_are_normalized_as_rows(norm: str) -> None:
    body = f"a = Reshape (x, apart)  b = {TURN} (a)  c = {norm} (b, g)  d = {TURN} (c)  y = Reshape (d, flat)"
    text = f"g (float[B, S, 8] x) => (float[B, S, 8] y) {HEADS} {{ {body} }}"
    assert check_step(text, tidy.run, SIZES, rtol=1e-6) == {"Reshape": 2, norm.partition(" ")[0]: 1}


def test_heads_of_two_sequences_are_joined_as_rows() -> None:
    body = f"""
        a = Reshape (x, apart)  b = {TURN} (a)  c = RMSNormalization (b, g)
        d = Reshape (z, apart)  e = {TURN} (d)  f = RMSNormalization (e, g)
        h = Concat <axis = 2> (c, f)  i = {TURN} (h)  y = Reshape (i, flat)"""
    text = f"g (float[B, S, 8] x, float[B, L, 8] z) => (float[B, T, 8] y) {HEADS} {{ {body} }}"
    wanted = {"Concat": 1, "RMSNormalization": 2, "Reshape": 3}
    assert check_step(text, tidy.run, SIZES, rtol=1e-6) == wanted


def test_values_of_two_sequences_need_no_heads_at_all() -> None:
    body = f"""
        a = Reshape (x, apart)  b = {TURN} (a)  d = Reshape (z, apart)  e = {TURN} (d)
        h = Concat <axis = 2> (b, e)  i = {TURN} (h)  j = Reshape (i, flat)  y = Neg (j)"""
    text = f"g (float[B, S, 8] x, float[B, L, 8] z) => (float[B, T, 8] y) {HEADS} {{ {body} }}"
    assert check_step(text, tidy.run, SIZES) == {"Concat": 1, "Neg": 1}


@pytest.mark.parametrize("pairs", [0, 1])
def test_rows_are_turned_before_they_are_heads(pairs: int) -> None:
    turn = f"RotaryEmbedding <interleaved = {pairs}> (b, cos, sin)"
    body = f"a = Reshape (x, apart)  b = {TURN} (a)  c = {turn}  d = {TURN} (c)  y = Reshape (d, flat)"
    tables = "float[2, S, 2] cos, float[2, S, 2] sin"
    text = f"g (float[2, S, 8] x, {tables}) => (float[2, S, 8] y) {HEADS} {{ {body} }}"
    left = check_step(text, tidy.run, SIZES, rtol=1e-6)
    assert {op: number for op, number in left.items() if op != "Identity"} == {"RotaryEmbedding": 1}


SHARED = f"""a = Reshape (x, apart)  b = {TURN} (a)  c = Reshape (b, one)  d = Expand (c, twice)
    e = Reshape (d, merged)  f = {TURN} (e)  h = Reshape (f, wide)  y = Neg (h)"""
SHARED_VALUES = HEADS.replace(
    ">",
    ", int64[5] one = {0, 2, 1, -1, 4}, int64[5] twice = {1, 1, 3, 1, 1}, int64[4] merged = {0, 6, -1, 4}, "
    "int64[3] wide = {0, 0, 24}>",
)


def test_heads_that_are_shared_are_repeated_as_rows() -> None:
    text = f"g (float[B, S, 8] x) => (float[B, S, 24] y) {SHARED_VALUES} {{ {SHARED} }}"
    assert check_step(text, tidy.run, SIZES) == {"Expand": 1, "Neg": 1, "Reshape": 2}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("f = Transpose <perm = [0, 2, 1, 3]>", "f = Transpose <perm = [0, 2, 3, 1]>"),
        ("b = Transpose <perm = [0, 2, 1, 3]>", "b = Transpose <perm = [0, 2, 3, 1]>"),
        ("y = Neg (h)", "k = ReduceSum (d)  y = Mul (h, k)"),
        ("y = Neg (h)", "k = ReduceSum (b)  y = Mul (h, k)"),
        ("int64[5] one = {0, 2, 1, -1, 4}", "int64[5] one = {0, 1, 2, -1, 4}"),
        ("int64[5] twice = {1, 1, 3, 1, 1}", "int64[5] twice = {3, 1, 1, 1, 1, 1}"),
    ],
)  # fmt: skip
def test_other_repetitions_stay(old: str, new: str) -> None:
    text = f"g (float[1, 3, 8] x) => (float[] y) {SHARED_VALUES} {{ {SHARED} }}"
    assert old in text
    changed = text.replace(old, new)
    if "one = {0, 1" in new:
        changed = changed.replace("1, 1, 3, 1, 1", "1, 3, 1, 1, 1")
    if "{3, 1, 1, 1, 1, 1}" in new:
        changed = changed.replace("int64[5] twice", "int64[6] twice").replace("merged = {0, 6", "merged = {3, 2")
        changed = changed.replace("wide = {0, 0, 24}", "wide = {0, 0, 8}")
    check_step(changed, tidy.run)
    editor = edit(changed)
    assert not any(transposes._repeated_heads(editor, node) for node in list(editor.graph.nodes))


STAY = {
    "a norm over another axis": f"b = {TURN} (x)  y = RMSNormalization <axis = -2> (b, w)",
    "a norm over an axis that moves": "b = Transpose <perm = [0, 1, 3, 2]> (x)  y = RMSNormalization (b, v)",
    "a norm with a weight of rows": f"b = {TURN} (x)  y = RMSNormalization (b, w)",
    "a Transpose that is read twice": f"b = {TURN} (x)  c = RMSNormalization (b, g)  y = Add (c, b)",
    "a norm whose mean is read": f"b = {TURN} (x)  c, m, i = LayerNormalization (b, g)  y = Mul (c, m)",
    "a rotary embedding of another Transpose": "b = Transpose <perm = [0, 3, 1, 2]> (x)  "
    "y = RotaryEmbedding (b, t, t)",
    "a Concat of another order": f"b = {TURN} (x)  c = Transpose <perm = [0, 2, 3, 1]> (z)  "
    "y = Concat <axis = 1> (b, c)",
    "a Concat of a Transpose": f"b = {TURN} (x)  c = Neg (z)  y = Concat <axis = 1> (b, c)",
    "a Concat of what is read": f"b = {TURN} (x)  c = {TURN} (z)  d = Concat <axis = 1> (b, c)  e = Neg (b)  "
    "f = ReduceSum (e)  y = Add (d, f)",
    "a Concat of heads": "b = Reshape (u, apart)  c = Reshape (u2, apart)  y = Concat <axis = 2> (b, c)",
    "a Concat of views alike": "b = Reshape (u, merged)  c = Reshape (u2, merged)  y = Concat <axis = 0> (b, c)",
}  # fmt: skip


@pytest.mark.parametrize("body", STAY.values(), ids=STAY)
def test_what_would_change_stays(body: str) -> None:
    images, rows = "float[2, 4, 4, 4] x, float[2, 4, 4, 4] z", "float[2, 3, 8] u, float[2, 3, 8] u2"
    inputs = f"{images}, {rows}, float[4, 4] w, float[4] v, float[2, 4, 2] t"
    values = HEADS.replace(">", ", int64[2] merged = {0, 24}>")
    text = f"g ({inputs}) => (float[] y) {values} {{ {body} }}"
    before = operators(edit(text))
    assert check_step(text, tidy.run, rtol=1e-6) == before
