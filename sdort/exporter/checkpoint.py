"""The weight files of one folder of a diffusers checkpoint, which hold a component's tensors.

diffusers and transformers name them alike: one file, or shards with an index, optionally of a variant (``fp16``),
as safetensors or, in old checkpoints, as pickles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from sdort.errors import BadModelError
from sdort.exporter.component_configs import DOWNLOAD_AGAIN
from sdort.model.weights import Weight
from sdort.pipelines.configs import read_config
from sdort.pipelines.safetensors import read_tensors

_STEMS = ("diffusion_pytorch_model", "model")
_PICKLE_STEMS = ("diffusion_pytorch_model", "pytorch_model")


def read_checkpoint(folder: Path, component: str, variant: str | None, allow_pickle: bool) -> Mapping[str, Weight]:
    """The tensors of a component's folder, described and not read.

    Args:
        folder: the folder with the weights, such as ``MODEL/unet``.
        component: for messages.
        variant: the part of the file names that tells variants apart, such as ``fp16``.
        allow_pickle: fall back to pickled weights (``.bin``) where there are no safetensors.

    Raises:
        BadModelError: there are no weights of that variant, they are pickled, or a file is broken.
    """
    for stem in _STEMS:
        name = f"{stem}.{variant}.safetensors" if variant else f"{stem}.safetensors"
        index = f"{stem}.safetensors.index.{variant}.json" if variant else f"{stem}.safetensors.index.json"
        if (folder / name).is_file():
            return read_tensors(folder / name)
        if (folder / index).is_file():
            return _read_shards(folder, folder / index)
    pickle = _find_pickle(folder, variant)
    if pickle and allow_pickle:
        from sdort.exporter.pickles import read_pickle

        return read_pickle(pickle, component)
    raise _not_found(folder, component, variant, pickle)


def _read_shards(folder: Path, index: Path) -> dict[str, Weight]:
    weight_map = read_config(index, "the index of shards", DOWNLOAD_AGAIN).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise BadModelError(f"{index} has no weight_map", hint="Copy or download it again.")
    tensors: dict[str, Weight] = {}
    for file in sorted(set(weight_map.values())):
        # A file name, not a path: an index must not make sdort read elsewhere.
        if not re.fullmatch(r"[\w][\w.-]*\.safetensors", file):
            raise BadModelError(f"{index} names a shard {file!r}, which is no safetensors file beside it")
        if not (folder / file).is_file():
            raise BadModelError(
                f"{folder / file}, a shard that {index.name} names, is missing", hint="Download the checkpoint again."
            )
        tensors |= read_tensors(folder / file)
    missing = sorted(weight_map.keys() - tensors.keys())
    if missing:
        raise BadModelError(f"{index} promises tensors that no shard has: {', '.join(missing[:5])}")
    return tensors


def _find_pickle(folder: Path, variant: str | None) -> Path | None:
    names = [f"{stem}.{variant}.bin" if variant else f"{stem}.bin" for stem in _PICKLE_STEMS]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _not_found(folder: Path, component: str, variant: str | None, pickle: Path | None) -> BadModelError:
    if pickle:
        return BadModelError(
            f"{folder} has no safetensors, only {pickle.name}, a pickle, which may run code when it is read",
            component=component,
            hint="Convert it to safetensors, or trust its author: --allow-pickle.",
        )
    variants = sorted(_variants(folder) - {variant or ""})
    missing = f"weights of variant {variant!r}" if variant else "weights (.safetensors)"
    having = f"; it has {', '.join(name or 'those without a variant' for name in variants)}" if variants else ""
    hint = "Copy or download the checkpoint again."
    if variants:
        hint = f"Give --variant {variants[-1]}." if variants[-1] else "Leave out --variant."
    if "" in variants and variants[-1]:
        hint = f"Leave out --variant, or give --variant {variants[-1]}."
    return BadModelError(f"{folder} has no {missing}{having}", component=component, hint=hint)


def _variants(folder: Path) -> set[str]:
    """The variants in a folder; an empty string stands for files without one."""
    pattern = rf"(?:{'|'.join(_STEMS)})(?:\.safetensors\.index)?(?:\.([\w-]+?))?(?:-\d+-of-\d+)?\.(?:safetensors|json)"
    names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
    return {match[1] or "" for match in map(re.compile(pattern).fullmatch, names) if match}
