"""Machines as folders: what sdort reads of /sys, /dev, /opt/rocm and the linker's folders, and no more."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from sdort.machine.system import System

ROCM_7 = (
    "libamdhip64.so.7",
    "libhipblas.so.3",
    "libMIOpen.so.1",
    "libhipfft.so.0",
    "librocm_smi64.so.1",
    "libroctracer64.so.4",
    "libmigraphx_c.so.3",
)
ROCM_6 = ("libamdhip64.so.6", "libhipblas.so.2", "libMIOpen.so.1", "libhipfft.so.0", "librocm_smi64.so.7")
CUDA_13 = ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libcurand.so.10")

_ROCMINFO = """#!/bin/sh
cat <<'END'
Agent 1
  Name:                    AMD Ryzen 9 7900X
  Marketing Name:          AMD Ryzen 9 7900X
{agents}
END
"""
_AGENT = """
Agent
  Name:                    {gfx}
  Marketing Name:          {name}
    ISA 1
      Name:                    amdgcn-amd-amdhsa--{gfx}
"""


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def link(root: Path, folder: str, libraries: Iterable[str]) -> None:
    """Libraries that the linker finds in ``folder``, which one of its configuration files names."""
    write(root, {f"{folder}/{name}": "" for name in libraries})
    write(
        root,
        {
            "etc/ld.so.conf": "include ld.so.conf.d/*.conf\n",
            "etc/ld.so.conf.d/10-gpu.conf": f"/{folder}  # the GPU's\n",
        },
    )


def tool(root: Path, name: str, script: str) -> None:
    write(root, {f"usr/bin/{name}": script})
    (root / "usr/bin" / name).chmod(0o755)


def processor(root: Path) -> System:
    """A machine without a GPU."""
    write(root, {"proc/sys/kernel/osrelease": "6.12.1\n"})
    write(root, {"proc/meminfo": "MemTotal:       65536000 kB\nMemAvailable:   48000000 kB\n"})
    return System(root, {"HOME": str(root / "home")}, root / "site-packages")


def amd(root: Path, gfx: int = 110000, name: str = "Radeon RX 7900 XTX", version: str = "7.0.2-56") -> System:
    """A GPU with its driver; no ROCm yet but its version file."""
    system = processor(root)
    node = "sys/class/kfd/kfd/topology/nodes"
    drm = "sys/class/drm/renderD128/device"
    write(
        root,
        {
            f"{node}/0/properties": "cpu_cores_count 24\nsimd_count 0\ngfx_target_version 0\n",
            f"{node}/1/properties": f"simd_count 192\ngfx_target_version {gfx}\ndrm_render_minor 128\n",
            f"{drm}/mem_info_vram_total": f"{24 << 30}\n",
            f"{drm}/product_name": f"{name}\n",
            "sys/module/amdgpu/version": "6.14.14\n",
            "dev/kfd": "",
            "dev/dri/renderD128": "",
            "opt/rocm/.info/version": f"{version}\n",
        },
    )
    return system


def rocm_7(root: Path, gfx: int = 110000, name: str = "Radeon RX 7900 XTX") -> System:
    """A GPU on which ROCm 7 runs."""
    system = amd(root, gfx, name)
    link(root, "opt/rocm-7.0.2/lib", ROCM_7)
    return system


def rocm_6(root: Path) -> System:
    """Another ROCm than the wheels want."""
    system = amd(root, version="6.4.1-83")
    link(root, "opt/rocm-6.4.1/lib", ROCM_6)
    return system


def nvidia(root: Path, driver: str = "580.95.05", cudnn: bool = True) -> System:
    """An H100; CUDA and cuDNN from pip packages."""
    system = processor(root)
    version = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build\n"
    write(root, {"dev/nvidia0": "", "dev/nvidiactl": "", "proc/driver/nvidia/version": version})
    information = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 97\n"
    write(root, {"proc/driver/nvidia/gpus/0000:01:00.0/information": information})
    write(root, {"usr/lib/x86_64-linux-gnu/libcuda.so.1": ""})
    write(root, {f"site-packages/nvidia/cu13/lib/{name}": "" for name in CUDA_13})
    if cudnn:
        write(root, {"site-packages/nvidia/cudnn/lib/libcudnn.so.9": ""})
    return system


def rocminfo(root: Path, **names: str) -> None:
    """AMD's tool, which lists a processor and then GPUs: gfx name and marketing name of each."""
    agents = "".join(_AGENT.format(gfx=gfx, name=name) for gfx, name in names.items())
    tool(root, "rocminfo", _ROCMINFO.format(agents=agents))


def closed(system: System) -> System:
    """The same machine for a user who may open no GPU."""

    def access(path: Path, mode: int) -> bool:
        return "dev" not in path.relative_to(system.root).parts and os.access(path, mode)

    return System(system.root, system.environ, system.packages, access)
