"""Options of an export, each declared once; ``scripts/option_keywords.py`` writes the keyword arguments."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from sdort.errors import UsageError
from sdort.families.known_families import COMPONENTS
from sdort.options.declared_options import option
from sdort.options.number_ranges import STATIC_BATCH, STATIC_SIDE

if TYPE_CHECKING:
    from sdort.adapters.adapter_choice import AdapterChoice
    from sdort.adapters.embedding_file import EmbeddingChoice

DEFAULT_OPSET = 23
"""The first opset with Attention, GroupNormalization (21) and Gelu (20)."""
_PARTS = "Parts of the checkpoint"


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


@dataclass(frozen=True, kw_only=True)
class ExportedOptions:
    """Options of what is exported, and how."""

    components: Collection[str] = option(
        (),
        section=_PARTS,
        flags=("--component",),
        choices=COMPONENTS,
        metavar="NAME",
        help="Export only this component (repeatable). The default is all components.",
        doc="The components to export; by default all of them.",
    )
    safety_checker: bool = option(
        True,
        section=_PARTS,
        after="ema",
        negated=True,
        help="Export the pipeline's safety checker too. sdort run --safety asks it.",
        doc="Export the pipeline's safety checker too, if it has one, as ``safety`` of :func:`sdort.run` asks it. True "
        "by default.",
    )
    opset: int = option(
        DEFAULT_OPSET,
        within=(18, 25, "older ones lack operators, newer ones are unknown to ONNX Runtime"),
        help="ONNX opset. The Attention operator needs 23.",
        doc="The ONNX opset, 18 to 25; 23 by default, the first with Attention.",
    )
    static: str | StaticSize | None = option(
        None,
        metavar="BxHxW",
        help="Fix all sizes: images per run, height, then width in pixels. The UNet then takes 2 B latents: B with the "
        "prompt and B without. By default batch, height, width and sequence length are dynamic.",
        doc="The one size to export for, as ``BxHxW`` (images a run, height and width in pixels); by default batch, "
        "height, width and sequence length are dynamic.",
    )
    size: str | None = option(
        None,
        form="size",
        metavar="WxH",
        help="Fix all sizes for one image of this width and height, such as 768x512: the same as --static 1x512x768.",
        doc='The one size of an image to export for, as ``WxH``: ``768x512`` is ``static="1x512x768"``.',
    )
    control: bool = option(
        False,
        help="Give the UNet inputs for ControlNets and T2I-Adapters. sdort run --control needs them.",
        doc="Give the UNet inputs for the outputs of ControlNets and T2I-Adapters.",
    )
    ip_adapter: Sequence[str | Path] = option(
        (),
        metavar="FILE",
        help="Build this IP-Adapter (plain or plus) into the UNet. sdort run --ip-adapter-image needs it. Repeatable.",
        doc="IP-Adapters (plain or plus) whose images the UNet is to take: their files, in the order of the images.",
    )
    image_encoder: Path | None = option(
        None,
        metavar="DIR|FILE",
        help="CLIP's image encoder for --ip-adapter. The default is the one beside the adapter.",
        doc="The CLIP image encoder of ``ip_adapter``: its folder or file; by default one that fits, of the checkpoint "
        "or beside the adapter.",
    )
    variant: str | None = option(
        None,
        section=_PARTS,
        help="Read the weights of this variant, such as fp16.",
        doc="Read the weights of this variant of a diffusers folder, such as ``fp16``; ``*`` stands for that which "
        "each part has alone, where it has none without a name.",
    )
    allow_pickle: bool = option(
        False,
        section=_PARTS,
        after="ema",
        help="Read pickles: .bin weights where there are no safetensors, or a single .ckpt file.",
        doc="Read pickles: ``.bin`` weights of a diffusers folder where there are no safetensors, or a single "
        "``.ckpt``.",
    )
    config: Path | None = option(
        None,
        section=_PARTS,
        after="prediction_type",
        metavar="DIR",
        help="For single files: a diffusers folder that supplies configs, tokenizers and scheduler. It also supplies "
        "the VAE and the text encoders that the file lacks.",
        doc="A diffusers folder whose configs, tokenizers and scheduler a single file gets, and whose VAE and text "
        "encoders where the file has none.",
    )
    vae: Path | None = option(
        None,
        section=_PARTS,
        metavar="DIR|FILE",
        help="Use another VAE: its folder, its file, or the folder of a pipeline.",
        doc="Another VAE: its folder, its file, or a pipeline's folder.",
    )
    text_encoders: Mapping[str, str | Path] = option(
        factory=dict,
        section=_PARTS,
        flags=("--text-encoder",),
        metavar="NAME=FILE",
        help="For single files: read this text encoder from a file of its own, such as "
        "text_encoder_3=t5xxl.safetensors (repeatable).",
        doc="Text encoders of a single file that have files of their own: component -> file.",
    )
    tokenizers: Mapping[str, str | Path] = option(
        factory=dict,
        section=_PARTS,
        flags=("--tokenizer",),
        metavar="NAME=DIR",
        help="For single files: the folder of this tokenizer, such as tokenizer_3=./tokenizer_3 (repeatable). T5's and "
        "Qwen3's are in no such file.",
        doc="Folders of the tokenizers of a single file, such as T5's and Qwen3's: ``tokenizer``, ``tokenizer_2``, "
        "``tokenizer_3`` -> folder; by default folders of these names beside the file.",
    )
    scheduler: str | None = option(
        None,
        section=_PARTS,
        completes="schedulers",
        help="Use another scheduler; sdort run takes the same names.",
        doc="Another scheduler, as ``scheduler`` of :func:`sdort.run`.",
    )
    prediction_type: str | None = option(
        None,
        section=_PARTS,
        choices=("epsilon", "v_prediction", "sample"),
        help="What the UNet predicts, if the checkpoint does not say it or says it wrong.",
        doc="Prediction of the UNet: ``epsilon``, ``v_prediction`` or ``sample``.",
    )
    ema: bool = option(
        False,
        section=_PARTS,
        help="For single files: read the averaged weights (model_ema.) of the UNet.",
        doc="Read a single file's averaged weights of the UNet (EMA).",
    )
    lora: Sequence[str | AdapterChoice] = option(
        (),
        completes="files",
        metavar="FILE[:SCALE]",
        help="Add this adapter to the weights (repeatable). LoRA, LoHa, LoKr or DoRA, as .safetensors. [scale: 1]",
        doc="Adapters to put into the weights (LoRA, LoHa, LoKr, DoRA): ``FILE`` or ``FILE:SCALE``.",
    )
    embedding: Sequence[str | EmbeddingChoice] = option(
        (),
        completes="files",
        metavar="FILE[:WORD]",
        help="Add this textual inversion as a word for prompts (repeatable). WORD is its own name unless you give one.",
        doc="Textual inversions to add as words for prompts: ``FILE`` or ``FILE:WORD``.",
    )
    cache_dir: Path | None = option(
        None,
        help="Folder of the traces. [default: ~/.cache/sdort]",
        doc="Where traces are kept; by default ``~/.cache/sdort``.",
    )


# Written by scripts/option_keywords.py from what is declared above.


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
    text_encoders: Mapping[str, str | Path] | None
    """Text encoders of a single file that have files of their own: component -> file."""
    tokenizers: Mapping[str, str | Path] | None
    """Folders of the tokenizers of a single file, such as T5's and Qwen3's: ``tokenizer``, ``tokenizer_2``,
    ``tokenizer_3`` -> folder; by default folders of these names beside the file."""
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
