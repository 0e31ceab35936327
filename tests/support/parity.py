"""Does an optimized component compute what the original does: errors of all outputs on the same random inputs.

The reference is the original on ONNX Runtime's CPU provider, in the precision it has. There a graph of fp16 runs as its
provider's kernels compute it, every tensor rounded where it is stored (:mod:`sdort.engines.rounding`). What the CPU
provider lacks is expanded by :mod:`sdort.onnx_io.standard_operators`, so a graph made for a GPU is checked on any
machine, and on its own provider where there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from sdort.engines.rounding import emulate_graph, narrow_tensors
from sdort.errors import BadModelError, ParityError, UsageError
from sdort.graph.signature import Array
from sdort.onnx_io.component_file import read_component
from sdort.onnx_io.precision_mark import stored_dtype
from sdort.precision.ranges import open_plain, run_plain
from sdort.providers import CPU, PROVIDERS
from sdort.providers.runtime_options import RuntimeOptions
from sdort.verification.limits import TOLERANCES, Tolerance
from sdort.verification.runners import RunConfiguration, open_model
from sdort.workload.judgement import Errors, limit_share, measure_errors, unfit
from sdort.workload.samples import Sample, declared_inputs, fixed_batch, make_inputs

DEFAULT_SAMPLES = (Sample(1, 64, 64), Sample(2, 40, 56))
"""Batches of one and two, a square and a non-square size."""


@dataclass(frozen=True)
class OutputParity:
    """How far one output is from its reference on one sample, relative to the reference's standard deviation."""

    name: str
    sample: Sample
    errors: Errors

    @property
    def largest(self) -> float:
        return self.errors.largest_share

    @property
    def mean(self) -> float:
        return self.errors.mean_share


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
        return limit_share(output.errors, self.tolerance)

    def check(self) -> None:
        """Raise ParityError if an output is out of tolerance."""
        if self.passed:
            return
        worst, limit = self.worst, self.tolerance
        size = f"batch {worst.sample.batch}, {worst.sample.height} x {worst.sample.width}"
        raise ParityError(
            f"output {worst.name!r} differs from the original by {worst.largest:.1e} of its standard deviation at most "
            f"and {worst.mean:.1e} in the mean ({size}); {self.dtype} allows {limit.largest:.1e} and {limit.mean:.1e}",
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
            (:func:`sdort.operator_library.library.resolve`). Without one, the CPU runs a GPU's operators by their
            definitions.

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
    dtype = stored_dtype(candidate)
    feeds = _feeds(reference, candidate, samples, component, seed)
    # One after the other: only one of the two models is in memory.
    stored = dtype == "float16" and provider == CPU.name and custom_ops == "off"
    configuration = RunConfiguration(PROVIDERS[provider], RuntimeOptions(provider, custom_ops=custom_ops))
    references = _run(reference, original, list(feeds.values()), component, None)
    if stored:
        actual = _run_stored(candidate, optimized, list(feeds.values()), component)
    else:
        actual = _run(candidate, optimized, list(feeds.values()), component, configuration)
    outputs = [
        _measure(name, sample, actual_outputs, expected, component)
        for sample, actual_outputs, expected_outputs in zip(feeds, actual, references, strict=True)
        for name, expected in expected_outputs.items()
    ]
    return Parity(component, dtype, TOLERANCES[dtype, component], tuple(outputs))


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
    path: Path,
    feeds: list[dict[str, Array]],
    component: str,
    configuration: RunConfiguration | None,
) -> list[dict[str, Array]]:
    session = open_model(model, path, component, configuration)
    return [session.run(feed) for feed in feeds]


def _run_stored(
    model: onnx.ModelProto, path: Path, feeds: list[dict[str, Array]], component: str
) -> list[dict[str, Array]]:
    """With every tensor stored in its type, which ONNX Runtime's CPU provider does not: fp16 would be fp32 there."""
    session = open_plain(emulate_graph(model, narrow_tensors(path, component)), path, component)
    return [run_plain(session, feed) for feed in feeds]


def open_raw(
    model: onnx.ModelProto, folder: Path, component: str, provider: str | None = None, library: Path | None = None
) -> Any:
    """An ``InferenceSession`` on a graph whose weights lie in ``folder``; without a provider, as a reference."""
    options = RuntimeOptions(provider or CPU.name, custom_ops=str(library) if library else "off", split=False)
    configuration = RunConfiguration(PROVIDERS[provider], options) if provider else None
    return open_model(model, folder / "model.onnx", component, configuration).ort


def _measure(name: str, sample: Sample, actual: dict[str, Array], expected: Array, component: str) -> OutputParity:
    """The errors of one output, relative to the reference's standard deviation."""
    if name not in actual:
        raise BadModelError(f"the optimized model has no output {name!r}", component=component)
    value = actual[name]
    if unfit(expected, None):
        raise ParityError(f"the original's own output {name!r} is constant or not finite", component=component)
    if problem := unfit(value, expected, "the original's"):
        raise ParityError(f"output {name!r} {problem}", component=component)
    return OutputParity(name, sample, measure_errors(value, expected))
