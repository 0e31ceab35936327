"""IP-Adapters in a run, held against diffusers' own pipelines from the same noise and the same images."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image
from support import task_parity, tiny_pipeline, without
from support.alive_sessions import in_turn
from support.pipelines import trace_folder
from support.tiny_control import export_part
from support.tiny_ip_adapter import DEPTH, ENCODER, build_image_encoder, build_ip_adapter, published_state

import sdort
from sdort.checkpoints.clip_processing import usual_processing
from sdort.console import quiet_libraries
from sdort.errors import SdortError
from sdort.generation.denoising.ip_adapter_tokens import check_ip_adapter_images
from sdort.generation.pictures.clip_pixels import clip_pixels
from sdort.generation.requests.ip_adapter_choice import IpAdapterChoice, parse_ip_adapter_choice
from sdort.optimizer.command import optimize
from sdort.runtime.step.control_inputs_removed import remove_control_inputs
from sdort.verification.metrics import psnr

LIKE = 60
"""Decibels: fp32 sums in another order; a wrong scale, token or negative image costs tens of them."""
PROMPT, NEGATIVE = "a red star", "dull"
KINDS = ("plain", "plus")
STEPS = 4


@dataclass
class Made:
    """A pipeline with an IP-Adapter of each kind, in diffusers and exported, and an image for each."""

    folder: Path
    pipeline: Any
    out: Path

    def image(self, number: int) -> Path:
        return self.folder / f"image{number}.png"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Made:
    from diffusers import StableDiffusionPipeline
    from transformers import CLIPImageProcessorPil

    folder = tmp_path_factory.mktemp("ip adapter")
    plain = tiny_pipeline.build_diffusers(folder / "pipeline", task_parity.ONE_LEVEL)
    encoder = build_image_encoder(folder / "image_encoder")
    files = [folder / f"{kind}.safetensors" for kind in KINDS]
    for kind, file in zip(KINDS, files, strict=True):
        build_ip_adapter(file, plain.unet, kind, encoder)
    side = ENCODER["image_size"]
    out = export_part(folder / "pipeline", folder / "exported", trace_folder(request.config), ip_adapter=files)
    generator = np.random.default_rng(0)
    for number, size in enumerate([(90, 61), (40, 75)]):
        Image.fromarray(generator.integers(0, 256, (*size, 3), np.uint8)).save(folder / f"image{number}.png")
    parts = {name: getattr(plain, name) for name in ("vae", "text_encoder", "tokenizer", "unet", "scheduler")}
    with quiet_libraries():
        pipeline = StableDiffusionPipeline(
            **parts, image_encoder=encoder, feature_extractor=CLIPImageProcessorPil(size=side, crop_size=side),
            safety_checker=None, requires_safety_checker=False,
        )  # fmt: skip
        states = [published_state(file) for file in files]
        pipeline.load_ip_adapter(states, subfolder=["", ""], weight_name=["", ""])
    pipeline.set_progress_bar_config(disable=True)
    return Made(folder, pipeline, out)


@pytest.fixture(scope="module")
def ours(made: Made) -> Any:
    return sdort.load(made.out, provider="cpu")


def _theirs(made: Made, scales: tuple[float, float], kind: Any = None, **options: Any) -> Any:
    """The image of diffusers' pipeline, [height, width, 3] in 0 to 255."""
    import torch

    pipeline = kind.from_pipe(made.pipeline) if kind else made.pipeline
    pipeline.set_progress_bar_config(disable=True)
    pipeline.set_ip_adapter_scale(list(scales))
    with quiet_libraries():
        result = pipeline(
            PROMPT, negative_prompt=NEGATIVE, num_inference_steps=STEPS,
            ip_adapter_image=[Image.open(made.image(number)) for number in range(2)],
            generator=torch.Generator().manual_seed(7), output_type="np", **options,
        )  # fmt: skip
    return result.images[0] * 255


def _generate(made: Made, pipeline: Any, scales: tuple[float, float] | None, **options: Any) -> Any:
    images = [f"{made.image(number)}:{scale}" for number, scale in enumerate(scales or ())]
    settings = {"negative_prompt": NEGATIVE, "steps": STEPS, "seed": 7, "ip_adapter_image": images, **options}
    return pipeline.generate(PROMPT, **settings).images[0].pixels


def _decibels(ours: Any, theirs: Any) -> float:
    return psnr(np.asarray(ours), np.round(theirs))


@pytest.mark.parametrize("scales", [(1.0, 0.0), (0.0, 0.7), (0.5, 1.2)], ids=["plain", "plus", "both"])
def test_images_are_those_of_diffusers(made: Made, ours: Any, scales: tuple[float, float]) -> None:
    expected = _theirs(made, scales)
    assert _decibels(_generate(made, ours, scales), expected) > LIKE
    assert _decibels(_generate(made, ours, None), expected) < 40


def test_without_guidance_no_negative_image_counts(made: Made, ours: Any) -> None:
    expected = _theirs(made, (0.8, 0.8), guidance_scale=1.0)
    assert _decibels(_generate(made, ours, (0.8, 0.8), guidance_scale=1.0), expected) > LIKE


def test_an_init_image_and_the_host_loop(made: Made, ours: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from diffusers import StableDiffusionImg2ImgPipeline

    init = Image.open(made.image(0)).resize((64, 64))
    expected = _theirs(made, (0.6, 0.9), StableDiffusionImg2ImgPipeline, image=init, strength=0.6)
    assert _decibels(_generate(made, ours, (0.6, 0.9), init_image=init, strength=0.6), expected) > LIKE
    monkeypatch.setattr(type(ours._models.loop), "fits", lambda *args: False)
    assert _decibels(_generate(made, ours, (0.6, 0.9), init_image=init, strength=0.6), expected) > LIKE


def test_every_device_has_the_image_of_its_samples(made: Made, ours: Any) -> None:
    """The negative prompt's is black; the UNet is loaded again for images, on each device."""
    shared = sdort.load(made.out, provider="cpu", devices="0,1")
    options: dict[str, Any] = {"steps": 2, "seed": 1, "num_images": 2}
    plain = shared.generate(PROMPT, **options)
    options["ip_adapter_image"] = [str(made.image(0)), str(made.image(1))]
    for one, two in zip(
        ours.generate(PROMPT, **options).images, shared.generate(PROMPT, **options).images, strict=True
    ):
        np.testing.assert_array_equal(one.pixels, two.pixels)
    assert not np.array_equal(one.pixels, plain.images[1].pixels)


def test_the_image_encoder_is_loaded_by_itself_and_not_for_images_that_are_known(made: Made, ours: Any) -> None:
    images = [f"{made.image(number)}:0.7" for number in range(2)]
    options: Any = {"steps": 2, "seed": 7, "num_images": 2, "images_at_once": 1}
    once = {"text_encoder": 1, "unet": 1, "vae_decoder": 1}
    with sdort.load(made.out, provider="cpu", memory="low") as low:
        assert in_turn(ours, low, PROMPT, ip_adapter_image=images, **options) == {**once, "image_encoder": 1}
        assert in_turn(ours, low, PROMPT, ip_adapter_image=images, **options) == once
        assert in_turn(sdort.load(made.out, provider="cpu"), low, PROMPT, **options) == once


def test_images_steer_without_torch(made: Made, ours: Any, tmp_path: Path) -> None:
    images = [f"{made.image(number)}:0.7" for number in range(2)]
    options: Any = {"steps": 2, "seed": 7, "ip_adapter_image": images, "scheduler": "heun"}
    [drawn] = without.draw(made.out, tmp_path, PROMPT, options)
    np.testing.assert_array_equal(drawn, ours.generate(PROMPT, **options).images[0].pixels)


def test_pixels_are_those_of_transformers(made: Made) -> None:
    from transformers import CLIPImageProcessorPil

    processor = CLIPImageProcessorPil(size=20, crop_size=20)
    for size in ((90, 61), (20, 33), (7, 8)):
        picture = Image.fromarray(np.random.default_rng(1).integers(0, 256, (*size, 3), np.uint8))
        expected = processor(picture, return_tensors="np").pixel_values
        assert np.array_equal(clip_pixels(picture, usual_processing(20)), expected)


def test_what_cannot_be_is_refused_in_a_sentence(made: Made, ours: Any, tmp_path: Path) -> None:
    text, thin = tmp_path / "text.png", tmp_path / "thin.png"
    text.write_text("no image")
    Image.new("RGB", (9000, 30)).save(thin)
    one, two = str(made.image(0)), str(made.image(1))
    refused: dict[tuple[str, ...], str] = {
        (one,): "gives 1 image, and the pipeline has 2 IP-Adapters",
        (one, str(text)): "is no image that can be read",
        (one, str(tmp_path / "missing.png")): "missing.png",
        (one, f"{two}:11"): "-10 to 10",
        (one, str(thin)): "too long and thin",
        (one, ""): "expected IMAGE or IMAGE:SCALE",
    }
    for images, message in refused.items():
        with pytest.raises(SdortError, match=message):
            ours.generate(PROMPT, steps=1, ip_adapter_image=images)


def test_a_pipeline_without_an_adapter_says_how_to_export_one(made: Made, tmp_path: Path) -> None:
    folder = SimpleNamespace(
        denoiser="unet",
        path=tmp_path,
        given=str(tmp_path),
        models={},
        file=lambda name: SimpleNamespace(signature=SimpleNamespace(inputs={"sample": 0})),
    )
    images = [parse_ip_adapter_choice(str(made.image(0))).read()]
    with pytest.raises(SdortError, match="takes no images by an IP-Adapter") as refused:
        check_ip_adapter_images(folder, images)  # type: ignore[arg-type]
    assert "--ip-adapter FILE" in str(refused.value.hint)


def test_a_scale_stands_behind_the_last_colon(tmp_path: Path) -> None:
    named = tmp_path / "a:0.5"
    named.touch()
    assert parse_ip_adapter_choice(str(named)) == IpAdapterChoice(named, 1.0)
    assert parse_ip_adapter_choice(f"{named}:0.25") == IpAdapterChoice(named, 0.25)
    assert parse_ip_adapter_choice("C:\\x.png:.5") == IpAdapterChoice(Path("C:\\x.png"), 0.5)


def test_images_stand_in_the_record_and_have_to_be_given_again(made: Made, ours: Any, tmp_path: Path) -> None:
    path = tmp_path / "drawn.png"
    images = [str(made.image(0)), f"{made.image(1)}:0.4"]
    made_image = ours.generate(PROMPT, steps=2, seed=3, ip_adapter_image=images, output=path).images[0]
    assert [(each.name, each.scale) for each in made_image.record.ip_adapter_image] == [
        ("image0.png", 1.0),
        ("image1.png", 0.4),
    ]
    with pytest.raises(SdortError, match=r"image0\.png:1, image1\.png:0\.4") as refused:
        ours.generate(from_image=path)
    assert "--ip-adapter-image" in str(refused.value.hint)
    again = ours.generate(from_image=path, ip_adapter_image=images).images[0]
    assert np.array_equal(again.pixels, made_image.pixels)


@pytest.mark.parametrize("provider", ["cuda", "rocm"])
def test_all_attentions_fuse(made: Made, tmp_path: Path, provider: str) -> None:
    parts = ["unet", "image_encoder"]
    report = optimize(made.out, tmp_path / "fast", provider=provider, fp16=True, components=parts)
    operators = {name: component.operators for name, component in report.components.items()}
    # Each block attends to itself, to the text and to two images; the encoder has its layers, and the resampler's.
    assert operators["unet"]["com.microsoft.MultiHeadAttention"] == 4 * len(_transformers(made))
    assert operators["image_encoder"]["com.microsoft.MultiHeadAttention"] == ENCODER["num_hidden_layers"] + DEPTH
    # Without images nothing of the adapters is left.
    unet = onnx.load(tmp_path / "fast" / "unet" / "model.onnx", load_external_data=False)
    remove_control_inputs(unet, "unet")
    assert [info.name for info in unet.graph.input] == ["sample", "timestep", "encoder_hidden_states"]
    kinds = Counter(node.op_type for node in unet.graph.node)
    assert kinds["MultiHeadAttention"] == 2 * len(_transformers(made))
    assert not any("_ip." in name for node in unet.graph.node for name in node.input)
    made_here = {name for node in unet.graph.node for name in node.output}
    known = made_here | {each.name for each in (*unet.graph.input, *unet.graph.initializer)} | {""}
    assert {name for node in unet.graph.node for name in node.input} <= known


def _transformers(made: Made) -> list[str]:
    return [name for name in made.pipeline.unet.attn_processors if name.endswith("attn1.processor")]


def test_an_optimized_pipeline_takes_images_alike(made: Made, ours: Any, tmp_path: Path) -> None:
    optimize(made.out, tmp_path / "fast", provider="cpu")
    fast = sdort.load(tmp_path / "fast", provider="cpu")
    for scales in (None, (0.5, 1.2), None):
        assert _decibels(_generate(made, fast, scales), _generate(made, ours, scales)) > LIKE
        inputs = fast._models.sessions["unet"].inputs
        assert ("image_tokens.1" in inputs) == (scales is not None)
    checked = sdort.verify(tmp_path / "fast", provider="cpu", inputs="random", images=False, torch=False)
    assert checked.passed
