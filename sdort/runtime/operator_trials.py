"""Trials of a provider's kernels: an operator that is not ONNX's own runs once on small inputs before it is believed.

A kernel that computes something else says nothing of it. So each operator of ONNX Runtime's and of sdort's domain that
the provider's target has is run at the sizes of its file (:mod:`sdort.operators`), in a process of its own, and held to
its definition on the CPU. The verdicts are kept for the provider, its version, the device and its driver, so that a
later process reads a file.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from subprocess import TimeoutExpired
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np

from sdort.console import detail, say, warn
from sdort.errors import ProviderError, SdortError
from sdort.files.user_folders import trials_folder
from sdort.files.verified_cache import VerifiedCache
from sdort.graph.domains import MICROSOFT
from sdort.graph.operator import Call, Category, Example, Operator
from sdort.graph.signature import Array
from sdort.machine.gpus import driver_of
from sdort.machine.subprocesses import WorkerError, run_worker
from sdort.machine.system import System
from sdort.machine.version import __version__
from sdort.onnx_io.component_file import ComponentFile, read_component
from sdort.onnx_io.operator_examples import example_call, example_feeds, example_model
from sdort.onnx_io.precision_mark import stored_dtype
from sdort.onnx_io.standard_operators import expand
from sdort.operator_library.library import OFF, library_hash, resolve
from sdort.operators import find_operator, load_operators
from sdort.providers import CPU, PROVIDERS
from sdort.providers.plugins import find_plugin
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.failures import reason_of
from sdort.runtime.opener import create_session
from sdort.runtime.plugins import plugin_device
from sdort.tuning.device import this_machine
from sdort.tuning.key import lasting_options

LIMIT = 0.05
"""Greatest error of a kernel, by the standard deviation of its result, that rounding explains: bf16's largest errors
of a product are 0.01 to 0.02. What is wrong is 0.5 and more."""
_TIMEOUT = 300
"""Seconds for a provider's trials; a GPU may compile every kernel."""
_CACHE_LIMIT = 1 << 20
_DTYPES = ("float32", "float16")
_DRIVER_VARIABLES = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
"""Variables that choose the driver of a plugin's device, in the place of the system's."""


@dataclass(frozen=True)
class Trial:
    """The outcome of trying an operator.

    Attributes:
        error: the greatest error of an output by its standard deviation; None where it did not run.
        problem: why it did not run; None where it did.
    """

    error: float | None = None
    problem: str | None = None

    @property
    def wrong(self) -> str | None:
        """The fault of the kernel, in words; None where it is right, or does not run and so says itself."""
        if self.error is None or self.error <= LIMIT:
            return None
        size = f"{self.error:.2g} standard deviations" if np.isfinite(self.error) else "not a number"
        return f"tried on this machine, its error is {size}"


Trials = Mapping[str, Trial]
"""Trials by operator, ``com.microsoft.MultiHeadAttention``; one that has none was not tried."""


def refuse_wrong_operators(path: Path, component: str, provider: Provider, options: RuntimeOptions) -> None:
    """Check that a file has no operator that the provider computes wrongly here.

    Raises:
        ProviderError: it has one; the operator is named.
        BadModelError: the file cannot be read.
    """
    wrong = wrong_operators(path, component, provider, options)
    if wrong:
        raise ProviderError(
            _sentence(provider, wrong),
            component=component,
            hint="Made for this machine, a model has it in standard operators:\n"
            f"    sdort optimize ORIGINAL OUT --provider {provider.name}\n"
            "  sdort verify measures what comes of it as it is, and --no-trials runs it.",
        )


def warn_of_wrong_operators(path: Path, component: str, provider: Provider, options: RuntimeOptions) -> None:
    """Say which operators of a file the provider computes wrongly here.

    Raises:
        BadModelError: the file cannot be read.
    """
    wrong = wrong_operators(path, component, provider, options)
    if wrong:
        warn(f"{component}: {_sentence(provider, wrong)}")


def wrong_operators(path: Path, component: str, provider: Provider, options: RuntimeOptions) -> dict[str, str]:
    """The operators of a file that the provider computes wrongly here, by name, and what is wrong with each.

    Raises:
        BadModelError: the file cannot be read.
    """
    if provider.is_fallback or not options.trials:
        return {}
    file = read_component(path, component)
    used = _operators_of(file)
    if not used:
        return {}
    dtype = stored_dtype(file.proto)
    trials = tried(provider, options, dtype if dtype in _DTYPES else _DTYPES[0])
    reasons = {name: trials[name].wrong for name in sorted(used & trials.keys())}
    return {name: reason for name, reason in reasons.items() if reason}


def _operators_of(file: ComponentFile) -> set[str]:
    """The operators of a file that are not ONNX's own, ``com.microsoft.MultiHeadAttention``."""
    nodes = file.graph.graph.node
    found = {find_operator(node.domain, node.op_type) for node in nodes}
    return {operator.qualified_name for operator in found if operator is not None}


def _sentence(provider: Provider, wrong: Mapping[str, str]) -> str:
    each = "; ".join(f"{name.rpartition('.')[2]} ({reason})" for name, reason in wrong.items())
    return f"{provider.name} computes something else than it should: {each}"


# --- the verdicts ---

_one_at_a_time = Lock()
_known: dict[str, Trials] = {}
"""Trials that this process knows, by their key as a text."""


def tried(provider: Provider, options: RuntimeOptions, dtype: str) -> Trials:
    """The trials of all operators of a provider's target, made now where none are kept.

    Args:
        dtype: of the floats, ``float32`` or ``float16``.

    Returns:
        Nothing where the driver does not tell which device there is, and where the trials do not end.
    """
    with _one_at_a_time:  # who comes second finds what the first one found
        trials = kept(provider, options, dtype)
        key = _key(provider, options, dtype) if trials is None else None
        if key is not None:
            trials = _make(provider, options, dtype)
            _known[_text(key)] = trials
            if trials:
                content = json.dumps({name: asdict(trial) for name, trial in trials.items()})
                _cache().store(provider.name, key, content.encode())
    return trials or {}


def kept(provider: Provider, options: RuntimeOptions, dtype: str) -> Trials | None:
    """The trials of this provider, device and driver that were made before; None where there are none."""
    key = _key(provider, options, dtype)
    if key is not None and _text(key) not in _known:
        trials = _read(_cache().load_json(provider.name, key))
        if trials is not None:
            detail(f"{in_words(trials, dtype)} on {provider.name}, found before")
            _known[_text(key)] = trials
    return None if key is None else _known.get(_text(key))


def _make(provider: Provider, options: RuntimeOptions, dtype: str) -> Trials:
    """Trials, or nothing where they do not end."""
    operators = list(_candidates(provider, options, dtype))
    if not operators:
        return {}
    say(f"trying {len(operators)} operators of {provider.name}, once for this device and driver")
    start = perf_counter()
    try:
        trials = _try_in_worker(provider, options, dtype, operators)
    except TimeoutExpired:
        warn(f"the operators of {provider.name} were not tried within {_TIMEOUT} s and run untried")
        return {}
    detail(f"{in_words(trials, dtype)} on {provider.name}, in {perf_counter() - start:.1f} s")
    return trials


def in_words(trials: Trials, dtype: str) -> str:
    """Trials as a sentence without its full stop: ``11 of 12 operators are right in float32; ...``."""
    right = [name for name, trial in trials.items() if trial.error is not None and not trial.wrong]
    others = [
        f"{name.rpartition('.')[2]}: {trial.wrong or f'does not run, {trial.problem}'}"
        for name, trial in trials.items()
        if name not in right
    ]
    return "; ".join([f"{len(right)} of {len(trials)} operators are right in {dtype}", *others])


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


def _read(value: Any) -> Trials | None:
    """Trials from JSON that a stranger may have made."""
    if not isinstance(value, dict):
        return None
    for trial in value.values():
        if not isinstance(trial, dict) or trial.keys() != {"error", "problem"}:
            return None
        number, text = isinstance(trial["error"], (int, float)), isinstance(trial["problem"], str)
        if not (number and trial["problem"] is None) and not (text and trial["error"] is None):
            return None
    return {name: Trial(**trial) for name, trial in value.items()}


def _cache() -> VerifiedCache:
    return VerifiedCache(trials_folder(), "the record of tried operators", ".trials", _CACHE_LIMIT)


def _key(provider: Provider, options: RuntimeOptions, dtype: str) -> dict[str, Any] | None:
    """Everything that trials depend on; None where the driver does not tell what there is."""
    try:
        machine = this_machine(provider.name, options.device_id)
        plugin = _plugin_identity(provider, options)
    except ProviderError:
        return None
    library = resolve(options.custom_ops)
    return {
        "sdort": __version__,
        "operators": _operators_digest(),
        "machine": asdict(machine),
        "plugin": plugin,
        "custom_ops": library_hash(library) if library else None,
        "options": dict(lasting_options(provider, options)),
        "dtype": dtype,
    }


def _plugin_identity(provider: Provider, options: RuntimeOptions) -> list[Any]:
    """Facts that the kernels of a plugin depend on: its version, the device that it is given, and drivers of GPUs.

    Raises:
        ProviderError: the plugin does not load, or has no such device.
    """
    plugin = find_plugin(provider, options.ep_libraries)
    if plugin is None:
        return []
    device = plugin_device(plugin, options.device_id, options.device_kind).device
    system = System()
    return [
        plugin.source,
        [device.vendor, device.vendor_id, device.device_id, dict(device.metadata)],
        [driver_of(vendor, system) for vendor in ("amd", "nvidia")],
        {name: os.environ[name] for name in _DRIVER_VARIABLES if name in os.environ},
    ]


@cache
def _operators_digest() -> str:
    """A hash of what is tried: of the operators' calls and definitions."""
    digest = hashlib.sha256()
    for operator in load_operators().values():
        for example in _examples(operator):
            body = operator.definition(example_call(operator, example, np.dtype(np.float32)))
            digest.update(f"{operator.qualified_name} {example} {body}\n".encode())
    return digest.hexdigest()[:16]


# --- the trials ---


def _examples(operator: Operator) -> tuple[Example, ...]:
    return operator.trials or operator.examples


def _candidates(provider: Provider, options: RuntimeOptions, dtype: str) -> Iterator[str]:
    """The operators that there is a form of that the target takes; of sdort's own where their library takes part."""
    library = resolve(options.custom_ops)
    for operator in load_operators().values():
        if (operator.domain == MICROSOFT or library) and any(_forms(operator, provider, np.dtype(dtype))):
            yield operator.qualified_name


def _forms(operator: Operator, provider: Provider, dtype: np.dtype[Any]) -> Iterator[tuple[Example, Call]]:
    """The calls of an operator's trials that the provider's target takes, also of operators that are doubted."""
    takes = provider.target.judged(dict.fromkeys(provider.target.doubted)).conditions.get(operator.qualified_name)
    for example in _examples(operator) if takes else ():
        call = example_call(operator, example, dtype)
        if takes and takes(call) is None:
            yield example, call


def _try_in_worker(provider: Provider, options: RuntimeOptions, dtype: str, operators: list[str]) -> Trials:
    """Trials in a process that a driver or a kernel may end; then each operator has one of its own.

    Raises:
        TimeoutExpired: they do not end.
    """
    settings = {
        name: getattr(options, name)
        for name in ("device_id", "device_kind", "provider_options", "ep_libraries", "custom_ops")
    }
    task = {"provider": provider.name, "dtype": dtype, "operators": operators, "options": settings}
    try:
        answer = run_worker("sdort.runtime.operator_trials:try_operators", task, timeout=_TIMEOUT)
    except WorkerError as error:
        if len(operators) == 1:
            said = f"the process ended with code {error.code}, which said: {error.said}"
            return {operators[0]: Trial(problem=said)}
        parts = [_try_in_worker(provider, options, dtype, [operator]) for operator in operators]
        return {name: trial for part in parts for name, trial in part.items()}
    return {name: Trial(**trial) for name, trial in answer.items()}


def try_operators(
    provider: str, dtype: str, operators: Collection[str], options: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Run operators in this process; each one's :class:`Trial` as JSON values."""
    asked = RuntimeOptions(provider, **options)
    chosen = [each for each in load_operators().values() if each.qualified_name in operators]
    return {each.qualified_name: asdict(_try(each, PROVIDERS[provider], asked, np.dtype(dtype))) for each in chosen}


def _try(operator: Operator, provider: Provider, options: RuntimeOptions, dtype: np.dtype[Any]) -> Trial:
    """Run all forms of an operator that the target takes; the greatest error."""
    error = 0.0
    for example, call in _forms(operator, provider, dtype):
        feeds = example_feeds(operator, example, dtype)
        try:
            found = _run(operator, example, call, feeds, provider, options)
        except Exception as failure:  # ONNX Runtime's classes share no base but Exception
            return Trial(problem=failure.message if isinstance(failure, SdortError) else reason_of(failure))
        wide = {name: _widened(values) for name, values in feeds.items()}
        wide_call = example_call(operator, example, np.dtype(np.float32))
        expected = _run(operator, example, wide_call, wide, CPU, RuntimeOptions(CPU.name, custom_ops=OFF))
        error = max(error, *(_error(*pair) for pair in zip(found, expected, strict=True)))
    return Trial(error)


def _run(
    operator: Operator,
    example: Example,
    call: Call,
    feeds: Mapping[str, Array],
    provider: Provider,
    options: RuntimeOptions,
) -> list[Array]:
    """The outputs of one node on a provider; on the CPU of the node's definition, where that has no kernel."""
    others = [*feeds][1:]
    # Weights of products and convolutions are constants in models, which providers lay out anew when they load.
    stored = others if operator.category in (Category.CONVOLUTION, Category.PRODUCT) else []
    model = example_model(operator, call, example, {name: feeds[name] for name in stored})
    if provider.is_fallback:
        expand(model)
    session = create_session(model.SerializeToString(), provider, options)
    return list(session.run(None, {name: values for name, values in feeds.items() if name not in stored}))


def _widened(values: Array) -> Array:
    return values.astype(np.float32) if values.dtype == np.float16 else values


def _error(found: Array, expected: Array) -> float:
    """The greatest difference by the standard deviation; infinite where a number is none.

    Of values that hardly differ from each other, one alone for example, a tenth of their size stands for that: rounding
    goes by the size.
    """
    difference = np.abs(found.astype(np.float64) - expected)
    size = math.sqrt(np.square(expected, dtype=np.float64).mean())
    spread = max(float(expected.std()), size / 10, 1e-30)
    return float(difference.max() / spread) if np.isfinite(difference).all() else math.inf
