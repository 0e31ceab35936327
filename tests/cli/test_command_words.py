"""Words of commands that need no model: ages, counts, next commands, verdicts, and values of options."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from sdort.cli import export as export_command
from sdort.cli.doctor import _findings, _next_steps, _verdict
from sdort.cli.from_options import needs, options_of
from sdort.cli.number_types import Duration, NumberList, SizeList
from sdort.cli.tuning import _next_step, _summary, age_text
from sdort.cli.warm import _run_command, _table
from sdort.demo.judge import detect_shapes
from sdort.demo.scenes import Scene, SceneShape, render
from sdort.errors import ProviderError
from sdort.optimizer import provider_choice
from sdort.options.declared_options import option
from sdort.options.number_ranges import Range
from sdort.providers import PROVIDERS
from sdort.providers.runtime_options import ExecutionOptions, RuntimeOptions


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3599, "60 min"), (3600, "1 h"), (86399, "24 h"), (86400, "1 d"),
     (200000, "2 d")],
)  # fmt: skip
def test_an_age_is_in_the_largest_unit_that_gives_one(seconds: float, text: str) -> None:
    assert age_text(seconds) == text


def bundles(*states: str) -> Any:
    return [SimpleNamespace(state=state, bytes=1000) for state in states]


def test_what_to_do_with_the_tuning_cache() -> None:
    for states, command in (
        ((), "sdort warm PIPELINE"), (("used",), None), (("used", "foreign"), None),
        (("used", "stale"), "sdort tuning prune"),
        (("broken",), "sdort tuning prune"),
    ):  # fmt: skip
        assert _next_step(bundles(*states)) == command
    assert _summary([]) == "No tuning bundles in"
    assert _summary(bundles("used", "used")).startswith("Runs here use all of 2 bundles, ")
    assert _summary(bundles("used", "stale", "foreign")).startswith("Runs here use 1 of 3 bundles, ")


# Next commands


@pytest.mark.parametrize(
    ("sizes", "batches", "words"),
    [
        ((), (1,), []), (((64, 96), (32, 48)), (1, 4), ["--size", "96x64"]),
        ((), (4, 1), ["--num-images", "4"]),
        (((64, 96),), (2,), ["--size", "96x64", "--num-images", "2"]),
    ],
)  # fmt: skip
def test_the_run_that_is_warm_now(sizes: Any, batches: Any, words: list[str]) -> None:
    options: Any = {"sizes": sizes, "batch_sizes": batches, "provider": "rocm", "tuning": True, "device_id": 2}
    found = shlex.split(_run_command(Path("a model"), options))
    assert found[:4] == ["sdort", "run", "a model", "--prompt"]
    assert found[5:] == ["--provider", "rocm", "--tuning", "--device-id", "2", *words]


def test_the_table_of_a_warm_up() -> None:
    one = SimpleNamespace(
        component="unet", batch=3, height=64, width=96, status="done", before_s=12.345, after_s=None, decodes="whole"
    )
    items: Any = [one]
    assert [row.cells for row in _table(items).rows] == [("unet", "3", "96x64", "done", "12.35", "", "whole")]


@pytest.mark.parametrize("name", [*PROVIDERS, ""])
def test_the_next_step_is_for_the_provider_that_works_here(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(options: RuntimeOptions) -> Any:
        assert options.provider == "auto"
        if not name:
            raise ProviderError("ONNX Runtime is not installed")
        return PROVIDERS[name], None

    monkeypatch.setattr(provider_choice, "choose_provider", choose)
    expected = {"rocm": "--fp16 --provider rocm", "migraphx": "--fp16 --provider migraphx",
                "cuda": "--fp16 --provider cuda", "dml": "--fp16 --provider dml",
                "cpu": "--provider cpu", "": "--provider cpu"}  # fmt: skip
    assert export_command._fastest() == expected.get(name, f"--provider {name}")


# The doctor


def finding(section: str, check: str, status: str, message: str, next_step: str = "") -> Any:
    return SimpleNamespace(section=section, check=check, status=status, message=message, next_step=next_step)


FINDINGS = [
    finding("ONNX Runtime", "version here", "ok", "1.2"), finding("ONNX Runtime", "rocm", "warning", "old", "renew"),
    finding("GPU", "driver", "problem", "none", "install it"), finding("GPU", "memory", "problem", "little", "free"),
]  # fmt: skip


def diagnosis(provider: str | None = None, works: bool = False, loads: tuple[str, ...] = (), findings: Any = ()) -> Any:
    providers = {name: SimpleNamespace(loads=name in loads) for name in ("rocm", "cuda", "cpu")}
    return SimpleNamespace(provider=provider, works=works, providers=providers, findings=list(findings))


def test_problems_come_before_warnings_and_sections_are_named_once() -> None:
    found = diagnosis(findings=FINDINGS)
    assert _next_steps(found).splitlines() == ["  driver: install it", "  memory: free", "  rocm: renew"]
    assert [row.cells[0] for row in _findings(found).rows] == ["ONNX Runtime", "", "GPU", ""]
    assert _findings(found).rows[0].cells[1:] == ("version\u00a0here", "ok", "1.2")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (diagnosis("rocm", True, findings=FINDINGS), "sdort run --provider rocm works here."),
        (diagnosis("rocm", False, findings=FINDINGS), "sdort run --provider rocm does not work here: none."),
        (diagnosis("rocm", False, findings=FINDINGS[:2]), "sdort run --provider rocm does not work here."),
        (diagnosis(loads=("cuda", "cpu")), "Providers that work here: cuda, cpu."),
        (diagnosis(findings=FINDINGS), "No provider works here."),
    ],
)
def test_the_doctor_s_verdict(found: Any, words: str) -> None:
    assert _verdict(found) == words


# Values of options

TIME = Duration(Range("time", 1.0, 1e7, ""))


def converted(kind: click.ParamType[Any], value: object) -> Any:
    try:
        return kind.convert(value, None, None)
    except click.BadParameter as error:
        return error.message


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (NumberList(), "1,4,1", (1, 4)), (NumberList(), "3", (3,)), (NumberList(), (2,), (2,)),
        (SizeList(), "64x96,32x48,64x96", ((96, 64), (48, 32))), (SizeList(), ((1, 2),), ((1, 2),)),
        (TIME, "90s", 90.0), (TIME, "1.5m", 90.0),
        (TIME, "2h", 7200.0), (TIME, "2d", 172800.0),
        (TIME, 4.0, 4.0),
    ],
)  # fmt: skip
def test_lists_and_times(kind: click.ParamType[Any], value: object, wanted: Any) -> None:
    assert converted(kind, value) == wanted


@pytest.mark.parametrize(
    ("kind", "value"),
    [(NumberList(), text) for text in ("", "0", "1,", "01", "1,,2", "-1")]
    + [(SizeList(), text) for text in ("64", "64x", "x64", "0x64", "64x64x64", "64y64")]
    + [(TIME, text) for text in ("90", "s", "1w", "-1s", "0.5s", "1e3s")],
)
def test_what_is_no_list_and_no_time(kind: click.ParamType[Any], value: str) -> None:
    assert isinstance(converted(kind, value), str)


def test_options_of_a_provider_are_names_and_values() -> None:
    @click.command()
    @options_of(ExecutionOptions)
    def command(**values: Any) -> None:
        click.echo(repr(values["provider_options"]))

    def told(*values: str) -> str:
        words = [word for value in values for word in ("--provider-option", value)]
        return CliRunner().invoke(command, words).output

    assert told("a=b=c", "d=") == "{'a': 'b=c', 'd': ''}\n"
    assert told("a=b", "a=b") == "{'a': 'b'}\n"
    assert "a is given twice, as b and as c" in told("a=b", "a=c")
    assert "'a' is not NAME=VALUE" in told("a")
    assert "'=b' is not NAME=VALUE" in told("=b")


def test_an_option_that_means_nothing_alone_is_refused() -> None:
    @dataclass
    class Options:
        fp16: bool = option(False)
        io_fp16: bool = option(False, needs="fp16")

    called: list[Any] = []
    command = needs(Options)(lambda **values: called.append(values))
    for io, fp16 in ((False, False), (False, True), (True, True)):
        command(io_fp16=io, fp16=fp16)
    with pytest.raises(click.UsageError, match="--io-fp16 needs --fp16"):
        command(io_fp16=True, fp16=False)
    assert len(called) == 3


# The demo's judge


@pytest.mark.parametrize(("down", "right"), [(0, 64), (64, 0), (32, 96)])
def test_a_place_is_a_share_of_its_own_side(down: int, right: int) -> None:
    import numpy as np

    image = render(Scene("white", (SceneShape("square", "red", 16, 40, 14),)))
    wide = np.pad(image, ((0, down), (0, right), (0, 0)), constant_values=255)
    _, [seen] = detect_shapes(wide)
    assert (seen.shape, seen.colour) == ("square", "red")
    assert (seen.x, seen.y) == pytest.approx((16.5 / (64 + right), 40.5 / (64 + down)), abs=0.01)
