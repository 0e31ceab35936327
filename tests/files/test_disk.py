"""What would be written is compared with what is free, before anything is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from support.tiny_pipeline import Tiny

import sdort
from sdort.cli import cli
from sdort.errors import OutputError
from sdort.files.disk import PlannedWrite, WritePlan, plan_writes
from sdort.tuning.store import Store


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """``room(n)`` leaves n bytes free on every disk."""
    return lambda free: monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 60, 0, free))


def writes_of(plan: WritePlan) -> dict[str, int]:
    return {write.name: write.bytes for write in plan.writes}


def test_one_disk_has_to_hold_all_of_it(tmp_path: Path, room: Callable[[int], None]) -> None:
    writes = [PlannedWrite("unet", tmp_path / "no" / "out", 700_000_000), PlannedWrite("traces", tmp_path, 300_000_000)]
    room(1_500_000_000)
    assert plan_writes(writes, scratch=500_000_000).fits
    room(1_499_999_999)
    plan = plan_writes(writes, scratch=500_000_000)
    assert (plan.fits, plan.bytes) == (False, 1_000_000_000)
    with pytest.raises(OutputError, match=r"at .*/no/out: 1.5 GB are needed and 1.5 GB are free") as caught:
        plan.raise_if_short()
    assert caught.value.hint == "Free 1 B there, or write to another disk."


def test_what_a_cache_would_keep_needs_no_room(tmp_path: Path, room: Callable[[int], None]) -> None:
    """A full disk under the cache costs the cache, not the work."""
    traces = PlannedWrite("traces", tmp_path, 300_000_000, only_if_room=True)
    room(700_000_000)
    plan = plan_writes([PlannedWrite("unet", tmp_path, 700_000_000), traces])
    assert plan.fits
    plan.raise_if_short()
    assert plan.bytes == 1_000_000_000
    room(699_999_999)
    assert not plan_writes([PlannedWrite("unet", tmp_path, 700_000_000), traces]).fits


def test_disks_are_counted_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("one file system only")
    free = {tmp_path: 10, other: 5}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, free[path]))
    plan = plan_writes([PlannedWrite("a", tmp_path, 8), PlannedWrite("b", other, 6)], scratch=2)
    assert [(space.needed, space.free) for space in plan.disks] == [(10, 10), (6, 5)]
    with pytest.raises(OutputError, match="at /dev/shm: 6 B are needed and 5 B are free"):
        plan.raise_if_short()


def test_an_optimization_is_planned_as_it_comes_out(tiny: Tiny, tmp_path: Path) -> None:
    out = tmp_path / "fast"
    for fp16 in (False, True):
        request: dict[str, Any] = {"provider": "cpu", "fp16": fp16, "components": ["text_encoder", "vae_decoder"]}
        planned = writes_of(sdort.plan_optimize(tiny.onnx, out, **request))
        assert not out.exists()
        report = sdort.optimize(tiny.onnx, out, **request, allow_misses=True)
        assert list(report.components) == request["components"]
        for name, component in report.components.items():
            # The graph shrinks; the weights, most of these files, are known.
            assert component.bytes <= planned[name] <= 1.5 * component.bytes + 100_000
        shutil.rmtree(out)
    with_trial = sdort.plan_optimize(tiny.onnx, out, provider="cpu", fp16="auto")
    assert with_trial.scratch > 0
    assert with_trial.peak_memory > sdort.plan_optimize(tiny.onnx, out, provider="cpu", fp16=True).peak_memory


def test_an_export_is_planned_in_fp32_by_halves(tiny: Tiny, tmp_path: Path) -> None:
    plan = sdort.plan_export(tiny.diffusers, tmp_path / "out", cache_dir=tmp_path / "traces")
    assert [path.name for path in tmp_path.iterdir()] == []
    sizes = {name: tiny.onnx / name / "model.onnx" for name in ("text_encoder", "unet", "vae_decoder")}
    for name, file in sizes.items():
        weights = writes_of(plan)[name] - 1_000_000
        assert abs(weights - file.stat().st_size) < 0.2 * weights + 200_000  # the file has the graph too
    assert writes_of(plan)["traces"] == 4_000_000
    parameters = sum(tensor.numel() for tensor in tiny.pipeline.vae.parameters())
    halves = writes_of(plan)["vae_encoder"] + writes_of(plan)["vae_decoder"] - 2_000_000
    assert halves == 4 * parameters


def test_nothing_begins_where_it_would_not_fit(
    tiny: Tiny, tmp_path: Path, room: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    room(50_000)
    calls: list[Callable[[], Any]] = [
        lambda: sdort.export(tiny.diffusers, tmp_path / "out", cache_dir=tmp_path / "traces"),
        lambda: sdort.optimize(tiny.onnx, tmp_path / "out", provider="cpu"),
        lambda: sdort.warm(tiny.onnx, provider="cpu"),
    ]
    for call in calls:
        with pytest.raises(OutputError, match=r"not enough disk space at .* are needed and 50.0 kB are free"):
            call()
    assert not (tmp_path / "out").exists()
    assert not Store().folder.exists()


@pytest.mark.parametrize("command", ["export", "optimize", "warm"])
def test_a_dry_run_says_it_and_writes_nothing(
    command: str, tiny: Tiny, tmp_path: Path, room: Callable[[int], None]
) -> None:
    out = str(tmp_path / "out")
    arguments = {
        "export": ["export", str(tiny.diffusers), out, "--cache-dir", str(tmp_path / "traces")],
        "optimize": ["optimize", str(tiny.onnx), out, "--provider", "cpu", "--fp16"],
        "warm": ["warm", str(tiny.onnx), "--provider", "cpu"],
    }[command]
    done = CliRunner().invoke(cli, [*arguments, "--dry-run"])
    assert (done.exit_code, done.stdout.splitlines()[-1].partition(":")[0]) == (0, "It fits")
    assert "unet" in done.stdout
    plan = json.loads(CliRunner().invoke(cli, [*arguments, "--dry-run", "--json"]).stdout)
    assert (plan["schema"], plan["fits"]) == ("sdort-plan-1", True)
    room(1000)
    done = CliRunner().invoke(cli, [*arguments, "--dry-run"])
    assert (done.exit_code, "not enough disk space" in done.stderr, "unet" in done.stdout) == (7, True, True)
    assert list(tmp_path.iterdir()) == []
    assert not Store().folder.exists()
