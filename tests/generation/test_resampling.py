"""Pictures, masks and latents at other sizes, held to diffusers' ``VaeImageProcessor`` and torch's ``interpolate``."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sdort.generation.pictures.input_image import InputImage
from sdort.generation.pictures.resampling import enlarged_latents, pasted, surroundings
from sdort.generation.requests.canvas import make_canvas
from sdort.generation.requests.request import Request
from sdort.graph.signature import Array


def drawn_sides(draw: random.Random) -> tuple[int, int]:
    return draw.choice([40, 56, 64, 72, 131]), draw.choice([40, 48, 80, 97])


def picture(sides: tuple[int, int], draw: random.Random) -> Image.Image:
    values = np.random.default_rng(draw.randrange(1 << 30)).integers(0, 256, (*sides, 3), np.uint8)
    return Image.fromarray(values)


def drawn_mask(sides: tuple[int, int], draw: random.Random) -> Image.Image:
    """A rectangle of white, at times at an edge, and a dot."""
    values = np.zeros(sides, np.uint8)
    top, left = (draw.randrange(side - 16) for side in sides)
    values[top : top + draw.randrange(12, sides[0]), left : left + draw.randrange(12, sides[1])] = 255
    values[draw.randrange(sides[0]), draw.randrange(sides[1])] = 200
    return Image.fromarray(values)


def given(name: str, image: Image.Image) -> Any:
    made = object.__new__(InputImage)
    for key, value in {"name": name, "picture": image}.items():
        object.__setattr__(made, key, value)
    return made


@pytest.mark.parametrize("only_masked", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_a_canvas_is_that_of_diffusers_inpainting(seed: int, only_masked: bool) -> None:
    """Its pixels, mask, region, and the result in the original, of drawn sizes, blurs and paddings."""
    from diffusers.image_processor import VaeImageProcessor

    draw = random.Random(seed)
    sides, (height, width) = drawn_sides(draw), (draw.choice([64, 80]), draw.choice([64, 96]))
    image, mask = picture(sides, draw), drawn_mask(sides, draw)
    blur, padding = draw.choice([0, 3]), draw.choice([0, 5, 40])
    request = Request("", init_image=given("image", image), mask=given("mask", mask), mask_blur=blur,
                      only_masked=only_masked,
                      mask_padding=padding if only_masked else None)  # fmt: skip
    canvas = make_canvas(request, (height, width), 8)

    theirs = VaeImageProcessor(vae_scale_factor=8)
    masks = VaeImageProcessor(vae_scale_factor=8, do_normalize=False, do_binarize=True, do_convert_grayscale=True)
    alpha = masks.blur(mask, blur) if blur else mask
    region, place = None, {}
    if only_masked:
        region = masks.get_crop_region(alpha, width, height, pad=padding)
        place = {"crops_coords": region, "resize_mode": "fill"}
    assert canvas.region == region
    np.testing.assert_array_equal(canvas.pixels, theirs.preprocess(image, height, width, **place).numpy())
    np.testing.assert_array_equal(canvas.mask, masks.preprocess(alpha, height, width, **place).numpy())
    assert canvas.mask is not None
    assert (canvas.pixels.dtype.name, canvas.mask.dtype.name) == ("float32", "float32")
    made = picture((height, width), draw)
    if region is None:
        image, alpha = (theirs.resize(each, height, width) for each in (image, alpha))
    expected = masks.apply_overlay(alpha, image, made, region)
    np.testing.assert_array_equal(canvas.finished(np.asarray(made)), np.asarray(expected))


def test_what_a_blur_has_wiped_out_has_no_surroundings() -> None:
    assert surroundings(Image.new("L", (40, 30)), (64, 64), 8) is None


def test_what_is_black_in_alpha_stays() -> None:
    original, made = Image.new("RGB", (16, 8), "red"), Image.new("RGB", (16, 8), "blue")
    alpha = Image.fromarray(np.repeat([[0] * 8 + [255] * 8], 8, 0).astype(np.uint8))
    found = np.asarray(pasted(made, original, alpha, None))
    assert (found[:, :8] == [255, 0, 0]).all()
    assert (found[:, 8:] == [0, 0, 255]).all()


@pytest.mark.parametrize("before", [(8, 8), (5, 7), (1, 3)])
@pytest.mark.parametrize("after", [(16, 16), (9, 12), (8, 8), (3, 5)])
def test_latents_are_enlarged_as_torch_does(before: tuple[int, int], after: tuple[int, int]) -> None:
    """Within some roundings of fp32."""
    import torch

    latents: Array = np.random.default_rng(3).standard_normal((2, 4, *before)).astype(np.float32)
    expected = torch.nn.functional.interpolate(torch.from_numpy(latents), size=after, mode="bilinear").numpy()
    found = enlarged_latents(latents, after)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6)
