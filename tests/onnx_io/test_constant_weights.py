"""Components without values: what is refused, and what is no false alarm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sdort.errors import BadModelError
from sdort.graph.weights import Stored
from sdort.onnx_io.constant_weights import refuse_constant


def stored(path: Path, *arrays: np.ndarray) -> list[Stored]:
    """The arrays in one file, as weights."""
    path.write_bytes(b"".join(array.tobytes() for array in arrays))
    offsets = np.cumsum([0, *(array.nbytes for array in arrays)])
    return [Stored(path, int(offset), array.shape, array.dtype) for offset, array in zip(offsets, arrays, strict=False)]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("value", [0.0, 0.25, np.nan, np.inf])
def test_a_component_of_one_value_is_named(value: float, dtype: str, tmp_path: Path) -> None:
    matrices = [np.full((256, 256), value, dtype), np.full((64, 256), 2 * value, dtype)]
    with pytest.raises(BadModelError, match="weights are empty: 100%") as caught:
        refuse_constant(stored(tmp_path / "w", *matrices, np.random.default_rng(0).normal(size=512)), "unet")
    assert caught.value.component == "unet"


def test_zero_initialised_layers_and_sparse_matrices_are_no_alarm(tmp_path: Path) -> None:
    zero, normal = np.zeros((256, 256), np.float32), np.random.default_rng(0).normal(size=(256, 64)).astype(np.float32)
    refuse_constant(stored(tmp_path / "a", zero, normal), "unet")
    sparse = zero.copy()
    sparse[100, 7] = 1  # between the samples
    refuse_constant(stored(tmp_path / "b", sparse), "unet")
    refuse_constant(stored(tmp_path / "c", np.zeros((16, 32), np.float32)), "unet")  # a graph of few nodes
