"""``sdort bench`` as a library call: check first, then time, two pipelines in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median

from sdort.benchmark.bench_options import BenchOptions
from sdort.benchmark.conditions import watch_machine
from sdort.benchmark.regression import refuse_slower, refuse_unjudged
from sdort.benchmark.rows import Row, refuse_failed
from sdort.benchmark.setup import choose_components, find_reference, open_engines, plan_cases
from sdort.benchmark.timing import clock, interleave, ratio, statistics
from sdort.console import detail, document, progress
from sdort.engines.engine import Engine, ImageStages, PreparedRunner, Runner, StagedRunner
from sdort.engines.onnx import OnnxEngine
from sdort.errors import SdortError
from sdort.generation.pictures.images import Generated
from sdort.inspection.profile import measure_cases
from sdort.providers.provider import Provider
from sdort.runtime.environment import device_name, versions
from sdort.runtime.memory import MIB, Meter, Peak, torch_on_gpu
from sdort.runtime.opener import NotLoadedError
from sdort.runtime.probe import choose_provider
from sdort.runtime.provider_message import announce
from sdort.samplers.scheduler_names import find_scheduler
from sdort.verification.checks import Precision, Verdict, check_images, precision
from sdort.verification.limits import ENOUGH
from sdort.verification.references import CaseResult, Reference, check_result, generate_images
from sdort.workload.cases import WHOLE_PIPELINE, Case, further_cases


@dataclass(frozen=True)
class ImagePair:
    """The first image of a pipeline's row, and the reference's image of the same noise."""

    row: Row
    image: Generated
    reference: Generated | None


@document("bench", 1)
@dataclass
class Measurement:
    """The rows of a benchmark and the images that they were checked by."""

    rows: list[Row] = field(default_factory=list)
    """One row a case and pipeline, the cases in turn."""
    images: list[ImagePair] = field(default_factory=list, metadata={"json": None})

    def raise_if_failed(self) -> None:
        """Raise if a row failed its check, or a comparison with saved ones says so.

        Raises:
            ParityError: the rows that failed, and why.
            RegressionError: the rows that are slower.
            UsageError: no row could be compared, and why.
        """
        refuse_failed(self.rows)
        refuse_slower(self.rows)
        refuse_unjudged(self.rows)


def measure_pipeline(path: Path, options: BenchOptions) -> Measurement:
    """Measure a pipeline, and a baseline or other engines beside it.

    Every case is checked before it is timed: its outputs are finite, not constant, repeatable, and equal those of the
    reference. The reference is ``options.reference``, else the baseline, else what the manifest names as the
    original.

    Returns:
        One row a case and pipeline; a row whose check failed has no times and says why in ``status``.

    Raises:
        SdortError: nothing could be measured at all.
    """
    provider = prepare_benchmark(options)
    with open_engines(path, options, provider) as engines:
        components = choose_components(engines, options.components)
        todo = plan_cases(path, components, engines, options)
        reference = find_reference(path, options, todo, provider)
        measurement = measure_engines(engines, components, todo, reference, options)
        if options.placement:
            _fill_placements(measurement.rows, engines)
    return measurement


def prepare_benchmark(options: BenchOptions) -> Provider:
    """Check what can be checked before anything is opened, and choose the provider."""
    if options.scheduler:
        find_scheduler(options.scheduler)
    announce(options.runtime)
    return choose_provider(options.runtime)[0]


def measure_engines(
    engines: Sequence[Engine],
    components: Sequence[str],
    todo: Sequence[Case],
    reference: Reference | None,
    options: BenchOptions,
) -> Measurement:
    """Measure every case on all engines in turn, one component after the other; the engines end closed."""
    measurement = Measurement()
    for engine in engines:
        engine.import_libraries(components)
    meters = [Meter(engine.provider, options.runtime.device_id) for engine in engines]
    calls = options.warmup + 1 + options.repeat
    bar = progress("measuring", total=len(todo) * len(engines) * calls)
    with watch_machine(engines[-1].provider.on_gpu) as disturbances, bar as advance:
        for component in components:
            for case in todo:
                if case.component == component:
                    _measure(engines, meters, case, reference, options, advance, measurement)
            for engine, meter in zip(engines, meters, strict=True):
                engine.close()
                meter.forget()
    for row in measurement.rows:
        row.disturbances = list(disturbances)
    return measurement


def _fill_placements(rows: Sequence[Row], engines: Sequence[Engine]) -> None:
    """In sessions of their own, when all is timed: a profile costs time."""
    for index, row in enumerate(rows):
        engine = engines[index % len(engines)]  # a case has one row for each engine
        if isinstance(engine, OnnxEngine) and row.component != WHOLE_PIPELINE and not row.failed:
            case = Case(row.component, row.batch_size, row.height, row.width)
            folder, tokens = engine.folder, engine.folder.tokens(row.component)
            [row.placement] = measure_cases(
                folder.models, [case], engine.provider, engine.options, engine.factor, tokens
            )


@dataclass
class _Ready:
    """One engine on one case, after its warm-up."""

    engine: Engine
    runner: Runner
    row: Row
    result: CaseResult
    precision: Precision


def _measure(
    engines: Sequence[Engine],
    meters: Sequence[Meter],
    case: Case,
    reference: Reference | None,
    options: BenchOptions,
    advance: Callable[[float], None],
    measurement: Measurement,
) -> None:
    """Check and time one case on every engine."""
    rows = [_row(engine, case, options) for engine in engines]
    ready: list[_Ready] = []
    for engine, meter, row in zip(engines, meters, rows, strict=True):
        # One size too many for the memory must not lose the other rows.
        try:
            ready.append(_warm_up(engine, meter, case, row, options, advance))
        except NotLoadedError:  # no row of it would be measured
            raise
        except SdortError as error:
            detail(str(error))
            row.fail(f"{error.message}. {error.hint}" if error.hint else error.message)
    _check(ready, case, reference, options)
    good = [measured for measured in ready if not measured.row.failed]
    if torch_on_gpu():  # the meters emptied its cache, which the driver fills slowly
        for measured in good:
            measured.runner()
    times = interleave([measured.runner for measured in good], options.repeat, advance)
    for measured, milliseconds in zip(good, times, strict=True):
        _fill_times(measured.row, milliseconds, case, options)
        measured.row.prepare_ms = _prepare_ms(measured.runner, options.repeat)
        if isinstance(measured.runner, StagedRunner):
            measured.row.stages = _median_stages(measured.runner.stages[-options.repeat :])
        _check_repeats(measured, case)
    _compare(good, times, rows[0])
    measurement.rows += rows
    measurement.images += _image_pairs(ready, case, reference)


def _prepare_ms(runner: Runner, repeat: int) -> float | None:
    """Median milliseconds of what runs before the steps; None where nothing does."""
    if not isinstance(runner, PreparedRunner) or not runner.prepare():
        return None
    return median(clock(runner.prepare) for _ in range(repeat))


def _compare(good: Sequence[_Ready], times: Sequence[Sequence[float]], first: Row) -> None:
    """Fill in the speedups over the first engine, where both are right."""
    if first.failed or not good:
        return
    for measured, milliseconds in zip(good[1:], times[1:], strict=True):
        if not measured.row.failed:
            compared = ratio(times[0], milliseconds)
            measured.row.speedup, measured.row.speedup_low, measured.row.speedup_high = (
                compared.median,
                compared.low,
                compared.high,
            )


def _image_pairs(ready: Sequence[_Ready], case: Case, reference: Reference | None) -> list[ImagePair]:
    expected = reference.results.get(case) if reference else ready[0].result if len(ready) > 1 else None
    beside = expected[0] if isinstance(expected, list) else None
    return [
        ImagePair(measured.row, measured.result[0], beside) for measured in ready if isinstance(measured.result, list)
    ]


def _warm_up(
    engine: Engine, meter: Meter, case: Case, row: Row, options: BenchOptions, advance: Callable[[float], None]
) -> _Ready:
    """Open, run for the first time and warm up; measure the memory of both."""
    started = time.perf_counter()
    with meter.peak() as first:
        runner = engine.prepare(case, options.steps, options.scheduler)
        row.load_s = time.perf_counter() - started
        row.first_ms = clock(runner)
    result = runner.result()
    advance(1)
    with meter.peak() as later:
        for _ in range(options.warmup):
            runner()
            advance(1)
    _fill_memory(row, first, later if options.warmup else None)
    return _Ready(engine, runner, row, result, precision(row.dtype, engine.provider))


def _row(engine: Engine, case: Case, options: BenchOptions) -> Row:
    return Row(
        pipeline=engine.path.resolve().name,
        engine=engine.name,
        engine_settings=engine.settings,
        provider=engine.provider.name,
        device=device_name(engine.provider, options.runtime.device_id),
        component=case.component,
        batch_size=case.batch,
        height=case.height,
        width=case.width,
        steps=options.steps if case.component == WHOLE_PIPELINE else None,
        dtype=engine.dtype(case.component),
        model_hash=engine.model_hash(),
        measured_at=datetime.now().astimezone().isoformat(timespec="seconds"),
        prompt=case.prompt,
        versions=versions(),
    )


def _fill_memory(row: Row, first: Peak, later: Peak | None) -> None:
    row.host_first_mib = first.host / MIB
    row.device_first_mib = None if first.device is None else first.device / MIB
    if later:
        row.host_later_mib = later.host / MIB
        row.device_later_mib = None if later.device is None else later.device / MIB


def _check(ready: Sequence[_Ready], case: Case, reference: Reference | None, options: BenchOptions) -> None:
    """Compare every engine with the reference, or with the baseline; a row that fails loses its times."""
    for measured in ready:
        row, first = measured.row, ready[0]
        limits = measured.precision
        if reference:
            verdict = reference.check(case, measured.result, limits)
        elif measured is first:
            verdict = check_result(case, measured.result, None, "", limits)
        else:
            limits = limits.coarser(first.precision)
            verdict = check_result(case, measured.result, first.result, f"the baseline {first.row.pipeline}", limits)
        if verdict.few:
            verdict = _check_more(measured, reference or first, case, limits, verdict, options)
        row.checked_against, row.error, row.mean_error = verdict.checked, verdict.error, verdict.mean_error
        row.psnr_db, row.lowest_psnr_db = verdict.psnr, verdict.lowest_psnr
        if verdict.problem:
            row.fail(verdict.problem)
        _check_repeats(measured, case)


def _check_more(
    measured: _Ready,
    against: Reference | _Ready,
    case: Case,
    limits: Precision,
    verdict: Verdict,
    options: BenchOptions,
) -> Verdict:
    """Verdict on enough images, of further seeds, where so few differ that it may be chance.

    ``verdict``, which is on the few, stays where no more can be generated.
    """
    more = further_cases(case, ENOUGH)
    detail(f"{measured.row.pipeline}, {case}: {verdict.problem}; generating more")
    try:
        more_images = generate_images(measured.engine, more, options.steps, options.scheduler)
        if isinstance(against, _Ready):
            beside, expected = against.result, generate_images(against.engine, more, options.steps, options.scheduler)
        else:
            beside, expected = against.results[case], against.more(more) if against.more else []
    except SdortError as error:
        detail(error.message)
        return verdict
    if not (isinstance(measured.result, list) and isinstance(beside, list) and len(more_images) == len(expected)):
        return verdict
    return check_images([*measured.result, *more_images], [*beside, *expected], verdict.checked, limits)


def _check_repeats(measured: _Ready, case: Case) -> None:
    """The last call must have given what the first one gave, which was checked."""
    again = check_result(case, measured.runner.result(), measured.result, "the first call", measured.precision)
    if again.problem and not measured.row.failed:
        measured.row.fail(f"not repeatable: {again.problem}")


def _median_stages(calls: Sequence[ImageStages]) -> ImageStages:
    """The median of each stage over calls."""
    return ImageStages(
        median(call.encode for call in calls),
        median(call.denoise for call in calls),
        median(call.decode for call in calls),
        calls[-1].samples,
    )


def _fill_times(row: Row, milliseconds: Sequence[float], case: Case, options: BenchOptions) -> None:
    numbers = statistics(milliseconds)
    row.times_ms = list(milliseconds)
    row.median_ms, row.mean_ms, row.p90_ms, row.min_ms = numbers.median, numbers.mean, numbers.p90, numbers.minimum
    row.low_ms, row.high_ms = numbers.low, numbers.high
    row.repeat, row.warmup = numbers.repeat, options.warmup
    if case.component == WHOLE_PIPELINE:
        row.images_per_s = case.batch / (numbers.median / 1e3)
