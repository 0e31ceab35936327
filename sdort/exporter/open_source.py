"""The opening of a source: a diffusers folder, a hub id, the demo pipeline, a single file, a lone VAE or ControlNet."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sdort.checkpoints.file_kind import recognise_file
from sdort.checkpoints.weight_names import Kind
from sdort.console import progress
from sdort.demo import DEMO_NAMES, write_demo
from sdort.errors import BadModelError, SdortError, UsageError
from sdort.errors.plain_text import library_reason
from sdort.exporter.checkpoint import ANY_VARIANT
from sdort.exporter.ip_adapters import NO_IP_ADAPTERS, IpAdapterFiles, add_ip_adapters
from sdort.exporter.replacements import Replacements, replace_parts
from sdort.exporter.single_source import control_source, single_file_source, vae_source
from sdort.exporter.source import Source, read_source
from sdort.exporter.vae_parts import holds_vae
from sdort.files.staging import temporary_folder
from sdort.machine.optional_packages import COMPARING, need_packages
from sdort.machine.subprocesses import WorkerError, run_worker
from sdort.pipelines.explain_path import HUB_ID, in_home, no_diffusers_pipeline, not_there


@contextmanager
def open_source(
    model: str,
    *,
    variant: str | None = None,
    allow_pickle: bool = False,
    downloads: bool = True,
    replaced: Replacements = Replacements(),  # noqa: B008  # it is frozen
    ip_adapters: IpAdapterFiles = NO_IP_ADAPTERS,
) -> Iterator[Source]:
    """Find ``model`` on disk, after making or downloading it if need be.

    Args:
        downloads: False takes a hub id only if it was downloaded before.
        replaced: what stands in the place of parts of it.
        ip_adapters: what its UNet is to take images by.

    Raises:
        UsageError: there is no such thing, or it has not the part that is to be replaced.
        BadModelError: it is no checkpoint that sdort exports, or an IP-Adapter does not fit it.
        SdortError: a hub id cannot be downloaded.
    """
    with temporary_folder("checkpoint") as folder:
        source = _open(model, folder, variant, allow_pickle, downloads, replaced)
        source = replace_parts(source, replaced, folder)
        yield add_ip_adapters(source, ip_adapters, folder, variant, allow_pickle)


def _open(
    model: str, folder: Path, variant: str | None, allow_pickle: bool, downloads: bool, replaced: Replacements
) -> Source:
    path = in_home(model)
    if model not in DEMO_NAMES and path.is_file():
        return _open_file(path, folder, replaced, allow_pickle)
    on_hub = HUB_ID.fullmatch(model) is not None and not path.parent.is_dir()
    if not (model in DEMO_NAMES or path.exists() or on_hub):
        raise not_there(model, DEMO_NAMES)
    _refuse_file_options(model, replaced)
    if model in DEMO_NAMES:
        with progress("making the demo pipeline"):
            (folder / "demo").mkdir()
            write_demo(model, folder / "demo")
        return read_source(folder / "demo", model)
    if path.is_dir():
        return vae_source(path, folder) if holds_vae(path) else read_source(path, path.resolve().name)
    if path.exists():
        raise no_diffusers_pipeline(path)
    asked = None if variant == ANY_VARIANT else variant
    return read_source(download_pipeline(model, asked, allow_pickle, local=not downloads), model)


def _open_file(path: Path, folder: Path, replaced: Replacements, allow_pickle: bool) -> Source:
    match recognise_file(path).kind:
        case Kind.PICKLE if allow_pickle:
            return _open_pickle(path, folder, replaced)
        case Kind.CHECKPOINT | Kind.UNET:
            return single_file_source(path, folder, replaced)
        case Kind.VAE:
            _refuse_file_options(str(path), replaced)
            return vae_source(path, folder)
        case Kind.CONTROLNET:
            _refuse_file_options(str(path), replaced)
            return control_source(path, folder)
    raise no_diffusers_pipeline(path)


def _open_pickle(path: Path, folder: Path, replaced: Replacements) -> Source:
    """A pickled checkpoint by way of a safetensors file."""
    need_packages("torch", what=f"the pickle {path}")
    from sdort.exporter.pickles import convert_pickle

    with progress(f"reading {path.name}"):
        (folder / "converted").mkdir()
        converted = convert_pickle(path, folder / "converted")
    source = _open_file(converted, folder, replaced, allow_pickle=False)
    return dataclasses.replace(source, name=path.name, file=path)


def _refuse_file_options(model: str, replaced: Replacements) -> None:
    if replaced.config or replaced.ema:
        option = "--config" if replaced.config else "--ema"
        raise UsageError(f"{option} is for single files with a UNet, which {model} is not")


_LACKING = "necessary `safetensors` weights"
"""Stands in what diffusers says of a pipeline that has a component without safetensors of the variant."""


def download_pipeline(
    model: str, variant: str | None = None, allow_pickle: bool = False, *, local: bool = False
) -> Path:
    """diffusers' own download, or its copy of an earlier one; in a process of its own, which Ctrl-C ends at once.

    Args:
        local: take the copy alone.

    Raises:
        BadModelError: it has no safetensors that the variant names.
        SdortError: it cannot be downloaded.
    """
    task = {"model": model, "variant": variant, "allow_pickle": allow_pickle, "local": local}
    with progress(f"downloading {model}"):
        try:
            answer = run_worker("sdort.exporter.open_source:download", task)
        except WorkerError as error:
            answer = {"problem": f"the download ended with code {error.code}, which said: {error.said}"}
    if "folder" in answer:
        return Path(answer["folder"])
    if answer.get("lacks"):
        raise _lacking(model, variant)
    hint = "Check the name, the network and your token; or download it elsewhere and give its folder."
    if variant and f"variant={variant}" in answer["problem"]:
        hint = "Leave out --variant."
    if local:
        hint = "--dry-run downloads nothing: give a folder, or a hub id that was downloaded before."
    raise SdortError(f"cannot load {model} from the hub ({answer['problem']})", hint=hint)


def _lacking(model: str, variant: str | None) -> BadModelError:
    """The error for a pipeline that has a component without safetensors of the variant."""
    if variant:
        message = f"{model} has no safetensors of variant {variant} on the hub for all of its components"
        return BadModelError(message, hint="Leave out --variant.")
    return BadModelError(
        f"{model} has no safetensors on the hub for all of its components",
        hint="It may have those of a variant: --variant fp16. Or pickles alone, which may run code when they are read: "
        "--allow-pickle reads their tensors.",
    )


def download(model: str, variant: str | None, allow_pickle: bool, local: bool) -> dict[str, str]:
    """Download a pipeline in this process.

    Returns:
        Its ``folder``, or the ``problem``: that it is offline, not there, or gated; ``lacks`` where it has other
        files than those that are asked for.
    """
    need_packages(*COMPARING, what="a download from the hub")
    from diffusers import DiffusionPipeline

    from sdort.console import quiet_libraries

    # None: safetensors, or pickles where there are none.
    options = {"variant": variant, "use_safetensors": None if allow_pickle else True}
    try:
        with quiet_libraries():
            folder = DiffusionPipeline.download(model, **options, **({"local_files_only": True} if local else {}))
    except Exception as error:  # each library below raises its own
        first = library_reason(error).partition(" Please check out")[0]
        if _LACKING in first:
            return {"problem": first, "lacks": "safetensors"}
        return {"problem": f"{type(error).__name__}: {first}"}
    return {"folder": str(folder)}
