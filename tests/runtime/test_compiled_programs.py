"""Programs that a provider compiles: refused where nobody asked, compiled in a process that can be killed, and kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import TimeoutExpired

import numpy as np
import onnx
import pytest
from support.compiling import STAND_IN, compiling, keep_seconds

from sdort.errors import ProviderError
from sdort.onnx_io.model_hash import hash_model
from sdort.providers.migraphx import PROVIDER as MIGRAPHX
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import compiled_programs
from sdort.runtime.compiled_programs import NotCompiledError, Programs, compile_apart
from sdort.runtime.session import open_session
from sdort.tuning.key import make_key
from sdort.tuning.store import Store
from sdort.tuning.working_folder import working_folder

OPEN = '<ir_version: 8, opset_import: ["": 17]> g (float[n, 3] x) => (float[n, 3] y) { y = Relu (x) }'
STATIC = OPEN.replace("n,", "2,")
ASKED = RuntimeOptions("migraphx")
COMPILING = replace(ASKED, compile=True)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def compiled() -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    with compiling() as found:
        yield found


def model(folder: Path, text: str = OPEN) -> Path:
    onnx.save(onnx.parser.parse_model(text), folder / "model.onnx")
    return folder / "model.onnx"


def run(path: Path, options: RuntimeOptions, rows: int = 2) -> None:
    values = np.full((rows, 3), -1, np.float32)
    assert not open_session(path, "vae_decoder", STAND_IN, options).run({"x": values})["y"].any()


def test_what_is_not_compiled_is_refused_with_the_way_on(tmp_path: Path, compiled: list[object]) -> None:
    with pytest.raises(NotCompiledError, match="migraphx has no program yet for vae_decoder with x 2x3") as caught:
        run(model(tmp_path), ASKED)
    assert "cannot say how long" in caught.value.message
    assert "--compile" in str(caught.value.hint)
    assert caught.value.exit_code == 6
    assert not compiled
    assert not Store().names()


def test_what_was_compiled_runs_everywhere_and_is_not_compiled_again(tmp_path: Path, compiled: list[object]) -> None:
    path = model(tmp_path)
    run(path, COMPILING)
    run(path, COMPILING)
    run(path, ASKED)
    assert compiled == [("vae_decoder", (2, 3))]
    run(path, COMPILING, rows=4)
    assert compiled[1:] == [("vae_decoder", (4, 3))]
    assert len(Store().names()) == 2


def test_one_session_asks_once_for_each_shape(tmp_path: Path, compiled: list[object]) -> None:
    session = open_session(model(tmp_path), "vae_decoder", STAND_IN, COMPILING)
    for rows in (2, 4, 2, 4):
        session.run({"x": np.ones((rows, 3), np.float32)})
    session.bind({"x": np.ones((5, 3), np.float32)}).run()
    assert compiled == [("vae_decoder", (rows, 3)) for rows in (2, 4, 5)]


def test_a_static_model_is_refused_before_it_opens(tmp_path: Path, compiled: list[object]) -> None:
    path = model(tmp_path, STATIC)
    with pytest.raises(NotCompiledError, match="x 2x3"):
        open_session(path, "vae_decoder", STAND_IN, ASKED)
    open_session(path, "vae_decoder", STAND_IN, COMPILING)
    assert compiled == [("vae_decoder", (2, 3))]
    open_session(path, "vae_decoder", STAND_IN, ASKED)


def test_the_time_of_the_last_compilation_is_told(tmp_path: Path, compiled: list[object]) -> None:
    path = model(tmp_path)
    run(path, COMPILING)
    keep_seconds(1805.2)
    with pytest.raises(NotCompiledError, match=r"x 4x3 \(it took 0:30:05 last time, for x 2x3\)"):
        run(path, ASKED, rows=4)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(NotCompiledError, match="0:30:05 last time"):  # of another model, for want of a better one
        run(model(other, OPEN.replace("Relu", "Selu")), ASKED)


def test_a_damaged_bundle_counts_as_none(tmp_path: Path, compiled: list[object]) -> None:
    path = model(tmp_path)
    run(path, COMPILING)
    [name] = Store().names()
    (Store().folder / name / "key.json").write_text("{}")
    with pytest.raises(NotCompiledError):
        run(path, ASKED)


def test_programs_of_another_precision_are_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model(tmp_path)
    monkeypatch.setattr("sdort.tuning.key.this_machine", lambda *_: replace_machine())
    plain = make_key(path, "unet", MIGRAPHX, ASKED, {})
    bf16 = make_key(path, "unet", MIGRAPHX, replace(ASKED, provider_options={"migraphx_bf16_enable": "1"}), {})
    assert plain.model == bf16.model == hash_model(path)
    assert plain.programs != bf16.programs
    monkeypatch.setenv("ORT_MIGRAPHX_BF16_ENABLE", "1")  # takes the option's place
    assert make_key(path, "unet", MIGRAPHX, ASKED, {}).programs == bf16.programs


def replace_machine() -> object:
    from support.compiling import MACHINE

    return MACHINE


def test_weights_that_are_inputs_are_compiled_only_if_asked_and_not_kept(
    tmp_path: Path, compiled: list[object]
) -> None:
    programs = Programs(model(tmp_path), "vae_decoder", STAND_IN, ASKED, kept=False)
    with pytest.raises(NotCompiledError):
        programs.require({"x": (2, 3)})
    replace_options = Programs(programs.path, "vae_decoder", STAND_IN, COMPILING, kept=False)
    replace_options.require({"x": (2, 3)})
    assert not compiled
    assert not Store().names()


def test_errors_of_the_process_that_compiles_are_raised_here(tmp_path: Path, compiled: list[object]) -> None:
    session = open_session(model(tmp_path), "vae_decoder", STAND_IN, COMPILING)
    (tmp_path / "model.onnx").write_bytes(b"broken")
    with pytest.raises(Exception, match="vae_decoder") as caught:
        session.run({"x": np.ones((2, 3), np.float32)})
    assert type(caught.value).__name__ == "BadModelError"


def test_a_process_of_its_own_compiles_and_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with compiling() as here:
        from sdort.machine.subprocesses import run_worker

        monkeypatch.setattr(compiled_programs, "WORKER", "support.compiling:compile_program")
        with monkeypatch.context() as patch:
            patch.setattr(compiled_programs, "run_worker", run_worker)
            run(model(tmp_path), COMPILING)
        assert not here
        run(tmp_path / "model.onnx", ASKED)
    [name] = Store().names()
    assert Store().read(name).first_run_s


def test_a_budget_ends_a_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_programs, "WORKER", "support.compiling:never_ends")
    monkeypatch.setattr("sdort.tuning.key.this_machine", lambda *_: replace_machine())
    programs = Programs(model(tmp_path), "unet", STAND_IN, COMPILING)
    key = make_key(programs.path, "unet", STAND_IN, COMPILING, {"x": (2, 3)})
    with pytest.raises(TimeoutExpired):
        compile_apart(programs, key, "unet", timeout=0.5)
    assert not Store().names()


SCRIPT = """
import signal, sys
from pathlib import Path
from support.compiling import MACHINE, STAND_IN
import sdort.tuning.key
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import compiled_programs
sdort.tuning.key.this_machine = lambda *_: MACHINE
compiled_programs.WORKER = "support.compiling:never_ends"
options = RuntimeOptions("migraphx", compile=True)
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests may ignore it
try:
    compiled_programs.Programs(Path(sys.argv[1]), "unet", STAND_IN, options).require({"x": (2, 3)})
except KeyboardInterrupt:
    sys.exit(42)
"""


def test_ctrl_c_ends_a_compilation_at_once(tmp_path: Path) -> None:
    path = model(tmp_path)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(path)], env=environ)
    try:
        pid = path.with_name("compiling.pid")
        deadline = time.monotonic() + 60
        while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        compiler = int(pid.read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 42
    finally:
        process.kill()
        process.wait()
    with pytest.raises(ProcessLookupError):
        os.kill(compiler, 0)


def test_a_provider_that_compiles_nothing_is_never_asked(tmp_path: Path) -> None:
    from sdort.providers import CPU

    session = open_session(model(tmp_path), "vae_decoder", CPU, RuntimeOptions("cpu"))
    session.run({"x": np.ones((2, 3), np.float32)})
    assert session.programs is None
    assert not Store().names()


def test_a_worker_that_dies_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_programs, "WORKER", "support.compiling:no_such_function")
    with compiling():
        from sdort.machine.subprocesses import run_worker

        monkeypatch.setattr(compiled_programs, "run_worker", run_worker)
        with pytest.raises(ProviderError, match="the process that compiles ended with code 1") as caught:
            run(model(tmp_path), COMPILING)
    assert "no_such_function" in caught.value.message
    working_folder.cache_clear()
