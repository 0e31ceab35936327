"""An open upscaler: a network that makes images larger, on a provider."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from sdort.console import detail, warn
from sdort.errors import MemoryShortageError, ParityError
from sdort.graph.signature import Array
from sdort.machine.gpus import free_memory
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.probe import choose_provider
from sdort.runtime.session import Session, open_or_fall_back
from sdort.tables import size_text
from sdort.upscaling.network import COMPONENT
from sdort.upscaling.tiles import OnTile, Tiling, enlarge, make_tiling
from sdort.upscaling.upscaler_cache import HalfOverflowError, kept_upscaler
from sdort.upscaling.upscaler_file import UpscalerFacts

TILES = (512, 384, 256, 192, 128, 64)
"""Pixels of a tile's side, the largest first that fits into memory. Larger ones repeat less at their overlaps, and
512 takes the image of a Stable Diffusion 1.5 whole."""
_SHARE = 0.5
"""Share of the free memory that a tile may plan with: a convolution's workspace is not counted."""


class Upscaler:
    """An upscaler that is open on a provider. It serves one call at a time.

    Attributes:
        name: the file's name without its suffix.
        scale: how many times as high and wide it makes an image.
        provider: what runs it, after any fallback.
        precision: ``fp16`` or ``fp32``, which it computes in by now.
        tiling: the tiles of the last image.
    """

    def __init__(
        self, name: str, session: Session, facts: UpscalerFacts, precision: str, widen: Callable[[], Session] | None
    ) -> None:
        self.name = name
        self.precision = precision
        self.tiling: Tiling | None = None
        self._session, self._facts, self._widen = session, facts, widen

    @property
    def scale(self) -> int:
        return self._facts.scale

    @property
    def architecture(self) -> str:
        """The network's architecture, or ``ONNX``."""
        return self._facts.architecture

    @property
    def provider(self) -> Provider:
        return self._session.provider

    def enlarge(self, pixels: Array, tile: int | None = None, on_tile: OnTile = lambda tile, tiles: None) -> Array:
        """An image ``scale`` times as high and wide.

        Args:
            pixels: uint8 [height, width, 3], or [height, width, 1].
            tile: most pixels of a tile's side; None chooses by the free memory.

        Returns:
            uint8 with as many channels.

        Raises:
            MemoryShortageError: even the smallest tile is too large.
            ParityError: the network makes NaN or infinite pixels of it, in fp32 too.
        """
        sides = [tile] if tile else self._tiles()
        for side, smaller in zip(sides, [*sides[1:], None], strict=True):
            self.tiling = self._tiling(pixels.shape[:2], side)
            try:
                return self._enlarged(pixels, self.tiling, on_tile)
            except MemoryShortageError:
                if smaller is None or self._facts.fixed:
                    raise
                warn(f"the upscaler ran out of memory; it goes on in tiles of {smaller} x {smaller} pixels")
        raise AssertionError("there is a smallest tile")

    def _tiling(self, size: tuple[int, ...], side: int) -> Tiling:
        compiled = bool(self.provider.programs)
        return make_tiling((size[0], size[1]), side, self._facts.multiple, self._facts.fixed, compiled)

    def _tiles(self) -> list[int]:
        """Sides of tiles that may fit, the largest first."""
        free = free_memory(self.provider.vendor, self._session.options.device_id)
        needed = self._facts.bytes_per_pixel
        fitting = [side for side in TILES if free is None or needed * side**2 <= _SHARE * free] or [TILES[-1]]
        takes, there = size_text(needed * fitting[0] ** 2), "an unknown amount" if free is None else size_text(free)
        detail(f"upscaling in tiles of up to {fitting[0]} pixels: one takes about {takes}, {there} is free")
        return fitting

    def _enlarged(self, pixels: Array, tiling: Tiling, on_tile: OnTile) -> Array:
        channels = self._facts.channels
        if pixels.shape[2] == channels:
            return enlarge(self._run, pixels, self.scale, tiling, on_tile)
        if channels == 1:
            parts = [pixels[:, :, channel : channel + 1] for channel in range(pixels.shape[2])]
        else:
            parts = [np.repeat(pixels, channels, axis=2)]
        made = [enlarge(self._run, part, self.scale, tiling, on_tile) for part in parts]
        return (
            np.concatenate(made, axis=2)
            if channels == 1
            else made[0].mean(axis=2, keepdims=True).round().astype(np.uint8)
        )

    def _run(self, pixels: Array) -> Array:
        """The network's result for one tile, in a wider precision where fp16 does not hold its values."""
        made, finite = self._once(pixels)
        if not finite and self._widen is not None:
            warn(f"{self.name} gives NaN in fp16, so it goes on in fp32")
            self._session, self.precision, self._widen = self._widen(), "fp32", None
            made, finite = self._once(pixels)
        if not finite:
            raise ParityError(
                f"{self.name} makes NaN or infinite pixels",
                component=COMPONENT,
                hint="Its file is damaged: use another one.",
            )
        return made

    def _once(self, pixels: Array) -> tuple[Array, bool]:
        """The larger tile, and whether all values that became its bytes are finite."""
        (name,), (larger, total) = self._session.inputs, self._session.outputs
        results = self._session.run({name: pixels[None]})
        return results[larger.name][0], bool(np.isfinite(results[total.name]).all())


def open_upscaler(path: Path, options: RuntimeOptions, precision: str | None = None) -> Upscaler:
    """Open an upscaler; its graph is made on first use, and kept.

    Args:
        path: its file: ``.pth``, ``.safetensors`` or ``.onnx``.
        precision: ``fp16`` or ``fp32``; by default fp16 on a GPU.

    Raises:
        BadModelError: the file is no upscaler that sdort knows.
        ProviderError: the provider does not load, or cannot run it.
        OutputError: the cache cannot be written.
    """
    options = replace(options, graph=False, adapters=False, split=False)
    provider, _ = choose_provider(options)
    chosen = precision or provider.usual_precision

    def opened(wanted: str) -> tuple[Session, UpscalerFacts]:
        file, facts = kept_upscaler(path, provider.name, wanted)
        return open_or_fall_back(file, COMPONENT, provider, options)[0], facts

    try:
        session, facts = opened(chosen)
    except HalfOverflowError as error:
        if precision:
            raise
        warn(f"{error.message}, so it runs in fp32")
        chosen = "fp32"
        session, facts = opened(chosen)
    widen = (lambda: opened("fp32")[0]) if chosen == "fp16" else None
    return Upscaler(path.stem, session, facts, chosen, widen)
