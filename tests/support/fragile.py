"""The tiny pipeline made fragile: in fp32 it generates the same images, in fp16 it overflows at known places.

As Stable Diffusion 2.1's attention does, whose scores are far beyond 65504 before the softmax, and as the decoder of
Stable Diffusion XL's first autoencoder does, between a convolution and the normalization that follows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import tiny_pipeline

from sdort.optimizer.command import optimize
from sdort.optimizer.report import OptimizeReport

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
    _made: dict[tuple[str, bool], tuple[Path, OptimizeReport]] = field(default_factory=dict)

    def optimized(self, provider: str, *, auto: bool) -> tuple[Path, OptimizeReport]:
        """The folder and the report of ``sdort optimize --fp16``."""
        if (provider, auto) not in self._made:
            out = self.onnx.with_name(f"{provider} {'auto' if auto else 'plain'}")
            report = optimize(self.onnx, out, provider=provider, fp16="auto" if auto else "plain", allow_misses=True)
            self._made[provider, auto] = out, report
        return self._made[provider, auto]


def build(folder: Path) -> Fragile:
    """Build and export it in ``folder``."""
    pipeline = tiny_pipeline.build_diffusers(folder / "diffusers")
    loud_decoder(pipeline.vae)
    loud_attention(pipeline.unet)
    tiny_pipeline.export_onnx(pipeline, folder / "onnx")
    return Fragile(folder / "onnx", pipeline)


def loud_unet(unet: Any) -> None:
    """A convolution of the last up block is too loud for fp16, but a group normalization follows."""
    import torch

    with torch.no_grad():
        for parameter in unet.up_blocks[-1].resnets[0].conv1.parameters():
            parameter.mul_(LOUD)


def unfuse_attention(path: Path) -> int:
    """Spell out the attentions of an fp16 model as old exporters did, and count them.

    Scores are moved twice between the product and the softmax, which ONNX Runtime does in fp16 on the CPU too.
    """
    import onnx
    from onnx import helper, inliner, parser

    proto = onnx.load(path, load_external_data=False)
    for node in proto.graph.node:
        if node.op_type != "MultiHeadAttention":
            continue
        (heads,) = (attribute.i for attribute in node.attribute if attribute.name == "num_heads")
        number = len(proto.functions)
        proto.functions.append(
            parser.parse_function(f"""<domain: "old", opset_import: ["": 18]> Attention{number} (Q, K, V) => (Y) {{
                apart = Constant <value_ints = [0, 0, {heads}, -1]> ()
                merged = Constant <value_ints = [0, 0, -1]> ()
                q4 = Reshape (Q, apart)
                k4 = Reshape (K, apart)
                v4 = Reshape (V, apart)
                q = Transpose <perm = [0, 2, 1, 3]> (q4)
                k = Transpose <perm = [0, 2, 3, 1]> (k4)
                v = Transpose <perm = [0, 2, 1, 3]> (v4)
                size = Shape <start = -1> (q4)
                size_float = Cast <to = 1> (size)
                root = Sqrt (size_float)
                factor = Reciprocal (root)
                half = CastLike (factor, Q)
                products = MatMul (q, k)
                scaled = Mul (products, half)
                keys_first = Transpose <perm = [3, 0, 1, 2]> (scaled)
                flat = Constant <value_ints = [0, -1]> ()
                rows = Reshape (keys_first, flat)
                shares = Softmax <axis = 0> (rows)
                shape = Shape (keys_first)
                whole = Reshape (shares, shape)
                back = Transpose <perm = [1, 2, 3, 0]> (whole)
                sums = MatMul (back, v)
                y = Transpose <perm = [0, 2, 1, 3]> (sums)
                Y = Reshape (y, merged)
            }}""")
        )
        node.domain, node.op_type = "old", f"Attention{number}"
        del node.attribute[:]
    count = len(proto.functions)
    proto.opset_import.append(helper.make_opsetid("old", 1))
    onnx.save(inliner.inline_local_functions(proto), path)
    return count
