"""The opening of a source: a diffusers folder, a hub id, the demo pipeline, a single file, a lone VAE or ControlNet."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sdort.checkpoints.clip_merges import CLIP_TOKENS
from sdort.checkpoints.configs import INDEX, read_config
from sdort.checkpoints.control_file import read_control_file
from sdort.checkpoints.file_kind import recognise_file
from sdort.checkpoints.pipeline_files import write_config, write_pipeline_files
from sdort.checkpoints.single_file import SingleFile, read_encoder_file, read_single_file
from sdort.checkpoints.weight_names import Kind
from sdort.console import progress, say, warn
from sdort.demo import DEMO_NAMES, write_demo
from sdort.errors import BadModelError, SdortError, UsageError
from sdort.errors.plain_text import library_reason, some
from sdort.exporter.checkpoint import ANY_VARIANT, has_weights
from sdort.exporter.ip_adapters import NO_IP_ADAPTERS, IpAdapterFiles, add_ip_adapters
from sdort.exporter.replacements import Replacements, replace_parts
from sdort.exporter.source import LONE, Source, entry_of, read_source
from sdort.exporter.vae_parts import holds_vae, read_vae
from sdort.families.component_names import SAFETY_CHECKER
from sdort.families.data import sd1
from sdort.families.unet import UNET
from sdort.files.staging import temporary_folder
from sdort.machine.optional_packages import COMPARING, need_packages
from sdort.machine.subprocesses import WorkerError, run_worker
from sdort.pipelines.explain_path import HUB_ID, in_home, no_diffusers_pipeline, not_there
from sdort.tables import counted


def single_file_source(path: Path, folder: Path, replaced: Replacements) -> Source:
    """The source of a file that holds a UNet, and perhaps a VAE and text encoders.

    Args:
        folder: an empty one, for what the file lacks.

    Raises:
        BadModelError: the file is broken, or of a kind that sdort does not export.
    """
    file = read_single_file(path, ema=replaced.ema, prediction_type=replaced.prediction_type)
    say(_describe(file, replaced))
    _add_text_encoders(file, replaced)
    if replaced.config:
        return _with_configs(file, read_source(replaced.config, path.name), replaced)
    _check_vocabulary(file)
    write_pipeline_files(file.family, file.variant, file.configs, file.scheduler, folder)
    if file.family.denoiser is UNET:
        _tell_lacks(file.lacks, replaced, file.path.name)
    else:
        _check_whole(file, replaced)
    index = read_config(folder / INDEX)
    parts = _tokenizers(file, replaced)
    return Source(path.name, folder, index, parts, file.tensors, vae=file.family.vae, file=path)


def _add_text_encoders(file: SingleFile, replaced: Replacements) -> None:
    """Add the text encoders that have files of their own."""
    known = {part.component: part for part in file.family.encoders}
    for name, path in replaced.text_encoders.items():
        if name not in known:
            raise UsageError(
                f"--text-encoder {name}: {file.family.name} has no such text encoder",
                hint=f"It has {' and '.join(known)}.",
            )
        if not path.is_file():
            raise UsageError(f"--text-encoder {name}={path}: there is no such file")
        read_encoder_file(path, file, known[name])
        say(f"{name}: from {path.name}")


def _check_whole(file: SingleFile, replaced: Replacements) -> None:
    """Refuse a transformer without what it needs to draw.

    Raises:
        UsageError: which components are missing, and the options that bring them.
    """
    optional = {part.component for part in file.family.encoders if part.optional}
    missing = [name for name in file.lacks if name not in optional and not (name == "vae" and replaced.vae)]
    if missing:
        options = " ".join("--vae FILE" if name == "vae" else f"--text-encoder {name}=FILE" for name in missing)
        raise UsageError(
            f"{file.path.name} has no {' and no '.join(missing)}, which {file.family.name} draws with",
            hint=f"Give them:\n    sdort export {shlex.quote(str(file.path))} OUT {options}",
        )
    for name in optional.intersection(file.lacks):
        say(
            f"{file.path.name} has no {name}, and {file.family.name} draws without it; sdort export --text-encoder "
            f"{name}=FILE adds it"
        )


def _tokenizers(file: SingleFile, replaced: Replacements) -> Mapping[str, Path]:
    """The folders of tokenizers that the user gives, or that lie beside the files.

    Raises:
        UsageError: there is no such tokenizer or folder; or none of an encoder that reads plain text.
    """
    encoders = [part for part in file.family.encoders if part.component in file.tensors]
    if unknown := replaced.tokenizers.keys() - {part.tokenizer for part in encoders}:
        raise UsageError(
            f"--tokenizer {min(unknown)}: {file.path.name} has no such tokenizer",
            hint=f"It has {' and '.join(part.tokenizer for part in encoders)}.",
        )
    found = dict(replaced.tokenizers)
    for part in encoders:
        if part.tokenizer in found and not found[part.tokenizer].is_dir():
            raise UsageError(f"--tokenizer {part.tokenizer}={found[part.tokenizer]}: there is no such folder")
        if part.plain is None or part.tokenizer in found:
            continue
        places = [file.path, *filter(None, [replaced.text_encoders.get(part.component)])]
        beside = next((each for place in places if (each := place.parent / part.tokenizer).is_dir()), None)
        if beside is None:
            raise UsageError(
                f"the tokenizer of {part.component} ({part.plain.tokenizer}) is in no file of weights, and there is no "
                f"folder {part.tokenizer} beside {file.path.name}",
                hint=f"Download {part.plain.published}, and give it: --tokenizer {part.tokenizer}=DIR",
            )
        say(f"{part.tokenizer}: from {beside}")
        found[part.tokenizer] = beside
    return found


def _check_vocabulary(file: SingleFile) -> None:
    """CLIP's tokenizer is written for the file, whose text encoders have to have embeddings for all of its tokens."""
    plain = {part.component for part in file.family.encoders if part.plain}
    for name, config in file.configs.items():
        if name not in plain and config.get("vocab_size", CLIP_TOKENS) < CLIP_TOKENS:
            raise BadModelError(
                f"{file.path} has embeddings for {config['vocab_size']} tokens, and CLIP's tokenizer has {CLIP_TOKENS}",
                component=name,
                hint="Give a diffusers folder with its own tokenizer: --config DIR.",
            )


def _with_configs(file: SingleFile, configs: Source, replaced: Replacements) -> Source:
    """The file's tensors with a folder's configs, and the folder's weights of what the file lacks."""
    index: dict[str, Any] = dict(configs.index)
    for name in file.lacks:
        if entry_of(index, name) and has_weights(configs.folder / name):
            say(f"{name}: from {configs.folder}")
        else:
            index[name] = index[name.replace("text_encoder", "tokenizer")] = [None, None]
    if entry_of(index, SAFETY_CHECKER) and not has_weights(configs.folder / SAFETY_CHECKER):
        index[SAFETY_CHECKER] = [None, None]
        say(f"there is no safety checker: {configs.folder} has its config alone")
    _tell_lacks([name for name in file.lacks if not entry_of(index, name)], replaced, file.path.name)
    if unnamed := [name for name in file.tensors if not entry_of(index, name)]:
        parts = " and ".join(f"a {name}" for name in unnamed)
        warn(f"{file.path.name} has {parts} that {configs.folder} does not name, and that is not exported")
    return Source(configs.name, configs.folder, index, tensors=file.tensors, vae=file.family.vae, file=file.path)


def control_source(path: Path, folder: Path) -> Source:
    """The source of a file that holds a ControlNet.

    Args:
        folder: an empty one, for its config.

    Raises:
        BadModelError: it is broken, or of a kind that sdort does not export.
    """
    config, tensors = read_control_file(path)
    pooled = "; its outputs are means over the image (it is called shuffle)" if config["global_pool_conditions"] else ""
    say(f"{path.name}: a ControlNet{pooled}")
    name = config["_class_name"]
    part = LONE[name]
    write_config(folder / part, config)
    index = {"_class_name": name, part: ["diffusers", name]}
    return Source(path.resolve().name, folder, index, tensors={part: tensors}, file=path)


def vae_source(path: Path, folder: Path) -> Source:
    """The source of a VAE alone.

    Args:
        path: its folder or file.
        folder: an empty one, for the config of a file.

    Raises:
        BadModelError: it is broken.
    """
    usual = sd1.FAMILY.vae
    vae = read_vae(path, folder, usual)
    if path.is_file() and vae.class_name == "AutoencoderKL":
        say(
            f"{path.name}: its file does not say of which family it is; scaling_factor is that of SD 1.x and 2.x, "
            f"{usual['scaling_factor']}. With --vae it takes the model's own"
        )
    index = {"_class_name": vae.class_name, "vae": ["diffusers", vae.class_name]}
    parts, tensors = {"vae": vae.folder}, {"vae": vae.tensors}
    return Source(path.resolve().name, vae.folder.parent, index, parts, tensors, file=path)


def _describe(file: SingleFile, replaced: Replacements) -> str:
    """``model.safetensors: SD 2.x; prediction type epsilon; its averaged weights (EMA) are not read``."""
    variant = f" ({file.variant})" if file.variant else ""
    parts = [f"{file.path.name}: {file.family.name}{variant}"]
    if file.prediction and not replaced.config:
        kind = file.prediction.kind
        other = next(name for name in ("epsilon", "v_prediction") if name != kind)
        reason = (
            f": {file.prediction.reason}; sdort export --prediction-type {other} otherwise"
            if file.prediction.reason
            else ""
        )
        parts.append(f"prediction type {kind}{reason}")
    if file.has_ema:
        parts.append(
            f"its averaged weights (EMA) are {'read' if replaced.ema else 'not read (sdort export --ema reads them)'}"
        )
    if file.unread:
        parts.append(f"left out, as of no component: {counted(len(file.unread), 'tensor')} ({some(file.unread)})")
    return "; ".join(parts)


def _tell_lacks(lacks: list[str], replaced: Replacements, name: str) -> None:
    text = [component for component in lacks if component != "vae"]
    if "vae" in lacks and not replaced.vae:
        warn(f"{name} has no VAE, and none is exported: sdort export --vae DIR|FILE adds one")
    if text:
        lacking = f"{name} has no {' and no '.join(text)}, and none is exported"
        warn(f"{lacking}: sdort export --config DIR adds those of a folder")


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
        case Kind.CHECKPOINT | Kind.UNET | Kind.DENOISER:
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
    options = {
        "--config": replaced.config,
        "--ema": replaced.ema,
        "--text-encoder": replaced.text_encoders,
        "--tokenizer": replaced.tokenizers,
    }
    if option := next((name for name, given in options.items() if given), None):
        raise UsageError(f"{option} is for single files with a UNet or a transformer, which {model} is not")


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
