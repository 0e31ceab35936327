"""A tiny Stable Diffusion pipeline of the true architecture, as a diffusers folder and as an ONNX folder.

Its tokenizer knows the 256 bytes, with and without the end of a word, and the two special tokens, so any text has
token ids. Exporting it takes seconds.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import models
from support.relisted import relist

# The text encoder's width has to be what the UNet attends to.
TEXT = {**models.TEXT_CONFIG, "vocab_size": 514, "bos_token_id": 512, "eos_token_id": 513, "num_hidden_layers": 2}
UNET = {
    **models.UNET_CONFIGS["sd1"],
    "block_out_channels": (16, 32),
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": TEXT["hidden_size"],
    "sample_size": 16,
}
VAE_FACTOR = 4
SCHEDULER = {
    "num_train_timesteps": 1000,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "clip_sample": False,
    "set_alpha_to_one": False,
    "steps_offset": 1,
}


def byte_tokenizer(folder: Path) -> Any:
    """A CLIP tokenizer without merges."""
    from transformers import CLIPTokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    folder.mkdir(parents=True)
    letters = list(bytes_to_unicode().values())
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=77)


@dataclass(frozen=True)
class Tiny:
    """The pipeline in diffusers (the folder it was saved to, and the object) and as ONNX."""

    diffusers: Path
    onnx: Path
    pipeline: Any


def build(folder: Path) -> Tiny:
    """Build and export it in ``folder``."""
    pipeline = build_diffusers(folder / "diffusers")
    export_onnx(pipeline, folder / "onnx")
    return Tiny(folder / "diffusers", folder / "onnx", pipeline)


def with_encoder(tiny: Tiny, folder: Path, stored: str = "float") -> Path:
    """The exported pipeline with an encoder that takes every fourth pixel.

    Args:
        stored: ONNX's name of the type in which it stores values of up to 120000, which float16 cannot hold.
    """
    import onnx

    number = {"float16": 10, "float": 1}[stored]
    made = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
        encoder (float[n, 3, h, w] sample) => (float[n, 8, i, j] latent_parameters)
        <float loud = {{120000.0}}, float quiet = {{0.0001}}, int64[8] channels = {{0, 1, 2, 0, 1, 2, 0, 1}},
         int64[2] start = {{0, 0}}, int64[2] end = {{10000, 10000}}, int64[2] axes = {{2, 3}},
         int64[2] step = {{{VAE_FACTOR}, {VAE_FACTOR}}}> {{
            small = Slice (sample, start, end, axes, step)
            all = Gather <axis = 1> (small, channels)
            product = Mul (all, loud)
            rounded = Cast <to = {number}> (product)
            read = Cast <to = 1> (rounded)
            latent_parameters = Mul (read, quiet)
        }}""")
    shutil.copytree(tiny.onnx, folder)
    (folder / "vae_encoder").mkdir()
    onnx.save(made, folder / "vae_encoder" / "model.onnx")
    shutil.copy(folder / "vae_decoder" / "config.json", folder / "vae_encoder")
    return folder


def shared(folder: Path) -> Tiny:
    """:func:`build` in ``folder``, as a copy of one that all test processes share."""
    from diffusers import StableDiffusionPipeline
    from support import exports, native

    def make(place: Path) -> None:
        build(place)

    sources = {"tiny": exports.cache_key().encode(), "": Path(__file__).read_bytes()}
    shutil.copytree(native.built(sources, make), folder, dirs_exist_ok=True)
    pipeline = StableDiffusionPipeline.from_pretrained(folder / "diffusers")
    pipeline.set_progress_bar_config(disable=True)
    return Tiny(folder / "diffusers", folder / "onnx", pipeline)


def edit_weights(model: Path, change: Callable[[Any, str], Any], *names: str) -> None:
    """Replace the initializers of an ``.onnx`` file whose names contain one of ``names`` by ``change(array, name)``."""
    import onnx

    proto = onnx.load(model)
    found = [tensor for tensor in proto.graph.initializer if any(name in tensor.name for name in names)]
    assert found, f"no initializer of {model} is named like {names}"
    for tensor in found:
        changed = change(onnx.numpy_helper.to_array(tensor), tensor.name)
        tensor.CopyFrom(onnx.numpy_helper.from_array(changed, tensor.name))
    onnx.save(proto, model)
    relist(model.parent.parent)


def build_diffusers(folder: Path, unet: dict[str, Any] | None = None) -> Any:
    """Build the diffusers pipeline with seeded random weights and save it to ``folder``."""
    import torch
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    torch.manual_seed(models.SEED)
    parts = {
        "vae": AutoencoderKL(**models.VAE_CONFIG),
        "text_encoder": CLIPTextModel(CLIPTextConfig(**TEXT)),
        "unet": UNet2DConditionModel(**{**UNET, **(unet or {})}),
    }
    for part in parts.values():
        models.randomize(part.eval())
    pipeline = StableDiffusionPipeline(
        **parts,
        tokenizer=byte_tokenizer(folder / "tokenizer"),
        scheduler=DDIMScheduler(**SCHEDULER),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(str(folder))
    return pipeline


def export_onnx(pipeline: Any, folder: Path, *, batch: int | None = None, only: str | None = None) -> None:
    """Export with TorchScript at opset 17; ``batch`` makes every shape static, for 64 x 64 pixels.

    ``only`` names the one component to export, without configs.
    """
    import torch

    config = pipeline.unet.config
    sample = torch.randn(batch or 2, config["in_channels"], 16, 16)
    cases: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
        "text_encoder": (
            models.TextEncoder(pipeline.text_encoder, projection=False),
            {"input_ids": torch.randint(0, 512, (1 if batch else 2, 77))},
            ["last_hidden_state", "pooler_output"],
        ),
        "unet": (
            models.UNet(pipeline.unet),
            {
                "sample": sample,
                "timestep": torch.tensor(3.0),
                "encoder_hidden_states": torch.randn(batch or 2, 77, TEXT["hidden_size"]),
            },
            ["out_sample"],
        ),
        "vae_decoder": (
            models.VaeDecoder(pipeline.vae),
            {"latent_sample": torch.randn(1, 4, 16, 16)},
            ["sample"],
        ),
    }
    for name, (module, inputs, outputs) in cases.items():
        if only not in (None, name):
            continue
        path = folder / name / "model.onnx"
        path.parent.mkdir(parents=True)
        axes = {key: _dynamic(value) for key, value in inputs.items() if value.ndim}
        # The exporter warns about its own deprecation and about every Python branch that it traces.
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module.eval(), tuple(inputs.values()), str(path), input_names=list(inputs), output_names=outputs,
                opset_version=17, dynamo=False, dynamic_axes=None if batch else axes,
            )  # fmt: skip
    if only:
        return
    for name, part in (("unet", pipeline.unet), ("vae_decoder", pipeline.vae)):
        (folder / name / "config.json").write_text(part.to_json_string())
    pipeline.tokenizer.save_pretrained(str(folder / "tokenizer"))
    pipeline.scheduler.save_pretrained(str(folder / "scheduler"))


def _dynamic(tensor: Any) -> dict[int, str]:
    names = {1: "sequence"} if tensor.ndim < 4 else {2: "height", 3: "width"}
    return {0: "batch", **names}
