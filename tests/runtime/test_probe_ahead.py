"""A provider's libraries are loaded while ``sdort run`` imports the rest of itself, once for both."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sdort.errors import ProviderError
from sdort.providers import PROVIDERS
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import probe

CUDA = PROVIDERS["cuda"]

COMMAND = """
import sys, threading
from sdort.errors import ProviderError
from sdort.runtime import probe
begun = threading.Event()
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "sdort.first_use.command":
            print("before it is imported:", begun.wait(1 if "cpu" in sys.argv else 30))
sys.meta_path.insert(0, Finder())
def choose(options):
    thread = threading.current_thread()
    if thread.name == "sdort-probe-ahead":
        print(options.provider, options.device_id, options.other_devices, "daemon" if thread.daemon else "waited for")
        begun.set()
    raise ProviderError("refused")
probe.choose_provider = choose
sys.argv[1:] = ["run", "nowhere", "--prompt", "a", *sys.argv[1:]]
from sdort.cli import cli
cli.main(prog_name="sdort")
"""


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--provider", "cuda", "--device-id", "1"], "cuda 1 () waited for"),
        (["--provider", "cuda", "--devices", "2,3"], "cuda 2 (3,) waited for"),
        ([], "auto 0 () waited for"),
        (["--provider", "cpu"], None),
    ],
    ids=["a GPU", "several", "auto", "the CPU"],
)
def test_libraries_load_while_modules_are_imported(asked: list[str], said: str | None) -> None:
    done = subprocess.run([sys.executable, "-c", COMMAND, *asked], capture_output=True, text=True)
    expected = ["before it is imported: False"] if said is None else [said, "before it is imported: True"]
    assert (done.stdout.splitlines(), done.returncode) == (expected, 2), done.stderr
    assert "nowhere does not exist" in done.stderr


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The threads that probed CUDA, which takes a while and is refused."""
    probed: list[str] = []

    def refuse(*_: Any) -> str:
        probed.append(threading.current_thread().name)
        time.sleep(0.2)
        return "there is no such GPU"

    probe._why_not.cache_clear()
    monkeypatch.setattr(probe, "_session_error", refuse)
    monkeypatch.setattr(probe, "architecture_problem", lambda *_: None)
    monkeypatch.setattr(probe, "find_problems", lambda *_: [])
    monkeypatch.setattr(probe, "import_onnxruntime", lambda: type("Module", (), {
        "get_available_providers": staticmethod(lambda: [CUDA.ep, "CPUExecutionProvider"]),
        "__file__": __file__, "__version__": "1.31.1",
    }))  # fmt: skip
    yield probed
    probe._why_not.cache_clear()


def test_what_probes_later_waits_for_what_was_found(slow: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    probe.probe_ahead(provider="cuda", device_id=0, devices=None)
    while not slow:
        time.sleep(0.001)
    with pytest.raises(ProviderError, match="cuda cannot be used: there is no such GPU"):
        probe.choose_provider(RuntimeOptions("cuda"))
    assert slow == ["sdort-probe-ahead"]


@pytest.mark.parametrize("asked", [{"provider": "no such"}, {"provider": "cuda", "devices": "1,1"}])
def test_what_is_wrong_is_said_by_who_chooses(asked: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    before = {*threading.enumerate()}
    probe.probe_ahead(**{"device_id": 0, "devices": None, **asked})
    for thread in {*threading.enumerate()} - before:
        thread.join(30)
    assert capfd.readouterr() == ("", "")
