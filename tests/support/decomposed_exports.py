"""Components whose torch programs were decomposed before they were exported, and ones that merged projections.

``run_decompositions`` takes layers and attentions apart into the operators of torch's core: a Linear is ``addmm`` or
``bmm`` between views, an attention ``bmm``, ``_softmax`` and the guard of its safe form.
"""

from __future__ import annotations

import fcntl
import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from support.exports import quiet
from support.models import SEED, TEXT_CONFIG, UNET_SD1, VAE_CONFIG, Built, TextEncoder, UNet, VaeDecoder, randomize
from torch.export import Dim
from transformers import CLIPTextConfig, CLIPTextModel

SHALLOW = {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "UpBlock2D"),
    "block_out_channels": (32, 48),
    "mid_block_type": None,
}
PICTURE = {0: "batch", 2: "height", 3: "width"}
PROMPT = {0: "batch", 1: "sequence"}
EXPORTERS = ("ts17", "de18", "de18raw", "de23", "de23raw")
"""TorchScript; torch.export and its decompositions, with and without the exporter's own optimizer."""


def build(kind: str) -> Built:
    """``unet``, ``vae_decoder``, ``text_encoder``, or ``NAME_merged`` with the projections of attentions merged."""
    name = kind.removesuffix("_merged")
    torch.manual_seed(SEED)
    made = {"unet": _unet, "vae_decoder": _vae, "text_encoder": _text}[name]()
    randomize(made.model)
    if kind.endswith("_merged"):
        made.model.fuse_qkv_projections()
    made.module.eval()
    return made


def _unet() -> Built:
    model = UNet2DConditionModel(**{**UNET_SD1, **SHALLOW})
    inputs = {
        "sample": torch.randn(2, 4, 16, 24),
        "timestep": torch.tensor([3]),
        "encoder_hidden_states": torch.randn(2, 7, 40),
    }
    dynamic = {"sample": PICTURE, "timestep": {}, "encoder_hidden_states": PROMPT}
    return Built("unet", dict(model.config), UNet(model), inputs, ["out_sample"], dynamic, model)


def _vae() -> Built:
    model = AutoencoderKL(**{**VAE_CONFIG, "block_out_channels": (16,), "down_block_types": ("DownEncoderBlock2D",),
                             "up_block_types": ("UpDecoderBlock2D",)})  # fmt: skip
    inputs = {"latent_sample": torch.randn(2, 4, 16, 24)}
    return Built(
        "vae_decoder", dict(model.config), VaeDecoder(model), inputs, ["sample"], {"latent_sample": PICTURE}, model
    )


def _text() -> Built:
    config = CLIPTextConfig(**{**TEXT_CONFIG, "num_hidden_layers": 1}, attn_implementation="sdpa")
    model = CLIPTextModel(config)
    inputs = {"input_ids": torch.randint(0, 1000, (2, 77))}
    outputs = ["last_hidden_state", "pooler_output"]
    return Built(
        "text_encoder", config.to_dict(), TextEncoder(model, False), inputs, outputs, {"input_ids": PROMPT}, model
    )


def export(kind: str, exporter: str, dynamic: bool, cache_dir: Path) -> Path:
    """The traced ``.onnx`` of a model, kept for later runs."""
    text = Path(__file__).read_bytes() + " ".join(version(p) for p in ("torch", "diffusers", "transformers")).encode()
    folder = cache_dir / f"decomposed-{hashlib.sha256(text).hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{kind}-{'dynamic' if dynamic else 'static'}"
    path = folder / f"{stem}-{exporter}.onnx"
    with open(folder / f"{stem}-{exporter.removesuffix('raw')}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with quiet(), torch.no_grad():
                _trace(kind, exporter.removesuffix("raw"), dynamic, folder / stem)
    return path


def _trace(kind: str, exporter: str, dynamic: bool, stem: Path) -> None:
    """Write ``STEM-EXPORTER.onnx``, and its raw twin where there is one."""
    built = build(kind)
    tensors = tuple(built.inputs.values())
    names: dict[str, Any] = {"input_names": list(built.inputs), "output_names": built.outputs}
    opset = int(exporter[2:])
    if exporter.startswith("ts"):
        axes = {name: dims for name, dims in built.dynamic.items() if dims} if dynamic else None
        partial = stem.with_suffix(".partial")
        torch.onnx.export(
            built.module, tensors, str(partial), opset_version=opset, dynamo=False, dynamic_axes=axes, **names
        )
        partial.rename(f"{stem}-{exporter}.onnx")
        return
    program = torch.export.export(built.module, tensors, dynamic_shapes=_shapes(built) if dynamic else None)
    onnx_program = torch.onnx.export(
        program.run_decompositions(), (), None, opset_version=opset, dynamo=True, optimize=False, verbose=False, **names
    )
    for form in (f"{exporter}raw", exporter):
        partial = Path(f"{stem}-{form}.partial")
        onnx_program.save(str(partial), external_data=False)
        partial.rename(f"{stem}-{form}.onnx")
        if form.endswith("raw"):
            onnx_program.optimize()


def _shapes(built: Built) -> tuple[dict[int, Any], ...]:
    """Dims as a user declares them: multiples of what the UNet's downsampling divides."""
    step = 2 if built.component == "unet" else 1
    dims = {
        "batch": Dim("b", max=63), "sequence": Dim("s", max=77),
        "height": step * Dim("h", max=120), "width": step * Dim("w", max=120),
    }  # fmt: skip
    return tuple({axis: dims[name] for axis, name in axes.items()} for axes in built.dynamic.values())
