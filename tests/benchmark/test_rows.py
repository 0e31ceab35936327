"""Each field of a row in its own place: cells, names, keys, and the words around them."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from dataclasses import replace
from typing import Any

import pytest

from sdort.benchmark.conclusion import (
    by_contender,
    conclusion,
    headline,
    headline_rows,
    outputs,
    share_words,
    subject,
)
from sdort.benchmark.conditions import Disturbance
from sdort.benchmark.labels import bar_label, case_label, contender_label, dtype_text
from sdort.benchmark.noise import half_width, noise_warning, save_warnings
from sdort.benchmark.regression import (
    as_saved,
    compare_with_saved,
    comparison_conclusion,
    comparison_table,
    load_rows,
    refuse_slower,
)
from sdort.benchmark.row_table import as_table, caption, cells, date_text, legend, rows_as_csv, settings, short_cells
from sdort.benchmark.rows import MOST_LISTED, Compared, Row, failures, listed, refuse_failed
from sdort.errors import ParityError, RegressionError, UsageError


def row(component: Any = "unet", **values: Any) -> Row:
    base: dict[str, Any] = {
        "pipeline": "fast", "engine": "onnxruntime", "provider": "cpu", "device": "a CPU", "batch_size": 1,
        "height": 64, "width": 96, "steps": 20 if component == "pipeline" else None, "dtype": "float32",
        "model_hash": "0123456789", "repeat": 10, "warmup": 3, "times_ms": [1.0] * 10, "median_ms": 10.0,
    }  # fmt: skip
    return Row(component=component, **{**base, **values})


FULL = row(
    engine="torch", provider="rocm", dtype="bfloat16", batch_size=4, median_ms=11.0, mean_ms=12.0, p90_ms=13.0,
    min_ms=14.0, first_ms=15.0, prepare_ms=16.0, images_per_s=17.0, host_first_mib=1018.0, host_later_mib=19.0,
    device_first_mib=20.0, device_later_mib=21.0, speedup=0.5, speedup_low=0.4, speedup_high=0.8, error=1.5e-3,
    mean_error=2.5e-4, checked_against="it",
)  # fmt: skip

# Cells


def test_every_column_holds_its_own_field() -> None:
    titles, [line] = cells([FULL])
    assert dict(zip(titles, line, strict=True)) == {
        "pipeline": "fast 01234567", "engine": "torch rocm bf16", "component": "unet", "batch": "4", "size": "96x64",
        "median ms": "11.0", "mean": "12.0", "p90": "13.0", "min": "14.0", "first": "15.0", "prepare": "16.0",
        "images/s": "17.0", "host MiB": "1,018 / 19", "device MiB": "20 / 21", "time ratio": "2.00 (1.25 to 2.50)",
        "output": "1.5e-03 vs it",
    }  # fmt: skip
    titles, [line] = cells([row(median_ms=None, host_first_mib=3.0, device_first_mib=4.0, device_later_mib=0.0)])
    assert dict(zip(titles, line, strict=True)) == {
        "pipeline": "fast 01234567", "engine": "onnxruntime cpu fp32", "component": "unet", "batch": "1",
        "size": "96x64", **dict.fromkeys(("median ms", "mean", "p90", "min", "first", "prepare", "images/s"), "-"),
        "host MiB": "3 / -", "device MiB": "4 / 0", "time ratio": "", "output": "",
    }  # fmt: skip


def test_the_terminal_s_columns_stand_under_their_titles() -> None:
    table = as_table([FULL])
    assert table.title == "Time of one call on rocm, median"
    found = dict(zip((header.removeprefix(">") for header in table.headers), table.rows[0].cells, strict=True))
    assert found == {
        "component": "unet", "pipeline": "", "median ms": "11.0", "time ratio": "2.00 (1.25 to 2.50)", "output": "ok",
        "mean": "12.0", "p90": "13.0", "min": "14.0", "first": "15.0", "prepare": "16.0", "images/s": "17.0",
        "host MiB": "1,018 / 19", "device MiB": "20 / 21", "model and engine": "01234567 torch rocm bf16",
        "compared": "1.5e-03 vs it",
    }  # fmt: skip
    assert set(table.details) == {*found} - {"component", "pipeline", "median ms", "time ratio", "output"}
    assert (as_table([]).title, as_table([]).rows) == ("", [])


def test_a_row_without_a_ratio_is_the_baseline_where_it_did_not_fail() -> None:
    baseline, fast = row(pipeline="model"), row(speedup=2.0, error=1e-6)
    failed = row("vae_decoder", status="it is wrong", median_ms=None)
    shown = [line[3:] for line in short_cells([baseline, fast, failed])[1]]
    assert shown == [["baseline", "reference"], ["0.50", "ok"], ["", "failed"]]
    # Without any comparison nothing is a reference.
    assert [line[3:] for line in short_cells([baseline, failed])[1]] == [["", "no reference"], ["", "failed"]]


def test_a_verdict_in_a_word_and_in_some() -> None:
    assert row(error=0.0).output == row(psnr_db=50.0).output == "ok"
    assert row().output == "no reference"
    assert row(error=0.0, status="bad").output == "failed"
    assert row(checked_against="nothing").parity() == "nothing"
    assert row(error=0.0, psnr_db=50.0, checked_against="it").parity() == "50.0 dB vs it"
    assert row(psnr_db=math.inf, lowest_psnr_db=math.inf).similarity() == "equal"
    assert row(psnr_db=50.0).similarity() == "50.0 dB"


@pytest.mark.parametrize(
    ("speedup", "ratio"), [((2.0, None, None), (0.5, None, None)), ((2.0, 1.0, 4.0), (0.5, 0.25, 1.0))]
)
def test_a_ratio_turns_the_bounds_of_a_speedup_round(speedup: tuple[Any, ...], ratio: tuple[Any, ...]) -> None:
    each = row(speedup=speedup[0], speedup_low=speedup[1], speedup_high=speedup[2])
    assert each.ratio == ratio
    assert row().ratio is None


def test_a_failed_row_loses_its_interval_and_stages_and_keeps_what_it_used() -> None:
    stages: Any = object()
    each = replace(FULL, low_ms=1.0, high_ms=2.0, stages=stages)
    each.fail("it is wrong")
    assert (each.low_ms, each.high_ms, each.stages, each.ratio) == (None, None, None, None)
    assert (each.failed, each.host_first_mib, each.error, each.repeat) == (True, 1018.0, 1.5e-3, 10)
    assert not row().failed


def test_a_csv_has_a_column_for_each_plain_field() -> None:
    text = rows_as_csv([replace(FULL, step="fp16", versions={"a": "1", "b": "2"})], [{"step": "one", "same_as": ""}])
    [line] = csv.DictReader(io.StringIO(text))
    assert list(line)[:2] == ["step", "same_as"]
    assert (line["step"], line["height"], line["width"], line["versions"]) == ("one", "64", "96", "a 1; b 2")
    assert not {"placement", "times_ms", "compared", "stages", "disturbances"} & {*line}
    assert {"prompt", "measured_at", "device_later_mib", "speedup_high", "lowest_psnr_db"} <= {*line}
    assert rows_as_csv([]).strip() == ""


# What all rows share


def test_settings_say_what_all_rows_share() -> None:
    rows = [row(), row("pipeline", repeat=None)]
    assert settings(rows) == "batch 1, 96x64, fp32, 20 steps, 3 warm-up and 10 timed calls"
    for change, left_out in (
        ({"batch_size": 2}, "batch 1"), ({"height": 32}, "96x64"), ({"width": 64}, "96x64"),
        ({"dtype": "float16"}, "fp32"),
    ):  # fmt: skip
        assert left_out not in settings([*rows, row(**change)])
        assert settings([*rows, row(**change)]).count(", ") == 3
    assert settings([]) == ""


def test_a_caption_names_each_device_and_date_once() -> None:
    rows = [row(versions={"sdort": "1", "python": "3"}), row(measured_at="2026-11-22T12:42:07+01:00"), row(device="b")]
    assert date_text(rows) == "2026-11-22 12:42 UTC+01:00"
    assert caption(rows).split("; ") == [
        "a CPU, b", date_text(rows), "batch 1, 96x64, fp32, 3 warm-up and 10 timed calls", "sdort 1, python 3"
    ]  # fmt: skip
    assert date_text([row()]) == ""
    assert caption([]) == ""


@pytest.mark.parametrize(
    ("torch", "beside", "provider", "told"),
    [
        (["float32"], ["float16"], "cpu", True),
        (["float32"], ["bfloat16", "float32"], "cpu", True),
        (["float32"], ["float32"], "cpu", False),
        (["float32"], [], "cpu", False),
        ([], ["float16"], "cpu", False),
        (["float16"], ["float16"], "cpu", False),
        (["float16", "float32"], ["float16"], "cpu", False),
        (["float32"], ["float16"], "rocm", False),
        (["float32"], ["float16"], "cuda", False),
    ],
)
def test_torch_s_other_precision_is_explained_on_the_cpu(
    torch: list[str], beside: list[str], provider: str, told: bool
) -> None:
    rows = [row(engine="torch-compile", dtype=dtype, provider=provider) for dtype in torch]
    rows += [row(dtype=dtype, provider=provider) for dtype in beside]
    assert ("torch in fp32: on the CPU" in caption(rows)) is told


def test_the_legend_names_the_row_that_others_are_measured_against() -> None:
    rows = [row(speedup=2.0), row(pipeline="model"), row(pipeline="other", speedup=3.0)]
    assert legend(rows) == "time ratio: time over the baseline's (model), with its 95 % interval; below 1 is faster"
    assert legend([row(), row()]) == legend([row(speedup=2.0)]) == ""


# Names


def test_a_case_is_named_by_what_differs() -> None:
    one = row()
    for change, name in (
        ({}, "unet"), ({"batch_size": 2}, "unet, batch 1"), ({"height": 32}, "unet, 96x64"),
        ({"width": 32}, "unet, 96x64"), ({"batch_size": 2, "width": 32}, "unet, batch 1, 96x64"),
    ):  # fmt: skip
        assert case_label(one, [one, row(**change)]) == name
    assert [dtype_text(dtype) for dtype in ("float32", "float16", "bfloat16")] == ["fp32", "fp16", "bf16"]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ([{}, {}], ["fast", "fast"]),
        ([{"pipeline": "a"}, {"pipeline": "b"}], ["a", "b"]),
        ([{"engine": "torch"}, {}], ["torch", "onnxruntime"]),
        ([{"dtype": "float16"}, {}], ["fp16", "fp32"]),
        ([{"model_hash": "fedcba9876"}, {}], ["fedcba98", "01234567"]),
        # What the engine tells apart already, the pipeline does not tell again.
        ([{"engine": "torch", "pipeline": "a"}, {}], ["torch", "onnxruntime"]),
        (
            [{"engine": "torch"}, {"pipeline": "a"}, {"pipeline": "b", "dtype": "float16"}],
            ["torch", "onnxruntime, a", "onnxruntime, b"],
        ),
        # One component of a pipeline in fp32 tells no pipelines apart, nor does another batch or size.
        *(
            ([{"dtype": "float16", **other}, {}], ["fast", "fast"])
            for other in ({"component": "vae_decoder"}, {"batch_size": 2}, {"height": 32}, {"width": 32})
        ),
    ],
)
def test_a_contender_is_named_by_what_tells_it_from_the_others(changes: list[dict[str, Any]], names: list[str]) -> None:
    rows = [replace(row(), **change) for change in changes]
    assert [contender_label(each, rows) for each in rows] == names


def test_a_bar_has_the_sizes_of_images_not_of_components() -> None:
    image, larger, part = row("pipeline"), row("pipeline", batch_size=2), row(height=32)
    assert bar_label(image, [image, part]) == "fast"
    assert bar_label(larger, [image, larger, part]) == "fast, batch 2"
    assert bar_label(part, [part, row()]) == "fast, 96x32"


# Failures


def test_a_failure_is_named_in_full_and_the_rest_counted() -> None:
    failed = [row(status=f"reason {n}", pipeline=f"p{n}", batch_size=n, dtype="float16") for n in range(13)]
    assert failures([row(), failed[1]]) == ["p1, unet, batch 1, 96x64, float16: reason 1"]
    assert MOST_LISTED == 12
    assert listed(["x"] * 12).count("\n  x") == 12
    assert listed(["x"] * 12).endswith("x")
    assert listed(["x"] * 13).endswith("x\n  and 1 more")
    assert listed(["x"] * 15).count("\n  x") == 12
    with pytest.raises(ParityError, match=r"13 of 14 rows were not timed, because they failed:\n  p0") as caught:
        refuse_failed([row(error=1.0), *failed])
    assert caught.value.hint is None  # the one that has an error did not fail
    refuse_failed([row()])


@pytest.mark.parametrize("measured", [{"error": 0.5}, {"psnr_db": 12.0}])
def test_only_what_was_compared_is_sent_to_verify(measured: dict[str, float]) -> None:
    with pytest.raises(ParityError) as caught:
        refuse_failed([row(status="it is wrong", **measured)])
    assert caught.value.hint == "sdort verify PIPELINE --bisect tells where and why."


# Noise


def test_a_wide_interval_is_one_beyond_a_tenth_to_either_side() -> None:
    assert half_width(row(median_ms=100.0, low_ms=80.0, high_ms=130.0)) == 0.25
    for missing in ("median_ms", "low_ms", "high_ms"):
        assert half_width(row(**{"median_ms": 100.0, "low_ms": 80.0, "high_ms": 130.0, missing: None})) == 0
    just, beyond = ({"median_ms": 100.0, "low_ms": 90.0, "high_ms": high} for high in (110.0, 111.0))
    assert noise_warning([row(**just)]) is None
    assert save_warnings([row(**just)]) == []
    assert noise_warning([row(**beyond)]) == (
        "noisy: the median of unet may be from 90.0 to 111 ms: raise --repeat (now 10)"
    )
    several = [row(**just), row(pipeline="other", **beyond)]
    assert "the median of unet of other may be" in (noise_warning(several) or "")
    assert "1 of 2 medians are known to ±10 % only" in save_warnings(several)[0]


def test_of_several_noises_each_kind_is_told_once_with_its_remedy() -> None:
    hot, busy, busier = (Disturbance(*words) for words in (("hot", "cool"), ("busy", "close"), ("busier", "close")))
    few = row(disturbances=[hot, busy], repeat=4)
    assert noise_warning([few, row(disturbances=[busier])]) == (
        "noisy: hot; busier; 4 timed calls cannot tell how far the median is off: cool or close or take --repeat 5 or "
        "more"
    )
    assert noise_warning([row(repeat=5)]) is None
    # What was not timed was not disturbed.
    assert noise_warning([row(median_ms=None, disturbances=[hot], repeat=2)]) is None


def test_the_fewest_calls_and_the_widest_interval_are_told_when_rows_are_saved() -> None:
    rows = [row(times_ms=[1.0] * n, median_ms=100.0, low_ms=100.0 - n, high_ms=100.0 + 10 * n) for n in (4, 3, 5)]
    assert save_warnings([*rows, row(status="bad", times_ms=[])]) == [
        "1 of 4 rows failed their check and have no times to compare with",
        "--compare needs --repeat 5 or more, not 3",
        "3 of 4 medians are known to ±28 % only: smaller changes hide in it",
    ]


# The sentence at the end


def test_subjects_of_sentences() -> None:
    assert subject(row("pipeline", steps=1)) == "an image of 1 step"
    assert subject(row("pipeline", batch_size=3)) == "a batch of 3 images of 20 steps"
    assert subject(row("text_encoder_2", batch_size=3)) == "the text encoder 2"
    assert subject(row(batch_size=3)) == "a UNet step"


def test_the_headline_s_rows_are_the_first_of_each_contender() -> None:
    rows = [
        row("vae_decoder"), row("pipeline"), row(), row(batch_size=2), row(pipeline="other"), row("pipeline", height=8)
    ]  # fmt: skip
    assert headline_rows(rows) == [rows[2], rows[4], rows[1]]
    parts = [row("vae_decoder"), row("text_encoder"), row("vae_decoder", batch_size=2)]
    assert headline_rows(parts) == parts[:2]
    assert [(name, len(mine)) for name, mine in by_contender(rows, rows)] == [("fast", 5), ("other", 1)]


def test_a_headline_prefers_a_ratio_to_an_image() -> None:
    step = row(speedup=2.0, speedup_low=1.6, speedup_high=2.5)
    assert headline([step, row("pipeline")]) == (
        "0.50", "of the baseline's time for a UNet step (0.40 to 0.62 with 95 % confidence)",
    )  # fmt: skip
    assert headline([replace(step, speedup_low=None, speedup_high=None)]) == (
        "0.50", "of the baseline's time for a UNet step",
    )  # fmt: skip
    for low, high in ((0.5, 2.0), (1.0, 2.0), (0.5, 1.0)):
        number, words = headline([row(speedup=1.0, speedup_low=low, speedup_high=high)])
        assert number == "10.0 ms"
        assert words.startswith("for a UNet step: no difference from the baseline is measurable (ratio ")
        assert words.endswith(" with 95 % confidence)")
    assert headline([row(speedup=2.0, speedup_low=1.1, speedup_high=3.0)])[0] == "0.50"


def test_what_is_timed_alone_is_named_where_there_are_several() -> None:
    rows = [row(pipeline="a"), row("pipeline", pipeline="a"), row(pipeline="b", median_ms=20.0)]
    assert conclusion(rows) == (
        "a: an image of 20 steps takes 10.0 ms, a UNet step takes 10.0 ms; b: a UNet step takes 20.0 ms; "
        "there was no reference to compare outputs with"
    )
    # The one without times still makes the other's name needed.
    alone = conclusion([row(pipeline="a"), row(pipeline="b", median_ms=None, status="bad")])
    assert alone == "A: a UNet step takes 10.0 ms; 1 of 2 outputs failed their check"


def test_shares_in_words() -> None:
    assert share_words(0.86, 0.83, 0.89) == "0.86 (0.83 to 0.89) of the time"
    assert share_words(1.0, 0.9, 1.1) == "no difference measurable (0.90 to 1.10)"
    assert share_words(0.5, None, None) == "0.50 of the time"


@pytest.mark.parametrize("measured", [{"error": 0.0}, {"psnr_db": 50.0}])
def test_one_row_that_was_compared_is_enough_for_a_verdict(measured: dict[str, float]) -> None:
    assert outputs([row(), row(**measured)]) == "every output is within its tolerance"


# Against saved rows


def test_verdicts_are_counted_in_the_order_of_their_weight() -> None:
    unsure = "the noise allows no other verdict; more --repeat might"
    found = [("same", "within"), ("not comparable", "why"), ("same", unsure), ("faster", ""), ("slower", "")]
    rows = [row(batch_size=n) for n in range(1, 6)]
    for each, (verdict, reason) in zip(rows, found, strict=True):
        each.compared = Compared(verdict, 1.5, 1.25, 1.75, 8.0, reason)
    assert comparison_conclusion(rows) == (
        "Against the saved benchmark, 5 rows: 1 slower, 1 faster, 1 not comparable, 1 too noisy, 1 same\n  why (1 row)"
    )
    table = comparison_table([rows[4], row()])
    assert table.rows[0].cells == ("unet, batch 5", "8.00", "10.0", "1.50", "1.25 to 1.75", "slower", "")
    assert len(table.rows) == 1
    rows[4].compared = Compared("not comparable", before_ms=8.0, reason="why")
    assert comparison_table([rows[4]]).rows[0].cells[3:5] == ("-", "-")


def test_a_slow_row_is_named_by_its_contender_where_no_step_does() -> None:
    steady = [100.0] * 8
    rows = [row(pipeline="a", times_ms=steady), row(pipeline="b", times_ms=[150.0] * 8, median_ms=150.0)]
    compare_with_saved(rows, [replace(each, times_ms=steady) for each in rows], 0.1)
    with pytest.raises(RegressionError, match=r"benchmark: unet of b takes 1\.50 times as long$"):
        refuse_slower(rows)
    for each, step in zip(rows, ("fp16", "+ FMHA"), strict=True):
        each.step = step
    with pytest.raises(RegressionError, match=r"benchmark: \+ FMHA: unet takes 1\.50 times as long$"):
        refuse_slower(rows)


@pytest.mark.parametrize("failed", list(itertools.product([False, True], repeat=2)))
def test_what_failed_then_or_now_keeps_the_saved_time(failed: tuple[bool, bool]) -> None:
    steady = [100.0] * 8
    then, now = (row(times_ms=steady, median_ms=100.0, status="bad" if bad else "ok") for bad in failed)
    compare_with_saved([now], [then], 0.1)
    assert now.compared is not None
    assert not any(failed) or now.compared.reason == f"its check failed {'now' if failed[1] else 'then'}"
    assert (now.compared.verdict, now.compared.before_ms) == ("not comparable" if any(failed) else "same", 100.0)


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("batch_size", 2, "2"), ("steps", None, -1), ("steps", 3, 1.5), ("error", 0.5, "nan"), ("speedup", None, True),
        ("median_ms", 2.5, "x"), ("versions", {"a": "b"}, {"a": 1}), ("device", "x", None), ("times_ms", [2], [True]),
        ("low_ms", "inf", []),
    ],
)  # fmt: skip
def test_each_field_of_a_saved_row_is_of_its_kind(field: str, good: Any, bad: Any, tmp_path: Any) -> None:
    path = tmp_path / "saved.json"
    content = json.loads(as_saved([row()]))
    content["rows"][0][field] = good
    path.write_text(json.dumps(content))
    loaded = load_rows(path)
    assert getattr(loaded[0], field) == good
    content["rows"][0][field] = bad
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match=rf"is no saved benchmark: rows\[0\]\.{field}"):
        load_rows(path)
