"""The texts that a UNet's samples of one image are conditioned by, at every call."""

from __future__ import annotations

from collections.abc import Sequence

from sdort.console import warn
from sdort.errors.plain_text import cut, one_line
from sdort.generation.prompts.prompt_schedule import Clock, Schedule, read_schedule
from sdort.generation.prompts.text_conditioning import Texts
from sdort.generation.requests.request import Request

CopySchedules = Sequence["tuple[Schedule, ...] | None"]
"""For each sample the prompt's text for each text encoder; None conditions as zeros."""
CopyTexts = tuple["Texts | None", ...]
"""The texts of one call."""


def negative_is_zero(weighting: str, text: bool, forced: bool) -> bool:
    """Whether a negative prompt conditions the UNet as zeros, not as the encoders' outputs for it.

    diffusers and A1111 (``force_zero_embeddings``) take zeros for SDXL's where it is empty; ComfyUI encodes every text.
    https://github.com/comfyanonymous/ComfyUI, nodes.py, ``CLIPTextEncode``

    Args:
        weighting: the program that prompts are read as.
        text: whether there is one.
        forced: ``force_zeros_for_empty_prompt`` of the pipeline.
    """
    return forced and not text and weighting != "comfyui"


def copy_schedules(
    request: Request, encoders: Sequence[str], *, guided: bool, empty_is_zero: bool
) -> list[tuple[Schedule, ...] | None]:
    """The prompts of an image's samples: the negative one where it is needed, then each part of the prompt.

    Args:
        encoders: components, in their order.
        empty_is_zero: as ``forced`` of :func:`negative_is_zero`.
    """

    def schedules(first: str, second: str) -> tuple[Schedule, ...]:
        texts = {"text_encoder_2": second or first}
        return tuple(read_schedule(texts.get(name, first), request.prompt_weighting) for name in encoders)

    prompts: list[tuple[Schedule, ...] | None] = [schedules(part, request.prompt_2) for part, _ in request.parts]
    if not guided:
        return prompts
    negative = request.negative_prompt, request.negative_prompt_2
    is_zero = negative_is_zero(request.prompt_weighting, any(negative), empty_is_zero)
    return [None if is_zero else schedules(*negative), *prompts]


def remark_on_schedules(copies: CopySchedules, calls: Sequence[CopyTexts]) -> None:
    """Say which prompts of a request never change though they have forms for it.

    Args:
        calls: the texts of every call in all passes.
    """
    for schedules, column in zip(copies, zip(*calls, strict=True), strict=True):
        for number, schedule in enumerate(dict.fromkeys(schedules or ())):
            shown = cut(one_line(schedule.text), 60)
            if not schedule.is_whole and _has_form(schedule.text):
                warn(
                    f"the prompt {shown!r} has a | outside of square brackets, or a \\ at its end, so that as in A1111 "
                    "its [...] are weights; write \\| for the sign"
                )
            elif schedule.changes and len({texts[number] for texts in column if texts}) == 1:
                warn(f"the prompt {shown!r} does not change within the {len(calls)} calls of the UNet")


def _has_form(text: str) -> bool:
    """Whether anything in a text looks like ``[a|b]`` or ``[a:b:1]``."""
    insides = (part.partition("[")[2] for part in text.split("]")[:-1])
    return any("|" in inside or ":" in inside for inside in insides)


def texts_by_call(copies: CopySchedules, clock: Clock, calls: int) -> list[CopyTexts]:
    """The texts of every call of a pass.

    Raises:
        UsageError: a prompt changes between too many texts.
    """
    columns = [
        [None] * calls
        if schedules is None
        else list(zip(*(each.texts(clock, calls) for each in schedules), strict=True))
        for schedules in copies
    ]
    return list(zip(*columns, strict=True))
