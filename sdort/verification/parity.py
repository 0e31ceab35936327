"""Does an optimized component compute what the original does.

Both run on the same random inputs; the reference is the original on ONNX Runtime's CPU provider, in the precision it
has. What the CPU provider lacks is spelled out by :mod:`sdort.emulation.standard`, so a graph made for a GPU is
checked on any machine, and on its own provider where there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from sdort.emulation.standard import expand
from sdort.errors import BadModelError, ParityError, ProviderError, UsageError
from sdort.model.signature import Array
from sdort.onnx_io.bf16 import says_bf16
from sdort.onnx_io.component_file import read_component
from sdort.ops.library import register, resolve
from sdort.ops.opening import import_domain, unserved
from sdort.verification.limits import TOLERANCES, Tolerance
from sdort.workload.samples import Sample, declared_inputs, fixed_batch, make_inputs

__all__ = ["TOLERANCES", "OutputParity", "Parity", "Tolerance", "compare", "open_session", "precision"]

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
}
DEFAULT_SAMPLES = (Sample(1, 64, 64), Sample(2, 40, 56))
"""Batches of one and two, a square and a non-square size."""


@dataclass(frozen=True)
class OutputParity:
    """How far one output is from its reference on one sample, relative to the reference's standard deviation."""

    name: str
    sample: Sample
    largest: float
    mean: float


@dataclass(frozen=True)
class Parity:
    """What :func:`compare` measured."""

    component: str
    dtype: str
    tolerance: Tolerance
    outputs: tuple[OutputParity, ...]

    @property
    def worst(self) -> OutputParity:
        """The output that comes nearest to the tolerance, or exceeds it most."""
        return max(self.outputs, key=self._share)

    @property
    def passed(self) -> bool:
        return self._share(self.worst) <= 1

    def _share(self, output: OutputParity) -> float:
        return max(output.largest / self.tolerance.largest, output.mean / self.tolerance.mean)

    def check(self) -> None:
        """Raise ParityError if an output is out of tolerance."""
        if self.passed:
            return
        worst, limit = self.worst, self.tolerance
        size = f"batch {worst.sample.batch}, {worst.sample.height} x {worst.sample.width}"
        raise ParityError(
            f"output {worst.name!r} differs from the original by {worst.largest:.1e} of its spread at most and "
            f"{worst.mean:.1e} in the mean ({size}); {self.dtype} allows {limit.largest:.1e} and {limit.mean:.1e}",
            component=self.component,
        )


def compare(
    original: Path,
    optimized: Path,
    *,
    component: str,
    samples: Sequence[Sample] = DEFAULT_SAMPLES,
    seed: int = 0,
    provider: str = "cpu",
    custom_ops: str = "off",
) -> Parity:
    """Run both models on the same random inputs and measure how far their outputs are apart.

    Args:
        original: the ``.onnx`` file as it was exported; it runs on the CPU provider.
        optimized: the ``.onnx`` file made from it.
        component: ``unet``, ``vae_encoder``, ``vae_decoder``, ``text_encoder`` or ``text_encoder_2``.
        samples: sizes to try; those that a static model makes equal are run once.
        seed: of the random inputs.
        provider: where the optimized model runs: cpu, cuda, rocm or migraphx.
        custom_ops: which library of sdort's operators the optimized model runs with
            (:func:`sdort.ops.library.resolve`). Without one, the CPU runs a GPU's operators by their definitions.

    Returns:
        The measurements; nothing is raised for a difference, see :meth:`Parity.check`.

    Raises:
        ParityError: an output is not finite, has another shape, or the reference's is constant or not finite.
        BadModelError: a model cannot be read or run, or the two have different inputs or outputs.
        ProviderError: the provider is not in this ONNX Runtime or does not load.
    """
    if ("float32", component) not in TOLERANCES:
        raise UsageError(f"no tolerance is stated for a component {component!r}")
    reference = _read(original, component)
    candidate = _read(optimized, component)
    dtype = precision(candidate)
    feeds = _feeds(reference, candidate, samples, component, seed)
    # One after the other: only one of the two models is in memory.
    wanted = _run(reference, original.parent, list(feeds.values()), component, None)
    actual = _run(candidate, optimized.parent, list(feeds.values()), component, provider, resolve(custom_ops))
    outputs = [
        _measure(name, sample, actual_outputs, expected, component)
        for sample, actual_outputs, expected_outputs in zip(feeds, actual, wanted, strict=True)
        for name, expected in expected_outputs.items()
    ]
    return Parity(component, dtype, TOLERANCES[dtype, component], tuple(outputs))


def precision(model: onnx.ModelProto) -> str:
    """``float16`` if any weight is, ``bfloat16`` if the model was made for that, else ``float32``."""
    if says_bf16(model):
        return "bfloat16"
    half = any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in model.graph.initializer)
    return "float16" if half else "float32"


def _read(path: Path, component: str) -> onnx.ModelProto:
    return read_component(path, component).copy()


def _feeds(
    reference: onnx.ModelProto, candidate: onnx.ModelProto, samples: Sequence[Sample], component: str, seed: int
) -> dict[Sample, dict[str, Array]]:
    """Inputs for each sample; samples that fixed dims make equal are merged."""
    inputs, ours = declared_inputs(reference, component), declared_inputs(candidate, component)
    names, our_names = sorted(item.name for item in inputs), sorted(item.name for item in ours)
    if names != our_names:
        raise BadModelError(
            f"the original takes {', '.join(names)}, the optimized model {', '.join(our_names)}", component=component
        )
    feeds: dict[Sample, dict[str, Array]] = {}
    shapes = set()
    for sample in samples:
        values = make_inputs(inputs, sample, component, seed)
        key = tuple(value.shape for value in values.values())
        if key not in shapes:
            shapes.add(key)
            feeds[Sample(fixed_batch(inputs, sample), sample.height, sample.width, sample.sequence)] = values
    return feeds


def _run(
    model: onnx.ModelProto,
    folder: Path,
    feeds: list[dict[str, Array]],
    component: str,
    provider: str | None,
    library: Path | None = None,
) -> list[dict[str, Array]]:
    dtypes = {item.name: item.dtype for item in declared_inputs(model, component)}
    session = open_session(model, folder, component, provider, library)
    names = [output.name for output in session.get_outputs()]
    results = []
    for feed in feeds:
        cast = {name: value.astype(dtypes[name], copy=False) for name, value in feed.items()}
        try:
            results.append(dict(zip(names, session.run(None, cast), strict=True)))
        except Exception as error:  # onnxruntime's exceptions have no common base
            shapes = ", ".join(f"{name} {value.shape}" for name, value in cast.items())
            raise BadModelError(f"it does not run on {shapes}: {_first_line(error)}", component=component) from error
    return results


def open_session(
    model: onnx.ModelProto,
    folder: Path,
    component: str,
    provider: str | None = None,
    library: Path | None = None,
) -> ort.InferenceSession:
    """A session on a model whose external data lies in ``folder``.

    Args:
        model: belongs to this function now, which expands it for the CPU provider without a library, and imports
            com.microsoft with one.
        folder: where the external data is.
        component: for messages.
        provider: where to run; None is the CPU provider without ONNX Runtime's own fusions, for references.
        library: sdort's operators, which let the CPU run a GPU's graph as it is.

    Raises:
        BadModelError: ONNX Runtime does not load the model.
        ProviderError: the provider is missing or did not take the session.
    """
    wanted = PROVIDERS[provider or "cpu"]
    if wanted not in ort.get_available_providers():
        raise ProviderError(f"this ONNX Runtime has no {wanted}", component=component)
    if wanted == PROVIDERS["cpu"] and library is None:
        expand(model)
    options = ort.SessionOptions()
    options.log_severity_level = 4  # failures are reported once, by us
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder.resolve()))
    if library:
        register(options, library, provider or "cpu", unserved(model))
        import_domain(model)
    if provider is None:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=[wanted])
    except Exception as error:  # onnxruntime's exceptions have no common base
        raise BadModelError(f"ONNX Runtime does not load it: {_first_line(error)}", component=component) from error
    if wanted not in session.get_providers():
        raise ProviderError(f"{wanted} is listed but did not load", component=component)
    return session


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _measure(name: str, sample: Sample, actual: dict[str, Array], expected: Array, component: str) -> OutputParity:
    """The errors of one output, relative to the reference's standard deviation."""
    if name not in actual:
        raise BadModelError(f"the optimized model has no output {name!r}", component=component)
    value = actual[name]
    if value.shape != expected.shape:
        raise ParityError(f"output {name!r} is {value.shape}, the original's {expected.shape}", component=component)
    wide, wanted = value.astype(np.float64), expected.astype(np.float64)
    spread = float(wanted.std())
    if not np.isfinite(wanted).all() or spread == 0:
        raise ParityError(f"the original's own output {name!r} is constant or not finite", component=component)
    if not np.isfinite(wide).all():
        raise ParityError(f"output {name!r} has NaN or infinite values", component=component)
    error: Any = np.abs(wide - wanted) / spread
    return OutputParity(name, sample, float(error.max()), float(error.mean()))
