"""Tiny ControlNets and T2I-Adapters of the true architecture, for the tiny pipelines; all parameters are random.

Fresh ones end in convolutions of zeros, with which every test of their outputs would pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support import models, tiny_pipeline
from support.pipelines import locked

from sdort.exporter.command import export

_SHARED = ("block_out_channels", "layers_per_block", "down_block_types", "cross_attention_dim", "attention_head_dim")
CONTROLNET: dict[str, Any] = {
    **{key: tiny_pipeline.UNET[key] for key in (*_SHARED, "norm_num_groups") if key in tiny_pipeline.UNET},
    "conditioning_embedding_out_channels": (4, 8, 8),  # tiny pipelines have 4 pixels a latent
}
T2I_ADAPTER: dict[str, Any] = {
    "channels": list(tiny_pipeline.UNET["block_out_channels"]),
    "num_res_blocks": 1,
    "downscale_factor": 4,
}


def build_controlnet(folder: Path, seed: int = 0, **config: Any) -> Any:
    """A ControlNet of diffusers', saved to ``folder``."""
    import torch
    from diffusers import ControlNetModel

    net = ControlNetModel(**{**CONTROLNET, **config}).eval()
    models.randomize(net)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in net.controlnet_cond_embedding.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    net.save_pretrained(str(folder))
    return net


def build_t2i_adapter(folder: Path, **config: Any) -> Any:
    """A T2I-Adapter of diffusers', saved to ``folder``."""
    from diffusers import T2IAdapter

    adapter = T2IAdapter(**{**T2I_ADAPTER, **config}).eval()
    models.randomize(adapter)
    adapter.save_pretrained(str(folder))
    return adapter


def export_part(folder: Path, out: Path, traces: Path, **options: Any) -> Path:
    """Export a model with the traces that test processes share."""
    with locked(traces):
        export(folder, out, cache_dir=traces, **options)
    return out
