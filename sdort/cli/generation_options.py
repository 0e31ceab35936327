"""Options of ``sdort run`` that say what is generated: groups of one topic, each a section of the help."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from sdort.cli.number_types import Real, Whole
from sdort.errors.number_ranges import GUIDANCE, HEIGHT, NUM_IMAGES, SEED, STEPS, WIDTH

Option = Callable[[Callable[..., Any]], Callable[..., Any]]

_TEXT_TO_IMAGE: tuple[Option, ...] = (
    click.option(
        "--prompt",
        required=True,
        multiple=True,
        metavar="TEXT",
        help="What the images are to show. Repeatable: each prompt gets --num-images images, of the same seeds.",
    ),
    click.option(
        "--negative-prompt",
        multiple=True,
        metavar="TEXT",
        help="What they are not to show: once for all prompts, or once for each.",
    ),
    click.option("--steps", type=Whole(STEPS), default=50, help="Denoising steps."),
    click.option(
        "--guidance-scale", type=Real(GUIDANCE), default=7.5, help="How closely to follow the prompt; 1 turns it off."
    ),
    click.option("--height", type=Whole(HEIGHT), show_default="the model's own", help="Pixels."),
    click.option("--width", type=Whole(WIDTH), show_default="the model's own", help="Pixels."),
    click.option(
        "--seed",
        type=Whole(SEED),
        show_default="random",
        help="The same seed gives the same image. The second image of --num-images has the seed + 1, and so on.",
    ),
    click.option("--num-images", type=Whole(NUM_IMAGES), default=1, help="Number of images of each prompt."),
    click.option(
        "--scheduler",
        metavar="NAME",
        show_default="the pipeline's own",
        help="A short name (ddim, pndm, lms, euler, euler-a, dpm++-2m, unipc, lcm, ...) or diffusers' class name.",
    ),
)

_GROUPS: dict[str, tuple[Option, ...]] = {"What is generated": _TEXT_TO_IMAGE}
"""Heading of the help -> its options, the most used first."""


def _names(options: Sequence[Option]) -> tuple[str, ...]:
    """The parameters that options fill."""

    def command() -> None: ...

    for option in options:
        option(command)
    return tuple(parameter.name for parameter in command.__click_params__)  # type: ignore[attr-defined]


SECTIONS = {heading: _names(options) for heading, options in _GROUPS.items()}
"""Heading -> names of options, for :class:`sdort.cli.sections.SectionedCommand`."""


def generation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of what is generated; the command gets a parameter for each."""
    for option in reversed([option for options in _GROUPS.values() for option in options]):
        command = option(command)
    return command
