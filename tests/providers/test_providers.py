"""A provider is one file: it is found, its name comes up everywhere, and what is no provider is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import sdort.providers
from sdort.cli import cli
from sdort.machine.distributions import FALLBACK
from sdort.machine.gpus import driver_of, gpus_of
from sdort.providers import AUTO, PROVIDER_NAMES, PROVIDERS, load_target

FILE = """
from sdort.providers.provider import Provider
from sdort.providers.target import Target

PROVIDER = Provider(
    Target("{name}", "MadeUpExecutionProvider", opset=18, ir_version=10, channels_last=False, kernels={{}}), rank=5
)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose files are looked through too."""
    monkeypatch.setattr(sdort.providers, "__path__", [*sdort.providers.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "sdort.providers.made_up", raising=False)
    return tmp_path


def test_a_file_in_the_folder_is_a_provider(folder: Path) -> None:
    (folder / "made_up.py").write_text(FILE.format(name="made_up"))
    discovered = {each.name: each for each in sdort.providers._discover()}
    assert set(discovered) == {*PROVIDER_NAMES, "made_up"}
    assert discovered["made_up"].ep == "MadeUpExecutionProvider"


def test_the_page_s_file_is_a_provider(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/add-a-provider.md, followed literally."""
    monkeypatch.delitem(sys.modules, "sdort.providers.plain", raising=False)
    page = (Path(__file__).parents[2] / "docs" / "add-a-provider.md").read_text()
    (folder / "plain.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    plain = next(each for each in sdort.providers._discover() if each.name == "plain")
    assert plain.is_fallback
    assert PROVIDERS["cuda"].rank < plain.rank < PROVIDERS["cpu"].rank


@pytest.mark.parametrize("text", ["", FILE.format(name="another"), "PROVIDER = 'made_up'"])
def test_a_file_that_is_none_is_refused(folder: Path, text: str) -> None:
    (folder / "made_up.py").write_text(text)
    with pytest.raises(TypeError, match=r"sdort/providers/made_up\.py has no PROVIDER"):
        list(sdort.providers._discover())


def test_auto_tries_each_at_a_place_of_its_own_and_the_processor_last() -> None:
    ranks = [provider.rank for provider in PROVIDERS.values()]
    assert ranks == sorted(set(ranks))
    assert list(PROVIDERS)[-1] == "cpu"
    assert PROVIDERS["cpu"].ep == FALLBACK


@pytest.mark.parametrize("name", PROVIDER_NAMES)
def test_what_a_provider_says_of_itself_is_whole(name: str) -> None:
    provider = PROVIDERS[name]
    assert load_target(name) is provider.target
    assert provider.custom_kernels in ("rocm", "cuda", "cpu")
    assert set(provider.opened) <= set(provider.libraries)
    assert bool(provider.bf16) or provider.no_bf16
    assert bool(provider.graph) or provider.no_graph
    assert provider.numbered or not provider.on_gpu
    known = {option for options in provider.releases.values() for option in options}
    known |= {option for plugin in provider.plugins for option in plugin.options}
    for asked in (provider.options, provider.tuning, provider.graph, provider.bf16, provider.exact):
        assert set(asked) <= known
    assert provider.precisions <= known
    assert {provider.programs} - {""} <= known


@pytest.mark.parametrize("command", ["run", "bench", "verify", "optimize", "inspect", "doctor", "warm"])
def test_the_command_line_offers_every_provider(command: str) -> None:
    parsed = cli.get_command(click.Context(cli), command)
    assert parsed is not None
    option = next(each for each in parsed.params if "--provider" in each.opts)
    assert isinstance(option.type, click.Choice)
    assert tuple(name for name in option.type.choices if name != AUTO) == PROVIDER_NAMES


def test_ops_tune_offers_those_with_kernels_of_the_library() -> None:
    told = CliRunner().invoke(cli, ["ops", "tune", "--help"]).output
    assert "[auto|rocm|cuda]" in told


def test_of_a_vendor_that_is_not_known_nothing_is_said(tmp_path: Path) -> None:
    from sdort.machine.system import System

    system = System(root=tmp_path, environ={})
    assert gpus_of("made up", system) == []
    assert driver_of("made up", system) is None
