"""Attentions of other models than Stable Diffusion's UNets, as exporters write them: raised, fused and right."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np
import onnx
import pytest
from support import attention_models
from support.small_graphs import Array, run
from support.turns import in_turns

from sdort.lowering.component_report import ComponentReport
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.onnx_io.load import load_model
from sdort.onnx_io.save import save_model
from sdort.providers import load_target

CASES = [
    *((name, "ts17", True) for name in attention_models.MODELS),
    *((name, "dy18", True) for name in ("ip_adapter", "text_sdpa")),
    *((name, "dy23", True) for name in ("ip_adapter", "text_sdpa")),
    ("masked", "dy18", False),
]
RUNS = [("rocm", True), ("cuda", False), ("cuda", True), ("cpu", False), ("migraphx", True)]
TURNS = [
    (case, [run for _, run in runs]) for case, runs in groupby(in_turns(CASES, RUNS, each=2), lambda turn: turn[0])
]
TOLERANCE = {False: 2e-5, True: 2e-2}
"""Of the spread: fp32 associates sums differently; fp16 rounds every tensor to 11 bits, through two layers at most
(UNet: some twenty)."""
ATTENTIONS = {
    "ip_adapter": 2, "ip_adapter_old": 2, "sliced": 4, "text_sdpa": 2, "text_eager": 2, "unet": 8,
    **{f"text_{kind}": 2 for kind in attention_models.TEXT_MODELS},
}  # fmt: skip
"""How many there are in a model; in all others one."""
MASKED = {
    "masked": 1, "masked_old": 1, "plain_filled": 1, "plain_window": 1, "plain_slopes": 1, "text_sdpa": 2,
    "text_eager": 2, "unet": 4,
    **{f"text_{kind}": 2 for kind in attention_models.TEXT_MODELS},
}  # fmt: skip
"""How many of them have a mask, which is left in standard operators on migraphx."""
WIDE = {"text_eager-ts17", "text_t5-ts17", "text_umt5-ts17", "text_sdpa-dy18"}
"""Their masks hold numbers beyond fp16, which stay in fp32 there, and so the attentions in standard operators."""


def feeds_of(model: onnx.ModelProto, batch: int, rows: int, seed: int) -> dict[str, Array]:
    """Random inputs; masks close the end of the last prompt, and all that the first tokens of the one before see."""
    rng = np.random.default_rng(seed)
    sizes = {"batch": batch, "rows": rows, "keys": 7, "sequence": 13, "height": 8, "width": 16}
    feeds: dict[str, Array] = {}
    for info in model.graph.input:
        kind = info.type.tensor_type
        shape = [d.dim_value or sizes.get(d.dim_param, batch) for d in kind.shape.dim]
        values: Array = rng.standard_normal(shape)
        if "mask" in info.name:
            values = np.ones(shape)
            values[-1, 4:] = 0
            values[-2, :3] = 0
        elif kind.elem_type == onnx.TensorProto.INT64:
            values = rng.integers(0, 900, shape)
        feeds[info.name] = values.astype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return _with_names_of_dynamo(model, feeds, sizes, rng)


def _with_names_of_dynamo(
    model: onnx.ModelProto, feeds: dict[str, Array], sizes: dict[str, int], rng: np.random.Generator
) -> dict[str, Array]:
    """torch.export calls sizes s17 and s5: those of text inputs are the second axis."""
    for info in model.graph.input:
        dims = info.type.tensor_type.shape.dim
        if len(dims) > 1 and dims[1].dim_param.startswith("s") and dims[1].dim_param not in sizes:
            length = {"states": sizes["rows"], "text": sizes["keys"]}.get(info.name, sizes["sequence"])
            value = feeds[info.name]
            reps = -(-length // value.shape[1])
            feeds[info.name] = np.concatenate([value] * reps, 1)[:, :length]
    return feeds


def optimized(path: Path, target: str, fp16: bool, folder: Path) -> tuple[onnx.ModelProto, ComponentReport]:
    model = load_model(path, "text_encoder" if path.name.startswith("text") else "unet")
    report = optimize_model(model, OptimizeOptions(load_target(target), fp16))
    assert save_model(model, folder / "model.onnx").overflowed == []
    return onnx.load(folder / "model.onnx"), report


@pytest.mark.parametrize(("case", "runs"), TURNS, ids=["-".join(map(str, case)) for case, _ in TURNS])
def test_attention(
    request: pytest.FixtureRequest, tmp_path: Path, case: tuple[str, str, bool], runs: list[tuple[str, bool]]
) -> None:
    name, exporter, dynamic = case
    path = attention_models.export(name, exporter, dynamic, request.config.cache.mkdir("exports"))
    original = onnx.load(path)
    feeds = [feeds_of(original, 2, 10, 1)] + ([feeds_of(original, 3, 130, 2)] if dynamic else [])
    wanted = [run(original, each)[0] for each in feeds]
    for target, fp16 in runs:
        proto, report = optimized(path, target, fp16, tmp_path)
        assert report.misses == []
        assert report.operators_raised["Attention"] == ATTENTIONS.get(name, 1)
        apart = report.operators.get("Softmax", 0)
        assert apart + report.operators.get("com.microsoft.MultiHeadAttention", 0) == ATTENTIONS.get(name, 1)
        stays = target == "migraphx" or (fp16 and f"{name}-{exporter}" in WIDE)
        assert apart == (MASKED.get(name, 0) if stays else 0)
        for each, expected in zip(feeds, wanted, strict=True):
            (found,) = run(proto, each, target)
            assert found.shape == expected.shape
            assert np.abs(found.astype(np.float64) - expected).max() <= TOLERANCE[fp16] * expected.std()
