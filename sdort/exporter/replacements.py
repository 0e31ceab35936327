"""Replacements of parts of a checkpoint: another VAE, another scheduler, another type of prediction.

An export records it, so that the same can be made of the checkpoint again, for a comparison.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdort.checkpoints.config_schemas import component_schema
from sdort.checkpoints.configs import optional_config, write_json
from sdort.console import warn
from sdort.errors import BadModelError, UsageError
from sdort.exporter.checkpoint import ANY_VARIANT
from sdort.exporter.source import Source, entry_of
from sdort.exporter.vae_parts import VaePart, read_vae
from sdort.families.component_names import DECODER
from sdort.pipelines.folder import read_scheduler_config
from sdort.pipelines.origin import ORIGIN, has_mark, origin_mark
from sdort.samplers.scheduler_names import (
    check_noise_process,
    check_not_of_flow,
    find_scheduler,
    flow_scheduler,
    is_flow,
)

MADE_WITH = "made_with"
"""The manifest's field with the options by which the checkpoint was read."""


@dataclass(frozen=True)
class Replacements:
    """The options of an export that replace parts of the checkpoint."""

    config: Path | None = None
    """A diffusers folder whose configs, tokenizers and scheduler a single file gets."""
    vae: Path | None = None
    """A VAE's folder or file, or a pipeline's folder."""
    scheduler: str | None = None
    """A scheduler's short name or class."""
    prediction_type: str | None = None
    """One of :data:`sdort.checkpoints.prediction.PREDICTIONS`."""
    ema: bool = False
    """Read a single file's averaged weights."""
    text_encoders: Mapping[str, Path] = field(default_factory=dict)
    """Component -> the file of a text encoder, beside a single file."""
    tokenizers: Mapping[str, Path] = field(default_factory=dict)
    """Tokenizer -> its folder, beside a single file."""

    @property
    def reads(self) -> list[Path]:
        """The folders that are read."""
        return [path for path in (self.config, self.vae, *self.tokenizers.values()) if path and path.is_dir()]


@dataclass(frozen=True)
class MadeWith:
    """How an export read its checkpoint."""

    replaced: Replacements = Replacements()
    variant: str | None = None
    allow_pickle: bool = False

    def record(self) -> dict[str, Any]:
        """The options that are not the defaults, for the manifest: paths with the marks of what lies there."""
        named = None if self.variant == ANY_VARIANT else self.variant
        values = {**vars(self.replaced), "variant": named, "allow_pickle": self.allow_pickle}
        return {name: _recorded(value) for name, value in values.items() if value}

    @classmethod
    def of_manifest(cls, manifest: Mapping[str, Any], places: Sequence[Path]) -> MadeWith:
        """Read what :meth:`record` wrote to a manifest.

        Args:
            places: folders where files are looked for, if they moved.

        Raises:
            UsageError: a file or folder is not there, or another one is.
        """
        entry = dict(manifest.get(MADE_WITH) or {})
        variant, allow_pickle = entry.pop("variant", None), bool(entry.pop("allow_pickle", False))
        for name in ("config", "vae"):
            if entry.get(name):
                entry[name] = _find(f"--{name} ", entry[name], places)
        for name, option in (("text_encoders", "--text-encoder"), ("tokenizers", "--tokenizer")):
            if entry.get(name):
                entry[name] = {
                    part: _find(f"{option} {part}=", each, places) for part, each in dict(entry[name]).items()
                }
        return cls(Replacements(**entry), variant, allow_pickle)

    @property
    def for_folder(self) -> Replacements:
        """Those replacements that a diffusers folder takes too."""
        return dataclasses.replace(self.replaced, config=None, ema=False, text_encoders={}, tokenizers={})

    @property
    def told(self) -> list[str]:
        """The differences from the checkpoint alone, in words."""
        given = self.replaced
        words = {
            "the configs of {}": given.config and given.config.name,
            "the VAE {}": given.vae and given.vae.name,
            "the scheduler {}": given.scheduler,
            "prediction type {}": given.prediction_type,
            "its averaged weights": given.ema,
            "{}": ", ".join(f"the {name} {path.name}" for name, path in given.text_encoders.items()),
        }
        return [text.format(value) for text, value in words.items() if value]


def _recorded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _recorded(each) for name, each in value.items()}
    return {"path": str(value.resolve()), ORIGIN: origin_mark(value)} if isinstance(value, Path) else value


def _find(option: str, entry: Mapping[str, Any], places: Sequence[Path]) -> Path:
    """The file or folder that a manifest records, known by its mark."""
    path = Path(entry["path"])
    for candidate in (path, *(place / path.name for place in places)):
        if candidate.exists() and has_mark(candidate, entry[ORIGIN]):
            return candidate
    raise UsageError(
        f"the export was made with {option}{path}, which is not there, or is another one by now",
        hint=f"Put {path.name} beside the pipeline or the checkpoint.",
    )


def replace_parts(source: Source, replaced: Replacements, folder: Path) -> Source:
    """The source with other parts.

    Args:
        folder: where small files are written.

    Raises:
        UsageError: there is no such scheduler or path; or the source has no scheduler, or one without such a
            replacement.
        BadModelError: the VAE is none, broken, or does not fit the UNet.
    """
    if replaced.scheduler or replaced.prediction_type:
        source = _with_scheduler(source, replaced, folder / "replaced")
    return _with_vae(source, replaced.vae, folder) if replaced.vae else source


def _with_scheduler(source: Source, replaced: Replacements, folder: Path) -> Source:
    if not entry_of(source.index, "scheduler"):
        raise UsageError(f"{source.name} has no scheduler to replace")
    config = read_scheduler_config(source.part("scheduler"))
    if replaced.prediction_type and is_flow(config):
        raise UsageError(
            f"--prediction-type {replaced.prediction_type} is not for {source.name}, a model of flow matching",
            hint="Leave it out: such a model predicts a flow.",
        )
    if replaced.scheduler:
        check_noise_process(config, source.name, replaced.scheduler)
        class_name, additions = find_scheduler(replaced.scheduler)
        if is_flow(config):
            class_name, additions = flow_scheduler(class_name, additions, config)
        else:
            check_not_of_flow(class_name, source.name, config)
        config |= {**additions, "_class_name": class_name}
    if replaced.prediction_type:
        config["prediction_type"] = replaced.prediction_type
    folder.mkdir()
    write_json(folder / "scheduler_config.json", config)
    index = {**source.index, "scheduler": ["diffusers", config.get("_class_name")]}
    return dataclasses.replace(source, index=index, parts={**source.parts, "scheduler": folder})


def _with_vae(source: Source, path: Path, folder: Path) -> Source:
    if not path.exists():
        raise UsageError(f"--vae {path} does not exist")
    if not source.denoiser:
        raise UsageError(f"{source.name} has no UNet, whose VAE could be replaced")
    own = optional_config(source.part("vae") / "config.json", component_schema("vae"))
    target = folder / "other"
    target.mkdir()
    vae = read_vae(path, target, own or source.vae)
    _check_fit(source, vae, path, own or source.vae)
    return dataclasses.replace(
        source,
        index={**source.index, "vae": ["diffusers", vae.class_name]},
        parts={**source.parts, "vae": vae.folder},
        tensors={**source.tensors, "vae": vae.tensors},
    )


def _denoiser_config(source: Source) -> dict[str, Any]:
    assert source.denoiser is not None
    name = source.denoiser.component
    return optional_config(source.part(name) / "config.json", component_schema(name))


def _check_fit(source: Source, vae: VaePart, path: Path, usual: Any) -> None:
    assert source.denoiser is not None
    has, wants = vae.config.get("latent_channels"), source.denoiser.channels_of(_denoiser_config(source), made=True)
    if has != wants:
        raise BadModelError(
            f"{path} has latents of {has} channels, and the {source.denoiser.title} of {source.name} makes {wants}",
            component=DECODER,
            hint="Give the VAE of the same family.",
        )
    scale = usual.get("scaling_factor")
    if vae.class_name == "AutoencoderKL" and scale and vae.config.get("scaling_factor", scale) != scale:
        warn(
            f"the VAE {path} has a scaling_factor of {vae.config['scaling_factor']}, and the family's is {scale}: is "
            "it of the same family?"
        )
