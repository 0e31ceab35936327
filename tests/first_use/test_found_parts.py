"""Pipelines and their parts by what names them: each is looked up once, and a look makes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sdort.first_use import command


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
