"""The GPUs of a machine, as the kernel's drivers and the vendors' tools describe them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sdort.machine.system import System

_KFD = "sys/class/kfd/kfd/topology/nodes"


@dataclass(frozen=True)
class Gpu:
    """A GPU; ``architecture`` is ``gfx1100`` or ``sm_90``, empty where nothing tells."""

    vendor: str
    """``amd`` or ``nvidia``."""
    name: str
    """The product's name."""
    architecture: str
    """``gfx1100`` or ``sm_90``; empty where nothing tells."""
    memory: int
    """Bytes, 0 where nothing tells."""

    def __str__(self) -> str:
        details = [self.architecture, f"{self.memory / 2**30:.0f} GiB" if self.memory else ""]
        known = ", ".join(filter(None, details))
        return f"{self.name} ({known})" if known else self.name


def amd_gpus(system: System) -> list[Gpu]:
    """AMD GPUs in the order in which ROCm numbers them: that of the driver's nodes with compute units."""
    names = _marketing_names(system)
    gpus: list[Gpu] = []
    for node, architecture, properties in _amd_nodes(system):
        name = names[len(gpus)] if len(gpus) < len(names) else _product_name(system, properties)
        gpus.append(Gpu("amd", name or "AMD GPU", architecture, _memory(system, node, properties)))
    return gpus


def _amd_nodes(system: System) -> Iterator[tuple[str, str, dict[str, int]]]:
    """Name, architecture and properties of the driver's nodes that are no processors, in ROCm's order."""
    for node in sorted(system.glob(f"{_KFD}/*"), key=lambda path: int(path.name) if path.name.isdecimal() else 0):
        properties = _numbers(system.text(f"{_KFD}/{node.name}/properties") or "")
        architecture = gfx_name(properties.get("gfx_target_version", 0))
        if architecture is not None:
            yield node.name, architecture, properties


def amd_memory(system: System) -> list[int]:
    """Free bytes of each GPU's own memory, as the driver counts them, in the order of :func:`amd_gpus`."""
    free = []
    for _, _, properties in _amd_nodes(system):
        counters = [system.text(f"{_device(properties)}/mem_info_vram_{kind}") or "" for kind in ("total", "used")]
        if not all(text.isdecimal() for text in counters):
            return []
        free.append(int(counters[0]) - int(counters[1]))
    return free


def gfx_name(version: int) -> str | None:
    """``gfx90a`` from the driver's number for it, 90010; None for 0, a processor's."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else None


def _numbers(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _memory(system: System, node: str, properties: dict[str, int]) -> int:
    total = system.text(f"{_device(properties)}/mem_info_vram_total")
    if total and total.isdecimal():
        return int(total)
    banks = map(_numbers, system.texts(f"{_KFD}/{node}/mem_banks/*/properties"))
    return sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in (1, 2))  # on the device


def _device(properties: dict[str, int]) -> str:
    return f"sys/class/drm/renderD{properties.get('drm_render_minor', 0)}/device"


def _product_name(system: System, properties: dict[str, int]) -> str:
    return system.text(f"{_device(properties)}/product_name") or ""


def _marketing_names(system: System) -> list[str]:
    """From rocminfo, whose agents without a gfx name are processors."""
    lines = [line.strip() for line in system.tool("rocminfo") or []]
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("Marketing Name:")]
    agents = [line.split(":", 1)[1].strip() for line in lines if line.startswith("Name:")]
    # Each agent's name is followed by one for each of its instruction sets, which have no marketing name.
    agents = [agent for agent in agents if not agent.startswith("amdgcn-")]
    return [name for name, agent in zip(names, agents, strict=False) if agent.startswith("gfx")]


def nvidia_gpus(system: System) -> list[Gpu]:
    """NVIDIA GPUs from nvidia-smi, else by name from the driver."""
    query = ("--query-gpu=name,compute_cap,memory.total", "--format=csv,noheader,nounits")
    rows = [[cell.strip() for cell in line.split(",")] for line in system.tool("nvidia-smi", *query) or []]
    gpus = [
        Gpu("nvidia", name, f"sm_{version.replace('.', '')}", int(memory) * 2**20 if memory.isdecimal() else 0)
        for name, version, memory in (row for row in rows if len(row) == 3)
    ]
    if gpus:
        return gpus
    texts = system.texts("proc/driver/nvidia/gpus/*/information")
    models = [re.search(r"^Model:\s*(.+)$", text, re.MULTILINE) for text in texts]
    return [Gpu("nvidia", model[1].strip() if model else "NVIDIA GPU", "", 0) for model in models]


def gpus_of(vendor: str, system: System) -> list[Gpu]:
    """The GPUs of a vendor, in the order in which its libraries number them; none of a vendor that is not known."""
    reader = {"amd": amd_gpus, "nvidia": nvidia_gpus}.get(vendor)
    return reader(system) if reader else []


def driver_of(vendor: str, system: System) -> str | None:
    """A vendor's driver in words, None where it is not loaded or the vendor is not known."""
    reader = {"amd": amd_driver, "nvidia": nvidia_driver}.get(vendor)
    return reader(system) if reader else None


def free_memory(vendor: str, device_id: int, system: System | None = None) -> int | None:
    """Bytes that are free on a GPU, or without a vendor in the computer; None where nothing tells."""
    system = system or System()
    if not vendor:
        return _free_main_memory(system)
    if vendor == "nvidia":
        query = (f"--id={device_id}", "--query-gpu=memory.free", "--format=csv,noheader,nounits")
        lines = system.tool("nvidia-smi", *query) or [""]
        return int(lines[0]) << 20 if lines[0].strip().isdecimal() else None
    memory = amd_memory(system) if vendor == "amd" else []
    return memory[device_id] if device_id < len(memory) else None


def _free_main_memory(system: System) -> int | None:
    """Bytes that are available, in the machine and in its container (cgroup 2), whose page cache can be given back."""
    rows = [line.split() for line in (system.text("proc/meminfo") or "").splitlines()]
    available = next((int(words[1]) << 10 for words in rows if words[0] == "MemAvailable:"), None)
    limit, used = (system.text(f"sys/fs/cgroup/memory.{name}") or "" for name in ("max", "current"))
    if not (limit.isdecimal() and used.isdecimal()):
        return available
    cached = _numbers(system.text("sys/fs/cgroup/memory.stat") or "").get("inactive_file", 0)
    left = max(0, int(limit) - int(used) + cached)
    return left if available is None else min(available, left)


def amd_driver(system: System) -> str | None:
    """The amdgpu driver in words, None where it is not loaded."""
    if not system.path("sys/module/amdgpu").exists():
        return None
    version = system.text("sys/module/amdgpu/version")
    return f"amdgpu {version}" if version else f"amdgpu of Linux {system.text('proc/sys/kernel/osrelease') or '?'}"


def nvidia_driver(system: System) -> str | None:
    """The NVIDIA driver's version, None where it is not loaded."""
    loaded = system.text("sys/module/nvidia/version")
    if loaded:
        return loaded
    match = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d[\d.]+)", system.text("proc/driver/nvidia/version") or "")
    return match[1] if match else None


def rocm_version(system: System) -> str | None:
    """The installed ROCm's version, as its packages write it."""
    release = system.text("opt/rocm/.info/version")
    return release or next(iter(system.texts("opt/rocm-*/.info/version")), None)
