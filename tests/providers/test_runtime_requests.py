"""Requests to the runtime, each option and each pair of them: as words, as a provider's options, as a session's."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sdort.errors import UsageError
from sdort.machine.onnxruntime_copies import Flavour
from sdort.options.declared_options import command_words
from sdort.providers import CPU, PROVIDERS, session_settings
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.migraphx import PROVIDER as MIGRAPHX
from sdort.providers.provider import Option, Provider, address, flag, number, one_of, text
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.providers.session_settings import can_tune, check_options, provider_options, session_options, tuning_remark

PARTS: tuple[tuple[dict[str, Any], list[object]], ...] = (
    ({"provider": "cuda"}, ["--provider", "cuda"]),
    ({"tuning": True}, ["--tuning"]),
    ({"graph": True}, ["--graph"]),
    ({"fallback": True}, ["--fallback"]),
    ({"fallback": False}, ["--no-fallback"]),
    ({"device_id": 2}, ["--device-id", 2]),
    (
        {"provider_options": {"b": "1", "a": "x=y"}},
        ["--provider-option", "b=1", "--provider-option", "a=x=y"],
    ),
    ({"custom_ops": "off"}, ["--custom-ops", "off"]),
    ({"split": False}, ["--no-split"]),
    ({"check": False}, ["--no-check"]),
)


@pytest.mark.parametrize("size", [0, 1, 2])
def test_words_are_those_of_what_differs(size: int) -> None:
    """Of every option alone and of every two together, in one order."""
    for parts in itertools.combinations(PARTS, size):
        asked = {name: value for fields, _ in parts for name, value in fields.items()}
        if len(asked) == size:
            assert command_words(RuntimeOptions(**asked)) == [word for _, words in parts for word in words]


def test_defaults_are_no_words() -> None:
    assert command_words(RuntimeOptions("auto", False, device_id=0, custom_ops="auto", split=True, check=True)) == []


@pytest.mark.parametrize("fallback", [None, False, True])
@pytest.mark.parametrize("provider", ["auto", "rocm", "cpu"])
def test_the_cpu_stands_in_where_it_is_allowed_or_nothing_was_chosen(provider: str, fallback: bool | None) -> None:
    expected = fallback is True or (fallback is None and provider == "auto")
    assert RuntimeOptions(provider, fallback=fallback).may_fall_back is expected


WANTED: dict[str, dict[str, dict[str, str]]] = {
    "rocm": {
        "always": {"device_id": "3", "tunable_op_enable": "1", "arena_extend_strategy": "kSameAsRequested"},
        "tuning": {
            "tunable_op_tuning_enable": "1",
            "miopen_conv_exhaustive_search": "1",
            "miopen_conv_use_max_workspace": "1",
            "tunable_op_max_tuning_duration_ms": "70",
        },
        "graph": {"enable_hip_graph": "1"},
        "stream": {"user_compute_stream": "4096"},
    },
    "cuda": {
        "always": {"device_id": "3", "arena_extend_strategy": "kSameAsRequested"},
        "tuning": {},
        "graph": {"enable_cuda_graph": "1"},
        "stream": {"user_compute_stream": "4096"},
    },
    "migraphx": {"always": {"device_id": "3"}, "tuning": {"migraphx_exhaustive_tune": "1"}},
    "dml": {"always": {"device_id": "3"}, "tuning": {}},
    "cpu": {"always": {}, "tuning": {}},
}
"""What each request adds to the options that ONNX Runtime gets."""
ASKED: dict[str, dict[str, Any]] = {"tuning": {"tuning": True}, "graph": {"graph": True}, "stream": {"stream": 4096}}


@pytest.mark.parametrize("name", WANTED)
def test_requests_add_up(name: str) -> None:
    provider, wanted = PROVIDERS[name], WANTED[name]
    possible = [request for request in ASKED if request in wanted]
    for size in range(len(possible) + 1):
        for requests in itertools.combinations(possible, size):
            given = {key: value for request in requests for key, value in ASKED[request].items()}
            found = provider_options(provider, RuntimeOptions(name, device_id=3, tuning_ms=70, **given))
            expected = dict(wanted["always"])
            for request in requests:
                expected |= wanted[request]
            assert found == expected, requests


@pytest.mark.parametrize("provider", [CPU, MIGRAPHX], ids=lambda each: each.name)
def test_a_stream_is_refused_where_none_is_taken(provider: Provider) -> None:
    with pytest.raises(UsageError, match=f"{provider.name} takes no stream of its caller's"):
        provider_options(provider, RuntimeOptions(stream=1))


def test_where_there_are_no_graphs_it_is_said_where_there_are() -> None:
    with pytest.raises(UsageError, match="graphs are recorded on GPUs only") as caught:
        check_options(CPU, RuntimeOptions(graph=True))
    assert caught.value.hint == "Leave it out, or run on rocm or cuda."


def test_every_option_that_is_given_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_settings, "flavour", lambda: Flavour("onnxruntime-gpu", "1.31.1"))
    good = {"use_tf32": "0", "gpu_mem_limit": "-1"}
    check_options(CUDA, RuntimeOptions(provider_options=good))
    for bad in ({"prefer_nhwc": "no"}, {"none_such": "1"}, {"enable_cuda_graph": "1"}):
        for given in (good | bad, bad | good):
            with pytest.raises(UsageError, match=next(iter(bad))):
                check_options(CUDA, RuntimeOptions(provider_options=given))


def test_the_hint_names_the_options_that_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_settings, "flavour", lambda: Flavour("onnxruntime-rocm", "1.22.2"))
    with pytest.raises(UsageError, match=r"ROCMExecutionProvider of ONNX Runtime 1\.22 has no option 'x'") as caught:
        check_options(ROCM, RuntimeOptions(provider_options={"x": "1"}))
    hint = str(caught.value.hint)
    names = re.fullmatch(r"It has: (.*)\.", hint)
    assert names
    assert set(names[1].split(", ")) == {name for name, option in ROCM.releases["1.22"].items() if not option.instead}
    with pytest.raises(UsageError) as caught:
        check_options(CPU, RuntimeOptions(provider_options={"x": "1"}))
    assert caught.value.hint == "It has: none at all."


OPTIONS: dict[str, tuple[Option, str, tuple[str, ...], tuple[str, ...]]] = {
    "on": (flag(True), "1", ("0", "1", "true", "false", "True", "False"), ("", "yes", "2", "TRUE", "01", "1 ")),
    "off": (flag(False), "0", ("0", "1"), ("-1",)),
    "number": (number(7), "7", ("0", "-1", "18446744073709551615"), ("", "1.5", "a", "--1", "1 ")),
    "one of": (one_of("a.b", "c"), "a.b", ("a.b", "c"), ("", "axb", "a", "b", "a.b|c")),
    "text": (text(), "", ("", "a b", "a\nb"), ()),
    "address": (address(), "0", ("1",), ("x",)),
}
"""An option, its default, values that it takes, and others."""


@pytest.mark.parametrize("kind", OPTIONS)
def test_an_option_takes_its_values_and_no_others(kind: str) -> None:
    option, default, good, bad = OPTIONS[kind]
    assert option.default == default
    assert [value for value in (default, *good) if not re.fullmatch(option.values, value)] == []
    assert [value for value in bad if re.fullmatch(option.values, value)] == []
    assert bool(option.instead) == (kind == "address")
    owned = option.owned_by("Ask elsewhere.")
    assert owned == replace(option, instead="Ask elsewhere.")


def test_options_are_those_of_the_first_release_that_is_not_older() -> None:
    def release(name: str) -> dict[str, Option]:
        return {name: flag(False)}

    provider = replace(CPU, releases={"1.9": release("a"), "1.22": release("b"), "2.0": release("c")})
    found = {
        version: provider.known_options(version)[0]
        for version in ("1.8.5", "1.9", "1.9.9", "1.10", "1.22.2.post3", "1.23", "2.0.1", "2.1", "3")
    }
    assert found == {
        "1.8.5": "1.9", "1.9": "1.9", "1.9.9": "1.9", "1.10": "1.22", "1.22.2.post3": "1.22", "1.23": "2.0",
        "2.0.1": "2.0", "2.1": "2.0", "3": "2.0",
    }  # fmt: skip
    assert provider.known_options("1.10") == ("1.22", release("b"))
    assert CPU.known_options("1.31.1") == ("1.31.1", {})


def test_a_provider_is_numbered_if_a_release_takes_a_device() -> None:
    assert {name for name, provider in PROVIDERS.items() if provider.numbered} == {"rocm", "migraphx", "cuda", "dml"}
    assert {name for name, provider in PROVIDERS.items() if provider.is_fallback} == {"cpu"}
    assert {name for name, provider in PROVIDERS.items() if provider.on_gpu} == {"rocm", "migraphx", "cuda", "dml"}
    newer = replace(CPU, releases={"1.0": {"x": flag(False)}, "1.1": {"device_id": number(0)}})
    assert newer.numbered


@pytest.mark.parametrize("built", [False, True], ids=["without the library", "with it"])
@pytest.mark.parametrize("name", PROVIDERS)
def test_what_can_be_tuned_and_what_is_said_of_it(
    name: str, built: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def resolve(setting: str) -> Path | None:
        asked.append(setting)
        return tmp_path if built else None

    monkeypatch.setattr(session_settings, "resolve", resolve)
    provider, options = PROVIDERS[name], RuntimeOptions(name, custom_ops="on")
    own = "own" if built else ""
    searched = {"rocm": "kernels", "migraphx": "kernels", "cuda": own, "dml": own}.get(name, "")
    assert can_tune(provider, options) is bool(searched)
    remark = tuning_remark(provider, replace(options, tuning=True))
    assert (
        remark
        == {
            "kernels": f"tuning on {name}: the first steps search for the fastest kernels and take longer",
            "own": f"tuning on {name}: the first steps try the variants of sdort's own kernels and take longer",
            "": f"--tuning has no effect on {name}: that provider has nothing to search",
        }[searched]
    )
    assert set(asked) == ({"on"} if name in ("cuda", "dml") else set())
    assert bool(tuning_remark(provider, options)) == (name == "rocm")


class Settings:
    """As ONNX Runtime's SessionOptions."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}

    def add_session_config_entry(self, name: str, value: str) -> None:
        self.entries[name] = value


@pytest.mark.parametrize("provider", PROVIDERS.values(), ids=lambda each: each.name)
def test_a_sessions_settings_are_those_of_the_request(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    registered: list[tuple[Any, ...]] = []
    monkeypatch.setattr(session_settings, "resolve", lambda setting: tmp_path / setting if setting != "off" else None)
    monkeypatch.setattr(session_settings, "register", lambda *given: registered.append(given))
    runtime: Any = SimpleNamespace(SessionOptions=Settings)
    made = session_options(
        runtime, provider, RuntimeOptions(threads=3, profile="there/p", custom_ops="on"), 2, ("GroupNorm",)
    )
    assert (made.log_severity_level, made.intra_op_num_threads) == (2, 3)
    assert (made.enable_profiling, made.profile_file_prefix) == (True, "there/p")
    assert made.entries["session.force_spinning_stop"] == "1"
    assert (made.enable_mem_pattern, made.enable_mem_reuse) == (False, provider.on_gpu)
    kernels = {"rocm": "rocm", "cuda": "cuda"}.get(provider.name, "cpu")
    assert registered == [(made, tmp_path / "on", kernels, ("GroupNorm",))]
    plain = session_options(runtime, provider, RuntimeOptions(custom_ops="off"), 4)
    assert (plain.log_severity_level, plain.intra_op_num_threads) == (4, 0)
    assert not hasattr(plain, "enable_profiling")
    assert len(registered) == 1


ABILITIES: dict[str, dict[str, Any]] = {
    "rocm": {"vendor": "amd", "device": "cuda", "uses_miopen": True, "programs": "", "exact": {}, "preload": False,
             "constant_weights": set(), "precisions": set(), "bf16": {}, "channels_last": True, "rank": 10},
    "migraphx": {"vendor": "amd", "device": None, "uses_miopen": True, "programs": "migraphx_model_cache_dir",
                 "exact": {}, "preload": False, "constant_weights": set(), "channels_last": False, "rank": 20,
                 "precisions": {f"migraphx_{each}_enable" for each in ("bf16", "fp16", "fp8", "int8")},
                 "bf16": {"migraphx_bf16_enable": "1"}},
    "cuda": {"vendor": "nvidia", "device": "cuda", "uses_miopen": False, "programs": "", "exact": {"use_tf32": "0"},
             "preload": True, "constant_weights": {"NhwcConv"}, "precisions": set(), "bf16": {},
             "channels_last": True, "rank": 30},
    "dml": {"vendor": "directx", "device": None, "uses_miopen": False, "programs": "", "exact": {}, "preload": False,
            "constant_weights": set(), "precisions": set(), "bf16": {}, "channels_last": True, "rank": 40},
    "cpu": {"vendor": "", "device": None, "uses_miopen": False, "programs": "", "exact": {}, "preload": False,
            "constant_weights": set(), "precisions": set(), "bf16": {}, "channels_last": False, "rank": 1000},
}  # fmt: skip
"""What was seen of each provider's wheel and read in its sources."""


@pytest.mark.parametrize("name", ABILITIES)
def test_a_providers_abilities_are_those_of_its_wheel(name: str) -> None:
    provider, told = PROVIDERS[name], {}
    for ability, value in ABILITIES[name].items():
        found = getattr(provider.target if ability == "channels_last" else provider, ability)
        told[ability] = set(found) if isinstance(value, set) else found
    assert told == ABILITIES[name]
