"""Pipelines and their parts by what names them: each is looked up once, and a look makes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.first_use import replace_making

from sdort.checkpoints.configs import INDEX
from sdort.checkpoints.safetensors import write_tensors
from sdort.errors import BadModelError
from sdort.first_use import command, making
from sdort.first_use.find_pipeline import made_folder, part_folder, pipeline_folder, plan_folder
from sdort.first_use.unmade import check_control
from sdort.graph.weights import Inline
from sdort.providers.runtime_options import RuntimeOptions


def test_parts_of_several_jobs_are_made_ready_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Path] = []

    def part(model: Path, _: Any) -> Path:
        asked.append(model)
        return model / "made"

    monkeypatch.setattr(command, "pipeline_folder", lambda model, *_: model)
    monkeypatch.setattr(command, "part_folder", part)
    monkeypatch.setattr(command, "prepare_run", lambda folder, jobs, *_: jobs)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a star", "steps": 2}\n{"prompt": "a moon", "steps": 3}\n')
    options: Any = {"prompts": prompts, "refiner": tmp_path / "r", "output": tmp_path / "{index}.png"}
    jobs: Any = command._planned(tmp_path, (), options)
    assert [job.requests[0].refiner for job in jobs] == [tmp_path / "r" / "made"] * 2
    assert asked == [tmp_path / "r"]


def test_a_checkpoint_that_is_not_made_ready_stays_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also one that could not be made ready: it has no VAE, or there is no torch."""
    replace_making(monkeypatch)
    checkpoint = tmp_path / "dream"
    checkpoint.mkdir()
    for name in (INDEX, "of.safetensors"):
        (checkpoint / name).write_text("{}")
    assert made_folder(checkpoint) == checkpoint
    with monkeypatch.context() as without_torch:
        without_torch.delattr(making, "open_export")
        assert made_folder(checkpoint) == checkpoint
    made = pipeline_folder(checkpoint, RuntimeOptions())
    assert made_folder(checkpoint) == made != checkpoint


def _ldm(path: Path) -> None:
    write_tensors(path, {"model.diffusion_model.input_blocks.1.0.in_layers.2.weight": _VALUE})


def _lora(path: Path) -> None:
    write_tensors(path, {"lora_unet_mid_block_attentions_0.lora_down.weight": _VALUE})


_VALUE = Inline(np.zeros((2, 2), np.float32))
OTHERS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a LoRA": (
        {"x.safetensors": _lora},
        "x.safetensors",
        r"a LoRA, not a model that sdort runs\n.*\n *sdort run MODEL --lora \S",
    ),
    "a pickle": (
        {"x.ckpt": b"\x80\x02"},
        "x.ckpt",
        r"a pickle of PyTorch, not(.|\n)*sdort run \S+x\.safetensors --prompt",
    ),
    "an empty file": ({"x.safetensors": b""}, "x.safetensors", "an empty file, not a model that sdort runs"),
    "an unknown file": (
        {"x.safetensors": lambda path: write_tensors(path, {"a": _VALUE})},
        "x.safetensors",
        "does not know",
    ),
    "an empty folder": ({}, ".", "is no pipeline: it has neither"),
    "a folder of files": (
        {"b.safetensors": _ldm, "a.safetensors": _ldm, "c.safetensors": _lora},
        ".",
        r"a folder of checkpoints: a\.safetensors, b\.safetensors\n *Give one of them:\n *\S+/a\.\w+\n *\S+/b\.\w+$",
    ),
    "a folder of a LoRA": ({"c.safetensors": _lora}, ".", r"holds c\.safetensors, a LoRA, and no pipeline"),
    "a part": (
        {INDEX: b"{}", "unet/config.json": b"{}"},
        "unet",
        r"a part of the pipeline .*\n *Give the whole pipeline:\n    \S+$",
    ),
    "a folder around": ({f"one/{INDEX}": b"{}"}, ".", r"but one in it is one\n *Give that:\n    \S+/one$"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_is_nothing_to_draw_with_is_told_with_what_to_do(what: str, tmp_path: Path) -> None:
    files, given, words = OTHERS[what]
    for place, content in files.items():
        (tmp_path / place).parent.mkdir(exist_ok=True)
        if callable(content):
            content(tmp_path / place)
        else:
            (tmp_path / place).write_bytes(content)
    for find in (pipeline_folder, plan_folder):
        with pytest.raises(BadModelError, match=words):
            find(tmp_path / given, RuntimeOptions())


def test_a_pipeline_is_no_control_and_not_made_ready_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = replace_making(monkeypatch)
    checkpoint = tmp_path / "dream"
    checkpoint.mkdir()
    for name in (INDEX, "of.safetensors"):
        (checkpoint / name).write_text("{}")
    with pytest.raises(BadModelError, match=r"--control \S+dream holds text_encoder, unet, vae_decoder, and neither"):
        part_folder(checkpoint, RuntimeOptions(), check_control)
    assert not made.requests


@pytest.mark.parametrize("name", ["canny.safetensors", "CANNY.SAFETENSORS", "Canny.SafeTensors"])
def test_a_control_is_made_ready_whatever_the_case_of_its_suffix(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a checkpoint is: other readers of files know no case either."""
    made = replace_making(monkeypatch)
    write_tensors(tmp_path / name, {"controlnet_cond_embedding.conv_in.weight": _VALUE})
    assert part_folder(tmp_path / name, RuntimeOptions()) != tmp_path / name
    assert [model for model, _ in made.exports] == [tmp_path / name]
    write_tensors(tmp_path / f"lora-{name}", {"lora_unet_mid_block_attentions_0.lora_down.weight": _VALUE})
    assert part_folder(tmp_path / f"lora-{name}", RuntimeOptions()) == tmp_path / f"lora-{name}"
