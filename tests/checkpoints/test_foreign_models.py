"""Single files of other families: they are told by their tensors, and none is taken for Stable Diffusion."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from support import published_configs as published
from support.ldm_files import ldm_unet, save

from sdort.checkpoints.file_kind import recognise_file
from sdort.checkpoints.safetensors import read_tensors
from sdort.checkpoints.single_file import read_single_file
from sdort.checkpoints.weight_names import LDM_UNET, Kind, Shapes, recognise_tensors, unet_variant, unwrapped
from sdort.errors import BadModelError

TAKEN = (Kind.CHECKPOINT, Kind.UNET, Kind.DENOISER)
SMALL: Mapping[str, tuple[dict[str, Any], str | None]] = {
    "UNet2DModel": ({"block_out_channels": (32,) * 4}, "unconditional diffusion"),
    "UNet3DConditionModel": ({"block_out_channels": (64,) * 4}, "text-to-video"),
    "UNetSpatioTemporalConditionModel": ({"num_attention_heads": (1, 2, 2, 2)}, "Stable Video Diffusion"),
    "I2VGenXLUNet": ({"block_out_channels": (64,) * 4}, "text-to-video"),
    "UNetMotionModel": ({"block_out_channels": (32,) * 4}, None),
    "Kandinsky3UNet": ({"block_out_channels": (64,) * 4}, None),
    "StableCascadeUNet": ({"in_channels": 4}, "Stable Cascade"),
    "Flux2Transformer2DModel": ({"num_layers": 1, "num_single_layers": 1}, None),
    "SD3ControlNetModel": ({"num_layers": 2}, None),
    "PixArtTransformer2DModel": ({"num_layers": 1}, "PixArt"),
    "HunyuanDiT2DModel": ({"num_layers": 2, "sample_size": 32, "patch_size": 2, "in_channels": 4}, "Hunyuan-DiT"),
    "HunyuanVideoTransformer3DModel": ({"num_layers": 1, "num_single_layers": 1}, "HunyuanVideo"),
    "WanTransformer3DModel": ({"num_layers": 1}, "Wan"),
    "LTXVideoTransformer3DModel": ({"num_layers": 1}, None),
    "QwenImageTransformer2DModel": ({"num_layers": 1}, "Qwen-Image"),
    "AuraFlowTransformer2DModel": ({"num_mmdit_layers": 1, "num_single_dit_layers": 1}, "AuraFlow"),
    "CogVideoXTransformer3DModel": ({"num_layers": 1}, "CogVideoX"),
    "SanaTransformer2DModel": ({"num_layers": 1}, "Sana"),
    "Lumina2Transformer2DModel": ({"num_layers": 1, "num_refiner_layers": 1}, None),
}
"""Architectures of diffusers in small, and the family that is named."""


def _shapes(state: Mapping[str, torch.Tensor], prefix: str = "") -> dict[str, tuple[int, ...]]:
    return {prefix + name: tuple(tensor.shape) for name, tensor in state.items()}


@cache
def _unet(name: str) -> Shapes:
    """A published UNet's shapes by the names of its original, with their prefix."""
    with torch.device("meta"):
        state = diffusers.UNet2DConditionModel.from_config(published.UNETS[name]).state_dict()
    return {LDM_UNET + key: tuple(tensor.shape) for key, tensor in ldm_unet(state, 2).items()}


@pytest.mark.parametrize("name", SMALL)
def test_another_architecture_is_not_taken_for_stable_diffusion(name: str) -> None:
    config, family = SMALL[name]
    with torch.device("meta"):
        state = getattr(diffusers, name)(**config).state_dict()
    for prefix in ("", LDM_UNET):
        found = recognise_tensors(_shapes(state, prefix))
        assert found.kind not in TAKEN
        assert family is None or found.family == family


VISUAL = {"cond_stage_model.model.visual.proj": (1024, 768)}
LABEL = {f"{LDM_UNET}label_emb.0.0.weight": (1280, 2048), f"{LDM_UNET}label_emb.0.2.weight": (1280, 1280)}


@pytest.mark.parametrize(
    ("unet", "more", "family"),
    [
        ("SD 2.1", {**LABEL, "noise_augmentor.data_mean": (1, 1024)}, "SD 2.1 unCLIP"),
        ("SD 2.1", LABEL, "SD 2.1 unCLIP"),
        ("SD 2.1", {f"{LDM_UNET}label_emb.weight": (1000, 1280)}, "x4 upscaler"),
        ("SD 2.1", {"depth_model.model.scratch.weight": (1,)}, "SD 2.x depth"),
        ("SD 1.5", {**VISUAL, "cc_projection.weight": (768, 772)}, "Zero123"),
        ("SD 1.5", VISUAL, "SD image variations"),
        ("SD 1.5", {f"{LDM_UNET}input_blocks.1.1.transformer_blocks.0.fuser.linear.weight": (320, 768)}, "GLIGEN"),
        ("SD 1.5", {"position_net.null_positive_feature": (768,)}, "GLIGEN"),
        ("SD 1.5", {f"{LDM_UNET}input_blocks.1.2.temporal_transformer.norm.weight": (320,)}, "AnimateDiff"),
        ("SD 2.1", {f"{LDM_UNET}input_blocks.1.0.time_stack.in_layers.0.weight": (320,)}, "Stable Video Diffusion"),
        ("SD 2.1", {f"{LDM_UNET}input_blocks.1.0.temopral_conv.conv1.0.weight": (320,)}, "text-to-video"),
        ("SDXL", {f"{LDM_UNET}encoder_hid_proj.weight": (2048, 4096)}, "Kolors"),
        (
            "SD 1.5",
            {f"{LDM_UNET}middle_block.1.transformer_blocks.0.attn2.to_k_ip.weight": (1, 1)},
            "IP-Adapter and UNet",
        ),
    ],
)
def test_a_unet_with_more_is_named(unet: str, more: Shapes, family: str) -> None:
    found = recognise_tensors({**_unet(unet), **more})
    assert (found.kind, found.family) == (Kind.TRANSFORMER, family)


@pytest.mark.parametrize("name", ["SD 1.5", "SD 1.5 inpainting", "SD 2.1", "SDXL", "SDXL refiner", "LCM SDXL"])
def test_published_models_are_still_taken(name: str) -> None:
    vision = {"conditioner.embedders.0.transformer.vision_model.embeddings.class_embedding": (1024,)}
    open_clip = {"cond_stage_model.model.token_embedding.weight": (49408, 1024), **VISUAL} if name == "SD 2.1" else {}
    vaes = [
        {f"{prefix}{half}.mid_block.attentions.0.{query}.weight": (512, 512)}
        for prefix in ("first_stage_model.", "vae.")
        for half in ("encoder", "decoder")
        for query in ("to_q", "query")
    ]
    others: list[Shapes] = [{}, vision, open_clip, *vaes]
    for more in others:
        assert recognise_tensors({**_unet(name), **more}).kind in TAKEN


@pytest.mark.parametrize("name", ["SD 1.5", "SD 2.1"])
@pytest.mark.parametrize(("inputs", "outputs"), [(6, 4), (7, 4), (8, 4), (12, 4), (13, 4), (5, 4), (4, 8), (8, 8)])
def test_channels_that_no_task_has_are_refused(tmp_path: Path, name: str, inputs: int, outputs: int) -> None:
    shapes = {**_unet(name), f"{LDM_UNET}input_blocks.0.0.weight": (320, inputs, 3, 3)}
    shapes |= {f"{LDM_UNET}out.2.weight": (outputs, 320, 3, 3), f"{LDM_UNET}v_pred": ()}  # a mark hides no channels
    variant = recognise_tensors(shapes).variant
    assert variant == unet_variant(inputs, outputs)
    assert (variant is None) == (inputs == outputs)


@pytest.mark.parametrize("wrap", ["model.", "module.", "state_dict.", LDM_UNET])
@pytest.mark.parametrize("everything", [True, False])
def test_what_stands_before_all_names_is_taken_off(wrap: str, everything: bool) -> None:
    plain = {**_unet("SD 1.5"), "first_stage_model.decoder.conv_in.weight": (4, 4, 3, 3)}
    wrapped = {wrap + name if everything or name.startswith(LDM_UNET) else name: value for name, value in plain.items()}
    assert unwrapped(wrapped) == plain
    assert unwrapped(plain) is plain
    assert recognise_tensors(wrapped) == recognise_tensors(plain)
    assert unwrapped({**wrapped, **plain}).keys() == {**wrapped, **plain}.keys()  # two of one name: nothing is dropped


def test_a_unet_behind_diffusion_model_alone_is_taken() -> None:
    plain = _unet("SD 2.1")
    assert unwrapped({name.removeprefix("model."): value for name, value in plain.items()}) == plain


QUANTIZED = {
    "bitsandbytes, 4 bits": ("absmax", "quant_map", "quant_state.bitsandbytes__nf4", "quant_state.bitsandbytes__fp4"),
    "bitsandbytes, int8": ("SCB", "weight_format"),
    "scaled fp8 or int8": ("scale_weight", "scale_input", "weight_scale", "comfy_quant"),
    "GPTQ, AWQ or SVDQuant": ("qweight", "qzeros", "g_idx"),
    "quanto": ("weight._data", "weight._scale"),
}


@pytest.mark.parametrize(("kind", "end"), [(kind, end) for kind, ends in QUANTIZED.items() for end in ends])
def test_quantized_weights_are_called_that(tmp_path: Path, kind: str, end: str) -> None:
    file, name = tmp_path / "a.safetensors", "model.diffusion_model.input_blocks.1.1.proj_in"
    save({f"{name}.{end}": torch.ones(2), "model.diffusion_model.input_blocks.0.0.weight": torch.ones(1)}, file)
    for read in (read_tensors, read_single_file):
        with pytest.raises(BadModelError, match=rf"are quantized \({kind}; it has .*{end}"):
            read(file)


@pytest.mark.parametrize("prefix", ["", "diffusion_model.", LDM_UNET])
@pytest.mark.parametrize("inputs", [4, 8])
def test_differences_of_weights_are_no_unet(tmp_path: Path, inputs: int, prefix: str) -> None:
    """As IC-Light's, which have a UNet's names."""
    config = {"block_out_channels": (32, 32, 32, 32), "in_channels": inputs, "cross_attention_dim": 32}
    state = diffusers.UNet2DConditionModel(**config).state_dict()
    state = {prefix + name: tensor for name, tensor in state.items()}
    save(state, tmp_path / "whole.safetensors")
    save({name: 0.001 * tensor for name, tensor in state.items()}, tmp_path / "offset.safetensors")
    assert read_single_file(tmp_path / "whole.safetensors").configs["unet"]["in_channels"] == inputs
    with pytest.raises(BadModelError, match="differences of weights and no UNet"):
        read_single_file(tmp_path / "offset.safetensors")


def test_a_foreign_file_is_refused_with_its_family(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save({name: torch.zeros(1) for name in (*_unet("SD 1.5"), "cc_projection.weight")}, file)
    assert "a Zero123 model" in recognise_file(file).what
