"""Every option that an image's record gives back, by its own field; and what its notes say of other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, PngImagePlugin

from sdort.errors import BadModelError, UsageError
from sdort.generation.files.from_image import REPLAYED, DrawnWith, program_of, read_image_options
from sdort.generation.files.infotext import read_infotext
from sdort.generation.pictures.input_image import InputImage
from sdort.generation.requests.request import Request

VALUES: dict[str, Any] = {
    "prompt": "p", "negative_prompt": "n", "prompt_2": "p2", "negative_prompt_2": "n2", "clip_skip": 2,
    "prompt_weighting": "none", "steps": 11, "guidance_scale": 3.5, "height": 16, "width": 48, "seed": 0,
    "scheduler": "ddim", "timestep_spacing": "trailing", "eta": 0.0, "shift": 2.0,
    "vae_tiling": False, "vae_slicing": True,
    "strength": 0.6, "mask_blur": 0, "only_masked": True, "mask_padding": 5, "variation_seed": 8,
    "variation_strength": 0.2, "guess_mode": False, "refiner_start": 0.7, "aesthetic_score": 0.0,
    "negative_aesthetic_score": 1.5, "deep_cache": 3, "deep_cache_depth": 4,
    "patches": 6, "exact_steps": 12,
}  # fmt: skip
"""Options that go together, each with a value that no other one has, or zero."""
SECOND: dict[str, Any] = {"hires": 1.5, "hires_upscale": "image", "hires_strength": 0.3, "hires_steps": 9}
GIVEN = {"init_image": "i.png", "mask": "m.png", "refiner": "r"}
FIELDS = {"scheduler": "scheduler_name"}
"""Options whose field has another name."""


def image(path: Path, record: dict[str, Any]) -> Path:
    chunks = PngImagePlugin.PngInfo()
    chunks.add_text("sdort", json.dumps(record))
    Image.new("RGB", (1, 1)).save(path / "a.png", pnginfo=chunks)
    return path / "a.png"


def record(options: dict[str, Any], **more: Any) -> dict[str, Any]:
    base = {"prompt": "p", "scheduler": "DDIMScheduler"}
    return base | {FIELDS.get(name, name): value for name, value in options.items()} | more


def test_every_option_comes_back_from_its_own_field(tmp_path: Path) -> None:
    assert {*VALUES, *SECOND} == set(REPLAYED)
    found = read_image_options(image(tmp_path, record(VALUES)), GIVEN)
    assert found.options == VALUES
    second = read_image_options(image(tmp_path, record(SECOND)), {})
    assert second.options == SECOND | {"prompt": "p", "scheduler": "DDIMScheduler"}


@pytest.mark.parametrize("name", [*VALUES, *SECOND])
def test_what_is_given_or_unknown_is_not_taken_and_another_type_is_refused(name: str, tmp_path: Path) -> None:
    values = VALUES if name in VALUES else SECOND
    given = GIVEN if name in VALUES else {}
    dropped = values.keys() - {name}
    found = read_image_options(image(tmp_path, record(values)), {**given, name: "mine"}).options
    assert name not in found
    assert dropped - found.keys() <= {"eta", "timestep_spacing"} | ({"hires_upscale"} if name == "hires" else set())
    if name == "prompt":
        return
    wrong = 5 if isinstance(values[name], str | bool) else "5"
    with pytest.raises(BadModelError, match=f"has a {name} that is none"):
        read_image_options(image(tmp_path, record({**values, name: wrong})), given)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("lora", [{"name": "a.safetensors", "scale": 0.5}, {"name": "b", "scale": 1}], "a.safetensors:0.5, b:1"),
        ("init_image", "photo.png", "photo.png"),
        ("mask", "mask.png", "mask.png"),
        ("control", [{"name": "canny", "scale": 2.0}], "canny:2"),
        ("ip_adapter_image", [{"name": "face.png", "scale": 0.25}], "face.png:0.25"),
        ("refiner", "xl", "xl"),
    ],
)
def test_each_kind_of_file_has_to_be_given_again(name: str, value: Any, told: str, tmp_path: Path) -> None:
    path = image(tmp_path, record({}, **{name: value}))
    with pytest.raises(UsageError, match=f"was drawn with files that are not in it: {told}") as refused:
        read_image_options(path, {})
    assert refused.value.hint == f"Give them with --{name.replace('_', '-')}."
    read_image_options(path, {name: "given"})
    read_image_options(image(tmp_path, record({}, **{name: [] if isinstance(value, list) else None})), {})


def test_a_record_says_which_model_images_and_files_there_were(tmp_path: Path) -> None:
    said = record(
        {}, model="m", model_hash="00", refiner="r", refiner_hash="11", init_image="i.png", init_image_hash="22",
        mask="m.png", mask_hash="33", lora=[{"name": "l"}, 5], control=[{"name": "c"}], ip_adapter_image="odd",
    )  # fmt: skip
    found = read_image_options(image(tmp_path, said), {**GIVEN, "lora": 1, "control": 1, "ip_adapter_image": 1})
    assert (found.model, found.model_hash, found.refiner, found.refiner_hash) == ("m", "00", "r", "11")
    assert found.images == {"init_image": ("i.png", "22"), "mask": ("m.png", "33")}
    assert found.files == {"lora": [{"name": "l"}], "control": [{"name": "c"}], "ip_adapter_image": []}
    bare = read_image_options(image(tmp_path, record({}, model=5, init_image="i.png", mask_hash="33")), GIVEN)
    assert (bare.model, bare.model_hash, bare.refiner, bare.images) == (None, "unknown", None, {})


def test_of_a_plain_image_nothing_is_left_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its record has every field, those of other tasks empty or off."""
    plain = Request("p", scheduler="ddim").recorded()
    files = ("lora", "control", "ip_adapter_image")
    path = image(
        tmp_path, {**plain, **dict.fromkeys(files, ()), "scheduler": "DDIMScheduler", "scheduler_name": "ddim"}
    )
    found = read_image_options(path, {}).options
    assert {name: value for name, value in found.items() if name in VALUES and "prompt" not in name} == {
        "clip_skip": 1, "steps": 50, "guidance_scale": 7.5, "seed": 0, "scheduler": "ddim", "guess_mode": False,
    }  # fmt: skip
    assert capsys.readouterr().err == ""


def test_another_image_than_that_of_the_record_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    mine = InputImage("mine.png", Image.new("RGB", (4, 2)))
    other = InputImage("other.png", Image.new("RGB", (2, 4)))  # the same bytes, of another size
    assert mine.digest != other.digest
    drawn = DrawnWith({}, images={"mask": ("theirs.png", other.digest)})
    drawn.remark_on_image("mask", other)
    drawn.remark_on_image("init_image", mine)
    assert capsys.readouterr().err == ""
    drawn.remark_on_image("mask", mine)
    assert "--mask mine.png is not the theirs.png that the image was drawn with" in " ".join(
        capsys.readouterr().err.split()
    )


A1111 = {
    "Steps": ("steps", 9), "CFG scale": ("guidance_scale", 3.5), "Seed": ("seed", 0), "Clip skip": ("clip_skip", 2),
    "Eta": ("eta", 0.25), "Eta DDIM": ("eta", 0.75), "Mask blur": ("mask_blur", 0),
    "Masked area padding": ("mask_padding", 5), "Variation seed": ("variation_seed", 8),
    "Variation seed strength": ("variation_strength", 0.2), "Hires upscale": ("hires", 1.5),
    "Hires steps": ("hires_steps", 7), "Refiner switch at": ("refiner_start", 0.6),
    "Denoising strength": ("strength", 0.4),
}  # fmt: skip


@pytest.mark.parametrize("name", A1111)
@pytest.mark.parametrize("lower", [False, True])
def test_every_number_of_a1111s_is_its_option(name: str, lower: bool) -> None:
    option, value = A1111[name]
    said = f"{name.lower() if lower else name}: {value}"
    found = read_infotext(
        f"a\nSteps: 3, Seed: 4, Size: 48x16, {said}" if name != "Seed" else f"a\nSteps: 3, A: b, {said}"
    )
    assert found.options[option] == value
    if name != "Seed":
        assert (found.options["width"], found.options["height"]) == (48, 16)


@pytest.mark.parametrize(
    ("texts", "program"),
    [
        ({}, None),
        ({"parameters": "a\nSteps: 3, Seed: 4, Size: 48x16"}, None),
        ({"Software": "NovelAI"}, "NovelAI"),
        ({"Title": "NovelAI generated image"}, "NovelAI"),
        ({"Source": "NovelAI Diffusion V4"}, "NovelAI"),
        ({"Comment": '{"uc": "", "scale": 5}'}, "NovelAI"),
        ({"Comment": '{"uc": ""}'}, None),
        ({"parameters": '{"sui_image_params": {}}'}, "SwarmUI"),
        ({"invokeai_metadata": "{}"}, "InvokeAI"),
        ({"sd-metadata": "{}"}, "InvokeAI"),
        ({"Dream": "a"}, "InvokeAI"),
        ({"parameters": '{"c": "", "uc": ""}'}, "Draw Things"),
        ({"parameters": '{"c": ""}'}, "another program"),
        ({"use_stable_diffusion_model": "x"}, "Easy Diffusion"),
        ({"software": "RuinedFooocus"}, "RuinedFooocus"),
        ({"fooocus_scheme": "fooocus"}, "Fooocus"),
        ({"parameters": '{"version": "Fooocus v2"}'}, "Fooocus"),
        ({"Description": "a cat Job ID: 5"}, "Midjourney"),
        ({"generation_data": "{}"}, "TensorArt"),
        ({"workflow": "{}"}, "ComfyUI"),
        ({"prompt": ' {"1": 5}'}, "ComfyUI"),
        ({"parameters": '{"1": {"class_type": "KSampler"}}'}, "ComfyUI"),
        ({"prompt": "a cat"}, None),
        ({"parameters": '{"app": "Mine"}'}, "Mine"),
        ({"parameters": '{"a": 5}'}, "another program"),
    ],
)
def test_each_program_is_known_by_its_notes(texts: dict[str, str], program: str | None) -> None:
    assert program_of(texts) == program
