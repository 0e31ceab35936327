"""Diffusers' pipelines of a transformer with components as ONNX graphs: the images of the same with torch's parts."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image
from support import tiny_chroma, tiny_flux, tiny_sd3, tiny_z_image
from support.pipelines import locked, trace_folder
from support.task_parity import mask, picture

import sdort
from sdort.console import quiet_libraries
from sdort.errors import BadModelError, UsageError
from sdort.families.data.chroma import corrected
from sdort.integrations.diffusers import load_pipeline
from sdort.integrations.torch import load_text_encoder, load_transformer, load_unet, transformer_module
from sdort.optimizer.command import optimize
from sdort.verification.metrics import psnr

Array = np.ndarray[Any, Any]

ALIKE = 80
"""Decibels between images in fp32; 100 and more were measured."""
SIZES = ((32, 32), (32, 48))
PROMPTS = ["a red fox", "a tall lighthouse at dusk, oil on canvas, " * 3]
"""Of different lengths, which Z-Image's tokens have too."""

_OF_SD3: dict[str, dict[str, Any]] = {"unguided": {"guidance_scale": 1.0}, "guided": {"guidance_scale": 4.0}}
GUIDANCE: dict[str, dict[str, dict[str, Any]]] = {
    "sd3": _OF_SD3,
    "sd3 without t5": _OF_SD3,
    "z-image": {"unguided": {"guidance_scale": 0.0}, "guided": {"guidance_scale": 3.0}},
    "flux-dev": {
        "unguided": {"guidance_scale": 3.5},
        "guided": {"guidance_scale": 3.5, "true_cfg_scale": 4.0, "negative_prompt_2": ["ugly"]},
    },
    "flux-schnell": {"unguided": {"guidance_scale": 0.0}, "guided": {"true_cfg_scale": 4.0}},
    "chroma": {"unguided": {"guidance_scale": 1.0}, "guided": {"guidance_scale": 4.0}},
}
CLASSES = {
    "sd3": ("StableDiffusion3", "SD3Transformer2DModel"),
    "sd3 without t5": ("StableDiffusion3", "SD3Transformer2DModel"),
    "z-image": ("ZImage", "ZImageTransformer2DModel"),
    "flux-dev": ("Flux", "FluxTransformer2DModel"),
    "flux-schnell": ("Flux", "FluxTransformer2DModel"),
    "chroma": ("Chroma", "ChromaTransformer2DModel"),
}
"""Family -> the beginning of its pipelines' names, and its transformer's class."""


def write(name: str, folder: Path) -> None:
    """Write a tiny checkpoint of random weights."""
    if name.startswith("sd3"):
        tiny_sd3.build_diffusers(folder, t5=name == "sd3")
    elif name == "z-image":
        tiny_z_image.save(tiny_z_image.build(), folder)
    elif name == "chroma":
        tiny_chroma.build_diffusers(folder)
    else:
        tiny_flux.build_diffusers(folder, name.removeprefix("flux-"))


@dataclass(frozen=True)
class Built:
    """Diffusers' pipeline of torch's parts, its folder, and its export."""

    name: str
    pipeline: Any
    checkpoint: Path
    folder: Path

    def theirs(self, task: str) -> Any:
        """Diffusers' pipeline for a task."""
        kind = getattr(diffusers, f"{CLASSES[self.name][0]}{task}Pipeline")
        made = kind(**{name: part for name, part in self.pipeline.components.items() if name in kind_parts(kind)})
        made.set_progress_bar_config(disable=True)
        if self.name == "chroma":
            corrected(made)
        return made

    def ours(self, task: str = "text-to-image", **options: Any) -> Any:
        """The same of sdort's parts."""
        made = load_pipeline(self.folder, task, provider="cpu", **options)
        made.set_progress_bar_config(disable=True)
        return made


def kind_parts(kind: Any) -> set[str]:
    """The components that a pipeline takes."""
    return set(kind.__init__.__annotations__)


@pytest.fixture(scope="module")
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Built]:
    built: dict[str, Built] = {}

    def build(name: str) -> Built:
        if name not in built:
            root, traces = tmp_path_factory.mktemp(name), trace_folder(request.config)
            (root / "checkpoint").mkdir()
            write(name, root / "checkpoint")
            with locked(traces):
                sdort.export(root / "checkpoint", root / "onnx", cache_dir=traces)
            absent = {"text_encoder_3": None, "tokenizer_3": None} if name == "sd3 without t5" else {}
            with quiet_libraries():
                pipeline = diffusers.DiffusionPipeline.from_pretrained(root / "checkpoint", **absent)
            built[name] = Built(name, pipeline, root / "checkpoint", root / "onnx")
        return built[name]

    return build


def images_of(
    pipeline: Any, size: tuple[int, int] = SIZES[0], prompts: list[str] = PROMPTS[:1], seed: int = 3, **options: Any
) -> Array:
    """Images [B, height, width, 3] of two steps, 0 to 255."""
    height, width = size
    # ZImagePipeline writes its template into the lists that it is given.
    options = {name: list(value) if isinstance(value, list) else value for name, value in options.items()}
    made = pipeline(
        list(prompts), height=height, width=width, num_inference_steps=2, output_type="np",
        generator=[torch.Generator().manual_seed(seed + number) for number in range(len(prompts))], **options,
    ).images  # fmt: skip
    return np.asarray(made, np.float32) * 255


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("guided", ["unguided", "guided"])
@pytest.mark.parametrize("name", GUIDANCE)
def test_images_are_those_of_torch(name: str, guided: str, family: Callable[[str], Built]) -> None:
    built = family(name)
    ours, theirs = built.ours(), built.theirs("")
    assert type(ours) is type(theirs)
    assert type(ours.scheduler) is type(theirs.scheduler)
    assert type(ours.transformer) in (getattr(diffusers, CLASSES[name][1]),), "from_pipe would not take it over"
    models = [part for part in ours.components.values() if isinstance(part, torch.nn.Module)]
    assert all(hasattr(part, "sessions") for part in models), "a part is torch's"
    options = GUIDANCE[name][guided]
    for size in SIZES:
        for prompts in (PROMPTS[:1], PROMPTS):
            several = {"negative_prompt": ["ugly"] * len(prompts), **options}
            several |= {key: value * len(prompts) for key, value in several.items() if key == "negative_prompt_2"}
            made, expected = (images_of(each, size, prompts, **several) for each in (ours, theirs))
            assert made.shape == (len(prompts), *size, 3)
            assert made.std() > 20, "the images show nothing, so that any two are alike"
            assert psnr(made, expected) >= ALIKE
    other = images_of(ours, size, [PROMPTS[1], PROMPTS[0]], **several)
    assert psnr(other, made) < 50, "other prompts give the same images"
    if guided == "guided":
        unguided = images_of(ours, size, prompts, **GUIDANCE[name]["unguided"])
        assert psnr(unguided, made) < 50, "guidance changes nothing"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "task", "part"),
    [
        *[(name, "image-to-image", "Img2Img") for name in ("sd3", "z-image", "flux-dev", "chroma")],
        # diffusers' ChromaInpaintPipeline asks for an entry of Flux' config, which Chroma's has not.
        *[(name, "inpainting", "Inpaint") for name in ("sd3", "z-image", "flux-dev")],
    ],
)
def test_images_that_start_from_one_are_those_of_torch(
    name: str, task: str, part: str, family: Callable[[str], Built]
) -> None:
    built = family(name)
    ours, theirs = built.ours(task), built.theirs(part)
    assert type(ours) is type(theirs)
    shown = picture(32).resize((32, 32), Image.Resampling.LANCZOS)
    options = {"image": shown, "strength": 0.9, **GUIDANCE[name]["unguided"]}
    if task == "inpainting":
        options["mask_image"] = mask(32).resize((32, 32))
    made, expected, other = (
        images_of(each, seed=seed, **options) for each, seed in ((ours, 3), (theirs, 3), (ours, 4))
    )
    assert psnr(made, expected) >= ALIKE
    assert psnr(other, made) < 50, "another seed gives the same image"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["sd3", "z-image", "flux-dev", "chroma"])
def test_an_optimized_folder_and_torchs_text_encoders(
    name: str, family: Callable[[str], Built], tmp_path: Path
) -> None:
    built = family(name)
    optimize(built.folder, tmp_path / "fast", provider="cpu")
    expected = images_of(built.theirs(""), **GUIDANCE[name]["unguided"])
    fast = Built(name, None, built.checkpoint, tmp_path / "fast")
    for ours in (fast.ours(), fast.ours(text_encoder="torch")):
        assert psnr(images_of(ours, **GUIDANCE[name]["unguided"]), expected) >= ALIKE
    kinds = [type(part).__name__ for part in ours.components.values() if isinstance(part, torch.nn.Module)]
    assert sum(kind.startswith("Graph") for kind in kinds) == 2


@pytest.mark.parametrize("name", ["sd3", "z-image", "flux-dev", "chroma"])
def test_what_is_not_there_is_refused_in_words(name: str, family: Callable[[str], Built]) -> None:
    built = family(name)
    with pytest.raises(BadModelError, match=r"does no controlnet here(.|\n)*text-to-image, image-to-image, inpainting"):
        built.ours("controlnet", controlnet="canny")
    with pytest.raises(UsageError, match="adapters=True has no effect on a transformer"):
        built.ours(adapters=True)
    with pytest.raises(UsageError, match="adapters=True has no effect on a transformer"):
        load_transformer(built.folder, provider="cpu", adapters=True)
    with pytest.raises(BadModelError, match="has no unet"):
        load_unet(built.folder, provider="cpu")
    ours = built.ours()
    module = next(name for name, part in built.pipeline.transformer.named_modules() if name.endswith("to_q"))
    width = built.pipeline.transformer.get_submodule(module).weight.shape
    lora = {
        f"transformer.{module}.lora_A.weight": torch.zeros(2, width[1]),
        f"transformer.{module}.lora_B.weight": torch.zeros(width[0], 2),
    }
    with pytest.raises(UsageError, match=r"cannot load a LoRA into the ONNX graph(.|\n)*--lora FILE"):
        ours.load_lora_weights(lora)
    with pytest.raises(UsageError, match="joint_attention_kwargs would change the inside"):
        images_of(ours, joint_attention_kwargs={"scale": 0.5})
    with pytest.raises(AttributeError, match="runs as an ONNX graph and has no 'attn_processors'"):
        _ = ours.transformer.attn_processors


def test_a_module_is_what_diffusers_is(family: Callable[[str], Built]) -> None:
    """Its config, its place after a pickle, and its output in both forms."""
    built = family("sd3")
    module = load_transformer(built.folder, provider="cpu")
    for name, value in tiny_sd3.TRANSFORMER.items():
        assert tuple(np.atleast_1d(module.config[name])) == tuple(np.atleast_1d(value)), name
    torch.manual_seed(1)
    inputs = torch.randn(2, 16, 8, 12), torch.randn(2, 7, 40), torch.randn(2, 20), torch.tensor([900.0, 20.0])
    with torch.no_grad():
        expected = built.pipeline.transformer(*inputs).sample
        made = module(*inputs).sample
        torch.testing.assert_close(made, expected, atol=1e-4, rtol=0)
        again = pickle.loads(pickle.dumps(module))
        assert torch.equal(again(*inputs, return_dict=False)[0], made)
    for name in ("block_controlnet_hidden_states", "skip_layers"):
        with pytest.raises(UsageError, match=f"{name} would change the inside of an ONNX graph"):
            module(*inputs, **{name: [0]})


def test_flux_takes_the_ids_of_one_image_alone(family: Callable[[str], Built]) -> None:
    built = family("flux-dev")
    module, theirs = load_transformer(built.folder, provider="cpu"), built.pipeline.transformer
    torch.manual_seed(1)
    ids = torch.zeros(2, 3, 3)
    ids[..., 1], ids[..., 2] = torch.arange(2)[:, None], torch.arange(3)
    inputs: dict[str, Any] = {
        "hidden_states": torch.randn(2, 6, 64), "encoder_hidden_states": torch.randn(2, 5, 24),
        "pooled_projections": torch.randn(2, 20), "timestep": torch.tensor([0.7, 0.7]), "img_ids": ids.flatten(0, 1),
        "txt_ids": torch.zeros(5, 3), "guidance": torch.tensor([3.5, 2.0]),
    }  # fmt: skip
    with torch.no_grad():
        torch.testing.assert_close(module(**inputs).sample, theirs(**inputs).sample, atol=1e-4, rtol=0)
    moved = inputs["img_ids"].clone()
    moved[1, 0] = 1
    for wrong in ({"img_ids": moved}, {"img_ids": moved[:4]}, {"txt_ids": torch.ones(5, 3)}):
        with pytest.raises(UsageError, match="takes the ids of the tokens of one image and no others"):
            module(**{**inputs, **wrong})
    with pytest.raises(UsageError, match="takes one timestep for all samples"):
        module(**{**inputs, "timestep": torch.tensor([0.7, 0.2])})
    bare = load_transformer(family("flux-schnell").folder, provider="cpu")
    with pytest.raises(UsageError, match="does not take guidance"):
        bare(**inputs)


def test_flux_ids_on_a_gpu_are_read_once(family: Callable[[str], Built], monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu(torch.Tensor):  # type: ignore[misc]
        is_cpu = False

    read: list[tuple[int, int]] = []

    def places(rows: int, columns: int, like: torch.Tensor) -> torch.Tensor:
        read.append((rows, columns))
        return torch.cartesian_prod(torch.zeros(1), torch.arange(float(rows)), torch.arange(float(columns)))

    monkeypatch.setattr(transformer_module, "_places", places)
    module: Any = load_transformer(family("flux-dev").folder, provider="cpu")
    ids, text = places(2, 3, torch.zeros(0)), torch.zeros(5, 3)
    shown, beside = ids.as_subclass(OnGpu), text.as_subclass(OnGpu)
    for _ in range(3):
        assert module._sides(shown, beside, 6) == (2, 3)
    assert read[1:] == [(2, 3)]
    beside.add_(0)
    assert module._sides(shown, beside, 6) == (2, 3)
    for _ in range(2):
        assert module._sides(ids, text, 6) == (2, 3)
    assert len(read) == 5


def test_z_image_takes_samples_of_several_sizes_at_once(family: Callable[[str], Built]) -> None:
    built = family("z-image")
    module, theirs = load_transformer(built.folder, provider="cpu"), built.pipeline.transformer
    torch.manual_seed(1)
    latents = [torch.randn(16, 1, *size) for size in ((8, 8), (8, 12), (8, 8), (8, 8))]
    texts = [torch.randn(tokens, 24) for tokens in (5, 5, 40, 5)]
    times = torch.tensor([0.1, 0.5, 0.9, 0.3])
    with torch.no_grad():
        for made, expected in zip(module(latents, times, texts).sample, theirs(latents, times, texts)[0], strict=True):
            torch.testing.assert_close(made, expected, atol=1e-4, rtol=0)
    with pytest.raises(UsageError, match="for each sample"):
        module(latents, times, texts[:3])
    with pytest.raises(UsageError, match="tokens of 2 x 2 latents of one frame"):
        module(latents, times, texts, patch_size=1)


def test_qwen3_gives_the_states_that_pipelines_read(family: Callable[[str], Built]) -> None:
    built = family("z-image")
    ours, theirs = load_text_encoder(built.folder, provider="cpu"), built.pipeline.text_encoder
    torch.manual_seed(1)
    ids, kept = torch.randint(0, 400, (2, 12)), torch.arange(12) < torch.tensor([[5], [9]])
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=kept, output_hidden_states=True).hidden_states[-2]
        states = ours(input_ids=ids, attention_mask=kept, output_hidden_states=True).hidden_states
        torch.testing.assert_close(states[-2][kept], expected[kept], atol=1e-4, rtol=0)
        assert states[-2].shape == expected.shape
        assert len(states) == 4
        for index in (-1, 0):
            with pytest.raises(UsageError, match=f"without the hidden state {index}"):
                _ = states[index]
        with pytest.raises(UsageError, match="ends before its last layer"):
            ours(ids)
        with pytest.raises(UsageError, match="takes padding behind the tokens alone"):
            ours(ids, kept.flip(1), output_hidden_states=True)


def test_t5_gives_its_last_state_alone(family: Callable[[str], Built]) -> None:
    built = family("sd3")
    ours = load_text_encoder(built.folder, "text_encoder_3", provider="cpu")
    ids = torch.randint(0, 90, (2, 100), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = built.pipeline.text_encoder_3(ids)[0]
        torch.testing.assert_close(ours(ids)[0], expected, atol=1e-4, rtol=0)
        with pytest.raises(UsageError, match="takes no attention_mask"):
            ours(ids, torch.ones_like(ids))
        with pytest.raises(UsageError, match="knows the tokens 0 to 299, and not 300"):
            ours(ids + 300 - ids.max())


def test_chroma_takes_masks_of_padding_alone(family: Callable[[str], Built]) -> None:
    """Of samples with several numbers of tokens, in ones and zeros as diffusers' pipeline makes them."""
    built = family("chroma")
    module, theirs = load_transformer(built.folder, provider="cpu"), built.pipeline.transformer
    torch.manual_seed(1)
    ids = torch.zeros(2, 3, 3)
    ids[..., 1], ids[..., 2] = torch.arange(2)[:, None], torch.arange(3)
    mask = torch.cat([torch.arange(5) < torch.tensor([[2], [5], [2]]), torch.ones(3, 6, dtype=torch.bool)], 1)
    inputs: dict[str, Any] = {
        "hidden_states": torch.randn(3, 6, 64), "encoder_hidden_states": torch.randn(3, 5, 24),
        "timestep": torch.tensor([0.7] * 3), "img_ids": ids.flatten(0, 1), "txt_ids": torch.zeros(5, 3),
    }  # fmt: skip
    with torch.no_grad():
        for given in (mask, None):
            expected = theirs(**inputs, attention_mask=given).sample
            taken = None if given is None else given.float()
            torch.testing.assert_close(module(**inputs, attention_mask=taken).sample, expected, atol=1e-4, rtol=0)
    for wrong in (mask.flip(1), mask[:, :10], mask & (torch.arange(11) > 0)):
        with pytest.raises(UsageError, match="takes a mask that leaves out tokens at the text's end and no others"):
            module(**inputs, attention_mask=wrong)


def test_chromas_text_encoder_takes_the_mask_of_its_padding(family: Callable[[str], Built]) -> None:
    built = family("chroma")
    ours, theirs = load_text_encoder(built.folder, provider="cpu"), built.pipeline.text_encoder
    ids = torch.tensor([[5, 6, 1, 0, 0], [7, 8, 9, 10, 1]])
    with torch.no_grad():
        expected = theirs(ids, attention_mask=(ids != 0).long())[0]
        torch.testing.assert_close(ours(ids, attention_mask=(ids != 0).long())[0], expected, atol=1e-4, rtol=0)
        with pytest.raises(UsageError, match="takes no attention_mask"):
            ours(ids, attention_mask=torch.ones_like(ids))
