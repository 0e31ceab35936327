"""Adapter files: which parameters they change and by how much, held against what peft merges."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoHaConfig, LoKrConfig, LoraConfig
from support.adapters import TARGETS, Tensors, arrays, as_kohya, build_unet, low_rank, merged_by_peft, save
from support.ldm_files import CLIP_BLOCK

from sdort.adapters.adapted_weight import adapted
from sdort.adapters.adapter_choice import AdapterChoice, parse_adapter_choice
from sdort.adapters.adapter_file import Adapter, read_adapter, remark
from sdort.errors import BadModelError, UsageError
from sdort.graph import pieces
from sdort.graph.signature import Array
from sdort.graph.weights import Inline

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
def test_weights_are_those_that_peft_merges(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", 1000)  # a few rows of these weights
    config, style = CASES[case]
    unet = build_unet()
    base = arrays(unet)
    tensors, merged = merged_by_peft(unet, config)
    if style is None:
        tensors = {f"unet.{name}": tensor for name, tensor in tensors.items()}
    else:
        tensors = as_kohya(tensors, base, getattr(config, "lora_alpha", None) or config.alpha, **style)
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


@pytest.fixture(scope="module")
def encoder() -> dict[str, Array]:
    """A CLIP text encoder's weights, without biases."""
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    torch.manual_seed(0)
    config = CLIPTextConfig(
        vocab_size=60,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        projection_dim=12,
    )
    return arrays(CLIPTextModelWithProjection(config))


def open_clip_stem(module: str) -> str:
    """A module's name in OpenCLIP, which has one matrix for queries, keys and values."""
    layer = re.fullmatch(r"text_model\.encoder\.layers\.(\d+)\.(.+)", module)
    if layer and layer[2] in CLIP_BLOCK:
        module = f"transformer.resblocks.{layer[1]}.{CLIP_BLOCK[layer[2]]}"
    return f"lora_te2_{module.replace('.', '_')}"


TEXT_NAMES: dict[str, tuple[str, Callable[[str], str]]] = {
    "sd-scripts": ("text_encoder", lambda module: f"lora_te_{module.replace('.', '_')}"),
    "sd-scripts, first": ("text_encoder", lambda module: f"lora_te1_{module.replace('.', '_')}"),
    "sd-scripts, second": ("text_encoder_2", lambda module: f"lora_te2_{module.replace('.', '_')}"),
    "OpenCLIP": ("text_encoder_2", open_clip_stem),
    "diffusers": ("text_encoder_2", lambda module: f"text_encoder_2.{module}"),
    "ComfyUI": ("text_encoder_2", lambda module: f"clip_g.transformer.{module}"),
}


@pytest.mark.parametrize("style", TEXT_NAMES)
def test_text_encoders_are_told_apart(tmp_path: Path, encoder: dict[str, Array], style: str) -> None:
    component, name = TEXT_NAMES[style]
    # transformers 5 names CLIPTextModel's parameters without the inner module, files always with it.
    first = {key.removeprefix("text_model."): array for key, array in encoder.items() if "projection" not in key}
    pipeline = {"text_encoder": first, "text_encoder_2": encoder}
    tensors, deltas = low_rank(encoder, name)
    adapter = read(tmp_path, tensors, pipeline)
    expected = deltas if component == "text_encoder_2" else {
        key.removeprefix("text_model."): array for key, array in deltas.items() if "projection" not in key
    }  # fmt: skip
    assert set(adapter.deltas) == {component}
    base = pipeline[component]
    assert_merged(adapter, base, {key: array + expected.get(key, 0) for key, array in base.items()}, component)
    assert len(adapter.unmatched) == 2 * (len(deltas) - len(expected))


def test_one_matrix_of_queries_keys_and_values_is_three(tmp_path: Path, encoder: dict[str, Array]) -> None:
    up, down = torch.randn(48, 2), torch.randn(2, 16)
    stem = "lora_te2_transformer_resblocks_1_attn_in_proj"
    tensors = {f"{stem}.lora_up.weight": up, f"{stem}.lora_down.weight": down, f"{stem}.alpha": torch.tensor(1.0)}
    adapter = read(tmp_path, tensors, {"text_encoder_2": encoder})
    names = [f"text_model.encoder.layers.1.self_attn.{letter}_proj.weight" for letter in "qkv"]
    thirds = dict(zip(names, np.split((up @ down).numpy() / 2, 3), strict=True))
    assert set(adapter.deltas["text_encoder_2"]) == set(names)
    merged = {name: encoder[name] + third for name, third in thirds.items()}
    assert_merged(adapter, encoder, merged, "text_encoder_2")


@pytest.mark.parametrize("scale", [-0.5, 2.0])
def test_adapters_add_up_with_their_scales(tmp_path: Path, unet: dict[str, Array], scale: float) -> None:
    tensors, deltas = low_rank(unet, NAMES["peft"])
    first = read(tmp_path, tensors, {"unet": unet})
    name = "conv_in.weight"
    weight = adapted(Inline(unet[name]), [(first.deltas["unet"][name], scale), (first.deltas["unet"][name], 0.25)])
    assert np.abs(weight.load() - (unet[name] + (scale + 0.25) * deltas[name])).max() < TOLERANCE
    none = Inline(unet[name])
    assert adapted(none, [(first.deltas["unet"][name], 0.0)]) is none


def lora(stem: str, outputs: int, inputs: int, rank: int = 2) -> Tensors:
    """A LoRA of ones for one linear layer."""
    return {f"{stem}.lora_up.weight": torch.ones(outputs, rank), f"{stem}.lora_down.weight": torch.ones(rank, inputs)}


Q = "unet.mid_block.attentions.0.transformer_blocks.0.attn1.to_q"
K = "unet.mid_block.attentions.0.transformer_blocks.0.attn2.to_k"
SETTINGS = {
    "unet.lora_alpha": ({"unet.lora_alpha": 6, "unet.r": 2}, 3.0),
    "rank-stabilised": ({"unet.lora_alpha": 4, "unet.use_rslora": True}, 4 / 2**0.5),
    "of one module": ({"unet.lora_alpha": 6, "unet.alpha_pattern": {"attn1.to_q": 1}}, 0.5),
    "of another": ({"unet.lora_alpha": 6, "unet.alpha_pattern": {"to_k": 1}}, 3.0),
    "none": ({}, 1.0),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_alpha_of_diffusers_stands_in_the_metadata(tmp_path: Path, unet: dict[str, Array], case: str) -> None:
    settings, factor = SETTINGS[case]
    adapter = read(tmp_path, lora(Q, 64, 64), {"unet": unet}, lora_adapter_metadata=json.dumps(settings))
    (delta,) = adapter.deltas["unet"].values()
    assert delta.array() == pytest.approx(np.full((64, 64), 2 * factor), rel=1e-6)


OTHER_KINDS = {
    # LyCORIS and peft
    "lora_unet_conv_in.oft_blocks": torch.ones(2, 2, 2),
    "base_model.model.conv_in.oft_R.weight": torch.ones(2, 2),
    "lycoris_conv_in.oft_blocks": torch.ones(2, 2, 2, 2),
    "base_model.model.conv_in.boft_R": torch.ones(2, 2),
    "lycoris_conv_in.a1.weight": torch.ones(2, 2),
    "lycoris_conv_in.on_input": torch.ones(1),
    "base_model.model.conv_in.ia3_l.default": torch.ones(2, 1),
    "base_model.model.conv_in.vera_lambda_b": torch.ones(2),
}
KINDS = ("OFT", "OFT", "BOFT", "BOFT", "GLoRA", "(IA)^3", "(IA)^3", "VeRA")


def test_what_has_no_place_is_listed_with_its_reason(tmp_path: Path, unet: dict[str, Array]) -> None:
    tensors = {
        **lora(Q, 64, 64),
        **lora("unet.nowhere", 4, 4),
        **lora("unet.mid_block.attentions.0.proj_in", 64, 63),
        **lora("lora_te_text_model_encoder_layers_0_mlp_fc1", 4, 4),
        "unet.conv_in.lora_up.weight": torch.ones(32, 2, 1, 1),
        "unet.conv_out.strange": torch.ones(2, 2, 2),
        "bundle_emb.word.clip_l": torch.ones(2, 8),
        **lora("unet.conv_out", 4, 4),
        **OTHER_KINDS,
    }
    adapter = read(tmp_path, tensors, {"unet": unet})
    assert set(adapter.deltas["unet"]) == {f"{Q.removeprefix('unet.')}.weight"}
    assert {entry.key for entry in adapter.unmatched} == tensors.keys() - lora(Q, 64, 64).keys()
    reasons = {entry.key.partition(".lora")[0]: entry.reason for entry in adapter.unmatched}
    assert reasons["unet.nowhere"] == "unet has no such module"
    assert (
        "64 x 63 numbers, and unet's mid_block.attentions.0.proj_in has [64, 64, 1, 1]"
        in (reasons["unet.mid_block.attentions.0.proj_in"])
    )
    assert reasons["lora_te_text_model_encoder_layers_0_mlp_fc1"] == "there is no text_encoder"
    assert reasons["unet.conv_in"] == "a part of the change is missing: there is only up"
    assert reasons["bundle_emb.word.clip_l"].startswith("it is a word's embedding")
    for key, kind in zip(OTHER_KINDS, KINDS, strict=True):
        assert reasons[key] == f"it is of {kind}, which sdort does not read"
    assert reasons["unet.conv_out"] == "sdort does not know all parts of this change"


@pytest.mark.parametrize("alpha", [torch.tensor(6), torch.tensor([6.0]), torch.tensor(6.0, dtype=torch.bfloat16)])
def test_alpha_is_one_number_of_any_type(tmp_path: Path, unet: dict[str, Array], alpha: torch.Tensor) -> None:
    """Trainers that keep the type of a setting store whole numbers."""
    (delta,) = read(tmp_path, {**lora(Q, 64, 64), f"{Q}.alpha": alpha}, {"unet": unet}).deltas["unet"].values()
    assert np.array_equal(delta.array(), np.full((64, 64), 6.0, np.float32))  # 2 ones by 2, times 6 / 2


def test_an_alpha_of_zero_is_told(tmp_path: Path, unet: dict[str, Array], capsys: pytest.CaptureFixture[str]) -> None:
    remark(read(tmp_path, {**lora(Q, 64, 64), f"{Q}.alpha": torch.tensor(0.0)}, {"unet": unet}))
    assert "its alpha is 0, so that it changes nothing" in capsys.readouterr().err
    remark(read(tmp_path, lora(Q, 64, 64), {"unet": unet}))
    assert capsys.readouterr().err == ""


REFUSED: dict[str, tuple[Tensors, str]] = {
    "another family": ({**lora(K, 64, 2048), **lora(Q, 64, 64)}, "is for SDXL, and this model is"),
    "flux": (lora("lora_unet_double_blocks_0_img_attn_proj", 8, 8), "looks like one for Flux"),
    "orthogonal": ({"lora_unet_conv_in.oft_blocks": torch.ones(2, 2, 2)}, "is of OFT, which sdort does not read"),
    "of peft": ({"base_model.model.conv_in.boft_R": torch.ones(2, 2)}, "is of BOFT, which sdort does not read"),
    "parts of other ranks": (
        {f"{Q}.lora_up.weight": torch.ones(64, 3), f"{Q}.lora_down.weight": torch.ones(2, 64)},
        "of its 1 module none fits: the shapes of its parts do not belong together",
    ),
    "nothing known": ({"a.b": torch.ones(2)}, "sdort does not know"),
    "checkpoint": (
        {"model.diffusion_model.input_blocks.0.0.weight": torch.ones(2, 2, 1, 1)},
        "not a LoRA",
    ),
    "embedding": ({"emb_params": torch.ones(2, 768)}, "not a LoRA"),
    "twice": ({**lora(Q, 64, 64), **lora(f"lora_{Q.replace('.', '_')}", 64, 64)}, "twice"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_files_are_refused_with_what_they_are(tmp_path: Path, unet: dict[str, Array], case: str) -> None:
    tensors, message = REFUSED[case]
    with pytest.raises(BadModelError, match=message):
        read(tmp_path, tensors, {"unet": unet})


def test_values_that_are_not_finite_are_refused(tmp_path: Path, unet: dict[str, Array]) -> None:
    tensors = lora(Q, 64, 64)
    tensors[f"{Q}.lora_up.weight"][3, 1] = float("nan")
    (delta,) = read(tmp_path, tensors, {"unet": unet}).deltas["unet"].values()
    with pytest.raises(BadModelError, match=r"to_q\.lora_up\.weight.* NaN"):
        delta.array()


def test_a_choice_is_a_file_and_a_scale(tmp_path: Path) -> None:
    named = tmp_path / "a:0.5"
    named.touch()
    assert parse_adapter_choice("a/b.safetensors") == AdapterChoice(Path("a/b.safetensors"), 1.0)
    assert parse_adapter_choice("b.safetensors:-.25") == AdapterChoice(Path("b.safetensors"), -0.25)
    assert parse_adapter_choice(str(named)) == AdapterChoice(named, 1.0)
    for text in ("b.safetensors:strong", "b.safetensors:0.8:lbw=1,0", "b.safetensors:lbw=1:0.8", "b.safetensors:nan"):
        with pytest.raises(UsageError, match="is no scale"):
            parse_adapter_choice(text)
    for text in ("", ":0.5", "a:1e9"):
        with pytest.raises(UsageError):
            parse_adapter_choice(text)
    with pytest.raises(UsageError, match="does not exist"):
        read_adapter(tmp_path / "none.safetensors", {"unet": {}})
