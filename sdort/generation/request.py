"""Requests for images, and the refusals that need no model run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sdort.errors import BadModelError, UsageError
from sdort.errors.number_ranges import (
    CLIP_SKIP,
    ETA,
    GUIDANCE,
    HEIGHT,
    IMAGES_AT_ONCE,
    NUM_IMAGES,
    SEED,
    STEPS,
    WIDTH,
    check_fields,
)
from sdort.errors.plain_text import cut
from sdort.generation.prompt_syntax import WEIGHTINGS, check_weighting, read_prompt
from sdort.generation.schedulers import load_scheduler, set_steps
from sdort.model.signature import static_size
from sdort.pipelines.adapters.adapter_choice import AdapterChoice
from sdort.pipelines.families import SIZE_NUMBERS, Family
from sdort.pipelines.folder import PipelineFolder
from sdort.pipelines.scheduler_names import SPACINGS
from sdort.runtime.session import Session
from sdort.workload.cases import IMAGES_AT_ONCE as USUAL_AT_ONCE

MAX_PROMPT = 1 << 17
"""Characters of a prompt, as many as Linux takes for one argument; every PNG keeps all of it."""


@dataclass(frozen=True)
class Request:
    """A request for images of one prompt. Image ``i`` of several has the seed ``seed + i``, so that each can be made
    again alone.

    Raises:
        UsageError: a value that no pipeline can do.
    """

    prompt: str
    negative_prompt: str = ""
    steps: int = 50
    guidance_scale: float = 7.5
    height: int | None = None
    width: int | None = None
    seed: int = 0
    num_images: int = 1
    scheduler: str | None = None
    timestep_spacing: str | None = None
    """Of the scheduler; None as its config says."""
    eta: float | None = None
    """The share of new noise in a step of DDIM or TCD; None for the scheduler's default."""
    images_at_once: int = USUAL_AT_ONCE
    """Images that share a UNet call: more fill a small card's memory and gain little."""
    vae_tiling: bool | None = None
    """Decode in tiles; None where memory asks for it."""
    vae_slicing: bool | None = None
    """Decode one image at a time; None where memory asks for it."""
    prompt_2: str = ""
    """For SDXL's second text encoder; empty for ``prompt``."""
    negative_prompt_2: str = ""
    """For SDXL's second text encoder; empty for ``negative_prompt``."""
    clip_skip: int = 1
    """The text encoder's layer that conditions, counted from the last one, which is 1."""
    prompt_weighting: str = WEIGHTINGS[0]
    """The reading of weights in prompts: one of :data:`sdort.generation.prompt_syntax.WEIGHTINGS`."""
    lora: tuple[AdapterChoice, ...] = ()
    """Adapters (LoRA and its kin) that change the UNet and the text encoders."""

    def __post_init__(self) -> None:
        check_fields(self, STEPS, GUIDANCE, HEIGHT, WIDTH, SEED, NUM_IMAGES, IMAGES_AT_ONCE, ETA, CLIP_SKIP)
        SEED.check(self.seed + self.num_images - 1)
        if self.timestep_spacing not in (None, *SPACINGS):
            known = f"There are: {', '.join(SPACINGS)}."
            raise UsageError(f"there is no timestep spacing {cut(repr(self.timestep_spacing))}", hint=known)
        check_weighting(self.prompt_weighting)
        for name in ("prompt", "negative_prompt", "prompt_2", "negative_prompt_2"):
            check_text(name, getattr(self, name))
            read_prompt(getattr(self, name), self.prompt_weighting)

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts of the prompts that are not empty, each once."""
        texts = (self.prompt, self.negative_prompt, self.prompt_2, self.negative_prompt_2)
        return tuple(dict.fromkeys(filter(None, texts)))


def scheduler_of(folder: PipelineFolder, request: Request) -> Any:
    """Diffusers' scheduler of a request, its timesteps set.

    Raises:
        BadModelError: the folder has no usable scheduler config.
        UsageError: no such scheduler, or it cannot do what is asked.
    """
    scheduler = load_scheduler(
        folder.path / "scheduler", request.scheduler, timestep_spacing=request.timestep_spacing, eta=request.eta
    )
    set_steps(scheduler, request.steps)
    return scheduler


def check_text(name: str, text: object) -> None:
    """Refuse what is no prompt.

    Raises:
        UsageError: no text, longer than :data:`MAX_PROMPT`, or with characters that no text has.
    """
    option = f"--{name.replace('_', '-')}"
    if not isinstance(text, str):
        raise UsageError(f"{option} is a text, not {type(text).__name__}")
    if len(text) > MAX_PROMPT:
        raise UsageError(
            f"{option} has {len(text):,} characters, at most {MAX_PROMPT:,} are taken",
            hint="A text encoder reads about 75 words at once.",
        )
    strange = re.search("[\0\ud800-\udfff]", text)
    if strange:
        raise UsageError(
            f"{option} is no text: its character {strange.start() + 1} is {strange[0]!a}",
            hint="Give it in UTF-8, without NUL.",
        )


PROMPTS = ("negative_prompt", "prompt_2", "negative_prompt_2")
"""Texts of a request that are given once for all prompts, or once for each."""


def each_prompt(
    prompts: str | Sequence[str], request: Request, texts: Mapping[str, str | Sequence[str]] | None = None
) -> list[Request]:
    """A request like ``request`` for each prompt.

    Args:
        prompts: one, or several.
        texts: by names of :data:`PROMPTS`: one for all, or one for each prompt.

    Raises:
        UsageError: no prompt, one that is refused, or another number of negative prompts.
    """
    listed = [prompts] if isinstance(prompts, str) else list(prompts)
    if not listed:
        raise UsageError("there is no prompt", hint="Give --prompt TEXT, --prompts FILE or --from-image FILE.png.")
    columns = {name: _for_each(name, value, len(listed)) for name, value in (texts or {}).items()}
    rows: list[dict[str, Any]] = [
        {"prompt": prompt, **{name: column[index] for name, column in columns.items()}}
        for index, prompt in enumerate(listed)
    ]
    return [replace(request, **row) for row in rows]


def _for_each(name: str, texts: str | Sequence[str], count: int) -> list[str]:
    listed = [texts] if isinstance(texts, str) else list(texts) or [""]
    if len(listed) not in (1, count):
        option = f"--{name.replace('_', '-')}"
        raise UsageError(
            f"--prompt is given {count} times, {option} {len(listed)} times",
            hint=f"Give {option} once for all prompts, or once for each, in their order.",
        )
    return listed * count if len(listed) == 1 else listed


def check_prompts(folder: PipelineFolder, request: Request) -> None:
    """Refuse prompts for a text encoder, and a clip skip, that the pipeline does not have.

    Raises:
        UsageError: ``prompt_2`` or ``negative_prompt_2`` of a pipeline with one text encoder, or a clip skip that its
            text encoders cannot do.
    """
    for encoder in folder.family.encoders if request.clip_skip > 1 else ():
        names = list(folder.file(encoder.component).signature.outputs)
        encoder.outputs(names, folder.config(encoder.component), request.clip_skip)
    given = next((name for name in ("prompt_2", "negative_prompt_2") if getattr(request, name)), None)
    if given and len(folder.family.encoders) < 2:
        raise UsageError(
            f"--{given.replace('_', '-')} is for SDXL's second text encoder, and this pipeline has one",
            hint="Leave it out.",
        )


def image_size(folder: PipelineFolder, request: Request) -> tuple[int, int]:
    """Height and width in pixels of the images of ``request``: as asked, or as the model was made for.

    Raises:
        UsageError: not a multiple of the autoencoder's factor, or another size than a static model has.
        BadModelError: the UNet takes no latents.
    """
    height, width = folder.default_size
    unet = folder.file("unet").signature.inputs
    if "sample" not in unet:
        raise BadModelError(f"it has no input 'sample', but {', '.join(map(repr, unet)) or 'none'}", component="unet")
    latent = unet["sample"].shape
    return (
        check_side("height", request.height, height, static_size(latent, 2), folder.vae_factor),
        check_side("width", request.width, width, static_size(latent, 3), folder.vae_factor),
    )


def check_text_to_image(sessions: Mapping[str, Session], family: Family, latent_channels: int) -> None:
    """Refuse pipelines whose UNet needs more than noise, a timestep, what its family tells it, and the guidance scale.

    Raises:
        BadModelError: which input it needs and what the model is for.
    """
    unet = sessions["unet"]
    _check_inputs(unet, family)
    channels = static_size(unet.inputs["sample"].shape, 1)
    if channels in (None, latent_channels):
        return
    kind = "an inpainting model, which wants a mask and a masked image" if channels == 9 else "made for another task"
    raise BadModelError(
        f"the UNet takes {channels} channels, not the {latent_channels} of latent noise; it is {kind}",
        component="unet",
        hint="sdort run generates from text alone: take a text-to-image checkpoint.",
    )


def _check_inputs(unet: Session, family: Family) -> None:
    needed = family.inputs
    extra, missing = sorted(set(unet.inputs) - needed - {"timestep_cond"}), sorted(needed - set(unet.inputs))
    if extra or missing:
        what = f"needs {', '.join(extra)}" if extra else f"has no input {', '.join(missing)}"
        raise BadModelError(
            f"the UNet {what}: it is not one of {family.name}",
            component="unet",
            hint="Other families can be optimized, and benched by component, but not run yet.",
        )
    numbers = static_size(unet.inputs["time_ids"].shape, 1) if family.size_conditioning else None
    if numbers not in (None, SIZE_NUMBERS):
        raise BadModelError(
            f"the UNet takes {numbers} numbers as time_ids, not {SIZE_NUMBERS}: it is SDXL's refiner, which works on "
            "an image",
            component="unet",
            hint="sdort run generates from text alone: take SDXL's base model.",
        )


def check_side(name: str, asked: int | None, default: int, fixed: int | None, factor: int) -> int:
    """The height or width in pixels of the images.

    Args:
        name: ``height`` or ``width``.
        asked: what the user wants, None for the model's own.
        default: what the model was trained for.
        fixed: the static size of the latent, None when it is dynamic.
        factor: pixels a latent.

    Raises:
        UsageError: not a multiple of ``factor``, or another size than a static model has.
    """
    size = (fixed * factor if fixed else default) if asked is None else asked
    if size <= 0 or size % factor:
        below = max(size // factor, 1) * factor
        raise UsageError(f"--{name} {size} is not a multiple of {factor}", hint=f"Take {below} or {below + factor}.")
    if fixed and size != fixed * factor:
        raise UsageError(
            f"this pipeline was exported for the {name} {fixed * factor}, not {size}",
            hint="Leave the option out, or export again without --static.",
        )
    return size
