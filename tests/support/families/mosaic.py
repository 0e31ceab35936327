"""A made-up family: what the product knows of it is in this file alone.

Its denoiser is a ``tiler`` of a class of its own with inputs of other names, conditioned by the states of one text
encoder and the pooled embedding of another, on latents of 16 channels.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from sdort.families.family import LAST, Config, Denoiser, Encoder, Family, GraphOptions, Latents, Roles
from sdort.families.graph_tensor import GraphSignature, GraphTensor, size_of
from sdort.families.scheduler_configs import EULER

ROLES = Roles(sample="hidden_states", timestep="noise_level", context="words", pooled="vector")
CONFIG = {"in_channels": 16, "width": 32, "words": 48, "vector": 24, "blocks": 2}


def signature(config: Config, options: GraphOptions) -> GraphSignature:
    """The tiler's inputs and outputs."""
    latent = ("batch_size", size_of(config, "in_channels"), "height", "width")
    return (
        GraphTensor("hidden_states", "float32", latent),
        GraphTensor("noise_level", "float32", ()),
        GraphTensor("words", "float32", ("batch_size", "sequence_length", size_of(config, "words"))),
        GraphTensor("vector", "float32", ("batch_size", size_of(config, "vector"))),
    ), (GraphTensor("out_hidden_states", "float32", latent),)


def counts(config: Config) -> Counter[str]:
    """The tiler's operators: a convolution at each end, and what its blocks have."""
    blocks = size_of(config, "blocks")
    return Counter(conv=2 + blocks, group_norm=2 * blocks, group_norm_silu=blocks, attention_cross=blocks)


FAMILY = Family(
    name="Mosaic",
    title="Mosaic",
    side=64,
    denoiser=Denoiser(
        component="tiler",
        title="tiler",
        class_name="TilerModel",
        library=__name__,
        roles=ROLES,
        signature=signature,
        counts=counts,
        output="out_hidden_states",
        channels=("in_channels", "in_channels"),
        arguments={"noise_level": "time"},
        adapter_prefixes=("lora_tiler_", "tiler_"),
    ),
    encoders=(
        Encoder("text_encoder", {"words": LAST}),
        Encoder("text_encoder_2", {"vector": "text_embeds"}, class_name="CLIPTextModelWithProjection"),
    ),
    latents=Latents(
        scaling_factor=0.36,
        shift=0.12,
        channels=16,
        pixels=2,
        preview_factors=tuple((0.1 * number, 0.2, -0.1 * number) for number in range(16)),
    ),
    context_width=48,
    pipelines={None: "MosaicPipeline"},
    scheduler=EULER,
    vae={"scaling_factor": 0.36},
    holds=lambda shapes: "tiles.weight" in shapes,
)


def __getattr__(name: str) -> Any:
    """The tiler's class, which takes torch."""
    if name != "TilerModel":
        raise AttributeError(name)
    import torch
    from diffusers import ConfigMixin, ModelMixin
    from diffusers.configuration_utils import register_to_config

    class Block(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, width: int, words: int) -> None:
            super().__init__()
            self.norm = torch.nn.GroupNorm(8, width)
            self.conv = torch.nn.Conv2d(width, width, 3, padding=1)
            self.query_norm = torch.nn.GroupNorm(8, width)
            self.to_q = torch.nn.Linear(width, width, bias=False)
            self.to_k = torch.nn.Linear(words, width, bias=False)
            self.to_v = torch.nn.Linear(words, width, bias=False)
            self.to_out = torch.nn.Linear(width, width)

        def forward(self, x: Any, shift: Any, words: Any) -> Any:
            x = x + self.conv(torch.nn.functional.silu(self.norm(x + shift[:, :, None, None])))
            flat = self.query_norm(x).flatten(2).transpose(1, 2)
            heads = [
                each.unflatten(-1, (4, -1)).transpose(1, 2)
                for each in (self.to_q(flat), self.to_k(words), self.to_v(words))
            ]
            seen = torch.nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
            return x + self.to_out(seen).transpose(1, 2).unflatten(2, x.shape[2:])

    class TilerModel(ModelMixin, ConfigMixin):  # type: ignore[misc]
        @register_to_config  # type: ignore[untyped-decorator]
        def __init__(
            self, in_channels: int = 16, width: int = 32, words: int = 48, vector: int = 24, blocks: int = 2
        ) -> None:
            super().__init__()
            self.tiles = torch.nn.Conv2d(in_channels, width, 3, padding=1)
            self.clock = torch.nn.Linear(16, width)
            self.pooled = torch.nn.Linear(vector, width)
            self.layers = torch.nn.ModuleList([Block(width, words) for _ in range(blocks)])
            self.grout = torch.nn.Conv2d(width, in_channels, 3, padding=1)

        def forward(self, hidden_states: Any, time: Any, words: Any, vector: Any, return_dict: bool = True) -> Any:
            times = time.reshape(-1).expand(hidden_states.shape[0])
            angles = times[:, None].float() * torch.exp(-torch.arange(8, dtype=torch.float32))[None]
            clock = torch.cat([angles.sin(), angles.cos()], -1)
            shift = self.clock(clock.to(vector.dtype)) + self.pooled(vector)
            x = self.tiles(hidden_states)
            for block in self.layers:
                x = block(x, shift, words)
            return (self.grout(x),)

    TilerModel.__module__ = __name__
    globals()[name] = TilerModel
    return TilerModel
