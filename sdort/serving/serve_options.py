"""Options of the server, each declared once; ``scripts/option_keywords.py`` writes the keyword arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sdort.batches.batch_options import BatchOptions
from sdort.generation.requests.typed_options import DrawnOptions
from sdort.options.declared_options import option, option_of, ranges_of
from sdort.options.number_ranges import STEPS, check_fields, check_sizes
from sdort.providers.runtime_options import LoadOptions
from sdort.workload.size_options import SizeOptions

_SECONDS = 86400.0
_SIZES = (1, 1 << 12, "it is in MB, and all of it is in memory")


@dataclass(frozen=True)
class ServeOptions:
    """Options that a server has for itself.

    Raises:
        UsageError: a number is out of its range.
    """

    host: str = option("127.0.0.1", section="Address", metavar="ADDRESS", help="Address to listen at.")
    port: int = option(
        7860, section="Address", within=(0, 65535, "TCP has no others; 0 takes a free one"), help="Port to listen at."
    )
    api_keys: Path | None = option(
        None,
        section="Address",
        form="existing file",
        metavar="FILE",
        help="File of keys, one a line; a request needs one of them. Addresses that others reach need it.",
    )
    no_keys: bool = option(False, section="Address", help="Let everybody in who reaches the address.")
    allow_host: Sequence[str] = option(
        (),
        section="Address",
        metavar="NAME",
        help="Name by which clients may ask for a server without keys, beside this machine's own (repeatable).",
    )
    log_prompts: bool = option(False, section="Address", help="Write prompts into the log.")
    ray: str | None = option_of(BatchOptions, "ray")
    workers: int | None = option_of(BatchOptions, "workers")
    sizes: Sequence[tuple[int, int]] = option_of(
        SizeOptions,
        "sizes",
        section="Images",
        help="Sizes of images in pixels that are served, the width first. They are warmed up before the server is "
        "ready.",
    )
    any_size: bool = option(
        False, section="Images", help="Draw other sizes too; the first image of each may take long."
    )
    images_at_once: int = option_of(
        DrawnOptions, "images_at_once", section="Images", help="Images that share a call of the UNet."
    )
    batch_wait: float = option(
        0.03,
        section="Images",
        within=(0.0, 60.0, "it is in seconds, and somebody waits"),
        metavar="SECONDS",
        help="Seconds that an image waits for others to be drawn with.",
    )
    queue: int = option(
        64,
        section="Limits",
        within=(1, 100_000, "each waiting request is in memory"),
        help="Requests that wait. More are refused with status 429.",
    )
    timeout: float = option(
        600.0,
        section="Limits",
        within=(0.1, _SECONDS, "it is in seconds, a day at most"),
        metavar="SECONDS",
        help="Seconds from a request to its last image. What takes longer is given up.",
    )
    drain: float = option(
        30.0,
        section="Limits",
        within=(0.0, _SECONDS, "it is in seconds, a day at most"),
        metavar="SECONDS",
        help="Seconds that a server which is told to end still draws what waits.",
    )
    max_steps: int = option(
        100, section="Limits", within=(1, STEPS.high, STEPS.reason), help="Denoising steps of a request."
    )
    max_images: int = option(
        8, section="Limits", within=(1, 1000, "all images of a request are kept"), help="Images of a request."
    )
    max_prompt: int = option(
        4000,
        section="Limits",
        within=(1, 1 << 17, "every PNG keeps its prompt"),
        metavar="CHARACTERS",
        help="Characters of a prompt.",
    )
    max_pixels: int = option(
        1 << 22,
        section="Limits",
        within=(64, 1 << 26, "larger images are made by upscaling smaller ones"),
        help="Pixels of an image that is drawn or uploaded.",
    )
    max_upload: int = option(
        32, section="Limits", within=_SIZES, metavar="MB", help="MB of a request, with the images in it."
    )
    keep: int = option(
        200,
        section="Limits",
        within=(1, 100_000, "all of them are in memory"),
        help="Requests of the page whose images are kept. The oldest go first.",
    )
    keep_mb: int = option(512, section="Limits", within=_SIZES, metavar="MB", help="MB of all images that are kept.")
    adapter_folder: Path | None = option(
        None,
        section="Images",
        flags=("--adapters",),
        form="folder",
        metavar="DIR",
        help="Folder of adapters (LoRA and its kin) that requests may ask for by name, also as <lora:NAME:0.8>.",
    )

    def __post_init__(self) -> None:
        check_fields(self, *ranges_of(ServeOptions).values())
        object.__setattr__(self, "sizes", check_sizes(self.sizes))

    @property
    def upload_bytes(self) -> int:
        """Bytes of a request."""
        return self.max_upload * 1_000_000


# Written by scripts/option_keywords.py from what is declared above.


class ServeKeywords(LoadOptions, total=False):
    """Options of :func:`sdort.serve`, all optional."""

    host: str
    """Address to listen at."""
    port: int
    """Port to listen at."""
    api_keys: str | Path | None
    """File of keys, one a line; a request needs one of them. Addresses that others reach need it."""
    no_keys: bool
    """Let everybody in who reaches the address."""
    allow_host: Sequence[str]
    """Name by which clients may ask for a server without keys, beside this machine's own (repeatable)."""
    log_prompts: bool
    """Write prompts into the log."""
    ray: str | None
    """Draw with workers of Ray, one a GPU: ``local`` starts a Ray on this machine, ``auto`` or an address takes a
    running cluster. By default this process draws."""
    workers: int | None
    """Number of workers."""
    sizes: Sequence[tuple[int, int]]
    """Heights and widths of images in pixels; the model's own if empty."""
    any_size: bool
    """Draw other sizes too; the first image of each may take long."""
    images_at_once: int
    """How many images share a call of the UNet, also of several prompts; four by default."""
    batch_wait: float
    """Seconds that an image waits for others to be drawn with."""
    queue: int
    """Requests that wait. More are refused with status 429."""
    timeout: float
    """Seconds from a request to its last image. What takes longer is given up."""
    drain: float
    """Seconds that a server which is told to end still draws what waits."""
    max_steps: int
    """Denoising steps of a request."""
    max_images: int
    """Images of a request."""
    max_prompt: int
    """Characters of a prompt."""
    max_pixels: int
    """Pixels of an image that is drawn or uploaded."""
    max_upload: int
    """MB of a request, with the images in it."""
    keep: int
    """Requests of the page whose images are kept. The oldest go first."""
    keep_mb: int
    """MB of all images that are kept."""
    adapter_folder: str | Path | None
    """Folder of adapters (LoRA and its kin) that requests may ask for by name, also as <lora:NAME:0.8>."""
