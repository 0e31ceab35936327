"""Commands that change an environment, and sessions of ONNX Runtime: what each thread's own printed."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import threading
from types import ModuleType
from typing import Any

import pytest
from support import runtime_copies

from sdort.machine import distributions
from sdort.machine.distributions import installed_flavours, pip, start_session
from sdort.machine.onnxruntime_copies import Flavour


@pytest.mark.parametrize(
    ("has_pip", "found", "expected"),
    [
        (True, {"uv": "/bin/uv", "python": sys.executable}, "python -m pip"),
        (True, {"python": "/other/python"}, f"{sys.executable} -m pip"),
        (True, {}, f"{sys.executable} -m pip"),
        (False, {"python": sys.executable}, "python -m pip"),
        (False, {"uv": "/bin/uv", "python": sys.executable}, "uv"),
    ],
)
def test_the_command_is_that_of_this_environment(
    has_pip: bool, found: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if has_pip else None)
    monkeypatch.setattr(shutil, "which", found.get)
    asked = ("uninstall", "-y", "a b"), ("install", "-y", "a==1"), ("install", "-U", "a>=1")
    wanted = ["uninstall -y 'a b'", "install -y a==1", "install -U 'a>=1'"]
    if expected == "uv":
        wanted = [
            f"pip {words.split(' ', 1)[0]} --python {sys.executable} {words.split(' ', 1)[1]}" for words in wanted
        ]
        wanted[0] = wanted[0].replace("-y ", "")  # which never asks
    assert [pip(*words) for words in asked] == [f"    {expected} {words}" for words in wanted]


@pytest.mark.parametrize("name", [
    "onnxruntime", "onnxruntime-gpu", "onnxruntime-rocm", "onnxruntime-migraphx", "onnxruntime-directml",
    "onnxruntime-openvino", "onnxruntime-qnn", "onnxruntime-training", "ort-nightly", "ort-nightly-gpu",
    "ort-nightly-rocm", "onnxruntime-webgpu", "onnxruntime-windowsml", "onnxruntime-epic",
])  # fmt: skip
def test_each_distribution_is_known_and_gives_way_to_another(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime_copies.pretend(monkeypatch, {name: "1.2"})
    assert installed_flavours() == [Flavour(name, "1.2")]
    other = "onnxruntime-gpu==1.31" if name != "onnxruntime-gpu" else "onnxruntime[x]==1.31"
    remove, add = distributions.install_commands(other).split("\n")
    assert remove.endswith(f"uninstall -y {name}")
    assert "-U" not in add
    assert distributions.install_commands(f"{name}>=9").endswith(f"install -U '{name}>=9'")
    for beside in ("matplotlib>=3", "onnxruntime-ep-openvino", "onnxruntime-ep-webgpu==0.4.0"):
        assert "uninstall" not in distributions.install_commands(beside)


def runtime(make: Any) -> Any:
    """A module as onnxruntime, whose sessions print by the module's own ``print``."""
    module = ModuleType("made_up_runtime")
    code = """
class InferenceSession:
    def __init__(self, model, settings, *, providers, enable_fallback):
        self.given, self.fallback = (model, settings, providers, enable_fallback), True
        make(self, print)
    def disable_fallback(self):
        self.fallback = False
"""
    vars(module)["make"] = make
    exec(code, vars(module))
    return module


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(make: Any) -> Any:
        module = runtime(make)
        monkeypatch.setitem(sys.modules, "made_up_runtime", module)
        return module

    return install


def test_what_is_printed_meanwhile_is_kept_and_what_is_printed_later_is_not(
    installed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[Any] = []

    def speak(session: Any, say: Any) -> None:
        said.append(say)
        say("one", 2)
        say("three")

    module = installed(speak)
    session, printed = start_session(module, "m", "s", ["p"])
    assert (session.given, session.fallback) == (("m", "s", ["p"], 0), False)
    assert printed == "one 2\nthree"
    assert capsys.readouterr().out == ""
    said[0]("later", end="!")
    assert capsys.readouterr().out == "later!"


def test_a_session_that_fails_leaves_nothing_of_its_own(installed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    said: list[Any] = []

    def fail(session: Any, say: Any) -> None:
        said.append(say)
        say("lost")
        raise RuntimeError("a test")

    with pytest.raises(RuntimeError):
        start_session(installed(fail), "m", "s", [])
    said[0]("after")
    assert capsys.readouterr().out == "after\n"
    assert start_session(installed(lambda session, say: say("new")), "m", "s", [])[1] == "new"


def test_threads_keep_what_their_own_sessions_print(installed: Any) -> None:
    meet = threading.Barrier(2)

    def make(session: Any, say: Any) -> None:
        meet.wait(20)
        say(session.given[0])
        meet.wait(20)

    module, found = installed(make), {}
    threads = [
        threading.Thread(target=lambda name=name: found.update({name: start_session(module, name, "", [])[1]}))
        for name in ("a", "b")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"a": "a", "b": "b"}
