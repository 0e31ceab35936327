"""Images drawn again from what their PNG says: sdort's own record, A1111's parameters, and files of strangers."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import fields
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image, PngImagePlugin
from safetensors.numpy import save_file
from support.infotext import read_infotext as read_as_a1111
from support.infotext import record
from support.tiny_pipeline import Tiny

from sdort.cli import cli
from sdort.errors import BadModelError, OutputError, ProviderError, UsageError
from sdort.files.file_digest import file_digest
from sdort.first_use.command import run
from sdort.generation.files.from_image import COMPARED, GIVEN_AGAIN, REPLAYED, DrawnWith, read_image_options
from sdort.generation.files.image_texts import MAX_TEXT, read_texts
from sdort.generation.files.infotext import parameters_text, read_infotext
from sdort.generation.files.output_names import fill_template
from sdort.generation.files.prompts_file import read_lines
from sdort.generation.job import plan_jobs, plan_paths
from sdort.generation.pipeline import TextToImage
from sdort.generation.requests.record import AdapterRecord, ControlRecord, GenerationRecord, IpAdapterRecord
from sdort.generation.requests.seeds import read_seeds
from sdort.generation.requests.typed_options import GENERATION, GenerationOptions
from sdort.options.declared_options import declared

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

A1111 = """a lighthouse, (dusk:1.2)
second line
Negative prompt: people, fog
Steps: 20, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 7.5, Seed: 5, Size: 512x768, Model hash: 6ce0161689, \
Model: v1-5, Clip skip: 2, Denoising strength: 0.5, Lora hashes: "a: 12, b: 34", Version: v1.9.4"""


def png(path: Path, **texts: str) -> Path:
    chunks = PngImagePlugin.PngInfo()
    for name, text in texts.items():
        chunks.add_text(name, text)
    Image.new("RGB", (1, 1)).save(path, pnginfo=chunks)
    return path


# The whole way


def test_an_image_is_drawn_again_pixel_for_pixel(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"steps": 3, "guidance_scale": 4.0, "scheduler": "euler-a", "height": 40, "width": 96}
    first = run(
        tiny.onnx, "a (red:1.3) cat\nBREAK by night", negative_prompt="fog", seed=9, provider="cpu",
        prompt_weighting="a1111", output=tmp_path / "a.png", **options,
    )  # fmt: skip
    capsys.readouterr()
    again = run(tiny.onnx, from_image=tmp_path / "a.png", provider="cpu", output=tmp_path / "b.png")
    np.testing.assert_array_equal(again.images[0].pixels, first.images[0].pixels)
    assert "another model" not in capsys.readouterr().err
    other = run(tiny.onnx, from_image=tmp_path / "a.png", seed=10, provider="cpu", output=tmp_path / "c.png")
    assert (other.images[0].seed, other.steps, other.prompt) == (10, 3, first.prompt)
    assert (other.images[0].pixels != first.images[0].pixels).any()


def test_the_command_takes_from_the_image_what_it_is_not_told(tiny: Tiny, tmp_path: Path) -> None:
    source = png(
        tmp_path / "a1111.png", parameters=A1111.replace("Size: 512x768", "Size: 32x64").replace(", Clip skip: 2", "")
    )
    arguments = ["run", str(tiny.onnx), "--from-image", str(source), "--provider", "cpu", "--steps", "2", "--json"]
    result = CliRunner().invoke(cli, [*arguments, "-o", str(tmp_path / "{seed}-{prompt}.png")])
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    assert (made["prompt"], made["negative_prompt"]) == ("a lighthouse, (dusk:1.2)\nsecond line", "people, fog")
    assert [made[name] for name in ("steps", "guidance_scale", "width", "height", "seed")] == [2, 7.5, 32, 64, 5]
    assert made["scheduler"] == "DPMSolverMultistepScheduler"
    assert "--strength 0.5 (needs --init-image)" in " ".join(result.stderr.split())
    assert "the image is of another program, drawn with the model v1-5 6ce0161689" in " ".join(result.stderr.split())
    assert Path(made["images"][0]["path"]).name == "5-a-lighthouse-dusk-1-2-second-line.png"


def test_what_is_given_as_none_is_taken_from_the_image(tmp_path: Path) -> None:
    image = png(tmp_path / "a.png", parameters=A1111)
    nothing = dict.fromkeys(["negative_prompt", "steps", "guidance_scale", "seed", "scheduler", "width", "height"])
    options: Any = {"from_image": image, **nothing}
    [job] = plan_jobs((), options)
    [request] = job.requests
    assert (request.prompt, request.negative_prompt) == ("a lighthouse, (dusk:1.2)\nsecond line", "people, fog")
    assert (request.steps, request.guidance_scale, request.seed) == (20, 7.5, 5)
    assert (request.scheduler, request.width, request.height) == ("DPM++ 2M Karras", 512, 768)
    assert not job.unsaid


def test_another_model_is_told(tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = {"prompt": "a", "steps": 1, "model": "other", "model_hash": "00ff", "scheduler": "DDIMScheduler"}
    image = png(tmp_path / "a.png", sdort=json.dumps(kept))
    run(tiny.onnx, from_image=image, provider="cpu", output=tmp_path / "b.png")
    assert "was drawn with another model (other, 00ff; this one is" in " ".join(capsys.readouterr().err.split())


# Every option


def test_another_refiner_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    def told(drawn: DrawnWith) -> str:
        drawn.remark_on_refiner("ff00")
        return capsys.readouterr().err

    assert told(DrawnWith({}, "base", "00", "xl", "ff00")) == ""
    assert "was refined by xl (12ab), not by this refiner (ff00)" in " ".join(
        told(DrawnWith({}, "base", "00", "xl", "12ab")).split()
    )
    assert "was refined by none, not by this refiner (ff00)" in " ".join(told(DrawnWith({}, "base", "00")).split())


@pytest.mark.parametrize(
    ("said", "given", "message"),
    [
        ([("x", 0.5, "ab")], [("y", 0.5, "ab")], ""),
        ([("x", 0.5, "ab")], [("x", 0.5, "cd")], "--lora x is not as the x that the image was drawn with: its file"),
        ([("x", 0.5, "ab")], [("x", 0.6, "ab")], "its scale differs, so that"),
        ([("x", 0.5, "ab")], [("x", 0.6, "cd")], "its file and its scale differ, so that"),
        ([("x", 0.5, "ab"), ("z", 1, "ef")], [("x", 0.5, "ab")], "was drawn with 2 --lora, not 1, so that"),
        ([], [("x", 0.5, "ab")], "was drawn with 0 --lora, not 1, so that"),
    ],
)
def test_other_adapters_than_those_of_the_image_are_told(
    said: list[Any], given: list[Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [{"name": name, "scale": scale, "sha256": digest} for name, scale, digest in said]
    adapters = [AdapterRecord(name, scale, digest, "") for name, scale, digest in given]
    DrawnWith({}, "fast", "00", files={"lora": records}).remark_on_files("lora", adapters)
    told = " ".join(capsys.readouterr().err.split())
    assert message in told
    assert bool(told) == bool(message)
    DrawnWith({}, files={"lora": records}).remark_on_files("lora", adapters)
    assert capsys.readouterr().err == "", "another program's image says nothing of files"
    older = [{"name": each.name, "sha256": each.sha256} for each in adapters]
    DrawnWith({}, "fast", "00", files={"lora": older}).remark_on_files("lora", adapters)
    assert capsys.readouterr().err == "", "an older sdort did not say the scale"


def test_other_controls_than_those_of_the_image_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    now = ControlRecord("canny", "aa", "edges.png", "bb", 1.0, 0.0, 1.0)
    for change, message in (
        ({}, ""),
        ({"image": "other name.png"}, ""),
        ({"model_hash": "cc"}, "its model differs"),
        ({"image_hash": "cc"}, "its image differs"),
        ({"scale": 0.5, "start": 0.1, "end": 0.9}, "its scale and its start and its end differ"),
    ):
        DrawnWith({}, "fast", "00", files={"control": [vars(now) | change]}).remark_on_files("control", [now])
        told = " ".join(capsys.readouterr().err.split())
        assert message in told
        assert bool(told) == bool(message)


def test_every_option_is_taken_over_or_has_a_reason_not_to_be() -> None:
    left = [name for name, option in declared(*GENERATION).items() if option.not_replayed]
    listed = [*REPLAYED, *GIVEN_AGAIN, *left]
    assert set(COMPARED) <= set(GIVEN_AGAIN)
    for parts, record_of in zip(COMPARED.values(), (AdapterRecord, ControlRecord, IpAdapterRecord), strict=True):
        assert parts.keys() <= {field.name for field in fields(record_of)}
    assert sorted(listed) == sorted({*GenerationOptions.__annotations__, "prompt"})
    assert {*REPLAYED.values(), *GIVEN_AGAIN} <= {field.name for field in fields(GenerationRecord)}


def test_files_that_are_not_in_the_image_have_to_be_given(tmp_path: Path) -> None:
    kept = {"prompt": "a", "lora": [{"name": "x.safetensors", "scale": 0.5, "sha256": "ab"}]}
    image = png(tmp_path / "a.png", sdort=json.dumps(kept))
    with pytest.raises(UsageError, match=r"files that are not in it: x\.safetensors:0\.5") as caught:
        read_image_options(image, {})
    assert caught.value.hint == "Give them with --lora."
    assert read_image_options(image, {"lora": ["y"]}).options == {"prompt": "a"}
    refined = {"prompt": "a", "model_hash": "00", "refiner": "xl", "refiner_hash": "12ab", "refiner_start": 0.7}
    image = png(tmp_path / "b.png", sdort=json.dumps(refined))
    with pytest.raises(UsageError, match=r"files that are not in it: xl") as caught:
        read_image_options(image, {})
    assert caught.value.hint == "Give them with --refiner."
    assert read_image_options(image, {"refiner": "xl"}).options == {"prompt": "a", "refiner_start": 0.7}


# A1111's text


def test_what_a1111_writes_is_read() -> None:
    info = read_infotext(A1111)
    assert info.options == {
        "prompt": "a lighthouse, (dusk:1.2)\nsecond line", "negative_prompt": "people, fog", "steps": 20,
        "scheduler": "DPM++ 2M Karras", "guidance_scale": 7.5, "seed": 5, "width": 512, "height": 768, "clip_skip": 2,
        "strength": 0.5,
    }  # fmt: skip
    assert info.left == ["Lora hashes: a: 12, b: 34"]
    assert info.model == "v1-5 6ce0161689"


@pytest.mark.parametrize(
    ("text", "options", "left"),
    [
        ("a cat", {"prompt": "a cat"}, []),
        ("", {"prompt": ""}, []),
        ("a\nSteps: 0, Sampler: Nobody, Seed: -1, Size: 8x9999999", {"prompt": "a", "width": 8},
         ["Steps: 0", "Seed: -1", "Size: 9999999", "Sampler: Nobody"]),
        ('"a\\nb"\nNegative prompt: "c: d"\nSteps: 1, Seed: 2, CFG scale: nan',
         {"prompt": "a\nb", "negative_prompt": "c: d", "steps": 1, "seed": 2}, ["CFG scale: nan"]),
        ("Steps: 1, Seed: 2, Size: 8x8", {"prompt": "", "steps": 1, "seed": 2, "width": 8, "height": 8}, []),
    ],
)  # fmt: skip
def test_odd_parameters_are_read_or_told(text: str, options: dict[str, Any], left: list[str]) -> None:
    info = read_infotext(text)
    assert {"negative_prompt": "", **options} == info.options
    assert info.left == left


@pytest.mark.parametrize(
    ("said", "options", "left"),
    [
        ("Denoising strength: 0.4, Mask blur: 8", {"strength": 0.4, "mask_blur": 8}, []),
        ("Inpaint area: Only masked, Masked area padding: 16", {"only_masked": True, "mask_padding": 16}, []),
        ("Inpaint area: Whole picture", {}, []),
        ("Denoising strength: 0.7, Hires upscale: 2, Hires steps: 9, Hires upscaler: Latent",
         {"hires_strength": 0.7, "hires": 2.0, "hires_steps": 9, "hires_upscale": "latent"}, []),
        ("Denoising strength: 0.3, Hires upscale: 1.5, Hires upscaler: R-ESRGAN 4x+",
         {"hires_strength": 0.3, "hires": 1.5, "hires_upscale": "image"}, ["Hires upscaler: R-ESRGAN 4x+"]),
        ("Hires upscale: 2, Hires upscaler: Latent (nearest)", {"hires": 2.0}, ["Hires upscaler: Latent (nearest)"]),
        ("Hires resize: 1024x1024, Denoising strength: 2", {}, ["Denoising strength: 2", "Hires resize: 1024x1024"]),
        ("Variation seed: 3, Variation seed strength: 0.1", {"variation_seed": 3, "variation_strength": 0.1}, []),
    ],
)  # fmt: skip
def test_the_tasks_of_a1111_are_read(said: str, options: dict[str, Any], left: list[str]) -> None:
    info = read_infotext(f"a\nSteps: 9, Seed: 2, {said}")
    assert info.options == {"prompt": "a", "negative_prompt": "", "steps": 9, "seed": 2, **options}
    assert info.left == left


def test_what_means_nothing_alone_is_told_and_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "a\nSteps: 9, Seed: 2, Denoising strength: 0.4, Hires upscale: 99, Mask blur: 8"
    image = png(tmp_path / "a.png", parameters=text)
    kept = {"prompt": "a", "negative_prompt": "", "steps": 9, "seed": 2}
    assert read_image_options(image, {}).options == kept
    told = " ".join(capsys.readouterr().err.split())
    assert "Hires upscale: 99; --mask-blur 8 (needs --mask); --hires-strength 0.4 (needs --hires)" in told
    assert read_image_options(image, {"mask": "m", "init_image": "i", "hires": 2}).options == {
        **kept, "mask_blur": 8, "hires_strength": 0.4,
    }  # fmt: skip


def test_what_is_written_is_read_back() -> None:
    lora = [AdapterRecord("fine, art.safetensors", 0.8, "fedcba9876543210", "0123456789abcdef")]
    made = record(
        prompt="a, b", negative_prompt="c", scheduler="DPMSolverMultistepScheduler", clip_skip=2, lora=lora,
        scheduler_name="dpm++-2m-karras", prompt_weighting="comfyui", eta=0.5, refiner="xl",
        refiner_hash="7440042bbdc8", refiner_start=0.7,
    )  # fmt: skip
    text = parameters_text(made, 7)
    told = read_as_a1111(text)
    assert (told["Sampler"], told["Schedule type"], told["Clip skip"]) == ("DPM++ 2M", "Karras", "2")
    assert told["Lora hashes"] == "fine, art: 0123456789ab"
    assert (told["Refiner"], told["Refiner switch at"]) == ("xl [7440042bbd]", "0.7")
    assert read_infotext(text).options == {
        "prompt": "a, b", "negative_prompt": "c", "steps": 20, "scheduler": "DPM++ 2M Karras", "guidance_scale": 7.5,
        "seed": 7, "width": 32, "height": 64, "clip_skip": 2, "eta": 0.5, "prompt_weighting": "comfyui",
        "refiner_start": 0.7,
    }  # fmt: skip


def test_the_hash_of_an_adapters_tensors_leaves_its_header_out(tmp_path: Path) -> None:
    tensors = {"a": np.arange(6, dtype=np.float32)}
    digests = []
    for number in range(2):
        path = tmp_path / f"{number}.safetensors"
        save_file(tensors, path, metadata={"title": "x" * number})
        digests.append(file_digest(path, tensors=True))
        assert file_digest(path) != digests[0]
    # A1111's modules/hashes.py, addnet_hash_safetensors
    assert digests == [hashlib.sha256(tensors["a"].tobytes()).hexdigest()] * 2


@pytest.mark.parametrize(
    ("scheduler", "asked", "sampler"),
    [
        ("EulerAncestralDiscreteScheduler", "euler-a", "Euler a"),
        ("EulerDiscreteScheduler", None, "Euler"),
        ("DPMSolverMultistepScheduler", "DPM++ 2M SDE", "DPM++ 2M SDE"),
        ("TCDScheduler", "tcd", "TCDScheduler"),
    ],
)
def test_samplers_have_the_names_that_other_programs_know(scheduler: str, asked: str | None, sampler: str) -> None:
    made = record(scheduler=scheduler, scheduler_name=asked)
    assert read_as_a1111(parameters_text(made, 1))["Sampler"] == sampler


# Files of strangers


def chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


SIGNATURE = b"\x89PNG\r\n\x1a\n"


def test_texts_of_every_kind_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(
        SIGNATURE + chunk(b"IHDR", bytes(13)) + chunk(b"tEXt", b"a\0\xfc")
        + chunk(b"zTXt", b"b\0\0" + zlib.compress(b"\xfc"))
        + chunk(b"iTXt", b"c\0\0\0de\0\0" + "东".encode())
        + chunk(b"iTXt", b"d\0\1\0\0\0" + zlib.compress("东".encode()))
        + chunk(b"tEXt", b"a\0second") + chunk(b"IEND", b"")
    )  # fmt: skip
    assert read_texts(path) == {"a": "ü", "b": "ü", "c": "东", "d": "东"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GIF89a", "is no PNG, JPEG or WebP file"),
        (SIGNATURE + (1000).to_bytes(4, "big") + b"tEXtabcd", "ends within a chunk"),
        (SIGNATURE + chunk(b"tEXt", b"a\0b")[:-4] + bytes(4), "has a damaged text"),
        (SIGNATURE + chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(MAX_TEXT + 1))), "more than 2,097,152 bytes"),
        (SIGNATURE + chunk(b"zTXt", b"a\0\0nonsense"), "has a text that cannot be read"),
        (SIGNATURE + chunk(b"iTXt", b"a\0\0\0x"), "no end of its language"),
        (SIGNATURE + chunk(b"iTXt", b"a\0\0\0\0\0\xff"), "cannot be read"),
    ],
)
def test_a_damaged_file_is_told(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(BadModelError, match=message):
        read_texts(path)


@pytest.mark.parametrize(
    ("texts", "program"),
    [
        ({"workflow": '{"nodes": []}'}, "ComfyUI"),
        ({"parameters": '{"prompt": "a", "steps": 30}', "fooocus_scheme": "fooocus"}, "Fooocus"),
        ({"invokeai_metadata": '{"positive_prompt": "a"}'}, "InvokeAI"),
        ({"parameters": '{"sui_image_params": {"prompt": "a"}}'}, "SwarmUI"),
        ({"parameters": '{"prompt": "a"}'}, "another program"),
    ],
)
def test_an_image_of_another_program_is_told(texts: dict[str, str], program: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"was drawn by {program}, whose notes in it sdort does not read"):
        read_image_options(png(tmp_path / "a.png", **texts), {})


def test_a_graph_of_comfyui_that_is_not_plain_is_told(tmp_path: Path) -> None:
    image = png(tmp_path / "a.png", prompt='{"3": {"class_type": "X", "inputs": {}}}', workflow='{"nodes": []}')
    with pytest.raises(UsageError, match="a graph that sdort does not read: its samplers are none"):
        read_image_options(image, {})


def test_a_prompt_of_brackets_is_a_prompt_whoever_saved_it(tmp_path: Path) -> None:
    text = "{a, b} cat\nSteps: 2, Seed: 1, Size: 8x8"
    image = png(tmp_path / "a.png", parameters=text, workflow="{}", fooocus_scheme="a1111")
    assert read_image_options(image, {}).options["prompt"] == "{a, b} cat"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({}, "says nothing of how it was drawn"),
        ({"sdort": "{"}, "is no JSON"),
        ({"sdort": "[]"}, "has no prompt"),
        ({"sdort": '{"prompt": "a", "steps": []}'}, "has a steps that is none"),
        ({"sdort": '{"prompt": "a", "negative_prompt": 5}'}, "has a negative_prompt that is none"),
    ],
)
def test_a_record_that_is_none_is_told(texts: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises((BadModelError, UsageError), match=message):
        read_image_options(png(tmp_path / "a.png", **texts), {})


# Seeds, names, files of prompts


@pytest.mark.parametrize(
    ("given", "seeds"),
    [
        (7, (7,)),
        ("7", (7,)),
        ("1,5,10-12", (1, 5, 10, 11, 12)),
        (" 3 , 2-2,", (3, 2)),
        ([4, 4], (4, 4)),
        (range(2), (0, 1)),
    ],
)
def test_seeds_are_numbers_lists_and_ranges(given: Any, seeds: tuple[int, ...]) -> None:
    assert read_seeds(given) == seeds


@pytest.mark.parametrize("given", [count(), range(10**12), "1-9000," * 1000])
def test_no_more_seeds_are_read_than_a_run_has_images(given: Any) -> None:
    """Some of these have no end, or none that memory would hold."""
    with pytest.raises(UsageError, match="more than 10,000 numbers"):
        read_seeds(given)


@pytest.mark.parametrize("given", ["", "a", "5-1", "1-20000", "-3", "1--3", "1.5", -1, [], "1-"])
def test_other_seeds_are_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="--seed"):
        read_seeds(given)


def test_each_seed_gives_an_image_of_each_prompt(tiny: Tiny, tmp_path: Path) -> None:
    result = run(
        tiny.onnx, ["a", "b"], seed="3,8", steps=1, guidance_scale=1.0, provider="cpu",
        output=str(tmp_path / "new" / "{index:02}-{prompt}-{seed}.png"),
    )  # fmt: skip
    assert [(image.prompt, image.seed) for image in result.images] == [("a", 3), ("a", 8), ("b", 3), ("b", 8)]
    names = [image.path.name for image in result.images if image.path]
    assert names == ["01-a-3.png", "02-a-8.png", "03-b-3.png", "04-b-8.png"]
    alone = run(tiny.onnx, "b", seed=8, steps=1, guidance_scale=1.0, provider="cpu", output=tmp_path / "b.png")
    difference = alone.images[0].pixels.astype(int) - result.images[3].pixels
    assert np.abs(difference).max() <= 1


def test_names_are_plain_and_differ() -> None:
    long = fill_template("{prompt}.png", [(1, "../a/b: \x1b(\u202ec)" + "東" * 200)])[0].name
    assert long.startswith("a-b-c-東")
    assert len(long.encode()) < 200
    assert fill_template("a{{b}}{index}.png", [(1, ""), (1, "")]) == [Path("a{b}1.png"), Path("a{b}2.png")]
    assert fill_template("{prompt}", [(1, "()")]) == [Path("image")]
    with pytest.raises(UsageError, match="names two images"):
        fill_template("{prompt}.png", [(1, "a b"), (2, "a, b")])
    for template in ("{seeds}", "{index:99999}", "{prompt:>9}", "{index!r}", "{index.real}", "{", "{}"):
        with pytest.raises(UsageError, match="-o"):
            fill_template(f"{template}.png", [(1, "a")])


def test_names_are_checked_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "2.png").touch()
    jobs = plan_jobs("a", {"seed": "1-3", "output": tmp_path / "{seed}.png"})
    with pytest.raises(OutputError, match=r"2\.png exists"):
        plan_paths(jobs)
    with pytest.raises(UsageError, match=r"is no \.png, "):
        plan_paths(plan_jobs("a", {"output": "{seed}.gif"}))


def test_a_file_of_prompts_has_one_a_line(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("\ufeffa cat\r\n\n# not this\n  a {dog}  \n")
    assert read_lines(file) == [(["a cat", "a {dog}"], {}, [1, 4])]
    [job] = plan_jobs((), {"prompts": file, "negative_prompt": "fog", "steps": 3})
    assert [(one.prompt, one.negative_prompt, one.steps) for one in job.requests] == [
        ("a cat", "fog", 3),
        ("a {dog}", "fog", 3),
    ]


def test_json_lines_have_options_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "a", "negative_prompt": "x"}, {"prompt": "b"}, {"prompt": "c", "seed": "4-5", "steps": 2}]
    file.write_text("\n".join(map(json.dumps, lines)))
    first, second = plan_jobs((), {"prompts": file, "steps": 9, "seed": 1})
    assert [(one.prompt, one.negative_prompt, one.steps, one.seed) for one in first.requests] == [
        ("a", "x", 9, 1), ("b", "", 9, 1),
    ]  # fmt: skip
    assert [(one.prompt, one.steps, one.seed) for one in second.requests] == [("c", 2, 4), ("c", 2, 5)]


def test_the_seconds_are_those_of_all_lines(tiny: Tiny, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": "a", "seed": 1, "steps": steps}) for steps in (1, 3)))
    result = run(tiny.onnx, prompts=file, provider="cpu", output=tmp_path / "{index}.png")
    parts = [image.record.seconds for image in result.images]
    assert len(parts) == 2
    assert result.seconds.denoise == pytest.approx(sum(part.denoise for part in parts), abs=2e-4)
    assert result.seconds.encode == pytest.approx(sum(part.encode for part in parts), abs=2e-4)
    assert result.seconds.decode == pytest.approx(sum(part.decode for part in parts), abs=2e-4)
    assert (result.seconds.load, result.seconds.first_step) == (parts[0].load, parts[0].first_step)
    assert result.iterations_per_second * result.seconds.denoise == pytest.approx(1 + 3, rel=0.05)


def test_files_of_earlier_lines_are_named_when_a_later_one_fails(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": "a", "seed": 1, "steps": steps}) for steps in (1, 2)))
    real = TextToImage.generate_all

    def failing(self: TextToImage, requests: Any, *args: Any) -> Any:
        if requests[0].steps == 2:
            raise ProviderError("the GPU is gone")
        return real(self, requests, *args)

    monkeypatch.setattr(TextToImage, "generate_all", failing)
    with pytest.raises(ProviderError, match="the GPU is gone"):
        run(tiny.onnx, prompts=file, guidance_scale=1.0, provider="cpu", output=tmp_path / "{index}.png")
    told = " ".join(capsys.readouterr().err.split())
    assert f"1 of 2 images are written, the last one {tmp_path / '1.png'}: the same command goes on" in told


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"# none\n", "has no prompts"),
        ("a.txt", b"\xff\xfe", "is no text in UTF-8: byte 1"),
        ("a.jsonl", b'{"prompt": "a"}\n{', r"line 2 of .* is no JSON"),
        ("a.jsonl", b'{"seed": 1}', "line 1 of .* has no prompt"),
        ("a.jsonl", b'{"prompt": "a", "step": 1}', "has the option 'step', which lines do not have"),
        ("a.jsonl", b'{"prompt": "a", "prompt_2": 1}', "has a prompt_2 that is no text"),
    ],
)
def test_a_broken_file_of_prompts_is_told(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        plan_jobs((), {"prompts": tmp_path / name})


def test_a_prompt_comes_from_one_place(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave out --prompt and --from-image"):
        plan_jobs("a", {"prompts": tmp_path / "a.txt"})
    with pytest.raises(UsageError, match="there is no prompt"):
        plan_jobs((), {})
