"""The demo pipeline: an ordinary diffusers directory, the same on every machine."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path

import pytest

from sdort.demo import write_demo
from sdort.errors import OutputError


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sdort.demo.random_pipeline import make_random

    folder = tmp_path_factory.mktemp("demo")
    make_random("tiny", folder)
    return folder


def test_it_is_always_the_same(demo: Path, tmp_path: Path) -> None:
    import torch

    from sdort.demo.random_pipeline import make_random

    torch.manual_seed(1234)
    torch.rand(5)
    make_random("tiny", tmp_path)
    assert _hashes(tmp_path) == _hashes(demo)


def test_making_it_leaves_the_callers_random_numbers_alone(tmp_path: Path) -> None:
    import torch

    from sdort.demo.random_pipeline import make_random

    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    make_random("tiny", tmp_path)
    assert torch.equal(torch.rand(4), expected)


def test_it_is_small(demo: Path) -> None:
    assert sum(file.stat().st_size for file in demo.rglob("*") if file.is_file()) < 30e6


def test_it_has_the_blocks_of_stable_diffusion(demo: Path) -> None:
    unet = json.loads((demo / "unet" / "config.json").read_text())
    assert unet["down_block_types"] == ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"]
    assert unet["up_block_types"] == ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 3
    assert (unet["in_channels"], unet["norm_num_groups"], unet["use_linear_projection"]) == (4, 32, False)
    vae = json.loads((demo / "vae" / "config.json").read_text())
    assert (len(vae["block_out_channels"]), vae["latent_channels"], vae["scaling_factor"]) == (4, 4, 0.18215)
    assert json.loads((demo / "text_encoder" / "config.json").read_text())["hidden_act"] == "quick_gelu"


def test_diffusers_makes_an_image_with_contrast(demo: Path) -> None:
    import torch
    from diffusers import StableDiffusionPipeline

    from sdort.console import quiet_libraries

    with quiet_libraries():
        pipeline = StableDiffusionPipeline.from_pretrained(demo)
        pipeline.set_progress_bar_config(disable=True)
        images = [
            pipeline(prompt, num_inference_steps=2, output_type="pt", height=64, width=64, generator=_seeded()).images
            for prompt in ("a house", "the sea at dusk")
        ]
    assert images[0].shape == (1, 3, 64, 64)
    assert images[0].std() > 0.05
    clipped = ((images[0] == 0) | (images[0] == 1)).float().mean()
    assert clipped < 0.1
    assert not torch.allclose(images[0], images[1], atol=1e-2), "the prompt has no effect"


@pytest.mark.parametrize("text", ["the house and the sea", "Ünïcode, 猫 & 🐈!", ""])
def test_the_tokenizer_keeps_the_text(demo: Path, text: str) -> None:
    from transformers import CLIPTokenizer

    tokenizer = CLIPTokenizer.from_pretrained(demo / "tokenizer")
    ids = tokenizer(text, padding="max_length").input_ids
    assert (len(ids), ids[0], ids[-1]) == (77, tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert max(ids) < json.loads((demo / "text_encoder" / "config.json").read_text())["vocab_size"]
    decoded = tokenizer.decode(ids, skip_special_tokens=True)
    assert decoded.replace(" ", "") == text.lower().replace(" ", "")


def test_the_tokenizer_merges(demo: Path) -> None:
    from transformers import CLIPTokenizer

    tokenizer = CLIPTokenizer.from_pretrained(demo / "tokenizer")
    assert tokenizer.tokenize("the thing") == ["the</w>", "th", "ing</w>"]


def test_transformers_4_finds_the_text_encoders_parameters(demo: Path) -> None:
    """They stand below ``text_model``, as in published checkpoints; the installed transformers reads them too."""
    import torch
    from transformers import CLIPTextModel

    from sdort.checkpoints.safetensors import read_tensors
    from sdort.console import quiet_libraries

    stored = read_tensors(demo / "text_encoder" / "model.safetensors")
    with quiet_libraries():
        loaded = dict(CLIPTextModel.from_pretrained(demo / "text_encoder").named_parameters())
    assert {name.removeprefix("text_model.") for name in stored} == {
        name.removeprefix("text_model.") for name in loaded
    }
    for name, tensor in stored.items():
        assert name.startswith("text_model.")
        parameter = loaded[name if name in loaded else name.removeprefix("text_model.")]
        assert torch.equal(parameter.detach(), torch.from_numpy(tensor.load()))


def _seeded() -> object:
    import torch

    return torch.Generator().manual_seed(0)


def _hashes(folder: Path) -> dict[str, str]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_a_full_disk_while_the_demo_is_copied_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "config.json")

    monkeypatch.setattr("shutil.copystat", fill)
    with pytest.raises(OutputError, match=r"cannot write the demo model: \[Errno 28\] No space left on device"):
        write_demo("demo", tmp_path)
