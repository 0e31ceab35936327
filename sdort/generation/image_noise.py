"""Random numbers of a batch of images: a generator for each, so that an image is the same alone and among others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ImageSeed:
    """The seed of one image, and that of the variation of it, if it is one."""

    number: int
    variation: int | None = None


class NoiseSource:
    """Noise for a batch of images, in fp32 on the CPU: its numbers are the same everywhere, and diffusers' own.

    Args:
        seeds: of the images.
        strength: how far variations go from their seed's image, from 0 to 1.
    """

    def __init__(self, seeds: Sequence[ImageSeed], strength: float = 0.0) -> None:
        import torch

        self.seeds = list(seeds)
        self.generators = [torch.Generator().manual_seed(seed.number) for seed in seeds]
        self._variations = [
            torch.Generator().manual_seed(seed.variation) for seed in seeds if seed.variation is not None
        ]
        self._strength = strength

    def state(self) -> list[Any]:
        """The state to come back to with :meth:`restore`."""
        return [generator.get_state() for generator in (*self.generators, *self._variations)]

    def restore(self, state: Sequence[Any]) -> None:
        """Draw the same again as after :meth:`state`."""
        for generator, before in zip((*self.generators, *self._variations), state, strict=True):
            generator.set_state(before)

    def draw(self, shape: Sequence[int]) -> Any:
        """Noise [images, *shape], a tensor."""
        return _drawn(self.generators, shape)

    def first(self, shape: Sequence[int]) -> Any:
        """The noise that the latents begin with, [images, channels, height, width]: of variations between two."""
        noise = self.draw(shape)
        if not self._variations:
            return noise
        return slerp(self._strength, noise, _drawn(self._variations, shape))


def _drawn(generators: list[Any], shape: Sequence[int]) -> Any:
    import torch
    from diffusers.utils.torch_utils import randn_tensor

    return randn_tensor((len(generators), *shape), generator=generators, dtype=torch.float32)


def slerp(amount: float, low: Any, high: Any) -> Any:
    """Spherical interpolation from ``low`` at 0 to ``high`` at 1, tensors [images, channels, height, width].

    Of each channel's columns by themselves, as AUTOMATIC1111's variations have it: the same two seeds give the same
    noise there. https://en.wikipedia.org/wiki/Slerp
    """
    import torch

    cosines = torch.nn.functional.cosine_similarity(low, high, dim=-2).unsqueeze(-2)
    # Of each image: where its columns are nearly parallel, sines are nearly zero.
    parallel = cosines.mean(dim=(1, 2, 3), keepdim=True) > 0.9995
    angles = torch.acos(cosines.clamp(-1, 1))
    sines = torch.where(parallel, torch.ones_like(angles), torch.sin(angles))
    curved = (torch.sin((1 - amount) * angles) * low + torch.sin(amount * angles) * high) / sines
    return torch.where(parallel, (1 - amount) * low + amount * high, curved)
