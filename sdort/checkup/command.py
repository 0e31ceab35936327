"""The measuring diagnosis: :func:`sdort.measure_machine`, which ``sdort doctor --measure`` calls."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path
from statistics import median
from subprocess import TimeoutExpired
from typing import Any

from sdort.benchmark.conditions import Disturbance, watch_machine
from sdort.benchmark.roofline import COPIED_BYTES, MATRIX_SIDE
from sdort.checkup.figures import Figure, MachineFigures, plain
from sdort.checkup.graphs import COMPONENTS, DEMO, TRUE_SIZE, Load, loads, optimized
from sdort.checkup.prediction import counted, expected_ms, roofline_ms
from sdort.checkup.published import PublishedImage, published_images
from sdort.checkup.rates import Device, published_rates
from sdort.checkup.reasons import SLOW, Evidence, find_reasons
from sdort.checkup.work import totals
from sdort.console import progress, say
from sdort.doctor.cache_entries import models
from sdort.doctor.software import Software, installed_software
from sdort.errors import ProviderError, SdortError
from sdort.families.component_names import DECODER
from sdort.files.staging import temporary_folder
from sdort.lowering.own_operators import own_operators
from sdort.machine.gpus import card_state, driver_of, gpus_of, rocm_version
from sdort.machine.nvml import CardState
from sdort.machine.os_calls import os_calls
from sdort.machine.subprocesses import WorkerError, run_worker
from sdort.machine.system import System
from sdort.machine.version import __version__
from sdort.onnx_io.component_file import read_component
from sdort.onnx_io.save import save_model
from sdort.options.number_ranges import DEVICE_ID
from sdort.options.option_types import typed
from sdort.providers import AUTO, CPU, PROVIDERS, find_provider
from sdort.providers.provider import Provider
from sdort.runtime.availability import Problem, find_problems
from sdort.runtime.environment import cpu_name
from sdort.runtime.recommendation import Recommendation, auto_order, recommend
from sdort.tuning.store import Store

TIME_LIMITS = {"gpu": 1200, "cpu": 600, "full": 3600}
"""Seconds after which measuring ends in any case."""
_USUAL = {"gpu": "a minute or two", "cpu": "about a minute", "full": "ten minutes or more"}
_SECONDS = 3.0
"""For the timed runs of a component."""
_CPU_SIDE, _CPU_COPIED = 2048, 256 << 20
"""Rows of the matrices, and bytes, on a processor: less than on a GPU, and more than its caches hold."""
_PERIOD = 0.2
"""Seconds between two looks at the card."""
_WORKER = "sdort.checkup.worker"


@dataclass(frozen=True)
class CheckUp:
    """A machine that was measured.

    Attributes:
        figures: what can be sent.
        recommended: the provider for this machine.
        install: the commands that install it; empty where it is installed.
        published: times that others published of this card.
        device: the rates that ``figures`` are compared with.
    """

    figures: MachineFigures
    recommended: Recommendation
    install: str
    published: Sequence[PublishedImage]
    device: Device

    @property
    def works(self) -> bool:
        """Whether a model runs here and its results are right."""
        return bool(self.figures.true_size) and not any(each.code == "wrong-output" for each in self.figures.reasons)

    @property
    def slow(self) -> list[Figure]:
        """The components that take longer than they should."""
        return [figure for figure in self.figures.true_size if figure.factor > SLOW]


@dataclass
class _Run:
    """A measurement in progress."""

    provider: Provider
    device_id: int
    deadline: float
    folder: Path
    own: bool
    results: dict[Load, dict[str, Any]] = field(default_factory=dict)
    again: dict[Load, float] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    late: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    @property
    def half(self) -> bool:
        return self.provider.usual_precision == "fp16"

    def ask(self, function: str, task: Mapping[str, Any], what: str) -> Any:
        """The answer of a process; None where it took too long or failed, which is kept."""
        started = time.monotonic()
        try:
            return run_worker(f"{_WORKER}:{function}", task, timeout=max(1.0, self.deadline - started))
        except TimeoutExpired:
            self.late[what] = time.monotonic() - started
        except WorkerError as error:
            self.failed.append(f"{what}: {error.said}")
        return None

    def measure_rates(self) -> None:
        """Measure a copy and a product; the highest rates that were seen count."""
        side, copied = (MATRIX_SIDE, COPIED_BYTES) if self.provider.on_gpu else (_CPU_SIDE, _CPU_COPIED)
        task = {"provider": self.provider.name, "device_id": self.device_id, "side": side, "copied": copied}
        for name, rate in (self.ask("measure_rates", task, "a matrix product") or {}).items():
            self.rates[name] = max(rate, self.rates.get(name, 0.0))


@typed
def measure_machine(*, provider: str = AUTO, device_id: int = 0, full: bool = False) -> CheckUp:
    """Measure a step and a decode of the demo and of Stable Diffusion 1.5's shape, and say what is wrong.

    Nothing is downloaded; graphs and random weights are made in a temporary folder (2 GB for a GPU, else 0.6 GB).

    Args:
        provider: the execution provider, or ``auto``.
        device_id: the number of the GPU.
        full: measure on a processor what is measured on a GPU; that may take many minutes.

    Returns:
        Figures, which can be sent to others, with the reasons for slowness; and the provider for this machine.

    Raises:
        ProviderError: ONNX Runtime is not installed, the provider does not load, or nothing could be measured on it.
        UsageError: there is no such provider or number.

    Example:
        >>> found = sdort.measure_machine(provider="cpu")  # doctest: +SKIP
        >>> [figure.median_ms for figure in found.slow]  # doctest: +SKIP
        []
    """
    return check_up(System(), provider=provider, device_id=device_id, full=full)


def check_up(system: System, *, provider: str = AUTO, device_id: int = 0, full: bool = False) -> CheckUp:
    """:func:`measure_machine` on a machine as its files and tools tell."""
    DEVICE_ID.check(device_id)
    software = installed_software(device_id)
    chosen = _chosen(provider, software)
    size = "gpu" if chosen.on_gpu else "full" if full else "cpu"
    limit = TIME_LIMITS[size]
    say(
        f"measuring on {chosen.name}: {_USUAL[size]} as a rule; kernels that are searched for or compiled take more. "
        f"It ends after {limit // 60} minutes in any case"
    )
    own, _ = own_operators(chosen.name)
    with temporary_folder("checkup") as folder:
        run = _Run(chosen, device_id, time.monotonic() + limit, folder, own)
        with _watched_card(chosen, device_id, system) as seen, watch_machine(chosen.on_gpu) as disturbances:
            _measure(run, loads(chosen.on_gpu, full))
    if not run.rates or (not any(load.model == TRUE_SIZE for load in run.results) and not run.late):
        late = [f"{what} was not ready after {seconds:.0f} s" for what, seconds in run.late.items()]
        raise ProviderError(f"nothing could be measured on {chosen.name}: {'; '.join([*run.failed, *late])}")
    return _concluded(run, software, system, seen, disturbances)


def _chosen(name: str, software: Software) -> Provider:
    """The provider to measure: the one that is named, or that ``auto`` takes.

    Raises:
        ProviderError: it does not load.
    """
    if software.error:
        raise software.error
    if name == AUTO:
        order = auto_order([PROVIDERS[each].ep for each in software.listed if not PROVIDERS[each].on_request])
        return next((each for each in order if each.name not in software.refusals), CPU)
    provider = find_provider(name)
    if not software.works(name):
        reason = software.refusals.get(name) or f"the installed ONNX Runtime was built without {provider.ep}"
        raise ProviderError(
            f"{name} cannot be measured: {reason}", hint=f"See what it needs:\n    sdort doctor --provider {name}"
        )
    return provider


def _measure(run: _Run, planned: Sequence[Load]) -> None:
    """Measure all loads, those of the demo beside the CPU; on a GPU in two processes each."""
    passes = 2 if run.provider.on_gpu else 1
    with progress("measuring", total=passes * len(planned)) as advance:
        for load in planned:
            path = _written(run, load, run.provider, run.folder / f"{load.model}-{load.component}")
            beside = load.model == DEMO and not run.provider.is_fallback
            reference = _written(run, load, CPU, run.folder / f"cpu-{load.component}") if beside else ""
            task = {"load": asdict(load), "provider": run.provider.name, "device_id": run.device_id}
            task |= {"path": str(path), "reference": str(reference), "seconds": _SECONDS}
            answer = run.ask("run_component", task, f"{load.model}'s {load.component}")
            advance(1)
            if answer:
                run.results[load] = answer
                if passes == 2:
                    second = run.ask("run_component", task | {"reference": "", "seconds": 0}, load.component)
                    run.again |= {load: second["first_s"]} if second else {}
                    advance(1)
            for file in run.folder.glob("*/*"):  # 2 GB that nobody needs any more
                file.unlink()
            # Of a GPU once. Of a processor, which others use too, several times: the highest rate counts.
            if not run.provider.on_gpu or not run.rates:
                run.measure_rates()


def _written(run: _Run, load: Load, provider: Provider, folder: Path) -> Path:
    """The file of a component, as ``sdort optimize`` makes it for a provider."""
    folder.mkdir(exist_ok=True)
    half = provider.usual_precision == "fp16"
    model = optimized(load.model, load.component, provider.name, half=half, own=run.own and provider is run.provider)
    return save_model(model, folder / "model.onnx").path


@contextmanager
def _watched_card(provider: Provider, device_id: int, system: System) -> Iterator[list[CardState]]:
    """A list that holds, when the block has ended, the card's highest clock and power and whether it was hot."""
    seen: list[CardState] = []
    found: list[CardState] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(_PERIOD):
            if state := card_state(provider.vendor, device_id, system):
                seen.append(state)

    watcher = threading.Thread(target=look, name="sdort-checkup", daemon=True)
    if provider.on_gpu:
        watcher.start()
    try:
        yield found
    finally:
        done.set()
        if provider.on_gpu:
            watcher.join()
        if seen:
            highest = {
                name: max((value for each in seen if (value := getattr(each, name)) is not None), default=None)
                for name in ("clock", "power")
            }
            found.append(replace(seen[-1], **highest, hot=any(each.hot for each in seen)))


def _concluded(
    run: _Run, software: Software, system: System, seen: Sequence[CardState], disturbances: Sequence[Disturbance]
) -> CheckUp:
    provider = run.provider
    gpus = gpus_of(provider.vendor, system) if provider.on_gpu else []
    gpu = gpus[run.device_id] if run.device_id < len(gpus) else None
    card, architecture = (gpu.name, gpu.architecture) if gpu else (cpu_name(), "")
    published = published_rates(card) if provider.on_gpu else None
    measured = Device(card, provider.name, run.rates.get("bandwidth", 1e12), run.rates.get("peak", 1e12), architecture)
    device = published or measured
    figures = [_figure(run, load, device) for load in run.results]
    loading = [name for name in software.listed if name not in software.refusals]
    recommended = recommend(loading, system)
    install = "" if recommended.installed else PROVIDERS[recommended.provider].install
    processors = len(os_calls.usable_cpus())
    state = seen[0] if seen else CardState()
    idle = [each.name for each in (*gpus_of("amd", system), *gpus_of("nvidia", system))]
    evidence = Evidence(
        provider,
        figures,
        recommended,
        wrong={load.component: answer["wrong"] for load, answer in run.results.items() if answer["wrong"]},
        late=run.late,
        peak_share=run.rates["peak"] / published.peak if published else None,
        state=state,
        processors=processors,
        quota=processor_quota(system),
        disturbances={each.what: each.remedy for each in disturbances},
        problems=_problems(software, system),
        gpus=idle,
        install=install or PROVIDERS[recommended.provider].install,
        operators=_without_operators(provider),
        tuned=bool(Store().names()),
        wide_decoders=wide_decoders() if provider.on_gpu else (),
        environ=system.environ,
    )
    here = software.flavours[0]
    result = MachineFigures(
        sdort=__version__,
        day=date.today().isoformat(),
        system=platform.system(),
        machine=platform.machine(),
        python=platform.python_version(),
        runtime=plain(here.distribution),
        runtime_version=plain(here.version),
        provider=provider.name,
        card=plain(card),
        architecture=architecture,
        memory_gib=round(gpu.memory / 2**30) if gpu else 0,
        driver=plain(driver_of(provider.vendor, system) or "") if provider.on_gpu else "",
        toolkit=plain(rocm_version(system) or "") if provider.vendor == "amd" else "",
        processors=processors,
        operators=run.own,
        clock_mhz=state.clock,
        top_clock_mhz=state.top_clock,
        power_w=state.power,
        power_limit_w=state.power_limit,
        usual_limit_w=state.usual_limit,
        copy_gbs=digits(run.rates["bandwidth"] / 1e9),
        product_tflops=digits(run.rates["peak"] / 1e12),
        published_gbs=published.bandwidth / 1e9 if published else None,
        published_tflops=published.peak / 1e12 if published else None,
        figures=figures,
        reasons=find_reasons(evidence),
        recommended=recommended.provider,
        package=recommended.package,
    )
    return CheckUp(result, recommended, install, published_images(card), device)


def _figure(run: _Run, load: Load, device: Device) -> Figure:
    answer = run.results[load]
    work = totals(counted(load, run.provider.name, half=run.half, own=run.own), device)
    return Figure(
        **asdict(load),
        precision=run.provider.usual_precision,
        opened_s=digits(answer["opened_s"]),
        first_s=digits(answer["first_s"]),
        again_s=digits(run.again[load]) if load in run.again else None,
        runs=len(answer["times_ms"]),
        median_ms=digits(median(answer["times_ms"])),
        least_ms=digits(min(answer["times_ms"])),
        processors=digits(answer["processors"]),
        roofline_ms=digits(roofline_ms(work)),
        expected_ms=digits(expected_ms(work, device)),
        on_cpu=answer["fallen"],
    )


def image_seconds(figures: Sequence[Figure], steps: int) -> float | None:
    """Seconds of an image by its step and its decode; None where one of the two is missing."""
    by_name = {figure.component: figure.median_ms / 1e3 for figure in figures}
    unet, decoder = (by_name.get(name) for name in COMPONENTS)
    return None if unet is None or decoder is None else steps * unet + decoder


def digits(value: float) -> float:
    """A number with four digits: what is behind them is noise."""
    return float(f"{value:.4g}")


def processor_quota(system: System) -> float | None:
    """Processors of which this container may use the time (cgroup 2, ``cpu.max``); None without a limit."""
    quota, _, period = (system.text("sys/fs/cgroup/cpu.max") or "").partition(" ")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else None


def _problems(software: Software, system: System) -> list[Problem]:
    """Obstacles that keep the providers of this machine's GPUs from loading, where ONNX Runtime has them."""
    refused = [PROVIDERS[name] for name in software.refusals if gpus_of(PROVIDERS[name].vendor, system)]
    lists = [find_problems(provider, system, software.libraries.get(provider.name)) for provider in refused]
    return [*dict.fromkeys(problem for problems in lists for problem in problems)]


def _without_operators(provider: Provider) -> str:
    """Why sdort's own operators are not used on a GPU; empty where they are."""
    used, why = own_operators(provider.name)
    return "" if used or not provider.on_gpu or provider.custom_kernels == "cpu" else why


def wide_decoders() -> list[str]:
    """The checkpoints that are kept for a GPU with a decoder in fp32, by name."""
    found = []
    for entry in models():
        if entry.checkpoint and entry.provider in PROVIDERS and PROVIDERS[entry.provider].on_gpu:
            with suppress(OSError, SdortError):
                for path in sorted(entry.path.rglob(f"{DECODER}/*.onnx")):
                    if read_component(path, DECODER).dtype == "float32":
                        found.append(entry.checkpoint)
    return found
