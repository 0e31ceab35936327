"""A library is built once for the same options, put in its place with its record, and models are opened with it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser

from sdort.errors import BadModelError, OutputError, SdortError, UsageError
from sdort.operator_library import build as builds
from sdort.operator_library import opening
from sdort.operator_library.build import Build, BuildOptions, build
from sdort.operator_library.library import LIBRARY_FILE, RECORD
from sdort.operator_library.opening import CONTRIB_OPSET, import_domain, lacks_domain, prepare_model

OPTIONS = BuildOptions(("gfx1100",), True, False, "clang++", "headers")


def made(options: BuildOptions = OPTIONS, sha256: str = "new") -> Build:
    return Build(Path("somewhere"), ("gfx1100", "sm_90"), ("gfx900",), "here", 1.5, "today", options, sha256)


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache in which "compiling" writes a file."""
    folder = tmp_path / "ops" / "abc"

    def compile(options: BuildOptions, stage: Path) -> Build:
        assert stage.parent == folder
        assert (folder / RECORD).is_file()  # the folder is sdort's from the beginning
        (stage / LIBRARY_FILE).write_text("compiled")
        return made(options)

    monkeypatch.setattr(builds, "_check", lambda options: None)
    monkeypatch.setattr(builds, "built_library", lambda: folder / LIBRARY_FILE)
    monkeypatch.setattr(builds, "_compile", compile)
    monkeypatch.setattr(builds, "why_foreign", lambda path: None)
    monkeypatch.setattr(builds, "check_library", lambda path: "new")
    return folder


def test_what_was_built_is_there_with_its_record_and_nothing_else(target: Path) -> None:
    done, new = build(OPTIONS)
    assert (done.path, new) == (target / LIBRARY_FILE, True)
    assert sorted(os.listdir(target)) == sorted([LIBRARY_FILE, RECORD])
    assert target.stat().st_mode & 0o777 == 0o755
    record = json.loads((target / RECORD).read_text())
    assert (record["path"], record["sha256"], record["previous"]) == (LIBRARY_FILE, "new", "new")
    assert record["options"] == {
        "architectures": ["gfx1100"], "hip": True, "cuda": False, "compiler": "clang++", "ort_include": "headers"
    }  # fmt: skip
    assert builds.last_build() == done
    assert (done.code, done.left_out, done.headers) == (("gfx1100", "sm_90"), ("gfx900",), "here")


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    "change",
    [{}, {"architectures": ()}, {"hip": None}, {"cuda": None}, {"compiler": None}, {"ort_include": None}],
    ids=lambda change: next(iter(change), "same"),
)
def test_the_same_is_built_again_where_it_is_forced(force: bool, change: dict[str, Any], target: Path) -> None:
    build(OPTIONS)
    done, new = build(replace(OPTIONS, **change), force=force)
    assert new is (force or bool(change))
    assert done.options == replace(OPTIONS, **change)


def test_a_library_that_is_not_what_was_built_is_built_again(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(OPTIONS)
    monkeypatch.setattr(builds, "check_library", lambda path: "another")
    assert builds.last_build() is None
    assert build(OPTIONS)[1]
    assert json.loads((target / RECORD).read_text())["previous"] == "another"

    def refuse(path: Path) -> str:
        raise UsageError("others can write it")

    monkeypatch.setattr(builds, "check_library", refuse)
    assert builds.last_build() is None
    assert builds._current_hash() == ""
    assert build(OPTIONS)[1]
    assert json.loads((target / RECORD).read_text())["previous"] == ""


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"options": 1}', '{"options": {"gfx": []}}', '"a"', "[" * 9999])
def test_a_record_that_says_nothing_is_no_build(text: str, target: Path) -> None:
    build(OPTIONS)
    (target / RECORD).write_text(text)
    assert builds.last_build() is None
    assert build(OPTIONS)[1]
    assert builds.last_build() is not None


def test_a_build_that_fails_leaves_what_was_there(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(OPTIONS)
    before = {name: (target / name).read_bytes() for name in os.listdir(target)}
    for error, kind, words in (
        (SdortError("the compiler"), SdortError, "the compiler"),
        (OSError(28, "No space left on device"), OutputError, f"cannot write to {target}: No space left on device"),
        (KeyboardInterrupt("now"), KeyboardInterrupt, "now"),
    ):

        def fail(options: BuildOptions, stage: Path, error: BaseException = error) -> Build:
            (stage / "half").touch()
            raise error

        monkeypatch.setattr(builds, "_compile", fail)
        with pytest.raises(kind, match=words):
            build(OPTIONS, force=True)
        assert {name: (target / name).read_bytes() for name in os.listdir(target)} == before


def test_nothing_is_built_where_another_account_could_change_it(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Any = []
    monkeypatch.setattr(builds, "why_foreign", lambda path: asked.append(path) or "it belongs to somebody")
    with pytest.raises(UsageError, match="as it belongs to somebody: its code would run as you"):
        build(OPTIONS)
    assert asked == [target.parent.parent]  # the nearest folder that is there
    assert not target.exists()


# Models

TEXT = """<ir_version: 8, opset_import: ["": 17{more}]> g (float[2] x) => (float[2] y) { y = Neg (x) }"""


def model(*domains: str) -> onnx.ModelProto:
    return parser.parse_model(TEXT.replace("{more}", "".join(f', "{domain}": 1' for domain in domains)))


@pytest.mark.parametrize(
    ("domains", "lacks"),
    [((), True), (("other",), True), (("com.microsoft",), False), (("other", "com.microsoft"), False)],
)
@pytest.mark.parametrize("as_file", [False, True])
def test_a_model_imports_the_librarys_domain_when_it_is_opened(
    domains: tuple[str, ...], lacks: bool, as_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "unserved", lambda proto: {"Seen": proto.graph.node[0].op_type})
    made = model(*domains)
    assert lacks_domain(made) is lacks
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    given: Any = str(path) if as_file else made.SerializeToString()
    opened, folder, left_out = prepare_model(given)
    assert left_out == {"Seen": "Neg"}
    if not lacks:
        assert (opened, folder) == (given, None)
        return
    assert isinstance(opened, bytes)
    assert folder == (tmp_path if as_file else None)
    proto = onnx.ModelProto.FromString(opened)
    expected = [*((entry.domain, entry.version) for entry in made.opset_import), ("com.microsoft", CONTRIB_OPSET)]
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == expected
    assert proto.graph == made.graph
    assert import_domain(proto) is proto
    assert len(proto.opset_import) == len(expected)  # no second time
    assert onnx.load(path) == made  # the file stays


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\xff" * 20)
    with pytest.raises(BadModelError):
        prepare_model(str(tmp_path / "model.onnx"))
