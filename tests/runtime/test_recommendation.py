"""The provider for a machine: by card, operating system and what is installed; ``auto`` takes the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import card_table
import pytest
from generated_files import REPOSITORY
from support import machines
from support.nvidia import Card, nvml

from sdort.machine.system import System
from sdort.providers import PROVIDERS, cards
from sdort.providers.cards import GENERATIONS, LINUX, MACOS, SYSTEMS, WINDOWS, Way, generation_of, ways_on
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import probe
from sdort.runtime.recommendation import auto_order, recommend

ALL = [provider.ep for provider in PROVIDERS.values()]


def names(system: System, available: list[str] = ALL) -> list[str]:
    return [provider.name for provider in auto_order(available, system)]


def radeon(gfx: int) -> Callable[[Path], System]:
    return lambda root: machines.rocm_7(root, gfx, "a Radeon")


def geforce(root: Path) -> System:
    system = machines.processor(root)
    return System(root, system.environ, system.packages, management=nvml(Card("a GeForce", (8, 9))))


@pytest.mark.parametrize(
    ("machine", "first", "alone"),
    [
        (radeon(110000), "rocm", "migraphx"),  # it has machine code of it; a new install gets what goes on
        (radeon(90402), "rocm", "migraphx"),
        (radeon(110002), "migraphx", "migraphx"),  # the RX 7600, of which it has none
        (radeon(110501), "migraphx", "migraphx"),
        (radeon(90500), "migraphx", "migraphx"),
        (geforce, "cuda", "cuda"),
        (machines.nvidia, "cuda", "cuda"),  # whose driver does not tell what it is
        (machines.processor, "rocm", "cpu"),  # no card: the order of ranks, of which none loads
    ],
)
def test_the_cards_decide(machine: Callable[[Path], System], first: str, alone: str, tmp_path: Path) -> None:
    system = machine(tmp_path)
    order = names(system)
    assert (order[0], order[-1], set(order)) == (first, "cpu", set(PROVIDERS))
    assert recommend((), system, LINUX).provider == alone
    if alone != "cpu":
        found = recommend((first, "cpu"), system, LINUX)
        assert (found.provider, found.installed) == (first, True)
        assert found.source.startswith("https://")


def test_auto_takes_what_is_recommended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same function behind both: each card with each set of providers that load."""
    for gfx in (110000, 110002, 120001, 90402, 100302):
        system = machines.rocm_7(tmp_path / str(gfx), gfx)
        monkeypatch.setattr("sdort.runtime.recommendation.System", lambda system=system: system)
        monkeypatch.setattr(probe, "import_onnxruntime", lambda: Listing)
        for loading in (("rocm", "migraphx"), ("migraphx",), ("rocm",), ()):
            monkeypatch.setattr(
                probe, "why_not", lambda each, _, loading=loading: None if each.name in (*loading, "cpu") else "no"
            )
            taken, _ = probe.choose_provider(RuntimeOptions("auto"))
            if loading and set(loading) & {way.provider for way in ways_on(f"gfx{gfx}", LINUX)}:
                assert taken.name == recommend((*loading, "cpu"), system, LINUX).provider
            assert probe.expected_provider(RuntimeOptions("auto")) == auto_order(ALL, system)[0]


class Listing:
    """An ONNX Runtime that lists every provider."""

    @staticmethod
    def get_available_providers() -> list[str]:
        return ALL


def test_a_single_gpu_provider_asks_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdort.runtime.recommendation.System", lambda: pytest.fail("the machine is read"))
    available = [PROVIDERS["cuda"].ep, PROVIDERS["cpu"].ep]
    assert [provider.name for provider in auto_order(available)] == ["cuda", "cpu"]


def test_what_sdort_has_no_provider_for_is_not_recommended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = machines.rocm_7(tmp_path)
    way = Way("none-of-that-name", "a-package", "words", "https://example.com")
    monkeypatch.setattr(cards, "GENERATIONS", (cards.Generation("all", "", "gfx.*", {WINDOWS: (way,)}),))
    assert recommend((), system, WINDOWS).provider == "cpu"
    monkeypatch.setattr(cards, "GENERATIONS", (cards.Generation("all", "", "gfx.*", {WINDOWS: (way, CUDA)}),))
    assert recommend((), system, WINDOWS).provider == "cuda"


CUDA = Way("cuda", "onnxruntime-gpu", "words", "https://example.com")


def test_what_the_rocm_wheel_has_code_for_is_what_the_table_says() -> None:
    """The machine code of the library, which the provider lists, against the table."""
    for architecture in ("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1031", "gfx1100", "gfx1102", "gfx1151"):
        listed = "rocm" in {way.provider for way in ways_on(architecture, LINUX)}
        assert listed == (architecture in PROVIDERS["rocm"].architectures), architecture


def test_every_fact_has_its_source_and_every_card_a_generation() -> None:
    ways = [way for each in GENERATIONS for found in each.ways.values() for way in found]
    assert all(way.source.startswith("https://") and way.why and way.package for way in ways)
    assert generation_of("gfx1010").name == "RDNA 1"
    assert generation_of("") == generation_of("xe2") == GENERATIONS[-1]
    assert ways_on("gfx90a", MACOS) == ()
    assert all(set(each.ways) <= set(SYSTEMS) for each in GENERATIONS)


def test_the_page_is_what_the_table_says() -> None:
    page = (REPOSITORY / card_table.PAGE).read_text()
    assert page == card_table.page()
    assert {way.source for each in GENERATIONS for found in each.ways.values() for way in found} == {
        line.partition("<")[2].rstrip(">).") for line in page.splitlines() if line[:1].isdecimal()
    }
