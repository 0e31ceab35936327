"""Pipelines and their parts by what names them: each is looked up once, and a look makes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.first_use import replace_making

from sdort.first_use import command, making
from sdort.first_use.find_pipeline import made_folder, pipeline_folder
from sdort.pipelines.configs import INDEX
from sdort.providers.runtime_options import RuntimeOptions


def test_parts_of_several_jobs_are_made_ready_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Path] = []

    def part(model: Path, _: Any) -> Path:
        asked.append(model)
        return model / "made"

    monkeypatch.setattr(command, "pipeline_folder", lambda model, _: model)
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
    monkeypatch.setattr(making, "_PIPELINE", ("something else",))
    assert made_folder(checkpoint) == checkpoint
    with monkeypatch.context() as without_torch:
        without_torch.delattr(making, "open_export")
        assert made_folder(checkpoint) == checkpoint
    monkeypatch.setattr(making, "_PIPELINE", ())
    made = pipeline_folder(checkpoint, RuntimeOptions())
    assert made_folder(checkpoint) == made != checkpoint
