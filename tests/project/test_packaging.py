"""What is built is what is in the tree: wheel, sdist, extras, pins."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from sdort.machine import optional_packages

ROOT = Path(__file__).parents[2]
# Folder in the tree -> package in the wheel.
PACKAGE_FOLDERS = {"sdort": "sdort", "fusions": "sdort/fusions", "custom_ops": "sdort/custom_ops"}
FLAVOURS = {
    "cpu": "onnxruntime",
    "rocm": "onnxruntime-rocm",
    "cuda": "onnxruntime-gpu",
    "migraphx": "onnxruntime-migraphx",
}


def package_files() -> set[str]:
    """Every file of the packages that belongs in the wheel, by its name there."""
    return {
        f"{package}/{file.relative_to(ROOT / folder)}"
        for folder, package in PACKAGE_FOLDERS.items()
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def build(source: Path, out: Path, kind: str) -> Path:
    """Build ``wheel`` or ``sdist`` with the setuptools of this environment: nothing is downloaded."""
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(out)!r}))"
    result = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=True)
    return out / result.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a build needs, since setuptools leaves its build folders beside the sources."""
    copy = tmp_path_factory.mktemp("source")
    for folder in PACKAGE_FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "build"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(source, tmp_path_factory.mktemp("wheel"), "wheel")


def wheel_files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def requirements(wheel: Path, extra: str = "") -> dict[NormalizedName, Requirement]:
    """What ``pip install sdort[extra]`` asks for, by name."""
    wanted = [Requirement(line) for line in metadata(wheel).get_all("Requires-Dist", [])]
    return {
        canonicalize_name(requirement.name): requirement
        for requirement in wanted
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
    }


def test_the_wheel_holds_every_source_file_and_nothing_else(wheel: Path) -> None:
    files = {name for name in wheel_files(wheel) if ".dist-info/" not in name}
    assert files == package_files()


def test_the_sdist_builds_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    sdist = build(source, tmp_path, "sdist")
    with tarfile.open(sdist) as archive:
        if sys.version_info >= (3, 12):
            archive.extractall(tmp_path, filter="data")
        else:
            archive.extractall(tmp_path)
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    assert wheel_files(build(unpacked, tmp_path, "wheel")) == wheel_files(wheel)


def test_the_wheel_works_without_the_tree(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import sys; sys.path.insert(0, 'site')\n"
        "import sdort, sdort.fusions, sdort.custom_ops\n"
        "from sdort.cli import COMMANDS, cli\n"
        "print(sdort.__file__, sdort.fusions.__file__, sdort.custom_ops.__file__, *cli.list_commands(None))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    folder = tmp_path / "site" / "sdort"
    modules = [folder / "__init__.py", folder / "fusions/__init__.py", folder / "custom_ops/__init__.py"]
    assert result.stdout.split()[:3] == [str(module) for module in modules]
    assert "inspect" in result.stdout.split()[3:]


def test_the_wheel_has_the_command_the_licence_and_the_type_marker(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        entry_points = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "sdort = sdort.__main__:main" in archive.read(entry_points).decode().splitlines()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel_files(wheel))
    assert metadata(wheel)["License-Expression"] == "MIT"


@pytest.mark.parametrize(("extra", "flavour"), FLAVOURS.items())
def test_an_extra_installs_one_onnxruntime(wheel: Path, extra: str, flavour: str) -> None:
    assert {name for name in requirements(wheel, extra) if name.startswith("onnxruntime")} == {flavour}


def test_no_onnxruntime_without_an_extra(wheel: Path) -> None:
    """They share one import name: a default one would lie under the one that the user chooses."""
    assert not {name for name in requirements(wheel) if name.startswith("onnxruntime")}
    dev = {name for name in requirements(wheel, "dev") if name.startswith("onnxruntime")}
    assert not {name for name in dev if not name.startswith("onnxruntime-ep-")}  # plugins lie beside it


def test_what_sdort_names_in_its_messages_is_what_the_extras_ask_for(wheel: Path) -> None:
    core = requirements(wheel).keys()
    extras = {name: requirements(wheel, name) for name in ("export", "torch")}
    named = {"export": [*optional_packages.REQUIREMENTS.values()], "torch": [optional_packages.TORCH]}
    for extra, found in extras.items():
        asked = {f"{each.name}{each.specifier}" for name, each in found.items() if name not in core}
        assert asked == set(named[extra]), extra


@pytest.mark.parametrize("extra", ["", "cpu", "export"])
def test_nothing_but_the_extra_torch_brings_a_torch(wheel: Path, extra: str) -> None:
    """What pip would install, by the metadata of what is installed here: a torch that is there is never replaced."""
    left, seen = {*requirements(wheel, extra)}, set[str]()
    while left:
        name = left.pop()
        seen.add(name)
        left |= installed_requirements(name) - seen
    assert "numpy" in seen
    assert ("transformers" in seen) == (extra == "export")
    brought = {name for name in seen if name.startswith(("torch", "nvidia", "cuda", "triton"))}
    assert brought - {"nvidia-ml-py"} == set()  # one Python file, which asks a driver that is there


def installed_requirements(name: str) -> set[NormalizedName]:
    """What a distribution requires that is installed here, without extras of its own."""
    wanted = map(Requirement, distribution(name).requires or [])
    return {
        canonicalize_name(each.name) for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})
    }


def test_everything_the_tests_install_is_pinned(wheel: Path) -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    here = [pin for pin in pins if pin.marker is None or pin.marker.evaluate()]
    pinned = {canonicalize_name(pin.name): str(pin.specifier) for pin in here}
    extras = ("cpu", "dev", "export", "torch")
    wanted = requirements(wheel) | {name: each for extra in extras for name, each in requirements(wheel, extra).items()}
    assert set(wanted) - set(pinned) == set()
    assert all(re.fullmatch(r"==[\w.]+", pin) for pin in pinned.values())
    for name, requirement in wanted.items():
        assert requirement.specifier.contains(pinned[name].removeprefix("==")), f"{name}: the pin is out of range"
    assert len(here) == len(pinned), "something is pinned twice"


def test_git_tracks_plain_files_that_it_does_not_ignore() -> None:
    """A link to an environment elsewhere, once committed, breaks every other checkout."""

    def git(*words: str) -> list[str]:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    assert git("ls-files", "--cached", "--ignored", "--exclude-standard") == []
    assert [line for line in git("ls-files", "--stage") if line[:6] not in ("100644", "100755")] == []
