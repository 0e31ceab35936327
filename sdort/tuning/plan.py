"""What ``sdort warm`` is asked for, as items: a component on inputs of fixed shapes each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sdort.bench.cases import Case, make_feeds
from sdort.errors import UsageError
from sdort.runtime.folder import PipelineFolder
from sdort.runtime.providers import Provider, RuntimeOptions
from sdort.runtime.session import Array
from sdort.tuning.drawing import drawing_cases, feed_shapes, model_inputs
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


@dataclass(frozen=True)
class Item:
    """A component on inputs of fixed shapes; ``case.batch`` counts samples."""

    case: Case
    path: Path
    feeds: dict[str, Array]
    key: Key

    def __str__(self) -> str:
        return str(self.case)


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
    for height, width in options.sizes or [default_size(folder)]:
        if height % folder.vae_factor or width % folder.vae_factor:
            raise UsageError(f"--size {height}x{width}: both must be multiples of {folder.vae_factor}")
        for images in options.images:
            for name, specs in inputs.items():
                for case in drawing_cases(name, specs, images, (height, width), guided=True):
                    feeds = make_feeds(case, specs, folder.vae_factor)
                    key = make_key(folder.models[name], name, provider, runtime, feed_shapes(feeds))
                    items.setdefault(key.name, Item(case, folder.models[name], feeds, key))
    return list(items.values())


def default_size(folder: PipelineFolder) -> tuple[int, int]:
    """Height and width in pixels that the UNet's config names."""
    size = folder.config("unet").get("sample_size") or 512 // folder.vae_factor
    height, width = size if isinstance(size, list) else (size, size)
    return height * folder.vae_factor, width * folder.vae_factor
