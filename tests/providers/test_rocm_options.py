"""Provider options, and sdort doctor, on the real ROCm provider, on a stub of HIP (rocm_stub)."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import rocm_packages, rocm_stub
from support.rocm_packages import MODEL, WITHOUT_SDORT

from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.providers.session_settings import provider_options

SCRIPT = (
    MODEL
    + """
sys.path.insert(0, sys.argv[1])
from sdort.errors import SdortError
from sdort.runtime.opener import create_session
from sdort.runtime.probe import choose_provider
from sdort.providers.runtime_options import RuntimeOptions

import onnxruntime
made = []
real = onnxruntime.InferenceSession
onnxruntime.InferenceSession = lambda *a, **k: made.append(1) or real(*a, **k)
try:
    options = RuntimeOptions(**json.loads(sys.argv[2]))
    provider, reason = choose_provider(options)
    session = create_session(model, provider, options)
    print(json.dumps({"provider": provider.name, "reason": reason, "options": session.get_provider_options()}))
except SdortError as error:
    print(json.dumps({"error": type(error).__name__, "message": str(error), "sessions": len(made)}))
"""
)


packages = rocm_packages.packages
"""The folder with sdort for that environment, a fixture."""


def ask(packages: Path, **options: Any) -> dict[str, Any]:
    done: subprocess.CompletedProcess[str] = rocm_stub.runtime().run(SCRIPT, str(packages), json.dumps(options))
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def told(**options: str) -> dict[str, dict[str, str]]:
    """What the providers of a session say, when it is given ``options`` without sdort."""
    done = rocm_stub.runtime().run(WITHOUT_SDORT, json.dumps(options))
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_what_we_know_of_the_options_is_what_the_provider_says() -> None:
    _, known = ROCM.known_options("1.22.2")
    assert told()[ROCM.ep] == {name: option.default for name, option in known.items()}


def test_options_that_we_set_arrive(packages: Path) -> None:
    asked: dict[str, Any] = {"provider": "rocm", "tuning": True, "tuning_ms": 70, "graph": True}
    asked["provider_options"] = {"gpu_mem_limit": "1000000000", "arena_extend_strategy": "kSameAsRequested"}
    answer = ask(packages, **asked)
    assert (answer["provider"], answer["reason"]) == ("rocm", None)
    wanted = provider_options(ROCM, RuntimeOptions(**asked))
    assert {"enable_hip_graph", "gpu_mem_limit", "tunable_op_max_tuning_duration_ms"} <= set(wanted)
    assert wanted.items() <= answer["options"][ROCM.ep].items()


OTHERS = {"kNextPowerOfTwo": "kSameAsRequested", "0": "1", "1": "0"}
"""Values that are no defaults."""


def test_no_option_is_taken_and_ignored() -> None:
    _, known = ROCM.known_options("1.22.2")
    given = {name: OTHERS.get(each.default, "1000000000") for name, each in known.items() if not each.instead}
    assert len(given) >= 8
    assert given.items() <= told(**given)[ROCM.ep].items()


REFUSED = [{"cudnn_conv_algo_search": "DEFAULT"}, {"tunable_op_enable": "yes"}, {"arena_extend_strategy": "best"}]


@pytest.mark.parametrize("option", REFUSED, ids=lambda option: next(iter(option)))
def test_options_that_it_does_not_take_never_reach_it(packages: Path, option: dict[str, str]) -> None:
    answer = ask(packages, provider="rocm", provider_options=option)
    assert answer["error"] == "UsageError"
    assert next(iter(option)) in answer["message"]
    assert answer["sessions"] == 0
    # The provider would not have taken it: ONNX Runtime goes on without it.
    assert ROCM.ep not in told(**option)


@pytest.mark.parametrize("value", ["0", "1", "true", "false", "True", "False"])
def test_flags_have_the_spellings_that_it_takes(value: str) -> None:
    _, known = ROCM.known_options("1.22.2")
    assert re.fullmatch(known["tunable_op_enable"].values, value)
    assert told(tunable_op_enable=value)[ROCM.ep]["tunable_op_enable"] == str(int(value in ("1", "true", "True")))


DOCTOR = """
import os, shutil, sys
sys.path.insert(0, sys.argv[1])
without = sys.argv[2]
if without:
    there = os.environ["LD_LIBRARY_PATH"]
    os.environ["LD_LIBRARY_PATH"] = sys.argv[3]
    shutil.copytree(there, sys.argv[3], ignore=lambda folder, names: {without} & set(names))
sys.argv[1:] = ["doctor", "--provider", "rocm", "--json"]
from sdort.cli import main
main()
"""


@pytest.mark.parametrize("without", ["", "libroctracer64.so.4"])
def test_doctor_loads_the_provider(without: str, packages: Path, tmp_path: Path) -> None:
    done = rocm_stub.runtime().run(DOCTOR, str(packages), without, str(tmp_path / "libraries"))
    assert done.returncode == (6 if without else 0), done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["works"] is found["providers"]["rocm"]["loads"] is not bool(without)
    about = {each["check"]: each for each in found["findings"]}
    assert about["ONNX Runtime"]["message"] == f"onnxruntime-rocm {rocm_stub.WHEEL.partition('==')[2]}"
    # The machine has no AMD GPU, which the stub does not hide from doctor.
    assert about["device"]["status"] == "problem"
    assert ("libraries" in about) == bool(without)
    if without:
        assert f"{without} (roctracer)" in found["providers"]["rocm"]["reason"]
        assert about["libraries"]["message"] == f"a shared library is not found: {without} (roctracer)"
