"""Flux.1 from a diffusers folder to an image, on tiny pipelines of its architecture, held against diffusers' own."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from PIL import Image
from support.alive_sessions import watching_parts
from support.pipelines import Exported, export_family, trace_folder

import sdort
from sdort.errors import UsageError
from sdort.exporter.command import _at_static_size
from sdort.exporter.export_options import StaticSize
from sdort.exporter.source import read_source, select_components
from sdort.exporter.trace_cache import TraceCache
from sdort.optimizer.expected import architecture
from sdort.runtime.step.step_split import split_step
from sdort.verification.metrics import psnr

Array = np.ndarray[Any, Any]

ALIKE = 70
"""The same arithmetic in another order: 78 dB and more were measured."""
ALIKE_IN_FP16 = 50
STEPS, SEED = 3, 3
TARGETS = ("cpu", "cuda", "rocm", "migraphx")


@pytest.fixture(scope="module", params=["dev", "schnell"])
def exported(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Exported:
    folder = tmp_path_factory.mktemp(request.param)
    return export_family(f"flux-{request.param}", folder, trace_folder(request.config))


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Exported:
    return export_family("flux-dev", tmp_path_factory.mktemp("dev"), trace_folder(request.config))


@cache
def theirs(checkpoint: Path, class_name: str = "FluxPipeline") -> Any:
    """diffusers' own pipeline."""
    import diffusers

    from sdort.console import quiet_libraries

    with quiet_libraries():
        pipeline = getattr(diffusers, class_name).from_pretrained(checkpoint)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def drawn_by(pipeline: Any, prompt: str, size: tuple[int, int], **options: Any) -> list[Array]:
    """What diffusers draws, as uint8 [height, width, 3]."""
    height, width = size
    made = pipeline(prompt, height=height, width=width, output_type="np", **options).images
    return [(image * 255).round().astype(np.uint8) for image in made]


def test_the_graph_computes_what_the_module_does(exported: Exported) -> None:
    """On latents as images, whose tokens and ids are those of diffusers' pipeline, of a size that was not traced."""
    transformer, pipeline = exported.load("transformer"), theirs(exported.checkpoint)
    batch, rows, columns = 2, 5, 7
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(batch, 16, 2 * rows, 2 * columns, generator=generator)
    inputs = {
        "timestep": torch.tensor(731.5),
        "encoder_hidden_states": torch.randn(batch, 13, 24, generator=generator),
        "pooled_projections": torch.randn(batch, 20, generator=generator),
    }
    if transformer.config.guidance_embeds:
        inputs["guidance"] = torch.tensor([3.5, 1.25])
    [found] = exported.run("transformer", hidden_states=latents, **inputs).values()
    with torch.no_grad():
        packed = transformer(
            hidden_states=pipeline._pack_latents(latents, batch, 16, 2 * rows, 2 * columns),
            img_ids=pipeline._prepare_latent_image_ids(batch, rows, columns, "cpu", torch.float32),
            txt_ids=torch.zeros(13, 3),
            return_dict=False,
            **(inputs | {"timestep": (inputs["timestep"] / 1000).expand(batch)}),
        )[0]
    wanted = pipeline._unpack_latents(packed, 4 * rows, 4 * columns, 2).numpy()
    assert wanted.std() > 0.1
    assert np.abs(found - wanted).max() <= 5e-5 * wanted.std()


@pytest.mark.parametrize(
    ("size", "images", "scale", "prompt"),
    [((64, 64), 1, 3.5, "a red cat"), ((96, 64), 2, 1.0, ""), ((64, 80), 1, 7.0, "a red cat")],
)
def test_images_are_those_of_diffusers(
    size: tuple[int, int], images: int, scale: float, prompt: str, exported: Exported
) -> None:
    """From the same noise, at square sizes and others, of one image and several, and of an empty prompt too."""
    height, width = size
    pipeline = theirs(exported.checkpoint)
    noise = torch.cat(
        [
            torch.randn(1, 16, height // 2, width // 2, generator=torch.Generator().manual_seed(SEED + number))
            for number in range(images)
        ]
    )
    wanted = drawn_by(
        pipeline, prompt, size, num_inference_steps=STEPS, guidance_scale=scale, num_images_per_prompt=images,
        latents=pipeline._pack_latents(noise, images, 16, height // 2, width // 2),
        max_sequence_length=512 if "dev" in exported.family else 256,
    )  # fmt: skip
    made = sdort.load(exported.out, provider="cpu").generate(
        prompt, height=height, width=width, steps=STEPS, guidance_scale=scale, seed=SEED, num_images=images
    )
    for found, expected in zip(made.images, wanted, strict=True):
        assert found.pixels.std() > 20
        assert psnr(found.pixels, expected) >= ALIKE


def test_rows_that_prompts_decide_too_are_made_before_the_step_opens(exported: Exported) -> None:
    """Flux' modulations are of the timestep, the guidance scale and a text: those of all prompts are made first."""
    options: dict[str, Any] = {"height": 32, "width": 48, "steps": 2, "seed": 5, "images_at_once": 1}
    prompts = ["a red cat", "a cat"]
    wanted = sdort.load(exported.out, provider="cpu").generate(prompts, **options)
    with watching_parts() as parts, sdort.load(exported.out, provider="cpu", memory="low") as low:
        made = low.generate(prompts, **options)
    assert parts.together == [["prompt"], ["prompt", "time"], ["step"], ["step", "prompt"]]
    for first, second in zip(wanted.images, made.images, strict=True):
        np.testing.assert_array_equal(first.pixels, second.pixels)


def test_an_image_is_changed_as_by_diffusers(dev: Exported, tmp_path: Path) -> None:
    colours = np.random.default_rng(0).integers(0, 255, (6, 4, 3), dtype=np.uint8)
    picture = Image.fromarray(colours).resize((64, 96))
    picture.save(tmp_path / "picture.png")
    [wanted] = drawn_by(
        theirs(dev.checkpoint, "FluxImg2ImgPipeline"), "a red cat", (96, 64), image=picture, strength=0.7,
        num_inference_steps=4, guidance_scale=3.5, generator=torch.Generator().manual_seed(SEED),
    )  # fmt: skip
    [found] = sdort.load(dev.out, provider="cpu").generate(
        "a red cat", init_image=tmp_path / "picture.png", strength=0.7, steps=4, guidance_scale=3.5, seed=SEED
    ).images  # fmt: skip
    assert psnr(found.pixels, wanted) >= ALIKE


def test_a_request_that_says_nothing_has_the_published_steps_and_scale(
    exported: Exported, capsys: pytest.CaptureFixture[str]
) -> None:
    [image] = sdort.load(exported.out, provider="cpu").generate("a red cat", height=32, width=32, seed=SEED).images
    is_dev = "dev" in exported.family
    assert (image.record.steps, image.record.guidance_scale) == ((28, 3.5) if is_dev else (4, 1.0))
    sdort.load(exported.out, provider="cpu").generate(
        "a red cat", negative_prompt="blue", height=32, width=32, steps=1, guidance_scale=5.0
    )  # fmt: skip
    told = " ".join(capsys.readouterr().err.split())
    assert "the negative prompt has no effect: this model takes none" in told
    assert ("--guidance-scale 5 has no effect" in told) == (not is_dev)
    with pytest.raises(UsageError, match="--height 34 is not a multiple of 4"):
        sdort.load(exported.out, provider="cpu").generate("a red cat", height=34, width=32)


@pytest.mark.parametrize("target", TARGETS)
def test_all_that_its_config_promises_fuses(target: str, dev: Exported, tmp_path: Path) -> None:
    report = sdort.optimize(dev.out, tmp_path / target, provider=target)
    config = json.loads((dev.out / "transformer" / "config.json").read_text())
    counts = architecture(config, "transformer")
    assert counts == {
        "attention_self": 2, "layer_norm": 6, "gelu": 3, "rms_norm": 6, "rotary": 4, "modulation": 6, "gated_sum": 5,
    }  # fmt: skip
    found = report.components["transformer"]
    raised = found.operators_raised
    assert (raised["Attention"], raised["RMSNormalization"], raised["RotaryEmbedding"]) == (2, 6, 4)
    assert found.nodes_after < found.nodes_before


@pytest.mark.parametrize("target", ["cuda", "rocm"])
def test_its_modulations_and_gated_sums_are_operators_of_sdort(target: str, dev: Exported, tmp_path: Path) -> None:
    report = sdort.optimize(dev.out, tmp_path / target, provider=target, fp16=True, sdort_ops=True)
    found = report.components["transformer"].operators
    assert sum(number for name, number in found.items() if "ModulatedLayerNorm" in name) == 6
    assert sum(number for name, number in found.items() if "Gated" in name) == 5


def test_what_leaves_the_step(dev: Exported, tmp_path: Path) -> None:
    """Modulations are computed once a schedule, and so are their weights; positions once a size of the latents."""
    sdort.optimize(dev.out, tmp_path / "fast", provider="cpu")
    proto = onnx.load(tmp_path / "fast" / "transformer" / "model.onnx", load_external_data=False)
    split = split_step(proto)
    assert split is not None
    assert split.prompt is not None
    assert split.time is not None
    operators = {node.op_type for node in split.step.graph.node}
    assert not operators & {"Cos", "Sin", "Range", "Gemm", "Sigmoid"}
    parts = [weights(part) for part in (split.prompt, split.time, split.step)]
    assert sum(parts) >= weights(proto)
    # Those of a block with two streams, of one with one stream, and of the output.
    modulations = 32 * 32 * (12 + 3 + 2) + 32 * (12 + 3 + 2)
    assert modulations < parts[1] < 1.6 * modulations
    assert parts[2] < 0.53 * weights(proto)


def weights(model: onnx.ModelProto) -> int:
    return sum(math.prod(tensor.dims) for tensor in model.graph.initializer)


def test_images_of_fp16_are_alike(dev: Exported, tmp_path: Path) -> None:
    sdort.optimize(dev.out, tmp_path / "half", provider="cpu", fp16=True)
    options: dict[str, Any] = {"height": 64, "width": 96, "steps": STEPS, "guidance_scale": 3.5, "seed": SEED}
    [half], [full] = (
        sdort.load(folder, provider="cpu").generate("a red cat", **options).images
        for folder in (tmp_path / "half", dev.out)
    )
    assert ALIKE_IN_FP16 <= psnr(half.pixels, full.pixels) < ALIKE


def test_verify_and_bench_hold_it_against_torch(exported: Exported, tmp_path: Path) -> None:
    """Images of diffusers' pipeline too; of dev a component, whose angles of the guidance scale round to 1e-3."""
    sdort.optimize(exported.out, tmp_path / "fast", provider="cpu")
    timed = sdort.bench(
        tmp_path / "fast", baseline=exported.checkpoint, provider="cpu", sizes=[(64, 64)], steps=1, repeat=1, warmup=1,
        components=["transformer", "pipeline"],
    )  # fmt: skip
    assert [(row.engine, row.component, row.failed) for row in timed.rows] == [
        (engine, name, False) for name in ("transformer", "pipeline") for engine in ("torch", "onnxruntime")
    ]
    if "dev" in exported.family:
        return
    found = sdort.verify(
        tmp_path / "fast", against=exported.checkpoint, provider="cpu", size="64x64", steps=2, seeds=1,
        images=True, components=["transformer"],
    )  # fmt: skip
    assert found.passed
    assert {each.against for each in found.comparisons} == {"torch"}
    assert [(image.psnr or 0) >= ALIKE for image in found.images] == [True] * 2


def test_a_static_size_has_the_tokens_of_its_text_encoder(exported: Exported, tmp_path: Path) -> None:
    source = read_source(exported.checkpoint, "flux")
    cache = TraceCache(tmp_path)
    parts = _at_static_size(source, select_components(source, (), cache), StaticSize(1, 64, 96), cache)
    dims = {part.name: {tensor.name: tensor.dims for tensor in part.inputs} for part in parts}
    tokens = 512 if "dev" in exported.family else 256
    assert dims["text_encoder_2"] == {"input_ids": (1, tokens)}
    assert dims["transformer"]["hidden_states"] == (1, 16, 32, 48)
    assert dims["transformer"]["encoder_hidden_states"] == (1, tokens, 24)
