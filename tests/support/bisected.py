"""Optimized graphs beside their originals, searched for the first wrong tensor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from support.exports import Case
from support.optimized_models import described

from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.onnx_io.load import load_model
from sdort.onnx_io.save import save_model
from sdort.providers import CPU, load_target
from sdort.providers.runtime_options import RuntimeOptions
from sdort.verification.bisection.blame import BisectionFinding, bisect
from sdort.verification.bisection.tensor_pairs import GraphPair
from sdort.verification.checks import Precision
from sdort.verification.component_comparison import ONNX, Comparison, compare_component
from sdort.verification.recorded_inputs import RANDOM, Inputs
from sdort.verification.runners import RunConfiguration
from sdort.workload.samples import Sample, declared_inputs, make_inputs

CONFIGURATION = RunConfiguration(CPU, RuntimeOptions(CPU.name, custom_ops="off"))


def optimized(source: Path, case: Case, folder: Path, target: str, fp16: bool = False) -> GraphPair:
    """Optimize a case; the graphs are fed with a batch of two that is not square."""
    component = described(case.family)[0]
    model = load_model(source, component)
    optimize_model(model, OptimizeOptions(load_target(target), fp16))
    save_model(model, folder / "model.onnx")
    inputs = declared_inputs(onnx.load(source, load_external_data=False), component)
    feeds = make_inputs(inputs, Sample(2, 8, 16, 7), component, seed=1)
    return GraphPair(component, source, folder / "model.onnx", CONFIGURATION, feeds)


def compare(graphs: GraphPair, precision: str = "float32") -> list[Comparison]:
    inputs = [Inputs(RANDOM, "", graphs.feeds)]
    comparisons, missing = compare_component(
        graphs.component, graphs.candidate, {ONNX: graphs.original}, CONFIGURATION, inputs, Precision(precision)
    )
    assert not missing
    return comparisons


def found_in(graphs: GraphPair, precision: str = "float32") -> BisectionFinding:
    failed = [comparison for comparison in compare(graphs, precision) if not comparison.passed]
    return bisect(graphs, failed[0])


def scaled(source: Path, folder: Path, name: str, factor: float) -> Path:
    """A copy of a model with one weight multiplied."""
    model = onnx.load(source)
    [weight] = [tensor for tensor in model.graph.initializer if tensor.name.endswith(name)]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(factor), weight.name))
    onnx.save(model, folder / "original.onnx")
    return folder / "original.onnx"
