"""The levels of an autoencoder, by its config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Of every family's AutoencoderKL; old conversion scripts write no config beside the ONNX files.
_VAE_CHANNELS = [128, 256, 512, 512]


def decoder_widths(vae: Mapping[str, Any]) -> list[int]:
    """The channels of an autoencoder's levels by its config; a tiny one's may name them by half alone."""
    return list(vae.get("block_out_channels") or vae.get("decoder_block_out_channels") or _VAE_CHANNELS)


def vae_factor(vae: Mapping[str, Any]) -> int:
    """Pixels a latent along each side, by an autoencoder's config: each level but the first halves an image."""
    return 1 << (len(decoder_widths(vae)) - 1)
