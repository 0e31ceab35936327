#!/usr/bin/env python3
"""Writes the demo model as a checkpoint of SD 1.x's widths: one file that other programs open, and the same images.

    scripts/demo_as_sd1.py OUT.safetensors

ComfyUI and web UIs recognize a model by its shapes, and the demo model is too narrow for them. This script repeats
every channel until the layers have SD 1.x's widths: UNet 320 and 640, text encoder 768 and 12 layers, VAE 128 to 512.
A layer that reads repeated channels divides its weights by their number. Heads of attention get zeros, and their
queries are scaled. Blocks that the demo does not have add zero. The wide model therefore computes what the demo
computes.

The words of the demo's prompts get their tokens of CLIP's vocabulary; other words mean nothing. The VAE has a factor of
4. The UNet predicts the velocity: in ComfyUI, put *ModelSamplingDiscrete* with v_prediction before the sampler.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import Arguments

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import torch
from demo_words import caption_words
from support.ldm_files import State, ldm_unet, ldm_vae, load_part, old_clip_names, save, with_prefix
from torch import Tensor

import sdort.demo
from sdort.checkpoints.clip_merges import read_clip_merges
from sdort.checkpoints.clip_tokenizer import write_clip_tokenizer

DEMO = Path(sdort.demo.__file__).parent / "model"
UNET: dict[str, Any] = {
    "block_out_channels": (320, 640),
    "down_block_types": ("CrossAttnDownBlock2D",) * 2,
    "up_block_types": ("CrossAttnUpBlock2D",) * 2,
    "layers_per_block": 1,
    "cross_attention_dim": 768,
    "attention_head_dim": 8,
}
VAE: dict[str, Any] = {
    "block_out_channels": (128, 256, 512),
    "layers_per_block": 2,
    "down_block_types": ("DownEncoderBlock2D",) * 3,
    "up_block_types": ("UpDecoderBlock2D",) * 3,
}
TEXT: dict[str, Any] = {
    "vocab_size": 49408, "bos_token_id": 49406, "eos_token_id": 49407, "hidden_size": 768, "intermediate_size": 3072,
    "num_attention_heads": 12, "num_hidden_layers": 12, "projection_dim": 768,
}  # fmt: skip
UNET_HEADS, TEXT_HEADS, VAE_HEADS = (2, 8), (4, 12), (1, 1)
"""Heads of the demo and of the wide model."""


def repeated(tensor: Tensor, dim: int, size: int, *, read: bool = False) -> Tensor:
    """Each entry along ``dim`` repeated until there are ``size``; ``read`` divides by the number of copies."""
    copies, rest = divmod(size, tensor.shape[dim])
    assert rest == 0, (tensor.shape, dim, size)
    wide = tensor.repeat_interleave(copies, dim)
    return wide / copies if read else wide


def padded(tensor: Tensor, dim: int, size: int) -> Tensor:
    """With zeros at the end of ``dim``."""
    shape = [*tensor.shape]
    shape[dim] = size - shape[dim]
    return torch.cat([tensor, tensor.new_zeros(shape)], dim)


def headed(tensor: Tensor, dim: int, size: int, heads: tuple[int, int], *, read: bool = False) -> Tensor:
    """Heads repeated and padded: along ``dim`` lie all values of the first head, then those of the next."""
    before, after = heads
    parts = tensor.movedim(dim, 0).unflatten(0, (before, -1))
    parts = padded(repeated(parts, 0, after, read=read), 1, size // after)
    return parts.flatten(0, 1).movedim(0, dim)


def queries(tensor: Tensor, size: int, heads: tuple[int, int]) -> Tensor:
    """Rows of a query's projection, scaled as attention divides by the root of the wider head."""
    narrow, wide = tensor.shape[0] // heads[0], size // heads[1]
    return headed(tensor, 0, size, heads) * (wide / narrow) ** 0.5


def fitted(tensor: Tensor, shape: torch.Size) -> Tensor:
    """A layer's weight or bias with its channels repeated; those of images and latents stay."""
    wide = repeated(tensor, 0, shape[0])
    return repeated(wide, 1, shape[1], read=True) if tensor.ndim > 1 else wide


def attention(name: str, tensor: Tensor, shape: torch.Size, heads: tuple[int, int]) -> Tensor | None:
    """A weight of an attention, or None if the name is of none."""
    part = next((part for part in ("to_q", "to_k", "to_v", "to_out", "q_proj", "k_proj", "v_proj", "out_proj")
                 if f".{part}." in name), "")  # fmt: skip
    if not part:
        return None
    if part in ("to_out", "out_proj"):
        wide = repeated(tensor, 0, shape[0])
        return headed(wide, 1, shape[1], heads, read=True) if tensor.ndim > 1 else wide
    rows = queries(tensor, shape[0], heads) if part[0] == "q" or part == "to_q" else headed(tensor, 0, shape[0], heads)
    return repeated(rows, 1, shape[1], read=True) if tensor.ndim > 1 else rows


def wide_unet(demo: State) -> State:
    """The UNet's tensors."""
    from diffusers import UNet2DConditionModel

    shapes = {name: tensor.shape for name, tensor in UNet2DConditionModel(**UNET).state_dict().items()}
    found: State = {}
    for name, shape in shapes.items():
        tensor = demo[name].float()
        if name == "time_embedding.linear_1.weight":
            # Sines and cosines of every fifth frequency are the demo's.
            wide = tensor.new_zeros(tensor.shape[0], shape[1])
            wide[:, :: shape[1] // tensor.shape[1]] = tensor
            found[name] = padded(wide, 0, shape[0])
        elif name.startswith("time_embedding."):
            wide = padded(tensor, 0, shape[0])
            found[name] = padded(wide, 1, shape[1]) if tensor.ndim > 1 else wide
        elif ".time_emb_proj.weight" in name:
            found[name] = padded(repeated(tensor, 0, shape[0]), 1, shape[1])
        else:
            inside = attention(name, tensor, shape, UNET_HEADS)
            found[name] = fitted(tensor, shape) if inside is None else inside
    return found


def wide_vae(demo: State) -> State:
    """The VAE's tensors; residual blocks and shortcuts that the demo does not have pass on what they get."""
    from diffusers import AutoencoderKL

    shapes = {name: tensor.shape for name, tensor in AutoencoderKL(**VAE).state_dict().items()}
    return {name: _vae_tensor(name, demo, shape) for name, shape in shapes.items()}


def _vae_tensor(name: str, demo: State, shape: torch.Size) -> Tensor:
    if name not in demo and "conv_shortcut" in name:
        return torch.zeros(shape) if len(shape) == 1 else fitted(torch.eye(64)[:, :, None, None], shape)
    if name not in demo:
        return torch.ones(shape) if "norm" in name and name.endswith("weight") else torch.zeros(shape)
    tensor = demo[name].float()
    inside = attention(name, tensor, shape, VAE_HEADS)
    return fitted(tensor, shape) if inside is None else inside


def wide_text(demo: State) -> State:
    """The text encoder's tensors; layers behind the demo's add nothing."""
    from transformers import CLIPTextConfig, CLIPTextModel

    shapes = {name: tensor.shape for name, tensor in CLIPTextModel(CLIPTextConfig(**TEXT)).state_dict().items()}
    demo = {name.removeprefix("text_model."): tensor for name, tensor in demo.items()}
    found: State = {}
    for name, shape in shapes.items():
        short = name.removeprefix("text_model.")
        if short not in demo:
            found[name] = torch.ones(shape) if "norm" in name and name.endswith("weight") else torch.zeros(shape)
            continue
        tensor = demo[short].float()
        if short == "embeddings.token_embedding.weight":
            found[name] = _words(tensor, shape)
        elif short.endswith("embedding.weight"):
            found[name] = repeated(tensor, 1, shape[1])
        else:
            inside = attention(name, tensor, shape, TEXT_HEADS)
            found[name] = fitted(tensor, shape) if inside is None else inside
    return found


def _words(embedding: Tensor, shape: torch.Size) -> Tensor:
    """Rows of CLIP's vocabulary [49408, 768]: those of the demo's words, and of begin and end."""
    from transformers import CLIPTokenizer

    with tempfile.TemporaryDirectory() as folder:
        write_clip_tokenizer(Path(folder), read_clip_merges())
        theirs = CLIPTokenizer.from_pretrained(folder)
    ours = CLIPTokenizer.from_pretrained(DEMO / "tokenizer")
    wide = torch.zeros(shape)
    for word in caption_words():
        (_, *places, _), (_, row, _) = theirs(word).input_ids, ours(word).input_ids
        if len(places) == 1:
            wide[places[0]] = repeated(embedding[row], 0, shape[1])
    for place, special in ((theirs.bos_token_id, ours.bos_token_id), (theirs.eos_token_id, ours.eos_token_id)):
        wide[place] = repeated(embedding[special], 0, shape[1])
    return wide


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    state = with_prefix("model.diffusion_model.", ldm_unet(wide_unet(load_part(DEMO / "unet")), layers=1))
    state |= with_prefix("first_stage_model.", ldm_vae(wide_vae(load_part(DEMO / "vae"))))
    state |= with_prefix("cond_stage_model.transformer.", old_clip_names(wide_text(load_part(DEMO / "text_encoder"))))
    save({name: tensor.half().contiguous() for name, tensor in state.items() if tensor.is_floating_point()}, out)


if __name__ == "__main__":
    main()
