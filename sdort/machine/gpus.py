"""The GPUs of a machine, as the kernel's drivers and the vendors' tools describe them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from sdort.machine.nvml import CardState, Memory
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


def amd_architectures(system: System) -> list[str]:
    """The architectures of :func:`amd_gpus` without their names, which a program of ROCm has to tell."""
    return [architecture for _, architecture, _ in _amd_nodes(system)]


def _amd_nodes(system: System) -> Iterator[tuple[str, str, dict[str, int]]]:
    """Name, architecture and properties of the driver's nodes that are no processors, in ROCm's order."""
    for node in sorted(system.glob(f"{_KFD}/*"), key=lambda path: int(path.name) if path.name.isdecimal() else 0):
        properties = _numbers(system.text(f"{_KFD}/{node.name}/properties") or "")
        architecture = gfx_name(properties.get("gfx_target_version", 0))
        if architecture is not None:
            yield node.name, architecture, properties


def memory_reader(vendor: str, device_id: int, system: System | None = None) -> Callable[[], Memory | None] | None:
    """A function that reads a GPU's memory in microseconds, for all programs; None where nothing tells."""
    system = system or System()
    if vendor == "nvidia":
        nvml = system.nvml()
        return nvml.memory(device_id) if nvml else None
    device = _amd_device(device_id, system) if vendor == "amd" else None
    return partial(_amd_memory, system, device) if device else None


_VISIBLE = (("ROCR_VISIBLE_DEVICES",), ("GPU_DEVICE_ORDINAL",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"))
"""Variables by which ROCm's layers, the lowest first, leave out and number GPUs; of two names the first that is set."""

Node = TypeVar("Node")


def visible_amd_gpus(system: System) -> int:
    """The number of AMD's GPUs that HIP shows this process."""
    return len(_visible([*_amd_nodes(system)], system))


def _amd_device(device_id: int, system: System) -> str | None:
    """The driver's folder of one of the GPUs that HIP shows this process; None where there is no such."""
    nodes = _visible([*_amd_nodes(system)], system)
    return _device(nodes[device_id][2]) if 0 <= device_id < len(nodes) else None


def _visible(nodes: list[Node], system: System) -> list[Node]:
    """The GPUs that HIP shows this process, in its order; none where a variable names them otherwise than by number."""
    for names in _VISIBLE:
        text = next((system.environ[name] for name in names if name in system.environ), None)
        if text is not None:
            nodes = [*_picked(nodes, text)]
    return nodes


def _picked(nodes: Sequence[Node], text: str) -> Iterator[Node]:
    """The nodes of such a list; a number that there is not ends it."""
    for part in text.split(","):
        number = int(part) if part.strip().isdecimal() else len(nodes)
        if number >= len(nodes):
            return
        yield nodes[number]


def _amd_memory(system: System, device: str) -> Memory | None:
    """Of a GPU's own memory, as the amdgpu driver counts it."""
    total, used = (system.text(f"{device}/mem_info_vram_{kind}") or "" for kind in ("total", "used"))
    return Memory(int(total) - int(used), int(used)) if total.isdecimal() and used.isdecimal() else None


def card_state(vendor: str, device_id: int, system: System | None = None) -> CardState | None:
    """Clocks and power of a GPU at this moment; None where nothing tells."""
    system = system or System()
    if vendor == "nvidia":
        nvml = system.nvml()
        return nvml.state(device_id) if nvml else None
    device = _amd_device(device_id, system) if vendor == "amd" else None
    return _amd_state(system, device) if device else None


def _amd_state(system: System, device: str) -> CardState:
    """As the amdgpu driver tells (Linux' documentation, "GPU Power/Thermal Controls and Monitoring").

    Power is in microwatts and the clock in hertz; ``pp_dpm_sclk`` lists clocks as ``1: 2500Mhz``.
    """

    def number(name: str) -> float | None:
        text = next(iter(system.texts(f"{device}/hwmon/hwmon*/{name}")), "")
        return int(text) / 1e6 if text.isdecimal() else None

    clocks = re.findall(r"(\d+)mhz", (system.text(f"{device}/pp_dpm_sclk") or "").lower())
    return CardState(
        clock=number("freq1_input"),
        top_clock=max(map(float, clocks), default=None),
        power=number("power1_average") or number("power1_input"),
        power_limit=number("power1_cap"),
        usual_limit=number("power1_cap_default"),
    )


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
    """NVIDIA GPUs from their management library, else by name from the driver."""
    nvml = system.nvml()
    gpus = [
        Gpu("nvidia", name, f"sm_{major}{minor}" if major else "", memory)
        for name, (major, minor), memory in (nvml.gpus() if nvml else [])
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
    read = memory_reader(vendor, device_id, system)
    memory = read() if read else None
    return memory.free if memory else None


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
