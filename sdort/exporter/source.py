"""The source of an export: what a diffusers folder, a hub id, the demo and a single file have in common."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdort.checkpoints.clip_vision import vision_settings
from sdort.checkpoints.config_schemas import PUBLISHED_INDEX, REQUIRED, component_schema, contradiction
from sdort.checkpoints.configs import INDEX, check_processor, read_config
from sdort.checkpoints.file_kind import EXPORTED
from sdort.checkpoints.tokenizer_files import TABLES, check_tokenizer
from sdort.console import say, warn
from sdort.errors import BadModelError, UsageError
from sdort.exporter.checkpoint import read_checkpoint
from sdort.exporter.component_configs import DOWNLOAD_AGAIN, class_defaults, normalise
from sdort.exporter.pipeline_parts import check_channels, check_parts, exported_class
from sdort.exporter.plain_tokenizers import read_plain_tokenizer
from sdort.exporter.signatures import FOLDERS, ComponentSpec, describe_component
from sdort.exporter.trace_cache import TraceCache
from sdort.families.component_names import CONTROLS, DECODER, IMAGE_ENCODER, SAFETY_CHECKER
from sdort.families.family import PENULTIMATE, Denoiser, Family
from sdort.families.known_families import TOKENIZERS, family_of, family_of_class
from sdort.families.text_models import TEXT_MODELS
from sdort.files.model_folder import check_model_folder
from sdort.graph.weights import Weight
from sdort.pipelines.explain_path import no_diffusers_pipeline
from sdort.pipelines.folder import read_scheduler_config
from sdort.samplers.scheduler_names import is_flow, noise_process

LONE = {"ControlNetModel": "controlnet", "T2IAdapter": "adapter"}
"""Classes of components that are published in folders of their own -> their names in a pipeline's index."""

# Folders of a pipeline that are copied as they are.
_EXTRACTOR = "feature_extractor"
PROCESSORS = ("scheduler", *TOKENIZERS, _EXTRACTOR)
_TEXT_FILES = (".json", ".txt", ".jinja")
"""Ends of the names of their files."""


@dataclass(frozen=True)
class AppliedIpAdapter:
    """An IP-Adapter whose images the UNet of an export takes."""

    name: str
    """The file's name without its ending."""
    kind: str
    """``plain`` or ``plus``."""
    tokens: int
    """The number of tokens that it makes of an image."""
    path: str
    """The file as the user named it."""
    sha256: str
    """The hash of the file."""


@dataclass(frozen=True)
class Source:
    """A checkpoint on disk: as a diffusers folder, parts of which may lie elsewhere."""

    name: str
    """The name that the user gave: a hub id, ``demo``, or the folder's or file's own name."""
    folder: Path
    index: dict[str, Any]
    """``model_index.json``: the pipeline's class, and the library and class of every component."""
    parts: Mapping[str, Path] = field(default_factory=dict)
    """Component or processor -> its folder, where that is not in ``folder``."""
    tensors: Mapping[str, Mapping[str, Weight]] = field(default_factory=dict)
    """Component -> its weights, where they do not lie in its folder as diffusers saves them."""
    ip_adapters: tuple[AppliedIpAdapter, ...] = ()
    """IP-Adapters whose weights are among those of the UNet and of the image encoder."""
    vae: Mapping[str, Any] = field(default_factory=dict)
    """Config that scales the latents of the family's VAE, where no config says."""
    file: Path | None = None
    """The single file, or the VAE's folder, that the user named, where that is not ``folder``."""

    @property
    def origin(self) -> Path:
        """The file or folder that the user named, or that was downloaded or made in its place."""
        return self.file or self.folder

    @property
    def family(self) -> Family:
        """Its family, by the components that the index names."""
        named = {name: entry[1] for name in self.index if (entry := entry_of(self.index, name))}
        family = family_of(named, named.get)
        path = self.part(family.denoiser.component) / "config.json"
        return family.told_by(lambda: read_config(path, "the config", DOWNLOAD_AGAIN) if path.is_file() else {})

    @property
    def denoiser(self) -> Denoiser | None:
        """Its denoiser; None for a source without one."""
        denoiser = self.family.denoiser
        return denoiser if entry_of(self.index, denoiser.component) else None

    def part(self, name: str) -> Path:
        """The folder of a component or processor."""
        return self.parts.get(name, self.folder / name)

    def read_tensors(self, name: str, component: str, variant: str | None, allow_pickle: bool) -> Mapping[str, Weight]:
        """The weights of a component's folder, described and not read.

        Args:
            name: the folder, such as ``vae``.
            component: for messages.
            variant: as for :func:`read_checkpoint`, and so is ``allow_pickle``.

        Raises:
            BadModelError: as :func:`read_checkpoint`.
        """
        if name in self.tensors:
            return self.tensors[name]
        with _or_without(component):
            return read_checkpoint(self.part(name), component, variant, allow_pickle)


def read_source(folder: Path, name: str) -> Source:
    """The pipeline in a folder.

    Raises:
        BadModelError: the folder holds no diffusers pipeline, or one of another kind.
    """
    if not os.path.lexists(folder / INDEX):
        return _read_lone(folder, name)
    if _is_exported(folder):
        raise BadModelError(
            f"{folder} holds ONNX graphs already, and no weights to export",
            hint=f"The next step:\n    sdort optimize {shlex.quote(str(folder))} OUT",
        )
    check_model_folder(folder)
    index = read_config(folder / INDEX, "the pipeline's index", DOWNLOAD_AGAIN, schema=PUBLISHED_INDEX)
    if isinstance(module := index.get("_class_name"), list):
        index["_class_name"] = module[1]
    if not any(entry_of(index, folder_name) for folder_name in FOLDERS.values()):
        raise BadModelError(
            f"{folder} is a {index.get('_class_name', 'pipeline')} without a UNet, VAE or CLIP text encoder",
            hint=EXPORTED,
        )
    return Source(name, folder, index)


def holds_lone_control(folder: Path) -> bool:
    """Whether a folder is that of a ControlNet or T2I-Adapter as diffusers saves it, with weights."""
    path = folder / "config.json"
    if not path.is_file() or not any(folder.glob("*.safetensors")):
        return False
    return read_config(path, "the config", DOWNLOAD_AGAIN).get("_class_name") in LONE


def _read_lone(folder: Path, name: str) -> Source:
    """A ControlNet or T2I-Adapter, by the class that its config names."""
    path = folder / "config.json"
    config = read_config(path, "the config", DOWNLOAD_AGAIN) if os.path.lexists(path) else {}
    class_name = config.get("_class_name")
    if not isinstance(class_name, str) or class_name not in LONE:
        raise no_diffusers_pipeline(folder)
    check_model_folder(folder)
    part = LONE[class_name]
    return Source(name, folder, {"_class_name": class_name, part: ["diffusers", class_name]}, {part: folder})


def _is_exported(folder: Path) -> bool:
    """Some published checkpoints have ONNX graphs beside their weights; these are exported from their weights."""
    graphs = any((folder / name / "model.onnx").is_file() for name in FOLDERS)
    weights = [
        file for name in FOLDERS.values() for kind in ("*.safetensors", "*.bin") for file in (folder / name).glob(kind)
    ]
    return graphs and not weights


def select_components(
    source: Source, names: Collection[str], cache: TraceCache, *, control: bool = False, safety_checker: bool = True
) -> list[ComponentSpec]:
    """The components to export, described from their configs; all of the pipeline's if ``names`` is empty.

    Args:
        control: UNets also take the outputs of a ControlNet and of a T2I-Adapter.
        safety_checker: False leaves the pipeline's safety checker out, and says so.

    Raises:
        UsageError: a name is no component of the pipeline.
        BadModelError: a component's config is broken, or of an architecture that sdort does not export; or all are
            asked for, and the pipeline has models that are not exported.
    """
    if not names:
        check_parts(source.index, source.name)
    left_out = _left_out(source, names, safety_checker=safety_checker)
    classes = {
        name: _class_name(source, name)
        for name, folder in FOLDERS.items()
        if (entry := entry_of(source.index, folder)) and name not in left_out
        # What is not asked for may be of another class.
        if not names or name in names or exported_class(folder, entry[1])
    }
    unknown = sorted(set(names) - classes.keys())
    if unknown:
        raise UsageError(f"{source.name} has no {', '.join(unknown)}; it has {', '.join(classes)}")
    configs = {name: component_config(source, name, cache) for name in classes}
    family = source.family
    denoiser = family.denoiser
    if denoiser.component in configs and (not names or denoiser.component in names):
        check_channels(source.index, denoiser, configs[denoiser.component], configs.get(DECODER))
    pooled = next((each.component for each in family.encoders if family.denoiser.roles.pooled in each.conditioning), "")
    masked = {each.component for each in family.encoders if each.plain and each.plain.masked}
    # A pipeline that has a ControlNet of its own is of no use without these inputs.
    control = control or any(name in classes for name in CONTROLS)
    return [
        describe_component(
            name,
            class_name,
            normalise(class_name, configs[name], cache.defaults(class_name, class_defaults)),
            hidden_states=_needs_hidden_states(source),
            text_embeds=configs.get(pooled, {}).get("projection_dim"),
            control=control,
            image_tokens=[adapter.tokens for adapter in source.ip_adapters],
            masked=name in masked,
        )
        for name, class_name in classes.items()
        if not names or name in names
    ]


def _needs_hidden_states(source: Source) -> bool:
    """Whether the states of all layers of text encoders condition; by its class too, of a pipeline in parts."""
    families = source.family, family_of_class(str(source.index.get("_class_name")))
    encoders = [encoder for family in families if family for encoder in family.encoders]
    return any(PENULTIMATE in encoder.conditioning.values() for encoder in encoders)


def _left_out(source: Source, names: Collection[str], *, safety_checker: bool) -> set[str]:
    """Components of the pipeline that are not exported."""
    # Without an IP-Adapter nothing takes what a pipeline's image encoder makes.
    left_out = set() if source.ip_adapters else {IMAGE_ENCODER}
    entry = entry_of(source.index, SAFETY_CHECKER)
    if entry and not safety_checker:
        left_out.add(SAFETY_CHECKER)
        say(f"the safety checker of {source.name} is left out, as asked")
    elif entry and SAFETY_CHECKER not in names and (reason := _why_no_checker(source, entry[1])):
        left_out.add(SAFETY_CHECKER)
        warn(f"the safety checker of {source.name} is left out: {reason}")
    return left_out


def _why_no_checker(source: Source, class_name: Any) -> str | None:
    """The reason why a safety checker that the index names is not exported; None if it is."""
    if not exported_class(SAFETY_CHECKER, class_name):
        return f"sdort does not export a {class_name}"
    folder = source.part(SAFETY_CHECKER)
    return None if folder.exists() else f"{folder} is not there"


@contextmanager
def _or_without(component: str) -> Iterator[None]:
    """A block in which a component is read; of a broken safety checker its error says that it can be left out."""
    try:
        yield
    except BadModelError as error:
        if component == SAFETY_CHECKER:
            error.hint = f"{error.hint or ''} Or export without it: --no-safety-checker".strip()
        raise


def component_config(source: Source, name: str, cache: TraceCache) -> dict[str, Any]:
    """A component's ``config.json`` with defaults filled in: old configs lack what later versions added."""
    class_name = _class_name(source, name)
    path = source.part(FOLDERS[name]) / "config.json"
    try:
        with _or_without(name):
            config = read_config(path, "the config", DOWNLOAD_AGAIN, schema=component_schema(name))
    except BadModelError as error:
        error.component = name
        raise
    if name == SAFETY_CHECKER:  # it is saved as a whole CLIP model
        config = vision_settings(config)
    if missing := [key for key in REQUIRED.get(class_name, ()) if key not in config]:
        raise BadModelError(f"the config {path} has no {missing[0]}", component=name, hint=DOWNLOAD_AGAIN)
    # Where somebody's checkpoint once lay is nobody's business.
    config.pop("_name_or_path", None)
    whole = cache.defaults(class_name, class_defaults) | config
    if problem := contradiction(class_name, whole):
        raise BadModelError(f"the config {path} contradicts itself: {problem}", component=name, hint=DOWNLOAD_AGAIN)
    return whole


def copied_processors(source: Source) -> list[str]:
    """The processors that are copied: all that the index names, but for a feature extractor that is not there and that
    no safety checker needs."""
    named = [name for name in PROCESSORS if entry_of(source.index, name)]
    judges = entry_of(source.index, SAFETY_CHECKER) and source.part(SAFETY_CHECKER).exists()
    if _EXTRACTOR in named and not judges and not source.part(_EXTRACTOR).exists():
        named.remove(_EXTRACTOR)
    return named


def check_copied(source: Source) -> None:
    """Refuse a source without a processor that its index names, before the first slow step.

    Raises:
        BadModelError: as :func:`processor_files`.
    """
    copied = copied_processors(source)
    if entry_of(source.index, _EXTRACTOR) and _EXTRACTOR not in copied:
        say(f"the feature extractor of {source.name} is left out: {source.part(_EXTRACTOR)} is not there")
    for name in copied:
        processor_files(source, name)


def processor_files(source: Source, name: str) -> list[Path]:
    """The files of a processor that are copied as they are.

    Raises:
        BadModelError: there are none.
    """
    files = [file for file in sorted(source.part(name).glob("*")) if file.suffix in _TEXT_FILES]
    if not files:
        raise BadModelError(f"{source.part(name)} is missing or empty", hint="Copy or download the checkpoint again.")
    return files


def check_processors(source: Source) -> None:
    """Read the configs of what is copied as it is, so that it is not found broken in OUT.

    Raises:
        BadModelError: a scheduler's, tokenizer's or feature extractor's JSON is broken; or the files of a tokenizer do
            not belong together, or to its text encoder.
    """
    family = source.family
    plain = {each.tokenizer: each.plain for each in (*family.encoders, *family.absent) if each.plain}
    for name in PROCESSORS:
        if entry_of(source.index, name):
            tokenizer = name in TOKENIZERS
            if name in plain:
                read_plain_tokenizer(source.part(name), plain[name])
            elif tokenizer:
                check_tokenizer(source.part(name))
            check_processor(source.part(name), DOWNLOAD_AGAIN, TABLES if tokenizer else ())
            if name == "scheduler":
                _tell_noise_process(source)


def _tell_noise_process(source: Source) -> None:
    if not source.part("scheduler").is_dir():
        return  # refused where its files are copied
    config = read_scheduler_config(source.part("scheduler"))
    if not is_flow(config) and (process := noise_process(config)):
        warn(
            f"{source.name} is a model of {process}: its components are exported, and sdort run does not draw with its "
            f"scheduler, {config.get('_class_name')}, nor with another"
        )


def entry_of(index: Mapping[str, Any], folder: str) -> list[Any] | None:
    """The library and class that an index names for a component; None where it has none."""
    entry = index.get(folder)
    return entry if isinstance(entry, list) and len(entry) == 2 and entry[1] is not None else None


def _of_family(source: Source, name: str, class_name: str) -> bool:
    """Whether a text encoder's class is a kind of that which its place in the family has; true of other components, and
    where no denoiser tells the family."""
    if source.denoiser is None:
        return True
    usual = next((each.class_name for each in source.family.encoders if each.component == name), class_name)
    kinds = [TEXT_MODELS[each].model_type for each in (usual, class_name) if each in TEXT_MODELS]
    return len(set(kinds)) < 2


def _class_name(source: Source, name: str) -> str:
    entry = entry_of(source.index, FOLDERS[name])
    class_name = entry[1] if entry else None
    if not exported_class(FOLDERS[name], class_name) or not _of_family(source, name, str(class_name)):
        raise BadModelError(
            f"{source.name} has a {class_name} there, which sdort does not export",
            component=name,
            hint="Several ControlNets or T2I-Adapters are exported one by one, each from its own folder."
            if name in CONTROLS
            else EXPORTED,
        )
    return str(class_name)
