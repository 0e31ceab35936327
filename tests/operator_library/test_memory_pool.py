"""Pools of memory that sessions allocate from: blocks, growth by a driver's virtual memory, and sessions that share."""

from __future__ import annotations

import ctypes
import gc
import random
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest
from onnx import parser
from support import native

from sdort.errors import MemoryShortageError, ProviderError
from sdort.providers import CPU
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import memory_pool
from sdort.runtime.failures import run_error
from sdort.runtime.memory_pool import MemoryPool, new_pool_number, open_pool
from sdort.runtime.opener import NONE, create_session

STUB = Path(__file__).resolve().parents[1] / "support" / "cuda_stub" / "virtual_memory.c"
ALIGNMENT = 512


class Blocks:
    """A pool's blocks through the library's C interface."""

    def __init__(self, pool: MemoryPool) -> None:
        self.pool = pool
        library = ctypes.CDLL(f"{native.library()}")
        self._allocate, self._release = library.sdort_pool_allocate, library.sdort_pool_release
        self._allocate.restype, self._release.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

    def take(self, nbytes: int) -> int:
        address = self._allocate(self.pool._number, ctypes.c_size_t(nbytes))
        assert address
        return int(address)

    def give(self, address: int) -> None:
        self._release(address)


@pytest.fixture
def blocks() -> Blocks:
    return Blocks(MemoryPool(native.library(), CPU, 0))


def rounded(nbytes: int) -> int:
    return -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT


@pytest.mark.parametrize("seed", range(4))
def test_blocks_never_overlap_and_keep_what_is_written(blocks: Blocks, seed: int) -> None:
    """Each block is filled with a number of its own, which it still has when it goes."""
    draw = random.Random(seed)
    live: dict[int, tuple[int, int]] = {}

    def drop(address: int) -> None:
        nbytes, mark = live.pop(address)
        assert ctypes.string_at(address, nbytes) == bytes([mark]) * nbytes
        blocks.give(address)

    for turn in range(1500):
        if live and (draw.random() < 0.5 or len(live) > 60):
            drop(draw.choice(list(live)))
            continue
        nbytes = draw.choice([0, 1, 100, 511, 512, 513, 4096, 60_000, 200_000])
        address = blocks.take(nbytes)
        assert address % ALIGNMENT == 0
        live[address] = (nbytes, turn % 251)
        ctypes.memset(address, turn % 251, nbytes)
        sizes = blocks.pool.sizes()
        assert sizes.taken == sum(rounded(each) for each, _ in live.values()) <= sizes.most <= sizes.held
    for address in list(live):
        drop(address)
    assert blocks.pool.sizes().taken == 0
    assert blocks.pool.sizes().state == 0


def test_gaps_that_touch_become_one_and_the_first_that_fits_is_taken(blocks: Blocks) -> None:
    large = [blocks.take(100 << 10) for _ in range(6)]
    held = blocks.pool.sizes().held
    for index in (1, 3, 2):  # the middle last
        blocks.give(large[index])
    assert blocks.take(300 << 10) == large[1]
    blocks.give(large[5])
    blocks.give(large[0])
    assert blocks.take(1000) == large[0]
    assert blocks.pool.sizes().held == held


def test_it_grows_by_what_its_last_gap_lacks(blocks: Blocks) -> None:
    page = 4096
    first = blocks.take(10 * page)
    blocks.take(page)
    last = blocks.take(10 * page)
    blocks.give(last)
    blocks.give(first)
    assert blocks.take(25 * page) == last
    assert blocks.pool.sizes().held == (11 + 25) * page


def test_its_state_tells_which_blocks_are_taken(blocks: Blocks) -> None:
    taken = blocks.pool.sizes
    states = [taken().state]
    first, second = blocks.take(1000), blocks.take(1000)
    states.append(taken().state)
    blocks.give(first)
    states.append(taken().state)
    other = blocks.take(100)  # at the place of the first one, and smaller
    states.append(taken().state)
    assert len({*states}) == 4
    blocks.give(other)
    assert (taken().state, blocks.take(1000)) == (states[2], first)
    assert taken().state == states[1]
    blocks.give(second)


def test_it_lasts_as_long_as_its_last_block(blocks: Blocks) -> None:
    address = blocks.take(5000)
    ctypes.memset(address, 7, 5000)
    number, library = blocks.pool._number, blocks.pool._library
    blocks.pool = None  # type: ignore[assignment]
    sizes = (ctypes.c_uint64 * 4)()
    assert library.sdort_pool_sizes(number, sizes) == 0
    assert ctypes.string_at(address, 5000) == b"\7" * 5000
    blocks.give(address)
    assert library.sdort_pool_sizes(number, sizes) == -1
    assert b"there is no memory pool" in library.sdort_kernel_error()


MODEL = """
<ir_version: 8, opset_import: ["": 18]>
g (float[N, 64] x) => (float[N, 64] y)
{
  a = Exp (x)
  b = Add (a, x)
  c = Mul (b, a)
  y = Sub (c, x)
}
"""


@pytest.fixture
def pooled(monkeypatch: pytest.MonkeyPatch) -> Provider:
    """The CPU as a provider with pools, of the host's memory."""
    monkeypatch.setattr(memory_pool, "is_reachable", lambda vendor: True)
    return Provider(CPU.target, rank=0, pools=True, custom_kernels="cpu")


def options(number: int = 0, **more: Any) -> RuntimeOptions:
    return RuntimeOptions("cpu", custom_ops=str(native.library()), pool=number, **more)


def session(pool: MemoryPool | None) -> Any:
    return create_session(parser.parse_model(MODEL).SerializeToString(), CPU, options(), pool=pool)


def run(opened: Any, pool: MemoryPool, rows: int) -> np.ndarray[Any, Any]:
    x = np.random.default_rng(rows).normal(size=(rows, 64)).astype(np.float32)
    with pool.used():
        (found,) = opened.run(None, {"x": x})
    a = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(found, (a + x) * a - x, rtol=1e-5)
    return np.asarray(found)


def test_sessions_compute_in_the_same_memory(pooled: Provider) -> None:
    """Two need no more than one, both give what they should, and have nothing after a run but what is outside."""
    number = new_pool_number()
    pool = open_pool(pooled, options(number))
    assert pool is not None
    assert open_pool(pooled, options(number)) is pool
    sessions = [session(pool) for _ in range(2)]
    before = pool.sizes()
    kept = [run(sessions[0], pool, 5000)]
    alone = pool.sizes()
    assert alone.most - before.taken >= 2 * kept[0].nbytes
    kept += [run(each, pool, rows) for rows in (5000, 3000) for each in sessions]
    together = pool.sizes()
    assert together.held <= alone.held + kept[0].nbytes * 5  # results that live on are outputs of the pool's
    del kept
    assert pool.sizes().taken == before.taken


@pytest.mark.parametrize("own", [True, False], ids=["a pool of its own", "no pool of its own"])
def test_too_little_memory_ends_a_run_and_not_the_process(pooled: Provider, own: bool) -> None:
    """ONNX Runtime goes on with a null pointer where an allocator gives one."""
    pool = open_pool(pooled, options())
    assert pool is not None
    opened = session(pool)
    before = pool.sizes().taken
    text = MODEL.replace("y = Sub (c, x)", "s = Constant <value_ints = [30000, 30000, 30000, 64]> () e = Expand (c, s)"
                         " n = Constant <value_ints = [0, 1, 2]> () y = ReduceMax (e, n)")  # fmt: skip
    large = create_session(parser.parse_model(text).SerializeToString(), CPU, options(), pool=pool, optimization=NONE)
    with pool.used() if own else nullcontext(), pytest.raises(Exception, match="bad_alloc") as raised:
        large.run(None, {"x": np.ones((1, 64), np.float32)})
    assert isinstance(run_error(raised.value, "unet", CPU), MemoryShortageError)
    run(opened, pool, 100)
    del large, raised
    gc.collect()
    assert pool.sizes().taken == before


def test_what_is_not_shared_is_apart(pooled: Provider) -> None:
    first, second = open_pool(pooled, options()), open_pool(pooled, options())
    assert first is not second
    assert first
    assert second
    run(session(first), first, 100)
    assert (first.sizes().most > 0, second.sizes().most) == (True, 0)


@pytest.mark.parametrize(
    ("other", "shared"),
    [({}, True), ({"device_id": 1}, False), ({"pool": 8}, False), ({"vendor": "amd"}, False), ({"graph": True}, True)],
    ids=["the same", "another device", "another number", "another vendor", "another option"],
)
def test_a_pool_is_of_one_vendor_device_and_number(
    other: dict[str, Any], shared: bool, pooled: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory of another device would be read by its address there, that of other sessions while they run."""
    made: list[tuple[str, int]] = []

    class Made:
        def __init__(self, library: Path, provider: Provider, device_id: int) -> None:
            made.append((provider.vendor, device_id))

    monkeypatch.setattr(memory_pool, "MemoryPool", Made)
    monkeypatch.setattr(memory_pool, "_open", WeakValueDictionary())
    more = {name: value for name, value in other.items() if name != "vendor"}
    asked = [replace(options(7), device_id=0), replace(options(7), **more)]
    providers = [pooled, replace(pooled, vendor=other.get("vendor", ""))]
    first, second = (open_pool(*each) for each in zip(providers, asked, strict=True))
    assert (first is second) == shared
    assert made == [("", 0)] + ([] if shared else [(other.get("vendor", ""), other.get("device_id", 0))])


def test_a_thread_that_says_nothing_has_no_ones_pool(pooled: Provider) -> None:
    pool = open_pool(pooled, options())
    assert pool is not None
    opened = session(pool)
    taken = pool.sizes().taken
    found = opened.run(None, {"x": np.ones((50, 64), np.float32)})
    assert (pool.sizes().taken, pool.sizes().most) == (taken, pool.sizes().most)
    np.testing.assert_allclose(found[0], (np.e + 1) * np.e - 1, rtol=1e-5)
    with pool.used(), pytest.raises(RuntimeError, match="inside"), pool.used():
        raise RuntimeError("inside")
    opened.run(None, {"x": np.ones((50, 64), np.float32)})
    assert pool.sizes().taken == taken


@pytest.mark.parametrize(
    "why",
    [{"pools": False}, {"custom_ops": "off"}, {"provider_options": {"gpu_mem_limit": "1"}},
     {"provider_options": {"arena_extend_strategy": "kNextPowerOfTwo"}}, {"stream": 64}],
    ids=["another provider", "no library", "a limit", "a strategy", "a stream"],
)  # fmt: skip
def test_who_said_otherwise_has_onnx_runtimes_arenas(why: dict[str, Any], pooled: Provider) -> None:
    asked = {**vars(options()), **{name: value for name, value in why.items() if name != "pools"}}
    assert open_pool(CPU if "pools" in why else pooled, RuntimeOptions(**asked)) is None


@pytest.mark.usefixtures("pooled")
def test_without_a_driver_onnx_runtime_allocates() -> None:
    gpu = Provider(CPU.target, rank=0, pools=True, vendor="nvidia", custom_kernels="cpu")
    with pytest.raises(
        ProviderError, match=r"no memory pool: (no cuda driver can be loaded here|.* of the device failed)"
    ):
        MemoryPool(native.library(), gpu, 99)
    assert open_pool(gpu, options(device_id=99)) is None


ON_STUB = """
import ctypes, json, sys, onnxruntime
from pathlib import Path
from sdort.errors import MemoryShortageError, ProviderError
from sdort.providers import CPU
from sdort.providers.provider import Provider
from sdort.runtime.memory_pool import MemoryPool
vendor, library = sys.argv[1], Path(sys.argv[2])
driver = ctypes.CDLL(sys.argv[3], mode=ctypes.RTLD_GLOBAL)
gpu = Provider(CPU.target, rank=0, pools=True, vendor=vendor, custom_kernels="cpu")
c = ctypes.CDLL(str(library))
c.sdort_pool_allocate.restype = ctypes.c_void_p
pool = MemoryPool(library, gpu, 1)
def take(nbytes):
    return c.sdort_pool_allocate(pool._number, ctypes.c_size_t(nbytes))
first = take(1000)
ctypes.memset(first, 1, 1000)
second = take(5 << 20)
assert second == first + 1024, (first, second)
ctypes.memset(second, 2, 5 << 20)
assert pool.sizes().held == 6 << 20, pool.sizes()
assert take(1 << 30) is None  # the device has 64 MiB
assert pool.sizes().held == 6 << 20, pool.sizes()
ctypes.c_int.in_dll(driver, "refuse_access").value = 1
assert take(8 << 20) is None
assert ctypes.c_int.in_dll(driver, "mapped").value == 6 << 20
ctypes.c_int.in_dll(driver, "refuse_access").value = 0
third = take(8 << 20)
assert third == second + (5 << 20)
ctypes.memset(third, 3, 8 << 20)
assert ctypes.string_at(first, 2) == b"\\1\\1" and ctypes.string_at(second + (5 << 20) - 1, 1) == b"\\2"
for address in (first, second, third):
    c.sdort_pool_release(ctypes.c_void_p(address))
del pool
state = {name: ctypes.c_int.in_dll(driver, name).value for name in ("mapped", "handles", "ranges", "modes", "device")}
print(json.dumps(state))
try:
    MemoryPool(library, gpu, 7)
except ProviderError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def drivers() -> Path:
    """Folders ``nvidia`` and ``amd`` with a driver that has virtual memory of the host's, 64 MiB of it."""
    parts = {
        vendor: (name, [f"-Wl,-soname,{name}", *flags])
        for vendor, name, flags in (("nvidia", "libcuda.so.1", []), ("amd", "libamdhip64.so.6", ["-DHIP"]))
    }

    def make(folder: Path) -> None:
        for vendor, (name, flags) in parts.items():
            (folder / vendor).mkdir(parents=True, exist_ok=True)
            command = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", *flags]
            subprocess.run([*command, "-o", str(folder / vendor / name), str(STUB)], check=True)

    return native.built({STUB.name: STUB.read_bytes(), "": repr(parts).encode()}, make)


FIRST = """
import sys
from pathlib import Path
from sdort.providers import CPU
from sdort.runtime import memory_pool
library, register = Path(sys.argv[1]), memory_pool.register
def registered(*arguments):
    assert str(library) in Path("/proc/self/maps").read_text(), "it would go with the options"
    register(*arguments)
memory_pool.register = registered
print(memory_pool.MemoryPool(library, CPU, 0).sizes().taken)
"""


def test_a_pool_may_be_the_first_that_needs_the_library() -> None:
    """It holds the library before ONNX Runtime does, which lets go of it with the options that registered it."""
    done = subprocess.run([sys.executable, "-c", FIRST, str(native.library())], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_a_gpus_memory_comes_piece_by_piece_and_goes_back(vendor: str, drivers: Path) -> None:
    """Of the device that is asked for; while a graph may be captured; and what cannot be used is given back at once."""
    (driver,) = (drivers / vendor).iterdir()
    done = subprocess.run(
        [sys.executable, "-c", ON_STUB, vendor, str(native.library()), str(driver)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    state, refused = done.stdout.splitlines()
    # Two changes of the mode for each of the five growths that the driver was asked for.
    assert state == '{"mapped": 0, "handles": 0, "ranges": 1, "modes": 8, "device": 1}'
    assert "no memory pool: asking for the memory of the device failed with code 101" in refused
