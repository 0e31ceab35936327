"""The source of an export: a diffusers directory, a hub id, or the demo pipeline."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdort.console import progress
from sdort.demo import DEMO_NAMES, write_demo
from sdort.errors import BadModelError, SdortError, UsageError
from sdort.errors.plain_text import library_reason
from sdort.exporter.component_configs import DOWNLOAD_AGAIN, class_defaults, normalise
from sdort.exporter.signatures import FOLDERS, LIBRARIES, ComponentSpec, describe_component
from sdort.exporter.trace_cache import TraceCache
from sdort.machine.model_folder import check_model_folder
from sdort.machine.subprocesses import WorkerError, run_worker
from sdort.pipelines.config_schemas import PIPELINE_INDEX, REQUIRED, component_schema, contradiction
from sdort.pipelines.configs import INDEX, check_processor, read_config
from sdort.pipelines.tokenizer_files import TABLES, TOKENIZERS, check_tokenizer
from sdort.pipelines.wrong_input import HUB_ID, in_home, no_diffusers_pipeline, not_there
from sdort.staging import temporary_folder

# Folders of a pipeline that are copied as they are.
PROCESSORS = ("scheduler", "tokenizer", "tokenizer_2", "feature_extractor")


@dataclass(frozen=True)
class Source:
    """A diffusers pipeline on disk."""

    name: str
    """The name that the user gave: a hub id, ``demo``, or the folder's own name."""
    folder: Path
    index: dict[str, Any]
    """``model_index.json``: the pipeline's class, and the library and class of every component."""


@contextmanager
def open_source(
    model: str, *, variant: str | None = None, allow_pickle: bool = False, downloads: bool = True
) -> Iterator[Source]:
    """Find ``model`` on disk, after making or downloading it if need be.

    Args:
        downloads: False takes a hub id only if it was downloaded before.

    Raises:
        UsageError: there is no such thing.
        BadModelError: it is no diffusers pipeline.
        SdortError: a hub id cannot be downloaded.
    """
    if model in DEMO_NAMES:
        with temporary_folder("demo") as folder:
            with progress("making the demo pipeline"):
                write_demo(model, folder)
            yield read_source(folder, model)
        return
    path = in_home(model)
    if path.is_dir():
        yield read_source(path, path.resolve().name)
    elif path.exists():
        raise no_diffusers_pipeline(path)
    elif HUB_ID.fullmatch(model) and not path.parent.is_dir():
        yield read_source(_download(model, variant, allow_pickle, local=not downloads), model)
    else:
        raise not_there(model, DEMO_NAMES)


def read_source(folder: Path, name: str) -> Source:
    """The pipeline in a folder.

    Raises:
        BadModelError: the folder holds no diffusers pipeline, or one of another kind.
    """
    if not os.path.lexists(folder / INDEX):
        raise no_diffusers_pipeline(folder)
    if _is_exported(folder):
        raise BadModelError(
            f"{folder} holds ONNX graphs already, and no weights to export",
            hint=f"The next step:\n    sdort optimize {shlex.quote(str(folder))} OUT",
        )
    check_model_folder(folder)
    index = read_config(folder / INDEX, "the pipeline's index", DOWNLOAD_AGAIN, schema=PIPELINE_INDEX)
    if not any(_entry(index, folder_name) for folder_name in FOLDERS.values()):
        raise BadModelError(
            f"{folder} is a {index.get('_class_name', 'pipeline')} without a UNet, VAE or CLIP text encoder",
            hint="sdort exports Stable Diffusion 1.x, 2.x (inpainting too) and XL.",
        )
    return Source(name, folder, index)


def _is_exported(folder: Path) -> bool:
    """Some published checkpoints have ONNX graphs beside their weights; these are exported from their weights."""
    graphs = any((folder / name / "model.onnx").is_file() for name in FOLDERS)
    weights = [
        file for name in FOLDERS.values() for kind in ("*.safetensors", "*.bin") for file in (folder / name).glob(kind)
    ]
    return graphs and not weights


def select_components(source: Source, names: Collection[str], cache: TraceCache) -> list[ComponentSpec]:
    """The components to export, described from their configs; all of the pipeline's if ``names`` is empty.

    Raises:
        UsageError: a name is no component of the pipeline.
        BadModelError: a component's config is broken, or of an architecture that sdort does not export.
    """
    classes = {name: _class_name(source, name) for name, folder in FOLDERS.items() if _entry(source.index, folder)}
    unknown = sorted(set(names) - classes.keys())
    if unknown:
        raise UsageError(f"{source.name} has no {', '.join(unknown)}; it has {', '.join(classes)}")
    configs = {name: component_config(source, name, cache) for name in classes}
    second = configs.get("text_encoder_2", {})
    return [
        describe_component(
            name,
            class_name,
            normalise(class_name, configs[name], cache.defaults(class_name, class_defaults)),
            hidden_states=str(source.index.get("_class_name")).startswith("StableDiffusionXL"),
            text_embeds=second.get("projection_dim"),
        )
        for name, class_name in classes.items()
        if not names or name in names
    ]


def component_config(source: Source, name: str, cache: TraceCache) -> dict[str, Any]:
    """A component's ``config.json`` with defaults filled in: old configs lack what later versions added."""
    class_name = _class_name(source, name)
    path = source.folder / FOLDERS[name] / "config.json"
    try:
        config = read_config(path, "the config", DOWNLOAD_AGAIN, schema=component_schema(name))
    except BadModelError as error:
        error.component = name
        raise
    if missing := [key for key in REQUIRED[class_name] if key not in config]:
        raise BadModelError(f"the config {path} has no {missing[0]}", component=name, hint=DOWNLOAD_AGAIN)
    # Where somebody's checkpoint once lay is nobody's business.
    config.pop("_name_or_path", None)
    whole = cache.defaults(class_name, class_defaults) | config
    if problem := contradiction(class_name, whole):
        raise BadModelError(f"the config {path} contradicts itself: {problem}", component=name, hint=DOWNLOAD_AGAIN)
    return whole


def check_processors(source: Source) -> None:
    """Read the configs of what is copied as it is, so that it is not found broken in OUT.

    Raises:
        BadModelError: a scheduler's, tokenizer's or feature extractor's JSON is broken; or the files of a tokenizer do
            not belong together, or to its text encoder.
    """
    for name in PROCESSORS:
        if _entry(source.index, name):
            tokenizer = name in TOKENIZERS
            if tokenizer:
                check_tokenizer(source.folder / name)
            check_processor(source.folder / name, DOWNLOAD_AGAIN, TABLES if tokenizer else ())


def _entry(index: dict[str, Any], folder: str) -> list[Any] | None:
    entry = index.get(folder)
    return entry if isinstance(entry, list) and len(entry) == 2 and entry[1] is not None else None


def _class_name(source: Source, name: str) -> str:
    entry = _entry(source.index, FOLDERS[name])
    class_name = entry[1] if entry else None
    text = LIBRARIES.get(class_name) == "transformers" if isinstance(class_name, str) else None
    expected = {"unet": "UNet2DConditionModel", "vae": "AutoencoderKL"}.get(FOLDERS[name])
    if class_name != expected if expected else not text:
        raise BadModelError(
            f"{source.name} has a {class_name} there, which sdort does not export",
            component=name,
            hint="sdort exports Stable Diffusion 1.x, 2.x (inpainting too) and XL.",
        )
    return str(class_name)


def _download(model: str, variant: str | None, allow_pickle: bool, *, local: bool) -> Path:
    """diffusers' own download, or its copy of an earlier one; in a process of its own, which Ctrl-C ends at once."""
    task = {"model": model, "variant": variant, "allow_pickle": allow_pickle, "local": local}
    with progress(f"downloading {model}"):
        try:
            answer = run_worker("sdort.exporter.source:download", task)
        except WorkerError as error:
            answer = {"problem": f"the download ended with code {error.code}, which said: {error.said}"}
    if "folder" in answer:
        return Path(answer["folder"])
    hint = "Check the name, the network and your token; or download it elsewhere and give its folder."
    if variant and f"variant={variant}" in answer["problem"]:
        hint = "Leave out --variant."
    if local:
        hint = "--dry-run downloads nothing: give a folder, or a hub id that was downloaded before."
    raise SdortError(f"cannot load {model} from the hub ({answer['problem']})", hint=hint)


def download(model: str, variant: str | None, allow_pickle: bool, local: bool) -> dict[str, str]:
    """Download a pipeline in this process.

    Returns:
        Its ``folder``, or the ``problem``: that it is offline, not there, or gated.
    """
    from diffusers import DiffusionPipeline

    from sdort.console import quiet_libraries

    # None: safetensors, or pickles where there are none.
    options = {"variant": variant, "use_safetensors": None if allow_pickle else True}
    try:
        with quiet_libraries():
            folder = DiffusionPipeline.download(model, **options, **({"local_files_only": True} if local else {}))
    except Exception as error:  # each library below raises its own
        first = library_reason(error).partition(" Please check out")[0]
        return {"problem": f"{type(error).__name__}: {first}"}
    return {"folder": str(folder)}
