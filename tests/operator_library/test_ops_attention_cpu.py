"""MultiHeadAttention on the CPU through ONNX Runtime, against float64; every form of its inputs, and its refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.attention_cases import FORMS, Drawn, close, draw_case, make
from support.drawn import drawn
from support.kernel_cases import run, session

DTYPES = [np.float32, np.float16]
dtypes = pytest.mark.parametrize("dtype", DTYPES)


@drawn(128, draw_case)
def test_any_problem(case: Drawn) -> None:
    made = case.make()
    [y] = run("MultiHeadAttention", made.inputs(case.form), **made.attributes)
    close(y, made)


@dtypes
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bias", [False, True])
def test_forms(dtype: Any, form: str, bias: bool) -> None:
    case = make(dtype, 2, 37, 37, 3, 40, bias=bias)
    [y] = run("MultiHeadAttention", case.inputs(form), **case.attributes)
    assert y.shape == case.output_shape
    close(y, case)


@dtypes
@pytest.mark.parametrize(
    ("queries", "keys", "heads", "size"),
    [
        (64, 77, 8, 40),
        (130, 300, 2, 64),
        (65, 129, 1, 80),
        (9, 1, 2, 8),
        (1, 5, 3, 4),
        (33, 257, 1, 160),
        (70, 140, 1, 512),
    ],
)
def test_shapes(dtype: Any, queries: int, keys: int, heads: int, size: int) -> None:
    case = make(dtype, 2, queries, keys, heads, size)
    [y] = run("MultiHeadAttention", case.inputs("apart"), **case.attributes)
    close(y, case)


@dtypes
@pytest.mark.parametrize(("queries", "keys"), [(77, 77), (200, 200), (3, 200), (200, 3)])
def test_causal(dtype: Any, queries: int, keys: int) -> None:
    case = make(dtype, 1, queries, keys, 2, 64, bias=True, causal=True)
    [y] = run("MultiHeadAttention", case.inputs("apart"), **case.attributes)
    close(y, case)


@dtypes
def test_values_of_another_size(dtype: Any) -> None:
    case = make(dtype, 2, 5, 150, 3, 16, value_size=20, bias=True)
    [y] = run("MultiHeadAttention", case.inputs("apart"), **case.attributes)
    close(y, case)


@dtypes
@pytest.mark.parametrize("spread", [30.0, 1e-3])
def test_scores_far_beyond_the_range_of_exp(dtype: Any, spread: float) -> None:
    """Scores of up to some ten thousands: one key has all the weight; or all nearly equal."""
    case = make(dtype, 1, 70, 300, 2, 64, spread=spread, scale=1.0)
    [y] = run("MultiHeadAttention", case.inputs("apart"), **case.attributes)
    assert np.isfinite(y).all()
    close(y, case)


def test_a_negative_scale() -> None:
    case = make(np.float32, 1, 5, 140, 2, 8, scale=-0.7)
    [y] = run("MultiHeadAttention", case.inputs("packed_kv"), **case.attributes)
    close(y, case)


def test_what_is_not_finite_stays_in_its_row_and_head() -> None:
    case = make(np.float32, 1, 9, 140, 2, 8)
    case.q[0, 4, 1, 3] = np.inf
    [y] = run("MultiHeadAttention", case.inputs("apart"), **case.attributes)
    broken = np.isnan(y[0]).reshape(9, 2, 8).all(-1)
    assert broken[4, 1]
    assert broken.sum() == 1
    assert np.isfinite(y[0].reshape(9, 2, 8)[~broken]).all()


def test_as_onnx_runtime() -> None:
    case = make(np.float32, 2, 20, 30, 4, 32, bias=True)
    inputs = case.inputs("apart")
    own = session("MultiHeadAttention", inputs, ["Y"], library=False, **case.attributes).run(None, inputs)[0]
    np.testing.assert_allclose(run("MultiHeadAttention", inputs, **case.attributes)[0], own, atol=2e-6)


def test_reruns_are_identical() -> None:
    case = make(np.float32, 2, 300, 500, 3, 40)
    opened = session("MultiHeadAttention", case.inputs("apart"), ["Y"], **case.attributes)
    feeds = {name: x for name, x in case.inputs("apart").items() if x is not None}
    first = opened.run(None, feeds)[0]
    for _ in range(3):
        assert np.array_equal(first, opened.run(None, feeds)[0])


def test_no_queries() -> None:
    case = make(np.float32, 2, 0, 3, 2, 8)
    [y] = run("MultiHeadAttention", case.inputs("apart"), **case.attributes)
    assert y.shape == (2, 0, 16)


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        ({"query": (2, 8)}, r"query must have the shape \(N, S, D\) or \(N, S, 2, 3, D\), it has \(2, 8\)"),
        ({"query": (1, 4, 2, 2, 8)}, r"query must have the shape"),
        (
            {"query": (1, 4, 7)},
            r"query's last dimension must be a multiple of num_heads = 2, it has the shape \(1, 4, 7\)",
        ),
        ({"query": (1, 4, 8)}, r"key is missing: query is not packed"),
        ({"query": (1, 4, 8), "key": (1, 4, 8)}, "value is missing: key is not packed"),
        (
            {"query": (1, 4, 8), "key": (1, 4, 6), "value": (1, 4, 8)},
            r"key must have the shape \(1, 4, 8\), .* it has \(1, 4, 6\)",
        ),
        (
            {"query": (1, 4, 8), "key": (2, 4, 8), "value": (1, 4, 8)},
            r"key must have the shape \(1, 4, 8\), .* it has \(2, 4, 8\)",
        ),
        (
            {"query": (1, 4, 8), "key": (1, 5, 8), "value": (1, 4, 8)},
            r"value must have the shape \(1, 5, D\) .* it has \(1, 4, 8\)",
        ),
        ({"query": (1, 4, 2, 3, 4), "key": (1, 4, 8)}, "key and value must be absent beside a packed query"),
        ({"query": (1, 4, 8), "key": (1, 4, 2, 2, 4), "value": (1, 4, 8)}, "value must be absent beside a packed key"),
        ({"query": (1, 4, 2, 3, 4), "bias": (23,)}, r"bias must have the shape \(24\), it has \(23\)"),
        (
            {"query": (1, 4, 8), "key": (1, 0, 8), "value": (1, 0, 8)},
            r"at least one key, key has the shape \(1, 0, 8\)",
        ),
        ({"query": (1, 4, 0), "key": (1, 4, 0), "value": (1, 4, 8)}, "head size must be positive"),
        ({"query": (1, 4, 2, 3, 4), "past_key": (1, 2, 3, 4)}, "the input past_key is not supported"),
        ({"query": (1, 4, 2, 3, 4), "attention_bias": (1, 1, 4, 4)}, "the input attention_bias is not supported"),
    ],
)
def test_refusals_name_operator_node_and_value(shapes: dict[str, tuple[int, ...]], text: str) -> None:
    order = ("query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key")
    last = max(order.index(name) for name in shapes)
    values = {name: np.zeros(shapes[name], np.float32) if name in shapes else None for name in order[: last + 1]}
    opened = session("MultiHeadAttention", values, ["Y"], num_heads=2)
    with pytest.raises(Exception, match=f"MultiHeadAttention node 'node': .*{text}"):
        opened.run(None, {name: value for name, value in values.items() if value is not None})


def test_a_mask_is_refused() -> None:
    values = {"query": np.zeros((1, 4, 2, 3, 4), np.float32), "key": None, "value": None, "bias": None}
    masked = values | {"key_padding_mask": np.ones((1, 4), np.int32)}
    opened = session("MultiHeadAttention", masked, ["Y"], num_heads=2)
    with pytest.raises(Exception, match="node 'node': the input key_padding_mask is not supported"):
        opened.run(None, {name: value for name, value in masked.items() if value is not None})


@pytest.mark.parametrize(
    ("heads", "outputs", "text"),
    [(0, ["Y"], "num_heads must be positive, it is 0"), (2, ["Y", "present"], "not computed")],
)
def test_refusals_when_the_session_is_made(heads: int, outputs: list[str], text: str) -> None:
    values = {"query": np.zeros((1, 4, 2, 3, 4), np.float32)}
    with pytest.raises(Exception, match=f"MultiHeadAttention node 'node': .*{text}"):
        session("MultiHeadAttention", values, outputs, num_heads=heads)
