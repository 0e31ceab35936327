"""WebGPU without a GPU: commands of sdort on the software Vulkan (SwiftShader) of Debian's Chromium.

ONNX Runtime's plugins belong to a process and stay, and WebGPU's shaders are compiled anew in each, so that all
commands run in one process of their own.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path("/usr/lib/chromium")
VULKAN = ("libvulkan.so.1", "libvk_swiftshader.so", "vk_swiftshader_icd.json")
TIMEOUT = 550
_WORK = """
import json, sys, time, unittest.mock
from contextlib import nullcontext
from click.testing import CliRunner
from sdort.cli import cli
from sdort.providers import load_target
trusted = load_target("webgpu").judged({"com.microsoft.MultiHeadAttention": None})
for name, words in json.loads(sys.argv[1]):
    forced = name == "forced"  # attention is fused, whatever was found of its kernel
    patch = unittest.mock.patch("sdort.optimizer.command.believed_target", lambda *_: trusted)
    begun = time.process_time()
    with patch if forced else nullcontext():
        done = CliRunner().invoke(cli, words)
    answer = {"name": name, "code": done.exit_code, "stdout": done.stdout, "stderr": done.stderr,
              "cpu_seconds": time.process_time() - begun}
    with open(sys.argv[2], "a") as file:
        file.write(json.dumps(answer) + "\\n")
"""


@dataclass(frozen=True)
class Done:
    """A command that ran."""

    code: int
    stdout: str
    stderr: str
    cpu_seconds: float

    @property
    def document(self) -> Any:
        """What ``--json`` printed."""
        return json.loads(self.stdout)


@cache
def software_vulkan() -> Mapping[str, str]:
    """The environment in which the plugin finds SwiftShader; the test is skipped where one of them is missing."""
    if importlib.util.find_spec("onnxruntime_ep_webgpu") is None:
        pytest.skip("onnxruntime-ep-webgpu is not installed: it has no wheel for this Python or system")
    missing = [name for name in VULKAN if not (FOLDER / name).exists()]
    if missing:
        pytest.skip(f"{FOLDER} has no {', '.join(missing)}: Debian's package chromium brings them")
    return {
        "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER": "1",
        "VK_ICD_FILENAMES": str(FOLDER / VULKAN[2]),
        "LD_LIBRARY_PATH": str(FOLDER),
    }


def run_commands(commands: Sequence[tuple[str, Sequence[object]]], answers: Path) -> dict[str, Done]:
    """Run named commands of sdort one after the other in one process; what each ended with, by name.

    Args:
        answers: a file of what they ended with; another process of tests that asks for it too waits and reads it.
    """
    with open(answers.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not answers.exists():
            _run(commands, answers)
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    return {line.pop("name"): Done(**line) for line in lines}


def _run(commands: Sequence[tuple[str, Sequence[object]]], answers: Path) -> None:
    task = json.dumps([(name, [str(word) for word in words]) for name, words in commands])
    written = answers.with_suffix(".part")
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", _WORK, task, str(written)],
        env={**os.environ, **software_vulkan()}, capture_output=True, text=True, timeout=TIMEOUT,
    )  # fmt: skip
    assert done.returncode == 0, f"after {written.read_text()[-3000:]}: {done.stderr[-3000:]}"
    written.rename(answers)
