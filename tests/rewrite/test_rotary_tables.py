"""Tables of rotary embeddings that have each angle twice: where that can be followed, and where it cannot."""

from __future__ import annotations

import numpy as np
import pytest
from support.rules import run_fold
from support.small_graphs import Array, check_step, edit, operators

from sdort.rewrite.apply import apply_fusion
from sdort.rewrite.editor import Editor
from sdort.rewrite.fusion import load_fusions

SIZES = {"B": 2, "S": 5}
VALUES: dict[str, Array] = {
    "four": np.array([1, -1, 1, 8]), "apart": np.array([0, 0, 3, 4, 2]), "inner": np.array([0, 0, 3, 4]),
    "outer": np.array([0, 0, 3, 4, 1]), "back": np.array([0, 0, 3, 8]), "column": np.array([-1, 2, 1]),
    "twice": np.array([1, 1, 2]), "side": np.array([1, 2]),
    "four_times": np.array([1, 4]), "flat": np.array([-1, 4]), "whole": np.array([-1, 8]), "by4": np.array([-1, 4, 1]),
    "half": np.array(0.5, np.float32), "row": np.linspace(0.5, 1, 8, dtype=np.float32), "minus": np.array([-1]),
    "table": np.repeat(np.sin(np.arange(20, dtype=np.float32)).reshape(1, 5, 1, 4), 2, axis=-1),
    "other": np.sin(np.arange(40, dtype=np.float32)).reshape(1, 5, 1, 8),
    "joined": np.tile(np.sin(np.arange(20, dtype=np.float32)).reshape(1, 5, 1, 4), 2),
}  # fmt: skip
TURNED = """
    pairs = Reshape (x, apart)  even, odd = Split <axis = -1, num_outputs = 2> (pairs)  odd4 = Reshape (odd, inner)
    minus4 = Neg (odd4)  minus5 = Reshape (minus4, outer)  swapped = Concat <axis = -1> (minus5, even)
    turned = Reshape (swapped, back)"""
HALVED = """
    first, second = Split <axis = -1, num_outputs = 2> (x)  minus4 = Neg (second)
    turned = Concat <axis = -1> (minus4, first)"""
SUM = "straight = Mul (x, cos)  crossed = Mul (turned, sin)  y = Add (straight, crossed)"
REPEATED = "u = Reshape (a, column)  v = Expand (u, twice)  w = Reshape (v, flat)"
PAIRS = {
    "constants": "cos = Identity (table)  sin = Neg (table)",
    "repeated by Expand, of two axes": f"{REPEATED}  t = Concat <axis = -1> (w, w)  c = Cos (t)  s = Sin (t)  "
    "cos = Reshape (c, four)  sin = Reshape (s, four)",
    "repeated by Concat": "u = Reshape (b, by4)  v = Concat <axis = -1> (u, u)  t = Reshape (v, whole)  c = Cos (t)  "
    "s = Sin (t)  cos = Reshape (c, four)  sin = Reshape (s, four)",
    "repeated by Tile": "u = Reshape (b, by4)  v = Tile (u, twice)  t = Reshape (v, whole)  c = Cos (t)  s = Sin (t)  "
    "cos = Reshape (c, four)  sin = Reshape (s, four)",
    "times a number": f"{REPEATED}  t = Concat <axis = -1> (w, w)  c = Mul (t, half)  s = Sub (half, t)  "
    "cos = Reshape (c, four)  sin = Reshape (s, four)",
    "in another precision": "u = Reshape (b, by4)  v = Concat <axis = -1> (u, u)  t = Reshape (v, whole)  c = Cos (t)  "
    "h = Cast <to = 11> (t)  l = Cast <to = 1> (h)  cos = Reshape (c, four)  sin = Reshape (l, four)",
}
HALVES = {
    "tiled": "t = Tile (b, side)  c = Cos (t)  s = Sin (t)  cos = Reshape (c, four)  sin = Reshape (s, four)",
    "constants": "cos = Identity (joined)  sin = Neg (joined)",
    "joined": "t = Concat <axis = -1> (b, b)  c = Cos (t)  s = Sin (t)  cos = Reshape (c, four)  "
    "sin = Reshape (s, four)",
}
INPUTS = "float[B, 5, 3, 8] x, float[5, 2] a, float[5, 4] b, float[5, 4] d, float[5, 8] e"


def graph(turned: str, tables: str, inputs: str = INPUTS) -> str:
    return f"g ({inputs}) => (float[B, 5, 3, 8] y) {{ {tables}  {turned}  {SUM} }}"


def weights(text: str) -> dict[str, Array]:
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    return {name: values for name, values in VALUES.items() if name in words}


@pytest.mark.parametrize(
    ("fusion", "turned", "tables"),
    [
        *(("rotary_pairs", TURNED, tables) for tables in PAIRS.values()),
        *(("rotary_halves", HALVED, tables) for tables in HALVES.values()),
    ],
    ids=[*(f"pairs {name}" for name in PAIRS), *(f"halves {name}" for name in HALVES)],
)
def test_each_angle_is_read_once(fusion: str, turned: str, tables: str) -> None:
    def fuse(editor: Editor) -> None:
        run_fold(editor)
        assert apply_fusion(load_fusions()[fusion], editor).matched == 1
        editor.finish()

    text = graph(turned, tables)
    left = check_step(text, fuse, SIZES, weights(text), rtol=1e-6)
    assert left["RotaryEmbedding"] == 1
    assert not {"Neg", "Split"} & set(left) - ({"Neg"} if "Neg" in tables else set())


APART = {
    "of two tensors": "t = Concat <axis = -1> (b, d)  c = Cos (t)  s = Sin (t)",
    "four times": "t = Tile (a, four_times)  c = Cos (t)  s = Sin (e)",
    "of three": "t3 = Concat <axis = -1> (a, a, b)  c = Cos (t3)  s = Sin (t3)",
    "as they come": "c = Cos (e)  s = Sin (e)",
    "one of them": "t = Concat <axis = -1> (b, b)  c = Cos (t)  s = Sin (e)",
    "times a row": "t = Concat <axis = -1> (b, b)  c = Mul (t, row)  s = Sin (t)",
    "of another operator": "t = Concat <axis = -1> (b, b)  c = Softmax (t)  s = Sin (t)",
}


@pytest.mark.parametrize("tables", APART.values(), ids=APART)
@pytest.mark.parametrize(("fusion", "turned"), [("rotary_pairs", TURNED), ("rotary_halves", HALVED)])
def test_tables_whose_angles_may_differ_stay(fusion: str, turned: str, tables: str) -> None:
    text = graph(turned, f"{tables}  cos = Reshape (c, four)  sin = Reshape (s, four)")
    editor = edit(text, weights(text))
    before = operators(editor)
    assert apply_fusion(load_fusions()[fusion], editor).matched == 0
    editor.finish()
    assert operators(editor) == before


def test_halves_are_no_pairs_and_pairs_no_halves() -> None:
    for fusion, turned, table in (("rotary_pairs", TURNED, "joined"), ("rotary_halves", HALVED, "table")):
        text = graph(turned, "").replace("cos)", f"{table})").replace("sin)", f"{table})")
        assert apply_fusion(load_fusions()[fusion], edit(text, weights(text))).matched == 0
