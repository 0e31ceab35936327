"""fp16's range is numpy's."""

from __future__ import annotations

import numpy as np

from sdort.graph import float16


def test_the_range_is_that_of_numpy() -> None:
    info = np.finfo(np.float16)
    assert (
        float(info.max),
        float(info.smallest_normal),
        float(info.smallest_subnormal),
    ) == (float16.LARGEST, float16.SMALLEST_NORMAL, float16.SMALLEST)
    assert np.float16(float16.VANISHING) == 0
    assert np.float16(np.nextafter(float16.VANISHING, 1)) == float16.SMALLEST
