"""The interface of everything that runs a component or a whole pipeline: ONNX Runtime and torch implement it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from sdort.generation.pictures.images import Generated
from sdort.generation.requests.request import Request
from sdort.graph.signature import Array
from sdort.providers.provider import Provider
from sdort.workload.cases import Case


class Runner(Protocol):
    """One case, ready to run again and again."""

    def __call__(self) -> object:
        """Run once and return when the device has finished."""

    def result(self) -> dict[str, Array] | list[Generated]:
        """Outputs (of a component, by name) or images (of the pipeline) of the last run, in host memory."""


class Engine(Protocol):
    """A pipeline in one runtime. Sessions are opened by the first case that needs them."""

    name: str
    settings: str
    """How it runs, where its name does not say it: ``channels last, mode reduce-overhead``."""
    path: Path
    provider: Provider

    def components(self) -> list[str]:
        """Component names, and ``pipeline`` if it generates images."""

    @property
    def factor(self) -> int:
        """Pixels a latent."""

    def default_size(self) -> tuple[int, int]:
        """Height and width in pixels that the model was made for."""

    def dtype(self, component: str) -> str:
        """The dtype of most weights, ``float32`` or ``float16``; ``bfloat16`` where they are rounded to that,
        ``int8`` or ``int4`` where linear layers have integers."""

    def model_hash(self) -> str:
        """A hash that differs between models."""

    def static_batch(self, component: str) -> int | None:
        """The one batch that a static component takes."""

    def import_libraries(self, components: Sequence[str]) -> None:
        """Import what running ``components`` needs, so that imports are neither timed nor counted as memory."""

    def prepare(self, case: Case, steps: int, scheduler: str | None) -> Runner:
        """Open what ``case`` needs and put its inputs on the device."""

    def close(self) -> None:
        """Free the sessions."""


@dataclass(frozen=True)
class ImageStages:
    """Milliseconds of the stages of generating the images of one call.

    Attributes:
        encode: the text encoders, on all prompts.
        denoise: all steps of the UNet, with the scheduler's arithmetic.
        decode: the decoder, with the conversion to pixels.
        samples: latents that the UNet takes at once: two for each image with classifier-free guidance.
    """

    encode: float
    denoise: float
    decode: float
    samples: int


@runtime_checkable
class StagedRunner(Protocol):
    """A :class:`Runner` of a pipeline that knows how long its stages took."""

    stages: list[ImageStages]
    """Those of every call so far."""


@runtime_checkable
class PreparedRunner(Protocol):
    """A :class:`Runner` that may repeat a step alone, whose prompt and timestep were prepared before."""

    def prepare(self) -> bool:
        """Do once more what runs before the steps; False where nothing does."""


def case_request(case: Case, steps: int, scheduler: str | None) -> Request:
    """The request for the images of a pipeline case; brackets are text in the prompt, as they are to diffusers."""
    return Request(
        case.prompt,
        steps=steps,
        height=case.height,
        width=case.width,
        seed=case.seed,
        num_images=case.batch,
        images_at_once=case.batch,
        scheduler=scheduler,
        prompt_weighting="none",
    )
