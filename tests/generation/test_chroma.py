"""Chroma from a diffusers folder to an image, on a tiny pipeline of its architecture, held against diffusers' own.

diffusers' pipeline adds its mask of ones and zeros to the scores of attention, where it means which tokens are left out
(https://github.com/huggingface/diffusers/issues/13619). Here its mask is of booleans, as in its authors' code.
"""

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
from support.tiny_chroma import TRANSFORMER

import sdort
from sdort.families.data.chroma import corrected
from sdort.optimizer.expected import architecture
from sdort.runtime.step.step_split import split_step
from sdort.verification.metrics import psnr

Array = np.ndarray[Any, Any]

ALIKE = 70
"""The same arithmetic in another order: 84 dB and more were measured."""
STEPS, SEED = 3, 3
TARGETS = ("cpu", "cuda", "rocm", "migraphx")
LONG = "a red cat and a bed of a red cat " * 60


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Exported:
    return export_family("chroma", tmp_path_factory.mktemp("chroma"), trace_folder(request.config))


@cache
def theirs(checkpoint: Path, class_name: str = "ChromaPipeline") -> Any:
    """diffusers' own pipeline, with a mask that leaves out."""
    import diffusers

    from sdort.console import quiet_libraries

    with quiet_libraries():
        pipeline = getattr(diffusers, class_name).from_pretrained(checkpoint)
    pipeline.set_progress_bar_config(disable=True)
    corrected(pipeline)
    return pipeline


def drawn_by(pipeline: Any, prompt: Any, size: tuple[int, int], **options: Any) -> list[Array]:
    """What diffusers draws, as uint8 [height, width, 3]."""
    height, width = size
    made = pipeline(prompt, height=height, width=width, output_type="np", **options).images
    return [(image * 255).round().astype(np.uint8) for image in made]


@pytest.mark.parametrize(
    ("size", "scale", "prompts"),
    [
        ((64, 64), 1.0, ["a red cat"]),
        ((96, 64), 4.0, ["a red cat"]),
        ((64, 64), 4.0, ["", "a red cat and a bed"]),
        ((64, 96), 3.0, [LONG]),
    ],
)
def test_images_are_those_of_diffusers(
    size: tuple[int, int], scale: float, prompts: list[str], exported: Exported
) -> None:
    """From the same noise, with guidance and without, of prompts without a token, of several lengths and of all 512."""
    height, width = size
    pipeline = theirs(exported.checkpoint)
    noise = torch.randn(1, 16, height // 2, width // 2, generator=torch.Generator().manual_seed(SEED))
    noise = noise.expand(len(prompts), -1, -1, -1)
    wanted = drawn_by(
        pipeline, prompts, size, num_inference_steps=STEPS, guidance_scale=scale,
        negative_prompt=["a bad bed"] * len(prompts),
        latents=pipeline._pack_latents(noise, len(prompts), 16, height // 2, width // 2),
    )  # fmt: skip
    with sdort.load(exported.out, provider="cpu") as ours:
        made = ours.generate(
            prompts, negative_prompt="a bad bed", height=height, width=width, steps=STEPS, guidance_scale=scale,
            seed=SEED,
        )  # fmt: skip
    for found, expected in zip(made.images, wanted, strict=True):
        assert found.pixels.std() > 20
        assert psnr(found.pixels, expected) >= ALIKE


def test_an_image_is_changed_as_by_diffusers(exported: Exported, tmp_path: Path) -> None:
    colours = np.random.default_rng(0).integers(0, 255, (6, 4, 3), dtype=np.uint8)
    picture = Image.fromarray(colours).resize((64, 96))
    picture.save(tmp_path / "picture.png")
    options: dict[str, Any] = {"negative_prompt": "a bed", "strength": 0.7, "guidance_scale": 4.0}
    [wanted] = drawn_by(
        theirs(exported.checkpoint, "ChromaImg2ImgPipeline"), "a red cat", (96, 64), image=picture,
        num_inference_steps=4, generator=torch.Generator().manual_seed(SEED), **options,
    )  # fmt: skip
    with sdort.load(exported.out, provider="cpu") as ours:
        [found] = ours.generate("a red cat", init_image=tmp_path / "picture.png", steps=4, seed=SEED, **options).images
    assert psnr(found.pixels, wanted) >= ALIKE


def test_padding_is_left_out_of_attention(exported: Exported) -> None:
    """The text encoder's own, and the transformer's of all but one token: as with all 512 and diffusers' masks."""
    pipeline = theirs(exported.checkpoint)
    with torch.no_grad():
        states, _, mask, *_ = pipeline.encode_prompt("a red cat", do_classifier_free_guidance=False)
        unmasked = pipeline.text_encoder(pipeline.tokenizer(["a red cat"], padding="max_length", max_length=20,
                                                            return_tensors="pt").input_ids)[0]  # fmt: skip
    ids = pipeline.tokenizer("a red cat").input_ids
    [found] = exported.run("text_encoder", input_ids=torch.tensor([[*ids, 0]])).values()
    wanted = states[:, mask[0].bool()].numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert np.abs(unmasked[:, : len(ids) + 1].numpy() - wanted).max() > 1e-3


def test_a_request_that_says_nothing_has_the_published_steps_and_scale(exported: Exported) -> None:
    with sdort.load(exported.out, provider="cpu") as ours:
        [image] = ours.generate("a red cat", height=16, width=16, seed=SEED).images
    assert (image.record.steps, image.record.guidance_scale) == (35, 5.0)


@pytest.mark.parametrize("target", TARGETS)
def test_all_that_its_config_promises_fuses(target: str, exported: Exported, tmp_path: Path) -> None:
    """Operators of Flux.1, and two norms of the network that makes modulations and leaves the step."""
    report = sdort.optimize(exported.out, tmp_path / target, provider=target)
    config = json.loads((exported.out / "transformer" / "config.json").read_text())
    assert architecture(config, "transformer") == {
        "attention_self": 2, "layer_norm": 6, "gelu": 3, "rms_norm": 8, "rotary": 4, "modulation": 6, "gated_sum": 5,
    }  # fmt: skip
    found = report.components["transformer"]
    raised = found.operators_raised
    assert (raised["Attention"], raised["RMSNormalization"], raised["RotaryEmbedding"]) == (2, 8, 4)
    assert found.nodes_after < found.nodes_before
    check_split(tmp_path / target)


@pytest.mark.parametrize("target", ["cuda", "rocm"])
def test_its_modulations_and_gated_sums_are_operators_of_sdort(target: str, exported: Exported, tmp_path: Path) -> None:
    report = sdort.optimize(exported.out, tmp_path / target, provider=target, fp16=True, sdort_ops=True)
    found = report.components["transformer"].operators
    assert sum(number for name, number in found.items() if "ModulatedLayerNorm" in name) == 6
    assert sum(number for name, number in found.items() if "Gated" in name) == 5
    check_split(tmp_path / target)


def check_split(folder: Path) -> None:
    """Modulations are made before the steps, by all of the network and by no other weights."""
    split = split_step(onnx.load(folder / "transformer" / "model.onnx", load_external_data=False))
    assert split is not None
    assert split.time is not None
    modulations, width = 12 + 3 + 2, 32
    [made] = split.time.graph.output
    assert [dim.dim_value for dim in made.type.tensor_type.shape.dim[1:]] == [modulations, width]
    hidden = TRANSFORMER["approximator_hidden_dim"]
    taken, layers = TRANSFORMER["approximator_num_channels"], TRANSFORMER["approximator_layers"]
    network = (taken + 1) * hidden + layers * (2 * (hidden + 1) * hidden + hidden) + (hidden + 1) * width
    constants = modulations * taken + taken**2
    assert network <= weights(split.time) <= network + constants
    assert not {tensor.name for tensor in split.step.graph.initializer if "distilled_guidance" in tensor.name}
    assert not {"Cos", "Sin", "Sigmoid"} & {node.op_type for node in split.step.graph.node}


def weights(model: onnx.ModelProto) -> int:
    return sum(math.prod(tensor.dims) for tensor in model.graph.initializer)


def test_modulations_are_made_before_the_step_opens(exported: Exported) -> None:
    options: dict[str, Any] = {"height": 32, "width": 48, "steps": 2, "guidance_scale": 4.0, "seed": 5}
    prompts = ["a red cat", "a cat"]
    with sdort.load(exported.out, provider="cpu") as whole:
        wanted = whole.generate(prompts, **options)
    with watching_parts() as parts, sdort.load(exported.out, provider="cpu", memory="low") as low:
        made = low.generate(prompts, **options)
    assert ["prompt", "time"] in parts.together
    assert not any({"time", "step"} <= set(each) for each in parts.together)
    for first, second in zip(wanted.images, made.images, strict=True):
        np.testing.assert_array_equal(first.pixels, second.pixels)


def test_verify_and_bench_hold_it_against_torch(exported: Exported, tmp_path: Path) -> None:
    """Images of diffusers' pipeline too, whose mask is corrected."""
    sdort.optimize(exported.out, tmp_path / "fast", provider="cpu")
    timed = sdort.bench(
        tmp_path / "fast", baseline=exported.checkpoint, provider="cpu", sizes=[(64, 64)], steps=1, repeat=1, warmup=1,
        components=["transformer", "pipeline"],
    )  # fmt: skip
    assert [(row.engine, row.component, row.failed) for row in timed.rows] == [
        (engine, name, False) for name in ("transformer", "pipeline") for engine in ("torch", "onnxruntime")
    ]
    found = sdort.verify(
        tmp_path / "fast", against=exported.checkpoint, provider="cpu", size="64x64", steps=2, seeds=1,
        images=True, components=["transformer", "text_encoder"],
    )  # fmt: skip
    assert found.passed
    assert {each.against for each in found.comparisons} == {"torch"}
    assert [(image.psnr or 0) >= ALIKE for image in found.images] == [True] * 2
