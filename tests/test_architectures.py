"""Full-size architectures without weights: what fuses is what their configs say."""

from __future__ import annotations

import io
import warnings
from functools import lru_cache

import numpy as np
import onnx
import pytest
import torch
from full_size import build_full
from models import Built

from sdort.expected import expected_operators
from sdort.loader import from_proto
from sdort.model import Model
from sdort.pipeline import ComponentReport, Options, optimize_model
from sdort.targets import load_target
from sdort.weights import Absent

LATENT = 8
"""Pixels a side while tracing: the graph is the same at any size."""

SD15_UNET = {
    "MultiHeadAttention": 32,
    "NhwcConv": 98,
    "BiasSplitGelu": 16,
    "BiasAdd": 16,
    "SkipLayerNormalization": 32,
    "LayerNormalization": 16,
}


@lru_cache(maxsize=1)
def traced(name: str) -> tuple[Built, bytes]:
    """The architecture as TorchScript writes it, its parameters as inputs: their storage is never touched."""
    built = build_full(name)
    built.module.to_empty(device="cpu")
    for buffer in built.module.buffers():
        buffer.zero_()
    inputs = [_small(key, tensor) for key, tensor in built.inputs.items()]
    axes = {key: axes for key, axes in built.dynamic.items() if axes}
    file = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            built.module, tuple(inputs), file, input_names=list(built.inputs), output_names=built.outputs,
            opset_version=17, dynamo=False, export_params=False, do_constant_folding=False, dynamic_axes=axes,
        )  # fmt: skip
    return built, file.getvalue()


def _small(name: str, tensor: torch.Tensor) -> torch.Tensor:
    sizes = list(tensor.shape)
    if "sample" in name:
        sizes[2:] = [LATENT, LATENT]
    return torch.zeros(sizes, dtype=tensor.dtype)


def weightless(name: str) -> tuple[Built, Model]:
    """The traced graph; whoever asks a parameter for its values gets an error."""
    built, text = traced(name)
    proto = onnx.ModelProto.FromString(text)
    parameters = [i for i in proto.graph.input if i.name not in built.inputs]
    for value in parameters:
        dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
        proto.graph.initializer.add(name=value.name, data_type=onnx.TensorProto.FLOAT, dims=dims)
    assert len(parameters) > 0
    return built, from_proto(proto, lambda t: Absent(t.name, t.dims, np.float32), built.component)


def optimized(name: str, target: str) -> tuple[Built, Model, ComponentReport]:
    built, model = weightless(name)
    return built, model, optimize_model(model, Options(load_target(target), fp16=True))


TARGETS = {
    "sd15": ("rocm", "cuda", "cpu", "migraphx"),
    "sd21": ("rocm",),
    "sdxl": ("rocm",),
    "vae_encoder": ("rocm", "cpu"),
    "vae_decoder": ("rocm", "migraphx"),
    "clip_l": ("rocm", "migraphx"),
    "openclip_h": ("rocm",),
}
"""Every architecture for the default target; the others where they differ."""


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_gets_what_the_config_says(name: str) -> None:
    for target in TARGETS[name]:
        built, model, report = optimized(name, target)
        assert report.misses == []
        raised = expected_operators(built.config, built.component, "raised")
        counts = report.operators_raised
        assert [e.judge(sum(counts.get(op, 0) for op in e.operators)) for e in raised] == [None] * len(raised)
        if target in ("rocm", "cuda"):
            assert report.declined == {}
            fused = expected_operators(built.config, built.component, target)
            assert [e.miss(model.graph) for e in fused] == [None] * len(fused)
            assert report.operators.get("Transpose", 0) <= 2
        if name == "sd15" and target in ("rocm", "cuda"):
            check_sd15(model, report)
        if name == "sdxl" and target in ("rocm", "cuda"):
            assert report.operators["com.microsoft.MultiHeadAttention"] == 140
            assert report.operators["com.microsoft.BiasSplitGelu"] == 70


def check_sd15(model: Model, report: ComponentReport) -> None:
    """The numbers that everybody who knows this UNet can count."""
    counts = {name.rpartition(".")[2]: count for name, count in report.operators.items()}
    assert {name: counts[name] for name in SD15_UNET} == SD15_UNET
    norms = [n for n in model.graph.nodes if n.op in ("GroupNorm", "SkipGroupNorm")]
    assert len(norms) == 61
    assert sum(n.attrs["activation"] for n in norms) == 45
    packed = [len(n.inputs) for n in model.graph.nodes if n.op == "MultiHeadAttention"]
    assert sorted(packed) == [1] * 16 + [2] * 16  # packed QKV; query and packed KV
    # Dynamic height and width: the batch for the timestep, one shape for each of four levels.
    assert counts["Shape"] <= 5
    assert "Unsqueeze" not in counts
    assert "Gather" not in counts
