"""The library as users meet it: ``sdort ops``, ``--custom-ops``, and what is said when something is missing."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from click.testing import CliRunner
from support import native

from sdort.cli import cli
from sdort.errors import ProviderError, UsageError
from sdort.operator_library import library
from sdort.operator_library.build import Build, BuildOptions, _install, build, last_build
from sdort.operator_library.tuning_table import Entry, read_table
from sdort.providers import CPU
from sdort.providers.runtime_options import RuntimeOptions
from sdort.providers.session_settings import session_options


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SDORT_OPS_TUNING", raising=False)
    return tmp_path / "cache" / "sdort" / "ops"


@pytest.fixture
def built(empty_cache: Path) -> Path:
    """The library in its place in the cache, as ``sdort ops build`` leaves it."""
    return native.install(library.built_library())


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, list(arguments))
    return result.exit_code, result.output


def test_nothing_is_registered_until_it_is_built() -> None:
    assert library.resolve("auto") is None
    assert library.resolve("off") is None
    with pytest.raises(ProviderError, match=r"not built here.*\n.*sdort ops build"):
        library.resolve("on")


def test_what_is_built_is_found(built: Path) -> None:
    assert library.resolve("auto") == library.resolve("on") == built
    assert library.resolve("off") is None
    assert last_build() == Build(
        built,
        ("gfx1100",),
        ("gfx950",),
        "here (API 21)",
        3.0,
        "2026-11-21 00:00:00",
        BuildOptions(("gfx1100",)),
        hashlib.sha256(built.read_bytes()).hexdigest(),
    )


def test_a_path_names_a_library(tmp_path: Path) -> None:
    assert library.resolve(str(native.library())) == native.library().resolve()
    with pytest.raises(UsageError, match="there is no such file"):
        library.resolve(str(tmp_path / "none.so"))
    other = tmp_path / "other.so"
    other.write_bytes(b"text")
    with pytest.raises(UsageError, match="is not a library of sdort's operators"):
        library.resolve(str(other))


def test_a_shared_library_of_somebody_else_is_refused() -> None:
    runtime = next(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so*"), None)
    foreign = runtime or next(Path(onnxruntime.__file__).parent.glob("capi/*.so"))
    with pytest.raises(UsageError, match="is not a library of sdort's operators"):
        library.resolve(str(foreign))


def test_the_library_describes_itself() -> None:
    found = library.describe_library(native.library())
    by_name = {(each.domain, each.name): each for each in found.operators}
    assert {("com.microsoft", "GroupNorm"), ("com.microsoft", "BiasSplitGelu"), ("sdort", "GroupNorm")} <= set(by_name)
    assert by_name["com.microsoft", "BiasAdd"].cpu
    assert by_name["com.microsoft", "BiasAdd"].gpu
    assert not by_name["com.microsoft", "NhwcConv"].gpu
    vendors = {each.vendor for each in found.code_objects}
    assert vendors <= {"amd", "nvidia"}
    assert all(each.bytes > 1000 for each in found.code_objects)


def test_a_provider_has_the_kernels_for_its_gpus(built: Path) -> None:
    """What ``sdort optimize`` goes by where nothing says whether to use the library's operators."""
    architectures = [each.architecture for each in library.describe_library(built).code_objects]
    for provider, prefix in {"rocm": "gfx", "cuda": "sm_"}.items():
        reason = library.why_no_kernels(provider)
        assert (reason is None) == any(name.startswith(prefix) for name in architectures), (provider, reason)
    assert library.why_no_kernels("rocm") is None  # the tests' build always has code for AMD GPUs


def test_sessions_register_it(built: Path) -> None:
    options = session_options(onnxruntime, CPU, RuntimeOptions("cpu"), 3)
    from onnx import parser

    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18, "com.microsoft": 1]>'
        "one (float[N, S, 8] x, float[8] b) => (float[N, S, 4] y) { y = com.microsoft.BiasSplitGelu (x, b) }"
    ).SerializeToString()
    providers = ["CPUExecutionProvider"]
    assert onnxruntime.InferenceSession(model, options, providers=providers).get_inputs()
    without = session_options(onnxruntime, CPU, RuntimeOptions("cpu", custom_ops="off"), 4)
    with pytest.raises(Exception, match="BiasSplitGelu"):
        onnxruntime.InferenceSession(model, without, providers=providers)


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is loaded: its constructors would run already."""

    def load(*_: Any) -> Any:
        raise AssertionError("loaded")

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(onnxruntime.SessionOptions, "register_custom_ops_library", load)


def refused(path: Path, setting: str = "auto") -> str:
    """What each of the ways to the library says, which is the same."""
    calls: tuple[Callable[[], object], ...] = (
        lambda: library.resolve(setting),
        lambda: library.describe_library(path),
        lambda: library.register(onnxruntime.SessionOptions(), path, "cpu"),
        lambda: session_options(onnxruntime, CPU, RuntimeOptions("cpu", custom_ops=setting), 4),
    )
    said = set()
    for call in calls:
        with pytest.raises((ProviderError, UsageError)) as caught:
            call()
        said.add(str(caught.value))
    assert len(said) == 1
    return said.pop()


RECORDS: dict[str, Callable[[str], str]] = {
    "none": lambda text: "",
    "of an earlier sdort": lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "sha256"}),
    "of another library": lambda text: json.dumps(json.loads(text) | {"sha256": "0" * 64}),
    "of a build that was killed": lambda text: "{}",
    "a list": lambda text: "[]",
    "nested": lambda text: "[" * 100_000,
    "cut off": lambda text: text[:40],
    "with a hash that is none": lambda text: json.dumps(json.loads(text) | {"sha256": ["0"]}),
}


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize("kind", RECORDS)
def test_a_library_is_not_loaded_without_its_record(built: Path, kind: str) -> None:
    record = built.with_name("build.json")
    record.write_text(RECORDS[kind](record.read_text()))
    said = refused(built)
    assert "is not loaded: it was" in said
    assert "sdort ops build --force" in said
    assert last_build() is None


@pytest.mark.usefixtures("unloaded")
def test_a_library_that_was_changed_is_not_loaded(built: Path) -> None:
    whole = built.read_bytes()
    size = len(whole)
    for other in (
        b"",
        whole[: size // 2],
        whole + b"\0",
        *(flipped(whole, bit) for bit in (0, size * 4, size * 8 - 1)),
    ):
        built.write_bytes(other)
        assert "changed or damaged since it was built" in refused(built)
        assert last_build() is None


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_library_can_be_loaded_while_a_build_puts_another_in_its_place(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record and the library cannot be replaced in one step."""
    stage = built.parent / ".build-x"
    stage.mkdir()
    content = built.read_bytes() + b"\0"
    (stage / library.LIBRARY_FILE).write_bytes(content)
    made = last_build()
    assert made
    replaced = []

    def replace_and_look(source: Path, target: Path) -> None:
        os.rename(source, target)
        replaced.append(target.name)
        assert library.resolve("on") == built

    monkeypatch.setattr(os, "replace", replace_and_look)
    _install(dataclasses.replace(made, sha256=hashlib.sha256(content).hexdigest()), stage, built.parent)
    assert replaced == ["build.json", library.LIBRARY_FILE]
    assert built.read_bytes() == content


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize("setting", ["auto", "path"])
def test_a_library_that_others_can_write_is_not_loaded(built: Path, setting: str) -> None:
    built.chmod(0o666)
    said = refused(built, str(built) if setting == "path" else "auto")
    assert "is not loaded, as other accounts can write it" in said
    assert "install -m 755" in said
    built.chmod(0o755)
    built.parent.chmod(0o777)
    assert f"other accounts can write {built.parent}" in refused(built, str(built) if setting == "path" else "auto")


def test_list(built: Path) -> None:
    code, output = invoke("ops", "list")
    assert code == 0
    assert "BiasSplitGelu" in output
    assert "left out, as no compiler here knows it: gfx950" in output
    code, output = invoke("ops", "list", "--json")
    assert code == 0
    found = json.loads(output)
    assert found["sha256"] == library.library_hash(built)
    assert found["cache_bytes"] >= built.stat().st_size
    assert {each["name"] for each in found["library"]["operators"]} >= {"GroupNorm", "NhwcConv"}


def test_list_without_a_library() -> None:
    code, output = invoke("ops", "list")
    assert code == 6
    assert "sdort ops build" in output


def test_build_says_what_is_there(built: Path) -> None:
    code, output = invoke("ops", "build", "--arch", "gfx1100")
    assert code == 0
    assert "up to date:" in output
    assert "machine code for gfx1100" in output


@pytest.mark.parametrize("name", ["1100", "gfx", "sm_90", "gfx1100;rm"])
def test_build_refuses_what_is_no_architecture(name: str) -> None:
    code, output = invoke("ops", "build", "--arch", name)
    assert code == 2
    assert "looks like gfx1100" in output


def test_a_failed_build_leaves_the_cache_as_it_was(built: Path, tmp_path: Path) -> None:
    before = sorted((p.name, p.read_bytes()) for p in built.parent.iterdir())
    code, output = invoke("ops", "build", "--ort-include", str(tmp_path), "--force")
    assert code == 1
    assert "there is no onnxruntime_c_api.h" in output
    assert sorted((p.name, p.read_bytes()) for p in built.parent.iterdir()) == before
    assert [p.name for p in built.parent.parent.iterdir()] == [built.parent.name]


def test_build_without_cmake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    code, output = invoke("ops", "build")
    assert code == 2
    assert "cmake is not here" in output


REUSING = """#!/bin/sh
for word; do
    [ "$last" = -o ] && out=$word
    last=$word
done
case $out in
    */code/*) ;;
    *.o) [ -f "$OBJECTS/$out" ] && exec cp "$OBJECTS/$out" "$out" ;;
esac
exec c++ "$@"
"""
"""A compiler that takes the objects of the same sources that the tests have already: they are a minute of work."""


def test_a_build_for_the_cpu_alone(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c++").write_text(REUSING)
    (tmp_path / "c++").chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    monkeypatch.setenv("OBJECTS", str(native.build_folder()))
    headers = native.build_folder() / "onnxruntime"
    include = ("--ort-include", str(headers)) if headers.is_dir() else ()
    code, output = invoke("ops", "build", "--no-hip", "--no-cuda", *include, "--json")
    assert code == 0, output
    assert json.loads(output)["build"]["code"] == []
    assert library.resolve("on") == library.built_library()
    assert sorted(p.name for p in library.built_library().parent.iterdir()) == ["build.json", library.LIBRARY_FILE]


def test_the_tuning_table_is_read_line_by_line(empty_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read_table() == []
    empty_cache.mkdir(parents=True)
    library.tuning_table().write_text(
        "# comment\ngfx1100\tbias f16\tr2\t3.5\nbroken line\ngfx1100\tx\ty\tnot a number\n"
    )
    assert read_table() == [Entry("gfx1100", "bias f16", "r2", 3.5)]
    assert "2 of 3 lines of the tuning table" in capsys.readouterr().err
    code, output = invoke("ops", "tune", "--show", "--json")
    assert code == 0
    assert json.loads(output[output.index("{") :])["entries"] == [
        {"architecture": "gfx1100", "key": "bias f16", "variant": "r2", "microseconds": 3.5}
    ]


def test_tuning_needs_a_gpu(built: Path, tmp_path: Path) -> None:
    code, output = invoke("ops", "tune", str(tmp_path), "--provider", "cuda")
    assert code == 6
    assert "cuda cannot be used" in output
    code, output = invoke("ops", "tune", str(tmp_path))
    assert code == 6
    assert "no GPU to tune for" in output
    code, output = invoke("ops", "tune")
    assert code == 2


@pytest.mark.parametrize("way", ["describe", "register"])
def test_what_was_checked_is_what_is_loaded(way: str, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between hash and dlopen another file takes the library's name: the linker still gets the one that was hashed."""
    loaded: list[bytes] = []
    hashed = built.read_bytes()
    check = library.checked_library

    def exchange_behind(path: Path) -> library.CheckedLibrary:
        checked = check(path)
        other = built.with_name("other.so")
        other.write_bytes(b"\x7fELF of a stranger")
        os.replace(other, built)
        return checked

    def load(*arguments: Any, **_: Any) -> Any:
        loaded.append(Path(str(arguments[-1])).read_bytes())
        raise OSError("seen")

    monkeypatch.setattr(library, "checked_library", exchange_behind)
    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(onnxruntime.SessionOptions, "register_custom_ops_library", load)
    library._describe.cache_clear()
    ways: dict[str, Callable[[], object]] = {
        "describe": lambda: library.describe_library(built),
        "register": lambda: library.register(onnxruntime.SessionOptions(), built, "cpu"),
    }
    with pytest.raises((ProviderError, UsageError), match="seen"):
        ways[way]()
    assert loaded == [hashed]
    assert built.read_bytes() != hashed


def test_a_library_that_is_exchanged_is_hashed_anew(built: Path) -> None:
    before = library.library_hash(built)
    other = built.with_name("other.so")
    other.write_bytes(built.read_bytes() + b"\0")
    os.replace(other, built)
    assert library.library_hash(built) != before
    with pytest.raises(ProviderError, match="changed or damaged since it was built"):
        library.check_library(built)


def test_nothing_is_compiled_where_others_could_change_it(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's working folder lies there: who can write it chooses the code, and the commands that build it."""
    monkeypatch.setattr("sdort.operator_library.build._compile", lambda *_: pytest.fail("compiled"))
    monkeypatch.setattr("sdort.operator_library.build._check", lambda _: None)
    empty_cache.mkdir(parents=True)
    empty_cache.chmod(0o777)
    with pytest.raises(UsageError, match=r"is not built in .*, as other accounts can write"):
        build(BuildOptions())
