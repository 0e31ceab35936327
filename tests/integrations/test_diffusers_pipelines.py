"""Diffusers' pipelines with components as ONNX graphs: the images of the same pipelines with torch's."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from support import task_parity, tiny_refiner
from support.adapter_files import make_lora
from support.pipelines import locked, trace_folder
from support.task_parity import Built, mask, picture, variant
from support.tiny_control import build_controlnet, build_t2i_adapter, export_part
from support.tiny_ip_adapter import build_image_encoder, build_ip_adapter, published_state

from sdort import console
from sdort.demo import DEMO, DEMO_FOLDER
from sdort.errors import BadModelError, UsageError
from sdort.exporter.command import export, open_export
from sdort.first_use import making
from sdort.generation.schedules.schedulers import load_scheduler
from sdort.integrations.diffusers import first_use, load_pipeline
from sdort.integrations.torch import load_controlnet, load_text_encoder, load_unet, load_vae
from sdort.optimizer.command import optimize
from sdort.verification.metrics import psnr

pytestmark = pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")

Array = np.ndarray[Any, Any]

ALIKE = 80
"""Decibels between images in fp32; a wrong scale, step or half of a batch leaves 50 and less."""
REFINER = "sdxl refiner"
KINDS = {"text-to-image": "", "image-to-image": "Img2Img", "inpainting": "Inpaint"}
_built: dict[str, Built] = {}


@pytest.fixture(scope="module")
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Built]:
    traces = trace_folder(request.config)

    def refiner(folder: Path) -> Built:
        pipeline = tiny_refiner.build_diffusers(folder / "diffusers", build("sdxl").pipeline)
        with locked(traces):
            export(folder / "diffusers", folder / "onnx", cache_dir=traces)
        return Built(pipeline, folder / "onnx")

    def build(name: str) -> Built:
        if name not in _built:
            folder = tmp_path_factory.mktemp("family")
            control = {"control": True} if name == "sd1" else {}
            made = refiner(folder) if name == REFINER else task_parity.build(name, folder, traces, **control)
            _built[name] = made
        return _built[name]

    return build


@pytest.fixture(scope="module")
def demo(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The demo model, which is trained, optimized as a user does."""
    folder, traces = tmp_path_factory.mktemp("demo"), trace_folder(request.config)
    with locked(traces):
        export(DEMO, folder / "onnx", cache_dir=traces)
    optimize(folder / "onnx", folder / "fast", provider="cpu")
    pipeline = diffusers.StableDiffusionPipeline.from_pretrained(DEMO_FOLDER).to(torch.float32)
    return Built(pipeline, folder / "fast")


@pytest.fixture(scope="module")
def controlnet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A ControlNet of diffusers', and its export."""
    folder = tmp_path_factory.mktemp("control")
    net = build_controlnet(folder / "net")
    return net, export_part(folder / "net", folder / "onnx", trace_folder(request.config))


def inputs(built: Built, task: str) -> dict[str, Any]:
    """The arguments of a pipeline beside the prompt, for three steps."""
    side = built.side
    shown = picture(side).resize((side, side), Image.Resampling.LANCZOS)
    found: dict[str, Any] = {"num_inference_steps": 3, "guidance_scale": 4.0, "negative_prompt": "people"}
    if task != "image-to-image":
        found |= {"height": side, "width": side}
    if task == "controlnet":
        found |= {"image": shown, "controlnet_conditioning_scale": 0.7}
    elif task.startswith("controlnet"):
        found |= {"image": shown, "control_image": shown.rotate(90), "strength": 0.7}
    elif task != "text-to-image":
        found |= {"image": shown, "strength": 0.7}
    if task.endswith("inpainting"):
        found["mask_image"] = mask(side).resize((side, side))
    return found


def image_of(pipeline: Any, built: Built, task: str, seed: int = 3, **options: Any) -> Array:
    pipeline.set_progress_bar_config(disable=True)
    arguments = {**inputs(built, task), **options}
    generator = torch.Generator().manual_seed(seed)
    made = pipeline("a lighthouse at dusk", generator=generator, output_type="np", **arguments).images[0]
    return np.asarray(made, np.float32) * 255


def theirs(built: Built, task: str) -> Any:
    """Diffusers' pipeline of torch's modules."""
    return variant(built, KINDS[task], load_scheduler(built.folder / "scheduler", None))


def assert_alike(made: Array, expected: Array, other: Array) -> None:
    assert made.std() > 20, "the image shows nothing, so that any two are alike"
    assert psnr(made, expected) >= ALIKE
    assert psnr(other, expected) < 50, "another seed gives the same image"


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("sd1", "text-to-image"),
        ("sd1", "image-to-image"),
        ("sd1", "inpainting"),
        ("sd1 inpainting", "inpainting"),
        ("sd1 tiny vae", "image-to-image"),
        ("sd2 v", "text-to-image"),
        ("sdxl", "text-to-image"),
        ("sdxl", "image-to-image"),
        ("sdxl", "inpainting"),
    ],
)
def test_images_are_those_of_torch(name: str, task: str, family: Any) -> None:
    built = family(name)
    pipeline = load_pipeline(built.folder, task, provider="cpu")
    assert type(pipeline) is type(theirs(built, task))
    assert (pipeline.scheduler.config.prediction_type == "v_prediction") == (name == "sd2 v")
    made, expected = image_of(pipeline, built, task), image_of(theirs(built, task), built, task)
    assert_alike(made, expected, image_of(pipeline, built, task, seed=4))


@pytest.mark.parametrize("task", KINDS)
def test_the_demo_s_images_are_those_of_torch(task: str, demo: Built) -> None:
    pipeline = load_pipeline(demo.folder, task, provider="cpu")
    made, expected = image_of(pipeline, demo, task), image_of(theirs(demo, task), demo, task)
    assert_alike(made, expected, image_of(pipeline, demo, task, seed=4))


def test_a_refiner_s_images_are_those_of_torch(family: Any) -> None:
    built = family(REFINER)
    pipeline = load_pipeline(built.folder, "image-to-image", provider="cpu")
    made, expected = (image_of(each, built, "image-to-image") for each in (pipeline, built.pipeline))
    assert_alike(made, expected, image_of(pipeline, built, "image-to-image", seed=4))
    with pytest.raises(BadModelError, match="is a refiner, which does no text-to-image"):
        load_pipeline(built.folder, provider="cpu")


@pytest.mark.parametrize(
    ("task", "nets"),
    [(task, nets) for task in ("controlnet", "controlnet-image-to-image") for nets in (1, 2)]
    + [("controlnet-inpainting", 1)],
)
def test_images_of_a_controlnet_are_those_of_torch(task: str, nets: int, family: Any, controlnet: Any) -> None:
    built, (net, folder) = family("sd1"), controlnet
    module = load_controlnet(folder, provider="cpu")
    assert isinstance(module, diffusers.ControlNetModel)
    given = [folder, module] if nets == 2 else folder
    pipeline = load_pipeline(built.folder, task, controlnet=given, provider="cpu")
    parts = {**theirs(built, "text-to-image").components, "controlnet": [net] * 2 if nets == 2 else net}
    expected = type(pipeline)(**parts, requires_safety_checker=False)
    options: dict[str, Any] = {}
    if nets == 2:
        images = inputs(built, task)
        names = ("image",) if task == "controlnet" else ("control_image",)
        options = {name: [images[name], images[name].rotate(180)] for name in names}
        options["controlnet_conditioning_scale"] = [0.5, 0.8]
    else:
        options["guess_mode"] = True
    made, same = (image_of(each, built, task, **options) for each in (pipeline, expected))
    assert_alike(made, same, image_of(pipeline, built, task, seed=4, **options))
    unsteered = image_of(load_pipeline(built.folder, provider="cpu"), built, "text-to-image")
    assert psnr(made, unsteered) < 50, "the control changes nothing"


@pytest.mark.filterwarnings("ignore:The decode_latents method is deprecated:FutureWarning")  # diffusers' own call
def test_the_images_of_a_t2i_adapter_are_those_of_torch(family: Any, tmp_path: Path) -> None:
    built = family("sd1")
    parts = {**theirs(built, "text-to-image").components, "adapter": build_t2i_adapter(tmp_path)}
    del parts["image_encoder"]
    unet = load_unet(built.folder, control_inputs=True, provider="cpu")
    ours, expected = (
        diffusers.StableDiffusionAdapterPipeline(**{**parts, "unet": each}, requires_safety_checker=False)
        for each in (unet, parts["unet"])
    )
    shown = inputs(built, "controlnet")["image"]
    made, same, unsteered = (
        image_of(each, built, "text-to-image", image=shown, adapter_conditioning_scale=scale)
        for each, scale in ((ours, 1.0), (expected, 1.0), (ours, 0.0))
    )
    assert_alike(made, same, unsteered)


def test_other_pipelines_of_the_same_components(family: Any) -> None:
    """``from_pipe``, ``AutoPipeline...``, and ``update_components`` of a modular pipeline."""
    built = family("sd1")
    pipeline = load_pipeline(built.folder, provider="cpu")
    image = diffusers.StableDiffusionImg2ImgPipeline.from_pipe(pipeline)
    inpaint = diffusers.AutoPipelineForInpainting.from_pipe(pipeline)
    assert image.unet is inpaint.unet is pipeline.unet
    for made, task in ((image, "image-to-image"), (inpaint, "inpainting")):
        assert_alike(
            image_of(made, built, task), image_of(theirs(built, task), built, task), image_of(made, built, task, seed=4)
        )
    assert isinstance(diffusers.AutoPipelineForText2Image.from_pipe(image), diffusers.StableDiffusionPipeline)


def test_a_modular_pipeline_takes_the_components(family: Any) -> None:
    built = family("sdxl")
    ours, expected = (diffusers.StableDiffusionXLAutoBlocks().init_pipeline() for _ in range(2))
    names = ("tokenizer", "tokenizer_2", "scheduler", "unet", "vae", "text_encoder", "text_encoder_2")
    ours.update_components(**{
        **{name: getattr(built.pipeline, name) for name in names},
        "unet": load_unet(built.folder, provider="cpu"),
        "vae": load_vae(built.folder, provider="cpu"),
        **{
            name: load_text_encoder(built.folder, name, provider="cpu")
            for name in ("text_encoder", "text_encoder_2")
        },
    })  # fmt: skip
    expected.update_components(**{name: getattr(built.pipeline, name) for name in names})

    def image(pipeline: Any, seed: int) -> Array:
        pipeline.set_progress_bar_config(disable=True)
        made = pipeline(
            prompt="a lighthouse at dusk", num_inference_steps=2, height=256, width=256, output="images",
            output_type="np", generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
        return np.asarray(made[0], np.float32) * 255

    assert_alike(image(ours, 1), image(expected, 1), image(ours, 2))


def test_schedulers_callbacks_and_embeddings_are_diffusers(family: Any) -> None:
    built = family("sd1")
    ours, expected = load_pipeline(built.folder, provider="cpu"), theirs(built, "text-to-image")
    seen: list[int] = []

    def step(pipeline: Any, number: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        seen.append(number)
        return {"latents": tensors["latents"] * 1.01}

    images = []
    for pipeline in (ours, expected):
        pipeline.scheduler = diffusers.HeunDiscreteScheduler.from_config(pipeline.scheduler.config)
        embeds = pipeline.encode_prompt("a red star", "cpu", 1, True, "dull")
        options = {"prompt_embeds": embeds[0] * 1.1, "negative_prompt_embeds": embeds[1], "negative_prompt": None}
        arguments = {**inputs(built, "text-to-image"), **options, "callback_on_step_end": step}
        pipeline.set_progress_bar_config(disable=True)
        generator = torch.Generator().manual_seed(3)
        images.append(pipeline(**arguments, generator=generator, output_type="np").images[0] * 255)
    assert psnr(*images) >= ALIKE
    assert len(seen) == 10, "five calls of a Heun of three steps, twice"


def test_clip_skip_takes_the_layer_that_it_says(family: Any) -> None:
    built = family("sd1")
    pipeline, encoder = load_pipeline(built.folder, provider="cpu"), built.pipeline.text_encoder
    ids = pipeline.tokenizer("a cat", padding="max_length", max_length=77, return_tensors="pt").input_ids
    with torch.no_grad():
        states = encoder(ids, output_hidden_states=True).hidden_states
        norm = getattr(encoder, "text_model", encoder).final_layer_norm
        expected = [norm(states[-2]), norm(states[-1])]
    for skip, layer in zip((1, 0), expected, strict=True):
        made = pipeline.encode_prompt("a cat", "cpu", 1, False, clip_skip=skip)[0]
        torch.testing.assert_close(made, layer, atol=1e-4, rtol=0)
    with pytest.raises(UsageError, match="exported without the hidden state -4"):
        pipeline.encode_prompt("a cat", "cpu", 1, False, clip_skip=3)


def test_torch_s_text_encoder_takes_new_words(family: Any, tmp_path: Path) -> None:
    built = family("sd1")
    ours = load_pipeline(built.folder, text_encoder="torch", provider="cpu")
    assert type(ours.text_encoder) is type(built.pipeline.text_encoder)
    # Of its own files: a new word stays in a tokenizer and an encoder.
    expected = diffusers.StableDiffusionPipeline.from_pretrained(
        built.folder.parent / "diffusers", scheduler=theirs(built, "text-to-image").scheduler
    )
    save_file({"<star>": torch.randn(2, 32)}, tmp_path / "star.safetensors")
    for pipeline in (ours, expected):
        pipeline.load_textual_inversion(str(tmp_path / "star.safetensors"), token="<star>")
    made, same = (image_of(each, built, "text-to-image", negative_prompt="<star>") for each in (ours, expected))
    assert_alike(made, same, image_of(ours, built, "text-to-image", negative_prompt="star"))


def test_what_would_change_a_graph_says_how_to_export_it(family: Any, tmp_path: Path) -> None:
    built = family("sd1")
    pipeline = load_pipeline(built.folder, provider="cpu")
    save_file({"<star>": torch.randn(2, 32)}, tmp_path / "star.safetensors")
    with pytest.raises(UsageError, match=r"a word cannot be added(.|\n)*sdort export MODEL OUT --embedding FILE"):
        pipeline.load_textual_inversion(str(tmp_path / "star.safetensors"), token="<star>")
    encoder = build_image_encoder(tmp_path / "encoder")
    build_ip_adapter(tmp_path / "plain.safetensors", built.pipeline.unet, "plain", encoder)
    state = published_state(tmp_path / "plain.safetensors")
    with pytest.raises(
        UsageError, match=r"IP-Adapter into an ONNX graph(.|\n)*sdort export MODEL OUT --ip-adapter FILE"
    ):
        pipeline.load_ip_adapter(state, subfolder="", weight_name="", image_encoder_folder=None)
    assert_alike(
        image_of(pipeline, built, "text-to-image"),
        image_of(theirs(built, "text-to-image"), built, "text-to-image"),
        image_of(pipeline, built, "text-to-image", seed=4),
    )


def test_a_vae_s_slices_and_tiles_are_diffusers(family: Any) -> None:
    built = family("sd1")
    ours, expected = load_vae(built.folder, provider="cpu"), built.pipeline.vae
    latents = torch.randn(2, 4, 24, 16, generator=torch.Generator().manual_seed(1))
    images = torch.rand(2, 3, 96, 64, generator=torch.Generator().manual_seed(2))

    def both(vae: Any) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            return vae.decode(latents, return_dict=False)[0], vae.encode(images).latent_dist.mean

    whole = both(ours)
    for made, theirs_ in zip(whole, both(expected), strict=True):
        torch.testing.assert_close(made, theirs_, atol=1e-4, rtol=0)
    for vae in (ours, expected):
        vae.enable_slicing()
        vae.enable_tiling()
        vae.tile_sample_min_size, vae.tile_latent_min_size = 48, 12
    tiled = both(ours)
    for made, theirs_ in zip(tiled, both(expected), strict=True):
        torch.testing.assert_close(made, theirs_, atol=1e-4, rtol=0)
    assert (tiled[0] - whole[0]).abs().max() > 0.01, "the tiles change nothing"
    expected.disable_tiling()
    expected.disable_slicing()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        pytest.param({"task": "outpainting"}, UsageError, "no task 'outpainting'", id="task"),
        pytest.param({"task": "controlnet"}, UsageError, "controlnet needs a ControlNet", id="controlnet"),
        pytest.param({"controlnet": "canny"}, UsageError, "text-to-image takes no ControlNet", id="not needed"),
        pytest.param({"task": "controlnet", "controlnet": []}, UsageError, "needs a ControlNet", id="no controlnets"),
        pytest.param({"task": "controlnet", "controlnet": 3}, UsageError, "cannot be a int", id="no module"),
        pytest.param({"torch_dtype": "fp16"}, TypeError, "no option torch_dtype; there are provider", id="option"),
        pytest.param({"text_encoder": "onnx"}, UsageError, "no text_encoder='onnx'", id="encoder"),
    ],
)
def test_a_wrong_request_is_refused(options: dict[str, Any], error: type, message: str, family: Any) -> None:
    with pytest.raises(error, match=message):
        load_pipeline(family("sd1").folder, **{"provider": "cpu", **options})


def test_a_unet_of_another_task_is_refused(family: Any) -> None:
    with pytest.raises(BadModelError, match="a UNet of 9 channels, which does no text-to-image"):
        load_pipeline(family("sd1 inpainting").folder, provider="cpu")


def test_a_unet_without_control_inputs_says_how_to_load_it(family: Any, controlnet: Any) -> None:
    built = family("sd1")
    unet = load_unet(built.folder, provider="cpu")
    with torch.no_grad(), pytest.raises(UsageError, match="Load it with control_inputs=True"):
        unet(torch.zeros(1, 4, 8, 8), 1, torch.zeros(1, 77, 32), mid_block_additional_residual=torch.zeros(1))


def test_what_controls_add_has_the_sizes_of_the_sample(family: Any, controlnet: Any) -> None:
    built, (net, folder) = family("sd1"), controlnet
    unet, module = load_unet(built.folder, control_inputs=True, provider="cpu"), load_controlnet(folder, provider="cpu")
    sample, context, image = torch.randn(2, 4, 16, 16), torch.randn(2, 77, 32), torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        down, mid = net(sample, 5, context, image, return_dict=False)
        for made, expected in zip(module(sample, 5, context, image, return_dict=False)[0], down, strict=True):
            torch.testing.assert_close(made, expected, atol=1e-4, rtol=0)
        one = {"down_block_additional_residuals": [each[:1] for each in down], "mid_block_additional_residual": mid}
        made, expected = (each(sample, 5, context, **one).sample for each in (unet, built.pipeline.unet))
        torch.testing.assert_close(made, expected, atol=1e-4, rtol=0)
        one["mid_block_additional_residual"] = mid[..., :7]
        with pytest.raises(UsageError, match="'mid_block_additional_residual' of 2 x 32 x 8 x 8, and not of 2 x 32 x "):
            unet(sample, 5, context, **one)
        with pytest.raises(UsageError, match="takes 'controlnet_cond' of 2 x 3 x 64 x 64, and not of 2 x 3 x 32 x 64"):
            module(sample, 5, context, image[:, :, :32])


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.zeros(1, 78, dtype=torch.long), "takes at most 77 tokens, and these are 78"),
        (torch.full((1, 77), 514), "knows the tokens 0 to 513, and not 514"),
    ],
)
def test_tokens_that_an_encoder_does_not_have(ids: torch.Tensor, message: str, family: Any) -> None:
    encoder = load_text_encoder(family("sd1").folder, provider="cpu")
    with torch.no_grad(), pytest.raises(UsageError, match=message):
        encoder(ids)


@pytest.mark.parametrize("name", ["unet", "vae_decoder", "text_encoder_4"])
def test_a_component_that_is_no_text_encoder_is_refused(name: str, family: Any) -> None:
    with pytest.raises(UsageError, match=f"no text encoder {name!r}(.|\n)*text_encoder and text_encoder_2"):
        load_text_encoder(family("sd1").folder, name, provider="cpu")


# --- adapters ---


@pytest.fixture
def adapters(family: Any, tmp_path: Path) -> list[Path]:
    """Two LoRAs of the UNet alone, where its matrices are more than 1 KiB: smaller ones stay what they are."""
    checkpoint = family("sd1").folder.parent / "diffusers"
    files = [make_lora(checkpoint, tmp_path / f"{seed}.safetensors", seed, "mid.*(attn|ff|proj)") for seed in (1, 2)]
    for file in files:
        save_file({key: value for key, value in load_file(file).items() if key.startswith("lora_unet")}, file)
    return files


@pytest.mark.filterwarnings("ignore:Already found a `peft_config`:UserWarning")
def test_loras_reach_the_weights_of_the_graph(family: Any, adapters: list[Path]) -> None:
    """Each state of the adapters gives what it gives in torch, and none of them stays."""
    built = family("sd1")
    ours, expected = load_pipeline(built.folder, provider="cpu", adapters=True), theirs(built, "text-to-image")
    sample, context = torch.randn(2, 4, 16, 16), torch.randn(2, 77, 32)
    seen: list[torch.Tensor] = []

    def same(**options: Any) -> None:
        with torch.no_grad():
            made, wanted = (each.unet(sample, 5, context, **options).sample for each in (ours, expected))
        torch.testing.assert_close(made, wanted, atol=1e-3, rtol=0)
        assert all((made - other).abs().max() > 0.05 for other in seen), "as another state"
        seen.append(made)

    def both(call: Callable[[Any], None]) -> None:
        for pipeline in (ours, expected):
            call(pipeline)

    same()
    try:
        both(lambda pipeline: pipeline.load_lora_weights(str(adapters[0]), adapter_name="a"))
        same()
        same(cross_attention_kwargs={"scale": 0.5})
        both(lambda pipeline: pipeline.load_lora_weights(str(adapters[1]), adapter_name="b"))
        same()
        both(lambda pipeline: pipeline.set_adapters(["a", "b"], [0.3, 0.8]))
        same()
        assert ours.get_list_adapters() == {"unet": ["a", "b"]}
        with pytest.raises(UsageError, match="has adapters, which are no part of its files"):
            pickle.dumps(ours.unet)
        seen.clear()
        both(lambda pipeline: pipeline.disable_lora())
        same()
        seen.clear()
        both(lambda pipeline: pipeline.unload_lora_weights())
        same()
    finally:
        expected.unload_lora_weights()
    assert ours.unet.peft_config == {}


@pytest.mark.filterwarnings("ignore:Already found a `peft_config`:UserWarning")
def test_an_adapter_takes_the_place_of_another(family: Any, adapters: list[Path]) -> None:
    """By a name that is no file's, as those of model sites."""
    built = family("sd1")
    pipeline = load_pipeline(built.folder, provider="cpu", adapters=True)
    sample, context = torch.randn(2, 4, 16, 16), torch.randn(2, 77, 32)
    made = []
    for first, second in (adapters, adapters[::-1]):
        pipeline.load_lora_weights(str(first), adapter_name="../lines/v1")
        with torch.no_grad():
            pipeline.unet(sample, 5, context)
            pipeline.load_lora_weights(str(second), adapter_name="../lines/v1", hotswap=True)
            made.append(pipeline.unet(sample, 5, context).sample)
        assert pipeline.get_list_adapters() == {"unet": ["../lines/v1"]}
        pipeline.unload_lora_weights()
    assert (made[0] - made[1]).abs().max() > 0.05
    pipeline.load_lora_weights(str(adapters[1]))
    with torch.no_grad():
        torch.testing.assert_close(pipeline.unet(sample, 5, context).sample, made[0], atol=1e-4, rtol=0)


def test_a_lora_that_cannot_be_says_what_to_do(family: Any, adapters: list[Path], tmp_path: Path) -> None:
    built = family("sd1")
    with pytest.raises(UsageError, match="Load it with adapters=True"):
        load_pipeline(built.folder, provider="cpu").load_lora_weights(str(adapters[0]))
    pipeline = load_pipeline(built.folder, provider="cpu", adapters=True)
    file = make_lora(built.folder.parent / "diffusers", tmp_path / "text.safetensors", 1)
    with pytest.raises(UsageError, match="adapter of text_encoder cannot be loaded into its ONNX graph"):
        pipeline.load_lora_weights(str(file))
    with pytest.raises(UsageError, match="nothing to fuse"):
        pipeline.fuse_lora(components=["unet"])


def test_files_of_adapters_go_when_they_are_refused_or_unloaded(family: Any, adapters: list[Path]) -> None:
    pipeline = load_pipeline(family("sd1").folder, provider="cpu", adapters=True)
    pipeline.load_lora_weights(str(adapters[0]), adapter_name="a")
    folder = pipeline.unet.adapters.files["a"].parent.parent
    wrong = {key: value[:, :-1].contiguous() for key, value in load_file(adapters[1]).items() if value.ndim == 2}
    with pytest.raises(BadModelError):
        pipeline.load_lora_weights(wrong, adapter_name="b")
    assert len(list(folder.iterdir())) == 1
    assert pipeline.get_list_adapters() == {"unet": ["a"]}
    pipeline.load_lora_weights(str(adapters[1]), adapter_name="a", hotswap=True)
    assert len(list(folder.iterdir())) == 1
    pipeline.unload_lora_weights()
    assert list(folder.iterdir()) == []


# --- on first use ---


def test_a_checkpoint_is_optimized_on_first_use(
    family: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, made = family("sd1"), []

    @contextmanager
    def opened(checkpoint: Path, **options: Any) -> Iterator[Any]:
        made.append(checkpoint)
        traces = trace_folder(request.config)
        with locked(traces), open_export(checkpoint, cache_dir=traces, **options) as export:
            yield export

    monkeypatch.setattr(making, "open_export", opened)
    checkpoint = built.folder.parent / "diffusers"
    for _ in range(2):
        pipeline = load_pipeline(checkpoint, provider="cpu", optimize=True)
    worded = load_pipeline(checkpoint, provider="cpu", optimize=True, text_encoder="torch")
    assert made == [checkpoint], "once"
    assert type(worded.text_encoder) is type(built.pipeline.text_encoder)
    image = image_of(pipeline, built, "text-to-image")
    assert psnr(image, image_of(worded, built, "text-to-image")) >= ALIKE
    assert psnr(image, image_of(theirs(built, "text-to-image"), built, "text-to-image")) >= ALIKE


@pytest.mark.parametrize(
    ("path", "optimize", "message"),
    [
        pytest.param("onnx", True, "holds ONNX models, and optimize takes a checkpoint", id="onnx"),
        pytest.param("diffusers", "fp8", "no optimize='fp8'", id="precision"),
        pytest.param("nowhere", True, "nowhere", id="nothing"),
    ],
)
def test_what_cannot_be_optimized_on_first_use(path: str, optimize: Any, message: str, family: Any) -> None:
    with pytest.raises(UsageError, match=message):
        load_pipeline(family("sd1").folder.parent / path, provider="cpu", optimize=optimize)


@pytest.mark.parametrize(
    "options",
    [
        {"task": "outpainting"},
        {"task": "controlnet"},
        {"controlnet": "canny"},
        {"text_encoder": "onnx"},
    ],
)
def test_a_wrong_request_is_refused_before_hours_of_export(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "open_export", lambda *_, **__: pytest.fail("exported"))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UsageError, match=r"no task|needs a ControlNet|takes no ControlNet|no text_encoder"):
        load_pipeline(tmp_path / "model.safetensors", provider="cpu", optimize=True, **options)


def test_a_bar_goes_on_while_the_same_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []

    class Bar:
        def __init__(self, *, desc: str, total: float | None, **_: Any) -> None:
            self.shown, self.n, self.closed = (desc, total), 0.0, False
            drawn.append(self)

        def update(self, amount: float) -> None:
            self.n += amount

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr("diffusers.utils.logging.tqdm", Bar)
    with first_use._bar():
        for description in ("reading", "writing"):
            with console.progress(description, total=4) as advance:
                advance(1)
                advance(2)
    assert [(bar.shown, bar.n, bar.closed) for bar in drawn] == [(("reading", 4), 3, True), (("writing", 4), 3, True)]
