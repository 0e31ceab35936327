"""Options of a warm-up, each declared once; ``scripts/option_keywords.py`` writes the keyword arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sdort.generation.requests.typed_options import DrawnOptions
from sdort.options.declared_options import option, option_of, ranges_of
from sdort.options.number_ranges import BATCH_SIZE, check_fields, check_sizes
from sdort.providers.runtime_options import ExecutionKeywords, RuntimeOptions
from sdort.workload.size_options import SizeOptions


@dataclass(frozen=True)
class WarmupOptions:
    """Options of a warm-up.

    Raises:
        UsageError: a number is out of its range.
    """

    runtime: RuntimeOptions
    sizes: Sequence[tuple[int, int]] = option_of(SizeOptions, "sizes", section="Selection")
    batch_sizes: Sequence[int] = option_of(
        SizeOptions,
        "batch_sizes",
        section="Selection",
        help="Numbers of images that are generated at once.",
    )
    components: Sequence[str] = option(
        (),
        section="Selection",
        flags=("--component",),
        metavar="NAME",
        unset="all that sdort run runs",
        help="Warm up only this component (repeatable).",
        doc="Names of components; all that generations run if empty, the VAE's encoder among them.",
    )
    budget: float | None = option(
        None,
        section="Selection",
        form="time",
        within=(0.0, 366 * 86400.0, "it is in seconds, a year at most"),
        help="Stop after this time: 90s, 30m, 2h. The rest is listed.",
        doc="Seconds after which no item is begun, and the one that runs is given up.",
    )
    vae_tiling: bool | None = option_of(
        DrawnOptions,
        "vae_tiling",
        doc="Decode in tiles; by default where :func:`sdort.run` would, by the memory that is free.",
    )
    vae_slicing: bool | None = option_of(
        DrawnOptions,
        "vae_slicing",
        doc="Decode one image at a time; by default where :func:`sdort.run` would, by the memory that is free.",
    )

    def __post_init__(self) -> None:
        check_fields(self, *ranges_of(WarmupOptions).values())
        object.__setattr__(self, "batch_sizes", BATCH_SIZE.check_all(self.batch_sizes))
        object.__setattr__(self, "sizes", check_sizes(self.sizes))


# Written by scripts/option_keywords.py from what is declared above.


class WarmKeywords(ExecutionKeywords, total=False):
    """Options of :func:`sdort.warm` and :func:`sdort.plan_warm`, all optional."""

    sizes: Sequence[tuple[int, int]]
    """Heights and widths of images in pixels; the model's own if empty."""
    batch_sizes: Sequence[int]
    """Numbers of images that are generated at once."""
    components: Sequence[str]
    """Names of components; all that generations run if empty, the VAE's encoder among them."""
    budget: float | None
    """Seconds after which no item is begun, and the one that runs is given up."""
    vae_tiling: bool | None
    """Decode in tiles; by default where :func:`sdort.run` would, by the memory that is free."""
    vae_slicing: bool | None
    """Decode one image at a time; by default where :func:`sdort.run` would, by the memory that is free."""
