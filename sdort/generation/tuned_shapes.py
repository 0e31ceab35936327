"""The shapes that drawing images feeds to each component, told before it happens: ``sdort warm`` and ``sdort run``
have to name the same bundles.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sdort.console import detail, warn
from sdort.errors import SdortError
from sdort.generation.request import IMAGES_AT_ONCE, Request
from sdort.pipelines.folder import image_channels
from sdort.runtime.session import Array, Session, TensorSpec, static_size
from sdort.tuning.key import Shapes
from sdort.tuning.session_hooks import keep
from sdort.workload.cases import Case, make_feeds

if TYPE_CHECKING:
    from sdort.generation.pipeline import TextToImage

Inputs = Mapping[str, TensorSpec]


def drawing_cases(
    component: str, inputs: Inputs, images: int, size: tuple[int, int], *, guided: bool, at_once: int = IMAGES_AT_ONCE
) -> list[Case]:
    """What a component runs on while ``images`` are drawn.

    Args:
        size: height and width in pixels.
        guided: whether there is classifier-free guidance: a UNet then takes two samples an image.
    """
    static = next((static_size(spec.shape, 0) for spec in inputs.values() if len(spec.shape) > 1), None)
    if component.startswith("text_encoder"):
        # One prompt after the other.
        return [Case(component, static or 1, *size)]
    parts = {min(at_once, images - first) for first in range(0, images, at_once)}
    samples = 2 if component == "unet" and guided and "timestep_cond" not in inputs else 1
    batches = {static or samples * part for part in parts}
    return [Case(component, batch, *size) for batch in sorted(batches)]


def feed_shapes(feeds: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    """The dimensions of every input."""
    return {name: np.shape(value) for name, value in feeds.items()}


def model_inputs(path: Path, component: str) -> dict[str, TensorSpec]:
    """The inputs that a model declares, as its session would.

    Raises:
        BadModelError: the file is broken.
    """
    from sdort.inspection.description import describe
    from sdort.onnx_io.load import load_model

    values = describe(load_model(path, component), ()).inputs
    return {each.name: TensorSpec(each.name, np.dtype(each.dtype), tuple(each.shape or ())) for each in values}


def keep_drawn(drawer: TextToImage, request: Request) -> None:
    """Keep what was tuned while a request was drawn; a cache that cannot be written costs a warning."""
    size, guided = drawer.size(request), request.guidance_scale > 1
    for component, session in drawer.sessions.items():
        if component != "unet":  # the decoder's depend on the memory that was free
            for shapes in sorted(session.ran_on):
                keep_shapes(session, dict(shapes))
            continue
        for case in drawing_cases(
            component, session.inputs, request.num_images, size, guided=guided, at_once=request.images_at_once
        ):
            keep_case(session, case, drawer.folder.vae_factor)


def keep_case(session: Session, case: Case, factor: int) -> None:
    """Keep what was tuned on a case.

    Args:
        factor: pixels a latent.
    """
    feeds = make_feeds(case, session.inputs, factor, image_channels(session.path, case.component))
    keep_shapes(session, feed_shapes(feeds))


def keep_shapes(session: Session, shapes: Shapes) -> None:
    """Keep what was tuned on inputs of ``shapes``; nothing without ``--tuning``."""
    if not session.options.tuning or not session.provider.on_gpu:
        return
    try:
        place = keep(session, shapes)
    except SdortError as error:
        warn(f"what was tuned is lost: {error.message}")
    else:
        detail(f"kept what was tuned: {place}")
