"""The plan of a warm-up: items, each a component on inputs of fixed shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sdort.errors import UsageError
from sdort.families.component_names import DECODER, ENCODER, IMAGE_ENCODER
from sdort.generation.latents.decode import Plan, Planner, planner_of
from sdort.generation.memory_need import refuse_case, weight_bytes
from sdort.graph.signature import Array
from sdort.machine.gpus import free_memory
from sdort.pipelines.folder import PipelineFolder, image_channels
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.tuning.key import Key, make_key
from sdort.warmup.warm_options import WarmupOptions
from sdort.workload.cases import Case, InputSpecs, feed_shapes, generation_cases, make_feeds
from sdort.workload.steering_inputs import unsteered

_IN_PARTS = (ENCODER, DECODER)
"""Components that take images one by one or in tiles, as memory allows."""


@dataclass(frozen=True)
class Decode:
    """Images that the decoder decodes or the encoder encodes, counted by ``case.batch``, and how."""

    case: Case
    form: Plan

    def __str__(self) -> str:
        return f"{self.case.batch} of {self.case.width}x{self.case.height} {self.form}"


@dataclass(frozen=True)
class Item:
    """A component on inputs of fixed shapes; ``case.batch`` counts samples."""

    case: Case
    path: Path
    feeds: dict[str, Array]
    key: Key
    decodes: list[Decode] = field(default_factory=list)
    """The images that the decoder or the encoder takes with these shapes; empty for other components."""

    def __str__(self) -> str:
        return describe_item(self.case, self.decodes)


def describe_item(case: Case, decodes: Sequence[object]) -> str:
    """An item in words, the decoder's with what it decodes."""
    return f"{case} ({'; '.join(map(str, decodes))})" if decodes else str(case)


@dataclass(frozen=True)
class WarmupTarget:
    """A pipeline and what it is warmed up on."""

    folder: PipelineFolder
    provider: Provider
    runtime: RuntimeOptions

    def item(self, case: Case, inputs: InputSpecs, decodes: Sequence[Decode] = ()) -> Item:
        """A component at a case."""
        path = self.folder.models[case.component]
        channels, tokens = image_channels(path, case.component), self.folder.tokens(case.component)
        feeds = make_feeds(case, inputs, self.folder.vae_factor, channels, tokens)
        key = make_key(path, case.component, self.provider, self.runtime, feed_shapes(feeds))
        return Item(case, path, feeds, key, list(decodes))

    def decoding(self, decode: Decode, inputs: InputSpecs) -> Item:
        """The decoder, or the encoder, at the shapes that it runs on at once."""
        return self.item(self.planner(decode.case.component).part_of(decode.case, decode.form), inputs, [decode])

    def planner(self, component: str) -> Planner:
        """The planner of the pipeline's decoder or encoder."""
        return planner_of(self.folder, self.provider, component)

    def smaller(self, item: Item) -> list[Item]:
        """The items that ``sdort run`` goes on with where memory runs out in ``item``; empty if none."""
        inputs = self.folder.file(item.case.component).signature.inputs
        planner = self.planner(item.case.component)
        items: dict[str, Item] = {}
        for decode in item.decodes:
            form = planner.smaller(planner.size(decode.case), decode.form)
            if form is not None:
                add(items, self.decoding(Decode(decode.case, form), inputs))
        return list(items.values())


def add(items: dict[str, Item], item: Item) -> None:
    """Put ``item`` among others by the names of their bundles; one of the same shapes takes over what it decodes."""
    there = items.setdefault(item.key.name, item)
    there.decodes.extend(decode for decode in item.decodes if decode not in there.decodes)


def plan(target: WarmupTarget, options: WarmupOptions) -> list[Item]:
    """Every item once; all components at the first size first, so that the time of each is known early.

    Raises:
        UsageError: a size that the autoencoder cannot make, or an unknown component.
    """
    folder = target.folder
    known = folder.compared
    unknown = [name for name in options.components if name not in folder.models]
    if unknown:
        raise UsageError(f"{folder.path} has no component {unknown[0]}", hint=f"There are: {', '.join(folder.models)}.")
    inputs = {name: unsteered(folder.file(name).signature.inputs) for name in options.components or known}
    without = [name for name in known if name not in (ENCODER, IMAGE_ENCODER)]  # a run opens these for an image alone
    items: dict[str, Item] = {}
    for case in _cases(folder, options, inputs):
        specs = inputs[case.component]
        if case.component in _IN_PARTS:
            planner = target.planner(case.component)
            free = _free_beside(target, without if case.component == DECODER else known)
            form = planner.plan(planner.size(case), options.vae_tiling, options.vae_slicing, free)
            refuse_case(folder, case, target.provider, target.runtime.device_id, form)
            add(items, target.decoding(Decode(case, form), specs))
        else:
            refuse_case(folder, case, target.provider, target.runtime.device_id)
            add(items, target.item(case, specs))
    return list(items.values())


def _cases(folder: PipelineFolder, options: WarmupOptions, inputs: Mapping[str, InputSpecs]) -> Iterator[Case]:
    """The cases that generations run the components on; all images of a run begin with one that is encoded."""
    for height, width in options.sizes or [folder.default_size]:
        if height % folder.side_step or width % folder.side_step:
            raise UsageError(f"--size {width}x{height}: both must be multiples of {folder.side_step}")
        for images in options.batch_sizes:
            for name, specs in inputs.items():
                count = 1 if name == ENCODER else images
                yield from generation_cases(name, specs, count, (height, width), copies=2)


def _free_beside(target: WarmupTarget, components: Sequence[str]) -> int | None:
    """Bytes that a run has left to decode in, with all components loaded; None where nothing tells."""
    free = free_memory(target.provider.vendor, target.runtime.device_id)
    return None if free is None else max(0, free - weight_bytes(target.folder, components))
