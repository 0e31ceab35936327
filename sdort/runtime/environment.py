"""What a result was made with: versions and the device, without importing torch."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sdort import __version__
from sdort.runtime.flavours import installed_flavours
from sdort.runtime.providers import Provider

_PACKAGES = ("torch", "diffusers", "transformers", "numpy")


@cache
def versions() -> dict[str, str]:
    """Versions of sdort, Python, the ONNX Runtime distribution and the packages that take part."""
    found = {"sdort": __version__, "python": platform.python_version()}
    found |= {each.distribution: each.version for each in installed_flavours()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@cache
def device_name(provider: Provider, device_id: int = 0) -> str:
    """The device that a provider computes on, in words; ``unknown GPU`` where no tool tells."""
    if not provider.on_gpu:
        return cpu_name()
    if provider.name == "cuda":
        return _nvidia_name(device_id) or "unknown GPU"
    return _amd_name(device_id) or "unknown GPU"


def cpu_name() -> str:
    """The processor's model and the number of processors that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{model} ({usable} processors)"


def _nvidia_name(device_id: int) -> str | None:
    lines = run_tool("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", f"--id={device_id}")
    return lines[0].replace(", ", ", driver ") if lines else None


def _amd_name(device_id: int) -> str | None:
    names = [line.split(":", 1)[1].strip() for line in run_tool("rocminfo") or [] if "Marketing Name:" in line]
    # rocminfo lists the processors first; their agents have no gfx name.
    targets = [line.split(":", 1)[1].strip() for line in run_tool("rocminfo") or [] if line.strip().startswith("Name:")]
    gpus = [f"{name} ({target})" for name, target in zip(names, targets, strict=False) if target.startswith("gfx")]
    return gpus[device_id] if device_id < len(gpus) else None


def run_tool(*command: str) -> list[str] | None:
    """The lines that a vendor's tool prints, None when it is not there or fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.splitlines()
