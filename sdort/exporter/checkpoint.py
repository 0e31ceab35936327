"""The weight files of one folder of a diffusers checkpoint, which hold a component's tensors.

diffusers and transformers name them alike: one file, or shards with an index, optionally of a variant (``fp16``),
as safetensors or, in old checkpoints, as pickles. Where a folder has more than one of these, the one is read that the
component's own library would load: transformers looks for the one file first, diffusers for the shards.
(``_get_resolved_checkpoint_files`` in transformers' modeling_utils.py, ``ModelMixin.from_pretrained`` in diffusers.)
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from sdort.checkpoints.config_schemas import SHARD_INDEX
from sdort.checkpoints.configs import TABLE_BYTES, read_component_config, read_config
from sdort.checkpoints.safetensors import read_tensors
from sdort.console import say
from sdort.errors import BadModelError
from sdort.exporter.component_configs import DOWNLOAD_AGAIN
from sdort.families.component_names import SAFETY_CHECKER
from sdort.families.known_families import TEXT_ENCODERS
from sdort.graph.weights import Weight
from sdort.machine.optional_packages import COMPARING, need_packages

_DIFFUSERS, _TRANSFORMERS = "diffusion_pytorch_model", "model"
_OF_TRANSFORMERS = (*TEXT_ENCODERS, SAFETY_CHECKER)
"""Components whose classes are transformers' models, and are saved as these are."""
_PICKLES = {_DIFFUSERS: "diffusion_pytorch_model", _TRANSFORMERS: "pytorch_model"}
"""Stem of the names of safetensors -> that of pickles."""


ANY_VARIANT = "*"
"""Names of each folder the variant that it has alone, where it has no weights without one."""


def read_checkpoint(folder: Path, component: str, variant: str | None, allow_pickle: bool) -> Mapping[str, Weight]:
    """The tensors of a component's folder, described and not read.

    Args:
        folder: the folder with the weights, such as ``MODEL/unet``.
        component: for messages.
        variant: the part of the file names that tells variants apart, such as ``fp16``, or :data:`ANY_VARIANT`.
        allow_pickle: fall back to pickled weights (``.bin``) where there are no safetensors.

    Raises:
        BadModelError: there are no weights of that variant, they are pickled, or a file is broken.
    """
    stem = _TRANSFORMERS if component in _OF_TRANSFORMERS else _DIFFUSERS
    variant = sole_variant(folder, stem) if variant == ANY_VARIANT else variant
    # By name alone: a pipe or a broken link in the place of one is an error, no reason to read another.
    names = [name for name in _names(stem, variant) if os.path.lexists(folder / name)]
    if names:
        _check_chosen(folder, component, names)
        path = folder / names[0]
        return _read_shards(folder, path) if path.suffix == ".json" else read_tensors(path)
    pickle = _find_pickle(folder, stem, variant)
    if pickle and allow_pickle:
        need_packages(*COMPARING, what=f"the pickle {pickle}")
        from sdort.exporter.pickles import read_pickle

        return read_pickle(pickle, component)
    raise _not_found(folder, component, variant, pickle, stem)


def has_weights(folder: Path) -> bool:
    """Whether a component's folder holds safetensors of any name that its library looks for."""
    return any(_variants(folder, stem) for stem in (_DIFFUSERS, _TRANSFORMERS))


def needs_variants(folder: Path) -> bool:
    """Whether a part of a diffusers folder has its weights in a variant alone, which its library asks for by name."""
    parts = [part for part in folder.iterdir() if part.is_dir()]
    return any(sole_variant(part, stem) for part in parts for stem in (_DIFFUSERS, _TRANSFORMERS))


def sole_variant(folder: Path, stem: str = _DIFFUSERS) -> str | None:
    """The variant of a folder that has its weights in one variant alone; None where it needs no name.

    Args:
        stem: of its files' names: by default as diffusers' classes have them.
    """
    variants = _variants(folder, stem)
    return next(iter(variants)) if len(variants) == 1 and "" not in variants else None


def _names(stem: str, variant: str | None) -> list[str]:
    """The files that the component's library looks for, in its order."""
    one = f"{stem}.{variant}.safetensors" if variant else f"{stem}.safetensors"
    index = f"{stem}.safetensors.index.{variant}.json" if variant else f"{stem}.safetensors.index.json"
    if stem == _TRANSFORMERS:
        return [one, index]
    return [index, *([f"{stem}.safetensors.{variant}.index.json"] if variant else []), one]


def _check_chosen(folder: Path, component: str, names: list[str]) -> None:
    """Say which of several weights are read; refuse a config that names others, which transformers obeys."""
    named = read_component_config(folder / "config.json", component).get("transformers_weights")
    if named not in (None, names[0]):
        raise BadModelError(
            f"{folder / 'config.json'} names other weights (transformers_weights: {named!r}) than {names[0]}",
            component=component,
            hint="sdort reads weights by their usual names: rename them, and take the entry out of the config.",
        )
    if len(names) > 1:
        say(f"{component}: {names[0]} is read, as by its library, and not {', '.join(names[1:])}")


def _read_shards(folder: Path, index: Path) -> dict[str, Weight]:
    weight_map = read_config(index, "the index of shards", DOWNLOAD_AGAIN, schema=SHARD_INDEX, limit=TABLE_BYTES)[
        "weight_map"
    ]
    tensors: dict[str, Weight] = {}
    for file in sorted(set(weight_map.values())):
        # A file name, not a path: an index must not make sdort read elsewhere.
        if not re.fullmatch(r"[\w][\w.-]*\.safetensors", file):
            raise BadModelError(f"{index} names a shard {file!r}, which is no safetensors file beside it")
        if not (folder / file).is_file():
            raise BadModelError(
                f"{folder / file}, a shard that {index.name} names, is missing", hint="Download the checkpoint again."
            )
        shard = read_tensors(folder / file)
        if twice := sorted(tensors.keys() & shard.keys()):
            raise BadModelError(f"{index}: more than one shard has the tensors {', '.join(twice[:5])}")
        tensors |= shard
    missing = sorted(weight_map.keys() - tensors.keys())
    if missing:
        raise BadModelError(f"{index} promises tensors that no shard has: {', '.join(missing[:5])}")
    return tensors


def _find_pickle(folder: Path, stem: str, variant: str | None) -> Path | None:
    path = folder / (f"{_PICKLES[stem]}.{variant}.bin" if variant else f"{_PICKLES[stem]}.bin")
    return path if os.path.lexists(path) else None


def _not_found(folder: Path, component: str, variant: str | None, pickle: Path | None, stem: str) -> BadModelError:
    if pickle:
        return BadModelError(
            f"{folder} has no safetensors, only {pickle.name}, a pickle, which may run code when it is read",
            component=component,
            hint="Convert it to safetensors, or trust its author: --allow-pickle.",
        )
    variants = sorted(_variants(folder, stem) - {variant or ""})
    missing = f"weights of variant {variant!r}" if variant else f"weights ({stem}.safetensors)"
    having = f"; it has {', '.join(name or 'those without a variant' for name in variants)}" if variants else ""
    hint = "Copy or download the checkpoint again."
    if variants:
        hint = f"Give --variant {variants[-1]}." if variants[-1] else "Leave out --variant."
    if "" in variants and variants[-1]:
        hint = f"Leave out --variant, or give --variant {variants[-1]}."
    return BadModelError(f"{folder} has no {missing}{having}", component=component, hint=hint)


def _variants(folder: Path, stem: str) -> set[str]:
    """The variants in a folder; an empty string stands for files without one."""
    pattern = rf"{stem}(?:\.safetensors\.index)?(?:\.([\w-]+?))?(?:-\d+-of-\d+)?\.(?:safetensors|json)"
    names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
    return {match[1] or "" for match in map(re.compile(pattern).fullmatch, names) if match}
