"""Encoding of pixels to latents: whole, or tile by tile as memory allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sdort.console import warn
from sdort.errors import MemoryShortageError
from sdort.generation.latents.decode import Plan, Planner, in_tiles
from sdort.generation.latents.graph_memory import GraphMemory
from sdort.generation.schedules.image_noise import NoiseSource
from sdort.graph.signature import Array, static_size
from sdort.runtime.session import Session


@dataclass(frozen=True)
class Posterior:
    """The normal distribution of latents that an autoencoder gives for images, or the latents that a tiny one gives.

    https://arxiv.org/abs/1312.6114; the bounds of the logarithm are diffusers' ``DiagonalGaussianDistribution``'s.
    """

    parameters: Array
    """float32 [images, 2 * channels, height, width]: the mean and the logarithm of the variance; or [images, channels,
    height, width]: the latents themselves."""
    channels: int
    """Channels of the latents."""

    @property
    def latent(self) -> tuple[int, ...]:
        """Channels, height and width of one image's latents."""
        return (self.channels, *self.parameters.shape[2:])

    def sample(self, source: NoiseSource) -> Array:
        """A draw for each image of a batch, float32 [images, channels, height, width]; one image serves all."""
        if self.parameters.shape[1] == self.channels:
            return np.broadcast_to(self.parameters, (len(source.seeds), *self.latent))
        mean, logarithm = np.split(self.parameters, 2, axis=1)
        return np.asarray(mean + np.exp(0.5 * logarithm.clip(-30.0, 20.0)) * source.draw(self.latent))


class Encoder(Planner):
    """The autoencoder's encoder.

    Args:
        config: the autoencoder's.
        factor: pixels a latent along each side.
        channels: of the latents.
    """

    verb = "encoding"

    def __init__(
        self, session: Session, config: dict[str, Any], factor: int, graph_memory: GraphMemory, channels: int
    ) -> None:
        super().__init__(session.outputs[0], config, factor, graph_memory)
        self.session = session
        self.channels = channels
        self._name = next(iter(session.inputs))

    def encode(self, pixels: Array, plan: Plan) -> Posterior:
        """The latents' distribution for images float32 [images, 3, height, width] in [-1, 1].

        Where memory runs out it goes on in smaller tiles, and says so.

        Raises:
            MemoryShortageError: even the smallest tile is too large.
        """
        encoded = [self._one(pixels[index : index + 1], plan) for index in range(len(pixels))]
        return Posterior(np.concatenate(encoded), self.channels)

    def _one(self, pixels: Array, plan: Plan) -> Array:
        size = (1, pixels.shape[2] // self.factor, pixels.shape[3] // self.factor)
        while True:
            try:
                return in_tiles(partial(map, self._run), pixels, plan.tile, (self.factor, 1))
            except MemoryShortageError:
                smaller = self.smaller(size, plan)
                if smaller is None:
                    raise
                plan = smaller
                warn(f"the encoder ran out of memory; it goes on {plan}")

    def _run(self, pixels: Array) -> Array:
        # A static model has a batch of its own, which the one image fills.
        fixed = static_size(self.session.inputs[self._name].shape, 0) or 1
        batch = np.repeat(pixels, fixed, axis=0)
        return np.asarray(self.session.run({self._name: batch})[self.session.outputs[0].name][:1], np.float32)


def pixels_of_images(images: Sequence[Array]) -> Array:
    """Images uint8 [height, width, 3] as the encoder takes them: float32 [images, 3, height, width] in [-1, 1]."""
    pixels = np.stack(images).astype(np.float32).transpose(0, 3, 1, 2)
    return np.asarray(pixels / np.float32(127.5) - np.float32(1))
