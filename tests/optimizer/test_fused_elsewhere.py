"""Files that ONNX Runtime's own optimizer fused for one provider, as Olive and Amuse have them, for every target.

They are made here by ``onnxruntime.transformers.optimizer`` with the options of its Stable Diffusion script and with
those of Olive's examples for DirectML: group norms in channels-first, and with weights in fp16 where the rest is.
"""

from __future__ import annotations

import inspect
import logging
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support import models
from support.exports import Case, quiet
from support.parity import compare
from support.turns import in_turns

from sdort.lowering.component_report import ComponentReport
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.onnx_io.load import load_model
from sdort.onnx_io.save import save_model
from sdort.providers import PROVIDER_NAMES, load_target
from sdort.verification.limits import TOLERANCES
from sdort.workload.samples import Sample

Exported = Callable[[Case], Path]
OLIVE = dict.fromkeys(
    (
        "enable_skip_layer_norm", "enable_bias_skip_layer_norm", "enable_nhwc_conv", "enable_bias_splitgelu",
        "enable_bias_add", "enable_skip_group_norm", "group_norm_channels_last",
    ),
    False,
) | {"use_multi_head_attention": True}  # fmt: skip
OPTIONS: dict[str, dict[str, bool]] = {"all": {}, "olive": OLIVE, "tangents": {"enable_gelu_approximation": True}}
CASES: dict[str, tuple[str, str, bool, Counter[str]]] = {
    "a UNet, all fused": ("sd1_geglu", "all", False, Counter(
        NhwcConv=33, GroupNorm=6, SkipGroupNorm=15, MultiHeadAttention=8, SkipLayerNormalization=8, BiasSplitGelu=4,
        BiasAdd=4)),
    "a UNet of Olive's in fp16": ("sd1", "olive", True, Counter(GroupNorm=21, MultiHeadAttention=8, Gelu=4)),
    "a decoder, all fused, in fp16": ("vae_decoder", "all", True, Counter(NhwcConv=22, GroupNorm=11, SkipGroupNorm=6)),
    "an encoder of Olive's": ("vae_encoder", "olive", False, Counter(GroupNorm=11)),
    "a text encoder, all fused, in fp16": ("clip", "all", True, Counter(SkipLayerNormalization=6, QuickGelu=3)),
    "a text encoder by tangents": ("openclip", "tangents", False, Counter(SkipLayerNormalization=6, FastGelu=3)),
}  # fmt: skip
"""A family, options, whether it is converted to fp16, and what the optimizer fuses in it."""


def fuse(source: Path, path: Path, kind: str, options: dict[str, bool], fp16: bool) -> None:
    """Write what ONNX Runtime's optimizer makes of a model, with fp32 inputs and outputs."""
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_model as fuse_model

    _take_arrays()
    settings = FusionOptions(kind)
    for name, value in options.items():
        assert hasattr(settings, name)
        setattr(settings, name, value)
    logging.disable(logging.WARNING)
    try:
        with quiet():
            made = fuse_model(
                str(source), model_type=kind, num_heads=0, hidden_size=0, opt_level=0, optimization_options=settings,
                use_gpu=True,
            )  # fmt: skip
    finally:
        logging.disable(logging.NOTSET)
    if fp16:
        forced = {"GroupNorm": [0, 1, 2]} if options is OLIVE else {}
        made.convert_float_to_float16(keep_io_types=True, op_block_list=["RandomNormalLike"], force_fp16_inputs=forced)
    made.save_model_to_file(str(path))


@cache
def _take_arrays() -> None:
    """Since numpy 2.4 ``int()`` refuses an array of one element, on which one function of the optimizer relies."""
    for name, module in list(sys.modules.items()):
        if name.endswith("fusion_attention_unet"):
            text = textwrap.dedent(inspect.getsource(module.FusionAttentionUnet.get_num_heads))
            exec(text.replace("int(num_heads)", "int(num_heads.item())"), vars(module))
            module.FusionAttentionUnet.get_num_heads = vars(module)["get_num_heads"]


@pytest.fixture(scope="module")
def fused(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of a case, made when it is first asked for."""
    folder, made = tmp_path_factory.mktemp("fused"), dict[str, Path]()

    def make(name: str) -> Path:
        family, options, fp16, _ = CASES[name]
        if name not in made:
            path = folder / f"{len(made)}.onnx"
            component = models.build(family).component
            kind = {"unet": "unet", "text_encoder": "clip"}.get(component, "vae")
            fuse(exported(Case(family, "ts17")), path, kind, OPTIONS[options], fp16)
            made[name] = path
        return made[name]

    return make


def optimized(path: Path, component: str, target: str, fp16: bool) -> tuple[Any, ComponentReport]:
    model = load_model(path, component)
    return model, optimize_model(model, OptimizeOptions(load_target(target), fp16))


@pytest.mark.parametrize(("name", "target"), in_turns(list(CASES), PROVIDER_NAMES, each=3))
def test_they_become_what_the_unfused_model_becomes(
    exported: Exported, fused: Callable[[str], Path], tmp_path: Path, name: str, target: str
) -> None:
    family, options, fp16, wanted = CASES[name]
    component = models.build(family).component
    path, source = fused(name), exported(Case(family, "ts17"))
    nodes = onnx.load(path, load_external_data=False).graph.node
    assert Counter(node.op_type for node in nodes if node.domain == "com.microsoft") == wanted
    model, report = optimized(path, component, target, False)
    assert report.misses == []
    assert [node.op for node in model.graph.nodes if load_target(target).unsupported(node)] == []
    _, unfused = optimized(source, component, target, fp16)
    if options != "tangents":  # whose Gelu is another
        assert _counts(report) == _counts(unfused)
    save_model(model, tmp_path / "model.onnx")
    samples = [Sample(2, 16, 24, 77 if component == "text_encoder" else 7)]
    parity = compare(source, tmp_path / "model.onnx", component=component, samples=samples)
    limit = TOLERANCES["float16" if fp16 else "float32", component]
    # A converter puts the sine of the timestep into fp16, which the file errs by itself.
    room = 8 if fp16 and component == "unet" else 100 if options == "tangents" else 1
    assert parity.worst.mean <= room * limit.mean
    assert np.isfinite(parity.worst.largest)


def _counts(report: ComponentReport) -> dict[str, int]:
    return {name: count for name, count in report.operators.items() if name not in ("Cast", "Identity")}
