"""The parts of a benchmark on engines that are stand-ins: plans, order, references, times, memory, conditions."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sdort.benchmark import ablation as ablations
from sdort.benchmark import command, conditions, measure, roofline, roofline_worker, setup
from sdort.benchmark.ablation import Ablation, MeasuredStep
from sdort.benchmark.bench_options import BenchOptions, BenchResults
from sdort.benchmark.command import Files
from sdort.benchmark.conditions import Conditions, Disturbance, read_conditions, watch_machine
from sdort.benchmark.measure import Measurement
from sdort.benchmark.rows import Row, listed
from sdort.benchmark.setup import choose_components, open_engines, plan_cases
from sdort.engines.engine import ImageStages
from sdort.errors import ParityError, ProviderError, UsageError
from sdort.generation.pictures.images import Generated
from sdort.providers import CPU
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.memory import Peak
from sdort.verification.checks import Precision
from sdort.verification.references import Reference
from sdort.workload.cases import Case


class Fake:
    """An engine whose calls take ``ms`` milliseconds of a clock of its own."""

    name, settings, factor = "onnxruntime", "as it comes", 8

    def __init__(self, parts: Sequence[str] = ("unet",), static: int | None = None, path: str = "fast") -> None:
        self.parts, self.static, self.path, self.provider = list(parts), static, Path(path), CPU
        self.closed = 0

    def components(self) -> list[str]:
        return self.parts

    def default_size(self) -> tuple[int, int]:
        return 64, 96

    def static_batch(self, component: str) -> int | None:
        return self.static

    def dtype(self, component: str) -> str:
        return f"dtype of {component}"

    def model_hash(self) -> str:
        return "a hash"

    def close(self) -> None:
        self.closed += 1


def row(component: str = "unet", **values: Any) -> Row:
    base: dict[str, Any] = {
        "pipeline": "fast", "engine": "onnxruntime", "provider": "cpu", "device": "a CPU", "batch_size": 1,
        "height": 64, "width": 96, "steps": None, "dtype": "float32", "model_hash": "0123456789",
    }  # fmt: skip
    return Row(component=component, **{**base, **values})


# Plans


@pytest.mark.parametrize(("size", "ok"), [((64, 96), True), ((60, 96), False), ((64, 92), False), ((8, 16), True)])
def test_both_sides_of_a_size_are_multiples(size: tuple[int, int], ok: bool) -> None:
    engines: Any = [Fake()]
    options = BenchOptions(sizes=[(64, 64), size], batch_sizes=(1, 3))
    if ok:
        planned = plan_cases(Path("x"), ["unet"], engines, options)
        assert [(each.batch, each.height, each.width) for each in planned] == [
            (batch, *each) for batch in (1, 3) for each in ((64, 64), size)
        ]
        return
    with pytest.raises(UsageError, match=rf"--size {size[1]}x{size[0]}: width and height must be multiples of 8"):
        plan_cases(Path("x"), ["unet"], engines, options)


def test_the_model_s_own_size_and_a_unet_for_guidance() -> None:
    def batches(*static: int | None) -> list[tuple[str, int, int, int]]:
        engines: Any = [Fake(static=each) for each in static]
        planned = plan_cases(Path("x"), ["unet", "vae_decoder"], engines, BenchOptions(batch_sizes=(3,)))
        return [(each.component, each.batch, each.height, each.width) for each in planned]

    alone = [("unet", 3, 64, 96), ("vae_decoder", 3, 64, 96)]
    assert batches(None) == batches(3) == batches(6, None) == batches(None, 6) == alone
    assert batches(6) == batches(6, 6) == [("unet", 6, 64, 96), ("vae_decoder", 3, 64, 96)]


def test_components_are_those_that_all_engines_have_in_the_last_one_s_order() -> None:
    engines: Any = [Fake(["a", "b", "c"]), Fake(["c", "d", "a"])]
    assert choose_components(engines, ()) == ["c", "a"]
    assert choose_components(engines, ["a"]) == ["a"]
    with pytest.raises(UsageError, match="there is no component b, d to measure") as caught:
        choose_components(engines, ["b", "a", "d"])
    assert caught.value.hint == "There are: c, a."


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What engines are opened with."""
    calls: list[tuple[Any, ...]] = []

    def onnx(path: Path, provider: Any, options: RuntimeOptions) -> Any:
        calls.append(("onnxruntime", path.name))
        return Fake()

    def torch(path: Path, provider: Any, dtype: str, *, compiled: bool, device_id: int) -> Any:
        calls.append(("torch-compile" if compiled else "torch", path.name, dtype, device_id))
        return Fake()

    @contextmanager
    def found(path: Path) -> Iterator[Path]:
        calls.append(("found", path.name))
        yield Path("found")

    @contextmanager
    def exported(path: Path, reference: Path) -> Iterator[Path]:
        yield reference

    for name, value in (("OnnxEngine", onnx), ("FastTorchEngine", torch), ("checkpoint_of", found)):
        monkeypatch.setattr(setup, name, value)
    monkeypatch.setattr(setup, "as_exported", exported)
    monkeypatch.setattr(setup, "holds_onnx", lambda path: "onnx" in path.name)
    return calls


@pytest.mark.parametrize(
    ("values", "calls"),
    [
        ({}, [("onnxruntime", "onnx")]),
        ({"baseline": "onnx 2"}, [("onnxruntime", "onnx 2"), ("onnxruntime", "onnx")]),
        ({"baseline": "other"}, [("found", "other"), ("torch", "found", "float32", 3), ("onnxruntime", "onnx")]),
        ({"baseline": "other", "baseline_engine": "onnxruntime"}, [("onnxruntime", "other"), ("onnxruntime", "onnx")]),
        (
            {"baseline": "torch"},
            [("found", "onnx"), ("found", "found"), ("torch", "found", "float32", 3), ("onnxruntime", "onnx")],
        ),
        (
            {"baseline": "torch-compile", "checkpoint": "mine"},
            [("torch-compile", "mine", "float32", 3), ("onnxruntime", "onnx")],
        ),
        ({"engine": "torch-compile"}, [("found", "onnx"), ("torch-compile", "found", "float32", 3)]),
        ({"engine": "torch", "checkpoint": "mine"}, [("torch", "mine", "float32", 3)]),
        (
            {"engines": ("torch", "onnxruntime", "torch-compile")},
            [("found", "onnx"), ("torch", "found", "float32", 3), ("onnxruntime", "onnx"),
             ("torch-compile", "found", "float32", 3)],
        ),
    ],
)  # fmt: skip
def test_engines_are_opened_in_their_order_the_baseline_first(
    values: dict[str, Any], calls: list[Any], opened: list[Any]
) -> None:
    paths = {name: Path(value) for name, value in values.items() if name in ("baseline", "checkpoint")}
    options = BenchOptions(**{**values, **paths}, runtime=RuntimeOptions("cpu", device_id=3))
    with open_engines(Path("onnx"), options, CPU) as engines:
        fakes: Any = list(engines)
        assert [each.closed for each in fakes] == [0] * len(fakes)
    assert opened == calls
    assert [each.closed for each in fakes] == [1] * len(fakes)


def test_an_engine_that_there_is_not(opened: list[Any]) -> None:
    with (
        pytest.raises(UsageError, match="there is no engine 'jax'"),
        open_engines(Path("onnx"), BenchOptions(engine="jax"), CPU),
    ):
        pass


@pytest.mark.parametrize(
    ("values", "path", "found"),
    [
        ({"reference": "mine", "baseline": "other"}, "onnx", "mine"), ({"baseline": "other"}, "onnx", None),
        ({}, "onnx", "its original"), ({}, "checkpoint", "found"),
    ],
)  # fmt: skip
def test_the_reference_is_what_is_named_else_the_baseline_else_the_original(
    values: dict[str, str], path: str, found: str | None, opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def original(path: Path, hint: str) -> Iterator[Path]:
        yield Path("its original")

    monkeypatch.setattr(setup, "original_of", original)
    options = BenchOptions(**{name: Path(value) for name, value in values.items()})  # type: ignore[arg-type]
    with setup._reference_path(Path(path), options) as reference:
        assert (reference and reference.name) == found


def test_a_reference_runs_without_what_is_there_for_speed() -> None:
    fast = RuntimeOptions(
        "cuda",
        tuning=True,
        graph=True,
        fallback=True,
        provider_options={"a": "b"},
        device_id=2,
        split=False,
        check=False,
    )
    plain = setup._plain(BenchOptions(runtime=fast))
    assert plain == RuntimeOptions("cuda", device_id=2, split=False, check=False)


# Measuring


def test_a_row_is_of_its_engine_and_case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measure, "device_name", lambda provider, number: f"{provider.name} {number}")
    engine: Any = Fake(path=str(tmp_path))
    options = BenchOptions(runtime=RuntimeOptions(device_id=3), steps=7)
    for component, steps in (("pipeline", 7), ("unet", None)):
        made = measure._row(engine, Case(component, 5, 64, 96, prompt="a cat"), options)
        assert (made.pipeline, made.engine, made.provider, made.device) == (
            tmp_path.name,
            "onnxruntime",
            "cpu",
            "cpu 3",
        )
        assert made.engine_settings == "as it comes"
        assert (made.component, made.batch_size, made.height, made.width) == (component, 5, 64, 96)
        assert (made.steps, made.dtype, made.model_hash, made.prompt) == (
            steps, f"dtype of {component}", "a hash", "a cat"
        )  # fmt: skip


def test_times_are_filled_in_where_they_belong() -> None:
    for component, rate in (("pipeline", 3 / 0.004), ("unet", None)):
        made = row(component)
        times = [4.0, 1.0, 5.0, 8.0, 2.0]
        measure._fill_times(made, times, Case(component, 3, 64, 96), BenchOptions(warmup=2))
        assert (made.median_ms, made.mean_ms, made.min_ms, made.repeat, made.warmup) == (4, 4, 1, 5, 2)
        assert made.p90_ms == pytest.approx(6.8)
        assert (made.low_ms, made.high_ms, made.times_ms) == (1, 8, times)
        assert made.images_per_s == (rate and pytest.approx(rate))


def test_each_stage_has_its_own_median() -> None:
    calls = [ImageStages(*(10.0 * stage + n for stage in range(3)), samples=n) for n in (1, 2, 9)]  # type: ignore[arg-type, misc]
    assert measure._median_stages(calls) == ImageStages(2, 12, 22, 9)


def ready(made: Row, result: Any = None) -> measure._Ready:
    engine: Any = Fake()
    runner: Any = SimpleNamespace(result=lambda: result)
    return measure._Ready(engine, runner, made, result, Precision("float32"))


def test_a_speedup_is_over_the_first_where_both_are_right() -> None:
    rows = [row(), row(), row(status="bad"), row()]
    times = [[10.0] * 5, [5.0] * 5, [1.0] * 5, [20.0] * 5]
    measure._compare([ready(each) for each in rows], times, rows[0])
    assert [(each.speedup, each.speedup_low, each.speedup_high) for each in rows] == [
        (None,) * 3, (2, 2, 2), (None,) * 3, (0.5,) * 3
    ]  # fmt: skip
    rows = [row(), row()]
    measure._compare([ready(each) for each in rows], times, row(status="bad"))
    measure._compare([], [], row())
    assert [each.speedup for each in rows] == [None, None]


def test_images_stand_beside_the_reference_s_else_the_first_engine_s() -> None:
    drawn = [[Generated(seed, np.zeros((2, 2, 3), np.uint8), None)] for seed in range(3)]
    case = Case("pipeline", 1, 64, 96)
    both = [ready(row(), drawn[0]), ready(row(), drawn[1])]
    pairs = measure._image_pairs(both, case, None)
    assert [(pair.image.seed, pair.reference and pair.reference.seed) for pair in pairs] == [(0, 0), (1, 0)]
    assert measure._image_pairs(both[:1], case, None)[0].reference is None
    pairs = measure._image_pairs(both, case, Reference("it", {case: list(drawn[2])}))
    assert [pair.reference and pair.reference.seed for pair in pairs] == [2, 2]
    assert measure._image_pairs(both, case, Reference("it", {}))[0].reference is None
    assert measure._image_pairs([ready(row(), {"y": np.zeros(1)})], case, None) == []


def test_the_first_call_is_measured_with_loading_and_the_others_later(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    peaks = iter([Peak(1 << 20, None), Peak(3 << 20, 5 << 20)])

    @contextmanager
    def peak() -> Iterator[Peak]:
        calls.append("begin")
        yield next(peaks)
        calls.append("end")

    def prepare(case: Case, steps: int, scheduler: str | None) -> Any:
        calls.append(f"prepare {steps} {scheduler}")
        run: Any = lambda: calls.append("run")  # noqa: E731
        run.result = lambda: calls.append("result")
        return run

    engine: Any = Fake()
    engine.prepare = prepare
    made, meter = row(dtype="float16"), SimpleNamespace(peak=peak)
    advanced: list[float] = []
    options = BenchOptions(warmup=2, steps=7, scheduler="euler")
    found = measure._warm_up(engine, meter, Case("unet", 1, 64, 96), made, options, advanced.append)  # type: ignore[arg-type]
    assert calls == ["begin", "prepare 7 euler", "run", "end", "result", "begin", "run", "run", "end"]
    assert advanced == [1, 1, 1]
    assert (made.host_first_mib, made.device_first_mib, made.host_later_mib, made.device_later_mib) == (1, None, 3, 5)
    assert found.precision == Precision("float16")
    assert (made.load_s or 0) >= 0
    assert (made.first_ms or 0) >= 0


def test_placements_go_to_the_rows_of_their_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Onnx(Fake):
        folder, options = SimpleNamespace(models="models", tokens=len), "options"

    def measured(models: Any, cases: list[Case], provider: Any, options: Any, *sizes: int) -> list[str]:
        seen.append((models, *cases, provider.name, options, *sizes))
        return [f"placement {len(seen)}"]

    monkeypatch.setattr(measure, "OnnxEngine", Onnx)
    monkeypatch.setattr(measure, "measure_cases", measured)
    engines: Any = [Fake(), Onnx()]
    rows = [row(), row(batch_size=5), row("pipeline"), row("pipeline"), row(), row(status="bad")]
    measure._fill_placements(rows, engines)
    assert [each.placement for each in rows] == [None, "placement 1", None, None, None, None]  # type: ignore[comparison-overlap]
    assert seen == [("models", Case("unet", 5, 64, 96), "cpu", "options", 8, len("unet"))]


# Conditions


def test_the_machine_s_state_is_read_field_by_field(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import psutil

    names = "user nice system idle iowait irq softirq steal guest guest_nice"
    times: Any = namedtuple("times", names)  # type: ignore[misc]
    cpus = [
        times(1, 2, 4, 1000, 1000, 8, 16, 32, 500, 500),  # type: ignore[call-arg]
        times(*[10_000] * 10),
        times(64, 0, 0, 0, 0, 0, 0, 0, 0, 0),  # type: ignore[call-arg]
    ]
    child = SimpleNamespace(cpu_times=lambda: (100, 200, 5000, 5000))
    gone = SimpleNamespace(cpu_times=lambda: (_ for _ in ()).throw(psutil.NoSuchProcess(1)))
    process = SimpleNamespace(cpu_times=lambda: (1, 2, 4, 8, 999), children=lambda recursive: [gone, child])
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: cpus)
    monkeypatch.setattr(psutil, "Process", lambda: process)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 2, 7})
    monkeypatch.setattr(conditions, "_SYSTEM", tmp_path)
    for number, throttled in ((0, 3), (1, 4)):
        (tmp_path / f"cpu{number}/thermal_throttle").mkdir(parents=True)
        (tmp_path / f"cpu{number}/thermal_throttle/core_throttle_count").write_text(f"{throttled}\n")
    (tmp_path / "cpu0/cpufreq").mkdir()
    for plugged, governor, driver, battery, slow in (
        (False, "powersave", "acpi-cpufreq", True, True), (True, "powersave", "intel_pstate", False, False),
        (None, "powersave", "amd-pstate-epp", False, False), (True, "performance", "acpi-cpufreq", False, False),
    ):  # fmt: skip
        power = SimpleNamespace(power_plugged=plugged)
        monkeypatch.setattr(psutil, "sensors_battery", lambda power=power: power, raising=False)
        (tmp_path / "cpu0/cpufreq/scaling_governor").write_text(f"{governor}\n")
        (tmp_path / "cpu0/cpufreq/scaling_driver").write_text(f"{driver}\n")
        found = read_conditions()
        assert (found.busy, found.own, found.processors, found.throttled) == (63 + 64, 15 + 300, 3, 7)
        assert (found.on_battery, found.slow_clock) == (battery, slow)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: None, raising=False)
    assert not read_conditions().on_battery


def test_what_disturbed_a_block_is_known_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter([Conditions(0.0, 0, 0, 4, 0, False, False), Conditions(1.0, 3.5, 0, 4, 0, False, False)] * 2)
    monkeypatch.setattr(conditions, "read_conditions", lambda: next(states))
    for on_gpu, what in (
        (False, ["other programs used 3.5 of 4 processors"]),
        (True, ["other programs used 3.5 of 4 processors"]),
    ):
        with watch_machine(on_gpu) as found:
            assert found == []
        assert [each.what for each in found] == what
    one = Conditions(0.0, 0, 0, 4, 5, False, False)
    heat = Disturbance("the processor was slowed down by heat", "let it cool")
    assert conditions.find_disturbances(one, replace(one, throttled=6), False) == [heat]
    assert conditions.find_disturbances(one, replace(one, throttled=5), False) == []
    for busy, on_gpu, count in ((0.4, False, 0), (0.41, False, 1), (3.0, True, 0), (3.01, True, 1)):
        after = replace(one, time=1.0, busy=busy)
        assert len(conditions.find_disturbances(one, after, on_gpu)) == count
    short = replace(one, time=0.19, busy=9.0)
    assert conditions.find_disturbances(one, short, False) == []
    assert len(conditions.find_disturbances(one, replace(short, time=0.2), False)) == 1


# The command


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"ablation": True, "baseline": "x"}, "--ablation"), ({"ablation": True, "engine": "torch"}, "--ablation"),
        ({"ablation": True, "engines": ("torch",)}, "--ablation"),
        ({"ablation": True, "placement": True}, "--ablation"),
        ({"engines": ("torch",), "baseline": "x"}, "--engines"), ({"engines": ("a",), "engine": "torch"}, "--engines"),
        ({"ablation": True}, ""), ({"engines": ("torch",), "placement": True}, ""),
        ({"baseline": "x", "engine": "a"}, ""),
    ],
)  # fmt: skip
def test_pipelines_that_cannot_stand_beside_each_other(values: dict[str, Any], words: str) -> None:
    own = {name: value for name, value in values.items() if name != "ablation"}
    asked, measured = BenchResults(ablation="ablation" in values), BenchOptions(**own)
    if not words:
        command._refuse_other_pipelines(asked, measured)
        return
    with pytest.raises(UsageError, match=f"^{words}"):
        command._refuse_other_pipelines(asked, measured)


def test_how_to_judge_wants_what_to_compare_with() -> None:
    for across, margin in ((("device",), None), ((), 0.0), ((), 5.0)):
        with pytest.raises(UsageError, match="they want --compare"):
            command._refuse_unused_limits(None, across, margin)
        command._refuse_unused_limits("x", across, margin)
    command._refuse_unused_limits(None, (), None)
    command._refuse_few_calls("x", 5)
    command._refuse_few_calls(None, 1)
    with pytest.raises(UsageError, match="not --repeat 4"):
        command._refuse_few_calls("x", 4)


@pytest.mark.parametrize("pair", [(a, b) for a in range(4) for b in range(a + 1, 4)])
def test_no_two_results_go_to_one_file(pair: tuple[int, int], tmp_path: Path) -> None:
    places: list[Any] = [tmp_path / str(number) for number in range(4)]
    Files("table", *places, overwrite=False).check()  # type: ignore[misc]
    places[pair[0]] = tmp_path / "." / str(pair[1])
    with pytest.raises(UsageError, match="name the same file"):
        Files("table", *places, overwrite=False).check()  # type: ignore[misc]


@pytest.mark.parametrize("name", ["output", "save", "report"])
def test_no_result_replaces_what_is_read(name: str, tmp_path: Path) -> None:
    read = tmp_path / "model.onnx"
    read.touch()
    given: dict[str, Any] = {**dict.fromkeys(("output", "save", "report", "plots")), name: read}
    with pytest.raises(Exception, match="belongs to the input"):
        Files("table", **given, overwrite=True, reads=[read]).check()


# Ablations


def test_changes_are_counted_over_all_components() -> None:
    before = {"a": {"Conv": 3, "Add": 2}, "b": {"Conv": 1}}
    after = {"a": {"Conv": 1, "Mul": 5}, "c": {"Conv": 1, "Add": 2}}
    assert ablations._changes(before, after) == {"Conv": -2, "Mul": 5}
    assert ablations._changes({}, after) == {}
    assert ablations._changes(before, before) == {}


def test_steps_that_could_not_be_made_are_an_error_with_the_rows_that_failed() -> None:
    made = Ablation("x", "cpu", [MeasuredStep("fp16", problem="no"), MeasuredStep("raw")])
    made.measured = Measurement([row(status="bad")])
    with pytest.raises(ParityError, match="1 of 2 steps could not be made") as caught:
        made.raise_if_failed()
    assert caught.value.message.endswith(
        listed(["the step 'fp16' could not be made: no", "fast, unet, batch 1, 96x64, float32: bad"])
    )
    made.stages = made.stages[1:]
    with pytest.raises(ParityError, match="1 of 1 rows were not timed"):
        made.raise_if_failed()
    made.measured.rows[0].status = "ok"
    made.raise_if_failed()


# Rooflines


def test_roofs_are_bytes_and_operations_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"MatMul": 0.5, "Neg": 0.25}
    shapes: dict[str, Any] = {}

    def timed(operator: str, given: list[tuple[int, ...]], *_: Any) -> float:
        shapes[operator] = given
        return seconds[operator]

    monkeypatch.setattr(roofline_worker, "_seconds", timed)
    found = roofline_worker.roofs(CPU, RuntimeOptions(), 10, 600)
    assert found == {"bandwidth": 1200 / 0.25, "peak": 2000 / 0.5}
    assert shapes == {"MatMul": [(10, 10)] * 2, "Neg": [(300,)]}  # fp16


def test_rooflines_are_of_the_first_case_that_was_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Any] = []

    class Onnx:
        name, factor = "onnxruntime", 8

        def __init__(self, *_: Any) -> None:
            self.folder = SimpleNamespace(models={"unet": Path("u"), "vae_decoder": Path("d")}, tokens=len)

    def profiled(path: Path, case: Case, provider: Any, options: Any, *sizes: int) -> str:
        measured.append((str(path), case, *sizes))
        if case.component == "vae_decoder":
            raise ProviderError("it is broken")
        return "a roofline"

    monkeypatch.setattr(roofline, "OnnxEngine", Onnx)
    monkeypatch.setattr(roofline, "measure_roofline", profiled)
    monkeypatch.setattr(roofline, "choose_provider", lambda options: (CUDA, None))
    monkeypatch.setattr(roofline, "holds_onnx", lambda path: path.name == "onnx")
    rows = [
        row(engine="torch", batch_size=9), row(status="bad", batch_size=8), row(batch_size=2), row(batch_size=3),
        row("vae_decoder"), row("text_encoder"),
    ]  # fmt: skip
    found: Any = roofline.measure_rooflines(Path("onnx"), rows, RuntimeOptions())
    assert found == (["a roofline"], ["No roofline of vae_decoder: it is broken"])
    assert measured == [("u", Case("unet", 2, 64, 96), 8, 4), ("d", Case("vae_decoder", 1, 64, 96), 8, 11)]
    nothing = ([], ["No roofline: it needs unet or transformer or vae_decoder, measured in onnxruntime."])  # type: ignore[var-annotated]
    for path, given in (("other", rows), ("onnx", rows[:2]), ("onnx", rows[-1:])):
        assert roofline.measure_rooflines(Path(path), given, RuntimeOptions()) == nothing


# Checks and what runs before the steps


class Prepared:
    """A runner whose first step is prepared, or not."""

    def __init__(self, prepares: bool) -> None:
        self.prepares, self.calls = prepares, 0

    def __call__(self) -> None: ...

    def result(self) -> dict[str, Any]:
        return {}

    def prepare(self) -> bool:
        self.calls += 1
        return self.prepares


@pytest.mark.parametrize("prepares", [True, False])
def test_what_is_prepared_is_timed_as_often_as_calls_are(prepares: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([9.0, 1.0, 2.0, 8.0, 3.0])

    def clock(call: Any) -> float:
        call()
        return next(times)

    monkeypatch.setattr(measure, "clock", clock)
    runner: Any = Prepared(prepares)
    assert measure._prepare_ms(runner, 5) == (3.0 if prepares else None)
    assert runner.calls == (6 if prepares else 1)  # the first one tells whether anything is
    plain: Any = SimpleNamespace()
    assert measure._prepare_ms(plain, 5) is None


@pytest.mark.parametrize("problem", ["it is off", None])
@pytest.mark.parametrize("failed", [True, False])
def test_a_call_that_gives_something_else_fails_unless_it_failed_before(
    failed: bool, problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, ...]] = []

    def check(*arguments: Any) -> Any:
        seen.append(arguments)
        return SimpleNamespace(problem=problem)

    monkeypatch.setattr(measure, "check_result", check)
    made = row()
    if failed:
        made.fail("it is wrong")
    runner = SimpleNamespace(result=lambda: "again")
    ready: Any = SimpleNamespace(runner=runner, row=made, result="first", precision="limits")
    case: Any = "a case"
    measure._check_repeats(ready, case)
    assert seen == [("a case", "again", "first", "the first call", "limits")]
    assert made.failed == (failed or problem is not None)
    if problem and not failed:
        assert made.status == "not repeatable: it is off"
    if failed:
        assert made.status == "it is wrong"


@pytest.mark.parametrize("scheduler", ["euler", None])
def test_a_scheduler_is_looked_up_before_anything_is_opened(
    scheduler: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(measure, "find_scheduler", seen.append)
    monkeypatch.setattr(measure, "announce", lambda options: seen.append("announced"))
    monkeypatch.setattr(measure, "choose_provider", lambda options: (CUDA, "a warning"))
    assert measure.prepare_benchmark(BenchOptions(scheduler=scheduler)) is CUDA
    assert seen == ([scheduler] if scheduler else []) + ["announced"]


@pytest.mark.parametrize("save", [True, False])
def test_noise_is_told_always_and_what_cannot_be_judged_where_rows_are_saved(
    save: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []
    monkeypatch.setattr(command, "warn", said.append)
    monkeypatch.setattr(command, "noise_warning", lambda rows: "noisy")
    monkeypatch.setattr(command, "save_warnings", lambda rows: ["few", "wide"])
    path = tmp_path / "saved.json"
    files: Any = SimpleNamespace(save=path if save else None)
    command._warn_of_noise([row()], files)
    assert said == ["noisy", *([f"{path}: few", f"{path}: wide"] if save else [])]
