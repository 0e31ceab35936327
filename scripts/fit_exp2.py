#!/usr/bin/env python3
"""Fits the polynomial of custom_ops/device/exp2.h and prints it with its largest relative error.

2^f for f in [-1/2, 1/2] as 1 + f * q(f): the constant is one, so that the lowest power is an exact zero. A
weighted least squares fit that raises the weight where the error is largest (Lawson's algorithm) makes it minimax in
relative error.
"""

from __future__ import annotations

import numpy as np

DEGREE = 3

f = 0.5 * np.cos(np.pi * (np.arange(400) + 0.5) / 400)
exact = np.exp2(f)
basis = np.stack([f**power for power in range(1, DEGREE + 1)], 1) / exact[:, None]
target = 1 - 1 / exact
weight = np.ones_like(f)
for _ in range(1000):
    coefficients = np.linalg.lstsq(basis * weight[:, None], target * weight, rcond=None)[0]
    error = np.abs(basis @ coefficients - target)
    weight *= 1 + error / error.max()
    weight /= weight.mean()
print(f"largest relative error {error.max():.3g}")
for power, value in enumerate(coefficients, 1):
    print(f"f^{power}: {value:.9e}f")
