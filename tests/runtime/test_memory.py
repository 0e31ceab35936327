"""Peak memory: what an engine holds and what its calls take, on every kind of machine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sdort.machine.nvml import Memory
from sdort.providers import CPU
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.runtime import memory
from sdort.runtime.memory import Meter, _reset_peak, device_reader, resident


@pytest.fixture(params=["the kernel's peak", "samples"])
def looked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Waits until a meter has seen what is in memory now, which the kernel does at once; where it may be asked."""
    exact = request.param == "the kernel's peak" and memory._reset_peak()
    monkeypatch.setattr(memory, "_reset_peak", memory._reset_peak if exact else lambda: False)
    looks: list[int] = []
    looked_again = threading.Condition()

    def look() -> int:
        with looked_again:
            looks.append(resident())
            looked_again.notify_all()
            return looks[-1]

    def wait() -> None:
        with looked_again:
            wanted = len(looks) + 2  # one may have begun before
            looked_again.wait_for(lambda: exact or len(looks) >= wanted)

    monkeypatch.setattr(memory, "resident", look)
    return wait


def test_the_meter_sees_what_a_block_allocates_and_what_stays(looked: Callable[[], None]) -> None:
    meter = Meter(CPU, 0)
    with meter.peak() as first:  # above 32 MiB glibc maps pages for each, and takes none that it has
        kept = np.ones(40 << 20, np.uint8)
        passing = np.ones(80 << 20, np.uint8)
        looked()
        del passing
    with meter.peak() as later:
        pass
    # The kernel counts pages in batches per thread, so a MiB may be missing.
    assert 118 <= first.host / 2**20 < 138
    assert 38 <= later.host / 2**20 < 58
    assert first.device is None
    del kept
    meter.forget()
    with meter.peak() as empty:
        pass
    assert empty.host / 2**20 < 10


def test_what_the_allocator_keeps_of_freed_memory_is_not_held() -> None:
    """Python's and NumPy's frees give nothing back while glibc keeps a heap for later: here, all of it."""
    code = (
        "import numpy as np\n"
        "from sdort.runtime.memory import Meter\n"
        "from sdort.providers import CPU\n"
        "meter = Meter(CPU, 0)\n"
        "with meter.peak():\n"
        "    kept, passing = np.ones(24 << 20, np.uint8), np.ones(48 << 20, np.uint8)\n"
        "    del passing\n"
        "with meter.peak() as later:\n    pass\n"
        "print(later.host)"
    )
    heap = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1073741824"
    environment = {**os.environ, "GLIBC_TUNABLES": heap}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert 22 <= int(result.stdout) / 2**20 < 42


def test_a_peak_that_the_kernel_does_not_set_back_is_not_used(tmp_path: Path) -> None:
    status, clear_refs = tmp_path / "status", tmp_path / "clear_refs"
    now = f"Name:\tpython\nVmHWM:\t{resident() // 1024} kB\n"
    status.write_text(now)
    clear_refs.mkdir()  # even for root it cannot be written
    assert not _reset_peak(tmp_path)
    clear_refs.rmdir()
    for useless in ("Name:\tpython\n", f"VmHWM:\t{resident() // 1024 + (48 << 10)} kB\n"):
        status.write_text(useless)
        assert not _reset_peak(tmp_path)
    status.write_text(now)
    assert _reset_peak(tmp_path)
    assert clear_refs.read_text() == "5"


def test_memory_that_others_take_meanwhile_does_not_count() -> None:
    meter = Meter(CPU, 0)
    with meter.peak():
        pass
    others = np.ones(64 << 20, np.uint8)
    with meter.peak() as later:
        pass
    assert later.host / 2**20 < 16
    del others


class Card:
    """A device whose memory torch caches: what is freed stays in use until the cache is emptied."""

    def __init__(self) -> None:
        self.live = self.cached = 0

    def used(self) -> int:
        return self.live + self.cached

    def take(self, size: int) -> None:
        self.live, self.cached = self.live + size, max(0, self.cached - size)

    def free(self, size: int) -> None:
        self.live, self.cached = self.live - size, self.cached + size

    def empty_cache(self) -> None:
        self.cached = 0

    def is_initialized(self) -> bool:
        return True


def test_what_torch_keeps_of_the_row_before_does_not_hide_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two engines of one torch, each with a model of 3 and a passing need of 20."""
    card = Card()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=card))
    monkeypatch.setattr(memory, "device_reader", lambda *_: card.used)
    meters, seen = [Meter(CUDA, 0) for _ in range(2)], []
    for batch in (1, 2):
        for meter in meters:
            for model in (3 if batch == 1 else 0, 0):
                with meter.peak() as peak:
                    card.take(model)
                    card.take(20 * batch)
                    card.free(20 * batch)
                seen.append(peak.device)
        card.take(40)  # what is timed fills the cache again
        card.free(40)
    assert seen == [23, 23, 23, 23, 43, 43, 43, 43]


def test_memory_of_a_device_is_what_all_programs_use(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[tuple[str, int], list[Memory | None]] = {
        ("nvidia", 1): [Memory(9, 1), Memory(7, 3), None],
        ("amd", 0): [Memory(0, 5), Memory(0, 0)],
        ("nvidia", 0): [None],
    }

    def reader(vendor: str, device_id: int) -> Callable[[], Memory | None] | None:
        values = told.get((vendor, device_id))
        return None if values is None else iter(values).__next__

    monkeypatch.setattr(memory, "memory_reader", reader)
    read = device_reader(CUDA, 1)
    assert read is not None
    assert [read(), read()] == [3, None]  # the first look said that it tells
    idle = device_reader(ROCM, 0)
    assert idle is not None
    assert idle() == 0
    assert device_reader(CUDA, 0) is None
    assert device_reader(ROCM, 1) is None
    assert device_reader(CPU, 0) is None
