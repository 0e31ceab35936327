"""Parameters as A1111, Forge, SD.Next, Fooocus, Civitai and ComfyUI write them, in PNG, JPEG and WebP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import ExifTags, Image, PngImagePlugin

from sdort.errors import BadModelError, UsageError
from sdort.generation.files.comfyui_graph import read_comfyui_graph
from sdort.generation.files.from_image import read_image_options
from sdort.generation.files.image_texts import MAX_TEXT, read_texts
from sdort.generation.files.infotext import read_infotext

TEXTS = {
    "a1111 with hashes": (
        "a cat, <lora:fine:0.8>\nNegative prompt: EasyNegative\nSteps: 28, Sampler: DPM++ 2M Karras, CFG scale:"
        " 7, Seed: 5,"
        " Size: 512x768, Model hash: 6ce0161689, Model: v1-5, VAE hash: 735e4c3a44, VAE: vae-ft.safetensors,"
        " ENSD: 31337,"
        ' Lora hashes: "fine: b4a1d2, other: 7c", TI hashes: "EasyNegative: c74b4e810b03", Version: v1.6.0,'
        ' Hashes: {"vae": "735e4c3a44", "embed:EasyNegative": "66a7279a88", "model": "6ce0161689"}',
        {"steps": 28, "scheduler": "DPM++ 2M Karras", "guidance_scale": 7, "seed": 5, "width": 512, "height": 768},
        ["VAE: vae-ft.safetensors", "ENSD: 31337", "Lora hashes: fine: b4a1d2, other: 7c",
         "TI hashes: EasyNegative: c74b4e810b03"],
    ),
    "a1111 with extensions": (
        "a cat\nSteps: 20, Sampler: Euler a, Schedule type: Automatic, CFG scale: 7, Seed: 5, Size: 512x512,"
        " ADetailer model:"
        " face_yolov8n.pt, ADetailer confidence: 0.3, ADetailer dilate erode: 4, ADetailer mask blur: 4,"
        " ADetailer version:"
        ' 24.4.2, ControlNet 0: "Module: canny, Model: control_canny [d14c016b], Weight: 1.0, Threshold A: 100.0",'
        " Refiner: xl_refiner [7440042bbd], Refiner switch at: 0.8, Version: v1.10.1",
        {"steps": 20, "scheduler": "Euler a", "guidance_scale": 7, "seed": 5, "width": 512, "height": 512,
         "refiner_start": 0.8},
        ["ADetailer (5 settings)", "ControlNet 0: Module: canny, Model: control_canny [...",
         "Refiner: xl_refiner [7440042bbd]"],
    ),
    "automatic means karras": (
        "a\nSteps: 2, Sampler: DPM++ 2M SDE, Schedule type: Automatic, Seed: 5",
        {"steps": 2, "scheduler": "DPM++ 2M SDE Karras", "seed": 5},
        [],
    ),
    "without schedule type it is the sampler's own": (
        "a\nSteps: 2, Sampler: DPM++ 2M SDE, Seed: 5", {"steps": 2, "scheduler": "DPM++ 2M SDE", "seed": 5}, [],
    ),
    "forge": (
        "a cat\nSteps: 20, Sampler: Euler, Schedule type: Simple, CFG scale: 1, Distilled CFG Scale: 3.5, Seed:"
        " 5, Size:"
        " 896x1152, Model hash: a1, Model: x, Module 1: ae, Module 2: clip_l, Version:"
        " f2.0.1v1.10.1-previous-635-gf5330788",
        {"steps": 20, "scheduler": "Euler Simple", "guidance_scale": 1, "seed": 5, "width": 896, "height": 1152},
        ["Distilled CFG Scale: 3.5", "Module 1: ae", "Module 2: clip_l"],
    ),
    "sd.next": (
        "a cat\nNegative prompt: fog\nSteps: 20, Size: 1024x1024, Sampler: Default, Seed: 5, CFG scale: 6.0,"
        " Model: x, Model"
        " hash: a1, App: SD.Next, Version: 4f3a, Operations: txt2img, Parser: native, Pipeline:"
        " StableDiffusionXLPipeline",
        {"steps": 20, "guidance_scale": 6, "seed": 5, "width": 1024, "height": 1024},
        ["Parser: native"],
    ),
    "civitai": (
        "a cat\nSteps: 25, CFG Scale: 3.5, Sampler: Euler a, Seed: 5, Size: 832x1216, Clip skip: 2, Created Date:"
        ' 2024-10-30T12:15:34.8340000Z, Civitai resources: [{"type":"checkpoint","modelVersionId":889818,"modelName":'
        '"Illustrious, XL","modelVersionName":"v0.1"},{"type":"lora","weight":0.8,"modelVersionId":1}], Civitai'
        ' metadata: {}',
        {"steps": 25, "scheduler": "Euler a", "guidance_scale": 3.5, "seed": 5, "width": 832, "height": 1216,
         "clip_skip": 2},
        ["Civitai resource: lora 1 0.8"],
    ),
    "fooocus": (
        "a cat\nSteps: 30, Sampler: DPM++ 2M SDE Karras, Seed: 5, Size: 1152x896, CFG scale: 4, Sharpness: 2,"
        " ADM Guidance:"
        ' "(1.5, 0.8, 0.3)", Model: x, Model hash: a1, Performance: Speed, Version: Fooocus v2.5.5',
        {"steps": 30, "scheduler": "DPM++ 2M SDE Karras", "guidance_scale": 4, "seed": 5, "width": 1152, "height": 896},
        ["Sharpness: 2", "ADM Guidance: (1.5, 0.8, 0.3)", "Performance: Speed"],
    ),
    "more lines behind": (
        "a cat\nSteps: 3, Sampler: Euler, Seed: 5\nTemplate: a {cat|dog}",
        {"steps": 3, "scheduler": "Euler", "seed": 5},
        ["Template: a {cat|dog}"],
    ),
    "brackets that are no json": (
        "a\nSteps: 3, Seed: 5, Wildcard: [not json, Size: 8x8", {"steps": 3, "seed": 5, "width": 8, "height": 8},
        ["Wildcard: [not json"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_parameters_of_other_programs_are_read(name: str) -> None:
    text, options, left = TEXTS[name]
    info = read_infotext(text)
    assert {name: value for name, value in info.options.items() if "prompt" not in name} == options
    assert info.options["prompt"] == text.split("\n")[0]
    assert info.left == left


USUAL = {
    **dict.fromkeys(("DPM++ 2M", "DPM++ SDE", "DPM++ 2M SDE", "DPM++ 2M SDE Heun", "DPM2", "DPM2 a"), " Karras"),
    "DPM++ 3M SDE": " Exponential",
    **dict.fromkeys(("Euler", "Euler a", "LMS", "Heun", "LCM", "DDIM", "PLMS", "UniPC"), ""),
}
"""A1111's samplers, and the schedule type that ``Automatic`` is: ``scheduler`` of its sd_samplers_kdiffusion.py."""


@pytest.mark.parametrize("sampler", USUAL)
def test_automatic_is_the_schedule_type_of_its_sampler(sampler: str) -> None:
    info = read_infotext(f"a\nSteps: 2, Sampler: {sampler}, Schedule type: Automatic, Seed: 5")
    assert info.options["scheduler"] == sampler + USUAL[sampler]
    assert info.left == []


# JPEG and WebP

PARAMETERS = "a cat, 東京\nSteps: 3, Sampler: Euler, Seed: 5"


def saved(path: Path, comment: bytes | None = None, tags: dict[int, str] | None = None) -> Path:
    exif = Image.Exif()
    for tag, text in (tags or {}).items():
        exif[tag] = text
    if comment is not None:
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.UserComment] = comment
    Image.new("RGB", (8, 8)).save(path, exif=exif)
    return path


@pytest.mark.parametrize("suffix", ["jpg", "webp"])
@pytest.mark.parametrize(
    "comment",
    [
        b"UNICODE\0" + PARAMETERS.encode("utf-16-be"),
        b"UNICODE\0" + PARAMETERS.encode("utf-16-le"),
        b"UNICODE\0\xff\xfe" + PARAMETERS.encode("utf-16-le"),
        bytes(8) + PARAMETERS.encode() + b"\0",
        b"ASCII\0\0\0" + PARAMETERS.encode(),
    ],
    ids=["be", "le", "mark", "utf8", "ascii"],
)
def test_a_user_comment_has_the_parameters(comment: bytes, suffix: str, tmp_path: Path) -> None:
    path = saved(tmp_path / f"a.{suffix}", comment)
    assert read_texts(path) == {"parameters": PARAMETERS}
    assert read_image_options(path, {}).options["seed"] == 5


@pytest.mark.parametrize(
    ("comment", "message"),
    [(b"UNICODE\0\0a\0b\xd8\0", "has Exif data that cannot be read"), (bytes(8) + b"\xff", "has Exif data that cannot"),
     (bytes(8) + b"a" * (MAX_TEXT + 1), "more than 2,097,152 bytes")],
    ids=["half", "utf8", "long"],
)  # fmt: skip
def test_a_user_comment_that_is_no_text_is_told(comment: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadModelError, match=message):
        read_texts(saved(tmp_path / "a.webp", comment))


def test_a_photograph_says_nothing_of_how_it_was_drawn(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.jpg", tags={ExifTags.Base.Model: "X100", ExifTags.Base.Make: "FUJIFILM"})
    assert read_texts(path) == {}
    with pytest.raises(UsageError, match="says nothing of how it was drawn"):
        read_image_options(path, {})
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(BadModelError, match="has Exif data that cannot be read"):
        read_texts(path)


# ComfyUI


def graph(**changes: Any) -> dict[str, Any]:
    """A plain graph whose nodes' inputs are changed, by the nodes' names."""

    def node(kind: str, **inputs: Any) -> dict[str, Any]:
        return {"class_type": kind, "inputs": inputs}

    nodes = {
        "sampler": node(
            "KSampler", seed=5, steps=20, cfg=6.5, sampler_name="dpmpp_2m", scheduler="karras", denoise=1,
            model=["lora", 0], positive=["good", 0], negative=["bad", 0], latent_image=["size", 0],
        ),
        "size": node("EmptyLatentImage", width=512, height=768, batch_size=1),
        "good": node("CLIPTextEncode", text="a (cat:1.2)", clip=["skip", 0]),
        "bad": node("CLIPTextEncode", text="fog", clip=["skip", 0]),
        "skip": node("CLIPSetLastLayer", stop_at_clip_layer=-2, clip=["lora", 1]),
        "lora": node("LoraLoader", lora_name="fine.safetensors", strength_model=0.8, strength_clip=1, model=["file", 0],
                     clip=["file", 1]),
        "file": node("CheckpointLoaderSimple", ckpt_name="v1-5.safetensors"),
        "save": node("SaveImage", images=["decode", 0]),
    }  # fmt: skip
    for name, inputs in changes.items():
        if isinstance(inputs, dict):
            nodes[name]["inputs"] |= inputs
        else:
            nodes[name]["class_type"] = inputs
    return nodes


def test_a_plain_graph_of_comfyui_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chunks = PngImagePlugin.PngInfo()
    chunks.add_text("prompt", json.dumps(graph()))
    chunks.add_text("workflow", "{}")
    Image.new("RGB", (1, 1)).save(tmp_path / "a.png", pnginfo=chunks)
    webp = saved(tmp_path / "a.webp", tags={ExifTags.Base.Model: f"prompt:{json.dumps(graph())}"})
    for path in (tmp_path / "a.png", webp):
        drawn = read_image_options(path, {"seed": 7})
        assert drawn.options == {
            "prompt": "a (cat:1.2)", "negative_prompt": "fog", "prompt_weighting": "comfyui", "steps": 20,
            "guidance_scale": 6.5, "width": 512, "height": 768, "clip_skip": 2, "scheduler": "dpmpp_2m_karras",
        }  # fmt: skip
        assert drawn.model == "v1-5.safetensors"
        assert "what sdort does not take over: LoRA fine.safetensors:0.8" in " ".join(capsys.readouterr().err.split())


def test_sdxls_two_prompts_and_odd_values_of_a_graph_are_read_or_told() -> None:
    changed = graph(
        good="CLIPTextEncodeSDXL", sampler={"seed": 1 << 70, "sampler_name": "ipndm"}, bad={"clip": ["file", 1]}
    )
    changed["good"]["inputs"] |= {"text_l": "a", "text_g": "b"}
    del changed["good"]["inputs"]["text"]
    info = read_comfyui_graph(json.dumps(changed))
    assert (info.options["prompt"], info.options["prompt_2"]) == ("a", "b")
    assert {"seed", "scheduler"}.isdisjoint(info.options)
    assert info.left == [
        f"seed {1 << 70}", "sampler ipndm_karras", "sampler ipndm",
        "LoRA fine.safetensors:0.8 (strength_clip 1, 0 for the negative prompt)",
        "clip layer -1 of its negative prompt",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampler": "KSamplerAdvanced"}, "its samplers are KSamplerAdvanced, not one KSampler"),
        ({"save": "KSampler"}, "its samplers are KSampler, KSampler, not one"),
        ({"sampler": {"denoise": 0.5}}, "it begins with an image"),
        ({"sampler": {"seed": ["size", 0]}}, "the seed of its KSampler comes from another node"),
        ({"good": {"text": ["size", 0]}}, "the text of its CLIPTextEncode comes from another node"),
        ({"size": "VAEEncode"}, "the latent_image of its KSampler comes from VAEEncode"),
        ({"sampler": {"positive": ["nobody", 0]}}, "the positive of its KSampler comes from nothing"),
        ({"good": "ConditioningCombine"}, "comes from ConditioningCombine"),
        ({"lora": {"model": ["lora", 0]}}, "go round in a circle"),
    ],
)
def test_another_graph_is_told_with_a_reason(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_comfyui_graph(json.dumps(graph(**changes)))


@pytest.mark.parametrize("text", ["{", "[]", '{"1": 5}', '{"1": {"inputs": {"seed": NaN}}}'])
def test_what_is_no_graph_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"its graph is no JSON|its samplers are none"):
        read_comfyui_graph(text)
