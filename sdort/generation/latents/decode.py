"""Decoding of latents to pixels: whole, image by image, or tile by tile, as memory allows.

The decoder's activations at full resolution are far larger than anything in the UNet. Images one by one need no more
than one image's; tiles no more than one tile's, whatever the image's size, but each is normalized by its own mean and
variance, so tiles overlap by a quarter and are blended.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sdort.console import detail, warn
from sdort.errors import MemoryShortageError
from sdort.families.component_names import DECODER, ENCODER
from sdort.generation.latents.graph_memory import GraphMemory, Size, decoder_memory
from sdort.graph.signature import Array, TensorSpec, static_size
from sdort.machine.gpus import free_memory
from sdort.runtime.other_devices import shares, side_by_side
from sdort.runtime.session import Session
from sdort.runtime.step.bound_unet import batch_slices
from sdort.tables import size_text

if TYPE_CHECKING:
    from sdort.pipelines.folder import PipelineFolder
    from sdort.providers.provider import Provider
    from sdort.workload.cases import Case

OnTile = Callable[[int, int], None]
"""Called before each call of the decoder with the number of the tile, from 1, and all there are: 1 without tiling."""

TILE_LATENTS = 64
"""Latents along a tile's side: 512 pixels of the usual autoencoder."""
SMALLEST_TILE = 32
OVERLAP = 0.25
"""Share of a tile's side that overlaps with each neighbour."""
SHARE = 0.8
"""Share of the free memory that decoding may plan with: allocators round up, and the need is an estimate."""


@dataclass(frozen=True)
class Plan:
    """Settings of decoding: ``slicing`` takes images one by one, ``tile`` is a tile's side in latents or None."""

    slicing: bool = False
    """Whether images are decoded one by one."""
    tile: int | None = None
    """Side of a tile in latents; None where images are decoded whole."""

    def __str__(self) -> str:
        tiles = f"in tiles of {self.tile} x {self.tile} latents" if self.tile else ""
        return ", ".join(filter(None, ["image by image" if self.slicing else "", tiles])) or "all at once"

    def part(self, size: Size) -> Size:
        """The part of ``size`` that is decoded at once."""
        images, height, width = size
        return 1 if self.slicing else images, min(height, self.tile or height), min(width, self.tile or width)


class Planner:
    """Decides how to decode by what it takes.

    Args:
        latents: the decoder's input.
        config: the autoencoder's.
        factor: pixels a latent along each side.
        graph_memory: of the decoder's graph; by default one with the input's type throughout, and attention that is not
            fused.
        devices: how many decode at the same time.
        one_by_one: whether images are decoded one by one where nobody says otherwise: as fast as together, and the
            number of images is none of the shapes that a provider plans for (:attr:`Provider.plans_shapes`).
    """

    verb = "decoding"

    def __init__(
        self,
        latents: TensorSpec,
        config: dict[str, Any],
        factor: int,
        graph_memory: GraphMemory | None = None,
        devices: int = 1,
        one_by_one: bool = False,
    ) -> None:
        self.latents = latents
        self.one_by_one = one_by_one
        self.devices = devices
        self.config = config
        self.factor = factor
        self.graph_memory = graph_memory or GraphMemory(latents.dtype.itemsize)

    def plan(self, size: Size, tiling: bool | None, slicing: bool | None, free: int | None) -> Plan:
        """The plan that fits into memory.

        Args:
            tiling, slicing: as asked; None decides by ``free``.
            free: bytes of free memory where the decoder runs, None if nothing tells.
        """
        fixed = static_size(self.latents.shape, 2)
        tile = fixed or self._usual_tile(max(size[1:]))
        if slicing is None and self.one_by_one and size[0] > 1:
            slicing = True
        asked = Plan(bool(slicing), tile if tiling and max(size[1:]) > tile else None)
        if free is None:
            return asked
        choices = [asked]
        if asked.tile and tile > TILE_LATENTS and not fixed:
            choices.append(replace(asked, tile=TILE_LATENTS))
        if slicing is None and size[0] > 1:
            choices.append(replace(asked, slicing=True))
        if tiling is None and not fixed:
            choices += [
                replace(choices[-1], tile=side) for side in (TILE_LATENTS, SMALLEST_TILE) if max(size[1:]) > side
            ]
        fitting = (plan for plan in choices if self.bytes_for(size, plan) <= SHARE * free)
        return next(fitting, choices[-1])

    def _usual_tile(self, side: int) -> int:
        """Side of the tiles where nobody says that memory is short: for several devices the largest that gives each of
        them one, as what tiles overlap is computed twice."""
        across = math.ceil(math.sqrt(self.devices))
        return max(TILE_LATENTS, math.ceil(side / (1 + (across - 1) * (1 - OVERLAP)))) if across > 1 else TILE_LATENTS

    def smaller(self, size: Size, plan: Plan) -> Plan | None:
        """The plan to continue with where ``plan`` ran out of memory; None if nothing takes less at once."""
        tiles = () if static_size(self.latents.shape, 2) else (TILE_LATENTS, SMALLEST_TILE)
        choices = [replace(plan, slicing=True), *(Plan(True, side) for side in tiles)]
        most = math.prod(self.part(size, plan))
        return next((tile for tile in choices if math.prod(self.part(size, tile)) < most), None)

    def part(self, size: Size, plan: Plan) -> Size:
        """The size of the decoder's input: the batch of a static model, or the part that is decoded at once."""
        images, height, width = plan.part(size)
        return static_size(self.latents.shape, 0) or images, height, width

    def size(self, case: Case) -> Size:
        """The size of a case's images in latents."""
        return case.batch, case.height // self.factor, case.width // self.factor

    def part_of(self, case: Case, plan: Plan) -> Case:
        """The case that the decoder runs at once for the images of ``case``."""
        images, height, width = self.part(self.size(case), plan)
        return replace(case, batch=images, height=height * self.factor, width=width * self.factor)

    def bytes_for(self, size: Size, plan: Plan) -> int:
        """An estimate of what decoding takes beside the weights: counted, or where the graph does not tell its sizes,
        by the usual form of autoencoders.

        Their peak is at full resolution: the last block's input and normalized input, of the second level's channels,
        and its convolution's output, of the first's, once more as workspace. On the way the attention of the lowest
        level has its scores, in float32 where it is not fused, beside a quarter of that.
        """
        part = self.part(size, plan)
        counted = self.graph_memory.counted(part, self.factor)
        return self._usual_bytes(part) if counted is None else counted

    def _usual_bytes(self, part: Size) -> int:
        images, height, width = part
        channels = [*self.config["block_out_channels"], self.config["block_out_channels"][-1]]
        pixels = images * height * width * self.factor**2
        rows: int = 2 * (2 * channels[1] + channels[0]) * pixels * self.graph_memory.element
        scores = 4 * self.graph_memory.score_copies * images * (height * width) ** 2
        return max(rows, scores + rows // 4 if scores else 0)


def planner_of(folder: PipelineFolder, provider: Provider, component: str = DECODER) -> Planner:
    """The planner of a pipeline's decoder, or of its encoder, which takes as much.

    Raises:
        BadModelError: a file of the pipeline is broken.
    """
    file = folder.file(component)
    graph_memory = decoder_memory(file, provider)
    tensors = file.signature.outputs if component == ENCODER else file.signature.inputs
    first = next(iter(tensors.values()))
    return Planner(first, folder.vae, folder.vae_factor, graph_memory, one_by_one=provider.plans_shapes)


class Decoder(Planner):
    """The autoencoder's decoder."""

    def __init__(
        self,
        session: Session,
        config: dict[str, Any],
        factor: int,
        on_tile: OnTile = lambda tile, tiles: None,
        graph_memory: GraphMemory | None = None,
    ) -> None:
        first, one_by_one = next(iter(session.inputs.values())), session.provider.plans_shapes
        super().__init__(first, config, factor, graph_memory, 1 + len(session.others), one_by_one)
        self.session = session
        self.on_tile = on_tile
        self._name, self._output = self.latents.name, session.outputs[0].name
        self.plan_now = Plan()
        """How it decodes by now."""

    def decode(self, latents: Array, plan: Plan) -> Iterator[Array]:
        """Images [3, height * factor, width * factor] in fp32, one after the other, from scaled latents.

        Where memory runs out it goes on in smaller parts, and says so; ``plan_now`` tells.

        Raises:
            MemoryShortageError: even the smallest tile is too large.
        """
        self.plan_now, first = plan, 0
        one = static_size(self.latents.shape, 0) or 1
        while first < len(latents):
            count = one * self.devices if self.plan_now.slicing else len(latents)
            part = latents[first : first + count]
            try:
                done = self._at_once(part, self.plan_now.tile)
            except MemoryShortageError:
                smaller = self.smaller(size_of(part), self.plan_now)
                if smaller is None:
                    raise
                self.plan_now = smaller
                warn(f"the decoder ran out of memory; it goes on {smaller}")
                continue
            yield from done
            first += len(part)

    def _at_once(self, latents: Array, tile: int | None) -> Array:
        slices, run_all = batch_slices(self.session, self._name, len(latents)), self._run_all
        if self.devices > 1 and (tile is None or max(latents.shape[2:]) <= tile):
            fixed = static_size(self.latents.shape, 0)
            self.on_tile(1, 1)
            parts = [*run_all(latents[part] for part in (slices if fixed else shares(len(latents), 1, self.devices)))]
        else:
            parts = [in_tiles(run_all, latents[part], tile, (1, self.factor), self.on_tile) for part in slices]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _run_all(self, parts: Iterable[Array]) -> Iterator[Array]:
        """The results of parts, with all devices."""
        others = [
            lambda part, other=other: other.begin(lambda session: self._run(session, part))
            for other in self.session.others
        ]
        return side_by_side(partial(self._run, self.session), others, parts)

    def _run(self, session: Session, latents: Array) -> Array:
        return np.asarray(session.run({self._name: latents})[self._output], np.float32)


def size_of(latents: Array) -> Size:
    """The size of latents [images, channels, height, width]."""
    images, _, height, width = latents.shape
    return images, height, width


def in_tiles(
    run_all: Callable[[Iterable[Array]], Iterator[Array]],
    values: Array,
    tile: int | None,
    scales: tuple[int, int],
    on_tile: OnTile = lambda tile, tiles: None,
) -> Array:
    """Decode or encode [n, channels, h, w] through tiles, blended where they overlap.

    Args:
        run_all: the results of the model on arrays [n, channels, h, w], in their order.
        tile: most latents of a tile's side.
        scales: rows of ``values``, and of the result, for one of latents: 1 and the autoencoder's factor to decode.
    """
    before, after = scales
    height, width = (side // before for side in values.shape[2:])
    if tile is None or max(height, width) <= tile:
        on_tile(1, 1)
        return next(run_all([values]))
    corners = list(itertools.product(starts(height, tile), starts(width, tile)))
    overlap = int(OVERLAP * tile * after)
    total = weight = np.zeros(1, np.float32)

    def parts() -> Iterator[Array]:
        for number, corner in enumerate(corners, 1):
            on_tile(number, len(corners))
            rows, columns = (slice(first * before, (first + tile) * before) for first in corner)
            yield np.ascontiguousarray(values[:, :, rows, columns])

    for (top, left), part in zip(corners, run_all(parts()), strict=True):
        if total.ndim == 1:
            total = np.zeros((*part.shape[:2], height * after, width * after), np.float32)
            weight = np.zeros(total.shape[2:], np.float32)
        mask = np.outer(
            ramp(part.shape[2], overlap, top > 0, top + tile < height),
            ramp(part.shape[3], overlap, left > 0, left + tile < width),
        )
        place = np.s_[..., top * after :, left * after :]
        total[place][..., : part.shape[2], : part.shape[3]] += part * mask
        weight[place][..., : part.shape[2], : part.shape[3]] += mask
    return total / weight


def starts(length: int, tile: int) -> list[int]:
    """Starts of tiles, at equal distances from the start to the end; each overlaps at least a quarter of the next."""
    if length <= tile:
        return [0]
    count = math.ceil((length - tile) / (tile - int(OVERLAP * tile))) + 1
    return [round(index * (length - tile) / (count - 1)) for index in range(count)]


def ramp(length: int, overlap: int, before: bool, after: bool) -> Array:
    """Weights of a tile's rows: rising where it has a neighbour before it, falling where it has one after it."""
    rising = (np.arange(length, dtype=np.float32) + 1) / (overlap + 1)
    weights = np.ones(length, np.float32)
    if before:
        weights = np.minimum(weights, rising)
    if after:
        weights = np.minimum(weights, rising[::-1])
    return weights


def choose(planner: Planner, session: Session, size: Size, tiling: bool | None, slicing: bool | None) -> Plan:
    """The plan for latents of a size, on the machine as it is now."""
    free = None
    if None in (tiling, slicing):
        free = free_memory(session.provider.vendor, session.options.device_id)
    plan = planner.plan(size, tiling, slicing, free)
    if None in (tiling, slicing):
        needed, there = (size_text(number) for number in (planner.bytes_for(size, Plan()), free or 0))
        detail(
            f"{planner.verb} {plan}: all at once takes about {needed}, {there if free else 'an unknown amount'} is free"
        )
    return plan
