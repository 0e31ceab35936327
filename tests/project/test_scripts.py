"""The scripts that README and docs name, at their smallest on the CPU: they run, and what is wrong is their exit code.

One tiny pipeline serves them all; the exporter's traces of it are those of other tests.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from safetensors.numpy import load_file
from support import native, task_parity, tiny_control, tiny_pipeline
from support.pipelines import trace_folder
from support.script_modules import SCRIPTS

from sdort.checkup.prediction import Fit
from sdort.cli import cli
from sdort.demo.scenes import Scene, SceneShape, render
from sdort.errors import ProviderError
from sdort.generation.denoising.adapted_weights import AdapterPlan
from sdort.generation.schedules.image_noise import SeededNormal
from sdort.optimizer.command import optimize
from sdort.runtime import session as sessions
from sdort.runtime.replaced_weights import ReplacedWeights
from sdort.serving.batching import BatchRule

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

ROOT = SCRIPTS.parent
ELSEWHERE = {
    "card_table.py": "runtime/test_recommendation.py",
    "checkup_graphs.py": "checkup/test_graphs.py",
    "cold_start.py": "benchmark/test_time_scripts.py",
    "own_time.py": "benchmark/test_time_scripts.py",
    "deep_cache.py": "benchmark/test_time_scripts.py",
    "directml_kernels.py": "providers/test_dml.py",
    "demo_as_sd1.py": "demo/test_wide_demo.py",
    "fuzz.py": "project/test_fuzz.py",
    "generated_files.py": "project/test_generated_files.py",
    "gpu_benchmark.py": "benchmark/test_gpu_benchmark.py",
    "gpu_trust.py": "project/test_gpu_trust.py",
    "json_schemas.py": "project/test_json_documents.py",
    "layout_benchmark.py": "benchmark/test_layout_benchmark.py",
    "measure_gpu.sh": "benchmark/test_measure_gpu.py",
    "ops_benchmark.py": "operator_library/test_ops_benchmark.py",
    "performance_table.py": "checkup/test_performance_table.py",
    "option_keywords.py": "project/test_option_page.py",
    "serve_benchmark.py": "serving/test_operation.py",
    "shared_images.py": "benchmark/test_time_scripts.py",
    "torch_operators_benchmark.py": "benchmark/test_torch_operators_benchmark.py",
    "trust.py": "project/test_trust.py",
}
"""Script -> the tests that run it."""
APART = {
    "check_comfyui.py": "a checkout of ComfyUI; its nodes are tested in integrations/test_comfyui_*.py",
    "comfyui_benchmark.py": "a checkout of ComfyUI",
    "check_migraphx.py": "ROCm's libmigraphx; what it reads of a graph is tested in providers/test_migraphx_graphs.py",
    "demo.sh": "makes a Python environment of its own; its commands are tested in project/test_trust.py",
    "mutate.py": "an environment with cosmic-ray",
    "test.sh": "runs these tests",
    "tour.sh": "makes a Python environment of its own, and draws for minutes",
}
"""Script -> what it needs that no test has."""


@dataclass(frozen=True)
class Made:
    """The pipeline: as diffusers has it, exported, and optimized for the CPU in fp16."""

    checkpoint: Path
    exported: Path
    fast: Path
    traces: Path

    def work(self, folder: Path) -> Path:
        """A working folder of scripts/gpu_benchmark.py with the pipeline as family ``tiny`` in it."""
        folder.mkdir()
        (folder / "checkpoint-tiny").symlink_to(self.checkpoint)
        for name in ("unet-dynamic", "unet-2-64x64", "vae_decoder-dynamic", "vae_decoder-1-64x64"):
            (folder / f"checkpoint-tiny-{name}-cpu").symlink_to(self.fast)
        (folder / "diffusers-tiny-cpu").symlink_to(self.fast)
        return folder


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder, traces = tmp_path_factory.mktemp("scripts"), trace_folder(request.config)
    tiny_pipeline.build_diffusers(folder / "checkpoint")
    tiny_control.export_part(folder / "checkpoint", folder / "exported", traces)
    optimize(folder / "exported", folder / "fast", provider="cpu", fp16=True)
    return Made(folder / "checkpoint", folder / "exported", folder / "fast", traces)


@pytest.fixture
def traces(request: pytest.FixtureRequest) -> Path:
    """The traces that the tests share; the exporter's own cache has them too."""
    cache = Path(os.environ["XDG_CACHE_HOME"]) / "sdort"
    cache.mkdir(parents=True)
    (cache / "traces").symlink_to(trace_folder(request.config))
    return trace_folder(request.config)


Run = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run(name, argument, ...)`` is the exit code of a script, which runs in this process."""

    def call(name: str, *words: object) -> int:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, words)])
        try:
            return int(importlib.import_module(name).main() or 0)
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)

    return call


def test_every_script_that_a_page_names_is_run() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "custom_ops").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"(?<![\w/])scripts/(\w+\.(?:py|sh))", page.read_text())}
    here = {f"{name}.py" for name in re.findall(r'run\(\s*"(\w+)"', Path(__file__).read_text())}
    assert named - here - ELSEWHERE.keys() - APART.keys() == set()
    for script, tests in ELSEWHERE.items():
        assert script.partition(".")[0] in (ROOT / "tests" / tests).read_text(), script
    assert {name for name in {*here, *ELSEWHERE, *APART} if not (SCRIPTS / name).exists()} == set()
    assert here & (ELSEWHERE.keys() | APART.keys()) == set()


@pytest.fixture(scope="module")
def adapted(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder of scripts/bench_adapters.py."""
    work = tmp_path_factory.mktemp("adapters")
    (work / "plain-cpu-fp16").symlink_to(made.fast)
    return work


def adapters(run: Run, made: Made, work: Path) -> tuple[int, dict[str, dict[str, float]]]:
    """The exit code of scripts/bench_adapters.py, and what it compared."""
    report = work / "report.json"
    words = ("--provider", "cpu", "--fp16", "--size", 8, "--rounds", 1, "--rank", 2, "--kind", "attention")
    code = run("bench_adapters", made.checkpoint, "--work", work, "--json", report, *words)
    return code, json.loads(report.read_text())["checks"]


def test_adapters_on_an_open_session(made: Made, run: Run, traces: Path, adapted: Path) -> None:
    code, checks = adapters(run, made, adapted)
    assert (code, len(checks)) == (0, 10), checks
    exact = {"attention: on, opened on the same weights", "attention: off, as before", "image: off, as before"}
    assert all(checks[name]["difference"] == 0 for name in exact)


def test_a_wrong_adapter_is_the_exit_code(
    made: Made, run: Run, traces: Path, adapted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has twice its scale, and stays on when it is switched off."""
    whole = vars(AdapterPlan)["changes"].func

    def doubled(plan: AdapterPlan) -> dict[str, Any]:
        return {
            component: {name: [(delta, 2 * scale) for delta, scale in deltas] for name, deltas in changes.items()}
            for component, changes in whole(plan).items()
        }

    monkeypatch.setattr(AdapterPlan, "changes", property(doubled))

    @contextmanager
    def forgotten(weights: ReplacedWeights, names: Sequence[str]) -> Iterator[Callable[[str], None]]:
        weights._changed.difference_update(names)
        yield lambda name: None

    monkeypatch.setattr(ReplacedWeights, "restoring", forgotten)
    code, checks = adapters(run, made, adapted)
    wrong = {name.partition(": ")[2] for name, check in checks.items() if not check["ok"]}
    assert (code, wrong) == (1, {"on, exported with the LoRA", "off, as before", "off, without adapters"})


def test_control(made: Made, run: Run, traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import bench_control

    monkeypatch.setattr(bench_control, "FACTOR", tiny_pipeline.VAE_FACTOR)
    tiny_control.build_controlnet(tmp_path / "net")
    (tmp_path / "unet").symlink_to(made.checkpoint)
    (tmp_path / "plain model").symlink_to(made.exported)
    words = ("--work", tmp_path, "--repeat", 1, "--warmup", 0)
    assert run("bench_control", *words) == 0
    plain = SimpleNamespace(output=SimpleNamespace(read=lambda: np.ones(4)))  # of every row: nothing is steered
    monkeypatch.setattr(bench_control, "opened", lambda *_: {row: lambda: plain for row in bench_control.ROWS})
    assert run("bench_control", *words) == 1


def test_linear_layers(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import linears_benchmark

    words = (
        "--provider",
        "cpu",
        "--family",
        "tiny",
        "--size",
        "64x64",
        "--repeat",
        1,
        "--json",
        tmp_path / "rows.json",
    )
    assert run("linears_benchmark", *words) == 0
    report = json.loads((tmp_path / "rows.json").read_text())
    # Ten blocks (three down, one in the middle, two for each of three up) of two attentions: three projections of the
    # tokens, one for the prompt, two outputs, and the two of GEGLU.
    counts = {"normalization": 10 * 5, "attention": 10 * 2, "GEGLU": 10}
    assert {
        reads: sum(row["count"] for row in report["rows"] if row["layer"]["reads"] == reads) for reads in counts
    } == counts
    assert all((row["rounding"] > 0) == (row["layer"]["reads"] == "attention") for row in report["rows"])
    rounded = linears_benchmark.rounded
    monkeypatch.setattr(linears_benchmark, "rounded", lambda values: (rounded(values)[0], rounded(values)[1] * 1.2))
    assert run("linears_benchmark", *words) == 1


def test_a_step_in_fp8(made: Made, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fp8_step

    words = (made.fast, "--work", tmp_path / "work", "--provider", "cpu", "--size", "64x64", "--repeat", 1)
    assert run("fp8_step", *words, "--json", tmp_path / "step.json") == 0
    report = json.loads((tmp_path / "step.json").read_text())
    assert report["products"] > 20
    assert 5e-3 < report["error"] < 1e-1  # three bits of a factor
    recorded = fp8_step.recorded
    monkeypatch.setattr(fp8_step, "recorded", lambda *given: [each / 8 for each in recorded(*given)])
    assert run("fp8_step", *words) == 1  # all but small values are cut off


def test_tasks(made: Made, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("bench_tasks", made.exported, "--provider", "cpu", "--size", "64x64", "--steps", 2, "--rounds", 1) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["task", "text", "img2img", "inpaint", "hires"]
    assert all(float(number) > 0 for row in rows[1:] for number in row[1:3])


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install ray")
def test_batches_on_workers(made: Made, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import batch_gpus

    small = ("--provider", "cpu", "--size", "64x64", "--steps", 1, "--rounds", 1, "--images", 2, "--workers", 1)
    words = (made.fast, *small, "--share", 1, "--json", tmp_path / "rates.json")
    assert run("batch_gpus", *words) == 0
    found = json.loads((tmp_path / "rates.json").read_text())
    assert found["same"] is True
    assert [len(each) for each in found["rates"].values()] == [1, 1]
    rates = iter((2.0, 1.0, 2.0, 2.0))
    monkeypatch.setattr(batch_gpus, "drawn", lambda *_: next(rates))
    monkeypatch.setattr(batch_gpus, "hashes", lambda out: {"a.png": "0"})
    assert run("batch_gpus", *words, "--share", 0.4) == 1  # half as many images
    monkeypatch.setattr(batch_gpus, "hashes", lambda out: {"a.png": out.name})
    assert run("batch_gpus", *words) == 1  # other images


NEIGHBOURS = ("--provider", "cpu", "--family", "tiny", "--size", "64x64", "--modes", "stream", "--parts", "mixed",
              "--sessions", 2, "--processes", 1, "--seconds", 0.1)  # fmt: skip


def test_neighbours(made: Made, run: Run, tmp_path: Path) -> None:
    work, report = made.work(tmp_path / "work"), tmp_path / "rows.json"
    assert run("gpu_neighbours", "--work", work, *NEIGHBOURS, "--json", report) == 0
    [row] = json.loads(report.read_text())
    assert (row["end"], row["wrong"]) == ("done", 0)
    assert row["runs"] >= 16
    (work / "checkpoint-tiny-unet-2-64x64-cpu").unlink()
    shutil.copytree(made.fast, work / "checkpoint-tiny-unet-2-64x64-cpu")
    (work / "checkpoint-tiny-unet-2-64x64-cpu" / "unet" / "model.onnx").write_bytes(b"no model")
    assert run("gpu_neighbours", "--work", work, *NEIGHBOURS, "--json", report) == 1
    assert [row["end"] for row in json.loads(report.read_text())] == ["died with exit code 1"]


def test_a_neighbour_that_computes_another_result_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    import gpu_neighbours

    class Binding(sessions.Binding):
        def __init__(self) -> None:
            self.ran = 0

        def run(self) -> None:
            self.ran += 1

        def outputs(self) -> dict[str, Any]:
            return {"sample": np.full(4, self.ran > 3, np.float32)}

    monkeypatch.setattr(gpu_neighbours.Runner, "__init__", threading.Thread.__init__)
    runner = gpu_neighbours.Runner()  # type: ignore[call-arg]
    runner.binding, runner.seconds, runner.all_ready = Binding(), 0.01, threading.Barrier(1)
    runner.runs = runner.wrong = 0
    runner.work()
    assert runner.wrong == runner.runs // runner.EVERY > 0


RUNTIME = ("--provider", "cpu", "--family", "tiny", "--size", "64x64", "--decode", 64, "--steps", 3)


def test_runtime(made: Made, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gpu_runtime

    work, report = made.work(tmp_path / "work"), tmp_path / "parts.json"
    assert run("gpu_runtime", "--work", work, *RUNTIME, "--json", report) == 0
    parts = json.loads(report.read_text())
    assert parts.keys() == {"steps", "placement", "decoding"}
    assert parts["steps"]["on the device"]["difference"] < 1e-2
    whole = gpu_runtime.Generation.through_device

    def wrong(*given: Any) -> tuple[Any, list[float]]:
        latents, seconds = whole(*given)
        return 1.1 * latents, seconds

    monkeypatch.setattr(gpu_runtime.Generation, "through_device", wrong)
    monkeypatch.setattr(gpu_runtime, "placement", lambda *_: [])
    monkeypatch.setattr(gpu_runtime, "decoding", lambda *_: {})
    assert run("gpu_runtime", "--work", work, *RUNTIME) == 1


def test_kernels(made: Made, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the profiler, which a GPU has: its kernels are given."""
    import gpu_kernels

    words, report = (made.fast, "--provider", "cpu", "--size", "64x64"), tmp_path / "kernels.json"
    monkeypatch.setattr(gpu_kernels, "REPEAT", 1)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert run("gpu_kernels", *words) == 5  # the profiler sees no kernel here
    kernels = [("void onnxruntime::cuda::copy<float>(int, float*)", 2.0), ("Memset (Device)", 1.0)] * gpu_kernels.RUNS
    monkeypatch.setattr(gpu_kernels, "recorded", lambda run: (run(), kernels)[1])
    assert run("gpu_kernels", *words, "--json", report) == 0
    assert json.loads(report.read_text())["kernels"] == {"copy<float>": [1, 2], "Memset (Device)": [1, 1]}


def test_overhead_of_torch(made: Made, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("torch_overhead", made.fast, "--provider", "cpu", "--side", 8, "--repeat", 1) == 0
    assert {"graph", "rows", "tensors", "module"} <= {line.split()[0] for line in capsys.readouterr().out.splitlines()}


def test_diffusers_pipeline(made: Made, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import diffusers_benchmark

    monkeypatch.setattr(diffusers_benchmark, "DEMO_FOLDER", made.checkpoint)
    words = ("--provider", "cpu", "--family", "tiny", "--size", 64, "--steps", 2, "--repeat", 1, "--rows")
    report, work = tmp_path / "rows.json", made.work(tmp_path / "work")
    assert run("diffusers_benchmark", "--work", work, *words, "torch,sdort", "--json", report) == 0
    torchs, ours = json.loads(report.read_text())["rows"]
    assert (torchs["engine"], ours["engine"], ours["dtype"]) == ("torch", "sdort", "float16")
    assert ours["psnr_db"] > 30
    assert ours["speedup"] > 0

    def refuse(*_: object, **__: object) -> None:
        raise ProviderError("it does not load")

    monkeypatch.setattr(diffusers_benchmark, "load_pipeline", refuse)
    assert run("diffusers_benchmark", "--work", work, *words, "torch,sdort", "--json", report) == 5
    assert [row["status"] for row in json.loads(report.read_text())["rows"]] == ["ok", "it does not load"]


def test_tuning(made: Made, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands run in this process: eight times Python's start and imports would be ten seconds."""
    import gpu_tuning

    def command(steps: Any, *words: str) -> subprocess.CompletedProcess[str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(steps.cache))
            done = CliRunner().invoke(cli, list(words))
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)

    monkeypatch.setattr(gpu_tuning.Steps, "sdort", command)
    words = ("--work", tmp_path, "--provider", "cpu", "--exported", made.exported, "--size", "64x64")
    assert run("gpu_tuning", *words) == 0
    for step in ("warm_and_export", "import_again"):
        monkeypatch.setattr(gpu_tuning, step, lambda *_: {})
    monkeypatch.setattr(gpu_tuning.Steps, "files", lambda _: {"a run's": b""})
    assert run("gpu_tuning", *words) == 1


def test_images_from_images(run: Run, traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--family", "sd1", "--scheduler", "ddim", "--task", "img2img 1", "--steps", 2, "--traces", traces)
    assert run("check_tasks", *words) == 0
    built = []
    monkeypatch.setattr(task_parity, "build", lambda *given: built.append(given))
    monkeypatch.setattr(task_parity, "ours", lambda *_, **__: [np.zeros((8, 8, 3))])
    monkeypatch.setattr(task_parity, "theirs", lambda *_, **__: np.full((8, 8, 3), 9.0))
    assert run("check_tasks", *words) == 1
    assert len(built) == 1


def test_ip_adapter(run: Run, traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import check_ip_adapter

    for name, value in task_parity.ONE_LEVEL.items():  # as in generation/test_ip_adapter.py, which has its trace
        monkeypatch.setitem(tiny_pipeline.UNET, name, value)
    words = ("--family", "sd1", "--kind", "plain", "--task", "text", "--traces", traces)
    assert run("check_ip_adapter", *words) == 0
    monkeypatch.setattr(check_ip_adapter, "check", lambda *_: iter([("plain", "text", {"fast": float("nan")})]))
    assert run("check_ip_adapter", *words) == 1


def test_optimum(made: Made, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Optimum lives in an environment of older packages: sdort's own pipeline for diffusers takes the place of its."""
    import check_optimum

    from sdort.integrations.diffusers import load_pipeline

    class Optimum:
        @staticmethod
        def from_pretrained(folder: Path, provider: str) -> Any:
            assert provider == "CPUExecutionProvider"
            return load_pipeline(folder, provider="cpu")

    monkeypatch.setitem(sys.modules, "optimum", ModuleType("optimum"))
    module = ModuleType("optimum.onnxruntime")
    vars(module)["ORTDiffusionPipeline"] = Optimum
    monkeypatch.setitem(sys.modules, "optimum.onnxruntime", module)
    monkeypatch.setattr(check_optimum, "version", lambda package: "0")
    words = (made.checkpoint, made.exported, "--size", 64, "--steps", 2)
    assert run("check_optimum", *words) == 0
    assert run("check_optimum", *words, "--limit", 400) == 1
    assert run("check_optimum", made.checkpoint, made.exported / "none", "--size", 64, "--steps", 1) == 1


def test_optimizing_beside_a_copy(made: Made, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "torchscript").symlink_to(made.exported / "unet")
    words = ("--work", tmp_path, "--only-sdort", "--rounds", 1, "--keep", "--json", tmp_path / "found.json")
    assert run("compare_ort_optimizer", *words) == 0
    assert "| sdort optimize --fp16, the whole process |" in capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())["sdort"]
    assert found["seconds"] >= found["graph_seconds"] + found["write_seconds"] > 0
    assert found["operators"]["MultiHeadAttention"] > 0
    (tmp_path / "torchscript").unlink()
    (tmp_path / "torchscript").mkdir()
    for name in ("model.onnx", "model.onnx.data"):
        (tmp_path / "torchscript" / name).write_bytes(b"no model")
    assert run("compare_ort_optimizer", *words) == 1


def test_exporting_beside_a_copy(
    made: Made, run: Run, traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import export_benchmark

    (tmp_path / "checkpoint").symlink_to(made.checkpoint)
    words = ("--work", tmp_path, "--rounds", 1, "--traces", traces, "--keep")
    assert run("export_benchmark", *words) == 0
    whole, digests = export_benchmark.digest, iter("ab")
    monkeypatch.setattr(export_benchmark, "measured", lambda command: {"seconds": 1.0, "peak_mib": 1.0})
    monkeypatch.setattr(
        export_benchmark, "rounds", lambda *_: [{"seconds": 1.0, "peak_mib": 1, "copy_seconds": 1, "ratio": 1}]
    )
    monkeypatch.setattr(export_benchmark, "digest", lambda folder: [*whole(folder), next(digests)])
    assert run("export_benchmark", *words) == 1


def test_images_of_the_tour(run: Run, tmp_path: Path) -> None:
    scene = Scene("white", (SceneShape("circle", "red", 16, 32, 8), SceneShape("square", "blue", 46, 32, 13)))
    image, said = tmp_path / "start.png", "a small red circle left of a large blue square on white"
    Image.fromarray(render(scene)).save(image)
    assert run("tour_images", "judge", image, said, "--like", image) == 0
    assert run("tour_images", "judge", image, said.replace("red", "green")) == 1
    assert run("tour_images", "mask", "28,0,64,64", tmp_path / "mask.png") == 0
    assert run("tour_images", "edges", image, tmp_path / "edges.png") == 0
    assert run("tour_images", "sheet", tmp_path / "sheet.png", image, image) == 0
    with Image.open(tmp_path / "mask.png") as mask, Image.open(tmp_path / "edges.png") as edges:
        assert np.asarray(mask).mean() == 255 * 36 / 64
        assert 0 < np.asarray(edges).mean() < 60


def test_training_of_the_demos_lora(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import train_demo_adapters

    out = tmp_path / "lora.safetensors"
    monkeypatch.setattr(train_demo_adapters, "SCENES_AT_ONCE", 4)
    assert run("train_demo_adapters", "lora", out, "--device", "cpu", "--steps", 2, "--batch", 2, "--scenes", 4) == 0
    names = load_file(out)
    assert len(names) % 3 == 0
    assert any(np.any(values) for name, values in names.items() if name.endswith("lora_up.weight"))


def test_training_of_the_demo_transformer(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps so large that the words matter: what it draws is what diffusers' pipeline draws of what it saves."""
    import train_demo_transformer
    from diffusers import ZImagePipeline

    prompts, out, drawn = (
        ["a red star on navy", "a blue ring left of a pink square"],
        tmp_path / "out",
        tmp_path / "a.png",
    )
    monkeypatch.setattr(train_demo_transformer, "held_out", lambda: prompts)
    monkeypatch.setattr(train_demo_transformer.Clock, "steps", lambda _: iter(range(3)))
    monkeypatch.setattr(train_demo_transformer.Clock, "rate", lambda _: 1.0)
    words = {"out": out, "sheet": drawn, "device": "cpu", "width": 48, "head": 16, "layers": 1, "text-width": 64}
    words |= {"batch": 4, "scenes": 8, "steps": 2, "guidance": 2, "rate": 0.3, "decay": 0, "prompts": 2}
    arguments = [each for name, value in words.items() for each in (f"--{name}", value)]
    assert run("train_demo_transformer", *arguments) == 0
    with Image.open(drawn) as picture:
        found = [np.asarray(picture)[2:66, left : left + 64].astype(float) for left in (2, 70)]
    noise = np.stack([SeededNormal(seed).draw((4, 16, 16)) for seed in range(2)])
    wanted = ZImagePipeline.from_pretrained(out)(
        [*prompts], 64, 64, 2, guidance_scale=2.0, latents=torch.from_numpy(noise), output_type="np"
    ).images
    assert np.abs(found[0] - found[1]).mean() > 1
    assert np.abs(np.stack(found) - 255 * wanted).max() < 1
    assert run("train_demo_transformer", *arguments) == 2  # the folder is not empty


def test_damaged_graphs(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("refused_graphs", "--count", 3) == 0
    counts = [line.split() for line in capfd.readouterr().out.splitlines() if line.strip()]
    assert sum(int(count) for count, *_ in counts if count.isdigit()) == 3


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tinygrad's tables need Python 3.11")
def test_counts_of_kernels(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("kernel_counts", "--gpu", "gfx1100", "--kernel", "bias_add 2x256x1280") == 0
    [row] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| bias_add")]
    assert [cell.strip() for cell in row.split("|")][-5] == "memory"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tinygrad's tables need Python 3.11")
def test_runs_of_kernels_in_the_emulator(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from support import emulated, machine_code_cases

    targets = [target for target in emulated.targets() if target.architecture == "gfx1100"]
    kernel = sorted(name for name in targets[0].code if name.startswith("bias_add_f16"))[0]
    monkeypatch.setattr(emulated, "targets", lambda: targets)
    assert run("emulation_report", "--kernel", kernel) == 0
    assert f"|{kernel:31}|" in capsys.readouterr().out
    outcome = SimpleNamespace(same=True, error=1.5, kernels=[kernel])
    monkeypatch.setattr(machine_code_cases, "run", lambda *_: outcome)
    assert run("emulation_report", "--kernel", kernel) == 1


def test_registers_of_kernels(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("kernel_report", native.build_folder() / "code", "--kernel", "bias_add_f16") == 0
    assert "bias_add_f16" in capsys.readouterr().out


def test_predicted_times(run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import predict_times

    words = ("--run", "decoder-512", "--run", "decoder-1024", "--gpu", "gfx1100")
    whole, counted = predict_times.works, dict[tuple[int, str], Any]()

    def works(of: Any, provider: str) -> Any:
        if (of.side, provider) not in counted:
            counted[of.side, provider] = whole(of, provider)
        return counted[of.side, provider]

    monkeypatch.setattr(predict_times, "works", works)
    assert run("predict_times", *words) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| decoder")]
    assert [len(row) for row in rows] == [4, 4, 2, 2, 2, 2]
    slow = replace(predict_times.RUNS["decoder-1024"], whole=40000.0)
    monkeypatch.setitem(predict_times.RUNS, "decoder-1024", slow)
    assert run("predict_times", *words) == 1


def test_a_fit_finds_the_factor_and_the_launch() -> None:
    import predict_times

    measured = [(work, nodes, 1.5 * work + 3 * nodes) for work, nodes in ((100.0, 10), (900.0, 10), (300.0, 70))]
    fit = predict_times.fitted(np.array([(work / time, nodes / time) for work, nodes, time in measured]))
    assert [fit.factor, fit.launch] == pytest.approx([1.5, 3])
    assert predict_times.fitted(np.array([[0.5, 0.1]])) == Fit(2, 0)
    assert fit.microseconds(100, 2, factor=4) == pytest.approx(406)


SMALL = ("--provider", "cpu", "--size", "64x64", "--steps", 2)


def test_mlperfs_offline_scenario(made: Made, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captions, log, report = tmp_path / "captions.tsv", tmp_path / "log.json", tmp_path / "report.json"
    captions.write_text("id\tcaption\n9\tA cat (left).\n4\tA dog.\n7\tA bus.\n")
    words = ("mlperf", made.fast, "--scenario", "offline", "--prompts", captions, *SMALL, "--out", tmp_path / "images")
    assert run(*words, "--accuracy-log", log, "--json", report) == 0
    printed = capsys.readouterr().out
    assert "3 samples, and not 5000" in printed
    assert "made up" not in printed
    rows = json.loads(log.read_text())
    assert [row["qsl_idx"] for row in rows] == [0, 1, 2]
    first = np.frombuffer(bytes.fromhex(rows[0]["data"]), np.uint8).reshape(64, 64, 3)
    with Image.open(tmp_path / "images" / "000001.png") as image:
        np.testing.assert_array_equal(first, np.asarray(image))
        settings = image.text["parameters"]  # type: ignore[attr-defined]
    assert all(text in settings for text in ("A cat (left).", "low res, blurry", "CFG scale: 8", "Euler", "Seed: 0"))
    assert run("mlperf", made.fast, "--scenario", "offline", "--prompts", tmp_path / "none.txt") == 1
    for other in ("A tram.", ""):  # the folder has an image of another caption; a line without one
        captions.write_text(captions.read_text().replace("A bus.", other).replace("A tram.", other))
        assert run(*words) == 1


def test_mlperfs_server_scenario(
    made: Made, run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlperf
    from open_loop import Answers

    words = ("mlperf", made.fast, "--scenario", "server", *SMALL, "--qps", 20)
    assert run(*words, "--count", 3) == 0
    assert "holds" in capsys.readouterr().out
    assert run(*words, "--count", 1, "--url", "http://127.0.0.1:9") == 1  # nobody listens
    assert "1 samples are missing" in capsys.readouterr().out

    def slow(count: int) -> int:
        latencies = np.full(200, 19.9)
        latencies[:count] = 20.1
        monkeypatch.setattr(mlperf, "ask_in_time", lambda *_: Answers(latencies, [], 600.0))
        return run(*words, "--url", "http://127.0.0.1:9", "--count", 200)

    assert [slow(count) for count in (0, 1, 2)] == [0, 0, 1]  # 1 of 200 may be late at the 99th percentile
    assert "DOES NOT HOLD" in capsys.readouterr().out
    assert run("mlperf", made.fast, "--scenario", "server") == 2


def test_arrivals_of_a_poisson_process() -> None:
    import open_loop

    gaps = np.diff(open_loop.poisson_times(20_000, 5.0, seed=1))
    assert gaps.mean() == pytest.approx(0.2, rel=0.03)
    assert gaps.std() == pytest.approx(0.2, rel=0.05)  # as its mean


def simulated(
    arrivals: Any, seconds: dict[int, list[float]], *, wait: float, gpus: int = 1, places: float = 1e9
) -> Any:
    """Latencies of requests of one shape."""
    import simulate_service as module

    shape, rule = module.Shape("64x64", seconds), BatchRule((*seconds,), wait)
    times = np.asarray(arrivals, float)
    return module.simulate(module.Times([shape]), rule, gpus, places, times, np.zeros(len(times), np.int64)).latencies


@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
def test_a_simulated_queue_waits_as_that_of_one_server_with_one_duration(load: float) -> None:
    """M/D/1: Poisson arrivals, service times of 1: the mean wait is load / (2 (1 - load)) (Pollaczek and Khinchine)."""
    from open_loop import poisson_times

    latencies = simulated(poisson_times(200_000, load, seed=3), {1: [1.0]}, wait=0)
    assert latencies.mean() - 1 == pytest.approx(load / (2 * (1 - load)), rel=0.03)


def test_a_simulated_batch_is_drawn_when_it_is_full_or_its_oldest_has_waited() -> None:
    arrivals, seconds = [0.0, 0.01, 0.02, 0.5], {1: [1.0], 2: [1.5]}
    assert simulated(arrivals, seconds, wait=0.1) == pytest.approx([1.51, 1.5, 2.99, 2.51])
    assert simulated(arrivals, seconds, wait=0.1, gpus=2) == pytest.approx([1.51, 1.5, 1.1, 1.62])
    full = simulated(arrivals, seconds, wait=0.1, places=1)  # the second and the third find the queue full
    assert full == pytest.approx([1.1, np.nan, np.nan, 1.6], nan_ok=True)


def test_a_simulated_shape_waits_for_the_older_one_as_in_the_server() -> None:
    import simulate_service as module

    shapes = [module.Shape("64x64", {1: [1.0], 2: [1.0]}), module.Shape("96x96", {1: [2.0], 2: [2.0]})]
    arrivals, kinds = np.array([0.0, 0.1, 0.2, 0.3]), np.array([0, 1, 0, 1])
    run = module.simulate(module.Times(shapes, after=0.5), BatchRule((1, 2), 0.0), 1, 9, arrivals, kinds)
    assert run.latencies == pytest.approx([1.5, 3.4, 4.3, 3.2])  # the two of 96x96 are drawn together
    assert [run.batches, run.busy] == pytest.approx([3, 4.0])
    assert module.Times(shapes).capacity(2) == pytest.approx(4 / 3)


def test_a_days_swing() -> None:
    import simulate_service as module
    from open_loop import poisson_times

    times = module.swinging_times(40_000, 10.0, 0.5, seed=0)
    assert np.mean(times < 2000) == pytest.approx(0.5 + 0.5 / np.pi, abs=0.01)
    assert module.swinging_times(99, 10.0, 0.0, 0) == pytest.approx(poisson_times(99, 10.0, 0))


def test_capacity(
    made: Made, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import simulate_service as module
    from open_loop import Answers, Served

    saved, report = tmp_path / "times.json", tmp_path / "rows.json"
    words = ("--provider", "cpu", "--sizes", "64x64", "--steps", 1, "--repeat", 1, "--images-at-once", 2)
    checked = ("simulate_service", made.fast, *words, "--save", saved, "--check", "--requests", 4, "--load", 0.3)
    assert run(*checked, "--within", 1000) == 0
    assert {*json.loads(saved.read_text())["shapes"][0]["seconds"]} == {"1", "2"}
    monkeypatch.setattr(module, "served", lambda *_: nullcontext(Served("http://127.0.0.1:9", 0)))
    assert run("simulate_service", made.fast, *words, "--times", saved, "--check", "--requests", 2) == 1
    assert "2 failed" in capsys.readouterr().out
    late = Answers(np.full(2, 99.0), [], 100.0)
    monkeypatch.setattr(module, "ask_in_time", lambda *_: late)
    monkeypatch.setattr(module, "metrics", lambda _: 'sdort_stage_seconds_sum{stage="denoise"} 2.0\n')
    assert run("simulate_service", made.fast, *words, "--times", saved, "--check", "--requests", 2) == 1
    assert "99.000" in capsys.readouterr().out
    rows = [{"component": "pipeline", "width": 64, "height": 64, "batch_size": n, "median_ms": 1000.0} for n in (1, 4)]
    saved.write_text(json.dumps({"rows": rows}))
    given = ("simulate_service", "--times", saved, "--requests", 2000, "--price", 3)
    assert run(*given, "--gpus", "1,1000", "--load", 0.5, "--json", report) == 0
    one, many = json.loads(report.read_text())["rows"]
    assert [one["images_per_second"], many["requests_per_second"]] == [pytest.approx(2, rel=0.1), 2000]
    assert one["cost"] == pytest.approx(3 * 1e6 / one["images_per_second"] / 3600)
    assert run(*given, "--gpus", 1, "--rate", 40, "--json", report) == 0  # ten times what a GPU can do
    (over,) = json.loads(report.read_text())["rows"]
    assert over["refused"] > 0.8
    assert over["use"] == pytest.approx(1, abs=0.01)
    sizes = [{"size": f"{n}x{n}", "seconds": {"1": [1.0], "2": [n / 64]}, "share": n // 64} for n in (64, 192)]
    saved.write_text(json.dumps({"shapes": sizes}))
    assert run(*given, "--json", report) == 0
    assert json.loads(report.read_text())["capacity"] == pytest.approx(1 / (0.25 * 0.5 + 0.75 * 1.5))
    saved.write_text("{}")
    assert run(*given) == 1
    assert run("simulate_service") == 2
