"""BiasAdd, BiasSplitGelu and layer normalizations for tests: inputs and float64 results."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from support import group_norm_cases
from support.drawn import grid, name_of, unit_of
from support.kernel_cases import aligned

Array = npt.NDArray[Any]


def normal(rng: np.random.Generator, *shape: int, dtype: npt.DTypeLike, scale: float = 1.0, mean: float = 0.0) -> Array:
    return aligned((mean + scale * rng.normal(size=shape)).astype(dtype))


erf = np.vectorize(math.erfc, otypes=[float])


def gelu(x: Array) -> Array:
    """x * Phi(x), without cancellation for negative x."""
    return np.asarray(0.5 * x * erf(-x / math.sqrt(2.0)), np.float64)


def split_gelu(x: Array, bias: Array) -> Array:
    wide = x.astype(np.float64) + bias
    half = x.shape[-1] // 2
    return np.asarray(wide[..., :half] * gelu(wide[..., half:]))


@dataclass(frozen=True)
class Rows:
    """A drawn problem of rows, for one machine and for the CPU."""

    seed: int
    machine: str
    dtype: Any
    rows: int
    width: int
    skip_rows: int
    spread: float
    mean: float
    epsilon: float
    optional: frozenset[str]

    def __str__(self) -> str:
        values = f"e{self.epsilon:.0e}-mean{self.mean:.0e}-std{self.spread:.0e}"
        shape = f"{self.rows}x{self.width}-{self.skip_rows}"
        return "-".join([self.machine, name_of(self.dtype), shape, values, *sorted(self.optional)])

    def grid(self, part: int, *shape: int, mean: float = 0.0) -> Array:
        return aligned(grid(np.random.default_rng([self.seed, part]), shape, self.dtype, self.spread, mean))


def split_gelu_error(x: Array, bias: Array, dtype: Any) -> Array:
    """What float32 arithmetic loses, and half a unit of float16.

    The exponent of exp(-r^2 / 2) is rounded three times, each 2^-24 of it; all else loses some units in the last place.
    """
    exact, right = split_gelu(x, bias), (x.astype(np.float64) + bias)[..., x.shape[-1] // 2 :]
    error = np.abs(exact) * 2.0**-24 * (16 + 3 * np.minimum(right**2, 400) / 2) + np.abs(x).max() * 1e-30
    return group_norm_cases.tolerance(exact, error, dtype)


def layer_norm(
    x: Array, skip: Array | None, gamma: Array, beta: Array | None, bias: Array | None, epsilon: float = 1e-5
) -> tuple[Array, Array]:
    total = x.astype(np.float64)
    for more in (skip, bias):
        total = total if more is None else total + more
    centred = total - total.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return scaled * gamma + (0.0 if beta is None else beta.astype(np.float64)), total


@dataclass(frozen=True)
class NormInputs:
    """SkipLayerNormalization's inputs, or LayerNormalization's, without a skip.

    The row's last element lies far off, so that no sum may leave it out.
    """

    x: Array
    skip: Array | None
    gamma: Array
    beta: Array | None
    bias: Array | None


def norm_inputs(case: Rows) -> NormInputs:
    x, skip = case.grid(0, case.rows, case.width, mean=case.mean), case.grid(1, case.skip_rows, case.width)
    x[:, -1] += case.dtype(16 * unit_of(case.spread))
    rng = np.random.default_rng([case.seed, 2])
    gamma, beta = (normal(rng, case.width, dtype=case.dtype) for _ in range(2))
    bias = case.grid(3, case.width) if "bias" in case.optional else None
    return NormInputs(x, skip, gamma, beta if "beta" in case.optional else None, bias)


def norm_exact(case: Rows, inputs: NormInputs) -> tuple[Array, Array, Array]:
    """Y in float64, the error that it may have, and the sum in float64, which kernels compute exactly.

    See group_norm_cases.exact; but nothing is kept of what rounding took from the mean. That is at most half a unit of
    the mean in the last place, and of every addition on the way to it: of up to 100 in a row, each half a unit of a
    part of the sum, at random.
    """
    skip = None if inputs.skip is None else np.tile(inputs.skip, (case.rows // case.skip_rows, 1))
    _, exact_sum = layer_norm(inputs.x, skip, inputs.gamma, None, inputs.bias)
    gamma = inputs.gamma.astype(np.float64)
    beta = np.zeros(case.width) if inputs.beta is None else inputs.beta.astype(np.float64)
    exact, error = group_norm_cases.exact(exact_sum[:, None], gamma, beta, 1, False, case.epsilon)
    deviation = np.sqrt(exact_sum.var(-1, keepdims=True) + case.epsilon)
    lost = 2.0**-23 * np.abs(exact_sum).mean(-1, keepdims=True) / deviation * np.abs(gamma)
    return exact[:, 0], group_norm_cases.tolerance(exact[:, 0], error[:, 0] + lost, case.dtype), exact_sum
