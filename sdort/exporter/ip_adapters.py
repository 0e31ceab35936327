"""IP-Adapters of an export: their attention goes into the UNet, their projections behind an image encoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdort.adapters.ip_adapter_file import IpAdapter, attention_tensors, read_ip_adapter
from sdort.checkpoints.clip_vision import EMBEDDINGS, HIDDEN_STATES, ImageEncoder, read_image_encoder
from sdort.checkpoints.pipeline_files import write_config
from sdort.checkpoints.weight_names import FAMILY_OF_WIDTH, REFINER
from sdort.console import say
from sdort.errors import BadModelError, UsageError
from sdort.exporter.source import AppliedIpAdapter, Source, entry_of
from sdort.families.component_names import IMAGE_ENCODER, PLUS
from sdort.families.unet import UNET
from sdort.files.file_digest import file_digest
from sdort.graph.weights import Weight

_PUBLISHED = "https://huggingface.co/h94/IP-Adapter"


@dataclass(frozen=True)
class IpAdapterFiles:
    """The IP-Adapters that an export is asked to have, and the image encoder that they share."""

    adapters: Sequence[Path] = ()
    encoder: Path | None = None
    """Its folder or file; None to look for it beside the adapters."""

    @property
    def reads(self) -> list[Path]:
        """The folders that are read."""
        return [self.encoder] if self.encoder and self.encoder.is_dir() else []


NO_IP_ADAPTERS = IpAdapterFiles()


def add_ip_adapters(
    source: Source, files: IpAdapterFiles, folder: Path, variant: str | None, allow_pickle: bool
) -> Source:
    """The source with IP-Adapters in its UNet, and an image encoder for them.

    Args:
        folder: where the encoder's config is written.
        variant: as for :meth:`Source.read_tensors`, and so is ``allow_pickle``.

    Raises:
        UsageError: a file does not exist, there is no image encoder, or the source has no UNet.
        BadModelError: a file is broken, or does not fit the others.
    """
    if not files.adapters:
        if files.encoder:
            raise UsageError("--image-encoder means nothing without --ip-adapter", hint="Give both, or neither.")
        return source
    if not entry_of(source.index, UNET.component):
        raise UsageError(f"--ip-adapter is for a UNet, which {source.name} does not have", hint="Leave it out.")
    adapters = [read_ip_adapter(path) for path in files.adapters]
    unet = source.read_tensors(UNET.component, UNET.component, variant, allow_pickle)
    _refuse_refiner(source, unet)
    added = attention_tensors(adapters, unet, source.name)
    encoder = _find_encoder(source, files, adapters)
    _say(adapters, encoder)
    write_config(folder / IMAGE_ENCODER, _config(encoder, adapters))
    return dataclasses.replace(
        source,
        index={**source.index, IMAGE_ENCODER: ["transformers", "CLIPVisionModelWithProjection"]},
        parts={**source.parts, IMAGE_ENCODER: folder / IMAGE_ENCODER},
        tensors={**source.tensors, UNET.component: {**unet, **added}, IMAGE_ENCODER: _tensors(encoder, adapters)},
        ip_adapters=tuple(_applied(adapter) for adapter in adapters),
    )


def _refuse_refiner(source: Source, unet: Mapping[str, Weight]) -> None:
    name = next((name for name in unet if name.endswith(".attn2.to_k.weight")), None)
    if name and FAMILY_OF_WIDTH.get(unet[name].shape[-1]) == REFINER:
        raise BadModelError(
            f"{source.name} is SDXL's refiner, for which there are no IP-Adapters",
            hint="Export the base with --ip-adapter, and let the refiner finish what it draws: sdort run --refiner",
        )


def _find_encoder(source: Source, files: IpAdapterFiles, adapters: Sequence[IpAdapter]) -> ImageEncoder:
    """The image encoder that was named, or one that fits, of the pipeline or beside the adapters."""
    if files.encoder:
        encoder = read_image_encoder(files.encoder)
        if problem := _misfit(encoder, adapters):
            raise BadModelError(
                f"{files.encoder} does not fit: {problem}", component=IMAGE_ENCODER, hint=_hint(adapters)
            )
        return encoder
    places = [source.part(IMAGE_ENCODER)] if entry_of(source.index, IMAGE_ENCODER) else []
    for adapter in adapters:  # as h94/IP-Adapter has them
        beside = adapter.path.resolve().parent
        places += [beside / IMAGE_ENCODER, beside.parent / "models" / IMAGE_ENCODER]
    for place in dict.fromkeys(places):
        if (place / "config.json").is_file() and (place / "model.safetensors").is_file():
            encoder = read_image_encoder(place)
            if not _misfit(encoder, adapters):
                return encoder
            say(f"{place} does not fit: {_misfit(encoder, adapters)}")
    raise UsageError(
        f"--ip-adapter {adapters[0].path} wants an image encoder, and none that fits lies beside it",
        hint=_hint(adapters),
    )


def _misfit(encoder: ImageEncoder, adapters: Sequence[IpAdapter]) -> str | None:
    """The reason why adapters cannot take what an encoder makes; None if they can."""
    for adapter in adapters:
        hidden, wants = adapter.kind == PLUS, adapter.projection["embeds"]
        has = encoder.width(hidden=hidden)
        if has != wants:
            what = "hidden states" if hidden else "image embeddings"
            return f"{adapter.path.name} takes {what} of {wants} numbers, and it makes some of {has}"
    return None


def _hint(adapters: Sequence[IpAdapter]) -> str:
    first = adapters[0]
    known = HIDDEN_STATES if first.kind == PLUS else EMBEDDINGS
    name = known.get(first.projection["embeds"], "the one that it was trained with")
    folder = "sdxl_models/image_encoder" if "bigG" in name else "models/image_encoder"
    hint = f"It wants {name}: --image-encoder DIR|FILE, such as {folder} of {_PUBLISHED}"
    several = len({(adapter.kind, adapter.projection["embeds"]) for adapter in adapters}) > 1
    return f"{hint}. Several IP-Adapters of one export share one encoder." if several else hint


def _say(adapters: Sequence[IpAdapter], encoder: ImageEncoder) -> None:
    for adapter in adapters:
        say(f"{adapter.path.name}: IP-Adapter ({adapter.kind}), {adapter.tokens} tokens; image encoder: {encoder.path}")


def _config(encoder: ImageEncoder, adapters: Sequence[IpAdapter]) -> dict[str, Any]:
    return {**encoder.config, "projections": [dict(adapter.projection) for adapter in adapters]}


def _tensors(encoder: ImageEncoder, adapters: Sequence[IpAdapter]) -> dict[str, Weight]:
    tensors = {f"encoder.{name}": tensor for name, tensor in encoder.tensors.items()}
    for number, adapter in enumerate(adapters):
        tensors |= {f"projections.{number}.{name}": tensor for name, tensor in adapter.projection_tensors.items()}
    return tensors


def _applied(adapter: IpAdapter) -> AppliedIpAdapter:
    path = adapter.path
    return AppliedIpAdapter(path.stem, adapter.kind, adapter.tokens, str(path), file_digest(path))
