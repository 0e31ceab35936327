"""What ``sdort warm`` is asked for, as items: a component on inputs of fixed shapes each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sdort.bench.cases import Case, make_feeds
from sdort.errors import UsageError
from sdort.runtime.decode import Planner, free_memory
from sdort.runtime.folder import DECODER, PipelineFolder
from sdort.runtime.providers import Provider, RuntimeOptions
from sdort.runtime.session import Array, static_size
from sdort.tuning.drawing import Inputs, drawing_cases, feed_shapes, model_inputs
from sdort.tuning.key import Key, make_key

NOT_DRAWN = ("safety_checker", "vae_encoder")
"""Components that drawing from text does not run."""


@dataclass(frozen=True)
class Options:
    """What to warm up. No ``sizes`` is the model's own, no ``components`` all that drawing from text runs."""

    runtime: RuntimeOptions
    sizes: Sequence[tuple[int, int]] = ()
    images: Sequence[int] = (1,)
    components: Sequence[str] = ()
    budget: float | None = None
    """Seconds after which no item is begun, and the one that runs is given up."""
    vae_tiling: bool | None = None
    """Decode in tiles; None where ``sdort run`` would, by the memory that is free."""
    vae_slicing: bool | None = None
    """Decode one image at a time; None likewise."""


@dataclass(frozen=True)
class Item:
    """A component on inputs of fixed shapes; ``case.batch`` counts samples."""

    case: Case
    path: Path
    feeds: dict[str, Array]
    key: Key
    decodes: list[str] = field(default_factory=list)
    """Of the decoder: which images it decodes with these shapes, and how."""

    def __str__(self) -> str:
        return describe(self.case, self.decodes)


def describe(case: Case, decodes: Sequence[str]) -> str:
    """An item in words, the decoder's with what it decodes."""
    return f"{case} ({'; '.join(decodes)})" if decodes else str(case)


def plan(folder: PipelineFolder, options: Options, provider: Provider, runtime: RuntimeOptions) -> list[Item]:
    """Every item once; all components at the first size first, so that the time of each is known early.

    Raises:
        UsageError: a size that the autoencoder cannot make, or an unknown component.
    """
    known = [name for name in folder.models if name not in NOT_DRAWN]
    unknown = [name for name in options.components if name not in folder.models]
    if unknown:
        raise UsageError(f"{folder.path} has no component {unknown[0]}", hint=f"There are: {', '.join(folder.models)}.")
    items: dict[str, Item] = {}
    inputs = {name: model_inputs(folder.models[name], name) for name in options.components or known}
    free = _free_beside(folder, known, provider, runtime) if DECODER in inputs else None
    for height, width in options.sizes or [folder.default_size]:
        if height % folder.vae_factor or width % folder.vae_factor:
            raise UsageError(f"--size {height}x{width}: both must be multiples of {folder.vae_factor}")
        for images in options.images:
            for name, specs in inputs.items():
                for case in drawing_cases(name, specs, images, (height, width), guided=True):
                    part, what = _decoded(case, specs, folder, options, free) if name == DECODER else (case, None)
                    feeds = make_feeds(part, specs, folder.vae_factor)
                    key = make_key(folder.models[name], name, provider, runtime, feed_shapes(feeds))
                    item = items.setdefault(key.name, Item(part, folder.models[name], feeds, key))
                    if what is not None and what not in item.decodes:
                        item.decodes.append(what)
    return list(items.values())


def _decoded(
    case: Case, inputs: Inputs, folder: PipelineFolder, options: Options, free: int | None
) -> tuple[Case, str]:
    """What the decoder is fed to decode the images of ``case``, and how in words."""
    factor, latents = folder.vae_factor, next(iter(inputs.values()))
    shape = (case.batch, static_size(latents.shape, 1) or 4, case.height // factor, case.width // factor)
    form = Planner(latents, folder.vae, factor).plan(shape, options.vae_tiling, options.vae_slicing, free)
    images, _, height, width = form.part(shape)
    part = replace(case, batch=static_size(latents.shape, 0) or images, height=height * factor, width=width * factor)
    return part, f"{case.batch} of {case.height}x{case.width} {form}"


def _free_beside(
    folder: PipelineFolder, components: Sequence[str], provider: Provider, runtime: RuntimeOptions
) -> int | None:
    """Bytes that a run has left to decode in, with all components loaded; None where nothing tells."""
    free = free_memory(provider, runtime.device_id)
    files = [file for name in components for file in folder.models[name].parent.iterdir() if file.is_file()]
    return None if free is None else max(0, free - sum(file.stat().st_size for file in set(files)))
