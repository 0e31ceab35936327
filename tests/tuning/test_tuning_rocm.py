"""Tuning that lasts in onnxruntime-rocm's real execution provider, on a stub of HIP (rocm_stub).

TunableOp tunes there as on a GPU: it times its candidates, chooses, and hands out results with the validators of this
ONNX Runtime, HIP, rocBLAS and device.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import rocm_packages, rocm_stub

from sdort.errors import ProviderError
from sdort.operator_library.library import library_hash
from sdort.tuning.bundle import RECORD, TUNABLE, Bundle, seal
from sdort.tuning.store import Store

SCRIPT = """
import json, os, sys, tempfile
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import numpy as np
from onnx import TensorProto, helper, numpy_helper
from sdort.console import set_verbosity
from sdort.errors import SdortError
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.opener import create_session
from sdort.runtime import tuning_results
from sdort.tuning import session_hooks
from sdort.tuning.working_folder import MIOPEN_FOLDERS
from sdort.runtime.session import Session

path, asked = Path(sys.argv[2]), json.loads(sys.argv[3])
if not path.exists():
    weights = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    info = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", 64])
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Softmax", ["y"], ["z"], axis=-1)]
    graph = helper.make_graph(nodes, "g", [info("x")], [info("z")], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
set_verbosity(1)
options = RuntimeOptions("rocm", asked["tuning"], tuning_ms=1, custom_ops=asked.get("custom_ops", "auto"))
tuned = session_hooks.prepare_tuning(path, "unet", ROCM, options)
ort = create_session(str(path), ROCM, tuned.options)
tuned.apply(ort)
told = {"given": ort.get_tuning_results(), "environment": {n: os.environ.get(n) for n in MIOPEN_FOLDERS}}
told["temporary"], told["python"] = os.environ.get("TMPDIR"), tempfile.gettempdir()
told["found"] = {
    name: {str(p.relative_to(place)): p.read_text() for p in Path(place).rglob("*") if p.is_file()}
    for name, place in told["environment"].items() if place
}
ort.run(None, {"x": np.ones((asked["batch"], 64), np.float32)})
for name, text in asked.get("miopen", {}).items():  # what MIOpen would do
    (Path(os.environ["MIOPEN_USER_DB_PATH"]) / name).write_text(text)
told["then"] = ort.get_tuning_results()
if asked["tuning"]:
    try:
        told["kept"] = tuning_results.keep(Session(ort, path, "unet", ROCM, options), {"x": (asked["batch"], 64)}).name
    except SdortError as error:
        told["refused"] = str(error)
print(json.dumps(told))
"""


packages = rocm_packages.packages
"""The folder with sdort for that environment, a fixture."""

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TMPDIR", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def session(cache: Path, packages: Path, tmp_path: Path) -> Ask:
    """One process with one session; what it was given, what it found, and ``log``, what was told to the user."""

    def call(*, tuning: bool = False, batch: int = 2, gfx: str = "gfx1100", **more: Any) -> dict[str, Any]:
        asked = json.dumps({"tuning": tuning, "batch": batch, **more})
        done = rocm_stub.runtime().run(SCRIPT, str(packages), str(tmp_path / "model.onnx"), asked, gfx=gfx)
        assert done.returncode == 0, done.stderr[-2000:]
        return {**json.loads(done.stdout), "log": done.stderr}

    return call


def only(cache: Path) -> Bundle:
    store = Store(cache / "sdort" / "tuning")
    (name,) = store.names()
    return store.read(name)


def entries(results: list[dict[str, Any]]) -> set[str]:
    """What was tuned: ``NN_2_64_64`` and the like."""
    (only_provider,) = results
    return {signature for kernels in only_provider["results"].values() for signature in kernels}


def test_what_tuning_finds_is_there_in_the_next_process(session: Ask, cache: Path) -> None:
    first = session(tuning=True)
    assert entries(first["given"]) == set()
    assert entries(first["then"]) == {"NN_2_64_64", "2_64"}
    bundle = only(cache)
    key = bundle.key
    assert first["kept"] == bundle.name
    assert json.loads((bundle.folder / TUNABLE).read_text()) == first["then"]
    assert (key.architecture, key.compute_units, key.toolkit) == ("gfx1100", 48, "HIP 7.0.0")
    assert (key.onnxruntime, key.ep_version) == ("onnxruntime-rocm 1.22.2.post3", "1.22.2.post3")
    assert (key.shapes, key.options) == ((("x", (2, 64)),), (("tunable_op_enable", "1"),))
    before = {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()}
    second = session()
    assert second["given"] == first["then"]
    assert f"unet: tuned before, {bundle.name}" in second["log"]
    assert {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()} == before


def test_bundles_of_several_shapes_come_together(session: Ask, cache: Path) -> None:
    session(tuning=True)
    second = session(tuning=True, batch=3)
    assert entries(second["given"]) == {"NN_2_64_64", "2_64"}
    assert len(Store(cache / "sdort" / "tuning").names()) == 2
    assert entries(session()["given"]) == {"NN_2_64_64", "2_64", "NN_3_64_64", "3_64"}


def test_another_gpu_or_model_finds_nothing(session: Ask, tmp_path: Path) -> None:
    session(tuning=True)
    assert entries(session(gfx="gfx942")["given"]) == set()
    assert entries(session()["given"]) != set()
    model = (tmp_path / "model.onnx").read_bytes()
    (tmp_path / "model.onnx").write_bytes(model.replace(b"\0\0\x80\x3f" * 4, b"\0\0\0\x40" * 4, 1))
    assert entries(session()["given"]) == set()


@pytest.mark.parametrize(
    ("validator", "here"),
    [("ORT_VERSION", "1.22.2"), ("HIP_VERSION", "70000000"), ("ROCBLAS_VERSION", "5"), ("DEVICE_MODEL", "A stub")],
)
def test_results_with_a_foreign_validator_are_refused(validator: str, here: str, session: Ask, cache: Path) -> None:
    session(tuning=True)
    bundle = only(cache)
    results = json.loads((bundle.folder / TUNABLE).read_text())
    assert results[0]["validators"][validator] == here
    results[0]["validators"][validator] = "foreign"
    (bundle.folder / TUNABLE).write_text(json.dumps(results))
    (bundle.folder / RECORD).unlink()
    seal(bundle.folder, bundle.key)
    found = session()
    assert f"{bundle.name} is not used: {validator} is 'foreign' there and {here!r} here" in found["log"]
    assert entries(found["given"]) == set()


@pytest.mark.parametrize("results", ["{}", "[1]", '[{"ep": "ROCMExecutionProvider"}]', "[", "[" * 9999])
def test_results_that_are_none_are_refused(results: str, session: Ask, cache: Path) -> None:
    session(tuning=True)
    bundle = only(cache)
    (bundle.folder / TUNABLE).write_text(results)
    (bundle.folder / RECORD).unlink()
    seal(bundle.folder, bundle.key)
    found = session()
    assert "is not used" in found["log"]
    assert entries(found["then"]) == set()


def test_onnx_runtimes_own_refusal_is_a_sentence(session: Ask, cache: Path, packages: Path, tmp_path: Path) -> None:
    session(tuning=True)
    script = (
        SCRIPT.split("tuned.apply")[0]
        + """
from sdort.errors import ProviderError
here = ort.get_tuning_results()
class Blind:
    get_tuning_results = staticmethod(lambda: [{**here[0], "validators": theirs}])
    set_tuning_results = ort.set_tuning_results
theirs = {**here[0]["validators"], "HIP_VERSION": "60000000"}
try:
    session_hooks.set_results(Blind, [{**here[0], "validators": theirs}])
except ProviderError as error:
    print(error)
"""
    )
    asked = json.dumps({"tuning": False, "batch": 2})
    done = rocm_stub.runtime().run(script, str(packages), str(tmp_path / "model.onnx"), asked)
    assert "ONNX Runtime refuses the tuning results" in done.stdout
    assert "HIP runtime version mismatch" in done.stdout


def test_a_damaged_bundle_costs_a_warning(session: Ask, cache: Path) -> None:
    session(tuning=True)
    with open(only(cache).folder / TUNABLE, "ab") as file:
        file.write(b" ")
    found = session()
    assert "is damaged: tunable.json was changed or cut off; it is not used" in found["log"]
    assert entries(found["given"]) == set()
    assert entries(session(tuning=True)["then"]) != set()
    assert entries(session()["given"]) != set()  # it was replaced


def test_what_miopen_writes_travels_with_the_bundle(session: Ask, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)  # found anew, by the variables of this test
    first = session(tuning=True, miopen={"gfx1100_48.ufdb.txt": "a=1\n"})
    place = Path(first["environment"]["MIOPEN_USER_DB_PATH"])
    assert place.is_relative_to(cache)
    assert Path(first["temporary"]) == place.parents[1] / "tmp"  # goes with it, after a kill too
    assert first["python"] == tempfile.gettempdir()
    assert not place.exists()  # it was the process's own
    assert (only(cache).folder / "miopen" / "db" / "gfx1100_48.ufdb.txt").read_text() == "a=1\n"
    second = session(tuning=True, batch=3, miopen={"gfx1100_48.ufdb.txt": "a=1\nb=2\n"})
    assert second["found"]["MIOPEN_USER_DB_PATH"] == {"gfx1100_48.ufdb.txt": "a=1\n"}
    assert session()["found"]["MIOPEN_USER_DB_PATH"] == {"gfx1100_48.ufdb.txt": "a=1\nb=2\n"}


def test_the_users_own_miopen_folders_stay(session: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    monkeypatch.setenv("MIOPEN_USER_DB_PATH", str(tmp_path / "own"))
    found = session(tuning=True, miopen={"gfx1100_48.ufdb.txt": "a=1\n"})
    assert found["environment"]["MIOPEN_USER_DB_PATH"] == str(tmp_path / "own")
    assert f"what MIOpen finds stays in {tmp_path / 'own'}" in found["log"]
    assert (tmp_path / "own" / "gfx1100_48.ufdb.txt").read_text() == "a=1\n"


def test_without_tuning_and_bundles_nothing_is_touched(session: Ask, cache: Path) -> None:
    found = session()
    assert set(found["environment"].values()) == {None}
    assert not (cache / "sdort" / "tuning").exists()


def test_a_cache_that_cannot_be_written_does_not_stop_the_run(session: Ask, cache: Path) -> None:
    cache.write_text("a file where the folder would be")
    found = session(tuning=True)
    assert entries(found["then"]) == {"NN_2_64_64", "2_64"}
    assert "cannot keep tuning results in" in found["refused"]
    assert cache.read_text() == "a file where the folder would be"


# ---- an archive, and a library of custom operators that is given by its path ----

LIBRARY = r"""
const char *sdort_ops_describe(void) { return "{\"operators\": [], \"code_objects\": []}"; }
void *RegisterCustomOps(void *options, const void *api) { (void)options; (void)api; return 0; }
const char *version(void) { return "%s"; }
"""
"""As ONNX Runtime and sdort see one; what it computes plays no part."""

COMMAND = "import sys; sys.path.insert(0, sys.argv.pop(1)); from sdort.cli import main; main()"


@pytest.fixture
def libraries(tmp_path: Path) -> list[str]:
    """Two, of different hashes."""
    made = []
    for name in ("one", "other"):
        source = tmp_path / f"{name}.c"
        source.write_text(LIBRARY % name)
        made.append(str(tmp_path / f"lib{name}.so"))
        subprocess.run(["cc", "-shared", "-fPIC", "-o", made[-1], str(source)], check=True)
    return made


@pytest.fixture
def tuning(cache: Path, packages: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``sdort tuning`` where onnxruntime-rocm is."""

    def call(*arguments: str, gfx: str = "gfx1100") -> subprocess.CompletedProcess[str]:
        return rocm_stub.runtime().run(COMMAND, str(packages), "tuning", *arguments, gfx=gfx)

    return call


def test_an_archive_made_with_a_library_by_path_is_used_in_an_empty_cache(
    session: Ask, tuning: Callable[..., Any], libraries: list[str], cache: Path, tmp_path: Path
) -> None:
    one, other = libraries
    archive = str(tmp_path / "tuned.tar")
    first = session(tuning=True, custom_ops=one)
    assert only(cache).key.custom_ops == library_hash(Path(one))
    assert tuning("export", archive).returncode == 0
    cache.rename(tmp_path / "away")
    assert entries(session(custom_ops=one)["given"]) == set()

    for wrong in ((), ("--custom-ops", other), ("--custom-ops", "off")):
        refused = tuning("import", archive, *wrong)
        assert refused.returncode == ProviderError.exit_code
        assert "custom_ops is" in refused.stderr
        assert "--custom-ops PATH" in refused.stderr
    assert tuning("import", archive, "--custom-ops", one, gfx="gfx942").returncode == ProviderError.exit_code
    assert Store(cache / "sdort" / "tuning").names() == []

    accepted = tuning("import", archive, "--custom-ops", one, "--json")
    assert accepted.returncode == 0, accepted.stderr
    assert json.loads(accepted.stdout) == {
        "schema": "sdort-tuning-import-1",
        "bundles": [first["kept"]],
        "elsewhere": [],
    }
    later = session(custom_ops=one)
    assert later["given"] == later["then"] == first["then"]  # known before the first run, and nothing new by it
    assert entries(session(custom_ops=other)["given"]) == set()


def test_what_a_library_by_path_was_tuned_with_is_not_pruned_unseen(
    session: Ask, tuning: Callable[..., Any], libraries: list[str], cache: Path
) -> None:
    session(tuning=True, custom_ops=libraries[0])

    def state(*arguments: str) -> str:
        (found,) = json.loads(tuning("list", "--json", *arguments).stdout)["bundles"]
        return str(found["state"])

    assert state() == "unused"
    assert state("--custom-ops", libraries[0]) == "used"
    assert state("--custom-ops", libraries[1]) == "stale"
    for arguments, gone in (((), 0), (("--custom-ops", libraries[0]), 0), (("--custom-ops", libraries[1]), 1)):
        assert len(json.loads(tuning("prune", "--json", *arguments).stdout)["bundles"]) == gone
    assert Store(cache / "sdort" / "tuning").names() == []
