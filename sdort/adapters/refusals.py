"""Files that are no adapter for a pipeline: what they are instead, in a sentence."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from sdort.adapters.module_index import Parameters
from sdort.checkpoints.file_kind import recognise_file
from sdort.checkpoints.weight_names import FAMILY_OF_WIDTH, Kind, recognise_tensors
from sdort.errors import BadModelError, UsageError, nearest_name
from sdort.errors.plain_text import cut
from sdort.families.unet import UNET
from sdort.tables import counted

_ALIKE = 0.75
_CONTEXT = ".attn2.to_k.weight"
NO_MODULE = "has no such module"
"""The end of the reason why a change of a module that the pipeline has not is left out."""


def refuse_other_kind(path: Path) -> None:
    """Raise unless a file can be an adapter: safetensors that are no checkpoint.

    Raises:
        UsageError: there is no such file.
        BadModelError: it is of another kind.
    """
    refuse_missing(path, "the adapter")
    found = recognise_file(path)
    if found.kind is Kind.PICKLE:
        raise BadModelError(
            f"the adapter {path} is {found.what}, which may run code when it is read",
            hint="Get the same file as .safetensors: nearly all sites have it.",
        )
    if found.kind is Kind.EMBEDDING:
        raise BadModelError(f"{path} is {found.what}, not a LoRA", hint=f"Give it as a word: --embedding {path}")
    if found.architecture is None or found.kind in (Kind.CHECKPOINT, Kind.VAE, Kind.UPSCALER, Kind.CONTROLNET):
        raise BadModelError(f"{path} is {found.what}, not a LoRA", hint=found.advice)


def refuse_missing(path: Path, what: str) -> None:
    """Raise if there is nothing at a path.

    Raises:
        UsageError: there is not; a file beside it has nearly that name.
    """
    if not os.path.lexists(path):
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        close = nearest_name(path.name, siblings, _ALIKE)
        hint = f"Is it {path.with_name(close)}?" if close else "Give a .safetensors file."
        raise UsageError(f"{what} {path} does not exist", hint=hint)


def check_family(path: Path, widths: Counter[int], parameters: Parameters) -> None:
    """Raise where an adapter's UNet attends to texts of another width than the pipeline's: they are of two families.

    Raises:
        BadModelError: they are.
    """
    known = [shape[-1] for name, shape in parameters.get(UNET.component, {}).items() if name.endswith(_CONTEXT)]
    if widths and known and known[0] not in widths:
        width = widths.most_common(1)[0][0]
        raise BadModelError(
            f"the adapter {path} is for {_family(width)}, and this model is {_family(known[0])}",
            hint="An adapter works on the family of models that it was trained on.",
        )


def other_adapter(path: Path, kinds: Sequence[str]) -> BadModelError:
    """The error for an adapter of kinds that are not read."""
    return BadModelError(
        f"the adapter {path} is of {' and '.join(kinds)}, which sdort does not read",
        hint="It reads LoRA, LoHa, LoKr, DoRA and whole differences.",
    )


def nothing_matches(
    path: Path,
    shapes: Mapping[str, Sequence[int]],
    modules: int,
    parameters: Parameters,
    reasons: Counter[str],
) -> BadModelError:
    """The error for a file of which nothing has a place in the pipeline; ``reasons`` say why, each how often."""
    if not modules:
        found = recognise_file(path)
        return BadModelError(f"{path} is {found.what}, not a LoRA", hint=found.advice)
    family = recognise_tensors(shapes).family
    first = cut(min(shapes, default="nothing"), 80)
    like = f"it looks like one for {family}" if family else f"it holds {len(shapes)} tensors, such as {first}"
    known = [reason for reason, _ in reasons.most_common() if not reason.endswith(NO_MODULE)]
    if known:
        count = counted(modules, "module")
        return BadModelError(
            f"the adapter {path} changes nothing of this model: of its {count} none fits: {known[0]}",
            hint="Get another version of the file: this one is incomplete, or for another model.",
        )
    what = f"none of its {modules} modules is one of {', '.join(parameters)}"
    return BadModelError(
        f"the adapter {path} changes nothing of this model: {what}; {like}",
        hint="An adapter works on the family of models that it was trained on.",
    )


def _family(width: int) -> str:
    family = FAMILY_OF_WIDTH.get(width)
    return family or f"a model whose texts are {width} numbers wide"
