"""Recording of components' inputs while images are generated: for verification, and for fp16's ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from sdort.generation.denoising.device_loop import Loop
from sdort.generation.latents.encode import pixels_of_images
from sdort.generation.pictures.images import Generated
from sdort.generation.pipeline import TextToImage
from sdort.generation.requests.request import Request
from sdort.graph.signature import Array, Feeds
from sdort.runtime.session import Session
from sdort.runtime.step.bound_unet import Batch, BoundBuffers
from sdort.runtime.step.step_conditions import Lengths


class Recorder(Session):
    """A session that keeps what it is fed."""

    def __init__(self, session: Session) -> None:
        self.__dict__.update(session.__dict__)
        self.fed: list[dict[str, Array]] = []

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        self.fed.append({name: np.array(value) for name, value in feeds.items()})
        return super().run(feeds)


class RecordedBuffers(BoundBuffers):
    """Buffers whose session, a :class:`Recorder`, keeps what is in them at every run."""

    def run(self, step: int, whole: bool = True, *, wait: bool = True) -> None:
        assert isinstance(self.session, Recorder)
        if self.session.stream:
            self.session.stream.wait()
        self.session.fed += self.feeds()
        super().run(step, whole, wait=wait)


class RecordedLoop(Loop):
    """Denoises as ever, and keeps what the denoiser is fed."""

    def _bind(self, batch: Batch, shapes: Mapping[str, tuple[int, ...]], lengths: Lengths) -> BoundBuffers:
        return RecordedBuffers(self.unet, batch, shapes, self._graphs + 1, lengths=lengths)


class Recording:
    """A pipeline whose sessions keep what they are fed.

    Args:
        pipeline: is changed for good: it copies the denoiser's inputs to the host from now on.
    """

    def __init__(self, pipeline: TextToImage) -> None:
        self.pipeline = pipeline
        self._recorders = {name: Recorder(session) for name, session in pipeline.sessions.items()}
        pipeline.sessions = dict(self._recorders)
        pipeline.loop = RecordedLoop(pipeline.sessions[pipeline.denoiser])

    def generate(self, request: Request, on_step: Callable[[float], None] = lambda _: None) -> Iterator[Generated]:
        """Generate the images of a request; what was recorded before is forgotten."""
        for recorder in self._recorders.values():
            recorder.fed.clear()
        return self.pipeline.generate(request, on_step)

    @property
    def fed(self) -> dict[str, list[Feeds]]:
        """The feeds of each component since the last request began, in their order."""
        return {name: list(recorder.fed) for name, recorder in self._recorders.items()}


def encoder_input(image: Generated) -> Array:
    """An image as a VAE encoder takes it: float32 [1, 3, height, width] in [-1, 1]."""
    return pixels_of_images([image.pixels])
