"""Does a provider really load here, and if not, why.

``onnxruntime.get_available_providers()`` lists what was compiled in. A build whose libraries are missing lists its
provider, logs one line, and runs everything on the CPU; only a session tells.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock, Thread
from types import FunctionType
from typing import Any

import numpy as np

from sdort.errors import ProviderError, SdortError
from sdort.machine.distributions import flavour, import_onnxruntime
from sdort.machine.system import System
from sdort.providers import AUTO, CPU, PROVIDERS, find_provider
from sdort.providers.plugins import PluginLibrary, find_plugin
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.providers.session_settings import check_options
from sdort.runtime.availability import Problem, architecture_problem, find_problems
from sdort.runtime.failures import reason_of
from sdort.runtime.opener import NotLoadedError, create_session
from sdort.runtime.plugins import taken_nodes
from sdort.runtime.recommendation import auto_order


def why_not(provider: Provider, options: RuntimeOptions) -> str | None:
    """The reason why ``provider`` cannot be used here and what to do about it; None when a session on it works."""
    if provider.is_fallback:
        return None
    with _one_at_a_time:  # who comes second finds what the first one found
        return _why_not(provider.name, options.device_id, _libraries_of(provider, options), options.device_kind)


_one_at_a_time = Lock()


def _libraries_of(provider: Provider, options: RuntimeOptions) -> tuple[tuple[str, str], ...]:
    names = {provider.name, *(plugin.execution_provider for plugin in provider.plugins)}
    return tuple((name, path) for name, path in sorted(options.ep_libraries.items()) if name in names)


@cache
def _why_not(
    name: str, device_id: int, libraries: tuple[tuple[str, str], ...] = (), device_kind: str | None = None
) -> str | None:
    provider = PROVIDERS[name]
    onnxruntime = import_onnxruntime()
    installed = flavour()
    plugin = find_plugin(provider, dict(libraries))
    if plugin:
        return _plugin_problem(
            plugin,
            provider,
            RuntimeOptions(name, device_id=device_id, device_kind=device_kind, ep_libraries=dict(libraries)),
        )
    if provider.ep not in onnxruntime.get_available_providers():
        return f"{installed.distribution} {installed.version} was built without {provider.ep}. {provider.how_to_get}"
    library = installed_library(provider)
    # Code for another GPU than this one loads, and then aborts the process at its first kernel.
    foreign = architecture_problem(provider, System(), library, device_id)
    if foreign:
        return f"{foreign.message}. {foreign.next_step}"
    _preload(onnxruntime, provider)
    reason = _session_error(provider, device_id)
    return (
        None
        if reason is None
        else explain_refusal(provider, reason, find_problems(provider, System(), library, device_id))
    )


def _session_error(provider: Provider, device_id: int) -> str | None:
    """The complaint of ONNX Runtime or the dynamic linker about a session on ``provider``, None when it works."""
    try:
        session = create_session(_tiny_model(), provider, RuntimeOptions(provider.name, device_id=device_id))
        if provider.device:
            # A GPU that the machine code is not for shows when a kernel runs. MIGraphX compiles, which would show.
            session.run(None, {"x": np.ones(1, np.float32)})
    except ImportError:
        raise
    except NotLoadedError as error:
        return library_error(provider) or error.reason
    except Exception as error:  # ONNX Runtime raises RuntimeError, ValueError and classes of its own
        return library_error(provider) or reason_of(error)
    return None


def _plugin_problem(plugin: PluginLibrary, provider: Provider, options: RuntimeOptions) -> str | None:
    """The reason why a plugin's device is not believed; None where it computes a small graph as the CPU does.

    ONNX Runtime lists devices that no session can be made on, and some plugins take operators that then fail.
    """
    try:
        session = create_session(_small_model(), provider, options)
        taken = taken_nodes(session, plugin.plugin.execution_provider)
        if not taken:
            return f"{plugin.source} takes no node of a graph of a convolution and a product"
        feeds = {"x": np.linspace(-1, 1, 4 * 16, dtype=np.float32).reshape(1, 4, 4, 4)}
        [found] = session.run(None, feeds)
        [expected] = create_session(_small_model(), CPU, RuntimeOptions(CPU.name, custom_ops="off")).run(None, feeds)
    except ImportError:
        raise
    except SdortError as error:
        return f"{error.message}. {error.hint or provider.needs}"
    except Exception as error:  # its classes share no base but Exception
        return f"{reason_of(error)}. {provider.needs}"
    deviation = float(np.abs(found - expected).max() / expected.std())
    if deviation > _SMALL_DEVIATION:
        return (
            f"{plugin.source} computes a convolution and a product wrongly: the error is {deviation:.1e} standard "
            "deviations of the result"
        )
    return None


def explain_refusal(provider: Provider, reason: str, problems: list[Problem]) -> str:
    """``reason``, what is wrong with the machine where files tell it, and what to do about all that."""
    # The linker names the first library that is missing, a problem all of them. Where it found what it looked for,
    # in whatever way, none is missing but what the provider opens later, by name.
    opened = any(name.partition(".so")[0].removeprefix("lib") in reason.lower() for name in provider.opened)
    named = any(problem.check == "libraries" and reason.split(":")[0] in problem.message for problem in problems)
    problems = [problem for problem in problems if problem.check != "libraries" or named or opened]
    what = [*([] if named else [reason]), *(problem.message for problem in problems)]
    steps = [problem.next_step for problem in problems] or [provider.needs]
    return f"{'; '.join(what)}. " + "".join(f"{step}\n" if "\n" in step else f"{step} " for step in steps).rstrip()


def _preload(onnxruntime: Any, provider: Provider) -> None:
    """Load CUDA's libraries from pip packages, where this ONNX Runtime can.

    It prints what it does not find. ``sys.stdout`` is the process's and other threads write to it, so that the function
    is called with another ``print``.
    """
    if provider.preload and hasattr(onnxruntime, "preload_dlls"):
        own: FunctionType = onnxruntime.preload_dlls
        silent = {**own.__globals__, "print": lambda *_, **__: None}
        FunctionType(own.__code__, silent, own.__name__, own.__defaults__, own.__closure__)()


def library_error(provider: Provider) -> str | None:
    """The dynamic linker's message about the provider's shared library; it names the missing ``.so``."""
    if provider.library is None:
        return None
    folder = _library_folder()
    try:
        shared = folder / "libonnxruntime_providers_shared.so"
        if shared.exists():
            # The provider libraries take symbols from it.
            ctypes.CDLL(str(shared), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(folder / provider.library))
    except OSError as error:
        return str(error)
    return None


def installed_library(provider: Provider) -> Path | None:
    """The provider's shared library in the installed ONNX Runtime, None where it has none."""
    path = _library_folder() / provider.library if provider.library else None
    return path if path and path.exists() else None


def _library_folder() -> Path:
    return Path(import_onnxruntime().__file__).parent / "capi"


def _tiny_model() -> bytes:
    from onnx import parser

    # IR version 8: any ONNX Runtime of the last years loads it.
    text = '<ir_version: 8, opset_import: ["": 17]> probe (float[1] x) => (float[1] y) { y = Add (x, x) }'
    model: bytes = parser.parse_model(text).SerializeToString()
    return model


def _small_model() -> bytes:
    """A model of a convolution and a product, in fp32, with weights that are no rounder in bf16 than others."""
    from onnx import numpy_helper, parser

    text = """<ir_version: 8, opset_import: ["": 17]>
    probe (float[1,4,4,4] x) => (float[1,4,4,4] y) {
      features = Conv <pads = [1, 1, 1, 1]> (x, kernel)
      y = MatMul (features, factor)
    }"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("kernel", (4, 4, 3, 3)), ("factor", (4, 4))):
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape, np.float32), name))
    serialized: bytes = model.SerializeToString()
    return serialized


_SMALL_DEVIATION = 1e-3
"""Greatest error of :func:`_small_model` by its result's standard deviation. fp32 and TF32's rounding of inputs stay
below 6e-4, bf16's is 4e-3 and more."""

FALLBACK_HINT = f"With --fallback it runs on the CPU; --provider {AUTO} takes the best that loads here."


def choose_provider(options: RuntimeOptions, *, hint: str = FALLBACK_HINT) -> tuple[Provider, str | None]:
    """The provider to use for a request, and why it is not the one that was asked for.

    ``auto`` takes the first of :func:`sdort.runtime.recommendation.auto_order` that loads; that is what was asked for,
    so nothing is to be excused when it is the CPU because no other was compiled in.

    Args:
        hint: what to do where the CPU may not stand in for a provider that is named and does not load.

    Returns:
        The provider and a reason, which is None when the request is met.

    Raises:
        ProviderError: ONNX Runtime is not installed; the named provider does not load and ``options.fallback`` is not
            True; or ``auto`` with ``fallback`` False finds a GPU provider compiled in that does not load; or one of
            ``options.other_devices`` cannot be used.
        UsageError: as :func:`sdort.providers.session_settings.check_options`.
    """
    import_onnxruntime()  # a CPU that is asked for needs it too, and is never probed
    if options.provider == AUTO:
        provider, reason = _first_that_loads(options)
    else:
        requested = find_provider(options.provider)
        check_options(requested, options)
        reason = why_not(requested, options)
        provider = CPU if reason else requested
        reason = f"{requested.name} cannot be used: {reason}" if reason else None
    if reason and not options.may_fall_back:
        without = f"Without --no-fallback it runs on {provider.name}."
        raise ProviderError(reason, hint=without if options.provider == AUTO else hint)
    if reason and (options.graph or options.provider_options):
        # Where it would run instead knows neither.
        raise ProviderError(reason, hint="Without --graph and --provider-option it would run on the CPU.")
    check_options(provider, options)
    for number in () if provider.is_fallback else options.other_devices:
        if refused := _why_not(provider.name, number, _libraries_of(provider, options), options.device_kind):
            raise ProviderError(f"--devices: {provider.name} cannot use GPU {number}: {refused}")
    return provider, reason


def expected_provider(options: RuntimeOptions) -> Provider:
    """The provider that :func:`choose_provider` takes if its libraries load; nothing is loaded.

    Raises:
        ProviderError: ONNX Runtime is not installed.
        UsageError: there is no such provider.
    """
    if options.provider != AUTO:
        return find_provider(options.provider)
    return auto_order(_offered(options))[0]


def probe_ahead(**asked: Any) -> None:
    """Begin to load the libraries of a provider in a thread. The process waits for it at its end: a driver that ends in
    the middle of its start may crash the process.

    :func:`choose_provider` then finds them loaded, or waits for this thread; it says what is wrong with them.

    Args:
        asked: those of :class:`RuntimeOptions` that choose a provider and a device.
    """

    def probe() -> None:
        with suppress(Exception):
            choose_provider(RuntimeOptions(**asked, fallback=True))

    if asked["provider"] != CPU.name:  # which has nothing to load
        Thread(target=probe, name="sdort-probe-ahead").start()


def _offered(options: RuntimeOptions) -> list[str]:
    """ONNX Runtime's names of the providers that ``auto`` may take, built in or by a plugin."""
    available = import_onnxruntime().get_available_providers()
    offered = (provider for provider in PROVIDERS.values() if not provider.on_request)
    return [each.ep for each in offered if each.ep in available or find_plugin(each, options.ep_libraries)]


def _first_that_loads(options: RuntimeOptions) -> tuple[Provider, str | None]:
    reasons: list[str] = []
    for provider in auto_order(_offered(options)):
        reason = why_not(provider, options)
        if reason is None:
            return provider, "; ".join(reasons) or None
        reasons.append(f"{provider.name} cannot be used: {reason}")
    raise ProviderError("ONNX Runtime has no CPU provider", hint="Install ONNX Runtime again.")
