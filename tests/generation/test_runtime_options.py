"""``--provider-option``, ``--graph`` and their like: from the command line to ``RuntimeOptions``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click
import pytest
from click.testing import CliRunner

from sdort.cli.from_options import options_of
from sdort.errors import UsageError
from sdort.providers.runtime_options import ExecutionOptions, RuntimeOptions
from sdort.runtime.probe import choose_provider


def parse(*arguments: str) -> tuple[int, str, RuntimeOptions | None]:
    """Exit code, what was printed, and what the command got."""
    got: list[RuntimeOptions] = []

    @click.command()
    @click.option("--other", default="")
    @options_of(ExecutionOptions)
    @click.argument("path")
    def command(path: str, other: str, **options: Any) -> None:
        assert path == "here"
        got.append(RuntimeOptions(**options))

    done = CliRunner().invoke(command, [*arguments, "here"])
    return done.exit_code, done.output, got[0] if got else None


def test_nothing_given_is_the_defaults() -> None:
    assert parse()[2] == RuntimeOptions()


def test_everything_given_arrives() -> None:
    arguments = "--provider rocm --tuning --graph --no-fallback --device-id 2 --custom-ops off --other x"
    options = ["--provider-option", "gpu_mem_limit=1000", "--provider-option", "name=a=b"]
    _, _, found = parse(*arguments.split(), *options)
    assert found == RuntimeOptions(
        provider="rocm",
        tuning=True,
        graph=True,
        fallback=False,
        device_id=2,
        custom_ops="off",
        provider_options={"gpu_mem_limit": "1000", "name": "a=b"},
    )


@pytest.mark.parametrize(("option", "fallback"), [("--fallback", True), ("--no-fallback", False)])
def test_fallback_is_allowed_forbidden_or_left_open(option: str, fallback: bool) -> None:
    found = parse(option)[2]
    assert found is not None
    assert found.fallback is fallback


def test_every_option_sets_a_field() -> None:
    @click.command()
    @options_of(ExecutionOptions)
    def command(**options: Any) -> None: ...

    names = {parameter.name for parameter in command.params}
    assert "device_id" in names
    assert names <= {field.name for field in fields(RuntimeOptions)}


@pytest.mark.parametrize("text", ["gpu_mem_limit", "=1", ""])
def test_an_option_without_name_or_value_is_a_usage_error(text: str) -> None:
    code, output, _ = parse("--provider-option", text)
    assert code == 2
    assert "is not NAME=VALUE" in output


def test_an_option_may_be_repeated_but_not_contradicted() -> None:
    twice = ["--provider-option", "a=1", "--provider-option"]
    code, output, _ = parse(*twice, "a=2")
    assert code == 2
    assert "a is given twice, as 1 and as 2" in output
    found = parse(*twice, "a=1")[2]
    assert found is not None
    assert found.provider_options == {"a": "1"}


def test_a_request_that_came_from_there_is_checked() -> None:
    _, _, found = parse("--provider", "cpu", "--provider-option", "device_id=1")
    assert found is not None
    with pytest.raises(UsageError, match=r"CPUExecutionProvider of ONNX Runtime .* has no option 'device_id'"):
        choose_provider(found)
