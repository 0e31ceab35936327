"""Single-file checkpoints in the original (LDM) layout, made of diffusers' parts.

Blocks get their numbers as the original's constructors count them (``UNetModel`` of ``openaimodel.py``, ``Encoder`` and
``Decoder`` of ``model.py`` in CompVis/stable-diffusion), so that nothing here is the inverse of the tested rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

State = dict[str, torch.Tensor]

_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
_ATTENTION = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}
CLIP_BLOCK = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "self_attn.out_proj": "attn.out_proj",
}


def ldm_unet(state: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """A UNet's tensors by their names in the original, without a prefix.

    Args:
        layers: residual blocks of a level of the encoder half.
    """
    modules = dict(_unet_modules(state, layers))
    return {_renamed(name, modules, _RESNET): tensor for name, tensor in state.items()}


def _unet_modules(state: Mapping[str, Any], layers: int) -> Iterator[tuple[str, str]]:
    """Modules of diffusers -> of the original."""
    yield from {"conv_in": "input_blocks.0.0", "conv_norm_out": "out.0", "conv_out": "out.2"}.items()
    yield from {"time_embedding.linear_1": "time_embed.0", "time_embedding.linear_2": "time_embed.2"}.items()
    yield "time_embedding.cond_proj", "time_embed.cond_proj"
    yield from {"add_embedding.linear_1": "label_emb.0.0", "add_embedding.linear_2": "label_emb.0.2"}.items()
    yield from {"mid_block.resnets.0": "middle_block.0", "mid_block.attentions.0": "middle_block.1"}.items()
    yield "mid_block.resnets.1", "middle_block.2"
    has = {name.rpartition(".")[0] for name in state}
    levels = len({name.split(".")[1] for name in state if name.startswith("down_blocks.")})
    number = 1
    for level in range(levels):
        for layer in range(layers):
            yield f"down_blocks.{level}.resnets.{layer}", f"input_blocks.{number}.0"
            yield f"down_blocks.{level}.attentions.{layer}", f"input_blocks.{number}.1"
            number += 1
        if level != levels - 1:
            yield f"down_blocks.{level}.downsamplers.0.conv", f"input_blocks.{number}.0.op"
            number += 1
    number = 0
    for level in range(levels):
        for layer in range(layers + 1):
            yield f"up_blocks.{level}.resnets.{layer}", f"output_blocks.{number}.0"
            yield f"up_blocks.{level}.attentions.{layer}", f"output_blocks.{number}.1"
            if layer == layers:
                place = 2 if f"up_blocks.{level}.attentions.{layer}.proj_in" in has else 1
                yield f"up_blocks.{level}.upsamplers.0.conv", f"output_blocks.{number}.{place}.conv"
            number += 1


def ldm_control(state: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """A ControlNet's tensors by their names in the original, without a prefix; ``layers`` as for :func:`ldm_unet`."""
    modules = dict(_unet_modules(state, layers))
    numbers = {int(name.split(".")[2]) for name in state if name.startswith("controlnet_cond_embedding.blocks.")}
    hint = ["conv_in", *(f"blocks.{number}" for number in sorted(numbers)), "conv_out"]
    modules |= {f"controlnet_cond_embedding.{name}": f"input_hint_block.{2 * i}" for i, name in enumerate(hint)}
    outputs = {int(name.split(".")[1]) for name in state if name.startswith("controlnet_down_blocks.")}
    modules |= {f"controlnet_down_blocks.{number}": f"zero_convs.{number}.0" for number in outputs}
    modules["controlnet_mid_block"] = "middle_block_out.0"
    return {_renamed(name, modules, _RESNET): tensor for name, tensor in state.items()}


def ldm_vae(state: State) -> State:
    """A VAE's tensors by their names in the original, without a prefix; its attentions' matrices as convolutions."""
    levels = len({name.split(".")[2] for name in state if name.startswith("decoder.up_blocks.")})
    found: State = {}
    for name, tensor in state.items():
        name = name.replace("conv_norm_out", "norm_out").replace("conv_shortcut", "nin_shortcut")
        name = name.replace(".downsamplers.0.", ".downsample.").replace(".upsamplers.0.", ".upsample.")
        name = re.sub(r"down_blocks\.(\d+)", r"down.\1", name)
        name = re.sub(r"up_blocks\.(\d+)", lambda match: f"up.{levels - 1 - int(match[1])}", name)
        name = re.sub(r"mid_block\.resnets\.(\d)", lambda match: f"mid.block_{int(match[1]) + 1}", name)
        name = name.replace(".resnets.", ".block.")
        if ".attentions." in name:
            head, _, rest = name.partition("mid_block.attentions.0.")
            name = f"{head}mid.attn_1.{_replaced(rest, _ATTENTION)}"
            tensor = tensor[:, :, None, None] if tensor.ndim == 2 else tensor
        found[name] = tensor.contiguous()
    return found


def open_clip(state: State, more_layers: int = 0) -> State:
    """A text encoder's tensors as OpenCLIP has them, packed and with a projection that is turned.

    Args:
        more_layers: layers behind the last one, which the family does not use.
    """
    state = {name.removeprefix("text_model."): tensor for name, tensor in state.items()}
    found = {
        "positional_embedding": state["embeddings.position_embedding.weight"],
        "token_embedding.weight": state["embeddings.token_embedding.weight"],
        "ln_final.weight": state["final_layer_norm.weight"],
        "ln_final.bias": state["final_layer_norm.bias"],
        "logit_scale": torch.tensor(4.6),
    }
    layers = len({name.split(".")[2] for name in state if name.startswith("encoder.layers.")})
    for layer in range(layers + more_layers):
        source, target = f"encoder.layers.{min(layer, layers - 1)}.", f"transformer.resblocks.{layer}."
        for kind in ("weight", "bias"):
            packed = [state[f"{source}self_attn.{part}_proj.{kind}"] for part in "qkv"]
            found[f"{target}attn.in_proj_{kind}"] = torch.cat(packed)
            for name, original in CLIP_BLOCK.items():
                found[f"{target}{original}.{kind}"] = state[f"{source}{name}.{kind}"].clone()
    if "text_projection.weight" in state:
        found["text_projection"] = state["text_projection.weight"].T.contiguous()
    return found


def averaged(unet: State) -> State:
    """The names that averaged weights of a UNet have (``ema.py`` of CompVis/latent-diffusion)."""
    return {"model_ema." + f"diffusion_model.{name}".replace(".", ""): tensor for name, tensor in unet.items()}


def with_prefix(prefix: str, state: State) -> State:
    """The tensors with ``prefix`` before their names."""
    return {prefix + name: tensor for name, tensor in state.items()}


def load_part(folder: Path) -> State:
    """The weights in a component's folder."""
    state: State = load_file(next(folder.glob("*.safetensors")))
    return state


def write_ldm(path: Path, checkpoint: Path, family: str, layers: int = 1, **notes: str) -> State:
    """Write a diffusers folder of SD 1.x (``sd1``), 2.x (``sd2``) or SDXL as one file; returns its tensors.

    A folder without a VAE gives a file without one.
    """
    state: State = with_prefix("model.diffusion_model.", ldm_unet(load_part(checkpoint / "unet"), layers))
    if any((checkpoint / "vae").glob("*.safetensors")):
        state |= with_prefix("first_stage_model.", ldm_vae(load_part(checkpoint / "vae")))
    text = load_part(checkpoint / "text_encoder")
    if family == "sd1":
        state |= with_prefix("cond_stage_model.transformer.", old_clip_names(text))
    elif family == "sd2":
        state |= with_prefix("cond_stage_model.model.", open_clip(text))
    else:
        state |= with_prefix("conditioner.embedders.0.transformer.", old_clip_names(text))
        state |= with_prefix("conditioner.embedders.1.model.", open_clip(load_part(checkpoint / "text_encoder_2")))
    state["alphas_cumprod"] = torch.linspace(1, 0, 10)
    save(state, path, **notes)
    return state


def save(state: State, path: Path, **notes: str) -> None:
    """Write tensors, some of which may share their values, with metadata."""
    save_file({name: tensor.clone() for name, tensor in state.items()}, path, notes or None)


def old_clip_names(text: State) -> State:
    """CLIP's names before transformers 5, with the buffer that was saved then."""
    state = {f"text_model.{name.removeprefix('text_model.')}": tensor for name, tensor in text.items()}
    return {**state, "text_model.embeddings.position_ids": torch.arange(77)[None]}


def _renamed(name: str, modules: Mapping[str, str], inner: Mapping[str, str]) -> str:
    """The name with the longest module that ``modules`` knows replaced."""
    module, rest = name, ""
    while module not in modules:
        module, _, last = module.rpartition(".")
        rest = f".{last}{rest}"
    return modules[module] + (f".{_replaced(rest[1:], inner)}" if ".resnets." in module else rest)


def _replaced(rest: str, names: Mapping[str, str]) -> str:
    head, _, kind = rest.rpartition(".")
    return f"{names[head]}.{kind}"
