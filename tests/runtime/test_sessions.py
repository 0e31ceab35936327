"""How a session is opened, opened again, run and stopped: every option and its opposite, without a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from onnx import parser

from sdort.errors import BadModelError, MemoryShortageError, ProviderError
from sdort.providers import CPU
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.migraphx import PROVIDER as MIGRAPHX
from sdort.providers.provider import Provider
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import opener, placement, session, tuning_results
from sdort.runtime.opener import create_session, stop_all
from sdort.runtime.session import Session, SessionPlace, memory_of, open_again, open_or_fall_back, prepare_session
from sdort.tuning.session_hooks import SessionTuning

PLAIN = RuntimeOptions("cpu")


def ort_of(inputs: Mapping[str, str], outputs: Mapping[str, str] | None = None) -> Any:
    """An ``InferenceSession`` as far as it is looked at: names and types."""

    def args(types: Mapping[str, str]) -> Any:
        return lambda: [SimpleNamespace(name=name, type=f"tensor({kind})", shape=["N"]) for name, kind in types.items()]

    return SimpleNamespace(get_inputs=args(inputs), get_outputs=args(outputs or {"y": "float"}))


def make(options: RuntimeOptions = PLAIN, provider: Provider = CPU, **more: Any) -> Session:
    return Session(ort_of({"x": "float"}), Path("m.onnx"), "unet", provider, options, **more)


def test_a_stop_ends_what_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime itself refuses to go on once its flag is set."""
    import onnxruntime

    identity = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[1] x) => (float[1] y) {y = Neg (x)}'
    )
    model = identity.SerializeToString()
    real: Any = opener.start_session  # type: ignore[attr-defined]

    def interrupted(*args: Any) -> Any:
        stop_all()
        return real(*args)

    assert create_session(model, CPU, PLAIN).get_providers() == [CPU.ep]
    monkeypatch.setattr(opener, "start_session", interrupted)
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.ModelLoadCanceled):
        create_session(model, CPU, PLAIN)


TYPES = {"float": "float32", "float16": "float16", "double": "float64", "bool": "bool", "int8": "int8",
         "int16": "int16", "int32": "int32", "int64": "int64", "uint8": "uint8", "uint16": "uint16",
         "uint32": "uint32", "uint64": "uint64"}  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_of_onnx_runtime_is_numpys(kind: str) -> None:
    found = Session(ort_of({"x": kind}, {"y": kind}), Path("m"), "unet", CPU, PLAIN)
    assert (found.inputs["x"].dtype, found.outputs[0].dtype) == (np.dtype(TYPES[kind]), np.dtype(TYPES[kind]))


@pytest.mark.parametrize("kind", ["bfloat16", "string", "complex64"])
def test_a_type_that_numpy_has_not_is_named(kind: str) -> None:
    with pytest.raises(BadModelError, match=rf"'y' has the type tensor\({kind}\)"):
        Session(ort_of({"x": "float"}, {"y": kind}), Path("m"), "unet", CPU, PLAIN)


def test_memory_is_the_device_that_was_asked_for() -> None:
    options = RuntimeOptions("cuda", device_id=3)
    assert memory_of(CUDA, options) == ("cuda", 3)
    assert memory_of(CPU, options) == ("cpu", 0)
    assert [memory_of(each, options)[1] for each in (ROCM, CUDA)] == [3, 3]


@pytest.mark.parametrize(
    ("graph", "stream", "recorded", "waits"),
    [(False, 0, "-1", True), (True, 0, "7", True), (False, 99, "-1", False), (True, 99, "7", False)],
)
def test_a_run_is_recorded_and_waited_for_as_asked(graph: bool, stream: int, recorded: str, waits: bool) -> None:
    made = make(RuntimeOptions("cuda", graph=graph, stream=stream), CUDA)
    seen: list[Any] = []
    made.ort.run_with_iobinding = lambda binding, settings: seen.append((binding, settings))
    for binding, number in (("a", 7), ("b", 7), ("c", 8)):
        made.run_bound(binding, number)
    assert [binding for binding, _ in seen] == ["a", "b", "c"]
    first, again, other = (settings for _, settings in seen)
    assert first is again
    assert first.get_run_config_entry("gpu_graph_id") == recorded
    assert first.log_severity_level == 4
    entry = "disable_synchronize_execution_providers"
    assert (_entry(first, entry) == "1") is not waits
    assert (first is other) is (not graph and not stream)
    if graph:
        assert other.get_run_config_entry("gpu_graph_id") == "8"


@pytest.mark.parametrize(("stream", "wait", "waits"), [(True, True, True), (True, False, False), (False, False, True)])
def test_a_run_on_a_shared_stream_is_waited_for_unless_its_caller_does(stream: bool, wait: bool, waits: bool) -> None:
    made = make(RuntimeOptions("cuda", graph=True), CUDA, stream=SimpleNamespace(address=5) if stream else None)
    seen: list[Any] = []
    made.ort.run_with_iobinding = lambda _, settings: seen.append(settings)
    made.run_bound("a", 7, wait=wait)
    made.run_bound("a", 7)
    assert [_entry(each, "disable_synchronize_execution_providers") != "1" for each in seen] == [waits, True]
    assert [each.get_run_config_entry("gpu_graph_id") for each in seen] == ["7", "7"]


def _entry(settings: Any, name: str) -> str | None:
    try:
        return str(settings.get_run_config_entry(name))
    except Exception:  # ONNX Runtime's own class, where there is no such entry
        return None


def test_graphs_have_numbers_of_their_own() -> None:
    made = make()
    assert [made.new_graph() for _ in range(3)] == [1, 2, 3]


def test_stopping_ends_every_run_and_what_runs_before_the_steps() -> None:
    stopped: list[int] = []
    parts = [SimpleNamespace(stop=lambda number=number: stopped.append(number)) for number in range(2)]
    made = make(RuntimeOptions("cuda", graph=True), CUDA, preparation=SimpleNamespace(parts=parts))
    made.ort.run_with_iobinding = lambda *_: None
    for number in (1, 2):
        made.run_bound("binding", number)
    kept = [made._quiet, made._settings(1, True), made._settings(2, True)]
    assert [settings.terminate for settings in kept] == [False] * 3
    made.stop()
    assert [settings.terminate for settings in kept] == [True] * 3
    assert stopped == [0, 1]
    make().stop()


IDENTITY = """<ir_version: 8, opset_import: ["": 17]>
g (float[N, M] x, float[M] b) => (float[N, M] y, float[N, M] z) { y = Add (x, b) z = Sub (x, b) }"""


def real(options: RuntimeOptions = PLAIN) -> Session:
    ort = create_session(parser.parse_model(IDENTITY).SerializeToString(), CPU, options)
    return Session(ort, Path("m.onnx"), "vae_decoder", CPU, options)


def test_shapes_of_runs_from_host_memory_are_kept() -> None:
    made = real()
    x, b = np.arange(6.0).reshape(2, 3), np.ones(3)
    for values in (x, x[:1]):
        found = made.run({"x": values, "b": b})
        np.testing.assert_array_equal(found["y"], values + 1)
        np.testing.assert_array_equal(found["z"], values - 1)
    wanted = {(("x", (2, 3)), ("b", (3,))), (("x", (1, 3)), ("b", (3,)))}
    assert made.ran_on == wanted
    made.run({"x": np.ones((4, 3)), "b": made.upload(np.ones(3, np.float32))})
    with pytest.raises(ProviderError):
        made.run({"x": np.ones((5, 3)), "b": np.ones(4)})
    assert made.ran_on == wanted


def test_a_bound_run_prepares_anew_only_what_there_is() -> None:
    made = real()
    bound = made.bind({"x": np.ones((1, 3)), "b": np.ones(3)})
    assert not bound.prepare()
    calls: list[Any] = []
    made.preparation = SimpleNamespace(  # type: ignore[assignment]
        forget=lambda: calls.append("forget"), step_feeds=lambda feeds, version: calls.append((sorted(feeds), version))
    )
    made.weights.version = 5
    assert bound.prepare()
    assert calls == ["forget", (["b", "x"], 5)]
    bound.run()
    np.testing.assert_array_equal(bound.outputs()["y"], np.full((1, 3), 2.0))
    np.testing.assert_array_equal(bound.outputs()["z"], np.zeros((1, 3)))


def test_what_onnx_runtime_raises_is_ours_and_ours_stays() -> None:
    made = make()

    def fail(error: Exception) -> Callable[[], None]:
        def call() -> None:
            raise error

        return call

    with pytest.raises(MemoryShortageError, match="cpu ran out of memory"):
        made.guard(fail(RuntimeError("bad allocation")))
    own = BadModelError("ours")
    with pytest.raises(BadModelError) as raised:
        made.guard(fail(own))
    assert raised.value is own


def test_weights_are_shared_where_they_may_change() -> None:
    kept = make(RuntimeOptions("cpu", adapters=True))
    assert kept.place == SessionPlace(Path("m.onnx"), "unet", CPU, kept.weights)
    assert make().place == SessionPlace(Path("m.onnx"), "unet", CPU, None)


# Opening


class Opened(SimpleNamespace):
    """What stands for a session."""


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is opened, and whether its log is read; the log is refused for what ``refused`` names."""
    seen: list[Any] = []

    def prepare_start(graph: Any, path: Path, component: str, provider: Provider, options: RuntimeOptions,
                      severity: int, optimization: str = "ORT_ENABLE_ALL", weights: Any = None,
                      others: Any = ()) -> Any:  # fmt: skip
        seen.append(("start", graph, path, component, provider, options, severity, weights, others))
        return lambda: Opened(component=component)

    def run_logged(call: Callable[[], Any]) -> tuple[Any, str]:
        seen.append("logged")
        return call(), "the log"

    monkeypatch.setattr(session, "_prepare_start", prepare_start)
    monkeypatch.setattr(session, "check_file", lambda path, component: seen.append(("checked", path, component)))
    monkeypatch.setattr(session, "refuse_wrong_operators", lambda *_: None)
    monkeypatch.setattr(session, "_tell_of_bodies", lambda *_: None)
    monkeypatch.setattr(placement, "run_logged", run_logged)
    monkeypatch.setattr(placement, "refuse_fallback", lambda *of: seen.append(("looked", *of)))
    return seen


PATH = Path("folder/model.onnx")


@pytest.mark.parametrize("provider", [CPU, ROCM], ids=["cpu", "rocm"])
@pytest.mark.parametrize("fallback", [None, True, False])
def test_the_log_is_read_where_nothing_may_fall_back(
    provider: Provider, fallback: bool | None, opening: list[Any]
) -> None:
    options = RuntimeOptions(provider.name, fallback=fallback)
    logged = provider is ROCM and fallback is False
    assert session.is_logged(provider, options) is logged
    call = prepare_session(PATH, "unet", provider, options)
    before = list(opening)
    assert call().component == "unet"
    start = ("start", None, PATH, "unet", provider, options, 0 if logged else 4, None, ())
    if logged:
        assert before == []
        assert opening == ["logged", ("checked", PATH, "unet"), start, ("looked", "the log", ROCM, "unet")]
    else:
        assert opening == before == [("checked", PATH, "unet"), start]


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("model", [None, "model"])
@pytest.mark.parametrize("provider", [CPU, ROCM], ids=["cpu", "rocm"])
@pytest.mark.parametrize("fallback", [None, False])
def test_opened_again_on_the_same_weights_where_they_change(
    provider: Provider, adapters: bool, model: Any, fallback: bool | None, opening: list[Any]
) -> None:
    options = RuntimeOptions(provider.name, adapters=adapters, fallback=fallback)
    weights, others = object(), (object(), object())
    place: Any = SessionPlace(PATH, "unet", provider, weights, others)  # type: ignore[arg-type]
    found = open_again(place, options, model)
    assert found.component == "unet"
    logged = provider is ROCM and fallback is False and model is None
    shared = weights if adapters else None
    start = ("start", model, PATH, "unet", provider, options, 0 if logged else 4, shared, others if adapters else ())
    assert opening == (["logged", start, ("looked", "the log", ROCM, "unet")] if logged else [start])


def test_the_cpu_stands_in_where_that_is_allowed_and_nothing_was_asked_of_the_provider(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    allowed = RuntimeOptions("rocm", fallback=True, tuning=True, device_id=2, split=False)
    asked: list[Any] = []

    def open_session(path: Path, component: str, provider: Provider, options: RuntimeOptions) -> Any:
        asked.append((path, component, provider, options))
        if provider is ROCM:
            raise ProviderError("no kernel")
        return "session"

    monkeypatch.setattr(session, "open_session", open_session)
    found, reason = open_or_fall_back(PATH, "unet", ROCM, allowed)
    assert (found, reason) == ("session", "unet runs on cpu: no kernel")  # type: ignore[comparison-overlap]
    assert "unet runs on cpu: no kernel" in capsys.readouterr().err
    assert asked[1] == (PATH, "unet", CPU, replace(allowed, tuning=False, fallback=None))
    for refused in (
        replace(allowed, fallback=None),
        replace(allowed, fallback=False),
        replace(allowed, graph=True),
        replace(allowed, provider_options={"a": "1"}),
    ):
        asked.clear()
        with pytest.raises(ProviderError, match="no kernel"):
            open_or_fall_back(PATH, "unet", ROCM, refused)
        assert [each[2] for each in asked] == [ROCM]
    asked.clear()
    assert open_or_fall_back(PATH, "unet", ROCM, replace(allowed, provider="auto", fallback=None))[1] is not None
    assert open_or_fall_back(PATH, "unet", ROCM, allowed, lambda: "early")[0] == "early"  # type: ignore[arg-type, comparison-overlap, return-value]
    assert len(asked) == 2


def test_where_the_cpu_refuses_too_the_providers_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_session(path: Path, component: str, provider: Provider, options: RuntimeOptions) -> Any:
        raise ProviderError(f"{provider.name} has no kernel")

    monkeypatch.setattr(session, "open_session", open_session)
    with pytest.raises(ProviderError, match="rocm has no kernel"):
        open_or_fall_back(PATH, "unet", ROCM, RuntimeOptions("rocm", fallback=True))
    asked: list[str] = []
    monkeypatch.setattr(session, "open_session", lambda path, component, provider, options: asked.append(provider.name))
    assert open_or_fall_back(PATH, "unet", CPU, PLAIN) == (None, None)  # type: ignore[comparison-overlap]
    assert asked == ["cpu"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What ``_prepare_start`` hands on, with a UNet's graph that is steered and may be split."""
    seen: list[Any] = []

    def keep(kind: str) -> Callable[..., Any]:
        return lambda *of: seen.append((kind, *of))

    component = SimpleNamespace(
        signature=SimpleNamespace(inputs=["sample", "timestep", "mid_block_additional_residual"]), copy=lambda: "copied"
    )
    monkeypatch.setattr(session, "with_bf16", lambda path, component, provider, options, says: options)
    monkeypatch.setattr(session, "read_component", lambda *_: component)
    monkeypatch.setattr(session, "split_file", lambda file, steered: seen.append(("split", steered)) or seen[0][-1:])  # type: ignore[func-returns-value, redundant-expr]
    monkeypatch.setattr(session, "remove_control_inputs", lambda graph, name: seen.append(("removed", graph, name)))
    monkeypatch.setattr(session, "prepare_tuning", lambda *of: SessionTuning(of[-1], {"kept": b""}))
    monkeypatch.setattr(session, "_own_weights", lambda *_: SimpleNamespace(as_inputs=False, own=True))
    monkeypatch.setattr(session, "_start_parts", keep("parts"))
    monkeypatch.setattr(session, "_start_graph", keep("graph"))
    return seen


def start(options: RuntimeOptions, weights: Any = None) -> None:
    session._prepare_start(None, PATH, "unet", CPU, options, 4, "ORT_ENABLE_ALL", weights)()


def test_a_unet_is_split_and_keeps_its_control_inputs_as_asked(started: list[Any]) -> None:
    for steered in (False, True):
        started.clear()
        start(RuntimeOptions("cpu", control_inputs=steered))
        assert [each[0] for each in started] == ["split", "parts"]
        assert started[0] == ("split", steered)
    started.clear()
    start(RuntimeOptions("cpu", split=False))
    assert [each[0] for each in started] == ["removed", "graph"]
    assert (started[0], started[1][1]) == (("removed", "copied", "unet"), "copied")
    started.clear()
    start(RuntimeOptions("cpu", split=False, control_inputs=True))
    assert [each[0] for each in started] == ["graph"]
    assert started[0][1] is None


def test_a_model_without_a_timestep_is_one_graph(started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for inputs in (["sample", "x"], ["timestep", "x"], ["x"]):
        monkeypatch.setattr(
            session, "read_component", lambda *_, names=inputs: SimpleNamespace(signature=SimpleNamespace(inputs=names))
        )
        started.clear()
        start(PLAIN)
        assert [each[0] for each in started] == ["graph"]


def test_tuning_results_are_for_the_kind_of_program_that_they_are_of(started: list[Any]) -> None:
    def place_and_tuning(options: RuntimeOptions, weights: Any = None) -> tuple[Any, Any]:
        started.clear()
        start(options, weights)
        return started[-1][2].place.weights, started[-1][2].tuned

    plain = RuntimeOptions("cpu", split=False, control_inputs=True)
    weights, tuned = place_and_tuning(plain)
    assert (weights, tuned.results) == (None, {"kept": b""})
    weights, tuned = place_and_tuning(replace(plain, adapters=True))
    assert (weights.own, tuned.results) == (True, {"kept": b""})
    shared = SimpleNamespace(as_inputs=True)
    weights, tuned = place_and_tuning(replace(plain, adapters=True), shared)
    assert weights is shared
    assert tuned.results == {}


def test_what_runs_before_the_steps_is_neither_recorded_nor_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    opened: list[Any] = []

    def start_graph(graph: Any, start: Any, preparation: Any = None, inputs: Any = None, *, late: bool) -> Any:
        seen.append((graph, start.options, start.tuned, start.severity, start.optimization, inputs))
        assert late is (graph != step)
        return SimpleNamespace(
            outputs=[SimpleNamespace(name=f"{graph}.out")],
            inputs={"timestep": 0},
            preparation=preparation,
            start=lambda: opened.append(graph),
        )

    monkeypatch.setattr(session, "_start_graph", start_graph)
    options = RuntimeOptions("rocm", graph=True, profile="p", tuning=True)
    tuned = SessionTuning(replace(options, tuning_ms=5), {"kept": b"1"})
    start = session._Start(SessionPlace(PATH, "unet", ROCM, None), options, tuned, 3, "BASIC")
    info = [SimpleNamespace(name=name) for name in ("sample", "prompt.out", "time.out")]
    step: Any = SimpleNamespace(graph=SimpleNamespace(input=info))
    split: Any = SimpleNamespace(prompt="prompt", time="time", step=step, each_sample={"a"}, inputs={"all": 0})
    found: Any = session._start_parts(split, start)
    plain = replace(options, graph=False, profile="")
    early = SessionTuning(replace(plain, tuning_ms=5), {"kept": b"1"})
    assert seen[:2] == [(name, plain, early, 3, "BASIC", None) for name in ("prompt", "time")]
    assert seen[2] == (step, options, tuned, 3, "BASIC", {"all": 0})
    assert (found.preparation.each_sample, found.preparation.step) == ({"a"}, ["sample"])
    assert opened == ["prompt", "time"]
    split.prompt = None
    found = session._start_parts(split, start)
    assert (found.preparation.prompt, [part.inputs for part in found.preparation.parts]) == (None, [{"timestep": 0}])


def test_only_providers_that_compile_programs_keep_constants() -> None:
    assert [session.keeps_constants(each) for each in (CPU, CUDA, ROCM, MIGRAPHX)] == [False, False, False, True]


# What was tuned


def tuned_ort(*results: Any) -> Any:
    return SimpleNamespace(get_tuning_results=lambda: list(results))


def result(ep: str, **operators: dict[str, int]) -> dict[str, Any]:
    return {"ep": ep, "validators": {"v": ep}, "results": operators}


def test_results_of_all_parts_are_one() -> None:
    early = SimpleNamespace(ort=tuned_ort(result("rocm", gemm={"a": 1}, conv={"c": 3}), result("empty")))
    bare = SimpleNamespace(ort=SimpleNamespace())
    made: Any = SimpleNamespace(
        ort=tuned_ort(result("rocm", gemm={"b": 2}), result("other", norm={"d": 4})),
        preparation=SimpleNamespace(parts=[early, bare]),
    )
    assert tuning_results.results_of(made) == [
        {"ep": "rocm", "validators": {"v": "rocm"}, "results": {"gemm": {"b": 2, "a": 1}, "conv": {"c": 3}}},
        {"ep": "other", "validators": {"v": "other"}, "results": {"norm": {"d": 4}}},
    ]
    made.preparation = None
    assert [each["results"] for each in tuning_results.results_of(made)] == [{"gemm": {"b": 2}}, {"norm": {"d": 4}}]
    assert tuning_results.results_of(SimpleNamespace(ort=SimpleNamespace(), preparation=None)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tuning", "provider", "as_inputs", "kept"),
    [(True, ROCM, False, True), (False, ROCM, False, False), (True, CPU, False, False), (True, ROCM, True, False)],
)
def test_only_what_was_tuned_on_a_gpu_with_constant_weights_is_kept(
    tuning: bool, provider: Provider, as_inputs: bool, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(tuning_results, "keep", lambda session, shapes: seen.append(shapes))
    made: Any = SimpleNamespace(
        options=RuntimeOptions(provider.name, tuning=tuning), provider=provider, component="unet",
        weights=SimpleNamespace(as_inputs=as_inputs),
    )  # fmt: skip
    tuning_results.keep_shapes(made, {"x": (1, 2)})
    assert seen == ([{"x": (1, 2)}] if kept else [])


def test_results_that_cannot_be_kept_cost_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(session: Any, shapes: Any) -> Any:
        raise ProviderError("no cache")

    monkeypatch.setattr(tuning_results, "keep", fail)
    made: Any = SimpleNamespace(
        options=RuntimeOptions("rocm", tuning=True), provider=ROCM, weights=SimpleNamespace(as_inputs=False)
    )
    tuning_results.keep_shapes(made, {"x": (1,)})
    assert "what was tuned is lost: no cache" in " ".join(capsys.readouterr().err.split())


class Pool:
    """What a session asks of its pool: who has it, and what is taken."""

    def __init__(self) -> None:
        self.state = 1
        self.users = 0

    def sizes(self) -> Any:
        return SimpleNamespace(state=self.state)

    @contextmanager
    def used(self) -> Iterator[None]:
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1


@pytest.fixture
def recorder() -> tuple[Session, Pool, list[str]]:
    """A session with graphs on a pool, and the numbers under which ONNX Runtime ran them."""
    numbers: list[str] = []
    pool = Pool()

    def run_with_iobinding(binding: Any, settings: Any) -> None:
        assert pool.users == 1
        numbers.append(settings.get_run_config_entry("gpu_graph_id"))
        if numbers.count(numbers[-1]) == 1 and int(numbers[-1]) > 0:
            pool.state += 10  # recording takes what stays

    made = make(replace(PLAIN, graph=True), pool=cast("Any", pool))
    made.ort.run_with_iobinding = run_with_iobinding
    return made, pool, numbers


def test_a_graph_is_recorded_again_where_the_pool_changed(recorder: tuple[Session, Pool, list[str]]) -> None:
    """Its replay writes into what was free when it was recorded. A run that is not recorded has no such place."""
    made, pool, numbers = recorder
    first, second = made.new_graph(), made.new_graph()
    for _ in range(3):
        made.run_bound(None, first)
    assert numbers == ["1", "1", "1"]
    pool.state += 100  # somebody took a block
    made.run_bound(None, session.UNRECORDED)
    made.run_bound(None, first)
    made.run_bound(None, first)
    assert numbers[3] == "-1"
    assert numbers[4] == numbers[5] != "1"
    made.run_bound(None, second)  # which takes a block too
    assert numbers[6] == "2"
    made.run_bound(None, first)
    assert len({*numbers[:3], numbers[4], numbers[6], numbers[7]}) == 4


def test_without_a_pool_a_graph_keeps_its_number() -> None:
    numbers: list[str] = []
    made = make(replace(PLAIN, graph=True))
    made.ort.run_with_iobinding = lambda binding, settings: numbers.append(
        settings.get_run_config_entry("gpu_graph_id")
    )
    made.run_bound(None, 5)
    made.run_bound(None, 5)
    assert numbers == ["5", "5"]


def test_everything_of_a_session_is_in_its_pool() -> None:
    pool = Pool()
    made = make(pool=cast("Any", pool))
    assert made.guard(lambda: pool.users) == 1
    with pytest.raises(ProviderError):
        made.guard(lambda: 1 / 0)
    assert pool.users == 0


def test_variables_are_there_for_the_first_session_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a library reads once; the user's own value goes before, and nobody else finds it there."""
    seen: list[str | None] = []
    real: Any = opener.start_session  # type: ignore[attr-defined]

    def start(*args: Any) -> Any:
        seen.append(os.environ.get("SDORT_TEST_VARIABLE"))
        return real(*args)

    monkeypatch.setattr(opener, "start_session", start)
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[1] x) => (float[1] y) {y = Neg (x)}'
    ).SerializeToString()
    for given in (None, "theirs"):
        monkeypatch.setattr(opener, "_started", set())
        if given:
            monkeypatch.setenv("SDORT_TEST_VARIABLE", given)
        provider = Provider(CPU.target, rank=0, variables={"SDORT_TEST_VARIABLE": "ours"})
        for _ in range(2):
            create_session(model, provider, PLAIN)
        assert os.environ.get("SDORT_TEST_VARIABLE") == given
    assert seen == ["ours", None, "theirs", "theirs"]
