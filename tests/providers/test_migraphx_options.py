"""Provider options on the real MIGraphX provider, on stubs of HIP and MIGraphX that do nothing."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
from support import rocm_stub, wheels

from sdort.errors import ProviderError, UsageError
from sdort.machine.elf import needed
from sdort.onnx_io.precision_mark import BF16, PRECISION_KEY
from sdort.providers.bf16 import check_bf16, with_bf16
from sdort.providers.migraphx import PROVIDER as MIGRAPHX
from sdort.providers.runtime_options import RuntimeOptions
from sdort.providers.session_settings import provider_options

WHEEL = "onnxruntime-migraphx==1.27.1"
LIBRARIES = {"libamdhip64.so.7": r"(__)?hip", "libmigraphx_c.so.3": "migraphx"}

# Not on MIGraphX's list, so that nothing is compiled.
MODEL = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[n] y) { y = Unique (x) }'
SCRIPT = """
import json, sys
import onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
chain = [("MIGraphXExecutionProvider", json.loads(sys.argv[2]))]
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=chain)
print(json.dumps(session.get_provider_options()))
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The environment, and a folder with the stubs and a model."""
    folder = tmp_path_factory.mktemp("migraphx")
    with wheels.environment(WHEEL, "numpy", "--no-deps") as environment, pytest.MonkeyPatch.context() as patch:
        patch.setattr(rocm_stub, "LIBRARIES", LIBRARIES)
        rocm_stub._build(library_in(environment), folder / "stub")
    onnx.save(onnx.parser.parse_model(MODEL), folder / "model.onnx")
    return environment, folder


def library_in(environment: Path) -> Path:
    return next(environment.rglob(str(MIGRAPHX.library)))


def told(machine: tuple[Path, Path], options: dict[str, str]) -> dict[str, dict[str, str]]:
    """What the providers of a session say that was given ``options``."""
    environment, folder = machine
    arguments = (str(folder / "model.onnx"), json.dumps(options))
    done: subprocess.CompletedProcess[str] = wheels.run_script(
        environment, SCRIPT, *arguments, LD_LIBRARY_PATH=str(folder / "stub")
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_what_we_know_of_the_options_is_what_the_provider_says(machine: tuple[Path, Path]) -> None:
    _, known = MIGRAPHX.known_options("1.27.1")
    # A path comes back in quotation marks.
    found = {name: value.strip('"') for name, value in told(machine, {})[MIGRAPHX.ep].items()}
    assert found == {name: option.default for name, option in known.items()}


def test_options_that_we_set_arrive(machine: tuple[Path, Path]) -> None:
    flags = ("fp16", "fp8")  # bf16 and fp16 together are neither, int8 reads a table
    given = {"migraphx_model_cache_dir": "/var/tmp", **{f"migraphx_{name}_enable": "1" for name in flags}}
    asked = provider_options(MIGRAPHX, RuntimeOptions("migraphx", tuning=True, provider_options=given))
    assert {"migraphx_exhaustive_tune", *given} <= set(asked)
    found = {name: value.strip('"') for name, value in told(machine, asked)[MIGRAPHX.ep].items()}
    assert asked.items() <= found.items()


def test_a_model_made_for_bf16_gets_it(machine: tuple[Path, Path], tmp_path: Path) -> None:
    model = onnx.parser.parse_model(MODEL)
    model.metadata_props.add(key=PRECISION_KEY, value=BF16)
    onnx.save(model, tmp_path / "model.onnx")
    asked = with_bf16(tmp_path / "model.onnx", "unet", MIGRAPHX, RuntimeOptions("migraphx"))
    given = told(machine, provider_options(MIGRAPHX, asked))
    assert given[MIGRAPHX.ep]["migraphx_bf16_enable"] == "1"
    check_bf16(SimpleNamespace(get_provider_options=lambda: given), "unet", MIGRAPHX, asked)
    # Together with fp16 it is neither, as with_bf16 has it.
    both = {**asked.provider_options, "migraphx_fp16_enable": "1"}
    left = told(machine, both)
    with pytest.raises(ProviderError, match="this is not bf16"):
        check_bf16(SimpleNamespace(get_provider_options=lambda: left), "unet", MIGRAPHX, asked)


@pytest.mark.parametrize(
    ("name", "value"), [("migraphx_mem_limit", "1000"), ("migraphx_arena_extend_strategy", "kSameAsRequested")]
)
def test_options_that_it_ignores_are_refused(name: str, value: str, machine: tuple[Path, Path]) -> None:
    assert told(machine, {name: value})[MIGRAPHX.ep][name] != value
    with pytest.raises(UsageError, match=f"{name} cannot be set") as caught:
        provider_options(MIGRAPHX, RuntimeOptions(provider_options={name: value}))
    assert "as if it had not" in str(caught.value)


def test_it_takes_no_others(machine: tuple[Path, Path]) -> None:
    assert MIGRAPHX.ep not in told(machine, {"tunable_op_enable": "1"})


def test_what_it_needs_is_what_we_say(machine: tuple[Path, Path]) -> None:
    environment, _ = machine
    vendors = {name for name in needed(library_in(environment)) if re.match("lib(amd|hip|migraphx|MIO|roc)", name)}
    assert vendors == set(MIGRAPHX.libraries)


def test_the_variables_that_take_the_place_of_options_are_what_the_library_reads(machine: tuple[Path, Path]) -> None:
    environment, _ = machine
    read = {name.decode() for name in re.findall(rb"ORT_MIGRAPHX_[A-Z0-9_]+", library_in(environment).read_bytes())}
    assert read >= {"ORT_MIGRAPHX_BF16_ENABLE", "ORT_MIGRAPHX_MODEL_CACHE_PATH"}
    assert read <= set(MIGRAPHX.superseding)
