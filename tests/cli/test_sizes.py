"""``--size WxH`` of every command: the width first, and the order told where a command once had the other."""

from __future__ import annotations

from functools import partial
from typing import Any

import click
import numpy as np
import pytest

from sdort.cli import cli
from sdort.cli.completions import complete_schedulers
from sdort.cli.number_types import Size, SizeList
from sdort.errors import UsageError
from sdort.exporter.export_options import StaticSize
from sdort.exporter.export_request import check_options
from sdort.generation.job import plan_jobs
from sdort.options.number_ranges import parse_size, size_words
from sdort.samplers.scheduler_names import SAMPLERS, find_scheduler
from sdort.verification.command_line import VerifyOptions
from sdort.verification.image_comparison import make_requests


@pytest.mark.parametrize("sides", np.random.default_rng(3).integers(1, 16385, (20, 2)).tolist())
def test_every_command_reads_the_width_first(sides: list[int]) -> None:
    width, height = sides
    text = f"{width}x{height}"
    for written in (text, text.upper(), f" {width} x {height} ", text.replace("x", "*"), text.replace("x", "\u00d7")):
        assert parse_size(written) == (height, width)
    assert size_words((height, width)) == text
    assert Size().convert(text, None, None) == text
    assert SizeList().convert(f"{text},64x64", None, None)[0] == (height, width)
    [request] = plan_jobs("a", {"size": text})[0].requests
    assert (request.height, request.width) == (height, width)
    assert check_options({"size": text}).static == StaticSize(1, height, width)
    [asked] = make_requests(["a"], 1, 1, size=parse_size(text))
    assert (asked.height, asked.width) == (height, width)
    assert f"--size {text}" in VerifyOptions(size=text).command_line(__file__)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["", "64", "64x", "x64", "0x64", "64x0", "64x64x64", "64x16385", "-1x64", "a", "\uff16x\uff16"]
)
def test_what_is_no_size_is_refused_everywhere(text: str) -> None:
    with pytest.raises(UsageError, match="--size"):
        parse_size(text)
    for kind in (Size(), SizeList()):
        with pytest.raises(click.BadParameter):
            kind.convert(text, None, None)
    with pytest.raises(UsageError, match="--size"):
        plan_jobs("a", {"size": text})


@pytest.mark.parametrize(
    ("text", "sizes", "told"),
    [
        ("64x64", ((64, 64),), None),
        ("96x64", ((64, 96),), "--size 96x64 is 96 wide and 64 high"),
        ("64x64,96x64", ((64, 64), (64, 96)), "--size 96x64 is 96 wide and 64 high"),
        ("hxw:96x64", ((96, 64),), "--size hxw: reads the height first, as sdort did once: write --size 64x96"),
        ("HxW:64x64,32x96", ((64, 64), (32, 96)), "write --size 64x64,96x32"),
    ],
)
def test_nobodys_sizes_are_turned_without_a_word(
    text: str, sizes: Any, told: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert SizeList().convert(text, None, None) == sizes
    said = " ".join(capsys.readouterr().err.split())
    assert (told in said) if told else not said


def test_one_side_alone_overrides_nothing_of_a_size() -> None:
    for options in ({"size": "96x64", "height": 32}, {"size": "96x64", "width": 64}):
        with pytest.raises(UsageError, match="say different sizes"):
            plan_jobs("a", options)  # type: ignore[arg-type]
    [request] = plan_jobs("a", {"size": "96x64", "width": 96})[0].requests
    assert (request.height, request.width) == (64, 96)
    with pytest.raises(UsageError, match="both fix the sizes"):
        check_options({"size": "96x64", "static": "1x64x96"})


def test_a_line_of_a_file_overrides_the_size_of_all(tmp_path: Any) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": "b", "width": 128}\n{"prompt": "c", "size": "32x16"}\n')
    found = [job.requests[0] for job in plan_jobs((), {"prompts": file, "size": "96x64"})]
    assert [(one.width, one.height) for one in found] == [(96, 64), (128, 64), (32, 16)]


def test_the_shell_completes_sizes() -> None:
    context, option = click.Context(click.Command("run")), click.Option(["--size"])
    assert [item.value for item in Size().shell_complete(context, option, "1024")] == ["1024x1024"]
    assert [item.value for item in SizeList().shell_complete(context, option, "1x1,1216")] == ["1x1,1216x832"]


def test_the_shell_completes_schedulers_and_files() -> None:
    context, option = click.Context(click.Command("run")), click.Option(["--scheduler"])
    complete = partial(complete_schedulers, context, option)
    assert complete("") == list(SAMPLERS)
    assert complete("DPM++-2m-s") == ["dpm++-2m-sde", "dpm++-2m-sde-heun", *complete("dpm++-2m-s")[2:]]
    assert complete("dpm++-2m-k") == ["dpm++-2m-karras"]
    assert complete("ddim-k") == []
    assert complete("DDIM")[-1] == "DDIMScheduler"
    for name in complete("e") + complete("d"):
        find_scheduler(name)
    options = {each.opts[0]: each for each in command("run").params}
    assert [item.value for item in options["--scheduler"].shell_complete(context, "unipc-be")] == ["unipc-beta"]
    for name in ("--lora", "--init-image", "--mask", "--from-image", "--wildcards", "--lora-folder"):
        [item] = options[name].shell_complete(context, "a")
        assert item.type in ("file", "dir")
    for other in ("bench", "export"):
        [named] = [each for each in command(other).params if each.name == "scheduler"]
        assert next(item.value for item in named.shell_complete(context, "tc")) == "tcd"


def command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found
    return found
