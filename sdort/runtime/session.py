"""One ONNX model on one execution provider."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sdort.errors import BadModelError, MemoryShortageError, ProviderError, SdortError
from sdort.machine.distributions import import_onnxruntime
from sdort.model.signature import Array, TensorSpec
from sdort.onnx_io.component_file import read_component
from sdort.providers.bf16 import check_bf16, with_bf16
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import placement
from sdort.runtime.probe import FATAL, create_session, first_line
from sdort.tuning.session_hooks import prepare

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(bool)": "bool",
}


class Binding:
    """Inputs on the provider's device and outputs that stay there, to be run again and again."""

    def __init__(self, session: Session, feeds: Mapping[str, Array]) -> None:
        self.session = session
        self._binding = session.ort.io_binding()
        for name, value in session.cast(feeds).items():
            self._binding.bind_ortvalue_input(name, session.upload(value))
        for spec in session.outputs:
            self._binding.bind_output(spec.name, *session.memory)

    def run(self) -> None:
        """Run the model once and wait for its end."""
        self.session.guard(self._binding.synchronize_inputs)
        self.session.run_bound(self._binding)
        self.session.guard(self._binding.synchronize_outputs)

    def outputs(self) -> dict[str, Array]:
        """The outputs of the last run, in host memory."""
        values = self.session.guard(self._binding.copy_outputs_to_cpu)
        return {spec.name: value for spec, value in zip(self.session.outputs, values, strict=True)}


def _quiet_settings() -> Any:
    settings = import_onnxruntime().RunOptions()
    settings.log_severity_level = FATAL
    return settings


class Session:
    """An open model. ``provider`` is what really runs it, after any fallback."""

    def __init__(self, ort: Any, path: Path, component: str, provider: Provider, options: RuntimeOptions) -> None:
        self.ort = ort
        self.path = path
        self.component = component
        self.provider = provider
        self.options = options
        self.inputs = {arg.name: self._spec(arg) for arg in ort.get_inputs()}
        self.outputs = [self._spec(arg) for arg in ort.get_outputs()]
        # A session that was opened to log its placement would log every step of every run too.
        self._quiet = _quiet_settings()
        self._graphs: dict[int, Any] = {}
        self.ran_on: set[tuple[tuple[str, tuple[int, ...]], ...]] = set()
        """The dimensions of all inputs, by name, of every :meth:`run` from host memory that succeeded."""

    def _spec(self, arg: Any) -> TensorSpec:
        if arg.type not in _DTYPES:
            raise BadModelError(
                f"{arg.name!r} has the type {arg.type}, which no diffusion component has", component=self.component
            )
        return TensorSpec(arg.name, np.dtype(_DTYPES[arg.type]), tuple(arg.shape))

    @property
    def memory(self) -> tuple[str, int]:
        """Device name and index, as ONNX Runtime's ``OrtValue`` and ``IOBinding`` take them."""
        return (self.provider.device, self.options.device_id) if self.provider.device else ("cpu", 0)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Run the model.

        Args:
            feeds: per input an array, cast to the dtype that the input declares, or what :meth:`upload` returned.

        Returns:
            The outputs by name, in host memory.

        Raises:
            ProviderError: the provider failed, or ran out of memory.
            BadModelError: a required input is missing, or a shape does not fit.
        """
        values = self.cast(feeds)
        if all(isinstance(value, np.ndarray) for value in values.values()):
            results = self.guard(lambda: self.ort.run(None, values, self._quiet))
            self.ran_on.add(tuple((name, np.shape(value)) for name, value in values.items()))
            return {spec.name: value for spec, value in zip(self.outputs, results, strict=True)}
        uploaded = {name: self._on_device(value) for name, value in values.items()}
        kept = self.guard(lambda: self.ort.run_with_ort_values(None, uploaded, self._quiet))
        return {spec.name: self.download(value) for spec, value in zip(self.outputs, kept, strict=True)}

    def run_bound(self, binding: Any, graph: int = 1) -> None:
        """Run an ``IOBinding`` of ONNX Runtime's.

        Args:
            graph: with ``options.graph``, which recorded graph this is. The first run of a number records it; from then
                on the number stands for those shapes and addresses.
        """
        settings = self._recorded(graph) if self.options.graph else self._quiet
        self.guard(lambda: self.ort.run_with_iobinding(binding, settings))

    def _recorded(self, graph: int) -> Any:
        if graph not in self._graphs:
            self._graphs[graph] = _quiet_settings()
            self._graphs[graph].add_run_config_entry("gpu_graph_id", str(graph))
        return self._graphs[graph]

    def stop(self) -> None:
        """End every run of this session, the one that is going on in another thread too, with a ProviderError."""
        self._quiet.terminate = True

    def bind(self, feeds: Mapping[str, Array]) -> Binding:
        """Put ``feeds`` on the device once, for many runs."""
        return Binding(self, feeds)

    def upload(self, value: Array) -> Any:
        """``value`` as an ``OrtValue`` in the provider's memory; on the CPU it shares the array's memory."""
        make = import_onnxruntime().OrtValue.ortvalue_from_numpy
        return self.guard(lambda: make(np.asarray(value, order="C"), *self.memory))

    def download(self, value: Any) -> Array:
        """An ``OrtValue`` as an array in host memory; on the CPU it shares the value's memory."""
        return np.asarray(self.guard(value.numpy))

    def _on_device(self, value: Any) -> Any:
        return self.upload(value) if isinstance(value, np.ndarray) else value

    def cast(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The model's inputs from ``feeds``, arrays cast to the declared dtypes, the rest as it is."""
        missing = [name for name in self.inputs if name not in feeds]
        if missing:
            raise BadModelError(
                f"the model wants the inputs {', '.join(missing)}, which nothing here provides",
                component=self.component,
            )
        return {
            name: np.asarray(feeds[name], spec.dtype, order="C") if isinstance(feeds[name], np.ndarray) else feeds[name]
            for name, spec in self.inputs.items()
        }

    def guard(self, call: Any) -> Any:
        """Run ``call`` and turn what ONNX Runtime raises into an error of ours."""
        try:
            return call()
        except SdortError:
            raise
        except Exception as error:  # its classes share no base but Exception
            raise run_error(error, self.component, self.provider) from error


def open_session(path: Path, component: str, provider: Provider, options: RuntimeOptions) -> Session:
    """Open a model on a provider that is known to load (:func:`sdort.runtime.probe.choose_provider`).

    Raises:
        BadModelError: the file is unsafe or broken, or ONNX Runtime cannot read it.
        ProviderError: the provider has no kernel for one of its operators, or ``options.no_fallback`` and part of
            the model would run on the CPU.
    """
    if options.no_fallback and not provider.is_fallback:
        session, log = open_logged(path, component, provider, options)
        placement.refuse_fallback(log, provider, component)
        return session
    return _open(path, component, provider, options, FATAL)


def open_logged(path: Path, component: str, provider: Provider, options: RuntimeOptions) -> tuple[Session, str]:
    """:func:`open_session`, and the log of the initialisation, for :func:`sdort.runtime.placement.parse_placement`."""
    return placement.run_logged(lambda: _open(path, component, provider, options, 0))


def _open(path: Path, component: str, provider: Provider, options: RuntimeOptions, severity: int) -> Session:
    check_file(path, component)
    options = with_bf16(path, component, provider, options)
    tuned = prepare(path, component, provider, options)
    try:
        ort = create_session(str(path), provider, tuned.options, severity=severity)
    except SdortError:
        raise
    except Exception as error:  # its classes share no base but Exception
        raise load_error(error, path, component, provider) from error
    if provider.ep not in ort.get_providers():
        raise ProviderError(f"ONNX Runtime left {provider.name} for {ort.get_providers()}", component=component)
    check_bf16(ort, component, provider, options)
    tuned.give(ort)
    return Session(ort, path, component, provider, options)


def check_file(path: Path, component: str) -> None:
    """Refuse an untrusted file that points outside its folder or is otherwise unsafe, before ONNX Runtime reads it.

    Raises:
        BadModelError: as :meth:`sdort.onnx_io.component_file.ComponentFile.check`.
    """
    read_component(path, component).check()


def load_error(error: Exception, path: Path, component: str, provider: Provider) -> SdortError:
    """What to say when ONNX Runtime refuses a model."""
    text = _reason(error)
    if "NOT_IMPLEMENTED" in text or "not a registered function/op" in text or "No Op registered" in text:
        return ProviderError(
            f"{provider.name} cannot run {path}: {text}",
            component=component,
            hint=f"The model was made for another provider: sdort optimize ORIGINAL OUT --provider {provider.name}. "
            "With sdort's own operators (sdort ops build) the CPU runs models made for rocm and cuda.",
        )
    if _out_of_memory(text):
        return MemoryShortageError(f"no memory left on {provider.name} to load the model", component=component)
    if _device_lost(text):
        return _lost_error(text, component, provider)
    if "opset" in text.lower() or "ir version" in text.lower():
        return ProviderError(
            f"this ONNX Runtime is too old for {path}: {text}",
            component=component,
            hint=f"Optimizing sets what it loads: sdort optimize ORIGINAL OUT --provider {provider.name}.",
        )
    return BadModelError(
        f"ONNX Runtime cannot load {path}: {text}", component=component, hint="Export or optimize the model again."
    )


def run_error(error: Exception, component: str, provider: Provider) -> SdortError:
    """What to say when a run fails."""
    text = _reason(error)
    if _out_of_memory(text):
        return MemoryShortageError(
            f"{provider.name} ran out of memory: {text}",
            component=component,
            hint="Take fewer images at once or a smaller size.",
        )
    if _device_lost(text):
        return _lost_error(text, component, provider)
    if "INVALID_ARGUMENT" in text:
        return BadModelError(f"the model does not take this input: {text}", component=component)
    return ProviderError(f"the run on {provider.name} failed: {text}", component=component)


def _lost_error(text: str, component: str, provider: Provider) -> ProviderError:
    return ProviderError(
        f"{provider.name} lost the GPU: {text}",
        component=component,
        hint="Its driver says why (dmesg); start anew once sdort doctor finds the GPU again.",
    )


def _reason(error: Exception) -> str:
    """What an error says of the device or its memory, without the C++ signature before and the source file after it."""
    text = first_line(str(error))
    found = re.search(r"\b(?:(?:HIP|CUDA) (?:failure|error) |Failed to allocate memory )[^;]*", text)
    return found[0].strip() if found else text


def _out_of_memory(text: str) -> bool:
    text = text.lower()
    signs = (
        "failed to allocate memory", "bad_alloc", "out of memory", "outofmemory", "bad allocation", "alloc_failed",
        "smaller than requested bytes",
    )  # fmt: skip
    return any(sign in text for sign in signs)


def _device_lost(text: str) -> bool:
    """Errors of HIP and CUDA after which no call of the process succeeds any more."""
    text = text.lower()
    signs = (
        "illegal memory access", "illegaladdress", "launch failure", "launchfailure", "launch timed out", "devicelost",
        "device lost", "device is lost", "uncorrectable ecc", "hiperrornodevice", "no longer available",
    )  # fmt: skip
    return any(sign in text for sign in signs)
