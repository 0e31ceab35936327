"""``sdort bench --engines`` and ``--preset``: one table, the same noise and scheduler."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.tiny_pipeline import Tiny, edit_weights

from sdort.benchmark import measure as bench_module
from sdort.benchmark import setup as plan
from sdort.benchmark.bench_options import BenchOptions
from sdort.benchmark.measure import measure_pipeline
from sdort.benchmark.row_table import caption, cells
from sdort.benchmark.setup import apply_preset
from sdort.cli import cli
from sdort.errors import UsageError
from sdort.optimizer.command import optimize
from sdort.providers import CPU
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.runtime_options import RuntimeOptions

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

ENGINES = ("onnxruntime", "torch", "torch-compile")


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch, tiny: Tiny) -> BenchOptions:
    """All engines, with a compiler that changes nothing and clocks that give each engine its own time."""
    import torch

    def interleave(calls: Sequence[Any], repeat: int, advance: Any) -> list[list[float]]:
        return [[10.0 * (index + 1)] * repeat for index in range(len(calls))]

    monkeypatch.setattr(torch, "compile", lambda module, **_: module)
    monkeypatch.setattr(bench_module, "interleave", interleave)
    return BenchOptions(
        runtime=RuntimeOptions("cpu"), engines=ENGINES, checkpoint=tiny.diffusers, reference=tiny.diffusers,
        components=("unet", "pipeline"), scheduler="unipc", steps=3, warmup=0, repeat=2,
    )  # fmt: skip


def test_engines_draw_the_same_images_and_are_compared_with_the_first(tiny: Tiny, options: BenchOptions) -> None:
    rows = measure_pipeline(tiny.onnx, options).rows
    assert [(row.engine, row.component) for row in rows] == [
        (engine, component) for component in ("unet", "pipeline") for engine in ENGINES
    ]
    for row in rows:
        assert row.status == "ok"
        # The pipeline's own scheduler, DDIM, would leave 27 dB.
        assert row.psnr_db is None or row.psnr_db > 40
    assert [row.speedup for row in rows] == [None, 0.5, pytest.approx(1 / 3)] * 2


def test_torch_computes_in_fp32_on_the_cpu_beside_fp16_and_says_so(
    tiny: Tiny, options: BenchOptions, tmp_path: Path
) -> None:
    """As ONNX Runtime does there between its casts; torch's own fp16 takes a hundred times as long."""
    optimize(tiny.onnx, tmp_path / "fast", provider="cpu", fp16=True)
    rows = measure_pipeline(tmp_path / "fast", replace(options, components=("unet",))).rows
    assert [(row.engine, row.dtype, row.status) for row in rows] == [
        ("onnxruntime", "float16", "ok"), ("torch", "float32", "ok"), ("torch-compile", "float32", "ok"),
    ]  # fmt: skip
    assert [line[1] for line in cells(rows)[1]] == [
        "onnxruntime cpu fp16", "torch cpu fp32", "torch-compile cpu fp32",
    ]  # fmt: skip
    assert "; torch-compile: mode default" in caption(rows)
    assert "torch in fp32: on the CPU ONNX Runtime computes in fp32 too" in caption(rows)
    assert "torch in fp32" not in caption(rows[:1]) + caption(rows[1:])


def test_on_a_gpu_torch_has_the_precision_of_what_it_stands_beside(tiny: Tiny, tmp_path: Path) -> None:
    optimize(tiny.onnx, tmp_path / "fast", provider="cpu", fp16=True)
    for path, provider, dtype in (
        (tmp_path / "fast", CUDA, "float16"), (tiny.onnx, CUDA, "float32"), (tiny.diffusers, CUDA, "float16"),
        (tmp_path / "fast", CPU, "float32"), (tiny.diffusers, CPU, "float32"),
    ):  # fmt: skip
        assert plan._torch_dtype(path, BenchOptions(), provider) == dtype


def test_a_wrong_first_engine_gives_no_ratio(tiny: Tiny, options: BenchOptions, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(tiny.onnx, tmp_path / "broken"))
    edit_weights(broken / "unet" / "model.onnx", lambda array, _: array * 3, "conv_out.weight")
    rows = measure_pipeline(broken, options).rows
    assert [row.failed for row in rows] == [True, False, False] * 2
    assert [row.speedup for row in rows] == [None] * 6
    assert [row.median_ms for row in rows[:3]] == [None, 10.0, 20.0]


def test_the_checkpoint_is_looked_for_once(tiny: Tiny, options: BenchOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Path] = []

    @contextmanager
    def find(path: Path) -> Iterator[Path]:
        looked.append(path)
        yield tiny.diffusers

    monkeypatch.setattr(plan, "checkpoint_of", find)
    rows = measure_pipeline(tiny.onnx, replace(options, checkpoint=None, components=("text_encoder",))).rows
    assert [row.engine for row in rows] == list(ENGINES)
    assert looked == [tiny.onnx]


def test_the_command_takes_engines(tiny: Tiny, options: BenchOptions, tmp_path: Path) -> None:
    args = ["bench", str(tiny.onnx), "--provider", "cpu", "--component", "text_encoder", "--repeat", "2"]
    engines = ["--engines", "torch,onnxruntime", "--checkpoint", str(tiny.diffusers), "--format", "json"]
    result = CliRunner().invoke(cli, [*args, *engines])
    assert result.exit_code == 0, result.output
    assert [row["engine"] for row in json.loads(result.stdout)["rows"]] == ["torch", "onnxruntime"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--engines", "onnxruntime,jax"], "'jax' is not one of onnxruntime, torch, torch-compile"),
        (["--engines", "torch", "--baseline", "."], "--engines stands alone"),
        (["--engines", "torch", "--ablation"], "--ablation compares variants"),
        (["--preset", "mlperf-sdxl"], "is for SDXL"),
    ],
)
def test_options_that_do_not_go_together(args: list[str], words: str, tiny: Tiny) -> None:
    result = CliRunner().invoke(cli, ["bench", str(tiny.onnx), *args])
    assert result.exit_code == UsageError.exit_code
    assert words in result.stderr


def test_the_presets_settings_are_mlperfs(tmp_path: Path) -> None:
    (tmp_path / "text_encoder_2").mkdir()
    made = apply_preset("mlperf-sdxl", tmp_path, BenchOptions(components=("unet",), batch_sizes=(4,), steps=3))
    assert (made.sizes, made.steps, made.scheduler, made.batch_sizes) == (((1024, 1024),), 20, "euler", (1,))
