"""Adapter files: which parameters they change and by how much, held against what peft merges."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peft import LoHaConfig, LoKrConfig, LoraConfig
from support.adapters import TARGETS, Tensors, arrays, as_kohya, build_unet, low_rank, merged_by_peft, save

from sdort.model.signature import Array
from sdort.model.weights import Inline
from sdort.pipelines.adapters.adapted_weight import adapted
from sdort.pipelines.adapters.adapter_file import Adapter, read_adapter

TOLERANCE = 1e-6
"""Of the largest weight: peft and sdort compute in fp32, and round the product and the sum once each."""

LOKR = {
    f"lokr {'tucker' if tucker else 'flat'} {'both' if both else 'one'}": (
        LoKrConfig(r=2, alpha=3, target_modules=TARGETS, use_effective_conv2d=tucker, decompose_both=both),
        {"original": False},
    )
    for tucker, both in itertools.product((False, True), repeat=2)
}
CASES: dict[str, tuple[Any, dict[str, Any] | None]] = {
    "peft": (LoraConfig(r=4, lora_alpha=4, target_modules=TARGETS), None),
    "peft dora": (LoraConfig(r=4, lora_alpha=4, target_modules=TARGETS, use_dora=True), None),
    "kohya": (LoraConfig(r=4, lora_alpha=2, target_modules=TARGETS), {"original": False}),
    "kohya, original names": (LoraConfig(r=4, lora_alpha=2, target_modules=TARGETS), {"original": True}),
    "kohya dora": (LoraConfig(r=4, lora_alpha=2, target_modules=TARGETS, use_dora=True), {"original": True}),
    "loha": (LoHaConfig(r=4, alpha=3, target_modules=TARGETS), {"original": True}),
    "loha tucker": (LoHaConfig(r=4, alpha=3, target_modules=TARGETS, use_effective_conv2d=True), {"original": False}),
    **LOKR,
}


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_that_peft_merges(tmp_path: Path, case: str) -> None:
    config, style = CASES[case]
    unet = build_unet()
    base = arrays(unet)
    tensors, merged = merged_by_peft(unet, config)
    if style is None:
        tensors = {f"unet.{name}": tensor for name, tensor in tensors.items()}
    else:
        tensors = as_kohya(tensors, base, getattr(config, "lora_alpha", getattr(config, "alpha", None)), **style)
    adapter = read(tmp_path, tensors, {"unet": base})
    assert adapter.unmatched == ()
    assert set(adapter.deltas["unet"]) == {name for name in base if not np.array_equal(base[name], merged[name])}
    assert len(adapter.deltas["unet"]) > 40
    assert_merged(adapter, base, merged)


def read(folder: Path, tensors: Tensors, weights: dict[str, dict[str, Array]], **metadata: str) -> Adapter:
    path = save(folder / "style.safetensors", tensors, metadata or None)
    return read_adapter(
        path, {name: {key: array.shape for key, array in each.items()} for name, each in weights.items()}
    )


def assert_merged(
    adapter: Adapter, base: dict[str, Array], merged: dict[str, Array], component: str = "unet", scale: float = 1.0
) -> None:
    for name, expected in merged.items():
        delta = adapter.deltas.get(component, {}).get(name)
        weight = adapted(Inline(base[name]), [(delta, scale)] if delta else [])
        assert weight.shape == expected.shape
        actual = weight.load()
        assert actual.dtype == np.float32
        assert np.abs(actual - expected).max() <= TOLERANCE * max(np.abs(expected).max(), 1e-3), name


@pytest.fixture(scope="module")
def unet() -> dict[str, Array]:
    return arrays(build_unet())


NAMES: dict[str, Callable[[str], str]] = {
    "sd-scripts": lambda module: f"lora_unet_{module.replace('.', '_')}",
    "lycoris": lambda module: f"lycoris_{module.replace('.', '_')}",
    "diffusers": lambda module: f"unet.{module}",
    "diffusers, with processors": lambda module: "unet." + re.sub(r"(attn[12])", r"\1.processor", module),
    "peft": lambda module: f"base_model.model.{module}",
    "bare": lambda module: module,
}


@pytest.mark.parametrize("style", NAMES)
def test_modules_are_found_under_each_name(tmp_path: Path, unet: dict[str, Array], style: str) -> None:
    tensors, deltas = low_rank(unet, NAMES[style], alpha=1.0)
    adapter = read(tmp_path, tensors, {"unet": unet})
    assert adapter.unmatched == ()
    assert_merged(adapter, unet, {name: array + deltas.get(name, 0) for name, array in unet.items()})
