"""The one caster of feeds to the dtypes that a model declares."""

from __future__ import annotations

import numpy as np
import pytest

from sdort.errors import BadModelError
from sdort.graph.signature import TensorSpec, cast_feeds

DTYPES = ("float16", "float32", "float64", "bool", "int8", "uint8", "int32", "int64")


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_get_the_declared_dtype_in_c_order_and_the_rest_stays(dtype: str) -> None:
    kept = object()
    inputs = [TensorSpec("x", np.dtype(dtype), ("N", 2)), TensorSpec("kept", np.dtype(dtype), ())]
    fed = cast_feeds({"x": np.asarray([[1, 0], [1, 1]], np.int16).T, "kept": kept, "more": 1}, inputs, "unet")
    assert list(fed) == ["x", "kept"]
    assert fed["kept"] is kept
    assert (fed["x"].dtype, fed["x"].flags.c_contiguous) == (np.dtype(dtype), True)
    np.testing.assert_array_equal(fed["x"], [[1, 1], [0, 1]])


def test_a_missing_input_is_named() -> None:
    with pytest.raises(BadModelError, match="wants the inputs y, which nothing here provides"):
        cast_feeds({"x": np.zeros(1)}, [TensorSpec(name, np.dtype("float32"), ()) for name in "xy"], "unet")
