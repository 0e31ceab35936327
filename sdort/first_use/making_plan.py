"""Plans of what is made of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Making:
    """How a checkpoint becomes an optimized model."""

    components: tuple[str, ...]
    """Their names; all of the checkpoint if empty."""
    provider: str
    """The execution provider that it is for, by name."""
    precision: str = "fp32"
    """``fp32`` or ``fp16``."""
    size: str = ""
    """The one size that it works at, as ``BxHxW`` (images, height and width in pixels); empty for any."""


@dataclass(frozen=True)
class MakingPlan:
    """The work on a checkpoint before it can be drawn with.

    Attributes:
        name: the checkpoint's name.
        bytes: what it takes on the disk; None for one that is to be downloaded first.
        seconds: how long it takes, estimated; None likewise.
    """

    name: str
    bytes: int | None
    seconds: float | None
