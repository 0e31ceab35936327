"""BiasAdd, BiasSplitGelu and SkipLayerNormalization: kernels on simulated machines, and the CPU's, against float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support import native
from support.drawn import Generator, chance, drawn, epsilon_and_spread, near
from support.kernel_cases import Guarded, aligned, pointer, run, session, simulate, ulps
from support.native import MACHINES
from support.problems import problem, problem_type
from support.row_cases import Rows, gelu, layer_norm, normal, split_gelu
from support.rows import Inputs, RowOperator, operators

from sdort.operator_library.library import describe_library

Array = npt.NDArray[Any]
DTYPES = [np.float32, np.float16]

LAYER_NORM = next(operator for operator in operators() if operator.kernels == "skip_layer_norm")

machines = pytest.mark.parametrize("machine", MACHINES)
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def draw_rows(rng: Generator, seed: int, most: int = 12000, most_rows: int = 40) -> Rows:
    """Widths around whole vectors, waves and blocks, and rows around whole blocks, of every machine."""
    width = near(rng, (1, 4, 8, 64, 128, 256, 512, 768), int(rng.choice([40, 400, 3200])))
    rows = near(rng, (1, 2, 4, 8), max(1, min(most_rows, most // width)))
    skip_rows = int(rng.choice([n for n in range(1, rows + 1) if rows % n == 0]))
    epsilon, spread = epsilon_and_spread(rng)
    dtype = (np.float16, np.float32)[seed // len(MACHINES) % 2]
    mean = spread * float(rng.choice([0.0, 1.0, -30.0]))
    optional = frozenset(name for name in ("beta", "bias", "sum") if chance(rng))
    return Rows(seed, MACHINES[seed % len(MACHINES)], dtype, rows, width, skip_rows, spread, mean, epsilon, optional)


def draw_many_rows(rng: Generator, seed: int) -> Rows:
    """Every second time more elements than one compute unit's threads take at once, as vectors too."""
    return draw_rows(rng, seed, *((12000, 40), (60000, 2000))[int(rng.integers(2))])


def check(operator: RowOperator, case: Rows, inputs: Inputs, actual: Mapping[str, Array]) -> None:
    """Every output is within its error of the float64 result."""
    results = operator.results(case, inputs)
    assert actual.keys() == results.keys()
    for name, (exact, error) in results.items():
        assert (np.abs(actual[name].reshape(exact.shape) - exact) <= error).all(), name


def on_machine(
    operator: RowOperator, case: Rows, inputs: Inputs, variant: int, **options: Any
) -> dict[str, Array] | None:
    """Outputs of one variant; None if the problem has no such one."""
    shapes = {name: exact.shape for name, (exact, _) in operator.results(case, inputs).items()}
    outputs = {name: Guarded(shape, case.dtype) for name, shape in shapes.items()}
    problem = operator.bind(case, inputs, outputs)
    if not simulate(case.machine, operator.kernels, problem, case.dtype, variant, **options):
        return None
    return {name: output.check() for name, output in outputs.items()}


def check_variants(operator: RowOperator, case: Rows, **options: Any) -> None:
    inputs = operator.inputs(case)
    for variant in range(20):
        actual = on_machine(operator, case, inputs, variant, **options)
        if actual is None:
            assert variant > 0
            break
        check(operator, case, inputs, actual)


def check_cpu(operator: RowOperator, case: Rows) -> None:
    name, inputs, outputs, attributes = operator.node(case)
    results = run(name, inputs, outputs, **attributes)
    actual = dict(zip((output for output in outputs if output), results, strict=True))
    check(operator, case, operator.inputs(case), actual)


def test_every_operator_over_rows_is_here() -> None:
    """Those whose problem has the fields of one; and each is an operator of the library, on GPUs too."""
    fields = {name: {field[0] for field in problem_type(name)._fields_} for name in native.kernel_operators()}
    assert [each.kernels for each in operators()] == [n for n, has in fields.items() if {"rows", "width"} <= has]
    described = {(each.domain, each.name): each for each in describe_library(native.library()).operators}
    assert all(described[each.domain, each.name].gpu for each in operators())
    assert all(described[each.domain, each.name].cpu for each in operators())


def test_a_problem_of_another_size_is_refused() -> None:
    """As where a field was added to a header after the build."""
    given = problem("bias_split_gelu", rows=1, width=1)
    with pytest.raises(RuntimeError, match="a problem of bias_add has 48 bytes, not 40"):
        simulate("mfma", "bias_add", given, np.float32)
    with pytest.raises(TypeError, match="a problem of bias_add has no channels"):
        problem("bias_add", channels=1)


@pytest.mark.parametrize("operator", operators(), ids=str)
@drawn(64, draw_many_rows)
def test_any_rows(operator: RowOperator, case: Rows) -> None:
    """Of any width, on one compute unit of a machine by every variant, and on the CPU."""
    case = replace(case, spread=operator.spread or case.spread)
    check_variants(operator, case, order=case.seed, units=1)
    check_cpu(operator, case)


@machines
@dtypes
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (37, 40), (70, 320), (3, 1280), (5, 7), (2, 100)])
def test_bias_split_gelu_on_machines(machine: str, dtype: Any, rows: int, width: int) -> None:
    rng = np.random.default_rng(rows)
    x, bias = normal(rng, rows, 2 * width, dtype=dtype, scale=3), normal(rng, 2 * width, dtype=dtype)
    exact = split_gelu(x, bias)
    results = []
    for variant in range(8):
        y = Guarded((rows, width), dtype)
        given = problem("bias_split_gelu", x=pointer(x), bias=pointer(bias), y=y.pointer, rows=rows, width=width)
        if not simulate(machine, "bias_split_gelu", given, dtype, variant):
            break
        results.append(y.check())
        if dtype is np.float16:
            assert ulps(results[-1], exact) < 0.51  # half an ulp is the rounding of the result itself
        else:
            np.testing.assert_allclose(results[-1], exact, rtol=1e-5, atol=1e-6)
    assert results
    assert all(np.array_equal(results[0], other) for other in results)


def test_gelu_over_every_half() -> None:
    x = np.arange(2**16, dtype=np.uint16).view(np.float16)
    x = x[np.isfinite(x)]
    ones, zeros = np.ones_like(x), np.zeros(2 * x.size, np.float16)
    row = aligned(np.concatenate([ones, x])[None])
    with np.errstate(over="ignore"):  # x * 1 is finite, but one rounding up of the largest value is not
        exact = gelu(x.astype(np.float64))
    y = Guarded((1, x.size), np.float16)
    bias = aligned(zeros)
    given = problem("bias_split_gelu", x=pointer(row), bias=pointer(bias), y=y.pointer, rows=1, width=x.size)
    assert simulate("mma_sync", "bias_split_gelu", given, np.float16)
    assert ulps(y.check(), exact) < 0.51
    [on_cpu] = run("BiasSplitGelu", {"X": row[None], "bias": bias})
    assert ulps(on_cpu[0], exact[None]) < 0.51


@dtypes
@pytest.mark.parametrize("shape", [(2, 33, 640), (1, 1, 14), (2, 5, 2560), (0, 4, 16)])
def test_bias_split_gelu_on_the_cpu(dtype: Any, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, bias = normal(rng, *shape, dtype=dtype, scale=3), normal(rng, shape[-1], dtype=dtype)
    [y] = run("BiasSplitGelu", {"X": x, "bias": bias})
    exact = split_gelu(x, bias)
    assert y.shape == exact.shape
    if dtype is np.float16:
        assert ulps(y, exact) < 0.51
    else:
        np.testing.assert_allclose(y, exact, rtol=1e-5, atol=1e-6)


@machines
@dtypes
@pytest.mark.parametrize(("rows", "channels"), [(1, 8), (37, 320), (9, 1280), (300, 40), (3, 7), (200, 30)])
def test_bias_add_on_machines(machine: str, dtype: Any, rows: int, channels: int) -> None:
    rng = np.random.default_rng(rows)
    x, skip = (normal(rng, rows, channels, dtype=dtype) for _ in range(2))
    bias = normal(rng, channels, dtype=dtype)
    y = Guarded(x.shape, dtype)
    tensors = {"x": pointer(x), "bias": pointer(bias), "skip": pointer(skip), "y": y.pointer}
    assert simulate(machine, "bias_add", problem("bias_add", **tensors, rows=rows, width=channels), dtype)
    exact = x.astype(np.float64) + bias + skip
    np.testing.assert_allclose(y.check(), exact, rtol=np.finfo(dtype).eps, atol=1e-6)


@dtypes
def test_bias_add_on_the_cpu(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x, skip = (normal(rng, 2, 33, 100, dtype=dtype) for _ in range(2))
    bias = normal(rng, 100, dtype=dtype)
    [y] = run("BiasAdd", {"X": x, "bias": bias, "skip": skip})
    np.testing.assert_allclose(y, x.astype(np.float64) + bias + skip, rtol=np.finfo(dtype).eps, atol=1e-6)


def close(actual: Array, exact: Array) -> None:
    """One rounding to the dtype, and float32's errors in between."""
    np.testing.assert_allclose(actual, exact, rtol=np.finfo(actual.dtype).eps * 0.51 + 1e-6, atol=5e-6)


@machines
@dtypes
@pytest.mark.parametrize(
    ("rows", "skip_rows", "width"),
    [(9, 9, 320), (8, 4, 640), (3, 3, 1280), (2, 1, 64), (5, 5, 8), (3, 3, 100), (2, 2, 2560), (2, 2, 7), (1, 1, 5152)],
)
@pytest.mark.parametrize("optional", [True, False])
def test_skip_layer_norm_on_machines(
    machine: str, dtype: Any, rows: int, skip_rows: int, width: int, optional: bool
) -> None:
    rng = np.random.default_rng(rows)
    x, skip = normal(rng, rows, width, dtype=dtype), normal(rng, skip_rows, width, dtype=dtype, scale=2)
    gamma, beta, bias = (normal(rng, width, dtype=dtype) for _ in range(3))
    exact, exact_sum = layer_norm(
        x, np.tile(skip, (rows // skip_rows, 1)), gamma, beta if optional else None, bias if optional else None
    )
    for variant in range(10):
        y, total = Guarded(x.shape, dtype), Guarded(x.shape, dtype)
        given = {"x": x, "skip": skip, "gamma": gamma} | ({"beta": beta, "bias": bias} if optional else {})
        tensors = {name: pointer(value) for name, value in given.items()} | {"y": y.pointer}
        tensors |= {"sum": total.pointer} if optional else {}
        sizes = {"rows": rows, "skip_rows": skip_rows, "width": width, "epsilon": 1e-5}
        if not simulate(machine, "skip_layer_norm", problem("skip_layer_norm", **tensors, **sizes), dtype, variant):
            assert variant > 0
            break
        close(y.check(), exact)
        if optional:
            close(total.check(), exact_sum)
        else:
            assert np.isnan(total.check()).all()


@drawn(64, draw_rows)
def test_any_skip_layer_norm_on_machines(case: Rows) -> None:
    """On four compute units."""
    check_variants(LAYER_NORM, case, order=case.seed)


@drawn(64, draw_rows)
def test_any_skip_layer_norm_on_the_cpu(case: Rows) -> None:
    """Every form of skip; epsilon is 1e-5 where the attribute is left out."""
    if case.seed % 4 == 3:
        case = replace(case, epsilon=1e-5, spread=2.0**-8, mean=0.0)
    name, values, outputs, attributes = LAYER_NORM.node(case)
    inputs = LAYER_NORM.inputs(case)
    shape = (case.rows // case.skip_rows, case.skip_rows, case.width)
    skip_shape = [(1, *shape[1:]), shape[1:], shape[2:] if case.skip_rows == 1 else shape[1:]][case.seed // 4 % 3]
    values |= {"skip": inputs["skip"] if inputs["skip"] is None else inputs["skip"].reshape(skip_shape)}
    results = run(name, values, outputs, **({} if case.epsilon == 1e-5 else attributes))
    check(LAYER_NORM, case, inputs, dict(zip((output for output in outputs if output), results, strict=True)))


@machines
def test_skip_layer_norm_where_the_mean_dwarfs_the_spread(machine: str) -> None:
    rng = np.random.default_rng(1)
    x, skip = normal(rng, 4, 320, dtype=np.float32, mean=1000), normal(rng, 4, 320, dtype=np.float32)
    gamma = aligned(np.ones(320, np.float32))
    y = Guarded(x.shape, np.float32)
    tensors = {"x": pointer(x), "skip": pointer(skip), "gamma": pointer(gamma), "y": y.pointer}
    given = problem("skip_layer_norm", **tensors, rows=4, skip_rows=4, width=320, epsilon=1e-5)
    assert simulate(machine, "skip_layer_norm", given, np.float32)
    # A sum near 1000 is rounded to 6e-5; E[x^2] - E[x]^2 would be wrong by several units.
    np.testing.assert_allclose(y.check(), layer_norm(x, skip, gamma, None, None)[0], atol=3e-4)


@dtypes
@pytest.mark.parametrize("optional", [True, False])
@pytest.mark.parametrize("skip_shape", [(2, 6, 320), (1, 6, 320), (6, 320)])
def test_skip_layer_norm_on_the_cpu(dtype: Any, optional: bool, skip_shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, skip = normal(rng, 2, 6, 320, dtype=dtype, mean=3), normal(rng, *skip_shape, dtype=dtype)
    gamma, beta, bias = (normal(rng, 320, dtype=dtype) for _ in range(3))
    inputs = {
        "X": x,
        "skip": skip,
        "gamma": gamma,
        "beta": beta if optional else None,
        "bias": bias if optional else None,
    }
    outputs = ["Y", "", "", "S"] if optional else ["Y"]
    results = run("SkipLayerNormalization", inputs, outputs, epsilon=1e-5)
    exact = layer_norm(x, skip, gamma, inputs["beta"], inputs["bias"])
    for result, wanted in zip(results, exact, strict=False):
        close(result, wanted)


@pytest.mark.parametrize("axis", [1, -2])
def test_layer_norm_over_two_axes_on_the_cpu(axis: int) -> None:
    rng = np.random.default_rng(0)
    x, gamma, beta = (normal(rng, *shape, dtype=np.float32) for shape in ((3, 4, 6), (4, 6), (4, 6)))
    [y] = run("LayerNormalization", {"X": x, "Scale": gamma, "B": beta}, domain="", axis=axis)
    exact, _ = layer_norm(x.reshape(3, 24), None, gamma.ravel(), beta.ravel(), None)
    close(y, exact.reshape(x.shape))


@pytest.mark.parametrize(
    ("operator", "inputs", "text"),
    [
        ("BiasAdd", {"X": (1, 2, 8), "bias": (7,), "skip": (1, 2, 8)}, r"bias must have the shape \(8\), it has \(7\)"),
        ("BiasAdd", {"X": (1, 2, 8), "bias": (8,), "skip": (1, 1, 8)}, r"skip must have X's shape \(1, 2, 8\)"),
        ("BiasSplitGelu", {"X": (2, 8), "bias": (8,)}, r"X must have the shape \(N, S, 2H\), it has \(2, 8\)"),
        ("BiasSplitGelu", {"X": (1, 2, 8), "bias": (4,)}, r"bias must have the shape \(8\), it has \(4\)"),
        ("SkipLayerNormalization", {"X": (1, 2, 8), "skip": (1, 3, 8), "gamma": (8,)}, "or its last dimensions"),
        (
            "SkipLayerNormalization",
            {"X": (1, 2, 8), "skip": (1, 2, 8), "gamma": (4,)},
            r"gamma must have the shape \(8\)",
        ),
    ],
)
def test_wrong_shapes_name_operator_node_and_value(
    operator: str, inputs: dict[str, tuple[int, ...]], text: str
) -> None:
    values = {name: np.zeros(shape, np.float32) for name, shape in inputs.items()}
    opened = session(operator, values, ["Y"])
    with pytest.raises(Exception, match=f"{operator} node 'node': .*{text}"):
        opened.run(None, values)


def test_statistics_that_are_not_computed_are_refused() -> None:
    values = {name: np.zeros((1, 2, 8), np.float32) for name in ("X", "skip")} | {"gamma": np.zeros(8, np.float32)}
    with pytest.raises(Exception, match="SkipLayerNormalization node 'node': the outputs mean and inv_std_var"):
        session("SkipLayerNormalization", values, ["Y", "mean"])
