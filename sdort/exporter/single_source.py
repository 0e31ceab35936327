"""A single file, or a VAE alone, as a source: what it lacks is written to a folder, or said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sdort.checkpoints.clip_merges import CLIP_TOKENS
from sdort.checkpoints.configs import INDEX, read_config
from sdort.checkpoints.control_file import read_control_file
from sdort.checkpoints.pipeline_files import write_config, write_pipeline_files
from sdort.checkpoints.single_file import SingleFile, read_single_file
from sdort.console import say, warn
from sdort.errors import BadModelError
from sdort.errors.plain_text import some
from sdort.exporter.checkpoint import has_weights
from sdort.exporter.replacements import Replacements
from sdort.exporter.source import LONE, Source, entry_of, read_source
from sdort.exporter.vae_parts import read_vae
from sdort.families.component_names import SAFETY_CHECKER
from sdort.families.data import sd1
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
    if replaced.config:
        return _with_configs(file, read_source(replaced.config, path.name), replaced)
    _check_vocabulary(file)
    write_pipeline_files(file.family, file.variant, file.configs, file.scheduler, folder)
    _tell_lacks(file.lacks, replaced, file.path.name)
    index = read_config(folder / INDEX)
    return Source(path.name, folder, index, tensors=file.tensors, vae=file.family.vae, file=path)


def _check_vocabulary(file: SingleFile) -> None:
    """CLIP's tokenizer is written for the file, whose text encoders have to have embeddings for all of its tokens."""
    for name, config in file.configs.items():
        if config.get("vocab_size", CLIP_TOKENS) < CLIP_TOKENS:
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
    if not replaced.config:
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
