"""``sdort bench --ablation``: steps in the published order, legal variants, each row with its verdict."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.tiny_pipeline import Tiny, edit_weights

from sdort.benchmark import ablation
from sdort.benchmark import measure as bench_module
from sdort.benchmark.ablation import (
    REST,
    Ablation,
    AblationStep,
    OperatorCounts,
    ablate,
    ablation_steps,
    make_variant,
    optional_fusions,
)
from sdort.benchmark.bench_options import BenchOptions
from sdort.benchmark.published import MI250X, PUBLISHED, RTX_3060, published_text
from sdort.benchmark.report import ablation_table
from sdort.cli import cli
from sdort.console import to_json
from sdort.errors import ParityError, RegressionError, SdortError, UsageError
from sdort.optimizer.command import optimize
from sdort.providers.runtime_options import RuntimeOptions

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

QUICK: dict[str, Any] = {"runtime": RuntimeOptions("cpu"), "steps": 1, "warmup": 0, "repeat": 2}
EVERY = ablation_steps()


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The n-th case that is timed takes n milliseconds, every time."""
    number_the_cases(monkeypatch)


def number_the_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def interleave(calls: Sequence[Any], repeat: int, advance: Any) -> list[list[float]]:
        nonlocal count
        count += 1
        return [[float(count)] * repeat for _ in calls]

    monkeypatch.setattr(bench_module, "interleave", interleave)


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., OperatorCounts]:
    """:func:`make_variant`, which copies what it has made before: tests of what is measured ask for the same again."""
    folder = tmp_path_factory.mktemp("variants")
    made: dict[tuple[Any, ...], tuple[Path, OperatorCounts]] = {}

    def make(
        original: Path, out: Path, provider: str, so_far: Sequence[AblationStep], parts: Sequence[str]
    ) -> OperatorCounts:
        key = (original, provider, len(so_far), *parts)
        if key not in made:
            place = folder / str(len(made))
            made[key] = place, make_variant(original, place, provider, so_far, parts)
        place, counts = made[key]
        shutil.copytree(place, out)
        return counts

    return make


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, made_once: Callable[..., OperatorCounts]) -> None:
    """Only raw fp32, fp16 and + FMHA."""
    monkeypatch.setattr(ablation, "ablation_steps", lambda: EVERY[:3])
    monkeypatch.setattr(ablation, "make_variant", made_once)


@pytest.fixture(scope="module")
def whole(tiny: Tiny) -> Ablation:
    """All steps, at two batches."""
    with pytest.MonkeyPatch.context() as patch:
        number_the_cases(patch)
        return ablate(tiny.onnx, BenchOptions(**QUICK, components=("unet", "pipeline"), batch_sizes=(1, 2)))


# Steps


def test_steps_stand_in_the_published_order_and_name_everything_once() -> None:
    names = [step.name for step in EVERY]
    assert [name for name in names[:-1] if name not in ("+ separate QKV", "+ biases moved")] == list(RTX_3060)
    assert [name for name in names if name in MI250X] == list(MI250X)
    assert names[-1] == REST
    added = [name for step in EVERY for name in step.adds]
    assert sorted(added) == sorted(optional_fusions())
    assert [step.fp16 for step in EVERY] == [False] + [True] * 10
    assert EVERY[0].adds == EVERY[1].adds == ()


def test_published_rows_are_told_with_their_doubts() -> None:
    assert published_text(RTX_3060, "raw fp32", 1) == "25.6 s, 10,667 MiB"
    assert published_text(RTX_3060, "raw fp32", 8) == "OOM"
    assert published_text(MI250X, "fp16", 8) == "24.0 s*, 34,493 MiB"
    assert published_text(MI250X, "+ packed QKV", 1) == published_text(RTX_3060, "raw fp32", 2) == ""


def variants(tiny: Tiny, folder: Path, provider: str) -> dict[str, dict[str, int]]:
    """Step -> the operators of the UNet."""
    return {
        step.name: make_variant(tiny.onnx, folder / str(index), provider, EVERY[: index + 1], ["unet"])["unet"]
        for index, step in enumerate(EVERY)
    }


def test_each_step_adds_its_own_operators(tiny: Tiny, tmp_path: Path) -> None:
    made = variants(tiny, tmp_path, "rocm")
    for step in ("raw fp32", "fp16"):  # opset 18 has no Gelu of its own
        assert {operator for operator in made[step] if "." in operator} == {"com.microsoft.Gelu"}
    assert "Cast" not in made["raw fp32"]
    first = {
        operator: next((step for step in made if f"com.microsoft.{operator}" in made[step]), None)
        for operator in ("MultiHeadAttention", "NhwcConv", "GroupNorm", "SkipGroupNorm", "BiasAdd")
    }
    assert first == {
        "MultiHeadAttention": "+ FMHA",
        "NhwcConv": "+ NhwcConv",
        "GroupNorm": "+ GroupNorm",
        "SkipGroupNorm": "+ GroupNorm",
        "BiasAdd": "+ BiasAdd",
    }
    # Packing turns three products into one, and two into one.
    assert made["+ packed QKV"]["MatMul"] < made["+ BiasSplitGelu"]["MatMul"]
    assert made[REST]["com.microsoft.SkipLayerNormalization"]
    assert "com.microsoft.SkipLayerNormalization" not in made["+ BiasAdd"]


def test_attention_s_inputs_are_packed_and_on_cuda_apart_again(tiny: Tiny, tmp_path: Path) -> None:
    names = [step.name for step in EVERY]
    count = {
        step: make_variant(tiny.onnx, tmp_path / step, "cuda", EVERY[: names.index(step) + 1], ["unet"])["unet"]
        for step in ("+ BiasSplitGelu", "+ packed QKV", "+ separate QKV")
    }
    assert count["+ packed QKV"]["MatMul"] < count["+ separate QKV"]["MatMul"] == count["+ BiasSplitGelu"]["MatMul"]


def test_the_last_step_is_what_optimize_makes(tiny: Tiny, tmp_path: Path) -> None:
    last = make_variant(tiny.onnx, tmp_path / "last", "cuda", EVERY, ["pipeline"])
    report = optimize(tiny.onnx, tmp_path / "whole", provider="cuda", fp16=True)
    assert last == {name: done.operators for name, done in report.components.items()}


# Measuring


def test_an_ablation_has_a_verdict_in_every_row(whole: Ablation) -> None:
    found = whole
    assert [stage.name for stage in found.stages] == [step.name for step in EVERY]
    # Only these change anything on the CPU; times are those of the cases in the order of measuring.
    measured = [stage for stage in found.stages if not stage.same_as]
    assert [stage.name for stage in measured] == ["raw fp32", "fp16", "+ FMHA", REST]
    assert [row.median_ms for stage in measured for row in stage.rows] == list(range(1, 17))
    assert len(found.measured.rows) == len(found.measured.images) * 2 == 16
    for stage in found.stages:
        assert stage.same_as in ("", "+ FMHA")
        assert [(row.component, row.batch_size) for row in stage.rows] == [
            ("unet", 1), ("unet", 2), ("pipeline", 1), ("pipeline", 2),
        ]  # fmt: skip
        for row in stage.rows:
            assert row.status == "ok", row
            assert row.checked_against == "onnx (ONNX)"
            assert (row.error if row.component == "unet" else row.psnr_db) is not None
            assert row.dtype == ("float32" if stage.name == "raw fp32" else "float16")
    assert found.stages[2].changes["com.microsoft.MultiHeadAttention"] > 0


def test_a_wrong_row_has_a_verdict_and_no_time(tiny: Tiny, tmp_path: Path, timed: None, few: None) -> None:
    other = Path(shutil.copytree(tiny.onnx, tmp_path / "other"))
    edit_weights(other / "unet" / "model.onnx", lambda array, _: array * 2, "conv_out.weight")
    found = ablate(tiny.onnx, BenchOptions(**QUICK, components=("unet",), reference=other))
    for stage in found.stages:
        assert stage.rows[0].median_ms is None
        assert ablation_table.verdict(stage, 1).startswith("FAILED: unet: differs from other (ONNX) by")
    line = ablation_table.lines(found)[1]
    assert line[:5] == ["1", "fp16", "-", "-", "-"]


def test_a_step_that_cannot_be_made_leaves_the_others(
    tiny: Tiny,
    monkeypatch: pytest.MonkeyPatch,
    timed: None,
    few: None,
    made_once: Callable[..., OperatorCounts],
    tmp_path: Path,
) -> None:

    def make(
        original: Path, out: Path, provider: str, so_far: Sequence[AblationStep], parts: Sequence[str]
    ) -> OperatorCounts:
        if so_far[-1].name == "fp16":
            raise SdortError("fp16 cannot hold values of 3 weights")
        return made_once(original, out, provider, so_far, parts)

    monkeypatch.setattr(ablation, "make_variant", make)
    monkeypatch.chdir(tmp_path)
    args = ["bench", str(tiny.onnx), "--ablation", "--provider", "cpu", "--component", "unet", "--repeat", "2"]
    result = CliRunner().invoke(cli, [*args, "--warmup", "0", "--batch-size", "1", "--format", "json"])
    assert result.exit_code == ParityError.exit_code
    assert "the step 'fp16' could not be made" in result.stderr
    stages = json.loads(result.stdout)["stages"]
    assert [len(stage["rows"]) for stage in stages] == [1, 0, 1]
    assert stages[1]["problem"] == "fp16 cannot hold values of 3 weights"
    assert stages[2]["same_as"] == ""
    result = CliRunner().invoke(cli, [*args, "--warmup", "0", "--batch-size", "1", "--json"])
    told = json.loads(result.stdout)
    assert (told["type"], [each["problem"] for each in told["stages"]]) == (
        "ParityError", [None, "fp16 cannot hold values of 3 weights", None],
    )  # fmt: skip


def test_an_optimized_pipeline_leads_to_its_original(tiny: Tiny, tmp_path: Path, timed: None, few: None) -> None:
    optimize(tiny.onnx, tmp_path / "fast", provider="cpu", fp16=True)
    found = ablate(tmp_path / "fast", BenchOptions(**QUICK, components=("text_encoder",)))
    assert found.original == "onnx"
    (tmp_path / "fast" / "sdort.json").write_text('{"optimized": {"from": "/nowhere"}}')
    with pytest.raises(UsageError, match="optimized from is not known or not here"):
        ablate(tmp_path / "fast", BenchOptions(**QUICK))


# Guarding


def test_an_ablation_is_saved_and_compared_step_by_step(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: None
) -> None:
    """Only FMHA is slower than it was; a step that was not there then is told and is no error."""
    monkeypatch.chdir(tmp_path)
    command = ["bench", str(tiny.onnx), "--ablation", "--provider", "cpu", "--component", "unet", "--warmup", "0"]
    command += ["--repeat", "8", "--batch-size", "1,2"]

    def call(slow: int, *words: str) -> Result:
        """The ``slow``-th case that is timed takes twice as long."""
        count = 0

        def interleave(calls: Sequence[Any], repeat: int, advance: Any) -> list[list[float]]:
            nonlocal count
            count += 1
            return [[count * (20.0 if count == slow else 10.0) + 0.01 * n for n in range(repeat)] for _ in calls]

        monkeypatch.setattr(bench_module, "interleave", interleave)
        return CliRunner().invoke(cli, [*command, *words])

    saved = call(0, "--save", "before.json")
    assert saved.exit_code == 0, saved.output
    same = call(0, "--compare", "before.json", "--json")
    assert same.exit_code == 0, same.output
    rows = [row for stage in json.loads(same.stdout)["stages"] for row in stage["rows"]]
    assert [(row["step"], row["batch_size"], row["compared"]["verdict"]) for row in rows] == [
        (step, batch, "same") for step in ("raw fp32", "fp16", "+ FMHA") for batch in (1, 2)
    ]
    slower = call(5, "--compare", "before.json", "--report", "report.html")
    assert slower.exit_code == RegressionError.exit_code
    assert "slower than the saved benchmark: + FMHA: unet, batch 1 takes 2.00 times as long" in slower.stderr
    assert slower.stderr.count("times as long") == 1
    assert "Against the saved benchmark" in slower.stdout
    assert "Against the saved benchmark" in Path("report.html").read_text()
    kept = json.loads(Path("before.json").read_text())
    kept["rows"] = [row for row in kept["rows"] if row["step"] != "fp16"]
    Path("less.json").write_text(json.dumps(kept))
    new = call(3, "--compare", "less.json", "--format", "markdown")
    assert new.exit_code == 0, new.output
    told = [line for line in new.stdout.splitlines() if "| fp16: unet, batch 1" in line]
    assert len(told) == 1
    assert "not comparable | it was not measured then" in told[0]


# Printing


def test_every_format_has_every_step(whole: Ablation) -> None:
    found = whole
    markdown = ablation_table.as_text(found, "markdown").splitlines()
    assert len({line.count("|") for line in markdown[:20]}) == 1
    cells = [cell.strip() for cell in markdown[2 + 2].split("|")[1:-1]]
    # The third step's UNet is the ninth case; the pipeline's batch 1 is the 11th, and was the third in the first step.
    assert cells[:5] == ["1", "+ FMHA", "9.00", "11.0", "3.67"]
    assert re.fullmatch(r"ok: [\d.]+ dB, unet [\d.]+e-\d\d", cells[6])
    assert cells[7] == "+9 MultiHeadAttention, +2 Attention"
    assert cells[8:] == ["6.1 s, 7,719 MiB", "2.6 s, 4,886 MiB"]
    assert "same graphs as '+ FMHA'" in markdown[5]
    assert "another device and library" in markdown[-1]
    loaded = to_json(found)
    assert [stage["step"] for stage in loaded["stages"]] == [step.name for step in EVERY]
    assert set(loaded["published"]) == set(PUBLISHED)
    assert loaded["published"]["MI250X 1 GCD"]["fp16"]["8"]["suspicious"] is True
    table = list(csv.DictReader(io.StringIO(ablation_table.as_text(found, "csv"))))
    assert [row["step"] for row in table] == [step.name for step in EVERY for _ in range(4)]
    assert {row["component"] for row in table} == {"unet", "pipeline"}


def test_an_ablation_has_no_baseline(tiny: Tiny) -> None:
    result = CliRunner().invoke(cli, ["bench", str(tiny.onnx), "--ablation", "--baseline", str(tiny.onnx)])
    assert result.exit_code == UsageError.exit_code
    assert "no --baseline" in result.stderr


def test_the_help_has_sections() -> None:
    result = CliRunner().invoke(cli, ["bench", "--help-all"])
    titles = ["Execution:", "Measurement:", "Comparison:", "Results:", "Options:"]
    assert [line for line in result.output.splitlines() if line in titles] == titles
    left = result.output.split("\nOptions:\n")[1].split("Examples:")[0]
    assert [word for word in left.split() if word.startswith("--")] == ["--help-all", "--verbose", "--quiet", "--help"]
