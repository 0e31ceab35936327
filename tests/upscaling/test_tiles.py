"""Images made larger in tiles: what tiles change, and how large they are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sdort.graph.signature import Array
from sdort.upscaling import tiles
from sdort.upscaling.tiles import enlarge, make_tiling

SIZES = (1, 2, 31, 63, 64, 65, 100, 127, 128, 129, 200, 331)


def nearest(scale: int) -> tiles.Run:
    return lambda image: image.repeat(scale, 0).repeat(scale, 1)


def blurred(radius: int) -> tiles.Run:
    """A network whose pixels depend on those up to ``radius`` away, with zeros outside of its image."""

    def run(pixels: Array) -> Array:
        image = pixels.astype(np.float32)
        for axis in (0, 1):
            margin = [(0, 0)] * 3
            margin[axis] = (radius, radius)
            wide = np.pad(image, margin)
            length = image.shape[axis]
            image = np.mean([np.take(wide, range(k, k + length), axis) for k in range(2 * radius + 1)], axis=0)
        return image.round().astype(np.uint8)

    return run


@pytest.mark.parametrize(("multiple", "whole"), [(1, False), (2, False), (4, False), (16, False), (1, True), (2, True)])
def test_every_pixel_comes_from_its_place(multiple: int, whole: bool) -> None:
    """For all sizes; tiles are no larger than asked for, start at multiples, and are of one size."""
    rng = np.random.default_rng(0)
    for size in itertools.product(SIZES, (5, 64, 130, 257)):
        tiling = make_tiling(size, 64, multiple, whole=whole)
        assert max(tiling.height, tiling.width) <= 64
        assert not any(number % multiple for number in (tiling.height, tiling.width, *tiling.tops, *tiling.lefts))
        assert (tiling.height, tiling.width) == (64, 64) or not whole
        pixels = rng.integers(0, 256, (*size, 2), np.uint8)
        seen: list[tuple[int, int]] = []
        made = enlarge(nearest(2), pixels, 2, tiling, lambda *tile, seen=seen: seen.append(tile))
        assert (made == pixels.repeat(2, 0).repeat(2, 1)).all()
        assert seen == [(number, tiling.count) for number in range(1, tiling.count + 1)]


def test_tiles_change_nothing_where_the_network_sees_no_further_than_their_margin() -> None:
    """A quarter of the overlap."""
    pixels = np.random.default_rng(0).integers(0, 256, (200, 170, 3), np.uint8)
    whole = enlarge(blurred(4), pixels, 1, make_tiling((200, 170), 256))
    tiling = make_tiling((200, 170), 64)
    assert tiling.count > 9
    assert np.abs(whole.astype(int) - enlarge(blurred(4), pixels, 1, tiling)).max() <= 1


@pytest.mark.parametrize("size", [(70, 300), (300, 33), (20, 50), (1, 5)])
def test_what_an_image_lacks_to_its_tiles_is_its_mirror(size: tuple[int, int]) -> None:
    """As sure as the image itself is: a network that reads it sees no edge. One row or column alone is repeated."""
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 2), np.uint8)
    tiling = make_tiling(size, 64, whole=True)
    seen: list[Array] = []

    def keep(tile: Array) -> Array:
        seen.append(tile)
        return tile

    def inside(places: Array, length: int) -> Array:
        turned = places % max(2 * length - 2, 1)
        return np.asarray(np.minimum(turned, 2 * length - 2 - turned))

    enlarge(keep, pixels, 1, tiling)

    starts = itertools.product(tiling.tops, tiling.lefts)
    for tile, (top, left) in zip(seen, starts, strict=True):
        rows, columns = (
            start + inside(np.arange(64), length - start) for start, length in zip((top, left), size, strict=True)
        )
        assert (tile == pixels[rows][:, columns]).all()


def mixed(parts: list[Array], starts: tuple[int, ...], side: int, length: int) -> Array:
    """Tiles along the first axis in float64: each goes over into the next in the middle half of their overlap."""
    total, filled = np.zeros((length, *parts[0].shape[1:])), 0
    for part, start in zip(parts, starts, strict=True):
        kept, overlap = part[: length - start], max(filled - start, 0)
        share = np.ones(len(kept))
        for place in range(overlap):
            share[place] = min(max((place + 0.5 - overlap / 4) / (overlap / 2), 0), 1)
        share = share[:, None, None]
        here = total[start : start + side]
        here[:] = here * (1 - share) + kept * share
        filled = min(start + side, length)
    return total


@pytest.mark.parametrize("seed", range(12))
def test_bytes_are_mixed_to_a_level_of_the_values_that_they_were(seed: int) -> None:
    """Tiles that have nothing in common: half a level of their own rounding, half a level of the mixture's. Where one
    tile has all of a pixel, that is its byte."""
    rng = np.random.default_rng(seed)
    size, scale, channels = rng.integers(1, 200, 2), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    fixed = tuple(rng.integers(16, 90, 2).tolist()) if seed % 3 == 0 else None
    tiling = make_tiling(tuple(size.tolist()), 64, int(rng.choice([1, 2, 8])) if not fixed else 1, fixed, seed % 3 == 1)
    values = rng.random((tiling.count, tiling.height * scale, tiling.width * scale, channels)) * 255
    number = itertools.count()
    pixels = np.zeros((*size, channels), np.uint8)
    found = enlarge(lambda _: values[next(number)].round().astype(np.uint8), pixels, scale, tiling)
    lefts, tops = ([start * scale for start in starts] for starts in (tiling.lefts, tiling.tops))

    def exact(tiles: Array) -> Array:
        bands = []
        for row in tiles.reshape(len(tops), len(lefts), *tiles.shape[1:]):
            band = mixed([part.swapaxes(0, 1) for part in row], tuple(lefts), tiling.width * scale, size[1] * scale)
            bands.append(band.swapaxes(0, 1))
        return mixed(bands, tuple(tops), tiling.height * scale, size[0] * scale)

    assert np.abs(found - exact(values)).max() <= 1 + 1e-3
    shares = [
        exact(np.eye(tiling.count)[tile][:, None, None, None] * np.ones(values.shape)) for tile in range(tiling.count)
    ]
    alone = np.max(shares, axis=0) == 1
    assert (found == exact(values.round()))[alone].all()
    assert alone.any()


def test_seams_are_small_where_it_sees_further() -> None:
    """A mean over 25 x 25 pixels, of which a tile's edge lacks half: without overlap it would be half as bright."""
    pixels = np.full((300, 300, 1), 200, np.uint8)
    whole = enlarge(blurred(12), pixels, 1, make_tiling((300, 300), 512))
    found = enlarge(blurred(12), pixels, 1, make_tiling((300, 300), 128))
    assert np.abs(whole.astype(int) - found).max() < 200 / 10
    steps = np.abs(np.diff(found[50:-50, 50:-50, 0].astype(int), axis=1))
    assert steps.max() <= 6


@pytest.mark.parametrize("size", [(512, 512), (1000, 700), (4096, 64)])
def test_no_tile_is_needless(size: tuple[int, int]) -> None:
    """As few as reach across with the least overlap."""
    for tile in (64, 256, 512):
        tiling = make_tiling(size, tile)
        for length, starts, side in zip(size, (tiling.tops, tiling.lefts), (tiling.height, tiling.width), strict=True):
            overlap = min(tiles.OVERLAP, tile // 4)
            assert len(starts) == 1 or length > tile + (len(starts) - 2) * (tile - overlap)
            assert all(b - a <= side - overlap + 1 for a, b in itertools.pairwise(starts))


def test_a_fixed_size_is_kept() -> None:
    tiling = make_tiling((100, 20), 512, fixed=(48, 40))
    assert (tiling.height, tiling.width, tiling.lefts) == (48, 40, (0,))
    pixels = np.random.default_rng(0).integers(0, 256, (100, 20, 3), np.uint8)
    assert (enlarge(nearest(3), pixels, 3, tiling) == pixels.repeat(3, 0).repeat(3, 1)).all()
