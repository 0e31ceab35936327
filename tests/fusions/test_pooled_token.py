"""The position of the token that CLIP's pooled output is read at: where its two fusions apply and where not."""

from __future__ import annotations

from functools import partial

import pytest
from support.small_graphs import check_step, edit, operators

from sdort.providers import PROVIDER_NAMES, load_target
from sdort.rewrite.apply import apply_fusion
from sdort.rewrite.editor import Editor
from sdort.rewrite.fusion import load_fusions

SIZES = {"B": 3, "S": 5, "W": 4}
WITHOUT_SIZES = {"ArgMax": 1, "GatherND": 1}

ROWS = """
g (float[B, S, 4] x, int64[B, S] ids) => (float[B, 4] y)
<int64 first = {{ {first} }}, int64 step = {{ {step} }}, int64 zero = {{0}}, int64[1] which = {{ {which} }},
 int64 above = {{ {first} }}, int64[2] flat = {{-1, 4}}> {{
    size = Shape (x)
    batch = Gather (size, zero)
    end = Add (batch, above)
    number = Range (first, end, step)
    row = Gather (size, which)
    start = Mul (row, number)
    index = ArgMax <axis = -1, keepdims = 0, select_last_index = {last}> (ids)
    position = Add (index, start)
    rows = Reshape (x, flat)
    y = Gather (rows, position)
}}"""
COLUMNS = """
g (float[3, S, 4] x, int64[3, S] ids) => (float[3, 4] y)
<int64[3, 1] number = {{ {number} }}, int64[2] column = {{-1, 1}}> {{
    index = ArgMax <axis = -1, keepdims = 0> (ids)
    standing = Reshape (index, column)
    both = Concat <axis = -1> (number, standing)
    y = GatherND (x, both)
}}"""
STARTS = """
g (float[3, 5, 4] x, int64[3, 5] ids) => (float[3, 4] y)
<int64[3] start = {{ {start} }}, int64[2] flat = {{15, 4}}> {{
    index = ArgMax <axis = -1, keepdims = 0> (ids)
    position = Add (start, index)
    rows = Reshape (x, flat)
    y = Gather (rows, position)
}}"""
CLIP = {"first": 0, "step": 1, "which": 1, "last": 0}


def lower(editor: Editor, target: str) -> None:
    apply_fusion(load_fusions()["argmax_to_top_k"], editor, load_target(target))


def pool(editor: Editor) -> None:
    apply_fusion(load_fusions()["pooled_token"], editor)


@pytest.mark.parametrize(
    "text", [ROWS.format(**CLIP), COLUMNS.format(number="0, 1, 2"), STARTS.format(start="0, 5, 10")]
)
def test_sizes_go(text: str) -> None:
    assert check_step(text, pool, SIZES) == WITHOUT_SIZES


@pytest.mark.parametrize(
    "text",
    [
        ROWS.format(**CLIP | {"last": 1}),
        ROWS.format(**CLIP | {"which": 2}),
        COLUMNS.format(number="0, 2, 1"),
        STARTS.format(start="0, 4, 8"),
    ],
    ids=["the last of equal ones", "rows of another length", "prompts in another order", "rows that overlap"],
)
def test_others_stay(text: str) -> None:
    assert check_step(text, pool, SIZES)["Concat" if "Concat" in text else "Reshape"] == 1


@pytest.mark.parametrize("change", [{"first": 1}, {"step": 2}])
def test_numbers_that_do_not_count_the_prompts_stay(change: dict[str, int]) -> None:
    editor = edit(ROWS.format(**CLIP | change))
    pool(editor)
    assert operators(editor)["Range"] == 1


@pytest.mark.parametrize(
    ("dtype", "last", "lowered"), [("int64", 0, True), ("int32", 0, True), ("float", 0, False), ("int64", 1, False)]
)
def test_argmax_over_integers_becomes_top_k_on_gpus(dtype: str, last: int, lowered: bool) -> None:
    text = f"""g ({dtype}[B, S] x) => (int64[B] y, int64[1, S] z) {{
        y = ArgMax <axis = -1, keepdims = 0, select_last_index = {last}> (x)
        z = ArgMax <axis = 0, select_last_index = {last}> (x)
    }}"""
    found = {name: check_step(text, partial(lower, target=name), SIZES) for name in PROVIDER_NAMES}
    gpu = {"TopK": 2, "Squeeze": 1} if lowered else {"ArgMax": 2}
    assert found == {name: gpu if name in ("rocm", "cuda") else {"ArgMax": 2} for name in PROVIDER_NAMES}
