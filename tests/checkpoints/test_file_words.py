"""What a person is told of a file that is taken for a model: its kind in words, and the next command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from sdort.checkpoints.file_kind import _advice, _describe, recognise_file
from sdort.checkpoints.weight_names import SD1, SDXL, Architecture, Kind
from sdort.errors import BadModelError

ZIP = b"PK\x03\x04" + b"\0" * 22


def entry(name: bytes) -> bytes:
    """A zip file's first entry, of this name."""
    return ZIP + len(name).to_bytes(2, "little") + b"\0\0" + name


FILES: list[tuple[str, bytes, Kind]] = [
    *((f"a{end}", b"GGUF", Kind.UNFINISHED) for end in
      (".crdownload", ".part", ".partial", ".download", ".aria2", ".incomplete", ".tmp", ".PART")),
    ("a.part", b"", Kind.UNFINISHED),
    ("a.safetensors", b"", Kind.EMPTY),
    ("a.safetensors", b"version https://git-lfs.github.com/spec/v1\n", Kind.POINTER),
    ("a.safetensors", b"GGUF", Kind.GGUF),
    ("a.safetensors", b"  \n<!DOCTYPE html>", Kind.WEB_PAGE),
    ("a.safetensors", b"<html lang=en>", Kind.WEB_PAGE),
    ("a.bin", b"<HTML>", Kind.WEB_PAGE),
    ("a", b"<xml>", Kind.UNKNOWN),
    *((f"a{end}", b"\x80\x02", Kind.PICKLE) for end in (".ckpt", ".pt", ".pth", ".bin", ".pkl", ".CKPT")),
    *((f"a{end}", b"x", Kind.PICKLE) for end in (".ckpt", ".pt", ".pth", ".bin", ".pkl", ".Bin")),
    ("a", b"\x80\x02", Kind.UNKNOWN),
    *(("a.any", entry(name), Kind.PICKLE) for name in (b"archive/data.pkl", b"x/.format_version", b"x/byteorder")),
    *(("a.any", entry(name), Kind.ARCHIVE) for name in (b"data.pkl", b"x/data.pkl2", b"byteorder", b"a/b")),
    ("a.ckpt", entry(b"unet/config.json"), Kind.ARCHIVE),
    *(("a.any", magic + b"....", Kind.ARCHIVE) for magic in
      (b"\x1f\x8b", b"7z\xbc\xaf", b"Rar!", b"\xfd7zXZ", b"\0" * 257 + b"ustar")),
    ("a.any", b"\0" * 256 + b"ustar", Kind.UNKNOWN),
    ("a.any", b"\0\x1f\x8b", Kind.UNKNOWN),
    *((f"a{end}", b"x", Kind.ENGINE) for end in (".engine", ".plan", ".trt", ".TRT")),
    ("a.onnx", b"x", Kind.ONNX),
    ("a.ONNX", b"x", Kind.ONNX),
    ("a.txt", b"x", Kind.UNKNOWN),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "kind"), FILES)
def test_a_files_first_bytes_and_its_ending(tmp_path: Path, name: str, content: bytes, kind: Kind) -> None:
    (tmp_path / name).write_bytes(content)
    assert recognise_file(tmp_path / name).kind is kind


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadModelError, match="cannot read"):
        recognise_file(tmp_path / "nowhere.safetensors")
    with pytest.raises(BadModelError, match="folder"):
        recognise_file(tmp_path)


BOTH = ("text encoder", "VAE")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Architecture(Kind.CHECKPOINT, SDXL), "a single-file SDXL checkpoint"),
        (Architecture(Kind.CHECKPOINT, None), "a single-file checkpoint"),
        (Architecture(Kind.CHECKPOINT, SD1, "inpainting"), "a single-file SD 1.x checkpoint (inpainting)"),
        (Architecture(Kind.CHECKPOINT, SD1, None, ("VAE",)), "a single-file SD 1.x checkpoint, without a VAE"),
        (
            Architecture(Kind.CHECKPOINT, SD1, "inpainting", BOTH),
            "a single-file SD 1.x checkpoint (inpainting), without a text encoder and a VAE",
        ),
        (Architecture(Kind.UNET, SD1, None, BOTH), "an SD 1.x UNet"),
        (Architecture(Kind.UNET, None, "depth"), "a UNet (depth)"),
        (Architecture(Kind.TEXT_ENCODER), "a text encoder"),
        (Architecture(Kind.VAE), "a VAE"),
        (Architecture(Kind.LORA), "a LoRA"),
        (Architecture(Kind.LORA, "Flux"), "a Flux LoRA"),
        (Architecture(Kind.LYCORIS, SDXL), "an SDXL LyCORIS adapter"),
        (Architecture(Kind.IP_ADAPTER), "an IP-Adapter"),
        (Architecture(Kind.MOTION_MODULE), "an AnimateDiff motion module"),
        (Architecture(Kind.UPSCALER), "an upscaler"),
        (Architecture(Kind.CONTROLNET), "a ControlNet"),
        (Architecture(Kind.TRANSFORMER, "AuraFlow"), "an AuraFlow model"),
        (Architecture(Kind.TRANSFORMER, "HunyuanVideo"), "a HunyuanVideo model"),
        (Architecture(Kind.TRANSFORMER, "x4 upscaler"), "an x4 upscaler model"),
        (Architecture(Kind.TRANSFORMER), "a model of another architecture"),
        (Architecture(Kind.TRANSFORMER, "AudioLDM"), "an AudioLDM model"),
        (Architecture(Kind.TRANSFORMER, "unconditional diffusion"), "an unconditional diffusion model"),
        (Architecture(Kind.TRANSFORMER, "LTX-Video"), "an LTX-Video model"),
        (Architecture(Kind.TRANSFORMER, "Sana"), "a Sana model"),
        (Architecture(Kind.TRANSFORMER, "Lumina"), "a Lumina model"),
        (Architecture(Kind.TRANSFORMER, "SD 2.1 unCLIP"), "an SD 2.1 unCLIP model"),
        (Architecture(Kind.TRANSFORMER, "Stable Cascade"), "a Stable Cascade model"),
        (Architecture(Kind.EMBEDDING, SD1), "an SD 1.x textual inversion"),
    ],
)
def test_an_architecture_in_words(found: Architecture, words: str) -> None:
    assert _describe(found) == words


ADVICE = {
    Kind.CHECKPOINT: "sdort export 'a b' OUT",
    Kind.CONTROLNET: "sdort export 'a b' CONTROL",
    Kind.T2I_ADAPTER: "sdort exports T2I-Adapters as diffusers folders.",
    Kind.LORA: "sdort export PIPELINE OUT --lora 'a b'",
    Kind.LYCORIS: "sdort export PIPELINE OUT --lora 'a b'",
    Kind.IP_ADAPTER: "sdort export PIPELINE OUT --ip-adapter 'a b'",
    Kind.VAE: "sdort export MODEL OUT --vae 'a b'",
    Kind.UNET: "sdort export 'a b' OUT --config DIR",
    Kind.TEXT_ENCODER: "It is one component.",
    Kind.EMBEDDING: "sdort export PIPELINE OUT --embedding 'a b'",
    Kind.TRANSFORMER: "sdort exports Stable Diffusion 1.x",
    Kind.UPSCALER: "sdort upscale IMAGE --model 'a b'",
    Kind.MOTION_MODULE: "sdort does not export this kind.",
}


@pytest.mark.parametrize("kind", ADVICE)
def test_the_next_command(kind: Kind) -> None:
    assert ADVICE[kind] in _advice(Path("a b"), Architecture(kind))


def test_unknown_tensors_are_named(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    for names, words in (
        ("", "a safetensors file without tensors"),
        ("x", "a safetensors file of 1 tensor that sdort does not know (x)"),
        ("zyx", "a safetensors file of 3 tensors that sdort does not know (x, y, z)"),
        ("wzyx", "a safetensors file of 4 tensors that sdort does not know (w, x, y, ...)"),
    ):
        save_file({name: np.ones((3, 3), np.float32) for name in names}, file)
        assert recognise_file(file).what == words
