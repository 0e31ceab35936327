#!/usr/bin/env python3
"""Fits the polynomial of custom_ops/device/gelu.h and prints it with its largest relative error.

The scaled complementary error function erfc(z) exp(z^2) is smooth in t = 1 / (1 + P z) (the form of Hastings,
"Approximations for Digital Computers", 1955, sheet 43); a weighted least squares fit that raises the weight where the
error is largest (Lawson's algorithm) makes it minimax in relative error. Needs mpmath, which torch brings.
"""

from __future__ import annotations

import mpmath
import numpy as np

P, DEGREE, Z_MAX = 0.425, 8, 9.3  # beyond 9.3 erfc is below float32's smallest value

t_min = 1 / (1 + P * Z_MAX)
t = (1 + t_min) / 2 + (1 - t_min) / 2 * np.cos(np.pi * (np.arange(400) + 0.5) / 400)
exact = np.array([float(mpmath.erfc(z) * mpmath.exp(mpmath.mpf(z) ** 2)) for z in (1 / t - 1) / P])
basis = np.stack([t**power for power in range(1, DEGREE + 1)], 1) / exact[:, None]
weight = np.ones_like(t)
for _ in range(100):
    coefficients = np.linalg.lstsq(basis * weight[:, None], weight, rcond=None)[0]
    error = np.abs(basis @ coefficients - 1)
    weight *= 1 + error / error.max()
    weight /= weight.mean()
print(f"P = {P}, largest relative error {error.max():.2g}")
for power, value in enumerate(coefficients, 1):
    print(f"t^{power}: {value:.9e}f")
