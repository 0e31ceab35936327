"""Small graphs from ONNX's text syntax, and what they compute."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper, parser
from support.hardware import execution_provider, provider_of

from sdort.graph.domains import OWN_DOMAIN
from sdort.graph.model import Model
from sdort.graph.symbolic import Dim
from sdort.graph.weights import Weight
from sdort.lowering.component_report import count_operators
from sdort.onnx_io.load import from_proto
from sdort.onnx_io.own_functions import own_function
from sdort.onnx_io.save import save_model
from sdort.onnx_io.standard_operators import expand
from sdort.operators import load_operators
from sdort.passes.upgrade import set_opset
from sdort.rewrite.editor import Editor

Array = npt.NDArray[Any]


class Described(Weight):
    """A weight that must not be read: only its shape and dtype are known."""

    def load(self) -> Array:
        raise AssertionError("a weight was loaded while the graph was rewritten")


def parse(text: str, weights: Mapping[str, Array | Weight] | None = None, opset: int = 23) -> onnx.ModelProto:
    """The model of a graph text; ``weights`` are initializers that the text uses and does not declare."""
    header = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1, "sdort": 1]>\n'
    model = parser.parse_model(header + text)
    for own in [node for node in model.graph.node if node.domain == OWN_DOMAIN][:1]:
        names = load_operators()[own.domain, own.op_type].inputs
        form = frozenset(name for name, given in zip(names, own.input, strict=False) if given)
        model.functions.append(own_function(own.op_type, form, opset))
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}.{index}"
    for name, values in (weights or {}).items():
        if isinstance(values, Weight):
            kind = helper.np_dtype_to_tensor_dtype(values.dtype)
            model.graph.initializer.append(TensorProto(name=name, data_type=kind, dims=values.shape))
        else:
            model.graph.initializer.append(numpy_helper.from_array(values, name))
    return model


def load(text: str, weights: Mapping[str, Array | Weight] | None = None, opset: int = 23) -> Model:
    """The same as sdort's model."""
    described = {name: value for name, value in (weights or {}).items() if isinstance(value, Weight)}
    return from_proto(parse(text, weights, opset), lambda tensor: described.get(tensor.name), "test")


def edit(text: str, weights: Mapping[str, Array | Weight] | None = None, opset: int = 23) -> Editor:
    """An editor of the same."""
    return Editor(load(text, weights, opset))


def operators(editor: Editor) -> dict[str, int]:
    """Operators by name, those of other domains as ``domain.name``."""
    return count_operators(editor.model)


def to_proto(model: Model) -> onnx.ModelProto:
    """The model as sdort writes it."""
    set_opset(model, model.graph.opset)
    with tempfile.TemporaryDirectory() as folder:
        save_model(model, Path(folder) / "model.onnx")
        return onnx.load(Path(folder) / "model.onnx")


def run(model: onnx.ModelProto | Model, feeds: Mapping[str, Array], target: str = "cpu") -> list[Array]:
    """The outputs, without ONNX Runtime's own optimizations, on its CPU provider or where :mod:`hardware` says."""
    proto = to_proto(model) if isinstance(model, Model) else onnx.ModelProto.FromString(model.SerializeToString())
    if provider_of(target) == "cpu":
        expand(proto)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    providers = [execution_provider(target)]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=providers)
    assert session.get_providers()[0] == providers[0]
    return [np.asarray(value) for value in session.run(None, dict(feeds))]


def feeds_for(model: onnx.ModelProto, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
    """Random inputs, with the named dims at ``sizes``; integers are 0, 1 or 2."""
    rng = np.random.default_rng(seed)
    constants = {tensor.name for tensor in model.graph.initializer}
    feeds: dict[str, Array] = {}
    for info in (i for i in model.graph.input if i.name not in constants):
        kind = info.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else sizes[d.dim_param] for d in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        values = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 3, shape)
        feeds[info.name] = np.asarray(values).astype(dtype)
    return feeds


def evaluate(dim: Dim, sizes: Mapping[str, int]) -> int:
    """A symbolic dim with its named sizes put in; an independent reading of the normal form."""
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, factor in dim.terms.items():
        for atom in monomial:
            factor *= sizes[atom] if isinstance(atom, str) else evaluate(atom[0], sizes) // atom[1]
        total += factor
    return total


def check_depends(model: onnx.ModelProto, sizes: Mapping[str, int], outputs: list[Array]) -> None:
    """Whether each floating-point output is another one of other inputs: ``x - x`` hides whatever is done to ``x``."""
    feeds = feeds_for(model, sizes, seed=1)
    for output, other in zip(outputs, run(model, feeds) if feeds else [], strict=bool(feeds)):
        if output.dtype.kind == "f" and output.size:
            assert not np.array_equal(output, other), "an output is the same whatever is fed"


def check_step(
    text: str,
    step: Callable[[Editor], object],
    sizes: Mapping[str, int] | None = None,
    weights: Mapping[str, Array | Weight] | None = None,
    *,
    rtol: float = 0,
    opset: int = 23,
    constant: bool = False,
) -> dict[str, int]:
    """The operators that a pass leaves, after a check that all outputs are still computed as before.

    Args:
        step: the pass.
        sizes: the named dims of the inputs.
        rtol: how much an element may differ, of the largest one; 0 where only the same arithmetic is done.
        constant: the graph computes from the inputs' shapes alone.
    """
    editor = edit(text, weights, opset)
    proto = parse(text, weights, opset)
    feeds = feeds_for(proto, sizes or {})
    names = [output.name for output in editor.graph.outputs]
    step(editor)
    assert [output.name for output in editor.graph.outputs] == names
    all_wanted = run(proto, feeds)
    if not constant:
        check_depends(proto, sizes or {}, all_wanted)
    for found, wanted in zip(run(editor.model, feeds), all_wanted, strict=True):
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        if rtol:
            assert np.abs(found - wanted).max() <= rtol * np.abs(wanted).max()
        else:
            np.testing.assert_array_equal(found, wanted)
    return operators(editor)
