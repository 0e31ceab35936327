"""Attention's kernels on the four simulated machines, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.attention_cases import FORMS, HEAD_SIZES, WIDE_SIZES, Case, Drawn, close, draw_case, make, workspace_bytes
from support.drawn import drawn
from support.kernel_cases import Guarded, simulate, variant_names
from support.native import MACHINES

Array = npt.NDArray[Any]
DTYPES = [np.float32, np.float16]

machines = pytest.mark.parametrize("machine", MACHINES)
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def variants(machine: str, size: int) -> int:
    """How many kernels there are for any number of keys."""
    wgmma = machine == "mma_sync" and size in (40, 64, 80)
    return (2 if size == 40 or (size in (64, 80) and machine != "wmma_gfx11") else 1) + wgmma


def check(machine: str, case: Case, form: str = "apart", units: int = 4) -> int:
    """Run every variant with waves in step and in another order, to the same bits; how many there are."""
    inputs = case.inputs(form)
    plain = case.bias is None and not case.causal and case.q.shape[-1] == case.v.shape[-1]
    positive = case.scale is None or case.scale > 0
    matrix = case.q.dtype == np.float16 and case.q.shape[-1] in (*HEAD_SIZES, *WIDE_SIZES) and plain and positive
    count = 0
    while True:
        results = []
        for order in (0, 1 + count):
            y = Guarded(case.output_shape, case.q.dtype)
            problem = case.problem(inputs, form, y.pointer)
            workspace = Guarded((workspace_bytes(machine, problem, case.q.dtype, units) // 2,), np.float16)
            problem.workspace = workspace.pointer
            if not simulate(machine, "attention", problem, case.q.dtype, count, order, units):
                return count
            results.append(y.check())
            workspace.check()
        assert np.array_equal(results[0], results[1])
        close(results[0], case.as_mi200_reads_it() if matrix and machine == "mfma" else case, rounded_weights=matrix)
        count += 1


@drawn(128, draw_case)
def test_any_problem(case: Drawn) -> None:
    """On one compute unit, so that a workgroup with all keys at hand goes on with further queries."""
    assert check(case.machine, case.make(), case.form, units=1)


@machines
@pytest.mark.parametrize("keys", [77, 200])
@pytest.mark.parametrize("power", [-15, -19])
def test_small_weights_are_in_the_products_as_they_are_in_the_sums(machine: str, power: int, keys: int) -> None:
    """One key has almost all of the weight and no value; the others' weights are subnormal in float16."""
    case = make(np.float16, 1, 20, keys, 1, 64, scale=1.0)
    for x, first, others in ((case.q, 1, 1), (case.k, -power * np.log(2), 0), (case.v, 0, 1)):
        x[:, :1], x[:, 1:] = first, others
    case.q[..., 1:] = 0
    assert case.exact().max() < 1.01 * keys * 2.0**power
    assert check(machine, case)


@machines
@pytest.mark.parametrize("weight", [50000, 70000, 500000])
def test_a_later_key_whose_weight_float16_just_holds_or_just_not(machine: str, weight: int) -> None:
    """Relative to the first keys' scores. Alike for all queries, or one would have all weights computed again."""
    case = make(np.float16, 1, 20, 100, 1, 64, scale=1.0)
    case.q[...] = case.k[...] = 0
    case.q[..., 0], case.k[:, 70, :, 0] = 1, np.log(weight / (64 if machine == "mfma" else 1))
    assert check(machine, case)


@machines
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", HEAD_SIZES)
def test_matrix_forms(machine: str, form: str, size: int) -> None:
    """Two batches, two heads, one row more than whole tiles; up to 80 keys also the kernel that has all at once."""
    count = check(machine, make(np.float16, 2, 65, 65, 2, size), form)
    assert count == variants(machine, size) + (size < 160)


@machines
@pytest.mark.parametrize("size", HEAD_SIZES)
@pytest.mark.parametrize(("queries", "keys"), [(3, 1), (16, 77), (5, 80), (130, 81), (20, 200), (64, 256)])
def test_matrix_shapes(machine: str, size: int, queries: int, keys: int) -> None:
    count = check(machine, make(np.float16, 1, queries, keys, 1, size))
    assert count == variants(machine, size) + (keys <= 80 and size < 160)


@machines
@pytest.mark.parametrize("size", HEAD_SIZES)
@pytest.mark.parametrize("order", [1, -1])
def test_matrix_scores_that_rise_and_fall_along_the_keys(machine: str, size: int, order: int) -> None:
    """What weights are relative to changes in every tile, in few, or never: sums are scaled down as often."""
    case = make(np.float16, 1, 20, 200, 1, size, scale=1.0)
    case.k[...] = np.linspace(-1, 1, 200, dtype=np.float16)[::order, None, None]
    case.q[...] = np.linspace(0, 300 / size, 20, dtype=np.float16)[:, None, None]
    assert check(machine, case)


@machines
@pytest.mark.parametrize(
    ("form", "sizes"),
    [("apart", (1, 70, 200, 1, 512)), ("packed_qkv", (2, 129, 129, 2, 192)), ("heads_first", (1, 3, 1, 1, 192))],
)
def test_wide_heads(machine: str, form: str, sizes: tuple[int, int, int, int, int]) -> None:
    """Parts of one tile and of several; queries and keys that are no whole tiles, and a segment without any key."""
    case = make(np.float16, *sizes)
    count = 1 + (machine == "mma_sync")  # of wgmma
    assert check(machine, case, form, units=1) == check(machine, case, form, units=64) == count


@machines
@pytest.mark.parametrize("order", [1, -1])
def test_wide_heads_whose_scores_rise_and_fall_along_the_keys(machine: str, order: int) -> None:
    """Segments whose weights count for nothing beside the others', and such as differ a little."""
    case = make(np.float16, 1, 20, 200, 1, 192, scale=1.0)
    case.k[...] = np.linspace(-1, 1, 200, dtype=np.float16)[::order, None, None]
    case.q[...] = np.linspace(0, 300 / 192, 20, dtype=np.float16)[:, None, None]
    assert check(machine, case)


@pytest.mark.parametrize(("size", "keys"), [(40, 400), (192, 460)])
def test_more_tiles_than_are_in_flight(size: int, keys: int) -> None:
    """Of Hopper's kernels, whose products read a tile some time after they were asked for it."""
    assert check("mma_sync", make(np.float16, 1, 20, keys, 1, size))


@pytest.mark.parametrize("units", [1, 132])
@pytest.mark.parametrize("size", HEAD_SIZES)
def test_the_first_choice_on_hopper(size: int, units: int) -> None:
    """wgmma where it was measured, whether or not the queries fill the device; with few keys what has all at once."""
    sizes = (1, 130)
    few, many, biased = (
        make(np.float16, *sizes, 80, 1, size),
        make(np.float16, *sizes, 81, 1, size),
        make(np.float16, *sizes, 81, 1, size, bias=True),
    )

    def names(case: Case, architecture: str = "sm_90") -> list[str]:
        inputs = case.inputs("apart")
        problem = case.problem(inputs, "apart", Guarded(case.output_shape, np.float16).pointer)
        return variant_names("mma_sync", "attention", problem, np.float16, units, architecture)

    has = size in (40, 64, 80)
    assert (names(many)[0] == "flash_wgmma") == has
    assert names(few)[0] == ("q1_whole" if size < 160 else "q1_k32_s32")
    assert names(few).count("flash_wgmma") == names(many).count("flash_wgmma") == has
    assert names(many, "sm_80") == [name for name in names(many) if name != "flash_wgmma"]
    assert names(biased) == ["general"]


@machines
@dtypes
@pytest.mark.parametrize("form", FORMS)
def test_forms(machine: str, dtype: Any, form: str) -> None:
    assert check(machine, make(dtype, 2, 19, 19, 2, 40, bias=True), form)


@machines
@dtypes
@pytest.mark.parametrize(
    ("queries", "keys", "size", "value_size"),
    [(40, 77, 4, 4), (33, 1, 16, 16), (5, 70, 72, 20), (20, 65, 200, 200), (2, 66, 24, 520)],
)
def test_any_size(machine: str, dtype: Any, queries: int, keys: int, size: int, value_size: int) -> None:
    assert check(machine, make(dtype, 1, queries, keys, 2, size, value_size=value_size))


@machines
@dtypes
@pytest.mark.parametrize(("queries", "keys"), [(70, 70), (3, 70), (70, 3)])
def test_causal(machine: str, dtype: Any, queries: int, keys: int) -> None:
    assert check(machine, make(dtype, 1, queries, keys, 2, 8, bias=True, causal=True))


@machines
@dtypes
@pytest.mark.parametrize("spread", [30.0, 1e-3])
def test_scores_far_beyond_the_range_of_exp(machine: str, dtype: Any, spread: float) -> None:
    for keys in (70, 150):
        assert check(machine, make(dtype, 1, 35, keys, 1, 64, spread=spread, scale=1.0))
