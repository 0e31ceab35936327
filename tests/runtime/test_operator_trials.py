"""A provider's kernels are tried before they are believed: right, wrong and fatal ones, and what is kept of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import pytest
from support.small_graphs import parse

from sdort.errors import ProviderError
from sdort.files.user_folders import trials_folder
from sdort.graph.domains import MICROSOFT, OWN_DOMAIN
from sdort.graph.signature import Array
from sdort.machine.subprocesses import WorkerError
from sdort.onnx_io.operator_examples import example_call, example_feeds, example_model
from sdort.operators import load_operators
from sdort.providers import CPU, PROVIDERS
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.providers.target import Target
from sdort.runtime import operator_trials
from sdort.runtime.opener import create_session
from sdort.runtime.operator_trials import (
    LIMIT,
    Trial,
    in_words,
    kept,
    refuse_wrong_operators,
    tried,
    try_operators,
    warn_of_wrong_operators,
)
from sdort.tuning.device import Machine
from sdort.verification.runners import RunConfiguration, open_component

GELU, ATTENTION = f"{MICROSOFT}.Gelu", f"{MICROSOFT}.MultiHeadAttention"
OPTIONS = RuntimeOptions(custom_ops="off")
FLOAT32 = np.dtype(np.float32)
MACHINE = Machine("sm_1", 2, "a driver", "MadeUpExecutionProvider", "1.0", "onnxruntime 1.0")
MADE_UP = Provider(
    Target(
        "made_up",
        "MadeUpExecutionProvider",
        opset=18,
        ir_version=10,
        channels_last=False,
        kernels={name: CPU.target.conditions[name] for name in (GELU, ATTENTION, f"{MICROSOFT}.QuickGelu")},
        doubted={ATTENTION: "it was wrong elsewhere"},
    ),
    rank=5,
)


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A provider on a machine of its own, about which nothing is known."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(PROVIDERS, MADE_UP.name, MADE_UP)
    monkeypatch.setattr(operator_trials, "this_machine", lambda name, device_id: MACHINE)
    monkeypatch.setattr(operator_trials, "_known", {})


class Changed:
    """A session of the CPU's whose outputs somebody changes."""

    def __init__(self, session: Any, change: Callable[[Array], Array]) -> None:
        self._session, self._change = session, change

    def run(self, names: None, feeds: Mapping[str, Array]) -> list[Array]:
        return [self._change(value) for value in self._session.run(names, feeds)]


def computing(monkeypatch: pytest.MonkeyPatch, changes: Mapping[str, Callable[[Array], Array]]) -> None:
    """Let the made up provider compute as the CPU does, and change the results of these operators; trials are made in
    this process."""

    def create(model: bytes, provider: Provider, options: RuntimeOptions) -> Any:
        session = create_session(model, CPU, options)
        name = onnx.ModelProto.FromString(model).graph.node[0].op_type
        return Changed(session, changes[name]) if provider is MADE_UP and name in changes else session

    monkeypatch.setattr(operator_trials, "create_session", create)
    monkeypatch.setattr(operator_trials, "run_worker", lambda function, task, *, timeout: try_operators(**task))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_cpu_s_own_kernels_are_right(dtype: str) -> None:
    names = [f"{MICROSOFT}.{name}" for name in ("Gelu", "MultiHeadAttention", "SkipLayerNormalization", "MatMulNBits")]
    for name, trial in try_operators("cpu", dtype, names, {"custom_ops": "off"}).items():
        assert trial["problem"] is None, name
        assert trial["error"] < (1e-4 if dtype == "float32" else 2e-2), name


def test_a_kernel_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    computing(monkeypatch, {"MultiHeadAttention": lambda y: y + np.float32(0.3), "QuickGelu": lambda y: y * np.nan})
    trials = tried(MADE_UP, OPTIONS, "float32")
    assert trials[GELU].wrong is None
    assert (trials[GELU].error or 0) < 1e-5
    assert (
        trials[ATTENTION].wrong
        == f"tried on this machine, its error is {trials[ATTENTION].error:.2g} standard deviations"
    )
    assert trials[f"{MICROSOFT}.QuickGelu"].wrong == "tried on this machine, its error is not a number"
    told = in_words(trials, "float32")
    assert told.startswith("1 of 3 operators are right in float32; MultiHeadAttention: tried on this machine")


def test_rounding_is_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_bf16(values: Array) -> Array:
        return (values.view(np.uint32) & 0xFFFF0000).view(np.float32)

    computing(monkeypatch, dict.fromkeys(("Gelu", "MultiHeadAttention", "QuickGelu"), as_bf16))
    assert [trial.wrong for trial in tried(MADE_UP, OPTIONS, "float32").values()] == [None, None, None]


def test_a_kernel_that_ends_the_process_is_alone_in_that(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def worker(function: str, task: Mapping[str, Any], *, timeout: float) -> Any:
        asked.append(task["operators"])
        if ATTENTION in task["operators"]:
            raise WorkerError(-11, "nothing")
        return {name: {"error": 0.0, "problem": None} for name in task["operators"]}

    monkeypatch.setattr(operator_trials, "run_worker", worker)
    trials = tried(MADE_UP, OPTIONS, "float32")
    assert {name for name, trial in trials.items() if trial.error == 0} == {GELU, f"{MICROSOFT}.QuickGelu"}
    assert trials[ATTENTION].problem == "the process ended with code -11, which said: nothing"
    assert trials[ATTENTION].wrong is None  # the model's own run says so too
    assert [len(names) for names in asked] == [3, 1, 1, 1]


def test_trials_that_do_not_end_are_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def worker(function: str, task: Mapping[str, Any], *, timeout: float) -> Any:
        raise TimeoutExpired("x", timeout)

    monkeypatch.setattr(operator_trials, "run_worker", worker)
    assert tried(MADE_UP, OPTIONS, "float32") == {}
    assert "were not tried within 300 s and run untried" in capsys.readouterr().err
    assert not trials_folder().exists()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of each time that operators are tried, their dtype."""
    asked: list[str] = []

    def worker(function: str, task: Mapping[str, Any], *, timeout: float) -> Any:
        asked.append(task["dtype"])
        return {name: {"error": 1.0 if name == ATTENTION else 0.0, "problem": None} for name in task["operators"]}

    monkeypatch.setattr(operator_trials, "run_worker", worker)
    return asked


def test_verdicts_are_kept_for_a_device_and_its_driver(counted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept(MADE_UP, OPTIONS, "float32") is None
    first = tried(MADE_UP, OPTIONS, "float32")
    assert tried(MADE_UP, OPTIONS, "float32") is first
    operator_trials._known.clear()  # as in another process
    assert kept(MADE_UP, OPTIONS, "float32") == tried(MADE_UP, OPTIONS, "float32") == first
    assert counted == ["float32"]
    tried(MADE_UP, OPTIONS, "float16")
    assert counted == ["float32", "float16"]
    monkeypatch.setattr(
        operator_trials, "this_machine", lambda name, device_id: replace(MACHINE, toolkit="a newer one")
    )
    assert kept(MADE_UP, OPTIONS, "float32") is None
    tried(MADE_UP, OPTIONS, "float32")
    assert counted == ["float32", "float16", "float32"]


@pytest.mark.parametrize("content", ["[]", '{"a": 1}', '{"a": {"error": "x", "problem": null}}', '{"a": {"error": 1}}'])
def test_what_a_stranger_wrote_is_made_anew(counted: list[str], content: str) -> None:
    tried(MADE_UP, OPTIONS, "float32")
    key = operator_trials._key(MADE_UP, OPTIONS, "float32")
    assert key is not None
    operator_trials._cache().store(MADE_UP.name, key, content.encode())
    operator_trials._known.clear()
    assert kept(MADE_UP, OPTIONS, "float32") is None
    assert tried(MADE_UP, OPTIONS, "float32")[ATTENTION].error == 1.0


def test_without_a_driver_nothing_is_tried(counted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str, device_id: int) -> Machine:
        raise ProviderError("the driver does not tell")

    monkeypatch.setattr(operator_trials, "this_machine", unknown)
    assert tried(MADE_UP, OPTIONS, "float32") == {}
    assert counted == []


@pytest.fixture
def attention(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    text = """g (float[1, 5, 12] x) => (float[1, 5, 12] y) {
        a = com.microsoft.Gelu (x)  y = com.microsoft.MultiHeadAttention <num_heads = 3> (a, x, x) }"""
    onnx.save(parse(text, opset=18), path)
    return path


def test_a_model_with_a_wrong_operator_is_refused(counted: list[str], attention: Path) -> None:
    with pytest.raises(ProviderError) as error:
        refuse_wrong_operators(attention, "unet", MADE_UP, OPTIONS)
    assert error.value.exit_code == 6
    assert error.value.message == (
        "made_up computes something else than it should: MultiHeadAttention (tried on this machine, its error is 1 "
        "standard deviations)"
    )
    assert "sdort optimize ORIGINAL OUT --provider made_up" in str(error.value.hint)
    refuse_wrong_operators(attention, "unet", MADE_UP, replace(OPTIONS, trials=False))
    refuse_wrong_operators(attention, "unet", CPU, OPTIONS)


def test_a_model_of_standard_operators_costs_no_trial(counted: list[str], tmp_path: Path) -> None:
    onnx.save(parse("g (float[2] x) => (float[2] y) { y = Neg (x) }", opset=18), tmp_path / "model.onnx")
    refuse_wrong_operators(tmp_path / "model.onnx", "unet", MADE_UP, OPTIONS)
    assert counted == []


def test_verify_says_so_and_goes_on(
    counted: list[str], attention: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[RuntimeOptions] = []

    def open_session(path: Path, component: str, provider: Provider, options: RuntimeOptions) -> None:
        opened.append(options)

    monkeypatch.setattr("sdort.verification.runners.open_session", open_session)
    open_component(attention, "unet", RunConfiguration(MADE_UP, OPTIONS))
    said = capsys.readouterr().err
    assert "unet: made_up computes something else than it should: MultiHeadAttention (tried on" in said
    assert [options.trials for options in opened] == [False]
    warn_of_wrong_operators(attention, "unet", MADE_UP, replace(OPTIONS, trials=False))
    assert capsys.readouterr().err == ""


def test_trials_are_of_forms_that_the_target_takes() -> None:
    for name in ("rocm", "cuda", "migraphx", "webgpu"):
        provider = PROVIDERS[name]
        every = {*provider.target.conditions, *provider.target.doubted}
        found = {*operator_trials._candidates(provider, OPTIONS, "float32")}
        untried = {each for each in every if each.startswith(MICROSOFT)} - found
        assert untried == set(), name
    assert {each for each in found if each.startswith("sdort.")} == set()  # without the library they are definitions


@pytest.mark.parametrize("operator", [each for each in load_operators().values() if each.trials], ids=lambda o: o.name)
def test_trials_have_the_sizes_of_blocks(operator: Any) -> None:
    for example in operator.trials:
        assert max(np.prod(shape) for shape in example.inputs.values()) >= 4096


def test_the_limit_is_above_rounding_and_below_mistakes() -> None:
    assert Trial(0.02).wrong is None
    assert Trial(0.2).wrong == "tried on this machine, its error is 0.2 standard deviations"
    assert 0.02 < LIMIT < 0.2
    assert Trial(problem="no memory").wrong is None


@pytest.mark.parametrize("operator", load_operators().values(), ids=lambda o: o.name)
def test_rounding_to_fp16_is_no_mistake_of_any_operator(operator: Any) -> None:
    """Of no example: one has a single value, whose standard deviation is 0."""
    for example in operator.trials or operator.examples:
        call, feeds = example_call(operator, example, FLOAT32), example_feeds(operator, example, FLOAT32)
        for expected in operator_trials._run(operator, example, call, feeds, CPU, RuntimeOptions(custom_ops="off")):
            if expected.dtype == FLOAT32:
                assert operator_trials._error(expected.astype(np.float16), expected) < LIMIT / 2


def test_values_that_hardly_differ_are_not_all_right() -> None:
    assert operator_trials._error(np.array([1.01]), np.array([1.0], np.float32)) > LIMIT
    assert operator_trials._error(np.array([0.0, 0]), np.array([0, 0], np.float32)) == 0


OWN = [each for each in load_operators().values() if each.domain == OWN_DOMAIN]


@pytest.mark.parametrize("operator", OWN, ids=lambda o: o.name)
def test_a_call_of_a_function_gives_all_attributes(operator: Any) -> None:
    """Without one, a provider that expands the function finds a Constant without a value."""
    for example in operator.trials or operator.examples:
        model = example_model(operator, example_call(operator, example, FLOAT32), example)
        for node in onnx.inliner.inline_local_functions(model).graph.node:
            assert not [each.name for each in node.attribute if each.ref_attr_name], node.op_type
            assert node.op_type != "Constant" or len(node.attribute) == 1
