"""What a batch begins with: the order of draws, an image's latents, and the canvas of an image that is not square."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sdort.errors import MemoryShortageError, UsageError
from sdort.generation.latents.decode import Plan
from sdort.generation.latents.encode import Encoder, Posterior, pixels_of_images
from sdort.generation.latents.graph_memory import GraphMemory
from sdort.generation.latents.start_latents import Start
from sdort.generation.pictures.image_sizes import scaled_size, size_from
from sdort.generation.pictures.input_image import InputImage
from sdort.generation.requests.canvas import make_canvas, remark_on_size
from sdort.generation.requests.request import Request
from sdort.generation.schedules.image_noise import ImageSeed, NoiseSource, SeededNormal
from sdort.generation.schedules.schedule_part import Begin, Part
from sdort.graph.signature import TensorSpec

LATENT = (4, 2, 6)
SEEDS = [ImageSeed(3), ImageSeed(4)]


def folder(draws: bool = True) -> Any:
    return SimpleNamespace(draws_latents=draws, scaled=lambda latents: latents * 2)


def normal(number: int, count: int) -> list[Any]:
    """The first draws of a seed."""
    source = SeededNormal(number)
    return [source.draw(LATENT) for _ in range(count)]


def draws(number: int) -> Any:
    """A draw of both seeds, by its number."""
    return np.stack([normal(seed.number, number + 1)[number] for seed in SEEDS])


def posterior(images: int = 1) -> Posterior:
    rng = np.random.default_rng(0)
    return Posterior(rng.normal(size=(images, 8, 2, 6)).astype(np.float32), 4)


def sampled(of: Posterior, draw: Any) -> Any:
    return (of.parameters[:, :4] + np.exp(of.parameters[:, 4:] / 2) * draw) * 2


MASK = np.arange(12).reshape(2, 6) % 3 == 0
IMAGE, NOISE, LATENTS = (Part(begin=begin) for begin in (Begin.IMAGE, Begin.NOISE, Begin.LATENTS))


@pytest.mark.parametrize("images", [1, 2])
def test_an_image_is_drawn_before_the_noise(images: int) -> None:
    begun = Start(folder(), posterior(images)).begin(NoiseSource(SEEDS), LATENT, IMAGE)
    np.testing.assert_allclose(begun.image, sampled(posterior(images), draws(0)), rtol=1e-5, atol=1e-6)  # type: ignore[arg-type]
    np.testing.assert_array_equal(begun.noise, draws(1))
    assert (begun.mask, begun.extra) == (None, None)


def test_where_no_image_is_taken_the_noise_is_first() -> None:
    begun = Start(folder(), posterior()).begin(NoiseSource(SEEDS), LATENT, NOISE)
    np.testing.assert_array_equal(begun.noise, draws(0))
    assert begun.image is None


def test_latents_that_go_on_draw_nothing() -> None:
    latents = np.ones((2, *LATENT), np.float32)
    source = NoiseSource(SEEDS)
    begun = Start(folder(), latents=latents, mask=MASK).begin(source, LATENT, LATENTS)
    assert begun.image is latents
    assert (begun.noise.shape, begun.noise.any(), begun.mask) == (latents.shape, False, None)  # type: ignore[comparison-overlap]
    np.testing.assert_array_equal(source.draw(LATENT), draws(0))
    larger = Start(folder(), latents=latents).begin(NoiseSource(SEEDS), LATENT, IMAGE)
    assert larger.image is latents
    np.testing.assert_array_equal(larger.noise, draws(0))


@pytest.mark.parametrize("drawn", [True, False])
def test_with_a_mask_the_pipelines_draw_once_more(drawn: bool) -> None:
    source = NoiseSource(SEEDS)
    begun = Start(folder(drawn), posterior(), mask=MASK).begin(source, LATENT, Part(begin=Begin.IMAGE, masked=True))
    assert begun.mask is MASK
    np.testing.assert_array_equal(begun.noise, draws(1))
    np.testing.assert_array_equal(source.draw(LATENT), draws(3 if drawn else 2))


def test_an_inpainting_unet_takes_the_mask_and_what_it_leaves() -> None:
    source = NoiseSource(SEEDS)
    begun = Start(folder(), posterior(), mask=MASK, masked=posterior()).begin(source, LATENT, IMAGE)
    assert (begun.mask, begun.extra is not None and begun.extra.shape) == (None, (2, 5, 2, 6))
    assert begun.extra is not None
    for number in range(2):
        np.testing.assert_array_equal(begun.extra[number, 0], MASK.astype(np.float32))
    np.testing.assert_allclose(begun.extra[:, 1:], sampled(posterior(), draws(2)), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(source.draw(LATENT), draws(3))


def test_a_distribution_is_bounded_and_latents_are_themselves() -> None:
    parameters = np.zeros((1, 8, 2, 6), np.float32)
    parameters[0, 4], parameters[0, 5] = 100.0, -100.0
    drawn = Posterior(parameters, 4).sample(NoiseSource(SEEDS))
    for channel, deviation in ((0, np.exp(10)), (1, np.exp(-15)), (2, 1.0)):
        np.testing.assert_allclose(drawn[:, channel], draws(0)[:, channel] * deviation, rtol=1e-4)
    latents = np.arange(48, dtype=np.float32).reshape(1, *LATENT)
    source = NoiseSource(SEEDS)
    same = Posterior(latents, 4).sample(source)
    np.testing.assert_array_equal(same, np.concatenate([latents, latents]))
    np.testing.assert_array_equal(source.draw(LATENT), draws(0))


def test_variations_alone_are_between_two_seeds() -> None:
    varied = [ImageSeed(3, 8), ImageSeed(4, 9)]
    plain, other = draws(0), np.stack([normal(8, 1)[0], normal(9, 1)[0]])
    np.testing.assert_allclose(NoiseSource(varied, 0.0).first(LATENT), plain, atol=1e-5)
    np.testing.assert_allclose(NoiseSource(varied, 1.0).first(LATENT), other, atol=1e-5)
    source = NoiseSource(varied, 0.3)
    state = source.state()
    first = source.first(LATENT)
    assert 0.05 < np.abs(first - plain).mean() < np.abs(other - plain).mean()
    np.testing.assert_array_equal(source.draw(LATENT), draws(1))  # noise on the way is the seed's
    for _ in range(2):
        source.restore(state)
        np.testing.assert_array_equal(source.first(LATENT), first)


# Encoding


def test_pixels_are_from_minus_one_to_one_in_the_encoders_axes() -> None:
    image = np.zeros((2, 4, 3), np.uint8)
    image[1, 3] = (255, 51, 0)
    found = pixels_of_images([image, image])
    assert (found.shape, found.dtype) == ((2, 3, 2, 4), np.float32)  # type: ignore[comparison-overlap]
    np.testing.assert_allclose(found[1, :, 1, 3], [1.0, -0.6, -1.0], atol=1e-6)
    assert found[0, :, 0, 3].tolist() == [-1.0] * 3


@pytest.mark.parametrize("batch", ["N", 3])
def test_each_image_is_encoded_alone_and_in_smaller_tiles_where_memory_ends(batch: Any) -> None:
    ran: list[tuple[int, ...]] = []

    def run(feeds: dict[str, Any]) -> dict[str, Any]:
        pixels = feeds["pixels"]
        ran.append(pixels.shape)
        if pixels.shape[2] > 64 * 8:
            raise MemoryShortageError("no memory")
        return {"out": np.repeat(pixels[:, :1, ::8, ::8], 8, axis=1).astype(np.float16)}

    shape = (batch, 3, "H", "W")
    session: Any = SimpleNamespace(
        inputs={"pixels": TensorSpec("pixels", np.dtype(np.float32), shape)},
        outputs=[TensorSpec("out", np.dtype(np.float16), (batch, 8, "h", "w"))], run=run,
    )  # fmt: skip
    encoder = Encoder(session, {"block_out_channels": [8, 8]}, 8, GraphMemory(), 4)
    count = 3 if batch == 3 else 1
    pixels = np.stack([np.full((3, 16, 48), value, np.float32) for value in (0.25, 0.5)])
    found = encoder.encode(pixels, Plan())
    assert (found.parameters.shape, found.parameters.dtype, found.channels) == ((2, 8, 2, 6), np.float32, 4)  # type: ignore[comparison-overlap]
    assert found.parameters[:, 0, 0, 0].tolist() == [0.25, 0.5]
    assert ran == [(count, 3, 16, 48)] * 2
    assert found.latent == (4, 2, 6)
    ran.clear()
    large = np.full((1, 3, 96 * 8, 16), 0.5, np.float32)
    assert encoder.encode(large, Plan()).parameters.shape == (1, 8, 96, 2)
    assert ran[0] == (count, 3, 768, 16)
    assert set(ran[1:]) == {(count, 3, 512, 16)}


# The canvas


def picture(height: int, width: int, name: str = "photo.png") -> InputImage:
    across = np.linspace(0, 255, width).astype(np.uint8)
    pixels = np.stack([np.tile(across, (height, 1)), np.full((height, width), 60, np.uint8),
                       np.tile(np.linspace(255, 0, height).astype(np.uint8)[:, None], (1, width))], axis=2)  # fmt: skip
    return InputImage(name, Image.fromarray(pixels))


def mask(height: int, width: int, top: int, left: int, bottom: int, right: int) -> InputImage:
    values = np.zeros((height, width), np.uint8)
    values[top:bottom, left:right] = 255
    return InputImage("mask.png", Image.fromarray(values))


def test_without_a_mask_the_whole_image_is_the_canvas() -> None:
    canvas = make_canvas(Request("a", init_image=picture(16, 48)), (16, 48), 8)
    assert (canvas.pixels.shape, canvas.mask, canvas.alpha, canvas.region) == ((1, 3, 16, 48), None, None, None)
    assert canvas.pixels[0, 0, 0, 0] == -1
    assert canvas.pixels[0, 0, 0, -1] == 1
    generated = np.full((16, 48, 3), 9, np.uint8)
    assert canvas.finished(generated) is generated


def test_what_the_mask_leaves_comes_back_pixel_for_pixel() -> None:
    request = Request("a", init_image=picture(16, 48), mask=mask(16, 48, 0, 8, 16, 24), mask_blur=0)
    canvas = make_canvas(request, (16, 48), 8)
    np.testing.assert_array_equal(canvas.latent_mask(8), [[False, True, True, False, False, False]] * 2)
    assert canvas.mask is not None
    assert canvas.mask.shape == (1, 1, 16, 48)
    masked = canvas.masked_pixels
    assert not masked[:, :, :, 8:24].any()
    np.testing.assert_array_equal(masked[..., 24:], canvas.pixels[..., 24:])
    made = canvas.finished(np.full((16, 48, 3), 9, np.uint8))
    original = np.asarray(picture(16, 48).picture)
    np.testing.assert_array_equal(made[:, 24:], original[:, 24:])
    np.testing.assert_array_equal(made[:, :8], original[:, :8])
    assert set(made[:, 8:24].ravel().tolist()) == {9}


def test_blur_and_padding_are_those_of_the_request() -> None:
    base = Request("a", init_image=picture(64, 96), mask=mask(64, 96, 24, 40, 40, 56), mask_blur=0)
    sharp, soft = (make_canvas(replace(base, mask_blur=blur), (64, 96), 8) for blur in (0, 6))
    assert sharp.alpha is not None
    assert soft.alpha is not None
    levels = [len(np.unique(np.asarray(each.alpha))) for each in (sharp, soft)]
    assert levels[0] == 2 < levels[1]
    regions = [
        make_canvas(replace(base, only_masked=True, mask_padding=padding), (64, 96), 8).region for padding in (0, 8)
    ]
    for region in regions:
        assert region is not None
        left, top, right, bottom = region
        assert left <= 40 < 56 <= right
        assert top <= 24 < 40 <= bottom
    assert regions[0] != regions[1]
    small = make_canvas(replace(base, only_masked=True, mask_padding=0), (64, 96), 8)
    made = small.finished(np.full((64, 96, 3), 9, np.uint8))
    assert made.shape == (64, 96, 3)
    original = np.asarray(picture(64, 96).picture)
    np.testing.assert_array_equal(made[:16], original[:16])
    assert set(made[26:38, 42:54].ravel().tolist()) == {9}


@pytest.mark.parametrize("only", [False, True])
def test_white_that_covers_no_latent_is_refused(only: bool) -> None:
    dot = mask(16, 48, 5, 5, 6, 6)
    words = r"the white of --mask mask\.png is too small: at 48x16 pixels it covers no square of 8"
    with pytest.raises(UsageError, match=words) as refused:
        make_canvas(Request("a", init_image=picture(16, 48), mask=dot, mask_blur=0), (16, 48), 8)
    assert "--only-masked" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("size", "only", "words"),
    [
        ((16, 48), False, ""),
        ((32, 96), False, "photo.png is resized from 48x16 to 96x32 pixels; --size"),
        ((16, 24), False, "photo.png is resized from 48x16 to 24x16 pixels, which are other proportions; --size"),
        ((48, 16), False, "photo.png is resized from 48x16 to 16x48 pixels, which are other proportions"),
        ((16, 50), False, "to 50x16 pixels; --size"),
        ((16, 51), False, "to 51x16 pixels, which are other"),
        ((32, 96), True, ""),
    ],
)
def test_a_resized_image_is_told(
    size: tuple[int, int], only: bool, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own: dict[str, Any] = {"mask": mask(16, 48, 0, 0, 16, 24), "only_masked": True} if only else {}
    remark_on_size(Request("a", init_image=picture(16, 48), **own), size)
    told = " ".join(capsys.readouterr().err.split())
    assert words in told
    assert bool(told) == bool(words)


@pytest.mark.parametrize(("right", "told"), [(48, True), (47, False)])
def test_a_mask_of_everything_is_told(right: int, told: bool, capsys: pytest.CaptureFixture[str]) -> None:
    remark_on_size(Request("a", init_image=picture(16, 48), mask=mask(16, 48, 0, 0, 16, right)), (16, 48))
    assert ("--mask mask.png is all white" in " ".join(capsys.readouterr().err.split())) is told


@pytest.mark.parametrize(
    ("image", "asked", "size"),
    [
        ((48, 100), (None, None), [48, 96]),  # rounded down
        ((47, 7), (None, None), [40, 8]),
        ((128, 256), (None, None), [128, 256]),  # four times 64 x 128
        ((136, 256), (None, None), [64, 128]),  # beyond: the model's pixels in its own proportions, 66 x 124
        ((40, 80), (80, None), [80, 160]),
        ((40, 80), (None, 48), [24, 48]),
        ((40, 80), (16, 48), [16, 48]),
        ((4000, 8000), (80, None), [80, 160]),
        ((8, 800), (None, 80), [8, 80]),
    ],
)
def test_the_size_of_an_image_keeps_its_proportions(
    image: tuple[int, int], asked: tuple[int | None, int | None], size: list[int]
) -> None:
    assert size_from(picture(*image), asked, (64, 128), 8) == size


@pytest.mark.parametrize(
    ("size", "scale", "wanted"), [((64, 96), 1.5, (96, 144)), ((64, 40), 1.3, (80, 48)), ((8, 16), 1.0, (8, 16))]
)
def test_a_second_pass_is_larger_on_both_sides(size: tuple[int, int], scale: float, wanted: tuple[int, int]) -> None:
    assert scaled_size(size, scale, 8) == wanted
