"""Families at their true depth through the product's own export and optimize, against torch.

``TRUE_DEPTH=all`` takes every family in both kinds: a quarter of an hour of work, for people.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from support import true_depth
from support.hardware import provider_of
from support.parity import open_raw
from support.pipelines import trace_folder

from sdort.exporter.command import export
from sdort.exporter.export_options import StaticSize
from sdort.optimizer.command import optimize
from sdort.verification.limits import TOLERANCES
from sdort.workload.samples import Sample, declared_inputs, make_inputs

pytestmark = pytest.mark.long

STATIC = StaticSize(2, 64, 96)
TARGETS = ("rocm", "cuda", "cpu", "migraphx")
# All targets where sizes are dynamic, half of them in fp16; the other half, in fp16, where they are static.
HALVES = {"dynamic": ("rocm", "cpu"), "static": ("cuda", "migraphx", "dml")}
RUNS = {"dynamic": TARGETS, "static": HALVES["static"]}
CASES = [(family, kind) for family in true_depth.FAMILIES for kind in HALVES]
PARTS: tuple[str, ...] = ()
"""Components that are exported; none: all."""
if os.environ.get("TRUE_DEPTH") != "all":
    # SD 1.5 has all four levels. SDXL is the deepest, and takes three times as long: test_rocm_placement.py counts what
    # fuses in its dynamic graph of full depth. Static: a dynamic trace takes four times as long. In fp32 and in fp16.
    # The UNet alone: a VAE's levels and a text encoder's layers are all alike, and test_architectures.py counts theirs.
    CASES, RUNS["static"], PARTS = [("sd15", "static")], ("rocm", "cuda", "dml"), ("unet",)
SAMPLES: dict[str, dict[str, tuple[Sample, ...]]] = {
    # Latents of other sizes than those that are traced, one that no power of two divides.
    "dynamic": {"unet": (Sample(1, 16, 8, 77), Sample(3, 9, 13, 5)), "vae": (Sample(1, 5, 3), Sample(2, 4, 6))},
    "static": {"unet": (Sample(2, 8, 12, 77),), "vae": (Sample(2, 8, 12),)},
}


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_every_target_computes_what_torch_does(
    family: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    parts = true_depth.build(family)
    true_depth.save(family, parts, tmp_path / "checkpoint")
    static = STATIC if kind == "static" else None
    export(
        tmp_path / "checkpoint",
        tmp_path / "onnx",
        static=static,
        cache_dir=trace_folder(request.config),
        components=PARTS,
    )
    expected = {
        component: list(references(component, parts, tmp_path / "onnx" / component / "model.onnx", kind))
        for component in PARTS or components(parts)
    }
    assert {path.name for path in (tmp_path / "onnx").iterdir() if path.is_dir()} == set(expected)
    for target in RUNS[kind]:
        out = tmp_path / target
        fp16 = target in HALVES[kind]
        report = optimize(tmp_path / "onnx", out, provider=target, fp16=fp16)
        assert report.misses == []
        for component, cases in expected.items():
            check_attention(parts, component, report.components[component].operators)
            check_parity(component, target, out / component / "model.onnx", cases, "float16" if fp16 else "float32")


def components(parts: dict[str, Any]) -> list[str]:
    texts = [name for name in parts if name.startswith("text")]
    return [*texts, "unet", *(["vae_encoder", "vae_decoder"] if "vae" in parts else [])]


Case = tuple[dict[str, Any], list[Any]]
"""Inputs by name, and torch's outputs for them in the order of the graph's."""


def references(component: str, parts: dict[str, Any], path: Path, kind: str) -> Iterator[Case]:
    declared = declared_inputs(onnx.load(path, load_external_data=False), component)
    for seed, sample in enumerate(samples_of(component, kind)):
        feeds = make_inputs(declared, sample, component, seed)
        with torch.no_grad():
            yield feeds, run_torch(component, parts, {name: torch.from_numpy(np.array(v)) for name, v in feeds.items()})


def samples_of(component: str, kind: str) -> tuple[Sample, ...]:
    if component == "vae_encoder":  # pixels
        return tuple(Sample(s.batch, 8 * s.height, 8 * s.width) for s in SAMPLES[kind]["vae"])
    return SAMPLES[kind]["vae" if component == "vae_decoder" else "unet"]


def run_torch(component: str, parts: dict[str, Any], feeds: dict[str, Any]) -> list[Any]:
    if component == "unet":
        names = ("sample", "timestep", "encoder_hidden_states")
        added = {name: value for name, value in feeds.items() if name not in names}
        found = parts["unet"](*(feeds[name] for name in names), added_cond_kwargs=added or None)
        return [found.sample]
    if component == "vae_encoder":
        return [parts["vae"].encode(feeds["sample"]).latent_dist.parameters]
    if component == "vae_decoder":
        return [parts["vae"].decode(feeds["latent_sample"]).sample]
    found = parts[component](feeds["input_ids"], output_hidden_states=True)
    states, norm = found.hidden_states, getattr(parts[component], "text_model", parts[component]).final_layer_norm
    named = {**found, **{f"hidden_states.{i}": state for i, state in enumerate(states)}}
    return [named | {f"clip_skip.{skip}": norm(states[-skip]) for skip in range(2, len(states))}]


def check_attention(parts: dict[str, Any], component: str, operators: dict[str, int]) -> None:
    """Every transformer layer is there, and its attention fused: the deepest ones are what this test is for."""
    if component != "unet":
        return
    blocks = [m for m in parts["unet"].modules() if type(m).__name__ == "BasicTransformerBlock"]
    assert operators["com.microsoft.MultiHeadAttention"] == 2 * len(blocks)
    assert "Softmax" not in operators


def check_parity(component: str, target: str, path: Path, cases: list[Case], dtype: str) -> None:
    session = open_raw(onnx.load(path, load_external_data=False), path.parent, component, provider_of(target))
    names = [output.name for output in session.get_outputs()]
    limit = TOLERANCES[dtype, component]
    for feeds, expected in cases:
        wanted = [expected[0][name] for name in names] if isinstance(expected[0], dict) else expected
        for name, value, reference in zip(names, session.run(None, feeds), wanted, strict=True):
            error = np.abs(value.astype(np.float64) - reference.numpy()) / float(reference.numpy().std())
            assert value.shape == tuple(reference.shape)
            assert error.max() <= limit.largest, (component, name, error.max())
            assert error.mean() <= limit.mean, (component, name, error.mean())
