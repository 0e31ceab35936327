"""NhwcConv on the CPU against a convolution in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.drawn import Generator, chance, drawn, name_of, near
from support.group_norm_cases import tolerance
from support.kernel_cases import run, session

Array = npt.NDArray[Any]


def convolve(x: Array, w: Array, pads: list[int], strides: list[int], dilations: list[int], group: int) -> Array:
    """Channels last, one product a kernel position."""
    x = np.pad(x.astype(np.float64), ((0, 0), (pads[0], pads[2]), (pads[1], pads[3]), (0, 0)))
    n, height, width, _ = x.shape
    m, kernel_h, kernel_w, depth = w.shape
    rows = (height - dilations[0] * (kernel_h - 1) - 1) // strides[0] + 1
    columns = (width - dilations[1] * (kernel_w - 1) - 1) // strides[1] + 1
    y = np.zeros((n, rows, columns, m))
    for i in range(kernel_h):
        for j in range(kernel_w):
            top, left = i * dilations[0], j * dilations[1]
            window = x[:, top : top + rows * strides[0] : strides[0], left : left + columns * strides[1] : strides[1]]
            for g in range(group):
                outputs, inputs = slice(g * m // group, (g + 1) * m // group), slice(g * depth, (g + 1) * depth)
                y[..., outputs] += window[..., inputs] @ w[outputs, i, j].astype(np.float64).T
    return y


CASES = [
    ((2, 9, 7, 16), (24, 3, 3, 16), {"pads": [1, 1, 1, 1]}),
    ((1, 8, 8, 8), (4, 1, 1, 8), {}),
    ((2, 9, 8, 6), (5, 3, 3, 6), {"pads": [0, 0, 1, 1], "strides": [2, 2]}),
    ((1, 12, 9, 8), (8, 3, 2, 4), {"dilations": [2, 1], "group": 2, "pads": [2, 0, 1, 3]}),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("shape", "weights", "attributes"), CASES)
def test_convolutions(
    dtype: Any, with_bias: bool, shape: tuple[int, ...], weights: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=shape).astype(dtype), (rng.normal(size=weights) / 4).astype(dtype)
    bias = rng.normal(size=weights[0]).astype(dtype) if with_bias else None
    [y] = run("NhwcConv", {"X": x, "W": w, "B": bias}, kernel_shape=list(weights[1:3]), **attributes)
    defaults: dict[str, Any] = {"pads": [0, 0, 0, 0], "strides": [1, 1], "dilations": [1, 1], "group": 1}
    exact = convolve(x, w, **(defaults | attributes)) + (0 if bias is None else bias.astype(np.float64))
    np.testing.assert_allclose(y, exact, rtol=np.finfo(dtype).eps * 0.51 + 1e-6, atol=2e-5)


@dataclass(frozen=True)
class Drawn:
    seed: int
    dtype: Any
    shape: tuple[int, ...]
    weights: tuple[int, ...]
    bias: bool
    attributes: dict[str, Any]

    def __str__(self) -> str:
        values = "-".join(f"{name}{value}".replace(" ", "") for name, value in self.attributes.items())
        sizes = "-".join("x".join(map(str, sizes)) for sizes in (self.shape, self.weights))
        return f"{name_of(self.dtype)}-{sizes}-{'bias-' if self.bias else ''}{values}"


def draw(rng: Generator, seed: int) -> Drawn:
    """Attributes of their own for height, width and both ends of the padding; channels around whole tiles."""
    group = int(rng.choice([1, 1, 2, 3]))
    channels, outputs = (-(-near(rng, (1, 8, 32), 70) // group) * group for _ in range(2))
    kernel, strides, dilations = (rng.integers(1, most + 1, 2).tolist() for most in (4, 3, 3))
    pads = rng.integers(0, 4, 4).tolist()
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    images, height, width = int(rng.integers(1, 4)), *(r + int(rng.integers(0, 14)) for r in reach)
    attributes = {"pads": pads, "strides": strides, "dilations": dilations, "group": group}
    weights = (outputs, *kernel, channels // group)
    dtype = (np.float16, np.float32)[seed % 2]
    return Drawn(seed, dtype, (images, height, width, channels), weights, chance(rng), attributes)


@drawn(64, draw)
def test_any_convolution(case: Drawn) -> None:
    """Within 2^-20 of the sum of the products' sizes: up to 1,000 additions lose half a unit each, at random."""
    rng = np.random.default_rng([case.seed, 1])
    x, w = (rng.normal(size=shape).astype(case.dtype) for shape in (case.shape, case.weights))
    bias = rng.normal(size=case.weights[0]).astype(case.dtype) if case.bias else None
    [y] = run("NhwcConv", {"X": x, "W": w, "B": bias}, **case.attributes)
    exact = convolve(x, w, **case.attributes) + (0 if bias is None else bias.astype(np.float64))
    error = 2.0**-20 * (convolve(np.abs(x), np.abs(w), **case.attributes) + 1)
    assert y.shape == exact.shape
    assert (np.abs(y - exact) <= tolerance(exact, error, case.dtype)).all()


@pytest.mark.parametrize(
    ("shape", "weights", "bias", "attributes", "text"),
    [
        ((1, 4, 4, 8), (2, 3, 3, 4), (2,), {}, r"W \(2, 3, 3, 4\) does not fit X \(1, 4, 4, 8\) with group 1"),
        ((1, 4, 4, 8), (2, 3, 3, 8), (3,), {}, r"B must have the shape \(2\), it has \(3\)"),
        ((1, 4, 4, 8), (2, 3, 3, 8), (2,), {"kernel_shape": [1, 1]}, r"kernel_shape \(1, 1\) does not fit W"),
        ((1, 2, 2, 8), (2, 3, 3, 8), (2,), {}, r"larger than the padded image \(1, 2, 2, 8\)"),
    ],
)
def test_what_does_not_fit_is_refused(
    shape: tuple[int, ...], weights: tuple[int, ...], bias: tuple[int, ...], attributes: dict[str, Any], text: str
) -> None:
    values = {name: np.zeros(size, np.float32) for name, size in (("X", shape), ("W", weights), ("B", bias))}
    opened = session("NhwcConv", values, ["Y"], **attributes)
    with pytest.raises(Exception, match=f"NhwcConv node 'node': .*{text}"):
        opened.run(None, values)


def test_automatic_padding_is_refused_when_the_session_opens() -> None:
    values = {"X": np.zeros((1, 4, 4, 8), np.float32), "W": np.zeros((2, 3, 3, 8), np.float32)}
    with pytest.raises(Exception, match="NhwcConv node 'node': auto_pad must be NOTSET, it is SAME_UPPER"):
        session("NhwcConv", values, ["Y"], auto_pad="SAME_UPPER")
