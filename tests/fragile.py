"""The tiny pipeline made fragile: in fp32 it draws what it drew, in fp16 it overflows at known places.

As Stable Diffusion 2.1's attention does, whose scores are far beyond 65504 before the softmax, and as the decoder of
Stable Diffusion XL's first autoencoder does, between a convolution and the normalization that follows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tiny_pipeline

from sdort.optimize import Report, Request, optimize

COMPONENTS = ("text_encoder", "unet", "vae_decoder")
LOUD = 5e4
"""A convolution is this much louder; what follows does not hear it."""
CONSTANT = 400.0
"""Of one element of all queries and all keys: its square, 160000, is in every score, where the softmax ignores it."""


def loud_decoder(vae: Any) -> None:
    """The last up block's first convolution is too loud for fp16, but a group normalization follows.

    So is the convolution of the latents, whose successor is as much quieter; fp16 would make zeros of its weights.
    """
    import torch

    resnet = vae.decoder.up_blocks[-1].resnets[0]
    with torch.no_grad():
        for parameter in (*resnet.conv1.parameters(), *vae.post_quant_conv.parameters()):
            parameter.mul_(LOUD)
        vae.decoder.conv_in.weight.div_(LOUD)


def loud_attention(unet: Any) -> None:
    """Every score of the first head of every self-attention is larger by 160000 over the root of the head's size."""
    import torch

    for name, block in unet.named_modules():
        if not name.endswith("transformer_blocks.0"):
            continue
        with torch.no_grad():
            # One channel of the normalized input is 1, so the element is exact in every precision.
            block.norm1.weight[0], block.norm1.bias[0] = 0.0, 1.0
            for projection in (block.attn1.to_q, block.attn1.to_k):
                projection.weight[0] = 0.0
                projection.weight[0, 0] = CONSTANT


@dataclass
class Fragile:
    """The fragile pipeline as ONNX, and what was made of it, each once."""

    onnx: Path
    pipeline: Any
    _made: dict[tuple[str, bool], tuple[Path, Report]] = field(default_factory=dict)

    def optimized(self, provider: str, *, auto: bool) -> tuple[Path, Report]:
        """The folder and the report of ``sdort optimize --fp16``."""
        if (provider, auto) not in self._made:
            out = self.onnx.with_name(f"{provider} {'auto' if auto else 'plain'}")
            request = Request(self.onnx, out, provider=provider, fp16=True, fp16_auto=auto, allow_misses=True)
            self._made[provider, auto] = out, optimize(request)
        return self._made[provider, auto]


def build(folder: Path) -> Fragile:
    """Build and export it in ``folder``."""
    pipeline = tiny_pipeline.build_diffusers(folder / "diffusers")
    loud_decoder(pipeline.vae)
    loud_attention(pipeline.unet)
    tiny_pipeline.export_onnx(pipeline, folder / "onnx")
    return Fragile(folder / "onnx", pipeline)
