"""Why a machine is slower than it should be: the reasons for which there is evidence, the best evidence first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sdort.checkup.figures import Figure, Reason
from sdort.errors.plain_text import some
from sdort.machine.nvml import CardState
from sdort.providers.provider import Provider
from sdort.runtime.availability import Problem
from sdort.runtime.recommendation import Recommendation
from sdort.tables import counted

SLOW = 2.0
"""Times what a step or a decode should take: less is what libraries and clocks differ by."""
_SEARCH_S, _LONG_S = 15.0, 30.0
"""Seconds of all first runs beyond later ones: of a second process that searches or compiles, and not only loads its
libraries (1 to 2 s a component on an H200); and of a first one that takes long."""
_NEAR_LIMIT, _NEAR_CLOCK, _NEAR_PEAK, _USED = 0.95, 0.7, 0.4, 0.6

SLOWING = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits for its kernel",
    "HIP_LAUNCH_BLOCKING": "every launch waits for its kernel",
    "AMD_SERIALIZE_KERNEL": "every launch waits for its kernel",
    "MIOPEN_DISABLE_CACHE": "MIOpen keeps no compiled kernel",
    "MIOPEN_DEBUG_DISABLE_FIND_DB": "MIOpen keeps no search",
    "MIOPEN_FIND_ENFORCE": "MIOpen searches again and again",
    "CUDA_CACHE_DISABLE": "the driver keeps no compiled kernel",
}
"""Variables of the environment that cost time where they are set and not 0."""
OVERRIDING = "ORT_MIGRAPHX_"
"""Beginning of the names of variables that win over sdort's options."""


CODES = (
    "wrong-output", "gpu-idle", "provider-device", "provider-permission", "provider-driver", "provider-libraries",
    "provider-architecture", "nodes-on-cpu", "not-ready", "kernels-not-kept", "first-run-long", "hot", "power-limit",
    "low-clock", "slow-products", "disturbed", "processor-quota", "idle-processors", "slow-setting", "overridden",
    "operators-not-built", "not-tuned", "vae-fp32", "other-provider",
)  # fmt: skip
"""The names of all reasons."""


@dataclass(frozen=True)
class Evidence:
    """Measurements and findings about a machine.

    Attributes:
        provider: what computed.
        figures: the components; those that could not be measured are not among them.
        wrong: component of the demo -> why its outputs are not those of the CPU.
        late: component -> seconds after which its process was ended.
        peak_share: the measured matrix product over the published rate; None where that is not known.
        state: of the card while it computed: the highest clock and power, and whether it was hot.
        processors: those that the process may use.
        quota: processors of which the container may use the time; None without a limit.
        disturbances: what others did meanwhile -> what to do about it.
        problems: of drivers and libraries, for all providers of this machine's GPUs.
        gpus: names of the GPUs.
        recommended: what fits this machine.
        install: the commands that install it.
        operators: why sdort's own operators are not used; empty where they are, or where the provider has none.
        tuned: whether anything is kept that was tuned on this machine.
        wide_decoders: kept models for a GPU whose decoder is in fp32.
        environ: the variables of the environment.
    """

    provider: Provider
    figures: Sequence[Figure]
    recommended: Recommendation
    wrong: Mapping[str, str] = field(default_factory=dict)
    late: Mapping[str, float] = field(default_factory=dict)
    peak_share: float | None = None
    state: CardState = field(default_factory=CardState)
    processors: int = 1
    quota: float | None = None
    disturbances: Mapping[str, str] = field(default_factory=dict)
    problems: Sequence[Problem] = ()
    gpus: Sequence[str] = ()
    install: str = ""
    operators: str = ""
    tuned: bool = True
    wide_decoders: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)


def find_reasons(evidence: Evidence) -> list[Reason]:
    """All reasons; what a measurement shows before what a setting lets expect, else in the order of this file."""
    found = [*_of_outputs(evidence), *_of_placement(evidence), *_of_first_runs(evidence), *_of_card(evidence)]
    found += [*_of_processor(evidence), *_of_settings(evidence)]
    return sorted(found, key=lambda reason: reason.evidence != "measured")


def _of_outputs(evidence: Evidence) -> Iterator[Reason]:
    for component, why in evidence.wrong.items():
        step = "Do not use it for images before this says that your model is right:\n    sdort verify MODEL"
        message = f"wrong results: the demo's {component} {why}"
        yield Reason("wrong-output", "measured", None, message, step)


def _of_placement(evidence: Evidence) -> Iterator[Reason]:
    if evidence.gpus and not evidence.provider.on_gpu:
        message = f"the processor computes, and {evidence.gpus[0]} is idle"
        yield Reason("gpu-idle", "measured", None, message, f"Install its provider:\n{evidence.install}")
    for problem in evidence.problems:
        yield Reason(f"provider-{problem.check}", "found", None, problem.message, problem.next_step)
    nodes: dict[str, int] = {}
    for figure in evidence.figures:
        for operator, number in figure.on_cpu.items():
            nodes[operator] = nodes.get(operator, 0) + number
    if nodes:
        total = sum(nodes.values())
        message = f"{counted(total, 'node')} on the CPU, not on the card: {some(sorted(nodes))}"
        step = "See where your model's nodes run:\n    sdort inspect MODEL --placement"
        yield Reason("nodes-on-cpu", "measured", total, message, step)


def _of_first_runs(evidence: Evidence) -> Iterator[Reason]:
    warm = "Do it once, ahead, and keep it:\n    sdort warm MODEL"
    for component, seconds in evidence.late.items():
        message = f"{component} was not ready after {seconds:.0f} s: kernels are searched for or compiled"
        yield Reason("not-ready", "measured", seconds, message, warm)
    figures = [figure for figure in evidence.figures if figure.again_s is not None]
    again = sum(figure.again_s - figure.median_ms / 1e3 for figure in figures if figure.again_s is not None)
    first = sum(figure.first_s - figure.median_ms / 1e3 for figure in figures)
    if again > _SEARCH_S and again > first / 2:
        message = f"kernels are not kept: a second process took {again:.0f} s for them again (the first {first:.0f} s)"
        yield Reason("kernels-not-kept", "measured", again, message, warm)
    elif first > _LONG_S:
        message = f"first runs took {first:.0f} s for kernels, once for each size; what they found is kept"
        yield Reason("first-run-long", "measured", first, message, warm)


def _of_card(evidence: Evidence) -> Iterator[Reason]:
    state, card = evidence.state, evidence.provider.vendor
    if state.hot:
        yield Reason("hot", "measured", None, "the card is slowed down by heat", "Let it cool, and look at its fans.")
    if state.power_limit and state.usual_limit and state.power_limit < _NEAR_LIMIT * state.usual_limit:
        share = state.power_limit / state.usual_limit
        message = f"power is limited to {state.power_limit:.0f} W, it comes with {state.usual_limit:.0f} W"
        tool = f"sudo nvidia-smi -pl {state.usual_limit:.0f}"
        tool = "sudo rocm-smi --resetpoweroverdrive" if card == "amd" else tool
        yield Reason("power-limit", "measured", share, message, f"Set it back, if nothing else needs it:\n    {tool}")
    if state.clock and state.top_clock and state.clock < _NEAR_CLOCK * state.top_clock:
        message = f"the card's clock went to {state.clock:.0f} of {state.top_clock:.0f} MHz at most"
        tool = "sudo rocm-smi --setperflevel auto" if card == "amd" else "sudo nvidia-smi -rgc"
        yield Reason("low-clock", "measured", state.clock / state.top_clock, message, f"Free it:\n    {tool}")
    if evidence.peak_share is not None and evidence.peak_share < _NEAR_PEAK:
        message = f"a plain matrix product reaches {evidence.peak_share:.0%} of the card's rate: no matter of the model"
        step = "Update the driver and the libraries, and see what else is on the card:\n    sdort doctor"
        yield Reason("slow-products", "measured", evidence.peak_share, message, step)


def _of_processor(evidence: Evidence) -> Iterator[Reason]:
    for what, remedy in evidence.disturbances.items():
        yield Reason("disturbed", "measured", None, what, f"{remedy[:1].upper()}{remedy[1:]}.")
    if evidence.provider.on_gpu:
        return
    if evidence.quota and evidence.quota < evidence.processors:
        message = f"the container may use {evidence.quota:g} of the {evidence.processors} processors that it sees"
        cores = f"0-{max(0, int(evidence.quota) - 1)}"
        step = f"Give it all, or start as many threads as it may use:\n    taskset -c {cores} sdort run MODEL ..."
        yield Reason("processor-quota", "found", evidence.quota / evidence.processors, message, step)
    used = max((figure.processors for figure in evidence.figures if figure.model != "demo"), default=None)
    if used is not None and used < _USED * evidence.processors and not evidence.disturbances:
        message = f"{used:.1f} of {evidence.processors} processors were used"
        step = "Look at OMP_NUM_THREADS and at the cores that this process may use:\n    taskset -cp $$"
        yield Reason("idle-processors", "measured", used / evidence.processors, message, step)


def _of_settings(evidence: Evidence) -> Iterator[Reason]:
    provider = evidence.provider
    for name, why in SLOWING.items():
        if evidence.environ.get(name, "0") not in ("", "0"):
            yield Reason("slow-setting", "found", None, f"{name} is set: {why}", f"    unset {name}")
    overriding = sorted(name for name in evidence.environ if name.startswith(OVERRIDING))
    if overriding and provider.name == "migraphx":
        message = f"{some(overriding)} {'is' if len(overriding) == 1 else 'are'} set and win over sdort's options"
        yield Reason("overridden", "found", None, message, f"    unset {' '.join(overriding)}")
    if evidence.operators:
        step = "Build them:\n    sdort ops build"
        yield Reason("operators-not-built", "found", None, f"without sdort's own operators: {evidence.operators}", step)
    if provider.tuning and not evidence.tuned:
        message = f"nothing was tuned here: {provider.searched}"
        step = "Tune the sizes that you make, once:\n    sdort warm MODEL --size 512x512"
        yield Reason("not-tuned", "found", None, message, step)
    if evidence.wide_decoders:
        number = len(evidence.wide_decoders)
        message = f"the VAE is in fp32, in {counted(number, 'kept model')} ({some(evidence.wide_decoders)})"
        step = "See whether it may be in fp16:\n    sdort optimize MODEL fast --fp16 auto"
        yield Reason("vae-fp32", "found", number, message, step)
    if provider.on_gpu and evidence.recommended.provider != provider.name:
        message = f"{evidence.recommended.provider} is recommended for this card: {evidence.recommended.why}"
        yield Reason("other-provider", "found", None, message, f"Install it:\n{evidence.install}")
