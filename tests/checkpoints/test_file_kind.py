"""Files that people take for models are recognised by name, shape and first bytes, and nothing of them is run."""

from __future__ import annotations

import json
import math
import struct
import zipfile
from pathlib import Path

import pytest

from sdort.checkpoints.file_kind import recognise_file
from sdort.checkpoints.weight_names import REFINER, SD1, SD2, SDXL, Kind, Shapes, recognise_tensors
from sdort.errors import BadModelError

LDM = "model.diffusion_model."
TEXT = {SD1: "cond_stage_model.transformer.x", SD2: "cond_stage_model.model.x"}
ATTENTION = "down_blocks_1_attentions_0_transformer_blocks_0_attn2_to_k"


def checkpoint(width: int, text: str, channels: int = 4, **more: list[int]) -> dict[str, list[int]]:
    return {
        "first_stage_model.decoder.conv_in.weight": [512, 4, 3, 3],
        f"{LDM}input_blocks.0.0.weight": [320, channels, 3, 3],
        f"{LDM}input_blocks.2.1.transformer_blocks.0.attn2.to_k.weight": [320, width],
        text: [768],
        **more,
    }


UNET = {name: shape for name, shape in checkpoint(2048, "x").items() if name.startswith(LDM)}
FILES: dict[str, tuple[dict[str, list[int]], Kind, str | None, str | None]] = {
    "sd1": (checkpoint(768, TEXT[SD1]), Kind.CHECKPOINT, SD1, None),
    "sd2": (checkpoint(1024, TEXT[SD2]), Kind.CHECKPOINT, SD2, None),
    "sd1 inpainting": (checkpoint(768, TEXT[SD1], 9), Kind.CHECKPOINT, SD1, "inpainting"),
    "pix2pix": (checkpoint(768, TEXT[SD1], 8), Kind.CHECKPOINT, SD1, "instruct-pix2pix"),
    "xl": (checkpoint(2048, "conditioner.embedders.1.model.x"), Kind.CHECKPOINT, SDXL, None),
    "xl v": (checkpoint(2048, "conditioner.embedders.1.x", v_pred=[]), Kind.CHECKPOINT, SDXL, "v-prediction"),
    "refiner": (checkpoint(1280, "conditioner.embedders.0.model.x"), Kind.CHECKPOINT, REFINER, None),
    "unet of a checkpoint": (UNET, Kind.UNET, SDXL, None),
    "unet of diffusers": (
        {
            "conv_in.weight": [320, 9, 3, 3],
            "down_blocks.0.resnets.0.conv1.weight": [320, 320, 3, 3],
            "mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight": [1280, 768],
        },
        Kind.UNET,
        SD1,
        "inpainting",
    ),
    "pixart": ({"adaln_single.linear.weight": [8, 8], "transformer_blocks.0.x": [8]}, Kind.TRANSFORMER, "PixArt", None),
    "pixart, original": ({"blocks.0.attn.x": [8], "y_embedder.y_proj.x": [8]}, Kind.TRANSFORMER, "PixArt", None),
    "ltx": ({"patchify_proj.x": [8], "adaln_single.x": [8]}, Kind.TRANSFORMER, "LTX-Video", None),
    "cascade in a checkpoint": ({f"{LDM}clip_txt_mapper.x": [8]}, Kind.TRANSFORMER, "Stable Cascade", None),
    "lora of kohya": ({f"lora_unet_{ATTENTION}.lora_down.weight": [16, 2048]}, Kind.LORA, SDXL, None),
    "lora of kohya, text": ({"lora_te2_text_model_x.lora_up.weight": [1280, 8]}, Kind.LORA, SDXL, None),
    "lora of peft": ({"unet.mid_block.attn2.to_k.lora_A.weight": [4, 768]}, Kind.LORA, SD1, None),
    "lora of diffusers": ({"unet.mid.attn2.processor.to_k_lora.down.weight": [4, 1024]}, Kind.LORA, SD2, None),
    "lora of flux": ({"lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight": [4, 3072]}, Kind.LORA, "Flux", None),
    "loha": ({f"lora_unet_{ATTENTION}.hada_w1_a": [320, 8]}, Kind.LYCORIS, None, None),
    "lokr": ({f"lora_unet_{ATTENTION}.lokr_w1": [8, 8]}, Kind.LYCORIS, None, None),
    "controlnet": ({"control_model.time_embed.0.weight": [1280, 320]}, Kind.CONTROLNET, None, None),
    "controlnet of diffusers": (
        {"controlnet_cond_embedding.conv_in.weight": [16, 3, 3, 3], "down_blocks.0.resnets.0.x": [1]},
        Kind.CONTROLNET,
        None,
        None,
    ),
    "vae of a checkpoint": ({"first_stage_model.encoder.conv_in.weight": [128, 3, 3, 3]}, Kind.VAE, None, None),
    "vae of diffusers": ({"decoder.mid_block.resnets.0.conv1.weight": [512, 512, 3, 3]}, Kind.VAE, None, None),
    "text encoder": ({"text_model.encoder.layers.0.mlp.fc1.weight": [3072, 768]}, Kind.TEXT_ENCODER, None, None),
    "t5": ({"encoder.block.0.layer.0.SelfAttention.q.weight": [4096, 4096]}, Kind.TEXT_ENCODER, None, None),
    "embedding": ({"emb_params": [8, 768]}, Kind.EMBEDDING, SD1, None),
    "embedding of xl": ({"clip_l": [8, 768], "clip_g": [8, 1280]}, Kind.EMBEDDING, SDXL, None),
    "embedding of diffusers": ({"<cat-toy>": [1024]}, Kind.EMBEDDING, SD2, None),
    "t2i": ({"body.0.block1.weight": [320, 320, 3, 3]}, Kind.T2I_ADAPTER, None, None),
    "t2i of diffusers": ({"adapter.body.0.resnets.0.block1.weight": [320, 320, 3, 3]}, Kind.T2I_ADAPTER, None, None),
    "ip-adapter": (
        {"image_proj.proj.weight": [3072, 1024], "ip_adapter.1.to_k_ip.weight": [320, 768]},
        Kind.IP_ADAPTER,
        SD1,
        None,
    ),
    "esrgan": ({"conv_first.weight": [64, 3, 3, 3], "body.0.rdb1.conv1.weight": [1]}, Kind.UPSCALER, None, None),
    "old esrgan": ({"model.1.sub.0.RDB1.conv1.0.weight": [32, 64, 3, 3]}, Kind.UPSCALER, None, None),
    "sd3": ({f"{LDM}joint_blocks.0.context_block.x": [1]}, Kind.TRANSFORMER, "SD 3", None),
    "flux": ({"double_blocks.0.img_attn.norm.key_norm.scale": [128]}, Kind.TRANSFORMER, "Flux", None),
    "flux 2": (
        {"double_blocks.0.img_attn.norm.key_norm.scale": [128], "single_stream_modulation.lin.weight": [9216, 3072]},
        Kind.TRANSFORMER,
        "Flux.2",
        None,
    ),
    "flux of diffusers": ({"single_transformer_blocks.0.norm.linear.bias": [1]}, Kind.TRANSFORMER, "Flux", None),
    "cascade": ({"clip_txt_mapper.weight": [2048, 1280]}, Kind.TRANSFORMER, "Stable Cascade", None),
    "wan": ({f"{LDM}head.modulation": [1, 2, 5]}, Kind.TRANSFORMER, None, None),
    "motion": ({"down_blocks.0.motion_modules.0.x": [1]}, Kind.MOTION_MODULE, None, None),
    "another": ({"layer.weight": [3, 3]}, Kind.UNKNOWN, None, None),
    "nothing": ({}, Kind.UNKNOWN, None, None),
}


def write_safetensors(path: Path, shapes: Shapes) -> Path:
    """A file of zeros that takes no room on the disk."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return path


@pytest.mark.parametrize("case", FILES)
def test_tensors_are_recognised_in_any_order(case: str) -> None:
    shapes, kind, family, variant = FILES[case]
    for names in (list(shapes), list(reversed(shapes))):
        found = recognise_tensors({name: shapes[name] for name in names})
        assert (found.kind, found.family, found.variant) == (kind, family, variant)


def test_what_a_checkpoint_lacks_is_told(tmp_path: Path) -> None:
    shapes = checkpoint(2048, "conditioner.embedders.0.x")
    del shapes["first_stage_model.decoder.conv_in.weight"]
    found = recognise_file(write_safetensors(tmp_path / "a.safetensors", shapes))
    assert found.what == "a single-file SDXL checkpoint, without a VAE"


@pytest.mark.parametrize("name", ["plain", "it's", 'a "b" $HOME `x`', "new\nline"])
def test_the_command_survives_a_shell_and_names_the_file(name: str, tmp_path: Path) -> None:
    import ast
    import shlex

    path = tmp_path / f"{name}.ckpt"
    path.write_bytes(b"\x80\x02}q\x00.")
    advice = recognise_file(path).advice
    python, file = shlex.split(advice.partition("    ")[2])[2], str(path.with_suffix(".safetensors"))
    strings = [node.value for node in ast.walk(ast.parse(python)) if isinstance(node, ast.Constant)]
    assert strings.count(str(path)) == strings.count(file) == 1
    assert shlex.split(advice.rpartition("    ")[2]) == ["sdort", "export", file, "OUT"]


CONTENTS = {
    "a.gguf": (b"GGUF\3\0\0\0", Kind.GGUF),
    "a.ckpt": (b"\x80\x02}q\x00.", Kind.PICKLE),
    "a.pth": (b"anything", Kind.PICKLE),
    "a.onnx": (b"\x08\x08", Kind.ONNX),
    "a.plan": (b"anything", Kind.ENGINE),
    "a.7z": (b"7z\xbc\xaf\x27\x1c", Kind.ARCHIVE),
    "a.tar": (b"\0" * 257 + b"ustar\x0000", Kind.ARCHIVE),
    "a.safetensors": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", Kind.POINTER),
    "b.safetensors": (b"\n<!DOCTYPE html><html>", Kind.WEB_PAGE),
    "c.safetensors": (b"", Kind.EMPTY),
    "d.safetensors.crdownload": (b"1", Kind.UNFINISHED),
    "e.txt": (b"text", Kind.UNKNOWN),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_other_files_are_recognised(name: str, tmp_path: Path) -> None:
    content, kind = CONTENTS[name]
    (tmp_path / name).write_bytes(content)
    assert recognise_file(tmp_path / name).kind is kind


@pytest.mark.parametrize(("member", "kind"), [("archive/data.pkl", Kind.PICKLE), ("unet/config.json", Kind.ARCHIVE)])
def test_torchs_zip_is_no_archive(member: str, kind: Kind, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a", "w") as file:
        file.writestr(member, "x")
    assert recognise_file(tmp_path / "a").kind is kind


def test_an_unfinished_download_says_how_much_is_there(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "a.safetensors", checkpoint(768, TEXT[SD1]))
    size = path.stat().st_size
    tensors = size - 8 - struct.unpack("<Q", path.read_bytes()[:8])[0]  # behind the header and its length
    with open(path, "r+b") as file:
        file.truncate(size - 400_000)
    with pytest.raises(BadModelError, match=f"400.0 kB of the {tensors / 1e3:.1f} kB of tensors .* missing") as caught:
        recognise_file(path)
    assert "still being downloaded" in str(caught.value.hint)


@pytest.mark.parametrize("content", [b"\xff" * 100, struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 9) + b'{"a": 1}\n'])
def test_nonsense_is_refused_in_words(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(BadModelError, match="is not a valid safetensors file"):
        recognise_file(tmp_path / "a.safetensors")
