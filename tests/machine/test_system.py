"""A machine's files, tools and libraries, below a root of the test's own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.machines import tool, write

from sdort.machine import system as systems
from sdort.machine.system import System


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path / "root", {}, tmp_path / "site-packages")


def found(system: System, pattern: str) -> str | None:
    """Where the linker finds a library, from the root."""
    path = system.find_library(pattern)
    return None if path is None else system.name(path)


def test_texts_are_those_of_the_files_that_can_be_read(system: System) -> None:
    write(system.root, {"proc/b": " two\n", "proc/a": "\none \n\n"})
    (system.root / "proc/c").mkdir()
    (system.root / "proc/d").write_bytes(b"\xff\n")
    assert [system.text(name) for name in ("proc/a", "/proc/b", "proc/c", "proc/none")] == ["one", "two", None, None]
    assert system.text("proc/d") == "\N{REPLACEMENT CHARACTER}"
    assert [system.name(path) for path in system.glob("/proc/?")] == ["/proc/a", "/proc/b", "/proc/c", "/proc/d"]
    assert system.texts("proc/[a-c]") == ["one", "two"]
    assert system.texts("proc/x*") == []


@pytest.mark.parametrize(
    "folder", ["usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin", "opt/rocm/bin"]
)
def test_a_tool_is_run_from_each_folder_of_programs(folder: str, system: System) -> None:
    write(system.root, {f"{folder}/ask": '#!/bin/sh\necho "$1"; echo "$2"; echo wrong >&2\n'})
    (system.root / folder / "ask").chmod(0o755)
    assert system.tool("ask", "one two", "three") == ["one two", "three"]


def test_a_tool_that_fails_hangs_or_cannot_run_says_nothing(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(system.root, "fails", "#!/bin/sh\necho said; exit 9\n")
    tool(system.root, "hangs", "#!/bin/sh\necho said; sleep 60\n")
    tool(system.root, "quiet", "#!/bin/sh\n")
    write(system.root, {"usr/bin/plain": "#!/bin/sh\necho said\n"})
    assert system.tool("quiet") == []
    assert [system.tool(name) for name in ("fails", "plain", "none")] == [None] * 3
    monkeypatch.setattr(systems, "_TIMEOUT", 0.2)
    assert system.tool("hangs") is None


def test_programs_of_the_search_path_are_those_of_this_machine_alone(system: System, tmp_path: Path) -> None:
    tool(tmp_path, "ask-sdort", "#!/bin/sh\necho own\n")
    searched = {"PATH": str(tmp_path / "usr/bin")}
    assert replace(system, environ=searched).tool("ask-sdort") is None
    assert System(Path("/"), searched).tool("ask-sdort") == ["own"]
    assert System(Path("/"), {}).tool("ask-sdort") is None
    # Before the usual folders.
    tool(tmp_path, "true", "#!/bin/sh\necho own\n")
    assert System(Path("/"), searched).tool("true") == ["own"]


LINKERS_OWN = ["lib", "usr/lib", "lib64", "usr/lib64", "lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"]


def test_the_linkers_folders_in_its_order_each_once(system: System) -> None:
    write(
        system.root,
        {
            "etc/ld.so.conf": "# first\n/one  # with a remark\n"
            "include ld.so.conf.d/*.conf\n\ninclude /opt/more.conf\n/usr/lib\n",
            "etc/ld.so.conf.d/b.conf": "/three\n",
            "etc/ld.so.conf.d/a.conf": "/two\ninclude deep/*.conf\n",
            "etc/ld.so.conf.d/deep/x.conf": "/deep\n",
            "etc/ld.so.conf.d/ignored.txt": "/ignored\n",
            "opt/more.conf": "/four\n/two\n",
        },
    )
    told = replace(system, environ={"LD_LIBRARY_PATH": "/mine::/three"})
    names = ["mine", "three", "one", "two", "deep", "four", "usr/lib"]
    names += [name for name in LINKERS_OWN if name != "usr/lib"]
    assert told.library_folders() == [system.root / name for name in names]
    names = ["one", "two", "deep", "three", "four", "usr/lib", *(name for name in LINKERS_OWN if name != "usr/lib")]
    assert system.library_folders() == [system.root / name for name in names]


@pytest.mark.parametrize("folder", LINKERS_OWN)
def test_a_library_is_found_in_each_of_the_linkers_own_folders(folder: str, system: System) -> None:
    write(system.root, {f"{folder}/liba.so.{number}": "" for number in (3, 1, 2, 5, 4)} | {f"{folder}/libab.so.0": ""})
    assert found(system, "liba.so.*") == f"/{folder}/liba.so.1"
    assert found(system, "libb.so.*") is None
    assert system.find_untold("liba.so.*") is None


@pytest.mark.parametrize(
    "folder", ["opt/rocm/lib", "opt/rocm-7.0.2/lib", "usr/local/cuda/lib64", "usr/local/cuda-13.0/lib64"]
)
def test_a_library_where_vendors_install_is_not_found_and_can_be_told(folder: str, system: System) -> None:
    write(system.root, {f"{folder}/liba.so.1": ""})
    assert found(system, "liba.so.*") is None
    assert system.find_untold("liba.so.*") == system.root / folder / "liba.so.1"
    told = replace(system, environ={"LD_LIBRARY_PATH": f"/{folder}"})
    assert found(told, "liba.so.*") == f"/{folder}/liba.so.1"


def test_a_library_of_a_package_is_one_of_nvidias(system: System) -> None:
    names = ("nvidia/b/lib/liba.so.1", "nvidia/a/lib/liba.so.2", "nvidia/a/liba.so.3", "other/a/lib/liba.so.4")
    write(system.packages, dict.fromkeys(names, ""))
    assert system.find_packaged("liba.so.*") == system.packages / "nvidia/a/lib/liba.so.2"
    assert system.find_packaged("liba.so.[34]") is None


def test_this_machine_is_the_one_that_is_looked_at() -> None:
    system = System()
    assert system.path("/etc/passwd") == Path("/etc/passwd")
    assert system.environ == dict(os.environ)
