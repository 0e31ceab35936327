"""Requests alone: every default, every pair of options that belong together, and sizes that are not square."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sdort.errors import BadModelError, UsageError
from sdort.families.data.sd1 import FAMILY as SD1
from sdort.families.data.sdxl import FAMILY as SDXL
from sdort.families.data.sdxl_refiner import FAMILY as REFINER
from sdort.families.family import Encoder
from sdort.generation.pictures.input_image import InputImage
from sdort.generation.requests import request as request_module
from sdort.generation.requests.request import (
    GOES_WITH,
    MAX_PROMPT,
    Request,
    check_inputs,
    check_prompts,
    check_side,
    check_task,
    each_prompt,
    image_size,
    inpainting_channels,
)
from sdort.generation.requests.typed_options import DrawnOptions
from sdort.generation.schedules.image_noise import ImageSeed
from sdort.graph.signature import TensorSpec
from sdort.options.declared_options import ranges_of


def grey(height: int, width: int, level: int = 255, name: str = "photo.png") -> InputImage:
    return InputImage(name, Image.fromarray(np.full((height, width), level, np.uint8)))


PHOTO, MASK = grey(48, 80), grey(48, 80, name="mask.png")
GIVEN: dict[str, Any] = {
    "init_image": PHOTO,
    "mask": MASK,
    "only_masked": True,
    "variation_strength": 0.0,
    "hires": 1.0,
    "refiner": Path("refiner"),
    "upscale": Path("4x.pth"),
    "deep_cache": 1,
    "patches": 2,
}
"""A value of each option without which another one means nothing; zero is a value."""

LEAST: dict[str, Any] = {
    "strength": 0.0,
    "mask": MASK,
    "mask_blur": 0,
    "only_masked": True,
    "mask_padding": 0,
    "variation_seed": 0,
    "hires_upscale": "latent",
    "hires_strength": 0.0,
    "hires_steps": 1,
    "hires_upscaler": Path("4x.pth"),
    "upscale_by": 0.1,
    "refiner_start": 0.0,
    "deep_cache_depth": 1,
    "exact_steps": 1,
}
"""The least value of each option that needs another one."""


def chain(name: str) -> dict[str, Any]:
    """All options that one needs, by the tables above."""
    given: dict[str, Any] = {}
    while name in NEEDS:
        name = NEEDS[name]
        given[name] = GIVEN[name]
    return given


NEEDS = {
    "strength": "init_image",
    "mask": "init_image",
    "mask_blur": "mask",
    "only_masked": "mask",
    "mask_padding": "only_masked",
    "variation_seed": "variation_strength",
    "hires_upscale": "hires",
    "hires_strength": "hires",
    "hires_steps": "hires",
    "hires_upscaler": "hires",
    "upscale_by": "upscale",
    "refiner_start": "refiner",
    "deep_cache_depth": "deep_cache",
    "exact_steps": "patches",
}


@pytest.mark.parametrize("name", NEEDS)
def test_an_option_needs_another_one_even_at_its_least_value(name: str) -> None:
    assert set(NEEDS) == set(GOES_WITH)
    given = chain(name)
    Request("a", **given, **{name: LEAST[name]})
    del given[NEEDS[name]]
    words = f"--{name} means nothing without --{NEEDS[name]}".replace("_", "-")
    with pytest.raises(UsageError, match=words) as refused:
        Request("a", **given, **{name: LEAST[name]})
    assert f"Give --{NEEDS[name]} too".replace("_", "-") in str(refused.value.hint)
    if name == "only_masked":
        Request("a", **given, only_masked=False)  # is as if it were not given


BOUNDED = (
    "steps", "guidance_scale", "height", "width", "seed", "num_images", "images_at_once", "eta", "shift", "clip_skip",
    "strength", "mask_blur", "mask_padding", "hires", "hires_strength", "hires_steps", "variation_seed",
    "variation_strength", "refiner_start", "aesthetic_score", "negative_aesthetic_score", "upscale_by",
    "deep_cache", "deep_cache_depth", "patches", "exact_steps",
)  # fmt: skip


def asked(**options: Any) -> Request:
    return Request("a", **options)


@pytest.mark.parametrize("name", BOUNDED)
def test_every_number_has_its_bounds(name: str) -> None:
    numbers = {each.name for each in dataclasses.fields(Request) if str(each.type).startswith(("int", "float"))}
    assert numbers - {"guidance_base"} == set(BOUNDED)  # which the model says
    limits = ranges_of(DrawnOptions)[name]
    for value in (limits.low - 1, limits.high + 1, "1", True):
        with pytest.raises(UsageError, match=f"--{name} .* is not a".replace("_", "-")):
            asked(**chain(name), **{name: value})
    for value in (limits.low, limits.high):
        assert getattr(asked(**chain(name), **{name: value}), name) == value


@pytest.mark.parametrize(("name", "more"), [("seed", {}), ("variation_seed", {"variation_strength": 0.5})])
def test_the_last_images_seed_is_a_seed(name: str, more: dict[str, Any]) -> None:
    last = (1 << 63) - 1
    asked(**more, **{name: last - 2}, num_images=3)
    with pytest.raises(UsageError, match=f"--{name} .* is not a whole number".replace("_", "-")):
        asked(**more, **{name: last - 1}, num_images=3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hires": 2.0, "init_image": PHOTO}, "--hires goes with text alone, not with --init-image"),
        ({"refiner": Path("r"), "hires": 2.0}, "--refiner goes with one pass over the whole image, not with --hires"),
        (
            {"refiner": Path("r"), "init_image": PHOTO, "mask": MASK},
            "--refiner goes with one pass over the whole image, not with --mask",
        ),
        ({"hires": 2.0, "hires_upscale": "lanczos"}, "--hires-upscale 'lanczos' is not one of latent, image"),
        ({"timestep_spacing": "even"}, "there is no timestep spacing 'even'"),
        ({"prompt_weighting": "b1111"}, "there is no prompt weighting 'b1111'"),
        ({"guess_mode": True}, "--guess-mode is for --control"),
        ({"prompt_2": "a AND b"}, "--prompt-2 has parts with AND"),
        (
            {"init_image": PHOTO, "mask": grey(80, 48, name="m.png")},
            "--mask m.png has 48x80 pixels and --init-image photo.png 80x48",
        ),
        ({"init_image": PHOTO, "mask": grey(48, 80, 127, "m.png")}, "--mask m.png selects nothing"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Request("a", **options)


def test_what_goes_together_is_taken() -> None:
    Request("a", refiner=Path("r"), init_image=PHOTO)
    Request("a", init_image=PHOTO, mask=grey(48, 80, 128))  # middle grey counts
    Request("a", hires=2.0, hires_upscale="image")
    Request("a", timestep_spacing="trailing", prompt_weighting="none")
    many = " AND ".join(["x:101"] * 20)  # text there, as in A1111
    Request("a", negative_prompt=many, negative_prompt_2=many)
    Request("a", prompt_2="x AND y", prompt_weighting="comfyui")
    Request("a", guess_mode=True, control=(SimpleNamespace(),))  # type: ignore[arg-type]


TEXTS = ("prompt", "negative_prompt", "prompt_2", "negative_prompt_2")


@pytest.mark.parametrize("name", TEXTS)
def test_every_text_is_checked(name: str) -> None:
    option = f"--{name.replace('_', '-')}"
    for text, words in [
        (7, f"{option} is a text, not int"),
        ("x" * (MAX_PROMPT + 1), f"{option} has 131,073 characters, at most 131,072 are taken"),
        ("ab\0c", f"{option} is no text: its character 3 is"),
        ("a\udfffc", f"{option} is no text: its character 2 is"),
        ("\ud800", f"{option} is no text: its character 1 is"),
        ("(a:101)", "the weight 101"),
        ("[a:(b:101):0.5]", "the weight 101"),
    ]:
        with pytest.raises(UsageError, match=words):
            Request(**{"prompt": "a", name: text})  # type: ignore[arg-type]
    Request(**{"prompt": "a", name: "x " * (MAX_PROMPT // 2)})  # type: ignore[arg-type]


@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0, 1.5, 7.5])
@pytest.mark.parametrize("weights", [[1.0], [1.0, 0.5], [2.0, -1.0, 0.25]])
def test_guidance_is_what_differs_from_the_negative_prompt(weights: list[float], scale: float, embedded: bool) -> None:
    """negative + sum of scale * weight * (part - negative); 1 and less is no guidance, an embedded scale is the
    UNet's."""
    prompt = " AND ".join(f"a:{weight}" for weight in weights) if len(weights) > 1 else "a"
    factor = 1.0 if embedded or scale <= 1 else scale
    outputs = np.random.default_rng(0).normal(size=1 + len(weights))  # of the negative prompt, and of each part
    wanted = outputs[0] + sum(factor * w * (part - outputs[0]) for w, part in zip(weights, outputs[1:], strict=True))
    found = Request(prompt, guidance_scale=scale).guidance(embedded)
    unguided = len(weights) == 1 and factor == 1.0
    assert len(found) == (1 if unguided else 1 + len(weights))
    np.testing.assert_allclose(np.dot(found, outputs[1:] if unguided else outputs), wanted)


def test_texts_are_those_of_all_four_once() -> None:
    assert Request("a", "b", prompt_2="c", negative_prompt_2="d").texts == ("a", "b", "c", "d")
    assert Request("a", "a", prompt_2="", negative_prompt_2="d").texts == ("a", "d")


def test_seeds_count_up_and_variations_count_theirs() -> None:
    assert Request("a", seed=5, num_images=3).seeds == [ImageSeed(5), ImageSeed(6), ImageSeed(7)]
    varied = Request("a", seed=5, num_images=2, variation_strength=0.0, variation_seed=9)
    assert varied.seeds == [ImageSeed(5, 9), ImageSeed(5, 10)]
    assert Request("a", seed=5, variation_strength=0.1).seeds == [ImageSeed(5, 0)]


def test_zero_is_asked_for_and_nothing_is_the_default() -> None:
    zeros = Request(
        "a", init_image=PHOTO, mask=MASK, only_masked=True, strength=0.0, mask_blur=0, mask_padding=0,
        aesthetic_score=0.0, negative_aesthetic_score=0.0,
    )  # fmt: skip
    assert (zeros.image_strength, zeros.blur, zeros.padding, zeros.scores) == (0.0, 0, 0, (0.0, 0.0))
    assert Request("a", hires=2.0, hires_strength=0.0).second_strength == 0.0
    assert Request("a", refiner=Path("r"), refiner_start=0.0).base_share == 0.0
    plain = Request("a", init_image=PHOTO)
    assert (plain.image_strength, plain.blur, plain.padding, plain.scores) == (0.75, 4, 32, (2.5, 6.0))
    assert (plain.second_strength, plain.base_share) == (0.7, 0.8)
    assert Request("a", init_image=PHOTO, mask=MASK).image_strength == 1.0
    assert Request("a", aesthetic_score=9.0).scores == (2.5, 9.0)
    assert Request("a", negative_aesthetic_score=1.0).scores == (1.0, 6.0)


DEFAULTS_OF_NOTHING = (
    "init_image", "init_image_hash", "strength", "mask", "mask_hash", "mask_blur", "mask_padding", "hires",
    "hires_upscale", "hires_strength", "refiner", "refiner_start", "hires_steps", "variation_seed",
    "variation_strength", "hires_upscaler", "upscale", "upscale_by",
)  # fmt: skip


def test_the_record_has_defaults_of_what_was_asked_for_and_none_of_the_rest() -> None:
    plain = Request("a", steps=7).recorded()
    assert {plain[name] for name in DEFAULTS_OF_NOTHING} == {None}
    image = Request("a", init_image=PHOTO, mask=MASK).recorded()
    said = {name: image[name] for name in ("init_image", "mask", "strength", "mask_blur", "mask_padding")}
    assert said == {
        "init_image": "photo.png",
        "mask": "mask.png",
        "strength": 1.0,
        "mask_blur": 4,
        "mask_padding": None,
    }
    assert (image["init_image_hash"], image["mask_hash"]) == (PHOTO.digest, MASK.digest)
    assert Request("a", init_image=PHOTO).recorded()["strength"] == 0.75
    assert Request("a", init_image=PHOTO, mask=MASK, only_masked=True).recorded()["mask_padding"] == 32
    larger = Request("a", steps=7, hires=1.5).recorded()
    names = ("hires", "hires_upscale", "hires_strength", "hires_steps")
    assert [larger[name] for name in names] == [1.5, "latent", 0.7, 7]
    other = Request("a", steps=7, hires=1.5, hires_upscale="image", hires_strength=0.2, hires_steps=3).recorded()
    assert [other[name] for name in names] == [1.5, "image", 0.2, 3]
    refined = Request("a", refiner=Path("/x/sdxl-refiner")).recorded()
    assert (refined["refiner"], refined["refiner_start"]) == ("sdxl-refiner", 0.8)


def test_each_prompt_has_its_own_texts_or_the_one_of_all() -> None:
    base = Request("", steps=3)
    found = each_prompt(["a", "b"], base, {"negative_prompt": ["c", "d"], "prompt_2": "e", "negative_prompt_2": []})
    assert [(each.prompt, each.negative_prompt, each.prompt_2, each.negative_prompt_2) for each in found] == [
        ("a", "c", "e", ""),
        ("b", "d", "e", ""),
    ]
    assert {each.steps for each in found} == {3}
    assert [each.prompt for each in each_prompt("ab", base)] == ["ab"]
    with pytest.raises(UsageError, match="there is no prompt"):
        each_prompt([], base)
    with pytest.raises(UsageError, match="--prompt is given 2 times, --prompt-2 3 times"):
        each_prompt(["a", "b"], base, {"prompt_2": ["c", "d", "e"]})


# What a pipeline can do


def folder(
    *, sample: tuple[Any, ...] = ("N", 4, "H", "W"), family: Any = SD1,
    default: tuple[int, int] = (96, 64), factor: int = 8, latents: int = 4,
    models: tuple[str, ...] = ("unet", "vae_encoder"), inputs: Any = None,
) -> Any:  # fmt: skip
    specs = {"sample": TensorSpec("sample", np.dtype(np.float32), sample)} if inputs is None else inputs
    file = SimpleNamespace(signature=SimpleNamespace(inputs=specs))
    return SimpleNamespace(
        file=lambda _: file, vae_factor=factor, side_step=factor,
        default_size=default, family=family, path=Path("pipe"), given="pipe", largest_side=None,
        latent_channels=latents, sample_channels=sample[1], models=models, denoiser=family.denoiser.component,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("static", "options", "size"),
    [
        ((None, None), {}, (96, 64)),
        ((None, None), {"height": 40}, (40, 64)),
        ((None, None), {"width": 40}, (96, 40)),
        ((None, None), {"height": 40, "width": 56}, (40, 56)),
        ((6, 10), {}, (48, 80)),
        ((6, 10), {"height": 48, "width": 80}, (48, 80)),
        ((6, None), {}, (48, 64)),
        ((None, 10), {"height": 8}, (8, 80)),
        ((None, None), {"init_image": PHOTO}, (48, 80)),
        ((None, None), {"init_image": PHOTO, "height": 96}, (96, 160)),
        ((None, None), {"init_image": PHOTO, "mask": MASK, "only_masked": True}, (96, 64)),
    ],
)
def test_the_size_is_asked_for_fixed_the_images_or_the_models(
    static: tuple[int | None, int | None], options: dict[str, Any], size: tuple[int, int]
) -> None:
    sample = ("N", 4, static[0] or "H", static[1] or "W")
    assert image_size(folder(sample=sample), Request("a", **options)) == size


def test_a_size_that_cannot_be_is_refused_by_its_side() -> None:
    static = folder(sample=("N", 4, 6, 10))
    with pytest.raises(UsageError, match="exported for the height 48, not 80"):
        image_size(static, Request("a", height=80))
    with pytest.raises(UsageError, match="exported for the width 80, not 48"):
        image_size(static, Request("a", width=48))
    with pytest.raises(UsageError, match="exported for the width 80, not 160"):
        image_size(static, Request("a"), (48, 160))
    assert image_size(folder(), Request("a", height=8), (24, 32)) == (24, 32)
    with pytest.raises(BadModelError, match="it has no input 'sample', but 'x', 'y'"):
        image_size(folder(inputs={"x": 0, "y": 0}), Request("a"))


@pytest.mark.parametrize(("side", "below", "above"), [(12, 8, 16), (4, 8, 16), (23, 16, 24), (0, 8, 16), (-8, 8, 16)])
def test_a_side_that_is_no_multiple_is_refused_with_its_neighbours(side: int, below: int, above: int) -> None:
    with pytest.raises(UsageError, match=f"--width {side} is not a multiple of 8") as refused:
        check_side("width", side, 64, None, 8)
    assert refused.value.hint == f"Take {below} or {above}."


INPAINTING = ("N", 9, "H", "W")


def test_a_pipeline_does_its_own_task_alone() -> None:
    text, image = Request("a"), Request("a", init_image=PHOTO)
    masked = Request("a", init_image=PHOTO, mask=MASK)
    for fine, request in (
        (folder(), text), (folder(), image), (folder(), masked), (folder(models=()), text),
        (folder(sample=INPAINTING), masked), (folder(sample=("N", 33, "H", "W"), latents=16), masked),
        (folder(family=REFINER), image), (folder(family=REFINER), Request("a", init_image=PHOTO, aesthetic_score=5.0)),
        (folder(), Request("a", refiner=Path("r"), aesthetic_score=5.0)),
    ):  # fmt: skip
        check_task(fine, request)
    for bad, request, words in (
        (folder(family=REFINER), text, "is SDXL's refiner, which works on an image"),
        (folder(models=("unet",)), image, "has no vae_encoder"),
        (folder(sample=INPAINTING), text, "takes 9 channels, not the 4 of latent noise; it is an inpainting"),
        (folder(sample=INPAINTING), image, "it is an inpainting model"),
        (folder(sample=("N", 8, "H", "W")), masked, "takes 8 channels, .* it is made for another task"),
        (folder(sample=("N", 8, "H", "W")), text, "takes 8 channels, .* it is made for another task"),
    ):
        with pytest.raises(BadModelError, match=words):
            check_task(bad, request)
    for score in ("aesthetic_score", "negative_aesthetic_score"):
        with pytest.raises(UsageError, match=f"--{score} is for SDXL's refiner".replace("_", "-")):
            check_task(folder(), Request("a", **{score: 0.0}))  # type: ignore[arg-type]
    assert [inpainting_channels(latents) for latents in (4, 16)] == [9, 33]


@pytest.mark.parametrize("name", ["prompt_2", "negative_prompt_2"])
def test_second_prompts_are_for_two_encoders(name: str) -> None:
    request = Request("a", **{name: "b"})  # type: ignore[arg-type]
    check_prompts(folder(family=SDXL), request)
    with pytest.raises(UsageError, match=f"--{name} is for SDXL's second text encoder".replace("_", "-")):
        check_prompts(folder(), request)


def test_the_layers_of_every_encoder_are_looked_at_for_a_clip_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def look(encoder: Encoder, names: Any, config: Any, skip: int) -> None:
        asked.append((encoder.component, skip))

    monkeypatch.setattr(request_module, "encoder_outputs", look)
    family = SimpleNamespace(encoders=[Encoder("text_encoder", {}), Encoder("text_encoder_2", {})])
    file = SimpleNamespace(signature=SimpleNamespace(outputs={"last": 0}))
    pipe: Any = SimpleNamespace(family=family, file=lambda _: file, config=lambda _: {})
    check_prompts(pipe, Request("a"))
    assert asked == []
    check_prompts(pipe, Request("a", clip_skip=2))
    assert asked == [("text_encoder", 2), ("text_encoder_2", 2)]


SD_INPUTS = ("sample", "timestep", "encoder_hidden_states")
BESIDE = (
    "timestep_cond", "mid_block_additional_residual", "down_block_additional_residuals.0",
    "down_intrablock_additional_residuals.0", "image_tokens.0", "image_scale.0",
)  # fmt: skip


def unet(*names: str, numbers: int | None = None) -> Any:
    shapes: dict[str, tuple[Any, ...]] = {"time_ids": ("N", numbers)}
    specs = {name: TensorSpec(name, np.dtype(np.float32), shapes.get(name, ("N", 4))) for name in names}
    return SimpleNamespace(inputs=specs)


def test_a_unet_takes_what_its_family_tells_it() -> None:
    check_inputs(unet(*SD_INPUTS), SD1)
    check_inputs(unet(*SD_INPUTS, *BESIDE), SD1)
    for missing in SD_INPUTS:
        with pytest.raises(BadModelError, match=f"the UNet has no input {missing}"):
            check_inputs(unet(*(name for name in SD_INPUTS if name != missing)), SD1)
    with pytest.raises(BadModelError, match="the UNet needs class_labels, time_ids: it is not one of"):
        check_inputs(unet(*SD_INPUTS, "time_ids", "class_labels"), SD1)
    sdxl = (*SD_INPUTS, "text_embeds", "time_ids")
    for family, own, other in ((SDXL, 6, 5), (REFINER, 5, 6)):
        for numbers in (None, own):
            check_inputs(unet(*sdxl, numbers=numbers), family)
        with pytest.raises(BadModelError, match=f"the UNet takes {other} numbers as time_ids, not the {own} of"):
            check_inputs(unet(*sdxl, numbers=other), family)


def test_sides_are_multiples_of_a_token() -> None:
    with pytest.raises(UsageError, match="--width 72 is not a multiple of 16"):
        check_side("width", 72, 64, None, 16)


def test_a_distilled_model_draws_with_the_prompt_alone() -> None:
    assert Request("a star", guidance_scale=3.5, distilled=True).guidance() == [1.0]
    assert Request("a star", guidance_scale=3.5).guidance() == [-2.5, 3.5]
