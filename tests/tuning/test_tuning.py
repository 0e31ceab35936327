"""Tuning bundles: kept whole or not at all, found by their whole key alone, carried only where they belong."""

from __future__ import annotations

import errno
import io
import json
import os
import random
import shutil
import sqlite3
import struct
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.moments import KILLED

from sdort.cli import cli
from sdort.errors import OutputError, ProviderError, UsageError
from sdort.machine.os_calls import os_calls
from sdort.providers import CPU
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.tuning import archive as archives
from sdort.tuning.archive import ARCHIVE_INDEX, export_bundles, import_bundles
from sdort.tuning.bundle import FORMAT, RECORD, Bundle, BundleError, check_files, read_bundle, seal
from sdort.tuning.key import Key, make_key, parse_key
from sdort.tuning.maintenance import BROKEN, FOREIGN, STALE, USED, prune, statuses
from sdort.tuning.store import Store
from sdort.tuning.working_folder import merge

FILES = {"tunable.json": b"[]", "miopen/db/gfx1100_48.ufdb.txt": b"problem=solution\n", "programs/a.mxr": b"\0" * 4096}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"a graph")
    return path


@pytest.fixture
def key(model: Path) -> Key:
    """Of this machine."""
    return make_key(model, "unet", CPU, RuntimeOptions("cpu"), {"sample": (2, 4, 8, 8), "timestep": ()})


def fill(store: Store, key: Key, contents: dict[str, bytes] = FILES) -> Bundle:
    with store.filling(key) as made:
        for name, content in contents.items():
            (made.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (made.folder / name).write_bytes(content)
    return store.read(key.name)


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file; none is left of work that failed."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def invoke(*args: str) -> Result:
    return CliRunner().invoke(cli, ["tuning", *args])


OTHER: dict[str, Any] = {
    "architecture": "gfx942",
    "compute_units": 304,
    "toolkit": "HIP 6.4.0",
    "ep": "ROCMExecutionProvider",
    "ep_version": "1.20.0",
    "onnxruntime": "onnxruntime-rocm 1.20.0",
    "custom_ops": "0123456789abcdef",
    "model": "fedcba9876543210",
    "component": "vae_decoder",
    "shapes": (("sample", (2, 4, 8, 9)), ("timestep", ())),
    "options": (("tunable_op_enable", "1"),),
}
"""Another value of every field."""

OF_A_MACHINE = ("architecture", "compute_units", "toolkit", "ep", "ep_version", "onnxruntime", "custom_ops")


def test_every_field_of_the_key_is_tried() -> None:
    assert set(OTHER) == {field.name for field in fields(Key)}


def test_what_is_stored_comes_back(key: Key) -> None:
    store = Store()
    made = fill(store, key)
    found = store.find(key)
    assert found == made
    assert found.key == key
    assert {name: (found.folder / name).read_bytes() for name in found.files} == FILES
    assert parse_key(json.loads(json.dumps(key.to_json()))) == key


@pytest.mark.parametrize("field", OTHER)
def test_one_field_apart_is_another_bundle(field: str, key: Key) -> None:
    store = Store()
    other = replace(key, **{field: OTHER[field]})
    fill(store, other)
    assert store.find(key) is None
    assert key.difference(other) == (field, key.to_json()[field], other.to_json()[field])
    # A session has no shapes yet: it takes what is kept of its model at any shapes, and nothing else.
    assert bool(list(store.of_model(key))) == (field == "shapes")


@pytest.mark.parametrize("field", OF_A_MACHINE)
def test_an_import_names_the_field_of_the_key_that_differs(field: str, key: Key, tmp_path: Path) -> None:
    sender, receiver = Store(tmp_path / "sender"), Store(tmp_path / "receiver")
    fill(sender, replace(key, **{field: OTHER[field]}))
    export_bundles(sender, (), tmp_path / "a.tar")
    with pytest.raises(ProviderError) as caught:
        import_bundles(receiver, tmp_path / "a.tar")
    if field == "ep":  # this ONNX Runtime has no such provider, so that its GPU cannot be asked for
        assert "rocm" in caught.value.message
    else:
        assert f"{field} is {OTHER[field]!r} there and {key.to_json()[field]!r} here" in caught.value.message
    assert receiver.names() == []
    done = import_bundles(receiver, tmp_path / "a.tar", any_machine=True)
    assert done.elsewhere == receiver.names() == sender.names()
    assert receiver.find(key) is None


@pytest.mark.parametrize("field", ["model", "component", "shapes", "options"])
def test_what_belongs_to_the_model_may_differ_in_an_import(field: str, key: Key, tmp_path: Path) -> None:
    sender, receiver = Store(tmp_path / "sender"), Store(tmp_path / "receiver")
    other = replace(key, **{field: OTHER[field]})
    fill(sender, other)
    export_bundles(sender, (), tmp_path / "a.tar")
    assert import_bundles(receiver, tmp_path / "a.tar").elsewhere == []
    assert receiver.find(other) is not None


def test_a_model_with_other_weights_has_another_key(key: Key, model: Path) -> None:
    model.with_name("model.onnx_data").write_bytes(b"weights")
    first = make_key(model, "unet", CPU, RuntimeOptions("cpu"), {})
    model.with_name("model.onnx_data").write_bytes(b"Weights")
    assert make_key(model, "unet", CPU, RuntimeOptions("cpu"), {}).difference(first, ["model"]) is not None


def test_tuning_is_found_by_runs_without_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = make_key(model, "unet", CPU, RuntimeOptions("cpu"), {})
    machine = {name: here.to_json()[name] for name in OF_A_MACHINE[:6]}
    monkeypatch.setattr("sdort.tuning.key.this_machine", lambda *_: type("M", (), {})())
    monkeypatch.setattr("sdort.tuning.key.asdict", lambda _: machine)

    def options(**changes: Any) -> Any:
        return make_key(model, "unet", ROCM, RuntimeOptions("rocm", **changes), {}).options

    plain = options()
    assert dict(plain) == dict(ROCM.options)
    assert options(tuning=True) == options(graph=True) == options(device_id=1) == plain
    assert options(provider_options={"do_copy_in_default_stream": "0"}) != plain


def test_the_same_bundles_make_the_same_archive(key: Key, tmp_path: Path) -> None:
    store = Store()
    for component in ("unet", "vae_decoder"):
        fill(store, replace(key, component=component))
    export_bundles(store, (), tmp_path / "a.tar")
    # Copied elsewhere, with other times and in another order.
    shutil.copytree(store.folder, tmp_path / "copy")
    for path in (tmp_path / "copy").rglob("*"):
        os.utime(path, (1, 1))
    export_bundles(Store(tmp_path / "copy"), tuple(reversed(store.names())), tmp_path / "b.tar")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    receiver = Store(tmp_path / "receiver")
    assert [each.name for each in import_bundles(receiver, tmp_path / "a.tar").bundles] == store.names()
    assert snapshot(receiver.folder) == snapshot(store.folder)


def test_a_program_of_several_bundles_is_in_an_archive_once(key: Key, tmp_path: Path) -> None:
    store, program = Store(), bytes(range(256)) * 400
    sizes = [replace(key, shapes=(("sample", (2, 4, side, side)),)) for side in (8, 16, 24)]
    for number, size in enumerate(sizes):
        fill(store, size, {"tunable.json": b"[]", "programs/shared.mxr": program, f"programs/{number}.mxr": b"own"})
    export_bundles(store, (), tmp_path / "a.tar")
    assert len(program) < (tmp_path / "a.tar").stat().st_size < 2 * len(program)
    receiver = Store(tmp_path / "receiver")
    for bundle in import_bundles(receiver, tmp_path / "a.tar").bundles:
        check_files(bundle)
    assert snapshot(receiver.folder) == snapshot(store.folder)
    alone = Store(tmp_path / "alone")
    export_bundles(store, (store.names()[1],), tmp_path / "b.tar")
    [bundle] = import_bundles(alone, tmp_path / "b.tar").bundles
    assert (bundle.folder / "programs/shared.mxr").read_bytes() == program


# ---- damage ----


def change(name: str) -> Callable[[Path], None]:
    def damage(bundle: Path) -> None:
        content = bytearray((bundle / name).read_bytes())
        content[len(content) // 2] ^= 1
        (bundle / name).write_bytes(content)

    return damage


def other_format(bundle: Path) -> None:
    record = json.loads((bundle / RECORD).read_text())
    (bundle / RECORD).write_text(json.dumps(record | {"format": FORMAT + 1}))


def other_date(bundle: Path) -> None:
    record = json.loads((bundle / RECORD).read_text())
    (bundle / RECORD).write_text(json.dumps(record | {"made": 1}))


def nested(bundle: Path) -> None:
    (bundle / RECORD).write_text("[" * 100_000)


def instead(path: Path, make: Callable[[Path], object]) -> None:
    path.rename(path.parent.parent / ".moved")
    make(path)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a byte of a file": (change("programs/a.mxr"), "programs/a.mxr was changed"),
    "a byte of the record": (change(RECORD), RECORD),
    "a missing file": (lambda bundle: (bundle / "tunable.json").unlink(), "tunable.json is missing"),
    "a short file": (lambda bundle: os.truncate(bundle / "programs/a.mxr", 100), "programs/a.mxr was changed"),
    "a short record": (lambda bundle: os.truncate(bundle / RECORD, 100), RECORD),
    "no record": (lambda bundle: (bundle / RECORD).unlink(), RECORD),
    "a stranger": (lambda bundle: (bundle / "programs" / "b").touch(), "programs/b does not belong"),
    "a link": (lambda bundle: (bundle / "programs" / "c").symlink_to("/etc/passwd"), "programs/c does not belong"),
    "another date": (other_date, "key.json: it was changed or cut off"),
    "another format": (other_format, f"its format is {FORMAT + 1}, this sdort reads {FORMAT}"),
    "nested lists": (nested, RECORD),
    "a pipe for the record": (lambda bundle: instead(bundle / RECORD, os.mkfifo), "is a named pipe"),
    "a pipe for a file": (lambda bundle: instead(bundle / "tunable.json", os.mkfifo), "tunable.json is missing"),
    "a link for the record": (
        lambda bundle: instead(bundle / RECORD, lambda path: path.symlink_to("/dev/zero")),
        "it is a symbolic link",
    ),
    "a link for a folder": (
        lambda bundle: instead(bundle / "miopen", lambda path: path.symlink_to("/etc")),
        "miopen/db/gfx1100_48.ufdb.txt is missing",
    ),
    "another name": (lambda bundle: bundle.rename(bundle.with_name("unet-000000000000000000000000")), "name"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_bundle_is_told_and_never_used(damage: str, key: Key) -> None:
    store = Store()
    fill(store, replace(key, component="vae_decoder"))
    bundle = fill(store, key)
    apply, text = DAMAGES[damage]
    apply(bundle.folder)
    assert store.find(key) is None
    told = invoke("verify")
    assert told.exit_code == 3
    assert text in told.output
    assert len(told.output.splitlines()) == 2
    assert sorted(each.state for each in statuses(store, thorough=True)) == [BROKEN, USED]
    assert [each.state for each in prune(store)] == [BROKEN]
    assert store.names() == [replace(key, component="vae_decoder").name]
    assert invoke("verify").exit_code == 0


def test_a_bundle_under_the_name_of_another_is_not_used(key: Key) -> None:
    """Of the same model, at other shapes: each file fits its hash, and the record its own."""
    store = Store()
    mine, other = fill(store, key), fill(store, replace(key, shapes=()))
    for kept, copied in ((mine, other), (other, mine)):
        shutil.copytree(kept.folder, kept.folder.with_name(".kept"))
        shutil.rmtree(kept.folder)
        shutil.copytree(copied.folder, kept.folder)
        assert store.find(kept.key) is None
        shutil.rmtree(kept.folder)
        kept.folder.with_name(".kept").rename(kept.folder)
        assert store.find(kept.key) == kept


def test_an_archive_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        done = invoke("import", str(path))
        assert done.exit_code in (2, 3)
        assert "regular file" in done.output or "is a directory" in done.output


def test_a_damaged_bundle_is_not_exported(key: Key, tmp_path: Path) -> None:
    change("tunable.json")(fill(Store(), key).folder)
    with pytest.raises(BundleError, match=r"tunable\.json was changed"):
        export_bundles(Store(), (), tmp_path / "a.tar")
    assert list(tmp_path.glob("*a.tar*")) == []


def rewrite(source: Path, target: Path, edit: Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]) -> None:
    """Write an archive anew after ``edit`` has changed its members."""
    with tarfile.open(source) as tar:
        members = [(member, stream.read()) for member in tar if (stream := tar.extractfile(member))]
    edit(members)
    with tarfile.open(target, "w") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def add(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> Callable[[list[Any]], None]:
    def edit(members: list[Any]) -> None:
        member = tarfile.TarInfo(name.replace("BUNDLE", members[1][0].name.split("/")[0]))
        member.type, member.linkname = kind, target
        members.append((member, b""))

    return edit


def index(**changes: Any) -> Callable[[list[Any]], None]:
    def edit(members: list[Any]) -> None:
        members[0] = (members[0][0], json.dumps(json.loads(members[0][1]) | changes).encode())

    return edit


def flip(members: list[Any]) -> None:
    member, content = members[-1]
    members[-1] = (member, content[:-1] + b"!")


EVIL: dict[str, tuple[Callable[[list[Any]], None], str]] = {
    "out of the folder": (add("BUNDLE/../../escaped"), "is no place in a bundle"),
    "out of programs": (add("BUNDLE/programs/../../../escaped"), "is no place in a bundle"),
    "absolute": (add("/tmp/escaped"), "belongs to no bundle"),
    "beside": (add("escaped"), "belongs to no bundle"),
    "unknown bundle": (add("unet-000000000000000000000000/tunable.json"), "belongs to no bundle"),
    "unknown file": (add("BUNDLE/run.sh"), "is no place in a bundle"),
    "a journal, which names a file to remove": (add("BUNDLE/miopen/db/a.kdb-journal"), "is no place in a bundle"),
    "symbolic link": (add("BUNDLE/programs/x", tarfile.SYMTYPE, "/etc/passwd"), "a link, a device"),
    "hard link": (add("BUNDLE/programs/x", tarfile.LNKTYPE, ARCHIVE_INDEX), "a link, a device"),
    "device": (add("BUNDLE/programs/x", tarfile.CHRTYPE), "a link, a device"),
    "folder": (add("BUNDLE/programs/x", tarfile.DIRTYPE), "a link, a device"),
    "pipe": (add("BUNDLE/programs/x", tarfile.FIFOTYPE), "a link, a device"),
    "twice": (add("BUNDLE/tunable.json"), "is there twice"),
    "a file where a folder is": (add("BUNDLE/programs/a.mxr/b"), "damaged"),
    "a stranger": (add("BUNDLE/programs/b"), "programs/b does not belong"),
    "a record with another hash": (flip, "was changed or cut off"),
    "another format": (index(format=FORMAT + 1), f"its format is {FORMAT + 1}"),
    "an older format": (index(format=0), "its format is 0"),
    "no bundles": (index(bundles=[]), "names no bundle"),
    "a bundle that is a path": (index(bundles=["../unet"]), "names no bundles"),
    "a bundle that is missing": (index(bundles=["unet-000000000000000000000000"]), "belongs to no bundle"),
    "no index": (lambda members: members.pop(0), "does not begin with"),
    "no record": (lambda members: members.pop(1), "it ends before"),
    "one file less": (lambda members: members.pop(), "is missing"),
}


@pytest.fixture
def sent(key: Key, tmp_path: Path) -> Path:
    """An archive of two bundles."""
    sender = Store(tmp_path / "sender")
    for component in ("unet", "vae_decoder"):
        fill(sender, replace(key, component=component))
    export_bundles(sender, (), tmp_path / "sent.tar")
    return tmp_path / "sent.tar"


@pytest.mark.parametrize("evil", EVIL)
def test_an_unsafe_archive_leaves_the_cache_as_it_was(evil: str, key: Key, sent: Path, tmp_path: Path) -> None:
    store = Store()
    fill(store, key, {"tunable.json": b"[1]"})
    before = snapshot(tmp_path)
    edit, text = EVIL[evil]
    rewrite(sent, tmp_path / "evil.tar", edit)
    with pytest.raises(BundleError, match=text):
        import_bundles(store, tmp_path / "evil.tar")
    (tmp_path / "evil.tar").unlink()
    assert snapshot(tmp_path) == before


def test_an_archive_that_was_cut_anywhere_is_refused(key: Key, sent: Path, tmp_path: Path) -> None:
    store, whole = Store(), sent.read_bytes()
    # The last two blocks of 512 zeros, and what fills the record, mark the end; all before them is needed.
    with tarfile.open(sent) as tar:
        last = tar.getmembers()[-1]
        end = last.offset_data + last.size
    for length in [0, 1, 511, 512, 513, *range(1024, end, 512), end - 1]:
        (tmp_path / "cut.tar").write_bytes(whole[:length])
        with pytest.raises(BundleError, match=r"damaged|cannot be read"):
            import_bundles(store, tmp_path / "cut.tar")
    assert store.names() == []


def test_an_archive_that_was_changed_anywhere_is_refused_or_the_same(sent: Path, tmp_path: Path) -> None:
    draw, whole = random.Random(1), sent.read_bytes()
    expected = snapshot(sent.with_name("sender"))
    refused = 0
    for number in range(150):
        broken = bytearray(whole)
        broken[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        (tmp_path / "broken.tar").write_bytes(broken)
        store = Store(tmp_path / f"store-{number}")
        try:
            import_bundles(store, tmp_path / "broken.tar")
        except BundleError:
            refused += 1
            assert store.names() == []
        else:  # a byte that means nothing: padding
            assert snapshot(store.folder) == expected
    assert refused > 30


def test_an_archive_that_unpacks_to_too_much_is_refused(
    sent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, value in (("MAX_BYTES", 4000), ("MAX_FILES", 2)):
        with monkeypatch.context() as patch:
            patch.setattr(archives, limit, value)
            with pytest.raises(BundleError, match="it has more than"):
                import_bundles(Store(), sent)
    assert Store().names() == []
    (tmp_path / "bomb.tar.gz").write_bytes(b"\x1f\x8b\x08" + b"\0" * 100)
    with pytest.raises(BundleError, match="no archive of tuning bundles"):
        import_bundles(Store(), tmp_path / "bomb.tar.gz")


# ---- disks ----


def test_a_full_disk_leaves_the_older_bundle(key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    fill(store, key)
    before = snapshot(store.folder)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("sdort.tuning.store.seal", full)
    with pytest.raises(OutputError, match=r"cannot keep tuning results in .*: No space left on device"):
        fill(store, key, {"tunable.json": b"[2]"})
    assert snapshot(store.folder) == before


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("mount"), reason="mounts a file system")
def test_a_disk_that_is_really_full(key: Key, sent: Path, tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "none", str(tmp_path / "small")])
    if done.returncode:
        pytest.skip("this machine does not let root mount")
    try:
        store = Store(tmp_path / "small" / "store")
        fill(store, key, {"tunable.json": b"[1]"})
        before = snapshot(store.folder)
        with pytest.raises(OutputError, match="No space left on device"):
            fill(store, key, {"programs/a.mxr": b"\1" * (1 << 20)})
        (tmp_path / "small" / "filler").write_bytes(b"\1" * (96 << 10))
        with pytest.raises(OutputError, match="No space left on device"):
            import_bundles(store, sent)
        assert snapshot(store.folder) == before
        assert store.find(key) is not None
    finally:
        subprocess.run(["umount", str(tmp_path / "small")], check=True)


def test_a_folder_that_cannot_be_made(key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OutputError, match="cannot keep tuning results"):
        fill(Store(), key)
    assert Store().find(key) is None
    assert invoke("list").exit_code == 0


def test_the_older_bundle_stays_until_the_new_one_takes_its_place(key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    fill(store, key)
    before = snapshot(store.folder)

    def broken(*_: Path) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os_calls, "exchange", broken)
    with pytest.raises(OutputError, match="Input/output error"):
        fill(store, key, {"tunable.json": b"[2]"})
    assert snapshot(store.folder) == before


def test_a_file_system_that_cannot_exchange(key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os_calls, "exchange", lambda first, second: False)
    store = Store()
    fill(store, key)
    fill(store, key, {"tunable.json": b"[2]"})
    found = store.find(key)
    assert found is not None
    assert (found.folder / "tunable.json").read_bytes() == b"[2]"
    assert [path.name for path in store.folder.iterdir() if path.name.startswith(".new")] == []


# ---- kills and other processes ----

ROUNDS = int(os.environ.get("KILLS", "12"))
"""Kills, at moments of the first 30 ms of a writer that does not end."""
WRITER = """
import os, sys
from pathlib import Path
from sdort.tuning.key import parse_key
from sdort.tuning.store import Store
from support.moments import strike
import json
key = parse_key(json.loads(sys.argv[1]))
print("ready", flush=True)
strike(float(sys.argv[2]))
for round in range(1_000_000):
    with Store().filling(key) as made:
        for name in ("programs/a", "programs/b", "miopen/db/c"):
            path = made.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(f"{os.getpid()} {round} ".encode() * 2000)
"""


@pytest.fixture
def writer(key: Key) -> Iterator[Callable[[float], subprocess.Popen[str]]]:
    """Starts processes that store one bundle again and again, each time with the same text in all its files.

    They end at the moment of their work (:mod:`moments`) that is given, if it is not 0.
    """
    started: list[subprocess.Popen[str]] = []

    def start(moment: float) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, json.dumps(key.to_json()), str(moment)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def texts(bundle: Bundle) -> set[bytes]:
    return {(bundle.folder / name).read_bytes() for name in bundle.files}


def test_kills_at_any_moment_leave_whole_bundles(key: Key, writer: Callable[[float], subprocess.Popen[str]]) -> None:
    draw, store = random.Random(7), Store()
    fill(store, key)
    for _ in range(ROUNDS):
        assert writer(draw.uniform(1e-4, 0.03)).wait() == KILLED
        assert store.names() == [key.name]
        found = store.find(key)  # whole, by every hash
        assert found is not None
        if "tunable.json" not in found.files:
            assert len(texts(found)) == 1
    with store.hidden():  # the next writer removes what the killed left
        assert len(list(store.folder.glob(".new-*"))) == 1


def test_processes_that_write_at_once_never_mix(key: Key, writer: Callable[[float], subprocess.Popen[str]]) -> None:
    store = Store()
    seen: set[bytes] = set()
    processes = [writer(0), writer(0)]
    while len(seen) < 40 or len({text.split()[0] for text in seen}) < 2:
        with store.reading():
            if store.names():
                bundle = store.read(key.name)
                check_files(bundle)
                (text,) = texts(bundle)
                seen.add(text)
    assert all(process.poll() is None for process in processes)


# ---- the commands ----


def test_list_tells_what_runs_here_use(key: Key) -> None:
    store = Store()
    states = {"component": USED, "toolkit": STALE, "onnxruntime": STALE, "architecture": FOREIGN, "ep": FOREIGN}
    names = {fill(store, replace(key, **{field: OTHER[field]})).name: field for field in states}
    result = invoke("list", "--json")
    assert result.exit_code == 0
    told = {each["name"]: each for each in json.loads(result.output)["bundles"]}
    assert {names[name]: each["state"] for name, each in told.items()} == states
    for name, field in names.items():
        assert field == "component" or field == "ep" or field in told[name]["why"]
    assert all(each["bytes"] == sum(map(len, FILES.values())) for each in told.values())
    gone = json.loads(invoke("prune", "--json").output)["bundles"]
    assert {names[each["name"]] for each in gone} == {"toolkit", "onnxruntime"}
    gone = json.loads(invoke("prune", "--foreign", "--json").output)["bundles"]
    assert {names[each["name"]] for each in gone} == {"architecture", "ep"}
    assert [names[name] for name in store.names()] == ["component"]


def test_prune_by_age(key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(Store(), key)
    now = time.time()
    monkeypatch.setattr("sdort.tuning.store.time.time", lambda: now + 3000)
    assert json.loads(invoke("prune", "--older-than", "1h", "--json").output)["bundles"] == []
    assert len(json.loads(invoke("prune", "--older-than", "40m", "--dry-run", "--json").output)["bundles"]) == 1
    assert Store().names() == [key.name]
    assert invoke("prune", "--older-than", "40m").exit_code == 0
    assert Store().names() == []
    assert invoke("prune", "--older-than", "soon").exit_code == 2


def test_the_commands_errors(key: Key, tmp_path: Path) -> None:
    assert invoke("export", "a.tar").exit_code == UsageError.exit_code  # nothing was tuned yet
    fill(Store(), key)
    assert invoke("export", str(tmp_path / "a.tar"), "--bundle", "unet-x").exit_code == UsageError.exit_code
    assert invoke("verify", "unet-x").exit_code == UsageError.exit_code
    assert invoke("export", str(tmp_path / "a.tar")).exit_code == 0
    assert invoke("export", str(tmp_path / "a.tar")).exit_code == OutputError.exit_code  # it exists
    assert invoke("export", str(tmp_path / "a.tar"), "--overwrite").exit_code == 0
    assert invoke("export", str(tmp_path / "missing" / "a.tar")).exit_code == OutputError.exit_code
    shutil.rmtree(Store().folder)
    assert json.loads(invoke("import", str(tmp_path / "a.tar"), "--json").output)["bundles"] == [key.name]
    assert Store().find(key) is not None


# ---- merging ----


def kernels(path: Path, *names: str) -> None:
    """A database as MIOpen's kern_db.hpp makes it."""
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            "CREATE TABLE kern_db (id INTEGER PRIMARY KEY ASC, kernel_name TEXT NOT NULL, kernel_args TEXT NOT NULL,"
            " kernel_blob BLOB NOT NULL, kernel_hash TEXT, uncompressed_size INT)"
        )
        database.execute("CREATE UNIQUE INDEX idx_kern_db ON kern_db (kernel_name, kernel_args)")
        rows = [(name, "-O3", name.encode(), "hash", 1) for name in names]
        columns = "kernel_name, kernel_args, kernel_blob, kernel_hash, uncompressed_size"
        database.executemany(f"INSERT INTO kern_db ({columns}) VALUES (?, ?, ?, ?, ?)", rows)
        database.commit()


def test_miopens_files_are_merged(tmp_path: Path) -> None:
    for name, first, second in (("a", "one", "two"), ("b", "two", "three")):
        (tmp_path / name).mkdir()
        kernels(tmp_path / name / "gfx1100_48.ukdb", first, second)
        (tmp_path / name / "gfx1100_48.ufdb.txt").write_text(f"{first}={name}\n{second}={name}\n")
    for name in ("a", "b"):
        for file in ("gfx1100_48.ukdb", "gfx1100_48.ufdb.txt"):
            merge(tmp_path / name / file, tmp_path / "merged" / file)
    with closing(sqlite3.connect(tmp_path / "merged" / "gfx1100_48.ukdb")) as database:
        found = database.execute("SELECT kernel_name, kernel_blob FROM kern_db ORDER BY id").fetchall()
    assert found == [("one", b"one"), ("two", b"two"), ("three", b"three")]
    text = (tmp_path / "merged" / "gfx1100_48.ufdb.txt").read_text()
    assert text == "one=a\ntwo=b\nthree=b\n"


ENDLESS = "WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("kind", ["view", "trigger"])
def test_a_database_that_does_something_is_not_merged(tmp_path: Path, side: str, kind: str) -> None:
    """A view of endless rows under the table's name, a trigger that never ends: SQLite would run them."""
    for name in ("source", "target"):
        kernels(tmp_path / name, name)
    acts = {
        "view": f"CREATE VIEW other AS {ENDLESS} SELECT x FROM c",
        "trigger": f"CREATE TRIGGER t AFTER INSERT ON kern_db BEGIN SELECT 1 FROM ({ENDLESS} SELECT x FROM c); END",
    }
    with closing(sqlite3.connect(tmp_path / side)) as database:
        database.execute(acts[kind])
        database.commit()
    before = (tmp_path / "target").read_bytes()
    with pytest.raises(sqlite3.DatabaseError, match="more than tables"):
        merge(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == before


def hot_journal(database: Path, names: Path) -> bytes:
    """What SQLite rolls back where it opens ``database``, and then removes the file that it ``names``: pager.c."""
    magic, name = bytes.fromhex("d9d505f920a163d7"), os.fsencode(names)
    page = int.from_bytes(database.read_bytes()[16:18], "big")
    header = magic + struct.pack(">5I", 0, 0, database.stat().st_size // page, 512, page)
    return header.ljust(512, b"\0") + struct.pack(">I", (1 << 30) // page + 1) + name + struct.pack(
        ">2I", len(name), sum(name)
    ) + magic  # fmt: skip


def test_a_database_beside_a_journal_removes_nothing_and_stays_as_it_is(tmp_path: Path) -> None:
    (precious := tmp_path / "thesis.txt").write_text("x")
    for name in ("source", "target"):
        kernels(tmp_path / name, name)
    (tmp_path / "source-journal").write_bytes(hot_journal(tmp_path / "source", precious))
    before = {path: path.read_bytes() for path in tmp_path.glob("source*")}
    merge(tmp_path / "source", tmp_path / "target")
    assert {path: path.read_bytes() for path in tmp_path.glob("source*")} == before
    assert precious.exists()


def test_a_name_of_a_column_is_no_sql(tmp_path: Path) -> None:
    for name in ("source", "target"):
        with closing(sqlite3.connect(tmp_path / name)) as database:
            database.execute("""CREATE TABLE kern_db (id INTEGER PRIMARY KEY, "a"") VALUES ('forged') --" TEXT)""")
            database.execute("INSERT INTO kern_db VALUES (1, ?)", (name,))
            database.commit()
    merge(tmp_path / "source", tmp_path / "target")
    with closing(sqlite3.connect(tmp_path / "target")) as database:
        assert database.execute("SELECT * FROM kern_db").fetchall() == [(1, "target"), (2, "source")]


def test_a_sealed_folder_reads_back(key: Key, tmp_path: Path) -> None:
    folder = tmp_path / key.name
    (folder / "programs").mkdir(parents=True)
    (folder / "programs" / "a").write_bytes(b"x")
    seal(folder, key, 1.5)
    bundle = read_bundle(folder)
    check_files(bundle)
    assert (bundle.key, bundle.first_run_s, bundle.bytes, list(bundle.files)) == (key, 1.5, 1, ["programs/a"])


def test_the_first_letters_of_a_bundle_name_it(key: Key, tmp_path: Path) -> None:
    names = [fill(Store(), replace(key, component=component)).name for component in ("unet", "unet_2", "vae_decoder")]
    assert Store().resolve(["v", "unet_"]) == [names[2], names[1]]
    with pytest.raises(UsageError, match=rf"2 tuning bundles begin with un: {names[0]}, {names[1]}"):
        Store().resolve(["un"])
    assert Store().resolve([names[0]]) == [names[0]]
    assert invoke("export", str(tmp_path / "a.tar"), "--bundle", "vae").exit_code == 0
