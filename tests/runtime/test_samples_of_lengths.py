"""Samples whose prompts have different numbers of tokens: each is computed with its own, whatever is beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

from sdort.graph.signature import Array
from sdort.providers.cpu import PROVIDER as CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.session import open_session
from sdort.runtime.step.bound_unet import Batch, BoundBuffers, repeated
from sdort.runtime.step.step_conditions import StepConditions

# The output is the sum over all tokens, so that a token of padding would count.
DENOISER = """<ir_version: 8, opset_import: ["": 18]>
d (float[N, 1, H, W] sample, float[] timestep, float[N, T, 2] encoder_hidden_states) => (float[N, 1, H, W] out_sample) {
    one = Constant <value_float = 1.0> ()
    shifted = Add (encoder_hidden_states, one)
    axes = Constant <value_ints = [1, 2]> ()
    sums = ReduceSum <keepdims = 1> (shifted, axes)
    last = Constant <value_ints = [3]> ()
    wide = Unsqueeze (sums, last)
    out_sample = Add (sample, wide)
}"""
NAME = "encoder_hidden_states"


def text(length: int, value: float) -> dict[str, Array]:
    return {NAME: np.full((1, length, 2), value, np.float32)}


SHORT, MIDDLE, LONG = text(1, 1.0), text(3, 2.0), text(7, 3.0)
SUMS = {1: 4.0, 3: 18.0, 7: 56.0}
"""Of a prompt's tokens, each with one added to it."""


@pytest.mark.parametrize("images", [
    [[SHORT, LONG]], [[SHORT, LONG], [SHORT, MIDDLE]], [[LONG, LONG], [LONG, LONG]], [[LONG, SHORT], [MIDDLE, SHORT]],
])  # fmt: skip
@pytest.mark.parametrize("share", [None, slice(0, 1), slice(1, 2)])
def test_each_sample_has_its_own_tokens(images: Any, share: slice | None, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(parser.parse_model(DENOISER).SerializeToString())
    unet = open_session(tmp_path / "model.onnx", "unet", CPU, RuntimeOptions("cpu", custom_ops="off"))
    conditions = StepConditions([[copies] * 2 for copies in images])
    batch, [first, *_] = Batch(2, len(images), (1, 1, 3)), conditions.at(0)
    lengths = conditions.lengths(len(images))
    own = [image[copy][NAME].shape[1] for copy in range(2) for image in images]
    assert lengths == (((NAME, tuple(own)),) if len(set(own)) > 1 else ())
    buffers = BoundBuffers(
        unet, batch, {NAME: first[NAME].shape[1:]}, 1, share, lengths=lengths, latents_of_all=not share
    )
    rows = buffers.step_rows(np.zeros(2), conditions)
    samples = repeated(conditions.at(0), len(images))
    buffers.write_conditioning(samples)
    buffers.row.words.write(rows[0])
    buffers.run(0)
    kept = own[share] if share else own
    np.testing.assert_allclose(buffers.output.read()[: len(kept), 0, 0, 0], [SUMS[length] for length in kept])
    fed = [part[NAME] for part in buffers.feeds()]
    assert [part.shape[1] for part in fed for _ in part] == kept
    assert [float(row.sum() + row.size) for part in fed for row in part] == [SUMS[length] for length in kept]


def test_images_may_share_their_conditioning() -> None:
    conditions = StepConditions.fixed([SHORT, LONG], 3)
    assert conditions.lengths(2) == ((NAME, (1, 1, 7, 7)),)
    assert [each[NAME].shape for each in conditions.at(0)] == [(1, 7, 2)] * 2
    assert conditions.at(0)[0][NAME][0, :, 0].tolist() == [1.0, *[0.0] * 6]
