"""SDXL's refiner, after its base and alone, held against diffusers' two pipelines from the same noise."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support import tiny_refiner, without
from support.adapter_files import make_lora
from support.alive_sessions import in_turn
from support.pipelines import Exported, edit_index, export_family, locked, trace_folder
from support.relisted import relist

import sdort
from sdort.console import quiet_libraries
from sdort.errors import BadModelError, MemoryShortageError, UsageError
from sdort.exporter.command import export
from sdort.generation import memory_need
from sdort.generation import pipeline as pipeline_module
from sdort.generation.requests.refiner import handover
from sdort.generation.requests.request import Request
from sdort.generation.run_summary import summarize
from sdort.generation.schedules.schedulers import load_scheduler
from sdort.pipelines.folder import open_folder
from sdort.providers import CPU
from sdort.verification.metrics import psnr

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")

# 86 dB and more were measured; without the refiner 34 to 51, with other scores 70.
ALIKE = 78
SIZE: dict[str, Any] = {"height": 192, "width": 256}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Exported:
    return export_family("sdxl", tmp_path_factory.mktemp("sdxl"), trace_folder(request.config))


@pytest.fixture(scope="module")
def theirs(base: Exported, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """diffusers' base and refiner; the refiner is saved beside the base's export as ``refiner_checkpoint``."""
    from diffusers import StableDiffusionXLPipeline

    with quiet_libraries():
        pipeline = StableDiffusionXLPipeline.from_pretrained(base.checkpoint, add_watermarker=False)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline, tiny_refiner.build_diffusers(base.checkpoint.parent / "refiner_checkpoint", pipeline)


@pytest.fixture(scope="module")
def refiner(base: Exported, theirs: tuple[Any, Any]) -> Path:
    out = base.checkpoint.parent / "refiner"
    with locked(base.traces):
        export(base.checkpoint.parent / "refiner_checkpoint", out, cache_dir=base.traces)
    return out


@pytest.fixture(scope="module")
def loaded(base: Exported) -> sdort.Pipeline:
    return sdort.load(base.out, provider="cpu")


def pixels_of(image: Array) -> Array:
    return (image * 255).round().astype(np.uint8)


def refined_by(theirs: tuple[Any, Any], folder: Path, scheduler: str, guidance: float, **scores: float) -> Array:
    """What diffusers' base and refiner make of six steps."""
    import torch

    base, refiner = theirs
    seed = torch.Generator().manual_seed(3)
    for each in theirs:
        each.scheduler = load_scheduler(folder / "scheduler", scheduler)
    common = {"num_inference_steps": 6, "guidance_scale": guidance, "generator": seed}
    latents = base("a red cat", denoising_end=0.6, **SIZE, **common, output_type="latent").images
    size = (SIZE["height"], SIZE["width"])
    image = refiner(
        "a red cat", image=latents, denoising_start=0.6, **common, output_type="np", original_size=size,
        target_size=size, **scores,
    ).images[0]  # fmt: skip
    return pixels_of(image)


@pytest.mark.parametrize(
    ("scheduler", "guidance", "scores"),
    [
        ("euler", 5.0, {}),
        ("euler-a", 1.0, {}),
        ("dpm++-2m-karras", 5.0, {"aesthetic_score": 9.0, "negative_aesthetic_score": 1.0}),
    ],
)
def test_base_and_refiner_are_those_of_diffusers(
    base: Exported, theirs: Any, refiner: Path, loaded: sdort.Pipeline, scheduler: str, guidance: float, scores: Any
) -> None:
    result = loaded.generate(
        "a red cat", steps=6, seed=3, guidance_scale=guidance, scheduler=scheduler, refiner=refiner,
        refiner_start=0.6, **SIZE, **scores,
    )  # fmt: skip
    named = (result.refiner, result.refiner_start, result.refiner_hash)
    assert named == ("refiner", 0.6, open_folder(refiner).model_hash)
    assert f"6 steps of {scheduler} on cpu, refined by refiner" in summarize(
        replace(result, images=[replace(result.images[0], path=Path("a.png"))])
    )
    image = result.images[0].pixels
    assert image.std() > 20
    assert psnr(image, refined_by(theirs, base.out, scheduler, guidance, **scores)) >= ALIKE


def test_a_refiner_goes_on_without_torch(base: Exported, refiner: Path, loaded: sdort.Pipeline, tmp_path: Path) -> None:
    options: Any = {"steps": 4, "seed": 3, "refiner": refiner, "scheduler": "dpm2-a", **SIZE}
    [drawn] = without.draw(base.out, tmp_path, "a red cat", options)
    np.testing.assert_array_equal(drawn, loaded.generate("a red cat", **options).images[0].pixels)


def test_two_devices_share_the_samples_of_base_and_refiner(
    base: Exported, refiner: Path, loaded: sdort.Pipeline
) -> None:
    shared = sdort.load(base.out, provider="cpu", devices="0,1")
    options: dict[str, Any] = {"refiner": refiner, "refiner_start": 0.5, "steps": 4, "seed": 3, **SIZE}
    one, two = (pipeline.generate("a red cat", **options).images[0].pixels for pipeline in (loaded, shared))
    np.testing.assert_array_equal(one, two)
    opened = shared._models.refiner
    assert opened is not None
    assert len(opened.sessions[opened.denoiser].others) == 1
    assert not np.array_equal(one, loaded.generate("a red cat", steps=4, seed=3, **SIZE).images[0].pixels)


def test_one_after_the_other_makes_the_same_images(
    refiner: Path, loaded: sdort.Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: Any = {"steps": 4, "seed": 3, "num_images": 3, "images_at_once": 2, "refiner": refiner, **SIZE}
    together = loaded.generate("a red cat", **options)
    models = loaded._models
    monkeypatch.setattr(models, "refiner", None)
    seen: list[bool] = []
    monkeypatch.setattr(pipeline_module, "fits_beside", lambda *_: False)
    opened = type(models)._opened_refiner

    def watched(self: Any, folder: Any) -> Any:
        seen.append("unet" in self.sessions)
        return opened(self, folder)

    monkeypatch.setattr(type(models), "_opened_refiner", watched)
    apart = loaded.generate("a red cat", **options)
    assert seen == [False], "both UNets were open"
    assert models.refiner is None
    for first, second in zip(together.images, apart.images, strict=True):
        np.testing.assert_array_equal(first.pixels, second.pixels)
    assert loaded.generate("a red cat", steps=2, **SIZE).images  # the base opens again
    monkeypatch.undo()
    with sdort.load(loaded._models.folder.path, provider="cpu", memory="low") as low:
        opened_in_turn = in_turn(loaded, low, "a red cat", **options)
        assert opened_in_turn == {"text_encoder": 1, "text_encoder_2": 2, "unet": 2, "vae_decoder": 1}
    kept = together.images[1].save(tmp_path / "kept.png")
    again = loaded.generate(from_image=kept, refiner=refiner)
    np.testing.assert_array_equal(again.images[0].pixels, together.images[1].pixels)


def test_the_refiner_alone_works_on_an_image(base: Exported, theirs: Any, refiner: Path) -> None:
    import torch

    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (192, 256, 3), np.uint8))
    pipeline = theirs[1]
    pipeline.scheduler = load_scheduler(base.out / "scheduler", "euler")
    seed, size = torch.Generator().manual_seed(5), (192, 256)
    wanted = pipeline(
        "a red cat", image=picture, strength=0.5, num_inference_steps=4, guidance_scale=5.0, generator=seed,
        output_type="np", original_size=size, target_size=size,
    ).images[0]  # fmt: skip
    ours = sdort.load(refiner, provider="cpu").generate(
        "a red cat", init_image=picture, strength=0.5, steps=4, guidance_scale=5.0, seed=5, scheduler="euler"
    )
    assert psnr(ours.images[0].pixels, pixels_of(wanted)) >= ALIKE


def test_adapters_change_the_base_alone_and_that_is_told(
    base: Exported, refiner: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lora = make_lora(base.checkpoint, tmp_path / "a.safetensors", 1)
    alone = sdort.load(base.out, provider="cpu")  # weights that can change are in other kernels, which round otherwise
    result = alone.generate("a red cat", steps=2, refiner=refiner, refiner_start=0.5, lora=[str(lora)], **SIZE)
    assert [one.name for one in result.lora] == ["a.safetensors"]
    assert "adapters change onnx alone, not its refiner" in " ".join(capsys.readouterr().err.split())


def test_verify_compares_what_the_refiner_makes_of_an_image(base: Exported, refiner: Path) -> None:
    checkpoint = base.checkpoint.parent / "refiner_checkpoint"
    result = sdort.verify(
        refiner, checkpoint=checkpoint, provider="cpu", components=["unet"], images=True, prompts=["a red cat"],
        seeds=1, steps=2, inputs="recorded",
    )  # fmt: skip
    assert result.missing == []
    assert [image.problem for image in result.images] == [None]
    assert (result.images[0].psnr or 0) >= ALIKE
    assert {comparison.inputs for comparison in result.comparisons} == {"recorded"}
    assert all(comparison.passed for comparison in result.comparisons)


# The handover


@pytest.mark.parametrize(
    ("start", "order", "first"),
    # Timesteps 900, 700, 700, 500, 500, 300, 300, 100, 100: of 1000, those from 1000 (1 - start) on are the base's.
    [(0.5, 1, 5), (0.499, 1, 3), (0.75, 1, 7), (0.8, 1, 7), (0.5, 2, 4), (0.499, 2, 2), (0.7, 2, 6), (0.05, 1, 0)],
)
def test_the_refiner_takes_the_timesteps_below_its_share(start: float, order: int, first: int) -> None:
    """As diffusers: ``ts >= cutoff`` is the base's, and of a scheduler with two calls a step no step is divided."""
    times = [900, 700, 700, 500, 500, 300, 300, 100, 100]
    sampler: Any = SimpleNamespace(trained=1000, timesteps=times, order=order)
    assert handover(sampler, start) == first


# Refusals


def test_a_refiner_that_cannot_fit_is_refused(
    base: Exported, refiner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {base.out: 1 << 30, refiner: 9 << 30}
    monkeypatch.setattr(memory_need, "free_memory", lambda *_: 4 << 30)
    monkeypatch.setattr(memory_need, "weight_bytes", lambda folder, names: sizes[folder.path])
    request = Request("a", height=64, width=64)
    memory_need.refuse_generation(open_folder(base.out), request, 1, CPU, 0)
    refined = replace(request, refiner=refiner)
    with pytest.raises(MemoryShortageError, match=r"with the refiner refiner needs about 9\.\d GB .* 4\.3 GB are free"):
        memory_need.refuse_generation(open_folder(base.out), refined, 1, CPU, 0)
    sizes[refiner] = 9 << 29  # less than the free memory with the margin
    memory_need.refuse_generation(open_folder(base.out), refined, 1, CPU, 0)


def changed(folder: Path, to: Path, file: str, **entries: Any) -> Path:
    """A copy of a pipeline with another config."""
    copied = Path(shutil.copytree(folder, to))
    path = copied / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))
    relist(copied)
    return copied


def test_what_does_not_go_together_is_refused(base: Exported, refiner: Path, tmp_path: Path) -> None:
    def refuse(folder: Path, error: type[Exception], words: str, **options: Any) -> None:
        with pytest.raises(error, match=words):
            sdort.run(folder, "a", provider="cpu", **{"steps": 4, "output": tmp_path / "image.png", **options})

    scaled = changed(refiner, tmp_path / "scaled", "vae_decoder/config.json", scaling_factor=0.5)
    v = changed(refiner, tmp_path / "v", "scheduler/scheduler_config.json", prediction_type="v_prediction")
    other = Path(shutil.copytree(base.out, tmp_path / "sd1", ignore=shutil.ignore_patterns("text_encoder_2")))
    edit_index(other, text_encoder_2=None)
    relist(other)
    refuse(base.out, UsageError, "is of Stable Diffusion 1.x and 2.x, and .* of SDXL: their latents", refiner=other)
    refuse(base.out, UsageError, "has another scaling factor than .*: 0.5 and 0.13025", refiner=scaled)
    refuse(base.out, UsageError, "has another prediction type than .*: v_prediction and epsilon", refiner=v)
    refuse(refiner, UsageError, "is SDXL's refiner itself", refiner=refiner, init_image=np.zeros((64, 64, 3), np.uint8))
    refuse(refiner, BadModelError, "is SDXL's refiner, which works on an image")
    refuse(base.out, UsageError, "--refiner-start 1 leaves the refiner none of 4 steps", refiner=refiner,
           refiner_start=1)  # fmt: skip
    refuse(base.out, UsageError, "--refiner-start 0 leaves the base none of 4 steps", refiner=refiner, refiner_start=0)
    refuse(base.out, UsageError, "--refiner-start 2 is not a number from 0 to 1", refiner=refiner, refiner_start=2)
    refuse(base.out, UsageError, "--refiner-start means nothing without --refiner", refiner_start=0.5)
    refuse(base.out, UsageError, "--aesthetic-score is for SDXL's refiner", aesthetic_score=5)
    refuse(base.out, UsageError, "--refiner goes with one pass", refiner=refiner, hires=2)
