"""``sdort bench --save`` and ``--compare``: verdicts that know the noise, and what is not comparable."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from support.tiny_pipeline import Tiny

from sdort.benchmark import measure as bench_module
from sdort.benchmark.measure import Measurement
from sdort.benchmark.regression import (
    as_saved,
    compare_rows,
    compare_with_saved,
    comparison_conclusion,
    comparison_markdown,
    load_rows,
    ratio_interval,
    refuse_slower,
    refuse_unjudged,
)
from sdort.benchmark.rows import Compared, Row
from sdort.checkpoints.configs import CONFIG_BYTES
from sdort.cli import cli
from sdort.errors import OutputError, ParityError, RegressionError, UsageError

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

STEADY = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2, 99.8, 100.1]


def row(times: Sequence[float] = STEADY, **values: Any) -> Row:
    base: dict[str, Any] = {
        "pipeline": "fast", "engine": "onnxruntime", "provider": "cpu", "device": "a CPU", "component": "unet",
        "batch_size": 1, "height": 64, "width": 64, "steps": None, "dtype": "float16", "model_hash": "0123456789",
        "versions": {"sdort": "1", "onnxruntime": "2"}, "times_ms": list(times),
        "median_ms": float(np.median(times)) if times else None,
    }  # fmt: skip
    return Row(**{**base, **values})


def times_scaled(factor: float) -> list[float]:
    return [factor * each for each in STEADY]


def test_a_saved_benchmark_of_a_million_calls_is_read(tmp_path: Path) -> None:
    """It is larger than a config may be."""
    saved = row()
    (tmp_path / "saved.json").write_text(as_saved([saved]) + " " * CONFIG_BYTES)
    assert load_rows(tmp_path / "saved.json") == [saved]


# Verdicts


@pytest.mark.parametrize(
    ("factor", "margin", "verdict"),
    [
        (1.0, 0.1, "same"), (1.08, 0.1, "same"), (1.2, 0.1, "slower"), (1.2, 0.3, "same"), (0.8, 0.1, "faster"),
        (0.95, 0.1, "same"), (1.08, 0.02, "slower"), (0.95, 0.02, "faster"),
    ],
)  # fmt: skip
def test_steady_times_are_judged_by_the_margin(factor: float, margin: float, verdict: str) -> None:
    found = compare_rows(row(), row(times_scaled(factor)), margin)
    assert found.verdict == verdict
    assert found.ratio == pytest.approx(factor)
    assert found.low is not None
    assert found.high is not None
    assert found.low < factor < found.high
    assert found.before_ms == pytest.approx(100.05)


def test_faster_is_the_inverse_of_slower() -> None:
    """A margin of 10 % is 1.1 times as long, or as long when the two change places."""
    steady = row([110.5] * 8), row([100.0] * 8)
    assert compare_rows(steady[1], steady[0], 0.1).verdict == "slower"
    assert compare_rows(steady[0], steady[1], 0.1).verdict == "faster"


def test_the_ratio_is_of_the_medians() -> None:
    """One call that took a hundred times as long says nothing."""
    ratio, low, high = ratio_interval([10.0] * 9, [20.0] * 8 + [2000.0])
    assert ratio == low == high == 2


def test_every_call_is_drawn() -> None:
    assert ratio_interval([10.0], [10.0, 20.0]) == ratio_interval([10.0], [20.0, 10.0]) == (1.5, 1, 2)


def test_five_calls_are_enough() -> None:
    assert compare_rows(row(STEADY[:5]), row(STEADY[:5]), 0.1).verdict == "same"
    assert compare_rows(row(STEADY[:4]), row(STEADY[:5]), 0.1).reason == "4 timed calls, and 5 are needed"


def test_noise_is_no_regression() -> None:
    """The median is a quarter longer, and every second call was as short as before."""
    noisy = [100.0, 150.0] * 4
    found = compare_rows(row(noisy), row([1.25 * each for each in noisy]), 0.1)
    assert found.ratio == pytest.approx(1.25)
    assert found.verdict == "same"
    assert "more --repeat" in found.reason
    found = compare_rows(row([1.25 * each for each in noisy]), row(noisy), 0.5)
    assert found.high is not None
    assert found.high < 1.5
    assert "more --repeat" in found.reason  # it may be much faster


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Of 200 pairs of runs with one distribution, 95 % should hold a ratio of 1; the bootstrap of 20 calls is near."""
    draw = np.random.default_rng(3)
    runs = [(draw.gamma(9, 10, 20), draw.gamma(9, 10, 20)) for _ in range(200)]
    held = sum(low <= 1 <= high for _, low, high in (ratio_interval(a.tolist(), b.tolist()) for a, b in runs))
    assert 0.9 <= held / 200 <= 0.99


def test_the_same_times_give_the_same_interval() -> None:
    assert ratio_interval(STEADY, times_scaled(1.1)) == ratio_interval(STEADY, times_scaled(1.1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"device": "another CPU"}, "device: a CPU (cpu) then, another CPU (cpu) now"),
        ({"provider": "rocm"}, "device: a CPU (cpu) then, a CPU (rocm) now"),
        ({"versions": {"sdort": "2", "onnxruntime": "2"}}, "versions: sdort 1 then, 2 now"),
        ({"engine_settings": "mode default"}, "onnxruntime: other settings then, mode default now"),
        ({"versions": {"sdort": "1"}}, "versions: onnxruntime 2 then, absent now"),
        ({"model_hash": "fedcba98"}, "model: float16 01234567 then, float16 fedcba98 now"),
        ({"dtype": "float32"}, "model: float16 01234567 then, float32 01234567 now"),
        ({"times_ms": STEADY[:3]}, "3 timed calls, and 5 are needed"),
        ({"status": "it is wrong"}, "its check failed now"),
    ],
)
def test_what_differs_is_named(change: dict[str, Any], words: str) -> None:
    slower = replace(row(times_scaled(3)), **change)
    found = compare_rows(row(), slower, 0.1)
    assert (found.verdict, found.reason) == ("not comparable", words)
    assert found.ratio is None
    across = words.partition(":")[0]
    if across in ("device", "versions", "model"):
        assert compare_rows(row(), slower, 0.1, [across]).verdict == "slower"


def test_a_pipeline_is_compared_with_itself_where_only_one_run_had_a_baseline() -> None:
    saved = [row([200.0] * 8, pipeline="model", model_hash="other"), row()]
    for now in ([row()], [row([200.0] * 8, pipeline="model", model_hash="other"), row()]):
        compare_with_saved(now, saved, 0.1)
        assert [each.compared and each.compared.verdict for each in now] == ["same"] * len(now)


def test_rows_are_found_by_what_they_measure() -> None:
    saved = [row(), row(times_scaled(2)), row(component="pipeline", steps=20), row(batch_size=2)]
    now = [row(batch_size=2), row(), row(times_scaled(2)), row(component="pipeline", steps=4)]
    compare_with_saved(now, saved, 0.1)
    assert [each.compared.verdict if each.compared else None for each in now] == ["same"] * 3 + ["not comparable"]
    assert now[3].compared == Compared("not comparable", reason="it was not measured then")


@pytest.mark.parametrize("change", [{"step": "fp16"}, {"height": 96}, {"width": 96}, {"engine": "torch"}])
def test_rows_of_other_things_are_not_compared(change: dict[str, Any]) -> None:
    saved = [row(), row(times_scaled(2), **change)]
    now = [row(times_scaled(2), **change), row()]
    compare_with_saved(now, saved, 0.1)
    assert [each.compared.ratio if each.compared else None for each in now] == [1, 1]


def test_a_row_that_failed_when_it_was_saved_is_said_to_have() -> None:
    assert compare_rows(row([], status="it is wrong"), row(), 0.1).reason == "its check failed then"


def test_only_a_slowdown_is_an_error() -> None:
    now = [row(times_scaled(0.5)), row(device="other", times=times_scaled(9)), row(times_scaled(1.5), batch_size=4)]
    compare_with_saved(now[:2], [row(), row()], 0.1)
    refuse_slower(now[:2])
    compare_with_saved(now, [row(), row(), row(batch_size=4)], 0.1)
    with pytest.raises(RegressionError, match=r"unet, batch 4 takes 1\.50 times as long"):
        refuse_slower(now)
    text = comparison_markdown(now).splitlines()
    assert len({line.count("|") for line in text}) == 1
    assert [line.split("|")[6].strip() for line in text[2:]] == ["faster", "not comparable", "slower"]


@pytest.mark.parametrize(
    ("verdicts", "failed", "kind"),
    [
        ([None, None], False, None),
        (["same", "not comparable"], False, None),
        (["faster", "too noisy"], False, None),
        (["not comparable"] * 2, False, UsageError),
        (["not comparable", "slower"], False, RegressionError),
        (["not comparable", "slower"], True, ParityError),  # what is wrong is said before what is slow
        ([None, None], True, ParityError),
    ],
)
def test_a_measurement_ends_with_what_is_worst(
    verdicts: list[str | None], failed: bool, kind: type[Exception] | None
) -> None:
    rows = [row(), row(batch_size=4)]
    for each, verdict in zip(rows, verdicts, strict=True):
        each.compared = Compared(verdict, 1.4, 1.3, 1.5, 1.0, "by more than 10 %") if verdict else None
    if failed:
        rows[1].fail("differs")
    with pytest.raises(kind) if kind else nullcontext():
        Measurement(rows).raise_if_failed()


def test_a_comparison_that_judged_nothing_is_an_error() -> None:
    now = [row(device="other"), row(batch_size=4), row(versions={"sdort": "2", "onnxruntime": "2"}, component="vae")]
    compare_with_saved(now, [row(), row(component="vae")], 0.1)
    with pytest.raises(UsageError, match="no row could be compared") as caught:
        refuse_unjudged(now)
    assert caught.value.message.splitlines()[1:] == [
        "  device: a CPU (cpu) then, other (cpu) now (1 row)",
        "  it was not measured then (1 row)",
        "  versions: sdort 1 then, 2 now (1 row)",
    ]
    now.insert(0, row())
    compare_with_saved(now, [row(device="other"), row(batch_size=4)], 0.1)
    refuse_unjudged(now)
    assert comparison_conclusion(now).startswith("Against the saved benchmark, 4 rows: 2 not comparable, 2 same")
    refuse_unjudged([row()])  # nothing was to be compared
    noisy = [row([100.0, 150.0] * 4)]
    compare_with_saved(noisy, [row([125.0, 187.5] * 4)], 0.1)
    assert comparison_conclusion(noisy) == "Against the saved benchmark, 1 row: 1 too noisy"


# Files


def test_a_saved_benchmark_comes_back(tmp_path: Path) -> None:
    rows = [row(psnr_db=float("inf"), lowest_psnr_db=float("inf")), row(times=[], status="it is wrong")]
    (tmp_path / "saved.json").write_text(as_saved(rows))
    assert load_rows(tmp_path / "saved.json") == [replace(rows[0], psnr_db=None, lowest_psnr_db=None), rows[1]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "saved.json is no JSON .Expecting property name"),
        ("[]", "saved.json is no JSON object"),
        ('{"rows": []}', "no saved benchmark: it has no sdort_bench"),
        ('{"sdort_bench": 9, "rows": []}', "format 9, not 1"),
        ('{"sdort_bench": 1, "rows": [{"times_ms": [1]}]}', r"no saved benchmark: rows\[0\] has no pipeline"),
        (as_saved([row([1, -1])]), r"rows\[0\].times_ms\[1\] is -1, not a number above 0"),
        (as_saved([row([1, 0])]), "is 0, not a number above 0"),
        (as_saved([row([1, float("inf")])]), 'is "inf", not a number above 0'),
    ],
)
def test_another_file_is_a_usage_error(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "saved.json").write_text(text)
    with pytest.raises(UsageError, match=words):
        load_rows(tmp_path / "saved.json")


# The command


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny: Tiny) -> Callable[..., Result]:
    """Calls ``sdort bench ...`` on a pipeline whose every call takes about so many milliseconds."""
    monkeypatch.chdir(tmp_path)

    def call(milliseconds: float, *args: str) -> Result:
        times = [milliseconds * each / 100 for each in STEADY]
        monkeypatch.setattr(bench_module, "interleave", lambda calls, *_: [times for _ in calls])
        few = ["--provider", "cpu", "--component", "text_encoder", "--warmup", "0", "--repeat", "8"]
        return CliRunner().invoke(cli, ["bench", str(tiny.onnx), *few, *args])

    return call


def test_a_slowdown_ends_with_its_exit_code(takes: Callable[..., Result]) -> None:
    assert takes(100, "--save", "before.json").exit_code == 0
    same = takes(105, "--compare", "before.json")
    assert same.exit_code == 0, same.output
    assert "Against the saved benchmark" in same.stdout
    slower = takes(105, "--compare", "before.json", "--margin", "2", "--format", "json")
    assert slower.exit_code == RegressionError.exit_code
    assert "text_encoder takes 1.05 times as long" in slower.stderr
    assert json.loads(slower.stdout)["rows"][0]["compared"]["verdict"] == "slower"
    written = takes(50, "--compare", "before.json", "--output", "out.md")
    assert written.exit_code == 0
    assert "| faster | by more than 10 % |" in Path("out.md").read_text()


def test_too_few_calls_to_compare_are_refused_or_told_first(
    takes: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = takes(100, "--save", "few.json", "--repeat", "4")
    assert "warning: --compare will not be able to judge what is saved: it needs --repeat 5 or more" in told.stderr
    monkeypatch.setattr(bench_module, "measure_engines", None)
    few = takes(100, "--compare", "few.json", "--repeat", "4")
    assert few.exit_code == UsageError.exit_code
    assert "--compare needs 5 timed calls or more, not --repeat 4" in few.stderr


def test_a_file_can_be_compared_with_and_replaced_at_once(takes: Callable[..., Result]) -> None:
    takes(100, "--save", "times.json")
    both = ["--compare", "times.json", "--save", "times.json"]
    assert takes(200, *both).exit_code == OutputError.exit_code
    assert takes(200, *both, "--overwrite").exit_code == RegressionError.exit_code
    assert takes(200, "--compare", "times.json").exit_code == 0


def test_a_bad_file_is_found_before_anything_is_measured(
    takes: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("other.json").write_text("{}")
    monkeypatch.setattr(bench_module, "measure_engines", None)
    result = takes(1, "--compare", "other.json")
    assert result.exit_code == UsageError.exit_code
    assert "other.json is no saved benchmark: it has no sdort_bench" in result.stderr


@pytest.mark.parametrize("args", [("--margin", "10"), ("--across", "device")])
def test_how_to_judge_is_refused_where_nothing_is_judged(takes: Callable[..., Result], args: tuple[str, ...]) -> None:
    result = takes(1, *args)
    assert result.exit_code == UsageError.exit_code
    assert "they want --compare" in result.stderr
