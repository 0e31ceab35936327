"""What libraries tune: laid out for a session, merged, and copied into bundles; nothing of the user's own is moved."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sdort.errors import ProviderError
from sdort.operator_library.tuning_table import Entry, read_table
from sdort.providers import CPU
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.migraphx import PROVIDER as MIGRAPHX
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.tuning import session_hooks, working_folder
from sdort.tuning.bundle import BundleError
from sdort.tuning.session_hooks import SessionTuning, set_results
from sdort.tuning.store import Store
from sdort.tuning.working_folder import OPS_TABLE, OPS_TUNE, WorkingFolder, copy, link, merge, write_table

VARIABLES = {"MIOPEN_USER_DB_PATH": "miopen/db", "MIOPEN_CUSTOM_CACHE_DIR": "miopen/cache"}


PASSING = (".lock", ".tmp", "-journal", "-wal", "-shm")
"""Ends of names of what only matters while somebody writes."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkingFolder:
    for name in (*VARIABLES, OPS_TABLE, OPS_TUNE, "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "work").mkdir()
    return WorkingFolder(tmp_path / "work")


@pytest.mark.parametrize("own", [(), ("MIOPEN_USER_DB_PATH",), ("MIOPEN_CUSTOM_CACHE_DIR",), tuple(VARIABLES)])
def test_each_of_miopens_folders_is_here_or_the_users(
    own: tuple[str, ...], folder: WorkingFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in own:
        monkeypatch.setenv(name, "/own")
    for _ in range(2):
        folder.use_miopen()
        for name, place in VARIABLES.items():
            assert os.environ[name] == ("/own" if name in own else str(folder.folder / place))
            assert (folder.folder / place).is_dir() == (name not in own)


def test_temporary_files_are_here_or_where_the_user_has_them(
    folder: WorkingFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.use_temporary()
    folder.use_temporary()
    assert os.environ["TMPDIR"] == str(folder.folder / "tmp")
    assert (folder.folder / "tmp").is_dir()
    monkeypatch.setenv("TMPDIR", "/own")
    folder.use_temporary()
    assert os.environ["TMPDIR"] == "/own"


def entry(key: str, variant: str, architecture: str = "sm_90", time: float = 1.5) -> Entry:
    return Entry(architecture, key, variant, time)


def test_of_a_kernel_the_last_that_is_known_counts(folder: WorkingFolder, tmp_path: Path) -> None:
    """The machine's table, then what an earlier session found, then the bundles."""
    table = tmp_path / "tuning.tsv"
    write_table(table, [entry("a", "table"), entry("b", "table"), entry("c", "table", "gfx1100")])
    folder.use_ops(table, [entry("b", "bundle"), entry("d", "bundle")], tune=False)
    first = os.environ[OPS_TABLE]
    assert OPS_TUNE not in os.environ
    assert {(e.architecture, e.key): e.variant for e in folder.ops()} == {
        ("sm_90", "a"): "table", ("sm_90", "b"): "bundle", ("gfx1100", "c"): "table", ("sm_90", "d"): "bundle",
    }  # fmt: skip
    with open(first, "a") as file:
        file.write("sm_90\ta\tsession\t0.5\nsm_90\tc\tother card\t2.0\n")
    folder.use_ops(table, [entry("e", "bundle")], tune=True)
    assert os.environ[OPS_TUNE] == "1"
    assert os.environ[OPS_TABLE] != first
    found = {(e.architecture, e.key): (e.variant, e.microseconds) for e in folder.ops()}
    assert found["sm_90", "a"] == ("session", 0.5)
    assert found["sm_90", "c"] == ("other card", 2.0)
    assert found["gfx1100", "c"] == ("table", 1.5)
    assert len(found) == 6


@pytest.mark.parametrize("kind", ["none", "the machine's", "the user's"])
def test_a_table_of_the_users_own_stays(
    kind: str, folder: WorkingFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, own = tmp_path / "tuning.tsv", tmp_path / "own.tsv"
    write_table(own, [entry("own", "x")])
    if kind != "none":
        monkeypatch.setenv(OPS_TABLE, str(own if kind == "the user's" else table))
    folder.use_ops(table, [entry("a", "bundle")], tune=True)
    assert os.environ[OPS_TUNE] == "1"
    if kind == "the user's":
        assert os.environ[OPS_TABLE] == str(own)
        assert folder.ops() == []
    else:
        assert Path(os.environ[OPS_TABLE]).parent == folder.folder
        assert folder.ops() == [entry("a", "bundle")]


def test_a_table_is_written_as_it_is_read(tmp_path: Path) -> None:
    entries = [entry("b", "v", time=0.1), entry("a", "w", time=1e-7), entry("a", "w", "gfx942", 1234567.25)]
    write_table(tmp_path / "t.tsv", entries)
    lines = (tmp_path / "t.tsv").read_text().splitlines()
    assert lines[0].startswith("#")
    assert lines[1:] == sorted(lines[1:])
    assert set(read_table(tmp_path / "t.tsv")) == set(entries)


def fill(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_bundle_gets_what_miopen_left_and_the_programs_of_its_model(folder: WorkingFolder, tmp_path: Path) -> None:
    passing = [f"{top}/x{end}" for top in ("miopen/db", "programs/mine") for end in PASSING]
    fill(folder.folder, "miopen/db/a.txt", "miopen/cache/b", "programs/mine/c.mxr", "programs/mine/d/e", *passing)
    fill(folder.folder, "programs/other/f", "tmp/g")
    folder.copy_to("mine", tmp_path / "stage")
    assert set(files(tmp_path / "stage")) == {"miopen/db/a.txt", "miopen/cache/b", "programs/c.mxr", "programs/d/e"}
    assert files(tmp_path / "stage")["programs/d/e"] == b"programs/mine/d/e"
    seen = [path for path, _ in folder.contents("mine")]
    assert seen == sorted(
        str(folder.folder / name) for name in files(folder.folder) if name.startswith(("miopen/", "programs/mine/"))
    )
    assert (str(folder.folder / "miopen/cache/b"), len("miopen/cache/b")) in folder.contents("mine")
    folder.use_ops(tmp_path / "none.tsv", [entry("a", "b")], tune=False)
    folder.copy_to("mine", tmp_path / "again")
    assert read_table(tmp_path / "again/ops.tsv") == [entry("a", "b")]


def test_a_bundle_is_taken_for_its_model(folder: WorkingFolder, tmp_path: Path) -> None:
    fill(tmp_path / "bundle", "miopen/db/a.txt", "programs/d/e", "tunable.json", "ops.tsv")
    bundle: Any = SimpleNamespace(
        folder=tmp_path / "bundle",
        files=dict.fromkeys(files(tmp_path / "bundle")),
        key=SimpleNamespace(programs="mine"),
    )
    folder.take(bundle)
    assert set(files(folder.folder)) == {"miopen/db/a.txt", "programs/mine/d/e"}


def test_a_program_is_one_file_of_two_names_that_nobody_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, "a", "b")
    link(tmp_path / "a", tmp_path / "deep/x")
    assert (tmp_path / "deep/x").samefile(tmp_path / "a")
    assert (tmp_path / "deep/x").stat().st_mode & 0o777 == 0o444
    link(tmp_path / "b", tmp_path / "deep/x")  # what is there stays
    assert (tmp_path / "deep/x").read_bytes() == b"a"

    def refuse(*_: Any) -> None:
        raise OSError("another file system")

    monkeypatch.setattr(os, "link", refuse)
    link(tmp_path / "b", tmp_path / "deep/y")
    assert (tmp_path / "deep/y").read_bytes() == b"b"
    assert not (tmp_path / "deep/y").samefile(tmp_path / "b")


def test_a_database_is_copied_with_what_its_writer_has_not_moved(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.kdb")) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("CREATE TABLE t (x)")
        writer.execute("INSERT INTO t VALUES (7)")
        writer.commit()
        assert (tmp_path / "a.kdb-wal").stat().st_size > 0
        copy(tmp_path / "a.kdb", tmp_path / "to/a.kdb")
    with closing(sqlite3.connect(tmp_path / "to/a.kdb")) as reader:
        assert reader.execute("SELECT x FROM t").fetchall() == [(7,)]
    (tmp_path / "b.kdb").write_bytes(b"SQLite format 3\0 and no more")
    copy(tmp_path / "b.kdb", tmp_path / "to/b.kdb")
    assert (tmp_path / "to/b.kdb").read_bytes() == (tmp_path / "b.kdb").read_bytes()


def test_what_cannot_be_merged_stays_as_it_is(tmp_path: Path) -> None:
    for name, content in (
        ("a/x.bin", b"one"),
        ("b/x.bin", b"two"),
        ("a/y.txt", b"k=1\nl=2"),
        ("b/y.txt", b"l=3\nm=4\n"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
        merge(tmp_path / name, tmp_path / "merged" / Path(name).name)
    assert files(tmp_path / "merged") == {"x.bin": b"one", "y.txt": b"k=1\nl=3\nm=4\n"}


# --- sessions ---


class Recorded:
    """As WorkingFolder: which of its methods were called."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> str:
            self.calls.append(name if name != "use_ops" else (name, *given[1:]))
            return "/programs"

        return call


def bundle_of(tmp_path: Path, *names: str) -> Any:
    return SimpleNamespace(folder=tmp_path, files=dict.fromkeys(names))


@pytest.mark.parametrize("tuning", [False, True])
@pytest.mark.parametrize("held", [(), ("miopen/db/a",), ("ops.tsv",), ("tunable.json", "programs/x")], ids=str)
@pytest.mark.parametrize("provider", [ROCM, MIGRAPHX, CUDA], ids=lambda each: each.name)
@pytest.mark.parametrize("library", [False, True], ids=["no library", "library"])
def test_libraries_are_pointed_here_where_they_write_or_something_is_kept(
    library: bool, provider: Any, held: tuple[str, ...], tuning: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_hooks, "resolve", lambda setting: tmp_path if library and setting == "on" else None)
    write_table(tmp_path / "ops.tsv", [entry("a", "b")])
    folder, key = Recorded(), SimpleNamespace(programs="mine")
    bundles = [bundle_of(tmp_path, "tunable.json"), bundle_of(tmp_path, *held)]
    asked = RuntimeOptions(provider.name, tuning=tuning, custom_ops="on", provider_options={"a": "1"})
    found = session_hooks._lay_out(folder, bundles, key, provider, asked)  # type: ignore[arg-type]
    amd = provider is not CUDA
    expected: list[Any] = ["use_temporary"] if amd else []
    expected += ["use_miopen"] if amd and (tuning or held == ("miopen/db/a",)) else []
    expected += ["take", "take"]
    if library and (tuning or held == ("ops.tsv",)):
        expected.append(("use_ops", [entry("a", "b")] * 2, tuning))
    expected += ["programs"] if provider is MIGRAPHX else []
    assert folder.calls == expected
    more = {"migraphx_model_cache_dir": "/programs"} if provider is MIGRAPHX else {}
    assert found == replace(asked, provider_options={"a": "1", **more})


class Session:
    """As an InferenceSession whose validators are those of a machine."""

    def __init__(self, **validators: str) -> None:
        self.here = [{"ep": ROCM.ep, "validators": validators, "results": {}}]
        self.set: list[Any] = []

    def get_tuning_results(self) -> Any:
        return self.here

    def set_tuning_results(self, results: Any, *, error_on_invalid: bool) -> None:
        self.set.append((results, error_on_invalid))


def result(ep: str = ROCM.ep, **validators: Any) -> dict[str, Any]:
    return {"ep": ep, "validators": validators, "results": {"gemm": {"64_64": 3}}}


def test_results_are_given_to_a_session_whole() -> None:
    session, results = Session(A="1", B="2"), [result(A="1", B="2")]
    set_results(session, results)
    assert session.set == [(results, True)]
    set_results(session, [])
    assert len(session.set) == 2


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([result(A="1", B="2"), result(A="1", B="3")], "B is '3' there and '2' here"),
        ([result(A="1")], "B is None there and '2' here"),
        ([result(A="1", B="2", C="4")], "C is '4' there and None here"),
        ([result("CUDAExecutionProvider", A="1", B="2")], "takes no tuning results for CUDAExecutionProvider"),
        ([result(A="1", B=2)], "holds no tuning results"),
        ([result(A="1", B="2") | {"ep": None}], "holds no tuning results"),
        ([result(A="1", B="2") | {"results": []}], "holds no tuning results"),
        ([result(A="1", B="2") | {"results": {"gemm": {"64": "3"}}}], "holds no tuning results"),
        ([result(A="1", B="2") | {"results": {"a": {}, "gemm": [3]}}], "holds no tuning results"),
        ([result(A="1", B="2"), 3], "holds no tuning results"),
        ({}, "holds no tuning results"),
    ],
)
def test_results_of_another_machine_or_form_are_not_given(results: Any, message: str) -> None:
    session = Session(A="1", B="2")
    with pytest.raises(ProviderError, match=message):
        set_results(session, results)
    assert session.set == []


def test_an_onnx_runtime_that_takes_none_or_refuses_them_is_told() -> None:
    with pytest.raises(ProviderError, match="takes no tuning results"):
        set_results(SimpleNamespace(), [])
    session = Session(A="1")
    session.set_tuning_results = None  # type: ignore[assignment, method-assign]
    with pytest.raises(ProviderError, match="ONNX Runtime refuses the tuning results"):
        set_results(session, [result(A="1")])


def test_of_several_bundles_each_that_does_not_fit_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    session = Session(A="1")
    texts = {"bad": b"[", "foreign": json.dumps([result(A="2")]).encode(), "good": json.dumps([result(A="1")]).encode()}
    SessionTuning(RuntimeOptions(), texts).apply(session)
    assert session.set == [([result(A="1")], True)]
    told = " ".join(capsys.readouterr().err.split())
    assert ("the tuning bundle bad is not used: " in told, "bundle foreign is not used: A is '2' there" in told) == (
        True, True,
    )  # fmt: skip
    assert "good" not in told


@pytest.mark.parametrize("tuning", [False, True])
def test_a_gpu_that_cannot_be_asked_is_told_where_tuning_is_asked_for(
    tuning: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> Any:
        raise ProviderError("the driver does not tell")

    monkeypatch.setattr(session_hooks, "make_key", fail)
    monkeypatch.setattr(Store, "names", lambda self: ["unet-0"])
    monkeypatch.setattr(session_hooks, "working_folder", lambda: pytest.fail("made a folder"))
    asked = RuntimeOptions("rocm", tuning=tuning)
    assert session_hooks.prepare_tuning(tmp_path, "unet", ROCM, asked) == SessionTuning(asked)
    assert ("neither used nor kept: the driver does not tell" in capsys.readouterr().err) is tuning
    assert session_hooks.prepare_tuning(tmp_path, "unet", CPU, replace(asked, tuning=True)).results == {}
    assert {name: place.partition("/")[2] for name, place in VARIABLES.items()} == working_folder.MIOPEN_FOLDERS


@pytest.mark.parametrize("damaged", [(), (0,), (1,), (2,), (0, 2)])
def test_a_damaged_bundle_is_passed_over_and_the_others_are_used(
    damaged: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(bundle: str) -> None:
        if int(bundle) in damaged:
            raise BundleError(f"bundle {bundle} is damaged")

    monkeypatch.setattr(session_hooks, "check_files", check)
    store: Any = SimpleNamespace(of_model=lambda key: ["0", "1", "2"])
    sound: list[Any] = list(session_hooks._sound(store, "key"))  # type: ignore[arg-type]
    assert sound == [str(number) for number in range(3) if number not in damaged]
    told = capsys.readouterr().err
    assert [number for number in range(3) if f"bundle {number} is damaged; it is not used" in told] == list(damaged)
