"""Requests for images, and the refusals that need no model run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sdort.adapters.adapter_choice import AdapterChoice
from sdort.errors import BadModelError, UsageError
from sdort.errors.plain_text import cut
from sdort.families.component_names import ENCODER
from sdort.families.family import Family
from sdort.generation.pictures.image_sizes import size_from
from sdort.generation.pictures.input_image import InputImage
from sdort.generation.pictures.safety import check_safety
from sdort.generation.prompts.prompt_schedule import check_prompt, read_parts
from sdort.generation.prompts.prompt_syntax import WEIGHTINGS, check_weighting, heavy_text
from sdort.generation.requests.control_choice import Control
from sdort.generation.requests.ip_adapter_choice import IpAdapterImage
from sdort.generation.requests.typed_options import DrawnOptions
from sdort.generation.schedules.image_noise import ImageSeed
from sdort.generation.schedules.schedulers import load_sampler
from sdort.graph.signature import HasInputs, static_size
from sdort.options.declared_options import declared, ranges_of
from sdort.options.number_ranges import SEED, check_fields, flag_of
from sdort.pipelines.conditioning import encoder_outputs
from sdort.pipelines.folder import PipelineFolder
from sdort.runtime.step.deep_cut import DEPTH
from sdort.samplers.flow_levels import tokens_of
from sdort.samplers.sampler import Sampler
from sdort.samplers.scheduler_names import SPACINGS
from sdort.workload.steering_inputs import all_residuals, image_inputs

MAX_PROMPT = 1 << 17
"""Characters of a prompt, as many as Linux takes for one argument; every PNG keeps all of it."""


EXACT_STEPS = 4
"""Steps that patches compute whole where nobody says how many: DistriFusion's own choice."""


@dataclass(frozen=True)
class Request(DrawnOptions):
    """A request for images of one prompt: the options of a generation with the files read that they name. Image ``i``
    of several has the seed ``seed + i``, so that each can be made again alone.

    Raises:
        UsageError: a value that no pipeline can do.
    """

    prompt: str
    negative_prompt: str = ""
    prompt_2: str = ""
    """For SDXL's second text encoder; empty for ``prompt``."""
    negative_prompt_2: str = ""
    """For SDXL's second text encoder; empty for ``negative_prompt``."""
    templates: tuple[tuple[str, str], ...] = ()
    """Names of prompts, and the texts with ``{a|b}`` that the seed drew them from."""
    steps: int = 50
    guidance_scale: float = 7.5
    seed: int = 0
    lora: tuple[AdapterChoice, ...] = ()
    control: tuple[Control, ...] = ()  # type: ignore[assignment]
    ip_adapter_image: tuple[IpAdapterImage, ...] = ()  # type: ignore[assignment]
    init_image: InputImage | None = None  # type: ignore[assignment]
    mask: InputImage | None = None  # type: ignore[assignment]
    hires_upscaler: Path | None = None
    upscale: Path | None = None
    refiner: Path | None = None
    distilled: bool = False
    """Of :class:`sdort.families.family.Denoiser`, of the model that draws it."""
    guidance_base: float = 0.0
    """As :attr:`distilled`."""

    def __post_init__(self) -> None:
        limits = ranges_of(DrawnOptions)
        check_fields(self, *limits.values())
        SEED.check(self.seed + self.num_images - 1)
        limits["variation_seed"].check((self.variation_seed or 0) + self.num_images - 1)
        check_tasks(self)
        if self.timestep_spacing not in (None, *SPACINGS):
            known = f"There are: {', '.join(SPACINGS)}."
            raise UsageError(f"there is no timestep spacing {cut(repr(self.timestep_spacing))}", hint=known)
        check_weighting(self.prompt_weighting)
        check_safety(self.safety)
        if self.guess_mode and not self.control:
            raise UsageError("--guess-mode is for --control", hint="Give a ControlNet and its image, or leave it out.")
        for name in ("prompt", "negative_prompt", "prompt_2", "negative_prompt_2"):
            check_text(name, getattr(self, name))
            check_prompt(getattr(self, name), self.prompt_weighting, self.steps, divided="negative" not in name)
        if len(read_parts(self.prompt_2, self.prompt_weighting)) > 1:
            raise UsageError(
                "--prompt-2 has parts with AND between them: AND divides --prompt, whose parts all get --prompt-2",
                hint="Write and in small letters.",
            )

    @property
    def scheduler_options(self) -> dict[str, Any]:
        """All that it says of its scheduler beside the steps: by these a schedule is known again."""
        return {name: getattr(self, name) for name in OF_SCHEDULE if name != "steps"}

    @property
    def whole_every(self) -> int:
        """After how many calls of the UNet all of it runs again: 1 where nothing else is asked for."""
        return self.deep_cache or 1

    @property
    def deep_cut(self) -> int:
        """The depth at which the UNet is cut for :attr:`deep_cache`; 0 where it stays whole."""
        return 0 if self.whole_every == 1 else self.deep_cache_depth or DEPTH

    @property
    def exact_calls(self) -> int | None:
        """How many of the UNet's first calls compute all of it, with :attr:`patches`; None without."""
        return None if self.patches is None else self.exact_steps or EXACT_STEPS

    @property
    def parts(self) -> list[tuple[str, float]]:
        """The parts of the prompt, which ``AND`` divides, and their weights."""
        return read_parts(self.prompt, self.prompt_weighting)

    def guidance(self, embedded: bool = False) -> list[float]:
        """The weights of an image's samples in the UNet's output, which sum up to one: of the negative prompt, then of
        each part of the prompt; of the prompt alone without guidance, which is at a scale of 1 and below. Several parts
        need the negative prompt even then: it is what they differ from.

        Args:
            embedded: whether the UNet takes the scale as an input.
        """
        weights = [weight for _, weight in self.parts]
        scale = 1.0 if embedded or self.distilled else max(self.guidance_scale + self.guidance_base, 1.0)
        if scale == 1.0 and len(weights) == 1:
            return [1.0]
        shares = [scale * weight for weight in weights]
        return [1.0 - sum(shares), *shares]

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts of the prompts that are not empty, each once."""
        texts = (self.prompt, self.negative_prompt, self.prompt_2, self.negative_prompt_2)
        return tuple(dict.fromkeys(filter(None, texts)))

    @property
    def seeds(self) -> list[ImageSeed]:
        """The seed of each image. As in AUTOMATIC1111, the variations of one image count their own seed up."""
        return [self.seed_of(number) for number in range(self.num_images)]

    def seed_of(self, number: int) -> ImageSeed:
        """The seed of one of its images."""
        if self.variation_strength is None:
            return ImageSeed(self.seed + number)
        return ImageSeed(self.seed, (self.variation_seed or 0) + number)

    @property
    def image_strength(self) -> float:
        """The strength of a run from an init image: 0.75, and 1 with a mask, unless something else is asked for."""
        return (1.0 if self.mask else 0.75) if self.strength is None else self.strength

    @property
    def blur(self) -> int:
        """Pixels by which the mask is blurred: 4, as in AUTOMATIC1111, unless something else is asked for."""
        return 4 if self.mask_blur is None else self.mask_blur

    @property
    def padding(self) -> int:
        """Pixels around the mask that count as its surroundings: 32 unless something else is asked for."""
        return 32 if self.mask_padding is None else self.mask_padding

    @property
    def base_share(self) -> float:
        """Share of the schedule before the refiner: 0.8, as in SDXL's own examples, unless something else is said."""
        return 0.8 if self.refiner_start is None else self.refiner_start

    @property
    def scores(self) -> tuple[float, float]:
        """Aesthetic scores of the negative prompt and of the prompt: 2.5 and 6, as in diffusers."""
        score, negative = self.aesthetic_score, self.negative_aesthetic_score
        return 2.5 if negative is None else negative, 6.0 if score is None else score

    @property
    def hires_start(self) -> str:
        """The start of the second pass, of :data:`UPSCALES`: an upscaler enlarges the image."""
        return self.hires_upscale or UPSCALES[1 if self.hires_upscaler else 0]

    @property
    def encoding_option(self) -> str:
        """The option for which images are encoded on the way; empty where none are."""
        if self.init_image:
            return "--init-image"
        if self.hires is None or self.hires_start != UPSCALES[1]:
            return ""
        return "--hires-upscaler" if self.hires_upscaler else "--hires-upscale image"

    @property
    def second_strength(self) -> float:
        """The strength of the second pass: 0.7 unless something else is asked for."""
        return 0.7 if self.hires_strength is None else self.hires_strength

    def recorded(self) -> dict[str, Any]:
        """Its fields as the record of a generation has them: defaults filled in, images by name and hash."""
        image, mask = self.init_image, self.mask
        beside = ("init_image", "mask", "distilled", "guidance_base")
        values = {name: value for name, value in vars(self).items() if name not in beside}
        return values | {
            "templates": dict(self.templates),
            "init_image": str(image) if image else None,
            "init_image_hash": image.digest if image else None,
            "strength": self.image_strength if image else None,
            "mask": str(mask) if mask else None,
            "mask_hash": mask.digest if mask else None,
            "mask_blur": self.blur if mask else None,
            "mask_padding": self.padding if self.only_masked else None,
            "hires_upscale": self.hires_start if self.hires else None,
            "hires_upscaler": self.hires_upscaler.stem if self.hires_upscaler else None,
            "upscale": self.upscale.stem if self.upscale else None,
            "hires_strength": self.second_strength if self.hires else None,
            "deep_cache_depth": (self.deep_cache_depth or DEPTH) if self.deep_cache else None,
            "exact_steps": self.exact_calls,
            "refiner": self.refiner.resolve().name if self.refiner else None,
            "refiner_start": self.base_share if self.refiner else None,
            "hires_steps": (self.hires_steps or self.steps) if self.hires else None,
        }


def sampler_of(
    folder: PipelineFolder, request: Request, steps: int | None = None, size: tuple[int, int] | None = None
) -> Sampler:
    """The sampler of a request, a new one each time.

    Args:
        steps: of the schedule, where that is not the request's.
        size: height and width in pixels, by which flow matching may shift noise levels; None for the largest size.

    Raises:
        BadModelError: the folder has no usable scheduler config.
        UsageError: no such scheduler, or it cannot do what is asked.
    """
    tokens = tokens_of(size, folder.vae_factor) if size and folder.scheduler.get("use_dynamic_shifting") else None
    return load_sampler(folder, steps or request.steps, tokens=tokens, **request.scheduler_options)


GOES_WITH = {option.name: option.needs for option in declared(DrawnOptions).values() if option.needs}
"""Fields of a request that mean nothing without another one."""
OF_SCHEDULE = [option.name for option in declared(DrawnOptions).values() if option.schedule]
"""Fields of a request that make a schedule, beside a pipeline's config."""
UPSCALES = ("latent", "image")
"""The start of the second pass: interpolated latents, or the decoded image, interpolated and encoded."""


def check_tasks(request: Request) -> None:
    """Refuse options of tasks that do not go together.

    Raises:
        UsageError: which, and what to give.
    """
    for name, needed in GOES_WITH.items():
        if _is_given(request, name) and not _is_given(request, needed):
            raise UsageError(
                f"{flag_of(name)} means nothing without {flag_of(needed)}",
                hint=f"Give {flag_of(needed)} too, or leave {flag_of(name)} out.",
            )
    if request.hires and request.init_image:
        raise UsageError(
            "--hires goes with text alone, not with --init-image",
            hint="Ask for a larger image of the init image with --size.",
        )
    if request.refiner and (request.hires or request.mask):
        raise UsageError(
            f"--refiner goes with one pass over the whole image, not with {'--hires' if request.hires else '--mask'}",
            hint="Refine the image afterwards: sdort run REFINER --init-image IMAGE --strength 0.3",
        )
    if request.hires_upscale not in (None, *UPSCALES):
        raise UsageError(f"--hires-upscale {request.hires_upscale!r} is not one of {', '.join(UPSCALES)}")
    if request.hires_upscaler and request.hires_start != UPSCALES[1]:
        raise UsageError(
            f"--hires-upscaler enlarges the image, and --hires-upscale {request.hires_upscale} the latents",
            hint="Leave one of them out.",
        )
    if request.init_image and request.mask:
        _check_mask(request.init_image, request.mask)


def _is_given(request: Request, name: str) -> bool:
    value = getattr(request, name)
    return value is not None and value is not False  # zero is a value


def _check_mask(image: InputImage, mask: InputImage) -> None:
    if mask.size != image.size:
        (height, width), (tall, wide) = image.size, mask.size
        raise UsageError(
            f"--mask {mask.name} has {wide}x{tall} pixels and --init-image {image.name} {width}x{height}",
            hint="A mask has the size of its image.",
        )
    if np.asarray(mask.picture).max() < 128:
        raise UsageError(
            f"--mask {mask.name} selects nothing: it is black or darker than middle grey everywhere",
            hint="White is what is generated anew. If black was meant, invert the mask.",
        )


def check_text(name: str, text: object) -> None:
    """Refuse what is no prompt.

    Raises:
        UsageError: no text, longer than :data:`MAX_PROMPT`, or with characters that no text has.
    """
    option = flag_of(name)
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
        raise UsageError("there is no prompt", hint="Give --prompt TEXT, --prompts FILE or --from-image FILE.")
    columns = {name: _for_each(name, value, len(listed)) for name, value in (texts or {}).items()}
    rows: list[dict[str, Any]] = [
        {"prompt": prompt, **{name: column[index] for name, column in columns.items()}}
        for index, prompt in enumerate(listed)
    ]
    return [replace(request, **row) for row in rows]


def _for_each(name: str, texts: str | Sequence[str], count: int) -> list[str]:
    listed = [texts] if isinstance(texts, str) else list(texts) or [""]
    if len(listed) not in (1, count):
        option = flag_of(name)
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
        encoder_outputs(encoder, names, folder.config(encoder.component), request.clip_skip)
    given = next((name for name in ("prompt_2", "negative_prompt_2") if getattr(request, name)), None)
    if given and len(folder.family.encoders) < 2:
        raise UsageError(
            f"{flag_of(given)} is for SDXL's second text encoder, and this pipeline has one",
            hint="Leave it out.",
        )


def for_family(family: Family, request: Request) -> Request:
    """A request as a family takes it: with what its denoiser makes of guidance, and as :func:`as_plain_text`.

    Raises:
        UsageError: as there.
    """
    denoiser = family.denoiser
    made = as_plain_text(family, request)
    return replace(made, distilled=denoiser.distilled, guidance_base=denoiser.guidance_base)


def as_plain_text(family: Family, request: Request) -> Request:
    """A request whose prompts are read as plain text, where that is how text encoders of the family read.

    Raises:
        UsageError: it asks for weights, by ``prompt_weighting`` or by numbers in a prompt.
    """
    if not family.plain or request.prompt_weighting == "none":
        return request
    who = next(encoder.class_name for encoder in (*family.encoders, *family.absent) if encoder.plain)
    if request.prompt_weighting != WEIGHTINGS[0]:
        raise UsageError(
            f"--prompt-weighting {request.prompt_weighting} is for CLIP's text encoders, and {family.title} has a "
            f"{who}, which takes no weights",
            hint="Leave it out: prompts are read as plain text.",
        )
    for name in ("prompt", *PROMPTS):
        if heavy := heavy_text(getattr(request, name)):
            raise UsageError(
                f"{flag_of(name)} has the weight {cut(heavy)}, and {family.title} has a {who}, which takes no weights",
                hint="Leave the number out; or give --prompt-weighting none, which takes it as text.",
            )
    return replace(request, prompt_weighting="none")


def image_size(folder: PipelineFolder, request: Request, larger: tuple[int, int] | None = None) -> tuple[int, int]:
    """Height and width in pixels that ``request`` generates first: as asked, of its init image, or the model's own.

    Args:
        larger: the size of a second pass, to be checked instead.

    Raises:
        UsageError: not a multiple of the autoencoder's factor, or another size than a static model has.
        BadModelError: the UNet takes no latents.
    """
    unet = folder.file(folder.denoiser).signature.inputs
    sample = folder.family.denoiser.roles.sample
    if sample not in unet:
        raise BadModelError(
            f"it has no input {sample!r}, but {', '.join(map(repr, unet)) or 'none'}", component=folder.denoiser
        )
    latent, factor = unet[sample].shape, folder.vae_factor
    height, width = folder.default_size
    asked = larger or (request.height, request.width)
    if request.init_image and not request.only_masked:
        height, width = size_from(request.init_image, asked, folder.default_size, folder.side_step)
    fixed = [side and side * factor for side in (static_size(latent, 2), static_size(latent, 3))]
    size = (
        check_side("height", asked[0], height, fixed[0], folder.side_step),
        check_side("width", asked[1], width, fixed[1], folder.side_step),
    )
    most = folder.largest_side
    for name, side in zip(("height", "width"), size, strict=True):
        if most and side > most:
            raise UsageError(
                f"--{name} {side}: the {folder.family.denoiser.title} has positions for {most} pixels along each side",
                hint=f"Take {most} or less; --upscale makes the image larger.",
            )
    return size


class Drawing(Protocol):
    """The properties that decide whether a pipeline can do what is asked for; a :class:`PipelineFolder` has it."""

    @property
    def given(self) -> str:
        """The name that the user knows."""

    @property
    def models(self) -> Collection[str]:
        """The names of its components."""

    @property
    def family(self) -> Family:
        """Its family."""

    @property
    def latent_channels(self) -> int:
        """Channels of the latents that its autoencoder decodes."""

    @property
    def sample_channels(self) -> int:
        """Channels of its UNet's sample."""


def check_task(folder: Drawing, request: Request) -> None:
    """Refuse a pipeline that cannot do what is asked for.

    Raises:
        BadModelError: its UNet is for another task, or it has no encoder for the init image.
    """
    if folder.family.aesthetic and not request.init_image:
        raise BadModelError(
            f"{folder.given} is SDXL's refiner, which works on an image",
            hint="Give it one with --init-image, or let it finish what SDXL's base begins:\n"
            f"    sdort run BASE --refiner {shlex.quote(folder.given)}",
        )
    scores = [name for name in ("aesthetic_score", "negative_aesthetic_score") if getattr(request, name) is not None]
    if scores and not folder.family.aesthetic and not request.refiner:
        message = f"{flag_of(scores[0])} is for SDXL's refiner, and {folder.given} is none"
        raise UsageError(message, hint="Leave it out.")
    if request.encoding_option and ENCODER not in folder.models:
        raise BadModelError(
            f"{folder.given} has no {ENCODER}, which {request.encoding_option} needs",
            hint="Export the pipeline with all of its components: sdort export MODEL OUT",
        )
    latents, channels = folder.latent_channels, folder.sample_channels
    if channels == latents or (request.mask and channels == inpainting_channels(latents)):
        return
    if channels == inpainting_channels(latents):
        raise BadModelError(
            f"the UNet takes {channels} channels, not the {latents} of latent noise; it is an inpainting model, which "
            "wants a mask and a masked image",
            component=folder.family.denoiser.component,
            hint="Give both: --init-image PHOTO --mask MASK, white where something new is to be. From text alone, take "
            "a text-to-image checkpoint.",
        )
    raise BadModelError(
        f"the UNet takes {channels} channels, not the {latents} of latent noise; it is made for another task",
        component=folder.family.denoiser.component,
        hint="sdort run takes text-to-image and inpainting checkpoints.",
    )


def inpainting_channels(latents: int) -> int:
    """Channels of the input of an inpainting UNet: latents, a mask and the latents of what the mask leaves."""
    return 2 * latents + 1


def check_inputs(unet: HasInputs, family: Family) -> None:
    """Refuse a UNet that needs more than latents, a timestep, what its family tells it, and the guidance scale.

    Raises:
        BadModelError: which input it needs and what the model is for.
    """
    needed = family.inputs
    roles = family.denoiser.roles
    optional = {roles.guidance, *all_residuals(unet.inputs), *image_inputs(unet.inputs)}
    extra, missing = sorted(set(unet.inputs) - needed - optional), sorted(needed - set(unet.inputs))
    if extra or missing:
        what = f"needs {', '.join(extra)}" if extra else f"has no input {', '.join(missing)}"
        raise BadModelError(
            f"the UNet {what}: it is not one of {family.title}",
            component=family.denoiser.component,
            hint="Other families can be optimized, and benched by component, but not run yet.",
        )
    numbers = static_size(unet.inputs[roles.sizes].shape, 1) if family.sizes and roles.sizes else None
    if numbers not in (None, len(family.sizes)):
        raise BadModelError(
            f"the UNet takes {numbers} numbers as {roles.sizes}, not the {len(family.sizes)} of {family.title}",
            component=family.denoiser.component,
            hint="A base has both text encoders, a refiner the second one alone: export the whole pipeline.",
        )


def check_side(name: str, asked: int | None, default: int, fixed: int | None, factor: int) -> int:
    """The height or width in pixels of the images.

    Args:
        name: ``height`` or ``width``.
        asked: what the user wants, None for the model's own.
        default: what the model was trained for.
        fixed: that of a static model, None when it is dynamic.
        factor: what it has to be a multiple of.

    Raises:
        UsageError: not a multiple of ``factor``, or another size than a static model has.
    """
    size = (fixed or default) if asked is None else asked
    if size <= 0 or size % factor:
        below = max(size // factor, 1) * factor
        raise UsageError(f"--{name} {size} is not a multiple of {factor}", hint=f"Take {below} or {below + factor}.")
    if fixed and size != fixed:
        raise UsageError(
            f"this pipeline was exported for the {name} {fixed}, not {size}",
            hint="Leave the option out, or export again without --static.",
        )
    return size
