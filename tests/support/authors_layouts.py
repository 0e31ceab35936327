"""Tensors of transformers in the layouts of their authors: the inverse of what sdort reads.

Written from the authors' modules: mmditx.py of Stability-AI/sd3.5, layers.py of black-forest-labs/flux, layers.py of
lodestone-rock/flow, comfy/ldm/lumina/model.py of ComfyUI.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

Tensors = Mapping[str, Any]
_LEAVES = ("weight", "bias")


def _swapped(tensor: Any) -> Any:
    """diffusers' scale and shift as shift and scale."""
    scale, shift = tensor.chunk(2)
    return torch.cat([shift, scale])


def sd3(own: Tensors) -> dict[str, Any]:
    """The names of mmditx.py."""
    blocks = 1 + max(int(name.split(".")[1]) for name in own if name.startswith("transformer_blocks."))
    made = {"pos_embed": own["pos_embed.pos_embed"]}
    for leaf in _LEAVES:
        made[f"x_embedder.proj.{leaf}"] = own[f"pos_embed.proj.{leaf}"]
        for theirs, ours in (("t_embedder", "timestep_embedder"), ("y_embedder", "text_embedder")):
            made[f"{theirs}.mlp.0.{leaf}"] = own[f"time_text_embed.{ours}.linear_1.{leaf}"]
            made[f"{theirs}.mlp.2.{leaf}"] = own[f"time_text_embed.{ours}.linear_2.{leaf}"]
        made[f"context_embedder.{leaf}"] = own[f"context_embedder.{leaf}"]
        made[f"final_layer.linear.{leaf}"] = own[f"proj_out.{leaf}"]
        made[f"final_layer.adaLN_modulation.1.{leaf}"] = _swapped(own[f"norm_out.linear.{leaf}"])
        for block in range(blocks):
            ours, image, text = f"transformer_blocks.{block}", f"joint_blocks.{block}.x_block", \
                f"joint_blocks.{block}.context_block"  # fmt: skip
            for attention in ("attn", "attn2"):
                if f"{ours}.{attention}.to_q.{leaf}" in own:
                    made[f"{image}.{attention}.qkv.{leaf}"] = torch.cat(
                        [own[f"{ours}.{attention}.to_{each}.{leaf}"] for each in "qkv"]
                    )
                    made[f"{image}.{attention}.proj.{leaf}"] = own[f"{ours}.{attention}.to_out.0.{leaf}"]
            made[f"{text}.attn.qkv.{leaf}"] = torch.cat([own[f"{ours}.attn.add_{each}_proj.{leaf}"] for each in "qkv"])
            made[f"{image}.adaLN_modulation.1.{leaf}"] = own[f"{ours}.norm1.linear.{leaf}"]
            made[f"{image}.mlp.fc1.{leaf}"] = own[f"{ours}.ff.net.0.proj.{leaf}"]
            made[f"{image}.mlp.fc2.{leaf}"] = own[f"{ours}.ff.net.2.{leaf}"]
            modulation = own[f"{ours}.norm1_context.linear.{leaf}"]
            if block == blocks - 1:  # only the attention of the text is needed there
                made[f"{text}.adaLN_modulation.1.{leaf}"] = _swapped(modulation)
                continue
            made[f"{text}.adaLN_modulation.1.{leaf}"] = modulation
            made[f"{text}.attn.proj.{leaf}"] = own[f"{ours}.attn.to_add_out.{leaf}"]
            made[f"{text}.mlp.fc1.{leaf}"] = own[f"{ours}.ff_context.net.0.proj.{leaf}"]
            made[f"{text}.mlp.fc2.{leaf}"] = own[f"{ours}.ff_context.net.2.{leaf}"]
    for name, tensor in own.items():
        if norm := re.fullmatch(r"transformer_blocks\.(\d+)\.(attn2?)\.norm_(added_)?([qk])\.weight", name):
            half = "context_block" if norm[3] else "x_block"
            made[f"joint_blocks.{norm[1]}.{half}.{norm[2]}.ln_{norm[4]}.weight"] = tensor
    return made


def flux(own: Tensors) -> dict[str, Any]:
    """The names of Flux.1's model.py and layers.py."""
    made = {}
    for name, tensor in own.items():
        if mlp := re.fullmatch(r"time_text_embed\.(\w+)_embedder\.linear_([12])\.(.*)", name):
            theirs = {"timestep": "time_in", "text": "vector_in", "guidance": "guidance_in"}[mlp[1]]
            made[f"{theirs}.{'in' if mlp[2] == '1' else 'out'}_layer.{mlp[3]}"] = tensor
        elif embedder := re.fullmatch(r"(x|context)_embedder\.(.*)", name):
            made[f"{'img' if embedder[1] == 'x' else 'txt'}_in.{embedder[2]}"] = tensor
        elif last := re.fullmatch(r"norm_out\.linear\.(.*)", name):
            made[f"final_layer.adaLN_modulation.1.{last[1]}"] = _swapped(tensor)
        elif last := re.fullmatch(r"proj_out\.(.*)", name):
            made[f"final_layer.linear.{last[1]}"] = tensor
        elif single := re.fullmatch(r"single_transformer_blocks\.(\d+)\.(.*)", name):
            inner, theirs = single[2], f"single_blocks.{single[1]}"
            if q := re.fullmatch(r"attn\.to_q\.(.*)", inner):
                rest = [name.replace("to_q", f"to_{each}") for each in "kv"]
                rest.append(name.replace("attn.to_q", "proj_mlp"))
                made[f"{theirs}.linear1.{q[1]}"] = torch.cat([tensor, *(own[each] for each in rest)])
            elif norm := re.fullmatch(r"attn\.norm_([qk])\.weight", inner):
                made[f"{theirs}.norm.{'query' if norm[1] == 'q' else 'key'}_norm.scale"] = tensor
            elif inner.startswith("proj_out."):
                made[f"{theirs}.linear2.{inner[9:]}"] = tensor
            elif inner.startswith("norm.linear."):
                made[f"{theirs}.modulation.lin.{inner[12:]}"] = tensor
        elif double := re.fullmatch(r"transformer_blocks\.(\d+)\.(.*)", name):
            inner, theirs = double[2], f"double_blocks.{double[1]}"
            if q := re.fullmatch(r"attn\.(to_q|add_q_proj)\.(.*)", inner):
                parts = [name.replace(q[1], q[1].replace("q", each, 1)) for each in "qkv"]
                half = "img" if q[1] == "to_q" else "txt"
                made[f"{theirs}.{half}_attn.qkv.{q[2]}"] = torch.cat([own[each] for each in parts])
            elif norm := re.fullmatch(r"attn\.norm_(added_)?([qk])\.weight", inner):
                half, kind = ("txt" if norm[1] else "img"), ("query" if norm[2] == "q" else "key")
                made[f"{theirs}.{half}_attn.norm.{kind}_norm.scale"] = tensor
            elif out := re.fullmatch(r"attn\.(to_out\.0|to_add_out)\.(.*)", inner):
                made[f"{theirs}.{'txt' if 'add' in out[1] else 'img'}_attn.proj.{out[2]}"] = tensor
            elif modulation := re.fullmatch(r"norm1(_context)?\.linear\.(.*)", inner):
                made[f"{theirs}.{'txt' if modulation[1] else 'img'}_mod.lin.{modulation[2]}"] = tensor
            elif mlp := re.fullmatch(r"ff(_context)?\.net\.(0\.proj|2)\.(.*)", inner):
                made[f"{theirs}.{'txt' if mlp[1] else 'img'}_mlp.{mlp[2][0]}.{mlp[3]}"] = tensor
    return made


def chroma(own: Tensors) -> dict[str, Any]:
    """The names of Chroma's model.py and layers.py: Flux.1's, and those of the network that makes modulations."""
    made = flux(own)
    for name, tensor in own.items():
        if layer := re.fullmatch(r"(distilled_guidance_layer\.layers\.\d+)\.linear_([12])\.(.*)", name):
            made[f"{layer[1]}.{'in' if layer[2] == '1' else 'out'}_layer.{layer[3]}"] = tensor
        elif norm := re.fullmatch(r"(distilled_guidance_layer\.norms\.\d+)\.weight", name):
            made[f"{norm[1]}.scale"] = tensor
        elif name.startswith("distilled_guidance_layer."):
            made[name] = tensor
    return made


def z_image(own: Tensors) -> dict[str, Any]:
    """The names of ComfyUI's and Tongyi's single files, which have a norm that nothing reads."""
    made = {"norm_final.weight": torch.ones(3)}
    for name, tensor in own.items():
        if re.search(r"\.attention\.to_[kv]\.", name):
            continue
        if ".attention.to_q." in name:
            parts = [own[name.replace("to_q", f"to_{each}")] for each in "qkv"]
            made[name.replace("to_q", "qkv")] = torch.cat(parts)
            continue
        for ours, theirs in (
            ("all_final_layer.2-1.", "final_layer."),
            ("all_x_embedder.2-1.", "x_embedder."),
            (".attention.to_out.0.", ".attention.out."),
            (".attention.norm_q.", ".attention.q_norm."),
            (".attention.norm_k.", ".attention.k_norm."),
        ):
            name = name.replace(ours, theirs)
        made[name] = tensor
    return made
