"""Z-Image from a diffusers folder to images, against diffusers' own pipeline from the same noise."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import save_file
from support import tiny_z_image
from support.alive_sessions import watching_parts
from support.pipelines import trace_folder

import sdort
from sdort.errors import UsageError
from sdort.generation.schedules.image_noise import SeededNormal
from sdort.graph.signature import Array

FACTOR = 2
"""Pixels a latent."""
LONG = "a red square above a blue circle, portrait of an old man, oil on canvas " * 40


class Tiny:
    def __init__(self, root: Path, traces: Path) -> None:
        self.traces = traces
        self.checkpoint, self.onnx, self.fast = root / "checkpoint", root / "model", root / "fast"
        tiny_z_image.save(tiny_z_image.build(), self.checkpoint)
        sdort.export(self.checkpoint, self.onnx, cache_dir=traces)
        self.report = sdort.optimize(self.onnx, self.fast, provider="cpu")
        self.loaded = sdort.load(self.onnx, provider="cpu")

    def theirs(
        self, prompt: list[str], size: tuple[int, int], seeds: list[int], lora: Path | None = None, **options: Any
    ) -> Array:
        """diffusers' images as floats [images, height, width, 3]."""
        from diffusers import ZImagePipeline

        pipeline = ZImagePipeline.from_pretrained(self.checkpoint)
        if lora:
            pipeline.load_lora_weights(lora)
        pipeline.set_progress_bar_config(disable=True)
        height, width = size
        noise = [SeededNormal(each).draw((1, 16, height // FACTOR, width // FACTOR)) for each in seeds]
        made = pipeline(
            list(prompt),  # it is changed
            height,
            width,
            latents=torch.from_numpy(np.concatenate(noise)),
            output_type="np",
            **options,
        ).images
        return np.asarray(made, np.float64)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Tiny:
    return Tiny(tmp_path_factory.mktemp("z-image"), trace_folder(request.config))


def decibels(found: list[Array], wanted: Array) -> float:
    """Of images as bytes, against images as floats that are rounded to bytes."""
    error = np.square(np.stack(found) / 255 - np.round(wanted * 255) / 255).mean()
    return -10 * math.log10(error) if error else math.inf


def test_the_graph_computes_what_the_class_does(tiny: Tiny) -> None:
    """With sizes that are no multiple of 32 tokens, and none of which is that of the trace."""
    model = tiny_z_image.build()["transformer"]
    session = onnxruntime.InferenceSession(tiny.onnx / "transformer" / "model.onnx")
    generator = torch.Generator().manual_seed(1)
    for height, width, tokens, batch in ((8, 8, 1, 1), (16, 24, 40, 2), (6, 10, 32, 1), (32, 4, 100, 3), (2, 2, 33, 1)):
        sample = torch.randn(batch, 16, height, width, generator=generator)
        text = torch.randn(batch, tokens, 24, generator=generator)
        time = torch.tensor(731.25)
        with torch.no_grad():
            made = model(
                list(sample.unsqueeze(2)), ((1000 - time) / 1000).expand(batch), list(text), return_dict=False
            )[0]
        wanted = -torch.stack(made).squeeze(2).numpy()
        feeds = {
            "hidden_states": sample.numpy(),
            "timestep": time.expand(batch).numpy(),
            "encoder_hidden_states": text.numpy(),
        }
        found = session.run(None, feeds)[0]
        assert np.sqrt(np.square(found - wanted).mean()) / wanted.std() < 5e-5


@pytest.mark.parametrize("prompt", ["a", "a red square, portrait of an old man, oil on canvas, 35mm", LONG, ""])
@pytest.mark.parametrize(("size", "guidance", "count"), [((64, 64), 0.0, 2), ((48, 80), 4.0, 1)])
def test_images_are_those_of_diffusers(
    prompt: str, size: tuple[int, int], guidance: float, count: int, tiny: Tiny
) -> None:
    wanted = tiny.theirs([prompt] * count, size, [3, 4][:count], num_inference_steps=4, guidance_scale=guidance)
    options: dict[str, Any] = {"height": size[0], "width": size[1], "steps": 4, "guidance_scale": guidance, "seed": 3}
    options |= {"num_images": count, "images_at_once": count}
    made = tiny.loaded.generate(prompt, **options)
    assert wanted.std() > 0.02
    assert decibels([image.pixels for image in made.images], wanted) > 60


@pytest.mark.parametrize("guidance", [0.0, 3.0])
def test_prompts_of_other_lengths_stay_what_they_are_in_one_batch(guidance: float, tiny: Tiny) -> None:
    prompts, negative = ["a red square", "portrait of an old man, oil on canvas " * 3], "a blue circle, the house " * 6
    options: dict[str, Any] = {"guidance_scale": guidance, "negative_prompt": negative}
    wanted = tiny.theirs(
        prompts, (32, 48), [5, 5], num_inference_steps=3, **{**options, "negative_prompt": [negative] * 2}
    )
    made = tiny.loaded.generate(prompts, height=32, width=48, steps=3, seed=5, images_at_once=2, **options)
    assert len({image.pixels.tobytes() for image in made.images}) == 2
    assert decibels([image.pixels for image in made.images], wanted) > 60


def test_low_memory_draws_the_same_images_and_holds_no_part_beside_the_step(tiny: Tiny) -> None:
    prompts = ["a red square", "portrait of an old man, oil on canvas " * 3]
    options: dict[str, Any] = {"height": 32, "width": 48, "steps": 3, "seed": 5, "images_at_once": 1}
    wanted = tiny.loaded.generate(prompts, **options)
    with watching_parts() as parts, sdort.load(tiny.onnx, provider="cpu", memory="low") as low:
        made = low.generate(prompts, **options)
    assert parts.together == [["prompt"], ["prompt", "time"], ["step"]]  # of two shapes: both prompts are prepared
    for first, second in zip(wanted.images, made.images, strict=True):
        np.testing.assert_array_equal(first.pixels, second.pixels)


def test_eight_steps_without_guidance_are_usual(tiny: Tiny) -> None:
    [image] = tiny.loaded.generate("a", height=32, width=32, seed=1).images
    assert (image.record.steps, image.record.guidance_scale, image.record.prompt_weighting) == (8, 0.0, "none")


def test_all_that_its_config_promises_is_fused(tiny: Tiny, tmp_path: Path) -> None:
    for provider in ("cpu", "cuda", "rocm", "migraphx"):
        report = tiny.report if provider == "cpu" else sdort.optimize(tiny.onnx, tmp_path / provider, provider=provider)
        operators = report.components["transformer"].operators
        assert operators["com.microsoft.MultiHeadAttention"] == 4
        assert operators.get("com.microsoft.RotaryEmbedding", 8) == 8, provider


def test_fp16_draws_the_same_image(tiny: Tiny, tmp_path: Path) -> None:
    sdort.optimize(tiny.onnx, tmp_path / "half", provider="cpu", fp16=True)
    options: dict[str, Any] = {"height": 64, "width": 64, "steps": 4, "seed": 3, "guidance_scale": 4.0}
    images = [sdort.load(folder, provider="cpu").generate("a red square", **options).images[0].pixels
              for folder in (tmp_path / "half", tiny.fast)]  # fmt: skip
    assert decibels(images[:1], images[1][None] / 255) > 45


def test_static_sizes_and_words_of_embeddings_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--static: Z-Image reads prompts in as many tokens as they have"):
        sdort.export(tiny.checkpoint, tmp_path / "static", static="1x64x64")
    shutil.copy(tiny.checkpoint / "model_index.json", tmp_path / "word.safetensors")
    with pytest.raises(UsageError, match="--embedding is for CLIP's text encoders, and checkpoint has a Qwen3Model"):
        sdort.export(tiny.checkpoint, tmp_path / "words", embedding=[str(tmp_path / "word.safetensors")])


def test_a_side_beyond_its_positions_is_refused(tiny: Tiny) -> None:
    with pytest.raises(UsageError, match="1024"):
        tiny.loaded.generate("a", height=32, width=1028, seed=1)


@pytest.mark.filterwarnings("ignore")
def test_a_lora_is_diffusers(tiny: Tiny, tmp_path: Path) -> None:
    """In diffusers' names and in those of kohya's scripts and of ComfyUI, at run time and put into the export."""
    random, width = torch.Generator().manual_seed(3), tiny_z_image.WIDTH
    layers = [f"layers.{block}.attention.{name}" for block in (0, 1) for name in ("to_q", "to_v", "to_out.0")]
    made = {
        name: (torch.randn(4, width, generator=random) * 0.3, torch.randn(width, 4, generator=random) * 0.3)
        for name in [*layers, "context_refiner.0.attention.to_k", "noise_refiner.0.attention.to_q"]
    }
    forms = {
        "diffusers": {
            f"transformer.{name}.lora_{end}.weight": each
            for name, pair in made.items()
            for end, each in zip("AB", pair, strict=True)
        },
        "comfyui": {
            f"diffusion_model.{name}.lora_{end}.weight": each
            for name, pair in made.items()
            for end, each in zip("AB", pair, strict=True)
        },
        "kohya": {
            f"lora_unet_{name.replace('.', '_')}.lora_{end}.weight": each
            for name, pair in made.items()
            for end, each in zip(("down", "up"), pair, strict=True)
        },
    }
    files = {form: tmp_path / f"{form}.safetensors" for form in forms}
    for form, tensors in forms.items():
        save_file(tensors, files[form])
    prompt = "a red square"
    options: dict[str, Any] = {"num_inference_steps": 4, "guidance_scale": 0.0}
    wanted = tiny.theirs([prompt], (32, 48), [3], lora=files["diffusers"], **options)
    assert decibels([tiny.theirs([prompt], (32, 48), [3], **options)[0] * 255], wanted) < 40
    ours: dict[str, Any] = {"height": 32, "width": 48, "steps": 4, "guidance_scale": 0.0, "seed": 3}
    with sdort.load(tiny.onnx, provider="cpu", adapters=True) as loaded:
        for file in files.values():
            drawn = loaded.generate(prompt, lora=[str(file)], **ours).images
            assert decibels([drawn[0].pixels], wanted) > 60
    sdort.export(tiny.checkpoint, tmp_path / "baked", lora=[str(files["comfyui"])], cache_dir=tiny.traces)
    with sdort.load(tmp_path / "baked", provider="cpu") as loaded:
        assert decibels([loaded.generate(prompt, **ours).images[0].pixels], wanted) > 60
