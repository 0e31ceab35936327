"""Similarity of two images: PSNR, SSIM, the largest difference of a pixel."""

from __future__ import annotations

import math

import numpy as np

from sdort.graph.signature import Array

WINDOW, SIGMA = 11, 1.5
"""Pixels and standard deviation of SSIM's Gaussian window, as in the paper."""


def psnr(image: Array, reference: Array) -> float:
    """Peak signal-to-noise ratio in dB of two uint8 images; infinite when they are equal."""
    error = float(np.mean((image.astype(np.float64) - reference.astype(np.float64)) ** 2))
    return math.inf if error == 0 else 10 * math.log10(255.0**2 / error)


def ssim(image: Array, reference: Array) -> float:
    """Structural similarity of two uint8 images [height, width, 3]: the mean over all windows and channels.

    Z. Wang, A. C. Bovik, H. R. Sheikh, E. P. Simoncelli: Image Quality Assessment: From Error Visibility to Structural
    Similarity. IEEE Transactions on Image Processing 13 (4), 2004, equation 13, with the paper's window and constants.

    Raises:
        ValueError: an image is smaller than the window, 11 x 11.
    """
    if min(image.shape[:2]) < WINDOW:
        raise ValueError(f"SSIM needs {WINDOW} x {WINDOW} pixels, not {image.shape[0]} x {image.shape[1]}")
    if np.array_equal(image, reference):  # as the images of repeated calls are
        return 1.0
    x, y = image.astype(np.float64), reference.astype(np.float64)
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    mean_x, mean_y = _blur(x), _blur(y)
    variance_x, variance_y = _blur(x * x) - mean_x**2, _blur(y * y) - mean_y**2
    covariance = _blur(x * y) - mean_x * mean_y
    above = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    below = (mean_x**2 + mean_y**2 + c1) * (variance_x + variance_y + c2)
    return float((above / below).mean())


def _blur(values: Array) -> Array:
    """Gaussian means over the windows that lie in the image [height, width, channels]."""
    offsets = np.arange(WINDOW) - WINDOW // 2
    weights = np.exp(-(offsets**2) / (2 * SIGMA**2))
    weights /= weights.sum()
    for axis in (0, 1):
        windows = np.lib.stride_tricks.sliding_window_view(values, WINDOW, axis=axis)
        values = windows @ weights
    return values


def largest_pixel(image: Array, reference: Array) -> int:
    """The largest difference of two 8-bit values."""
    return int(np.abs(image.astype(np.int16) - reference.astype(np.int16)).max())
