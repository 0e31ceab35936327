"""The ONNX backend's node tests as a matrix: what sdort makes of each model, for each target.

The onnx package generates its node tests in Python (``onnx.backend.test.case.node``, one module an operator): a model
of one node, or of the operator's function body, with inputs and the outputs that the specification asks for.
"""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import numpy_helper
from support.hardware import execution_provider, provider_of

from sdort.errors import SdortError
from sdort.graph.weights import Absent, Weight
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.onnx_io.load import from_proto
from sdort.onnx_io.save import save_model
from sdort.onnx_io.standard_operators import expand
from sdort.providers import load_target
from sdort.rewrite.editor import Editor

Array = npt.NDArray[Any]
BUG = "This is a bug in sdort"
RUNTIME_DIFFERS = frozenset(
    # Scaled sizes that are not whole: the specification aligns corners by scale x size, ONNX Runtime by the size
    # rounded down. sdort has to compute what ONNX Runtime does from the model as it came.
    {"test_resize_downsample_scales_cubic_align_corners", "test_resize_downsample_scales_linear_align_corners"}
)
TOLERANCES = {"float16": (1e-2, 1e-2), "float32": (1e-3, 1e-5)}
"""(relative, absolute) by the precision of the arithmetic; the suite's own are (1e-3, 1e-7)."""


@dataclass(frozen=True)
class NodeTest:
    """One test of the suite: a model, its inputs and the outputs that the specification asks for."""

    name: str
    operator: str
    """The operator it tests; an ``_expanded`` model is made of others."""
    model: onnx.ModelProto
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]

    def __str__(self) -> str:
        return self.name


@lru_cache
def node_tests(module: str) -> tuple[NodeTest, ...]:
    """The tests that a module of ``onnx.backend.test.case.node`` defines; ``"conv"``, ``"groupnormalization"``, ..."""
    from onnx.backend.test.case import node as suite

    before = len(suite._NodeTestCases)
    state = np.random.get_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, of infinities that tests make on purpose
        importlib.import_module(f"{suite.__name__}.{module}")
    np.random.set_state(state)  # the suite seeds numpy's global generator
    found, operator = [], ""
    for case in suite._NodeTestCases[before:]:
        if "_expanded" not in case.name:
            operator = case.model.graph.node[0].op_type
        ((inputs, outputs),) = case.data_sets
        found.append(NodeTest(case.name, operator, case.model, tuple(map(_array, inputs)), tuple(map(_array, outputs))))
    assert found, f"{module} was imported before: its tests cannot be told from others"
    return tuple(found)


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return value if value is None or isinstance(value, (list, dict)) else np.asarray(value)


class Refused(Exception):
    """sdort refused the model in words."""


class Wrong(AssertionError):
    """sdort failed without words, or what it wrote does not load or computes something else."""


@dataclass(frozen=True)
class Variant:
    """What is done to a test's model before it is optimized, and how it is."""

    constants: bool = False
    """All inputs but the first are initializers, as weights are."""
    convolved: bool = False
    """It stands between convolutions that change nothing, inside a channels-last region."""
    dynamic: bool = False
    """Every size of every floating-point input is a symbol of its own."""
    fp16: bool = False


PLAIN = Variant()


def model_of(test: NodeTest, variant: Variant = PLAIN) -> onnx.ModelProto:
    """The test's model, as a variant has it."""
    model: onnx.ModelProto = onnx.ModelProto.FromString(test.model.SerializeToString())
    if variant.constants or variant.convolved:
        for info, value in zip(list(model.graph.input)[1:], test.inputs[1:], strict=True):
            model.graph.initializer.append(numpy_helper.from_array(value, info.name))
            model.graph.input.remove(info)
    if variant.convolved:
        _surround(model, test)
    if variant.dynamic:
        for info in (*model.graph.input, *model.graph.output):
            data = info.type.tensor_type.elem_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
            for axis, dim in enumerate(info.type.tensor_type.shape.dim if data else ()):
                dim.dim_param = f"{info.name}_{axis}"
    return model


def is_image(value: Any) -> bool:
    """Whether a test's input or output can pass a convolution."""
    return isinstance(value, np.ndarray) and value.dtype == np.float32 and value.ndim == 4 and value.size > 0


def _surround(model: onnx.ModelProto, test: NodeTest) -> None:
    """Pass the first input and all images among the outputs through a convolution with the identity."""
    graph = model.graph
    first = graph.input[0].name
    for node in graph.node:
        node.input[:] = ["convolved" if name == first else name for name in node.input]
    nodes = [_identity(graph, first, "convolved", test.inputs[0].shape[1]), *graph.node]
    for info, value in zip(graph.output, test.outputs, strict=True):
        if is_image(value):
            for node in graph.node:
                node.output[:] = [f"{info.name}_inner" if name == info.name else name for name in node.output]
                node.input[:] = [f"{info.name}_inner" if name == info.name else name for name in node.input]
            nodes.append(_identity(graph, f"{info.name}_inner", info.name, value.shape[1]))
    del graph.node[:]
    graph.node.extend(nodes)


def _identity(graph: onnx.GraphProto, source: str, target: str, channels: int) -> onnx.NodeProto:
    weights = np.eye(channels, dtype=np.float32).reshape(channels, channels, 1, 1)
    graph.initializer.append(numpy_helper.from_array(weights, f"{target}_weights"))
    return onnx.helper.make_node("Conv", [source, f"{target}_weights"], [target])


def judge(test: NodeTest, target: str, folder: Path, variant: Variant = PLAIN) -> None:
    """Optimize the model for a target, load what was written, run it and compare with the test's outputs.

    Raises:
        Refused: sdort said that it cannot take the model.
        Wrong: it did neither that nor the right thing.
    """
    model = _optimized(test, target, folder, variant)
    _check_kernels(model, folder, target)
    actual = _run(model, folder, test, target)
    wanted = _run(model_of(test), folder, test, "cpu") if test.name in RUNTIME_DIFFERS else test.outputs
    for info, found, expected in zip(model.graph.output, actual, wanted, strict=True):
        _compare(info.name, found, expected, variant.fp16)


def _optimized(test: NodeTest, target: str, folder: Path, variant: Variant) -> onnx.ModelProto:
    try:
        model = from_proto(model_of(test, variant), None, "test")
        optimize_model(model, OptimizeOptions(load_target(target), variant.fp16))
        save_model(model, folder / "model.onnx")
    except SdortError as error:
        if BUG in str(error) or not error.message:
            raise Wrong(f"bug: {error}") from error
        raise Refused(error.message) from error
    except Exception as error:
        raise Wrong(f"crash: {type(error).__name__}: {error}") from error
    return onnx.load(folder / "model.onnx", load_external_data=False)


def _session(model: onnx.ModelProto, folder: Path, target: str) -> onnxruntime.InferenceSession:
    """On the CPU; another target's graph without the CPU's own layouts, for which it would turn a Resize."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder.resolve()))
    if target != "cpu":
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[execution_provider(target)])


def _check_kernels(model: onnx.ModelProto, folder: Path, target: str) -> None:
    """The target takes every node, and ONNX Runtime the graph as it is, up to the kernels that only the target has."""
    editor = Editor(from_proto(onnx.ModelProto.FromString(model.SerializeToString()), _described, "test"))
    for node in editor.graph.nodes:
        reason = load_target(target).unsupported(node, editor)
        if reason:
            raise Wrong(f"was written for {target}, but {reason}")
    try:
        _session(model, folder, target)
    except Exception as error:  # onnxruntime's exceptions have no common base
        if target == "cpu" or "NOT_IMPLEMENTED" not in str(error):
            raise Wrong(f"does not load: {error}") from error


def _described(tensor: onnx.TensorProto) -> Weight | None:
    """External values are not needed to judge a graph."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return None
    return Absent(tensor.name, tuple(tensor.dims), onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))


def _run(model: onnx.ModelProto, folder: Path, test: NodeTest, target: str) -> list[Array]:
    feeds = dict(zip((info.name for info in test.model.graph.input), test.inputs, strict=True))
    if provider_of(target) == "cpu":
        expand(model)
    try:
        session = _session(model, folder, target)
    except Exception as error:
        raise Wrong(f"its reference does not load: {error}") from error
    names = {item.name for item in session.get_inputs()}
    values = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
            np.ascontiguousarray(value), onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        )
        for name, value in feeds.items()
        if name in names
    }
    try:
        found = session.run_with_ort_values([o.name for o in session.get_outputs()], values)
    except Exception as error:
        raise Wrong(f"does not run: {error}") from error
    return [value.numpy() for value in found]


def _compare(name: str, found: Array, wanted: Array, fp16: bool) -> None:
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        raise Wrong(f"wrong: {name} is {found.dtype} {found.shape}, not {wanted.dtype} {wanted.shape}")
    rtol, atol = TOLERANCES["float16" if fp16 or wanted.dtype == np.float16 else "float32"]
    try:
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)
    except AssertionError as error:
        raise Wrong(f"wrong: {name}: {' '.join(str(error).split())[:300]}") from error
