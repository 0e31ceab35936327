"""IP-Adapters of an export: which files go together, and what is said of those that do not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny_pipeline
from support.pipelines import trace_folder
from support.tiny_ip_adapter import ENCODER, build_image_encoder, build_ip_adapter

from sdort.adapters.ip_adapter_file import attention_tensors, read_ip_adapter
from sdort.checkpoints.clip_vision import read_image_encoder, vision_config
from sdort.errors import SdortError
from sdort.exporter.command import plan_export

Tensors = Mapping[str, torch.Tensor]


@dataclass
class Files:
    """A checkpoint, an image encoder, and an adapter of each kind, apart from the encoder."""

    folder: Path
    unet: Any
    traces: Path

    def plan(self, adapter: Path, encoder: Path | None = None, **options: Any) -> Any:
        return plan_export(
            self.folder / "checkpoint", self.folder / "out", ip_adapter=[adapter], image_encoder=encoder,
            cache_dir=self.traces, **options,
        )  # fmt: skip

    @property
    def encoder(self) -> Path:
        return self.folder / "encoder"

    def changed(self, kind: str, change: Callable[[Tensors], Tensors]) -> Path:
        path = self.folder / "changed.safetensors"
        save_file(dict(change(load_file(self.folder / f"{kind}.safetensors"))), path)
        return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Files:
    folder = tmp_path_factory.mktemp("ip adapter")
    unet = tiny_pipeline.build_diffusers(folder / "checkpoint", {"layers_per_block": 1}).unet
    encoder = build_image_encoder(folder / "encoder")
    for kind in ("plain", "plus"):
        build_ip_adapter(folder / f"{kind}.safetensors", unet, kind, encoder)
    return Files(folder, unet, trace_folder(request.config))


def test_attention_has_diffusers_names_and_order(files: Files) -> None:
    adapter = read_ip_adapter(files.folder / "plain.safetensors")
    state = files.unet.state_dict()
    added = attention_tensors([adapter], state, "model")
    names = [name for name in files.unet.attn_processors if name.endswith("attn2.processor")]
    expected = [f"{name}.to_{part}_ip.0.weight" for name in names for part in "kv"]
    assert list(added) == expected


def _renamed(old: str, new: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name.replace(old, new): tensor for name, tensor in tensors.items()}


def _with(name: str, *shape: int) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: torch.zeros(shape)}


def _without(part: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if part not in name}


def _wider(tensors: Tensors) -> Tensors:
    return {name: torch.zeros(tensor.shape[0], 768) if "to_" in name else tensor for name, tensor in tensors.items()}


REFUSED: dict[str, tuple[str, Callable[[Tensors], Tensors], str]] = {
    "full": ("plain", _renamed("image_proj.proj.", "image_proj.proj.3."), "full"),
    "FaceID": ("plain", _renamed("image_proj.proj.", "image_proj.proj.0."), "FaceID;"),
    "FaceID LoRA": ("plain", _with("ip_adapter.1.to_k_lora.down.weight", 4, 8), "FaceID;"),
    "FaceID Plus": ("plus", _with("image_proj.perceiver_resampler.proj_in.weight", 4, 8), "FaceID Plus"),
    "unknown": ("plain", _renamed("image_proj.", "image_proj.odd."), "an unknown kind"),
    "no attention": ("plain", _without("to_"), "lacks attention weights"),
    "no value": ("plain", _without("ip_adapter.3.to_v"), "lacks a key or a value of ip_adapter.3"),
    "fewer": ("plain", _without("ip_adapter.5."), "it is for 3 cross-attentions, and the UNet of checkpoint has 4"),
    "another family": ("plain", _wider, r"768 numbers wide \(SD 1.x\), and those of checkpoint are 32"),
    "a layer too few": ("plus", _without("layers.0.0.to_q"), "layers.0.attn.to_q.weight is missing"),
    "something else": ("plain", _with("odd", 1), "a tensor 'odd'"),
    "no adapter": ("plain", _renamed("", "model.diffusion_model.input_blocks.0.0.weight"), "not an IP-Adapter"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_files_are_refused(files: Files, case: str) -> None:
    kind, change, message = REFUSED[case]
    with pytest.raises(SdortError, match=message):
        files.plan(files.changed(kind, change), files.encoder)


def test_the_encoder_is_found_beside_the_adapter(files: Files, tmp_path: Path) -> None:
    for kind in ("plain", "plus"):
        adapter = files.folder / f"{kind}.safetensors"
        with pytest.raises(SdortError, match="wants an image encoder, and none that fits lies beside it"):
            files.plan(adapter)
    beside = tmp_path / "sdxl_models" / "plus.safetensors"  # as in h94/IP-Adapter
    beside.parent.mkdir()
    shutil.copy(files.folder / "plus.safetensors", beside)
    shutil.copytree(files.encoder, tmp_path / "models" / "image_encoder")
    assert any(write.name == "image_encoder" for write in files.plan(beside).writes)


def test_an_encoder_of_another_size_is_refused(files: Files, tmp_path: Path) -> None:
    build_image_encoder(tmp_path / "other", hidden_size=32, projection_dim=24)
    for kind, widths in (("plain", "image embeddings of 20 numbers"), ("plus", "hidden states of 24 numbers")):
        with pytest.raises(SdortError, match=f"takes {widths}"):
            files.plan(files.folder / f"{kind}.safetensors", tmp_path / "other")
    with pytest.raises(SdortError, match="does not exist"):
        files.plan(files.folder / "plain.safetensors", tmp_path / "nothing")
    with pytest.raises(SdortError, match="holds no CLIP image encoder"):
        files.plan(files.folder / "plain.safetensors", files.folder / "plus.safetensors")


def test_options_that_mean_nothing_alone(files: Files) -> None:
    with pytest.raises(SdortError, match="--image-encoder means nothing without --ip-adapter"):
        plan_export(files.folder / "checkpoint", files.folder / "out", image_encoder=files.encoder)
    with pytest.raises(SdortError, match="--ip-adapter is for a UNet"):
        files.plan(files.folder / "plain.safetensors", files.encoder, components=["vae_decoder"])


def test_a_file_tells_the_config_of_published_encoders() -> None:
    shapes = {
        "vision_model.embeddings.patch_embedding.weight": (1280, 3, 14, 14),
        "vision_model.embeddings.position_embedding.weight": (257, 1280),
        "vision_model.encoder.layers.0.mlp.fc1.weight": (5120, 1280),
        "vision_model.encoder.layers.31.mlp.fc1.weight": (5120, 1280),
        "visual_projection.weight": (1024, 1280),
    }
    config = vision_config(shapes)
    # config.json of h94/IP-Adapter, models/image_encoder
    expected = {"image_size": 224, "patch_size": 14, "num_attention_heads": 16, "hidden_act": "gelu"}
    assert expected.items() <= config.items()
    assert config["projection_dim"] == 1024
    with pytest.raises(SdortError, match="how many heads"):
        vision_config({**shapes, "vision_model.embeddings.patch_embedding.weight": (24, 3, 14, 14)})


def test_a_folder_of_an_encoder_needs_its_config_and_its_weights(files: Files, tmp_path: Path) -> None:
    assert read_image_encoder(files.encoder).width(hidden=True) == ENCODER["hidden_size"]
    shutil.copytree(files.encoder, tmp_path / "encoder")
    config = json.loads((files.encoder / "config.json").read_text())
    for key, value, message in (("hidden_size", None, "hidden_size"), ("image_size", "x", "image_size")):
        (tmp_path / "encoder" / "config.json").write_text(json.dumps({**config, key: value}))
        with pytest.raises(SdortError, match=message):
            read_image_encoder(tmp_path / "encoder")
    del config["num_hidden_layers"]
    (tmp_path / "encoder" / "config.json").write_text(json.dumps(config))
    with pytest.raises(SdortError, match="holds no CLIP image encoder"):
        read_image_encoder(tmp_path / "encoder")
    config = json.loads((files.encoder / "config.json").read_text())
    (tmp_path / "encoder" / "config.json").write_text(json.dumps({"vision_config": config, "projection_dim": 7}))
    assert read_image_encoder(tmp_path / "encoder").width(hidden=False) == 7
    (tmp_path / "encoder" / "model.safetensors").unlink()
    with pytest.raises(SdortError, match=r"has no model\.safetensors"):
        read_image_encoder(tmp_path / "encoder")
