"""Stable Diffusion 3 from a diffusers folder to an image, held against diffusers' own pipelines."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from support import allocations, task_parity, tiny_sd3
from support.alive_sessions import watching_parts
from support.pipelines import edit_index, locked, trace_folder
from support.relisted import relist

import sdort
from sdort.engines.rounding import emulate
from sdort.errors import BadModelError, MissedFusionError, UsageError
from sdort.generation.memory_need import case_bytes, unet_bytes
from sdort.onnx_io.standard_operators import expand
from sdort.pipelines.folder import open_folder
from sdort.providers import CPU
from sdort.runtime import activations
from sdort.verification.metrics import psnr
from sdort.workload.cases import Case
from sdort.workload.samples import Sample

Array = np.ndarray[Any, Any]

ALIKE, ALIKE_IN_FP16 = 60, 50
"""Decibels; as SDXL's in fp16."""
SINGLE, HALF = 5e-5, 4e-3
"""Largest root mean square error, relative to the standard deviation of torch's output."""
COMMON: dict[str, Any] = {"steps": 4, "guidance_scale": 4.0, "seed": 5}
LARGEST = tiny_sd3.TRANSFORMER["pos_embed_max_size"] * 4
"""Pixels of a side of the largest image: a token has 2x2 latents, and each of these 2x2 pixels."""


@dataclass
class Made:
    """A checkpoint, its export, and diffusers' pipeline."""

    pipeline: Any
    checkpoint: Path
    out: Path
    traces: Path

    def opened(self) -> Any:
        return sdort.load(self.out, provider="cpu")


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[[bool], Made]:
    made: dict[bool, Made] = {}

    def build(t5: bool) -> Made:
        if t5 not in made:
            root, traces = tmp_path_factory.mktemp("sd3"), trace_folder(request.config)
            pipeline = tiny_sd3.build_diffusers(root / "checkpoint", t5=t5)
            with locked(traces):
                sdort.export(root / "checkpoint", root / "out", cache_dir=traces)
            made[t5] = Made(pipeline, root / "checkpoint", root / "out", traces)
        return made[t5]

    return build


@pytest.fixture(scope="module")
def sd3(make: Callable[[bool], Made]) -> Made:
    return make(True)


def theirs(pipeline: Any, prompt: str, size: tuple[int, int], images: int = 1, **options: Any) -> list[Array]:
    """The images of diffusers, uint8 [height, width, 3]."""
    made = pipeline(
        prompt, num_inference_steps=COMMON["steps"], guidance_scale=COMMON["guidance_scale"],
        num_images_per_prompt=images, output_type="np", **options,
        generator=[torch.Generator().manual_seed(COMMON["seed"] + number) for number in range(images)],
        **({} if "image" in options else {"height": size[0], "width": size[1]}),
    ).images  # fmt: skip
    return [(image * 255).round().astype(np.uint8) for image in made]


CASES: list[tuple[str, str, tuple[int, int], int]] = [
    ("a red fox", "", (32, 32), 1),
    ("a red fox " * 40, "blue", (32, 48), 1),
    ("", "", (48, 32), 1),
    ("a red fox", "blue", (32, 32), 2),
]
"""Prompt, negative prompt, size, images. The second prompt is longer than all encoders read."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("t5", [True, False], ids=["t5", "without t5"])
def test_images_are_those_of_diffusers(make: Callable[[bool], Made], t5: bool) -> None:
    made = make(t5)
    opened = made.opened()
    for prompt, negative, size, images in CASES:
        drawn = opened.generate(
            prompt, negative_prompt=negative, height=size[0], width=size[1], num_images=images, **COMMON
        ).images
        wanted = theirs(made.pipeline, prompt, size, images, negative_prompt=negative)
        assert len(drawn) == len(wanted) == images
        for ours, expected in zip(drawn, wanted, strict=True):
            assert ours.pixels.shape == (*size, 3)
            assert ours.pixels.std() > 20
            assert psnr(ours.pixels, expected) >= ALIKE


def test_each_encoder_says_something(make: Callable[[bool], Made]) -> None:
    """Otherwise the images above would be alike whatever sdort made of it."""
    pipeline = make(True).pipeline
    alone = theirs(pipeline, "a red fox", (32, 32))[0]
    others: list[dict[str, Any]] = [{"prompt_2": "blue"}, {"prompt_3": "blue"}]
    for other in others:
        assert psnr(alone, theirs(pipeline, "a red fox", (32, 32), **other)[0]) < ALIKE - 10
    assert psnr(alone, theirs(make(False).pipeline, "a red fox", (32, 32))[0]) < ALIKE - 10


def test_an_image_from_an_image_is_that_of_diffusers(sd3: Made) -> None:
    from diffusers import StableDiffusion3Img2ImgPipeline

    shown = task_parity.picture(32)
    drawn = sd3.opened().generate("a red fox", init_image=shown, height=32, width=32, strength=0.6, **COMMON).images[0]
    pipeline = StableDiffusion3Img2ImgPipeline(**sd3.pipeline.components)
    pipeline.set_progress_bar_config(disable=True)
    image = shown.resize((32, 32), Image.Resampling.LANCZOS)
    [expected] = theirs(pipeline, "a red fox", (32, 32), image=image, strength=0.6)
    assert psnr(drawn.pixels, expected) >= ALIKE
    assert psnr(drawn.pixels, np.asarray(image)) < 40
    with watching_parts() as parts, sdort.load(sd3.out, provider="cpu", memory="low") as low:
        again = low.generate("a red fox", init_image=shown, height=32, width=32, strength=0.6, **COMMON).images[0]
    assert parts.together[-1] == ["step"]
    np.testing.assert_array_equal(again.pixels, drawn.pixels)


def feeds(batch: int, height: int, width: int, tokens: int) -> dict[str, Any]:
    config = tiny_sd3.TRANSFORMER
    generator = torch.Generator().manual_seed(1)
    return {
        "hidden_states": torch.randn(batch, 16, height, width, generator=generator),
        "encoder_hidden_states": torch.randn(batch, tokens, config["joint_attention_dim"], generator=generator),
        "pooled_projections": torch.randn(batch, config["pooled_projection_dim"], generator=generator),
        "timestep": torch.rand(batch, generator=generator) * 1000,
    }


SIZES = [(2, 12, 16, 11), (1, LARGEST // 2, 2, 333), (3, 2, 30, 1)]
"""Batch, height and width in latents, and tokens."""


def errors(made: Made, path: Path, sizes: list[tuple[int, int, int, int]]) -> list[float]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    found = []
    for size in sizes:
        given = feeds(*size)
        with torch.no_grad():
            wanted = made.pipeline.transformer(**given, return_dict=False)[0].numpy()
        result = session.run(None, {name: value.numpy() for name, value in given.items()})[0]
        found.append(float(np.sqrt(np.square(result - wanted).mean()) / wanted.std()))
    return found


def test_the_transformer_computes_what_torch_does_at_every_size(sd3: Made) -> None:
    assert max(errors(sd3, sd3.out / "transformer" / "model.onnx", SIZES)) < SINGLE


@pytest.mark.parametrize(
    ("provider", "own"), [("cpu", None), ("cuda", True), ("rocm", False), ("rocm", True), ("migraphx", None)]
)
def test_what_its_config_promises_is_fused_and_computed(
    sd3: Made, provider: str, own: bool | None, tmp_path: Path
) -> None:
    for fp16 in (False, True):
        out = tmp_path / f"{fp16}"
        options: dict[str, Any] = {"provider": provider, "fp16": fp16, "sdort_ops": own}
        report = sdort.optimize(sd3.out, out, components=["transformer"], **options)
        assert not report.components["transformer"].remaining
        path = out / "transformer" / "model.onnx"
        proto = emulate(path, "transformer") if fp16 else onnx.load(path)
        if not fp16:
            expand(proto)
        onnx.save(proto, path.with_name("run.onnx"))
        assert max(errors(sd3, path.with_name("run.onnx"), SIZES[:1])) < (HALF if fp16 else SINGLE)


def test_a_block_that_does_not_fuse_is_missed(sd3: Made, tmp_path: Path) -> None:
    """Counts are those of the config."""
    folder = tmp_path / "odd"
    shutil.copytree(sd3.out, folder)
    path = folder / "transformer" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_layers": 4}))
    relist(folder)
    with pytest.raises(MissedFusionError, match="rms_norm: expected 18 RMSNormalization, found 14"):
        sdort.optimize(folder, tmp_path / "out", provider="cpu", components=["transformer"])


def test_images_in_fp16(sd3: Made, tmp_path: Path) -> None:
    sdort.optimize(sd3.out, tmp_path / "fast", provider="cpu", fp16=True)
    drawn = sdort.load(tmp_path / "fast", provider="cpu").generate("a red fox", height=32, width=48, **COMMON).images[0]
    [expected] = theirs(sd3.pipeline, "a red fox", (32, 48))
    assert psnr(drawn.pixels, expected) >= ALIKE_IN_FP16


def test_a_static_export_draws_at_its_size(sd3: Made, tmp_path: Path) -> None:
    with locked(sd3.traces):
        sdort.export(sd3.checkpoint, tmp_path / "out", cache_dir=sd3.traces, static="1x32x48")
    opened = sdort.load(tmp_path / "out", provider="cpu")
    drawn = opened.generate("a red fox", **COMMON).images[0].pixels
    assert drawn.shape == (32, 48, 3)
    assert psnr(drawn, theirs(sd3.pipeline, "a red fox", (32, 48))[0]) >= ALIKE
    context = open_folder(tmp_path / "out").file("transformer").signature.inputs["encoder_hidden_states"]
    assert context.shape == (2, 77 + 256, tiny_sd3.T5["d_model"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"height": LARGEST + 4}, f"--height {LARGEST + 4}: the transformer has positions for {LARGEST} pixels"),
        ({"width": 34}, "--width 34 is not a multiple of 4"),
        ({"prompt_weighting": "comfyui"}, "takes no weights"),
    ],
)
def test_what_it_cannot_draw_is_refused(make: Callable[[bool], Made], options: dict[str, Any], said: str) -> None:
    for t5 in (True, False):
        with pytest.raises(UsageError, match=said):
            make(t5).opened().generate("a red fox", **{"height": 32, "width": 32, **COMMON, **options})


def test_an_encoder_that_is_named_has_to_be_there(sd3: Made, tmp_path: Path) -> None:
    """Zeros stand for one that the pipeline never had, and not for one that was lost."""
    shutil.copytree(sd3.out, tmp_path / "lost")
    shutil.rmtree(tmp_path / "lost" / "text_encoder_3")
    with pytest.raises(BadModelError, match="has no text_encoder_3"):
        sdort.load(tmp_path / "lost", provider="cpu")
    shutil.copytree(sd3.checkpoint, tmp_path / "checkpoint")
    shutil.rmtree(tmp_path / "checkpoint" / "text_encoder_3")
    with pytest.raises(BadModelError, match="text_encoder_3"):
        sdort.export(tmp_path / "checkpoint", tmp_path / "out", cache_dir=sd3.traces)
    edit_index(tmp_path / "checkpoint", text_encoder_3=["transformers", "UMT5EncoderModel"])
    with pytest.raises(BadModelError, match="UMT5EncoderModel"):
        sdort.export(tmp_path / "checkpoint", tmp_path / "out", cache_dir=sd3.traces)
    edit_index(tmp_path / "checkpoint", text_encoder_3=[None, None])  # its tokenizer may stay
    with locked(sd3.traces):
        sdort.export(tmp_path / "checkpoint", tmp_path / "out", cache_dir=sd3.traces)
    assert open_folder(tmp_path / "out").generates


@pytest.mark.parametrize(("key", "value"), [("pos_embed_max_size", None), ("patch_size", 4)])
def test_a_config_of_another_model_is_refused(sd3: Made, key: str, value: int | None, tmp_path: Path) -> None:
    shutil.copytree(sd3.checkpoint, tmp_path / "checkpoint")
    path = tmp_path / "checkpoint" / "transformer" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({name: each for name, each in {**config, key: value}.items() if each is not None}))
    with pytest.raises(BadModelError, match=key):
        sdort.export(tmp_path / "checkpoint", tmp_path / "out", cache_dir=sd3.traces)


@pytest.mark.filterwarnings("ignore")
def test_components_and_images_are_verified_and_timed_beside_torch(sd3: Made, tmp_path: Path) -> None:
    sdort.optimize(sd3.out, tmp_path / "fast", provider="cpu")
    found = sdort.verify(tmp_path / "fast", provider="cpu", steps=2, seeds=1, images=True)
    assert found.passed
    against_torch = {each.component for each in found.comparisons if each.against == "torch"}
    assert {"text_encoder_3", "transformer", "vae_decoder"} <= against_torch
    assert len(found.images) > 0
    timed = sdort.bench(
        tmp_path / "fast", baseline=sd3.checkpoint, provider="cpu", steps=2, repeat=1, warmup=1,
        components=["text_encoder_3", "transformer", "pipeline"],
    )  # fmt: skip
    rows = [(row.engine, row.component, row.failed) for row in timed.rows]
    wanted = [
        (engine, name) for name in ("text_encoder_3", "transformer", "pipeline") for engine in ("torch", "onnxruntime")
    ]
    assert rows == [(engine, name, False) for engine, name in wanted]


def test_the_memory_of_a_step_is_what_onnx_runtime_takes(
    sd3: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = allocations.library()
    if counter is None:
        pytest.skip("no compiler")
    sdort.optimize(sd3.out, tmp_path / "fast", provider="cpu", components=["transformer"])
    file = open_folder(tmp_path / "fast", ("transformer",)).file("transformer")
    monkeypatch.setattr(activations, "split_file", lambda _: None)  # the whole graph runs here
    samples = [Sample(1, 64, 64, 333), Sample(2, 40, 64, 77), Sample(1, 16, 16, 333)]
    shapes = [activations._input_shapes(file, sample) for sample in samples]
    for sample, taken in zip(samples, allocations.most_taken(counter, file.path, shapes), strict=True):
        counted = activations._counted(file, sample, CPU, False)
        assert taken <= 1.001 * counted + 65_536
        assert counted <= 1.01 * taken


def test_a_case_has_the_tokens_of_all_encoders(make: Callable[[bool], Made]) -> None:
    for t5 in (True, False):
        folder = open_folder(make(t5).out)
        tokens = [folder.tokens(name) for name in ("text_encoder", "text_encoder_2", "text_encoder_3", "transformer")]
        assert tokens == [77, 77, 256, 77 + 256]
        more, fewer = (
            unet_bytes(folder.file("transformer"), {}, (2, 16, 16), CPU, 4, 1, number) for number in (333, 77)
        )
        assert more > fewer
        assert case_bytes(folder, Case("transformer", 2, 32, 32), CPU, steps=4) == more


@pytest.mark.filterwarnings("ignore")
def test_a_lora_is_diffusers(sd3: Made, tmp_path: Path) -> None:
    """Of both halves of a joint block, in diffusers' names and in those of kohya's scripts."""
    random, width = torch.Generator().manual_seed(3), sd3.pipeline.transformer.inner_dim
    layers = ("attn.to_q", "attn.add_k_proj", "attn.to_out.0", "ff.net.2")
    made = {}
    for name in (f"transformer_blocks.0.{layer}" for layer in layers):
        rows, columns = sd3.pipeline.transformer.get_submodule(name).weight.shape
        made[name] = torch.randn(4, columns, generator=random) * 0.2, torch.randn(rows, 4, generator=random) * 0.2
    assert width in made["transformer_blocks.0.attn.to_q"][0].shape
    files = {form: tmp_path / f"{form}.safetensors" for form in ("diffusers", "kohya")}
    pairs = {name: zip("AB", pair, strict=True) for name, pair in made.items()}
    save_file(
        {f"transformer.{name}.lora_{end}.weight": each for name, pair in pairs.items() for end, each in pair},
        files["diffusers"],
    )
    pairs = {name: zip(("down", "up"), pair, strict=True) for name, pair in made.items()}
    save_file(
        {
            f"lora_transformer_{name.replace('.', '_')}.lora_{end}.weight": each
            for name, pair in pairs.items()
            for end, each in pair
        },
        files["kohya"],
    )
    plain = theirs(sd3.pipeline, "a red fox", (32, 48))[0]
    sd3.pipeline.load_lora_weights(files["diffusers"])
    wanted = theirs(sd3.pipeline, "a red fox", (32, 48))[0]
    sd3.pipeline.unload_lora_weights()
    assert psnr(plain, wanted) < 40
    with sdort.load(sd3.out, provider="cpu", adapters=True) as opened:
        for file in files.values():
            drawn = opened.generate("a red fox", height=32, width=48, lora=[str(file)], **COMMON).images[0].pixels
            assert psnr(drawn, wanted) >= ALIKE
    with watching_parts() as parts, sdort.load(sd3.out, provider="cpu", memory="low") as low:
        again = low.generate("a red fox", height=32, width=48, lora=[str(files["kohya"])], **COMMON).images[0].pixels
    assert [each for each in parts.together if {"time", "step"} <= set(each)] == []
    np.testing.assert_array_equal(again, drawn)
