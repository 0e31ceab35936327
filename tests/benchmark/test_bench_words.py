"""What ``sdort bench`` tells a person: numbers, ratios, noise, and the sentence at the end."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sdort.benchmark import conditions
from sdort.benchmark.ablation import Ablation, MeasuredStep
from sdort.benchmark.command import Files
from sdort.benchmark.conclusion import conclusion, headline
from sdort.benchmark.conditions import Conditions, Disturbance, find_disturbances
from sdort.benchmark.digits import digits, time_ratio
from sdort.benchmark.noise import noise_warning, save_warnings
from sdort.benchmark.report.ablation_table import ablation_conclusion, changes
from sdort.benchmark.row_table import as_table, legend, short_cells
from sdort.benchmark.rows import Row
from sdort.cli.bench import _compare_command
from sdort.errors import OutputError, UsageError


def row(component: str = "unet", times: tuple[float, float, float] | None = None, **values: Any) -> Row:
    """A row; ``times`` are the median and its interval."""
    base: dict[str, Any] = {
        "pipeline": "fast", "engine": "onnxruntime", "provider": "cpu", "device": "a CPU", "batch_size": 1,
        "height": 64, "width": 64, "steps": 20 if component == "pipeline" else None, "dtype": "float32",
        "model_hash": "0123456789", "repeat": 10, "warmup": 3, "times_ms": [1.0] * 10,
    }  # fmt: skip
    measured = dict(zip(("median_ms", "low_ms", "high_ms"), times, strict=True)) if times else {}
    return Row(component=component, **{**base, **measured, **values})


# Numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234.5, "1,234"), (99.96, "100"), (12.34, "12.3"), (9.996, "10.0"), (1.163, "1.16"), (0.861, "0.86"),
        (0.0999, "0.100"), (0.0034, "0.0034"), (2.5e-6, "0.0000025"), (0.996, "0.996"), (1.004, "1.004"), (0, "0"),
    ],
)  # fmt: skip
def test_numbers_have_the_digits_that_say_something(value: float, text: str) -> None:
    assert digits(value) == text


def test_a_ratio_whose_interval_holds_1_is_no_difference() -> None:
    assert time_ratio(0.86, 0.83, 0.89) == "0.86 (0.83 to 0.89)"
    assert time_ratio(1.02, 0.95, 1.08) == "no difference (0.95 to 1.08)"
    assert time_ratio(0.0034, 0.0031, 0.0038) == "0.0034 (0.0031 to 0.0038)"
    assert time_ratio(1.5, None, None) == "1.50"


# The table


def demo_rows() -> list[Row]:
    """As ``sdort bench fast --baseline model`` gives."""
    rows = []
    for component in ("text_encoder", "unet", "vae_encoder", "vae_decoder", "pipeline"):
        rows.append(row(component, (1243.0, 1200.0, 1300.0), pipeline="model"))
        measured: dict[str, Any] = {"error": 1e-6, "mean_error": 1e-7, "checked_against": "the baseline model"}
        measured |= {"speedup": 1.0, "speedup_low": 0.9, "speedup_high": 1.05}
        rows.append(row(component, (1234.0, 1200.0, 1300.0), **measured))
    return rows


def test_every_row_is_one_line_at_80_columns() -> None:
    text = io.StringIO()
    Console(width=80, file=text).print(as_table(demo_rows()))
    lines = text.getvalue().strip().splitlines()
    assert len(lines) == 3 + 10
    assert lines[4].split() == ["text_encoder", "fast", "1,234", "no", "difference", "(0.95", "to", "1.11)", "ok"]
    assert lines[3].split() == ["text_encoder", "model", "1,243", "baseline", "reference"]
    alone = [line[3] for line in short_cells([row(times=(14.0, 13.0, 15.0))])[1]]
    assert alone == [""]  # nothing is the baseline where there is no ratio
    assert legend(demo_rows()).startswith("time ratio: time over the baseline's (model)")


def test_what_varies_names_a_row() -> None:
    rows = [row(batch_size=1, engine="torch"), row(batch_size=2, model_hash="a" * 16)]
    table = as_table(rows)
    assert [each.cells[:2] for each in table.rows] == [("unet, batch 1", "torch"), ("unet, batch 2", "onnxruntime")]
    same_name = as_table([row(), row(model_hash="a" * 16)])
    assert [each.cells[1] for each in same_name.rows] == ["01234567", "aaaaaaaa"]


# Noise

QUIET = Conditions(10.0, 100.0, 50.0, 4, 0, False, False)


@pytest.mark.parametrize(
    ("change", "on_gpu", "what"),
    [
        ({"busy": 104.0, "own": 54.0}, False, []),
        ({"busy": 105.0, "own": 53.5}, False, ["other programs used 1.5 of 4 processors"]),
        ({"busy": 105.0, "own": 53.5}, True, []),
        ({"busy": 104.0, "own": 50.5}, True, ["other programs used 3.5 of 4 processors"]),
        ({"time": 10.1, "busy": 105.0}, False, []),  # too short for the kernel's counters
        ({"throttled": 1}, False, ["the processor was slowed down by heat"]),
        ({"on_battery": True}, False, ["the machine runs on its battery"]),
        ({"slow_clock": True}, False, ["the processor is kept at its lowest frequency"]),
    ],
)
def test_what_disturbs_a_measurement_is_named(change: dict[str, Any], on_gpu: bool, what: list[str]) -> None:
    after = replace(QUIET, **{"time": 11.0, **change})
    assert [each.what for each in find_disturbances(QUIET, after, on_gpu)] == what


def test_the_machine_tells_its_state() -> None:
    before, after = conditions.read_conditions(), conditions.read_conditions()
    assert after.time > before.time
    assert after.busy >= before.busy > 0
    assert after.own >= before.own > 0
    assert after.processors >= 1


def test_a_noisy_measurement_is_told_with_what_to_do() -> None:
    steady, wide = row(times=(100.0, 95.0, 105.0)), row("vae_decoder", (100.0, 80.0, 130.0))
    assert noise_warning([steady]) is None
    assert noise_warning([steady, wide]) == (
        "noisy: the median of vae_decoder may be from 80.0 to 130 ms: raise --repeat (now 10)"
    )
    busy = replace(
        steady, disturbances=[Disturbance("other programs used 1.7 of 2 processors", "close other programs")]
    )
    assert noise_warning([busy, busy]) == "noisy: other programs used 1.7 of 2 processors: close other programs"
    assert noise_warning([replace(steady, repeat=3)]) == (
        "noisy: 3 timed calls cannot tell how far the median is off: take --repeat 5 or more"
    )


def test_what_compare_could_not_judge_is_told_when_it_is_saved() -> None:
    steady = row(times=(100.0, 95.0, 105.0))
    assert save_warnings([steady]) == []
    failed = row(status="it is wrong")
    (only,) = save_warnings([steady, replace(failed, times_ms=[])])  # that it has few calls is no other reason
    assert "1 of 2 rows failed" in only
    assert "--repeat 5 or more, not 3" in save_warnings([replace(steady, times_ms=[1.0] * 3)])[0]
    assert "1 of 1 medians are known to ±25 % only" in save_warnings([row(times=(100.0, 80.0, 130.0))])[0]
    assert "the device's name is not known" in save_warnings([replace(steady, device="unknown GPU")])[0]


# The conclusion


def test_the_conclusion_says_what_a_step_and_an_image_take() -> None:
    rows = [row(times=(14.0, 13.0, 15.0), error=1e-6), row("pipeline", (620.0, 600.0, 640.0), images_per_s=1.613)]
    assert conclusion(rows) == (
        "An image of 20 steps takes 620 ms (1.61 images/s), a UNet step takes 14.0 ms; "
        "every output is within its tolerance"
    )
    assert conclusion([row(times=(14.0, 13.0, 15.0))]).endswith("there was no reference to compare outputs with")
    assert conclusion([row(status="it is wrong")]) == "1 of 1 outputs failed their check"


def test_the_headline_is_that_of_an_image_where_there_is_one() -> None:
    step, image = row(times=(14.0, 13.0, 15.0)), row("pipeline", (620.0, 600.0, 640.0))
    assert headline([step, image]) == headline([image, step]) == ("620 ms", "for an image of 20 steps")
    assert headline([step]) == ("14.0 ms", "for a UNet step")
    assert headline([row(status="it is wrong")]) == ("", "")


def test_the_conclusion_says_which_share_of_the_baselines_time() -> None:
    fast = row(times=(86.0, 85.0, 87.0), speedup=1 / 0.86, speedup_low=1 / 0.89, speedup_high=1 / 0.83, error=1e-6)
    image = row("pipeline", (910.0, 900.0, 920.0), speedup=1.0, speedup_low=0.9, speedup_high=1.1, psnr_db=60.0)
    baseline = [row(name, (100.0, 99.0, 101.0), pipeline="model") for name in ("unet", "pipeline")]
    assert conclusion([*baseline, fast, image]) == (
        "A UNet step takes 0.86 (0.83 to 0.89) of the baseline's time, "
        "an image of 20 steps: no difference measurable (0.91 to 1.11); every output is within its tolerance"
    )
    larger = replace(fast, batch_size=2)
    assert conclusion([*baseline, fast, larger]).startswith("Batch 1: a UNet step takes 0.86 (0.83 to 0.89)")
    third = replace(fast, pipeline="other")
    assert conclusion([*baseline, fast, third]).startswith("fast: a UNet step takes")


def test_files_that_exist_stay_unless_they_may_be_replaced(tmp_path: Path) -> None:
    taken, folder = tmp_path / "taken.md", tmp_path / "plots"
    taken.write_text("")
    folder.mkdir()
    (folder / "memory-light.png").write_text("")
    for files in ({"output": taken}, {"save": taken}, {"report": taken}, {"plots": folder}):
        given: dict[str, Any] = dict.fromkeys(("output", "save", "report", "plots")) | files
        with pytest.raises(OutputError, match=r"exists|is not empty"):
            Files("table", **given, overwrite=False).check()
        Files("table", **given, overwrite=True).check()


def test_files_that_cannot_be(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    with pytest.raises(UsageError, match="name the same file"):
        Files("table", page, tmp_path / "x" / ".." / "page.html", None, None, overwrite=True).check()
    page.write_text("")
    with pytest.raises(OutputError, match="belongs to the input"):
        Files("table", None, None, page, None, overwrite=True, reads=[page]).check()
    with pytest.raises(OutputError, match="is not a folder"):
        Files("table", None, None, None, page, overwrite=True).check()
    for files in ({"output": Path()}, {"plots": Path("/")}):
        given: dict[str, Any] = dict.fromkeys(("output", "save", "report", "plots")) | files
        with pytest.raises(OutputError):
            Files("table", **given, overwrite=False).check()


def ablation_of(*times: list[float]) -> Ablation:
    found = Ablation("demo", "cpu")
    for name, calls in zip(("raw fp32", "fp16", "+ FMHA"), times, strict=True):
        found.stages.append(MeasuredStep(name, [row("unet", times_ms=calls, median_ms=calls[0], error=1e-6)]))
        found.measured.rows += found.stages[-1].rows
    return found


def test_an_ablation_row_names_operators_of_both_domains() -> None:
    counts = {"com.microsoft.GroupNorm": -9, "com.microsoft.NhwcConv": 4, "sdort.GroupNorm": 9, "Add": 12}
    assert changes(MeasuredStep("group_norm", [], changes=counts)) == "+9 sdort.GroupNorm, +4 NhwcConv"
    assert changes(MeasuredStep("fold", [], changes={"sdort.GroupNorm": -9, "Add": 12})) == "+12 Add"


def test_the_ablation_names_the_step_that_is_worth_most() -> None:
    steady = [100.0] * 6
    assert ablation_conclusion(ablation_of(steady, [50.0] * 6, [40.0] * 6)) == (
        "At batch 1 '+ FMHA' over 'raw fp32': 0.40 (0.40 to 0.40) of the time, "
        "most of it by 'fp16': 0.50 (0.50 to 0.50); every output is within its tolerance"
    )
    noisy = [60.0, 140.0] * 3
    assert ablation_conclusion(ablation_of(steady, noisy, noisy)).startswith(
        "At batch 1 '+ FMHA' over 'raw fp32': no difference measurable (0.60 to 1.40); every"
    )


def test_the_next_command_compares_with_what_was_saved() -> None:
    arguments = ["a fast one", "--save", "b.json", "--overwrite", "--repeat", "9", "--compare=a.json", "--report", "r"]
    assert _compare_command(arguments, Path("b.json")) == "sdort bench 'a fast one' --repeat 9 --compare b.json"
    assert _compare_command(["fast", "--save=b.json"], Path("b.json")) == "sdort bench fast --compare b.json"
