"""Options of an export, by the names that :func:`sdort.export` and ``sdort export`` share."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, get_type_hints

from sdort.adapters.adapter_choice import AdapterChoice, parse_adapter_choice
from sdort.adapters.embedding_file import EmbeddingChoice, parse_embedding_choice
from sdort.demo import demo_adapter
from sdort.errors import UsageError
from sdort.exporter.ip_adapters import NO_IP_ADAPTERS, IpAdapterFiles
from sdort.exporter.replacements import MadeWith, Replacements
from sdort.families.component_names import SAFETY_CHECKER
from sdort.files.user_folders import traces_folder
from sdort.options.number_ranges import OPSET, STATIC_BATCH, STATIC_SIDE, parse_size
from sdort.options.option_types import check_types

DEFAULT_OPSET = 23
"""The first opset with Attention, GroupNormalization (21) and Gelu (20)."""


@dataclass(frozen=True)
class StaticSize:
    """The one size that a static export works at: images per run, and their height and width in pixels."""

    batch: int
    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.batch}x{self.height}x{self.width}"

    @classmethod
    def parse(cls, text: str) -> StaticSize:
        """The size that ``BxHxW`` names.

        Raises:
            UsageError: it has another form.
        """
        numbers = re.fullmatch(r"([0-9]{1,20})x([0-9]{1,20})x([0-9]{1,20})", text)
        if not numbers:
            raise UsageError(f"--static {text[:40]!r}: expected BxHxW, such as 1x512x512")
        return cls(*map(int, numbers.groups()))

    def __post_init__(self) -> None:
        STATIC_BATCH.check(self.batch)
        for side in (self.height, self.width):
            STATIC_SIDE.check(side)


class ExportOptions(TypedDict, total=False):
    """Options of :func:`sdort.export` and :func:`sdort.plan_export`, all optional."""

    components: Collection[str]
    """The components to export; by default all of them."""
    safety_checker: bool
    """Export the pipeline's safety checker too, if it has one, as ``safety`` of :func:`sdort.run` asks it. True by
    default."""
    opset: int
    """The ONNX opset, 18 to 25; 23 by default, the first with Attention."""
    static: str | StaticSize | None
    """The one size to export for, as ``BxHxW`` (images a run, height and width in pixels); by default batch, height,
    width and sequence length are dynamic."""
    size: str | None
    """The one size of an image to export for, as ``WxH``: ``768x512`` is ``static="1x512x768"``."""
    control: bool
    """Give the UNet inputs for the outputs of ControlNets and T2I-Adapters."""
    ip_adapter: Sequence[str | Path]
    """IP-Adapters (plain or plus) whose images the UNet is to take: their files, in the order of the images."""
    image_encoder: str | Path | None
    """The CLIP image encoder of ``ip_adapter``: its folder or file; by default one that fits, of the checkpoint or
    beside the adapter."""
    variant: str | None
    """Read the weights of this variant of a diffusers folder, such as ``fp16``; ``*`` stands for that which each part
    has alone, where it has none without a name."""
    allow_pickle: bool
    """Read pickles: ``.bin`` weights of a diffusers folder where there are no safetensors, or a single ``.ckpt``."""
    config: str | Path | None
    """A diffusers folder whose configs, tokenizers and scheduler a single file gets, and whose VAE and text encoders
    where the file has none."""
    vae: str | Path | None
    """Another VAE: its folder, its file, or a pipeline's folder."""
    scheduler: str | None
    """Another scheduler, as ``scheduler`` of :func:`sdort.run`."""
    prediction_type: str | None
    """Prediction of the UNet: ``epsilon``, ``v_prediction`` or ``sample``."""
    ema: bool
    """Read a single file's averaged weights of the UNet (EMA)."""
    lora: Sequence[str | AdapterChoice]
    """Adapters to put into the weights (LoRA, LoHa, LoKr, DoRA): ``FILE`` or ``FILE:SCALE``."""
    embedding: Sequence[str | EmbeddingChoice]
    """Textual inversions to add as words for prompts: ``FILE`` or ``FILE:WORD``."""
    cache_dir: str | Path | None
    """Where traces are kept; by default ``~/.cache/sdort``."""


@dataclass(frozen=True)
class ExportRequest:
    """Checked :class:`ExportOptions`."""

    components: Collection[str]
    opset: int
    static: StaticSize | None
    control: bool
    variant: str | None
    allow_pickle: bool
    replaced: Replacements
    cache_dir: Path
    safety_checker: bool = True
    adapters: Sequence[AdapterChoice] = ()
    embeddings: Sequence[EmbeddingChoice] = ()
    ip_adapters: IpAdapterFiles = NO_IP_ADAPTERS

    @property
    def made_with(self) -> MadeWith:
        """How the checkpoint is read."""
        return MadeWith(self.replaced, self.variant, self.allow_pickle)


def _static_size(static: str | StaticSize | None, size: str | None) -> StaticSize | None:
    if size is not None:
        if static:
            raise UsageError(f"--size {size} and --static {static} both fix the sizes", hint="Give one of them.")
        return StaticSize(1, *parse_size(size))
    return StaticSize.parse(static) if isinstance(static, str) else static


def check_options(options: ExportOptions) -> ExportRequest:
    """The options with defaults filled in.

    Raises:
        TypeError: there is no option of that name.
        UsageError: a value is none that the option can have.
    """
    check_types(options, get_type_hints(ExportOptions))
    if not options.get("safety_checker", True) and SAFETY_CHECKER in options.get("components", ()):
        raise UsageError("--component safety_checker and --no-safety-checker exclude each other")
    cache_dir = options.get("cache_dir")
    config, vae, encoder = options.get("config"), options.get("vae"), options.get("image_encoder")
    return ExportRequest(
        options.get("components", ()),
        OPSET.check(options.get("opset", DEFAULT_OPSET)),
        _static_size(options.get("static"), options.get("size")),
        options.get("control", False),
        options.get("variant"),
        options.get("allow_pickle", False),
        Replacements(
            Path(config) if config else None,
            Path(vae) if vae else None,
            options.get("scheduler"),
            options.get("prediction_type"),
            options.get("ema", False),
        ),
        Path(cache_dir) if cache_dir else traces_folder(),
        options.get("safety_checker", True),
        [
            demo_adapter(parse_adapter_choice(each) if isinstance(each, str) else each)
            for each in options.get("lora", ())
        ],
        [parse_embedding_choice(each) if isinstance(each, str) else each for each in options.get("embedding", ())],
        IpAdapterFiles(tuple(map(Path, options.get("ip_adapter", ()))), Path(encoder) if encoder else None),
    )
