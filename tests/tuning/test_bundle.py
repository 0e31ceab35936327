"""Keys, records and names of bundles, field by field; and which machine a bundle is of."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sdort.errors import ProviderError
from sdort.machine.onnxruntime_copies import Flavour
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.tuning import bundle as bundles
from sdort.tuning import command, maintenance
from sdort.tuning import device as machines
from sdort.tuning import key as keys
from sdort.tuning.archive import export_bundles, import_bundles
from sdort.tuning.bundle import BundleError, check_files, check_name, read_bundle, seal
from sdort.tuning.device import Machine, this_machine
from sdort.tuning.key import Key, parse_key
from sdort.tuning.store import Store

HERE = Machine("gfx1100", 96, "HIP 7.0.1", ROCM.ep, "1.22.2", "onnxruntime-rocm 1.22.2")
KEY = Key(
    **asdict(HERE), custom_ops="ab", model="0123", component="unet", shapes=(("x", (1, 4)),), options=(("a", "1"),)
)
OTHER: dict[str, Any] = {
    "architecture": "gfx942", "compute_units": 304, "toolkit": "HIP 6.4.0", "ep": "MadeUpExecutionProvider",
    "ep_version": "1.20.0", "onnxruntime": "onnxruntime-rocm 1.20.0", "custom_ops": "cd", "model": "fedc",
    "component": "vae_decoder", "shapes": (("x", (1, 5)),), "options": (("a", "2"),),
}  # fmt: skip
"""Another value of every field."""


# --- keys ---


def test_a_key_comes_back_in_one_order() -> None:
    told = KEY.to_json() | {"shapes": {"b": [], "a": [2, 3]}, "options": {"z": "1", "y": "2"}}
    found = parse_key(json.loads(json.dumps(told)))
    assert (found.shapes, found.options) == ((("a", (2, 3)), ("b", ())), (("y", "2"), ("z", "1")))
    assert parse_key(replace(KEY, custom_ops=None).to_json()).custom_ops is None


WRONG: dict[str, tuple[Any, ...]] = {
    **{
        field: (1, None, ["x"])
        for field in ("architecture", "toolkit", "ep", "ep_version", "onnxruntime", "model", "component")
    },
    "compute_units": ("96", 96.0, True, None),
    "custom_ops": (1, False, ["ab"]),
    "shapes": (None, [], {"x": 1}, {"x": [1.0]}, {"x": [True]}, {"x": [-1]}, {"x": ["N"]}, {"x": [1], "y": None}),
    "options": (None, [], {"a": 1}, {"a": None}, {"a": "1", "b": 2}),
}


@pytest.mark.parametrize("field", WRONG)
def test_a_field_of_another_type_is_named(field: str) -> None:
    assert set(WRONG) == {each.name for each in fields(Key)}
    for value in WRONG[field]:
        with pytest.raises(ValueError, match=f"^the key's {field} cannot be read$"):
            parse_key(KEY.to_json() | {field: value})
    told = KEY.to_json()
    del told[field]
    with pytest.raises(ValueError, match=f"^the key has other fields: {field}$"):
        parse_key(told)


def test_what_is_no_key() -> None:
    with pytest.raises(ValueError, match=r"other fields: another$"):
        parse_key(KEY.to_json() | {"another": 1})
    values: tuple[Any, ...] = (None, [], "key", 1)
    for value in values:
        with pytest.raises(ValueError, match="the key is no object"):
            parse_key(value)


def test_a_difference_is_the_first_of_those_that_are_asked_for() -> None:
    other = replace(KEY, toolkit="HIP 8", model="9")
    assert KEY.difference(other) == ("toolkit", "HIP 7.0.1", "HIP 8")
    assert KEY.difference(other, ["model", "toolkit"]) == ("model", "0123", "9")
    assert KEY.difference(other, ["component"]) is None
    assert KEY.difference(KEY) is None


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """This machine has HERE's card as its second one, and a library; what was asked is kept."""
    asked: list[Any] = []

    def ask(provider: str, device_id: int = 0, libraries: object = ()) -> Machine:
        asked.append((provider, device_id))
        return HERE if device_id == 1 else replace(HERE, compute_units=48)

    def resolve(setting: str) -> Path | None:
        asked.append(setting)
        return None if setting == "off" else tmp_path / setting

    monkeypatch.setattr(keys, "this_machine", ask)
    monkeypatch.setattr(keys, "resolve", resolve)
    monkeypatch.setattr(keys, "library_hash", lambda path: {"mine": "ab"}.get(path.name, "other"))
    return asked


def test_a_key_of_this_machine_is_not_elsewhere(here: list[Any]) -> None:
    assert KEY.elsewhere(1, "mine") is None
    assert here == ["mine", ("rocm", 1)]
    assert KEY.elsewhere(0, "mine") == ("compute_units", 96, 48)
    assert KEY.elsewhere(1, "auto") == ("custom_ops", "ab", "other")
    assert KEY.elsewhere(1, "off") == ("custom_ops", "ab", None)
    # A run without the library can use what was made without.
    assert replace(KEY, custom_ops=None).elsewhere(1, "mine") is None
    for field in ("model", "component", "shapes", "options"):
        assert replace(KEY, **{field: OTHER[field]}).elsewhere(1, "mine") is None
    assert replace(KEY, ep="Unknown").elsewhere(1, "mine")[:2] == ("ep", "Unknown")  # type: ignore[index]


STATES = {
    "architecture": "foreign", "compute_units": "foreign", "toolkit": "stale", "ep": "foreign", "ep_version": "stale",
    "onnxruntime": "stale", "custom_ops": "stale", "model": "used", "component": "used", "shapes": "used",
    "options": "used",
}  # fmt: skip
"""What a bundle is that differs in one field."""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Store()


def keep(store: Store, key: Key, first_run_s: float | None = None) -> str:
    with store.filling(key) as made:
        (made.folder / "tunable.json").write_text("[]")
        (made.folder / "programs").mkdir()
        (made.folder / "programs/a").write_bytes(b"12345")
        made.first_run_s = first_run_s
    return key.name


@pytest.mark.usefixtures("here")
def test_states_and_what_goes_of_each_field(store: Store) -> None:
    """Another card of the same architecture is another GPU: its bundles stay unless they are asked for."""
    assert set(STATES) == {each.name for each in fields(Key)}
    names = {keep(store, replace(KEY, **{field: OTHER[field]})): field for field in STATES}
    unused = keep(store, replace(KEY, component="text_encoder"))
    found = {names[each.name]: each for each in maintenance.statuses(store, [*names], device_id=1, custom_ops="mine")}
    assert {field: each.state for field, each in found.items()} == STATES
    for field, state in STATES.items():
        assert found[field].why.startswith(f"{field} is " if state != "used" else "")
        assert bool(found[field].why) == (state != "used")
    (away,) = maintenance.statuses(store, [unused], device_id=1, custom_ops="off")
    assert (away.state, "--custom-ops PATH" in away.why) == ("unused", True)

    def going(**options: Any) -> set[str]:
        gone = maintenance.prune(store, dry_run=True, **options)
        return {names.get(each.name, "text_encoder") for each in gone}

    # prune asks for the first card: all of the second are another GPU's.
    assert going(custom_ops="mine") == set()
    assert going(custom_ops="mine", foreign=True) == {*STATES, "text_encoder"}
    assert going(custom_ops="mine", older_than=1000) == set()
    assert len(store.names()) == len(STATES) + 1


@pytest.mark.parametrize("state", ["used", "stale", "foreign", "broken", "unused"])
def test_what_prune_takes_of_each_state(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = SimpleNamespace(made=time.time() - 100)
    status = maintenance.BundleStatus("x", state, "", None if state == "broken" else made)
    monkeypatch.setattr(maintenance, "age", lambda bundle: 100.0)
    always = state in ("broken", "stale")
    assert maintenance._goes(status, None, False) is always
    assert maintenance._goes(status, None, True) is (always or state == "foreign")
    assert maintenance._goes(status, 99.9, False) is True
    assert maintenance._goes(status, 100.0, False) is always


def test_a_machine_that_does_not_answer_makes_it_foreign(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise ProviderError("the driver does not tell")

    monkeypatch.setattr(keys, "resolve", lambda _: None)
    monkeypatch.setattr(keys, "this_machine", fail)
    name = keep(store, KEY)
    (status,) = maintenance.statuses(store)
    assert (status.name, status.state, status.why) == (name, "foreign", "the driver does not tell")
    (told,) = command.list_tuning().bundles
    assert (told.name, told.state, told.why) == (name, "foreign", "the driver does not tell")


@pytest.mark.usefixtures("here")
def test_only_a_thorough_look_reads_the_files(store: Store) -> None:
    name = keep(store, replace(KEY, compute_units=48))
    (store.folder / name / "programs/a").write_bytes(b"54321")
    assert [each.state for each in maintenance.statuses(store, custom_ops="mine")] == ["used"]
    assert [each.state for each in maintenance.statuses(store, custom_ops="mine", thorough=True)] == ["broken"]
    assert [each.name for each in maintenance.prune(store, custom_ops="mine", dry_run=True)] == [name]
    with pytest.raises(BundleError, match="programs/a was changed") as caught:
        command.verify_tuning()
    assert "sdort tuning prune removes them" in str(caught.value.hint)


@pytest.mark.usefixtures("here")
def test_a_report_has_all_that_the_record_has(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(store, KEY, 2.5)
    made = store.read(KEY.name).made
    monkeypatch.setattr("sdort.tuning.store.time.time", lambda: made + 77.4)
    (told,) = command.list_tuning(custom_ops="mine").bundles
    assert asdict(told) == {
        "name": KEY.name, "state": "foreign", "why": "compute_units is 96 there and 48 here", "key": KEY.to_json(),
        "bytes": 7, "files": 2, "made": made, "age_s": 77, "first_run_s": 2.5,
    }  # fmt: skip


@pytest.mark.usefixtures("here")
def test_an_import_is_for_the_card_and_the_library_that_are_named(store: Store, tmp_path: Path) -> None:
    sender = Store(tmp_path / "sender")
    keep(sender, KEY)
    export_bundles(sender, (), tmp_path / "a.tar")
    assert import_bundles(store, tmp_path / "a.tar", device_id=1, custom_ops="mine").elsewhere == []
    with pytest.raises(ProviderError, match="compute_units is 96 there and 48 here") as caught:
        import_bundles(store, tmp_path / "a.tar", custom_ops="mine")
    assert str(caught.value.hint).startswith("Nothing was imported. --any-machine stores it")
    with pytest.raises(ProviderError, match="custom_ops is 'ab' there and 'other' here") as caught:
        import_bundles(store, tmp_path / "a.tar", device_id=1)
    assert "If runs here take such a library from elsewhere, name it with --custom-ops PATH." in str(caught.value.hint)
    done = import_bundles(store, tmp_path / "a.tar", any_machine=True, custom_ops="mine")
    assert done.elsewhere == [KEY.name]
    done = import_bundles(store, tmp_path / "a.tar", any_machine=True, device_id=1, custom_ops="mine")
    assert ([each.name for each in done.bundles], done.elsewhere) == ([KEY.name], [])


# --- the machine ---


def test_a_machine_is_asked_for_the_gpu_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "_device", lambda provider, device_id: (provider, device_id, "kit"))
    monkeypatch.setattr(machines, "flavour", lambda: Flavour("onnxruntime-gpu", "1.31"))
    this_machine.cache_clear()
    found = [this_machine("cuda", number) for number in (0, 3)]
    this_machine.cache_clear()
    assert found[1] == Machine("cuda", 3, "kit", CUDA.ep, "1.31", "onnxruntime-gpu 1.31")
    assert found[0].compute_units == 0


@pytest.mark.parametrize("call", ["cuInit", "cuDeviceGet", "cuDeviceGetAttribute", "cuDriverGetVersion"])
def test_each_call_of_a_driver_may_fail(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("cuInit", "cuDeviceGet", "cuDeviceGetAttribute", "cuDriverGetVersion")
    driver = SimpleNamespace(**{name: lambda *_, code=999 if name == call else 0: code for name in names})
    monkeypatch.setattr(machines, "_load", lambda *_: driver)
    message = f"the driver does not tell which GPU cuda runs on: {call} failed with 999"
    with pytest.raises(ProviderError, match=message):
        machines._device("cuda", 0)


def test_a_newer_library_of_hip_is_tried_first_and_an_older_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def load(name: str) -> str:
        tried.append(name)
        if name not in there:
            raise OSError(f"no {name}")
        return name

    monkeypatch.setattr("ctypes.CDLL", load)
    there = {"b", "c"}
    loaded: Any = machines._load("a", "b", "c")
    assert (loaded, tried) == ("b", ["a", "b"])
    there = set()
    with pytest.raises(OSError, match="no c"):
        machines._load("a", "b", "c")
    with pytest.raises(ProviderError, match=r"which GPU rocm runs on: no libamdhip64\.so\.6"):
        machines._device("rocm", 0)


def test_hip_says_versions_and_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields of hipDeviceProp_tR0600 by their places in hip_runtime_api.h."""
    asked: list[int] = []

    def properties(buffer: Any, device: int) -> int:
        asked.append(device)
        buffer[388:392] = (304).to_bytes(4, "little")
        name = b"gfx942:sramecc+:xnack-\0rest"
        buffer[1160 : 1160 + len(name)] = name
        return 0

    def version(place: Any) -> int:
        place._obj.value = 60_432_831
        return 0

    hip = SimpleNamespace(hipGetDevicePropertiesR0600=properties, hipRuntimeGetVersion=version)
    monkeypatch.setattr(machines, "_load", lambda *_: hip)
    assert machines._device("rocm", 5) == ("gfx942:sramecc+:xnack-", 304, "HIP 6.4.32831")
    assert asked == [5]
    hip.hipRuntimeGetVersion = lambda _: 3
    with pytest.raises(ProviderError, match="hipRuntimeGetVersion failed with 3"):
        machines._device("migraphx", 0)


# --- records ---


@pytest.mark.parametrize(
    "name",
    ["tunable.json", "ops.tsv", "miopen/db/a.kdb", "miopen/a", "programs/a.mxr", "programs/1/2/3/4/5/6/7"],
)
def test_places_of_a_bundle(name: str) -> None:
    assert check_name(name) == name


PASSING = (".lock", ".tmp", "-journal", "-wal", "-shm")
"""Ends of names of what only matters while somebody writes."""
NO_PLACES = [
    "", ".", "..", "miopen", "programs", "miopen/", "programs/1/2/3/4/5/6/7/8", "tunable.json/a", "ops.tsv/a",
    "key.json", "other/a", "a", "/miopen/a", "miopen//a", "miopen/./a", "miopen/../a", "programs/a\\b", "programs/a\0b",
    "programs/..", *(f"miopen/a{end}" for end in PASSING),
]  # fmt: skip


@pytest.mark.parametrize("name", NO_PLACES, ids=repr)
def test_what_is_no_place_of_a_bundle(name: str) -> None:
    with pytest.raises(ValueError, match="is no place in a bundle"):
        check_name(name)


def sealed(tmp_path: Path) -> Path:
    folder = tmp_path / KEY.name
    (folder / "programs").mkdir(parents=True)
    (folder / "programs/a").write_bytes(b"x")
    seal(folder, KEY, 1.5)
    return folder


def rewritten(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Its record, changed and with a hash that fits."""
    record = json.loads((folder / "key.json").read_text())
    del record["sha256"]
    change(record)
    (folder / "key.json").write_text(json.dumps(record | {"sha256": bundles._digest(record)}))


SOUND: dict[str, Callable[[dict[str, Any]], object]] = {
    "whole seconds": lambda record: record.update(first_run_s=2),
    "no time": lambda record: record.update(first_run_s=None),
    "the first day": lambda record: record.update(made=0),
    "the last second": lambda record: record.update(made=(1 << 40) - 1),
}
UNSOUND: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a date that is none": (lambda record: record.update(made=1.5), "lacks the files or the date"),
    "a true date": (lambda record: record.update(made=True), "lacks the files or the date"),
    "before 1970": (lambda record: record.update(made=-1), "lacks the files or the date"),
    "after all time": (lambda record: record.update(made=1 << 40), "lacks the files or the date"),
    "a list of files": (lambda record: record.update(files=[]), "lacks the files or the date"),
    "no key": (lambda record: record.pop("key"), "the key is no object"),
    "a time in words": (lambda record: record.update(first_run_s="2"), "'2' is no time"),
    "a true time": (lambda record: record.update(first_run_s=True), "True is no time"),
    "a negative size": (lambda record: record["files"]["programs/a"].update(bytes=-1), "describes no file"),
    "a true size": (lambda record: record["files"]["programs/a"].update(bytes=True), "describes no file"),
    "a short hash": (lambda record: record["files"]["programs/a"].update(sha256="0" * 63), "describes no file"),
    "a hash in capitals": (lambda record: record["files"]["programs/a"].update(sha256="A" * 64), "describes no file"),
    "more of a file": (lambda record: record["files"]["programs/a"].update(mode=1), "describes no file"),
    "no file": (lambda record: record["files"].update({"programs/a": None}), "describes no file"),
    "another place": (lambda record: record["files"].update({"a": record["files"]["programs/a"]}), "no place"),
}


@pytest.mark.parametrize("kind", SOUND)
def test_a_record_that_is_sound(kind: str, tmp_path: Path) -> None:
    folder = sealed(tmp_path)
    rewritten(folder, SOUND[kind])
    check_files(read_bundle(folder))


@pytest.mark.parametrize("kind", UNSOUND)
def test_a_record_that_is_not_sound_though_its_hash_is(kind: str, tmp_path: Path) -> None:
    folder = sealed(tmp_path)
    change, message = UNSOUND[kind]
    rewritten(folder, change)
    with pytest.raises(BundleError, match=message):
        read_bundle(folder)
