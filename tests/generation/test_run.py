"""``sdort run``: the images of diffusers' own pipeline, and a sentence for everything that cannot be drawn."""

from __future__ import annotations

import inspect
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image
from support import tiny_pipeline, without
from support.conditioning import first_conditions
from support.tiny_pipeline import Tiny, edit_weights

from sdort.cli import cli
from sdort.errors import BadModelError, MissingPackageError, OutputError, ParityError, UsageError
from sdort.first_use.command import run
from sdort.generation.denoising.host_loop import embed_guidance
from sdort.generation.files import image_files
from sdort.generation.pictures import images
from sdort.generation.pipeline import TextToImage, load_pipeline
from sdort.generation.requests.record import GenerationRecord
from sdort.generation.requests.request import Request
from sdort.providers import find_provider
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.providers.session_settings import can_tune
from sdort.samplers.scheduler_names import SAMPLERS
from sdort.verification.metrics import psnr

# diffusers' schedulers hand tensors to numpy in a way that numpy 2.4 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

CPU = RuntimeOptions("cpu")
# 40 dB is what is promised. The same arithmetic gives more, and this autoencoder hides a wrong latent scale at 50 dB.
ALIKE = 60
PROMPT, NEGATIVE = "a lighthouse at dusk", "people"
GIVEN = ["--prompt", PROMPT, "--steps", "2", "--seed", "7"]


@pytest.fixture
def copy(tiny: Tiny, tmp_path: Path) -> Path:
    """A copy of the ONNX pipeline that a test may break."""
    return Path(shutil.copytree(tiny.onnx, tmp_path / "pipeline"))


@pytest.fixture
def sdort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Calls ``sdort run PIPELINE ...`` with a prompt and two steps on the CPU, in an empty folder."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")

    def call(pipeline: Path, *args: str) -> Result:
        provider = [] if "--provider" in args else ["--provider", "cpu"]
        return CliRunner().invoke(cli, ["run", str(pipeline), *GIVEN, *provider, *args])

    return call


def theirs(tiny: Tiny, request: Request, seed: int) -> Any:
    """What diffusers' own pipeline draws, as uint8 [height, width, 3]."""
    import torch

    from sdort.generation.schedules.schedulers import load_scheduler

    tiny.pipeline.scheduler = load_scheduler(tiny.diffusers / "scheduler", request.scheduler)
    drawn = tiny.pipeline(
        request.prompt,
        negative_prompt=request.negative_prompt,
        num_inference_steps=request.steps,
        guidance_scale=request.guidance_scale,
        height=request.height,
        width=request.width,
        generator=torch.Generator().manual_seed(seed),
        output_type="np",
    )
    return (drawn.images[0] * 255).round().astype(np.uint8)


@cache
def opened(folder: Path) -> TextToImage:
    """The pipeline of a folder that no test changes."""
    return load_pipeline(folder, CPU)


def ours(folder: Path, request: Request) -> list[Any]:
    return [image.pixels for image in opened(folder).generate(request)]


# The same images as diffusers


@pytest.mark.parametrize(
    "scheduler", [None, "pndm", "euler", "euler-a", "dpm++-2m", "dpm++-2m-sde", "heun", "unipc", "lcm", "ddpm"]
)
def test_images_are_those_of_diffusers(tiny: Tiny, scheduler: str | None) -> None:
    request = Request(PROMPT, NEGATIVE, steps=4, seed=11, scheduler=scheduler)
    drawn, wanted = ours(tiny.onnx, request)[0], theirs(tiny, request, 11)
    assert drawn.std() > 20, "the image shows nothing, so that any two are alike"
    assert psnr(drawn, wanted) >= ALIKE


TURBO = {"_class_name": "EulerDiscreteScheduler", "timestep_spacing": "trailing", "prediction_type": "epsilon"}


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (TURBO, {}),
        ({**TURBO, "_class_name": "EulerAncestralDiscreteScheduler"}, {"steps": 1}),
        ({}, {"scheduler": "tcd", "eta": 0.3}),
        ({}, {"scheduler": "lcm", "steps": 2}),
        ({}, {"scheduler": "euler", "timestep_spacing": "trailing", "steps": 2, "guidance_scale": 1.0}),
    ],
    ids=["turbo", "turbo-1", "tcd", "lcm", "lightning"],
)
def test_few_step_models_are_run_as_diffusers_runs_them(
    tiny: Tiny, copy: Path, capsys: pytest.CaptureFixture[str], config: dict[str, Any], options: dict[str, Any]
) -> None:
    import diffusers
    import torch

    path = copy / "scheduler" / "scheduler_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    result = run(copy, PROMPT, provider="cpu", seed=3, output=copy / "image.png", **options)
    assert (result.steps, result.guidance_scale) == (options.get("steps", 4), 1.0)
    settings = {**json.loads(path.read_text()), **{key: options[key] for key in options if key == "timestep_spacing"}}
    tiny.pipeline.scheduler = getattr(diffusers, result.scheduler).from_config(settings)
    eta, seed = options.get("eta", 0.0), torch.Generator().manual_seed(3)
    drawn = tiny.pipeline(
        PROMPT, num_inference_steps=result.steps, guidance_scale=0.0, eta=eta, generator=seed, output_type="np"
    )
    assert psnr(result.images[0].pixels, (drawn.images[0] * 255).round().astype(np.uint8)) >= ALIKE


@pytest.mark.parametrize("guidance_scale", [1.0, 3.0])
@pytest.mark.parametrize(("height", "width"), [(None, None), (40, 96)])
def test_every_size_and_guidance_is_that_of_diffusers(
    tiny: Tiny, guidance_scale: float, height: int | None, width: int | None
) -> None:
    request = Request(PROMPT, NEGATIVE, steps=3, guidance_scale=guidance_scale, height=height, width=width, seed=5)
    drawn = ours(tiny.onnx, request)[0]
    assert drawn.shape == (height or 64, width or 64, 3)
    assert psnr(drawn, theirs(tiny, request, 5)) >= ALIKE


def test_the_demo_pipeline_as_exported_draws_the_images_of_diffusers(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    from diffusers import StableDiffusionPipeline
    from support.pipelines import export_family, trace_folder

    from sdort.console import quiet_libraries

    folder = tmp_path_factory.mktemp("demo")
    exported = export_family("sd1", folder, trace_folder(request.config))
    with quiet_libraries():
        pipeline = StableDiffusionPipeline.from_pretrained(exported.checkpoint, safety_checker=None)
    pipeline.set_progress_bar_config(disable=True)
    asked = Request(PROMPT, NEGATIVE, steps=4, height=64, width=96, seed=3, scheduler="euler")
    wanted = theirs(Tiny(exported.checkpoint, exported.out, pipeline), asked, 3)
    drawn = ours(exported.out, asked)[0]
    assert drawn.std() > 10
    assert psnr(drawn, wanted) >= ALIKE


def test_prompt_negative_prompt_seed_and_guidance_matter(tiny: Tiny) -> None:
    base = {"prompt": PROMPT, "negative_prompt": NEGATIVE, "steps": 2, "seed": 1}
    changes: list[dict[str, Any]] = [
        {}, {"prompt": "a cat"}, {"negative_prompt": "sea"}, {"seed": 2}, {"guidance_scale": 2.0}, {"steps": 3},
    ]  # fmt: skip
    drawn = [ours(tiny.onnx, Request(**{**base, **change}))[0] for change in changes]
    for index, image in enumerate(drawn):
        assert all(not np.array_equal(image, other) for other in drawn[:index]), changes[index]


def test_the_same_seed_draws_the_same_image_on_every_run(tiny: Tiny) -> None:
    request = Request(PROMPT, steps=3, seed=42, scheduler="euler-a")
    first, second = (ours(tiny.onnx, request)[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    again = next(load_pipeline(tiny.onnx, CPU).generate(request)).pixels
    np.testing.assert_array_equal(first, again)


TASKS: dict[str, list[str]] = {
    "text": ["--scheduler", "euler-a", "--num-images", "2"],
    "larger latents": ["--scheduler", "dpm++-2m-karras", "--steps", "3", "--hires", "1.5"],
}


def test_it_draws_without_torch(tiny: Tiny, sdort: Callable[..., Result]) -> None:
    """And without diffusers and transformers, what it draws with them; the Python API and previews too."""
    for name, options in TASKS.items():
        assert sdort(tiny.onnx, "-o", f"with {name}.png", *options).exit_code == 0, name
    commands = [["run", tiny.onnx, *GIVEN, "--provider", "cpu", "-o", f"without {name}.png", *options]
                for name, options in TASKS.items()]  # fmt: skip
    code = f"""
import sdort
seen = []
pipeline = sdort.load({str(tiny.onnx)!r}, provider="cpu")
pipeline.generate("a cat", steps=3, scheduler="ddim", on_preview=seen.append, preview_every=1)
assert len(seen) == 2
assert not set(PACKAGES) & set(sys.modules)
"""
    done = without.run_commands(commands, code)
    assert done.returncode == 0, done.stderr
    drawn = sorted(Path().glob("with *.png"))
    assert len(drawn) == 1 + len(TASKS)
    for path in drawn:
        other = path.with_name(f"without{path.name.removeprefix('with')}")
        np.testing.assert_array_equal(np.asarray(Image.open(path)), np.asarray(Image.open(other)), str(path))


def test_what_only_diffusers_can_is_a_sentence_without_it(copy: Path) -> None:
    config = copy / "scheduler" / "scheduler_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "clip_sample": True, "thresholding": True}))
    command = ["run", copy, *GIVEN, "--provider", "cpu", "-o", copy / "a.png"]
    done = without.run_commands([command])
    assert done.returncode == MissingPackageError.exit_code, done.stderr
    words = " ".join(done.stderr.split())
    what = "DDIMScheduler with clip_sample=True, thresholding=True"
    assert f"{what} needs diffusers, torch, which are not installed" in words
    assert "pip install 'diffusers>=" in words
    told = re.search(r"Or take another --scheduler, which needs neither: ([^.]+)\.", words)
    assert told
    assert sorted(told[1].split(", ")) == sorted(name for name in SAMPLERS if not _reads_clipping(name))
    done = without.run_commands([[*command, "--scheduler", told[1].split(", ")[0]]])
    assert done.returncode == 0, done.stderr


def _reads_clipping(name: str) -> bool:
    """Whether diffusers' class of a scheduler does something with ``clip_sample`` or ``thresholding``."""
    import diffusers

    source = inspect.getsource(getattr(diffusers, SAMPLERS[name].class_name))
    return re.search(r"self\.config\.(clip_sample|thresholding)\b", source) is not None


def test_each_of_several_images_can_be_drawn_again_alone(tiny: Tiny) -> None:
    several = ours(tiny.onnx, Request(PROMPT, steps=2, seed=3, num_images=3, images_at_once=2, scheduler="euler-a"))
    assert len(several) == 3
    for index, image in enumerate(several):
        alone = ours(tiny.onnx, Request(PROMPT, steps=2, seed=3 + index, scheduler="euler-a"))[0]
        assert psnr(image, alone) >= 60


def test_fp16_inputs_are_fed_as_the_model_declares_them(tiny: Tiny, tmp_path: Path) -> None:
    from sdort.optimizer.command import optimize

    optimize(tiny.onnx, tmp_path / "fp16", provider="cpu", fp16=True, io_fp16=True, allow_misses=True)
    pipeline = load_pipeline(tmp_path / "fp16", CPU)
    assert {spec.dtype for spec in pipeline.sessions["unet"].inputs.values()} == {np.dtype(np.float16)}
    request = Request(PROMPT, steps=3, seed=9)
    image = next(pipeline.generate(request)).pixels
    assert 30 <= psnr(image, ours(tiny.onnx, request)[0]) < 90


def test_a_static_export_is_run_in_its_own_batch(tiny: Tiny, tmp_path: Path) -> None:
    from sdort.generation.schedules.schedulers import load_scheduler

    tiny.pipeline.scheduler = load_scheduler(tiny.diffusers / "scheduler", None)  # other tests leave theirs
    tiny_pipeline.export_onnx(tiny.pipeline, tmp_path / "static", batch=2)
    request = Request(PROMPT, steps=2, seed=4, num_images=2)
    for static, dynamic in zip(ours(tmp_path / "static", request), ours(tiny.onnx, request), strict=True):
        assert psnr(static, dynamic) >= 60
    with pytest.raises(UsageError, match="exported for the width 64, not 96"):
        ours(tmp_path / "static", Request(PROMPT, width=96))
    with pytest.raises(UsageError, match="2 samples at once, which does not divide 1"):
        ours(tmp_path / "static", Request(PROMPT, guidance_scale=1))


def test_the_guidance_scale_is_embedded_as_diffusers_embeds_it(tiny: Tiny) -> None:
    import torch

    wanted = tiny.pipeline.get_guidance_scale_embedding(torch.tensor([6.5]), embedding_dim=32)
    np.testing.assert_allclose(embed_guidance(7.5, 32), wanted.numpy(), rtol=1e-5, atol=1e-5)


# Files


def test_the_png_tells_how_it_was_made(tiny: Tiny, sdort: Callable[..., Result]) -> None:
    result = sdort(tiny.onnx, "--negative-prompt", "fog", "--scheduler", "Euler a", "-o", "out.png")
    assert result.exit_code == 0, result.output
    with Image.open("out.png") as image:
        assert image.size == (64, 64)
        texts = image.text  # type: ignore[attr-defined]
    lines = texts["parameters"].splitlines()
    assert lines[:2] == [PROMPT, "Negative prompt: fog"]
    assert "Steps: 2, Sampler: Euler a, CFG scale: 7.5, Seed: 7, Size: 64x64" in lines[2]
    record = json.loads(texts["sdort"])
    assert record["seed"] == 7
    assert record["provider"] == "cpu"
    assert record["model_hash"] in lines[2]


def test_json_is_the_record_of_the_run(tiny: Tiny, sdort: Callable[..., Result]) -> None:
    result = sdort(tiny.onnx, "--num-images", "2", "-o", "out.png", "--json", "-q")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    same = {"variation_seed": None, "prompt": PROMPT, "negative_prompt": "", "flagged": None, "safety_score": None}
    assert record["images"] == [{"path": "out-1.png", "seed": 7, **same}, {"path": "out-2.png", "seed": 8, **same}]
    assert record["iterations_per_second"] == pytest.approx(2 / record["seconds"]["denoise"], rel=1e-2)
    assert record["peak_memory"]["host"] > 50e6
    assert record["peak_memory"]["device"] is None
    assert sorted(Path().iterdir()) == [Path("out-1.png"), Path("out-2.png")]
    assert set(record["seconds"]) == {
        "load", "encode", "encode_image", "denoise", "first_step", "decode", "upscale", "judge",
    }  # fmt: skip
    assert (record["seconds"]["upscale"], record["seconds"]["judge"]) == (0, 0)
    assert (record["done_before"], record["flagged"], record["grid"]) == ([], None, None)
    stages = ("load", "encode", "denoise", "decode")
    assert record["elapsed"] >= sum(record["seconds"][stage] for stage in stages)
    assert record["versions"]["sdort"]
    for entry in record["images"]:
        with Image.open(entry["path"]) as image:
            assert json.loads(image.text["sdort"])["seed"] == entry["seed"]  # type: ignore[attr-defined]


def test_without_a_name_the_file_is_called_after_the_seed(tiny: Tiny, sdort: Callable[..., Result]) -> None:
    for wanted in ("sdort-7.png", "sdort-7-run2.png"):
        assert sdort(tiny.onnx).exit_code == 0
        assert Path(wanted).exists()


@pytest.mark.parametrize(
    ("output", "exit_code", "message"),
    [
        ("out.gif", 2, "no .png, .jpg, .jpeg or .webp file"),
        ("taken.png/out.png", 7, "taken.png is no folder"),
        ("taken.png", 7, "taken.png exists"),
        ("several.png", 7, "several-2.png and 1 more exist"),
    ],
)
def test_a_bad_output_is_refused_before_anything_is_loaded(
    output: str, exit_code: int, message: str, tiny: Tiny, sdort: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr("sdort.generation.command.load_pipeline", never)
    Path("taken.png").write_bytes(b"mine")
    for number in (2, 3):
        Path(f"several-{number}.png").write_bytes(b"mine")
    result = sdort(tiny.onnx, "-o", output, *(["--num-images", "3"] if output == "several.png" else []))
    assert (result.exit_code, message in result.stderr) == (exit_code, True), result.stderr
    assert Path("taken.png").read_bytes() == b"mine"


def test_overwrite_replaces_the_file_but_no_folder(tiny: Tiny, sdort: Callable[..., Result]) -> None:
    Path("taken.png").write_bytes(b"mine")
    assert sdort(tiny.onnx, "-o", "taken.png", "--overwrite").exit_code == 0
    with Image.open("taken.png") as image:
        image.verify()
    Path("folder.png").mkdir()
    with pytest.raises(OutputError, match=r"folder.png is a folder"):
        image_files.output_paths(Path("folder.png"), 1, 1, overwrite=True)


def test_the_last_lines_say_what_was_made_and_what_it_took(tiny: Tiny, sdort: Callable[..., Result]) -> None:
    result = sdort(tiny.onnx, "--prompt", "a cat", "-o", "out.png")
    made, took = result.stdout.splitlines()
    assert re.fullmatch(
        r"2 images, out-1.png to out-2.png: seed 7, 64x64, 2 steps of DDIM on cpu, peak memory [\d.]+ [MG]B", made
    )
    number = r"\d+\.?\d* s"
    speed = r"\d+\.?\d* (it/s|s/it)"
    stages = rf"load {number}, text encoder {number}, denoise {number} \({speed}\), decode {number}"
    assert re.fullmatch(rf"{number}: start {number}, {stages}, rest {number}", took)
    assert sdort(tiny.onnx, "-o", "quiet.png", "-q").stdout == ""


def test_each_prompt_gets_the_images_that_it_gets_alone(tiny: Tiny, tmp_path: Path) -> None:
    prompts, unwanted = ["a cat", "a dog"], ["", "sea"]
    result = run(
        tiny.onnx, prompts, negative_prompt=unwanted, steps=2, seed=3, num_images=2, images_at_once=3,
        provider="cpu", output=tmp_path / "new" / "out.png",
    )  # fmt: skip
    assert [(image.prompt, image.negative_prompt, image.seed) for image in result.images] == [
        ("a cat", "", 3), ("a cat", "", 4), ("a dog", "sea", 3), ("a dog", "sea", 4),
    ]  # fmt: skip
    for number, image in enumerate(result.images, 1):
        alone = ours(tiny.onnx, Request(image.prompt, image.negative_prompt, steps=2, seed=image.seed))[0]
        assert psnr(image.pixels, alone) >= 60
        assert image.path == tmp_path / "new" / f"out-{number}.png"
        with Image.open(image.path) as written:
            record = json.loads(written.text["sdort"])  # type: ignore[attr-defined]
        assert [record[key] for key in ("prompt", "negative_prompt", "seed")] == [
            image.prompt, image.negative_prompt, image.seed,
        ]  # fmt: skip


def test_a_full_disk_leaves_no_part_of_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    for name in ("os.link", "os.replace"):
        monkeypatch.setattr(name, fill)
    empty: dict[str, Any] = dict.fromkeys((each.name for each in fields(GenerationRecord)), "")
    record = GenerationRecord(**{**empty, "versions": {"sdort": "0"}})
    with pytest.raises(OutputError, match="No space left"):
        image_files.save_image(tmp_path / "a.png", np.zeros((2, 2, 3), np.uint8), record, 1)
    assert list(tmp_path.iterdir()) == []


# Images that show nothing


@pytest.mark.parametrize(
    ("value", "message"), [(np.nan, "NaN or infinite pixels"), (-9.0, "all black"), (0.3, "same value")]
)
def test_an_image_that_shows_nothing_is_an_error_and_is_not_written(
    value: float, message: str, copy: Path, sdort: Callable[..., Result]
) -> None:
    def break_it(array: Any, name: str) -> Any:
        return np.full_like(array, value if name.endswith("bias") else 0)

    edit_weights(copy / "vae_decoder" / "model.onnx", break_it, "conv_out")
    result = sdort(copy, "-o", "out.png")
    assert result.exit_code == ParityError.exit_code, result.output
    assert message in result.stderr
    assert "seed 7" in result.stderr
    assert list(Path().iterdir()) == []


def test_only_the_bad_one_of_several_images_is_not_written(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(decoded: Any, seed: int) -> images.Generated:
        return images.to_image(decoded * np.nan if seed == 8 else decoded, seed)

    monkeypatch.setattr("sdort.generation.pipeline.to_image", spoil)
    with pytest.raises(ParityError, match="seed 8"):
        run(tiny.onnx, PROMPT, steps=1, seed=7, num_images=3, provider="cpu", output=tmp_path / "out.png")
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["out-1.png", "out-3.png"]


def test_nan_in_the_unet_stops_at_its_step(copy: Path, tmp_path: Path) -> None:
    edit_weights(copy / "unet" / "model.onnx", lambda array, _: array * np.nan, "conv_out.bias")
    with pytest.raises(ParityError, match="NaN or infinite values at step 1 of 5") as caught:
        run(copy, PROMPT, steps=5, provider="cpu", output=tmp_path / "out.png")
    assert caught.value.component == "unet"
    assert not (tmp_path / "out.png").exists()


# Refusals


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--height", "65536"], "65536 is not a whole number from 1 to 16,384"),
        (["--height", "66"], "--height 66 is not a multiple of 4"),
        (["--width", "3"], "--width 3 is not a multiple of 4"),
        (["--scheduler", "eular_a"], "Did you mean euler-a?"),
        (["--steps", "1001"], "1001 is not a whole number from 1 to 1,000: models are trained on 1,000 timesteps"),
        (["--guidance-scale", "nan"], "nan is not a number from 0 to 1,000: the UNet's output"),
        (["--prompt", "b", "--prompt", "c", *["--negative-prompt", "d"] * 2], "3 times, --negative-prompt 2 times"),
        (["--steps", "0"], "--steps"),
        (["--num-images", "0"], "--num-images"),
        (["--seed", "-1"], "--seed"),
        (["--seed", str((1 << 63) - 1), "--num-images", "2"], "--seed 9223372036854775808 is not"),
        (["--prompt", "a\udcff"], "--prompt is no text: its character 2 is '\\udcff'"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_anything_is_loaded(
    args: list[str], message: str, tiny: Tiny, sdort: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdort.generation.command.load_pipeline", None)
    result = sdort(tiny.onnx, *args)
    assert result.exit_code == UsageError.exit_code
    assert message in result.stderr
    assert list(Path().iterdir()) == []


def test_the_library_refuses_the_same_values() -> None:
    refused: list[dict[str, Any]] = [
        {"steps": 0}, {"steps": 10.0}, {"steps": "10"}, {"steps": True}, {"steps": None}, {"num_images": 0},
        {"images_at_once": 0}, {"seed": -1}, {"seed": 1 << 63}, {"guidance_scale": np.nan}, {"height": np.inf},
        {"guidance_scale": "7.5"}, {"prompt": "a\0b"}, {"prompt": "a" * ((1 << 17) + 1)}, {"negative_prompt": b"a"},
    ]  # fmt: skip
    for values in refused:
        with pytest.raises(UsageError, match=f"--{next(iter(values)).replace('_', '-')}"):
            Request(**{"prompt": "", **values})
    taken: Any = Request("", steps=cast("Any", np.int64(3)), guidance_scale=cast("Any", np.float32(2)), height=None)
    assert type(taken.steps) is int
    assert type(taken.guidance_scale) is float


def test_a_missing_component_is_named(copy: Path, sdort: Callable[..., Result]) -> None:
    shutil.rmtree(copy / "vae_decoder")
    result = sdort(copy)
    assert result.exit_code == BadModelError.exit_code
    assert "has no vae_decoder" in result.stderr


@pytest.mark.parametrize(
    "broken", ["tokenizer", "tokenizer/tokenizer.json", "scheduler/scheduler_config.json", "unet/model.onnx"]
)
def test_a_broken_part_of_the_pipeline_is_a_bad_model(broken: str, copy: Path, sdort: Callable[..., Result]) -> None:
    if (copy / broken).is_dir():
        shutil.rmtree(copy / broken)
    else:
        (copy / broken).write_bytes((copy / broken).read_bytes()[:-40])
    result = sdort(copy)
    assert result.exit_code == BadModelError.exit_code, result.output
    assert broken.partition("/")[0] in result.stderr
    assert "Traceback" not in result.output
    assert list(Path().iterdir()) == []


def test_old_conversions_without_configs_have_the_autoencoder_of_sd1(copy: Path) -> None:
    from sdort.pipelines.folder import open_folder

    assert open_folder(copy).vae_factor == 4
    (copy / "vae_decoder" / "config.json").unlink()
    old = open_folder(copy)
    assert (old.vae_factor, old.vae["scaling_factor"]) == (8, 0.18215)


@pytest.mark.parametrize(
    ("prompt", "negative_prompt", "guidance_scale", "message"),
    [
        ("x" * 75, "y" * 75, 7.5, ""),
        ("x" * 200, "y" * 2, 7.5, ""),
        (
            "x" * 2400 + "yz",
            "",
            7.5,
            "the prompt has 2402 tokens, and the model reads 2400; this part has no effect: yz",
        ),
        (
            "x",
            "x" * 2400 + "yz",
            7.5,
            "the negative prompt has 2402 tokens, and the model reads 2400; this part has no",
        ),
        (" ", "", 7.5, "the prompt is empty"),
        ("x", "y", 1.0, "the negative prompt has no effect: --guidance-scale 1 and less turn guidance off"),
    ],
)
def test_what_of_a_prompt_has_no_effect_is_told(
    prompt: str, negative_prompt: str, guidance_scale: float, message: str, tiny: Tiny,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    request = Request(prompt, negative_prompt, guidance_scale=guidance_scale)
    first_conditions(opened(tiny.onnx), [request, request])
    told = capsys.readouterr().err
    assert (told.count("\n"), message in told) == (1 if message else 0, True), told


# Providers


def test_a_fallback_is_a_warning_that_even_quiet_shows(tiny: Tiny, sdort: Callable[..., Result]) -> None:
    result = sdort(tiny.onnx, "--provider", "rocm", "--fallback", "--json", "-q")
    assert result.exit_code == 0
    assert "warning: rocm cannot be used" in result.stderr
    record = json.loads(result.stdout)
    assert (record["requested_provider"], record["provider"]) == ("rocm", "cpu")
    assert "built without ROCMExecutionProvider" in record["fallback"]


def test_auto_says_what_it_took(tiny: Tiny, sdort: Callable[..., Result]) -> None:
    result = sdort(tiny.onnx, "--provider", "auto")
    assert result.exit_code == 0
    assert "running on cpu" in result.stderr


def test_tuning_on_the_cpu_says_that_it_has_no_effect(tiny: Tiny, sdort: Callable[..., Result]) -> None:
    result = sdort(tiny.onnx, "--tuning", "--json")
    assert result.exit_code == 0
    assert "--tuning has no effect on cpu" in result.stderr
    assert json.loads(result.stdout)["tuning"] is False


def test_the_record_says_whether_anything_was_searched(
    tiny: Tiny, sdort: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On cuda that is sdort's own kernels, where their library takes part."""
    library = Path("libsdort_ops.so")
    for provider, found, searched in (
        (ROCM, None, True),
        (CUDA, library, True),
        (CUDA, None, False),
        (find_provider("cpu"), library, False),
    ):
        with monkeypatch.context() as patch:
            patch.setattr("sdort.providers.session_settings.resolve", lambda setting, found=found: found)
            assert can_tune(provider, RuntimeOptions()) is searched
    monkeypatch.setattr("sdort.generation.command.can_tune", lambda provider, options: True)
    assert json.loads(sdort(tiny.onnx, "--tuning", "--json").stdout)["tuning"] is True
    assert json.loads(sdort(tiny.onnx, "--json", "--overwrite").stdout)["tuning"] is False


def test_too_few_steps_for_a_scheduler_are_an_error_in_words(sdort: Callable[..., Result], tiny: Tiny) -> None:
    """PNDM's Runge-Kutta steps need four."""
    result = sdort(tiny.onnx, "--scheduler", "pndm")
    assert result.exit_code == UsageError.exit_code
    assert "PNDMScheduler cannot take 2 steps" in result.stderr
