"""Estimates of memory, and the refusals by them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tiny_pipeline import Tiny

from sdort.errors import MemoryShortageError
from sdort.generation import memory_need
from sdort.generation.request import Request
from sdort.machine.gpus import free_memory
from sdort.machine.system import System
from sdort.pipelines.folder import open_folder
from sdort.providers import CPU


def test_what_cannot_fit_is_refused_with_its_size_and_what_fits_is_not(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_folder(tiny.onnx)
    monkeypatch.setattr(memory_need, "free_memory", lambda *_: 8 << 30)
    with pytest.raises(MemoryShortageError, match=r"generating 16384x16384 .* of memory, and 8.6 GB are free"):
        memory_need.refuse_generation(folder, Request("", height=16384, width=16384), 1, CPU, 0)
    memory_need.refuse_generation(folder, Request("", height=256, width=256), 4, CPU, 0)
    with pytest.raises(MemoryShortageError):  # the pixels of all images
        memory_need.refuse_generation(folder, Request("", height=1024, width=1024), 10_000, CPU, 0)


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    for name, text in {
        "proc/meminfo": "MemAvailable: 16000000 kB",
        "sys/fs/cgroup/memory.max": "4000000000",
        "sys/fs/cgroup/memory.current": "3500000000",
        "sys/fs/cgroup/memory.stat": "inactive_file 1000000000",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert free_memory("", 0, System(tmp_path)) == 1_500_000_000
