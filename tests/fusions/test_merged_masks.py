"""Masks of attention on merged batch and heads: a number for each key is taken, one for all keys of a row is not.

That what is taken computes the same is seen by test_fusions_changed.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.fusion_models import CASES, before_model

from sdort.onnx_io.load import from_proto
from sdort.passes import attention_form
from sdort.rewrite.apply import apply_fusion
from sdort.rewrite.editor import Editor
from sdort.rewrite.fusion import load_fusions

NAME = "attention_merged"
SHAPES: dict[tuple[int, ...], bool] = {
    (6, 5, 7): True, (6, 1, 7): True, (1, 5, 7): True, (1, 1, 7): True,
    (6, 5, 1): False, (6, 1, 1): False, (1, 5, 1): False,
}  # fmt: skip
"""The shape of a mask beside 6 x 5 queries and 7 keys -> whether it is taken."""


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_mask_has_a_number_for_each_key(shape: tuple[int, ...]) -> None:
    masked = 0
    for index in [index for name, index in CASES if name == NAME]:
        proto = before_model(load_fusions()[NAME], index, np.random.default_rng(index))
        for info in [info for info in proto.graph.input if info.name == "mask"]:
            masked += 1
            for dim, size in zip(info.type.tensor_type.shape.dim, shape, strict=True):
                dim.dim_value = size
            editor = Editor(from_proto(proto, None, "test"))
            attention_form.run(editor)
            assert bool(apply_fusion(load_fusions()[NAME], editor).matched) == SHAPES[shape]
    assert masked == 2
