"""The one reader of model files: a file is parsed once, whoever asks for its graph, signature, metadata or dtype.

Whoever needs a file asks :func:`read_component` for it. What was parsed is kept while the file on disk stays the same,
so that no question costs another pass over it. Its external data is not kept: it is looked at by every
:meth:`ComponentFile.check`.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import onnx
from onnx import AttributeProto, TensorProto

from sdort.errors import BadModelError
from sdort.graph.signature import TensorSpec
from sdort.graph.stored_values import StoredValues
from sdort.machine.phases import phase
from sdort.onnx_io.branches import inline_branches
from sdort.onnx_io.check_model import check_model
from sdort.onnx_io.check_nodes import shorten_domains
from sdort.onnx_io.check_tensors import check_tensor, tensor_nbytes, type_name
from sdort.onnx_io.constant_weights import refuse_constant
from sdort.onnx_io.derived import Derived
from sdort.onnx_io.external import ExternalData
from sdort.onnx_io.functions import inline_functions
from sdort.onnx_io.wire import OWN_FILE, read_graph

KEPT_FILES = 16
"""Parsed files that are kept, the last used ones: two pipelines of SDXL's components and as many single models."""
SETTLED_NS = 100_000_000
"""Nanoseconds after which a file's next change has another time: file systems' clocks tick every 10 ms or faster."""

Identity = tuple[str, int, int, int, int, int]
T = TypeVar("T")


@dataclass(frozen=True)
class Signature:
    """A model's inputs, without those that initializers give, and its outputs, by name and in order."""

    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]


class _Parsed:
    """A parsed file: its message as it is, the checked graph once somebody asked for it, and what follows from it."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.proto = proto
        self.checked: onnx.ModelProto | None = None
        self.derived = Derived()


class ComponentFile:
    """One ``.onnx`` file. Its messages are shared by all who read it: change :meth:`copy`, never them.

    Attributes:
        path: the file.
        component: the pipeline component that it is taken for, for messages.
        proto: the model as it is in the file, without raw data above 1 KiB (:func:`sdort.onnx_io.wire.read_graph`).
    """

    def __init__(self, path: Path, component: str, parsed: _Parsed) -> None:
        self.path = path
        self.component = component
        self._parsed = parsed

    @property
    def proto(self) -> onnx.ModelProto:
        return self._parsed.proto

    @property
    def graph(self) -> onnx.ModelProto:
        """The model, checked: local functions expanded, the default domain called ``""``, nodes in topological order.

        Raises:
            BadModelError: as :func:`sdort.onnx_io.check_model.check_model` and
                :func:`sdort.onnx_io.functions.inline_functions`.
        """
        if self._parsed.checked is None:
            with phase("reading of graphs"):
                self._parsed.checked = _checked(self.proto, self.component)
        return self._parsed.checked

    def derived(self, make: Callable[..., T], *arguments: Any) -> T:
        """``make(self, *arguments)``, which follows from the file alone: found once for all who read the file, as long
        as it stays the same."""
        return self._parsed.derived.get((make, *arguments), lambda: make(self, *arguments))

    @property
    def metadata(self) -> dict[str, str]:
        """The model's ``metadata_props``."""
        return self.derived(_metadata)

    @property
    def signature(self) -> Signature:
        """Inputs and outputs as the model declares them, and as its session does.

        Raises:
            BadModelError: as :attr:`graph`.
        """
        return self.derived(_signature)

    @property
    def weight_bytes(self) -> Counter[str]:
        """Bytes of initializers and attributes by ONNX's name of their dtype in small letters: ``float``, ``float16``.

        Raises:
            BadModelError: as :attr:`graph`.
        """
        return self.derived(_weight_bytes)

    @property
    def dtype(self) -> str:
        """The dtype of most bytes of the weights: ``float32`` or ``float16``.

        Raises:
            BadModelError: the file is broken, or its weights are of another kind.
        """
        floats = {"float32": self.weight_bytes["float"], "float16": self.weight_bytes["float16"]}
        if not any(floats.values()):
            raise BadModelError(f"{self.path} has no float weights", component=self.component)
        return max(floats, key=lambda name: floats[name])

    def check(self) -> None:
        """Check all that :func:`sdort.onnx_io.load.load_model` does, before another library reads the file.

        Raises:
            BadModelError: the file is broken, unsafe, or has parts that sdort does not support; or its external data
                is missing, too short, outside of its folder or without any values.
        """
        external = ExternalData(self.path, self.component)
        weights = []
        for tensor in self.tensors():
            check_tensor(tensor, self.component)
            if tensor.data_location == TensorProto.EXTERNAL:
                place = external.locate(tensor)
                weights.append(
                    StoredValues(*place, tensor.dims, onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
                )
        external.check_overlaps()
        refuse_constant(weights, self.component)

    def tensors(self) -> Iterator[TensorProto]:
        """Initializers, and the tensors in attributes."""
        yield from self.graph.graph.initializer
        yield from _attribute_tensors(self.graph)

    def copy(self) -> onnx.ModelProto:
        """:attr:`graph`, to be changed, and to be run or written in the file's folder, where its weights stay.

        Raises:
            BadModelError: as :attr:`graph`, or an attribute's values cannot be read.
        """
        model = copied(self.graph)
        external = ExternalData(self.path, self.component)
        for tensor in _attribute_tensors(model):
            if tensor.data_location == TensorProto.EXTERNAL:  # ONNX has no external data in attributes
                file, offset = external.locate(tensor)
                dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
                values = StoredValues(file, offset, tensor.dims, dtype).load()
                tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location" and entry.value == OWN_FILE:
                    entry.value = self.path.name
        return model


_kept: OrderedDict[Identity, _Parsed] = OrderedDict()


def read_component(path: Path, component: str | None = None) -> ComponentFile:
    """The model file ``path``, parsed unless it was before and is the same on disk since.

    Args:
        path: an ``.onnx`` file.
        component: the pipeline component it is, for messages; by default the file's name.

    Raises:
        BadModelError: the file cannot be read, or is no ONNX model.
    """
    path = Path(path)
    identity = file_identity(path)
    parsed = _kept.get(identity) if identity else None
    if parsed is None:
        with phase("reading of graphs"):
            parsed = _Parsed(read_graph(path, component or path.stem))
    if identity and time.time_ns() - max(identity[-2:]) > SETTLED_NS:
        _kept[identity] = parsed
        _kept.move_to_end(identity)
        while len(_kept) > KEPT_FILES:
            _kept.popitem(last=False)
    return ComponentFile(path, component or path.stem, parsed)


def file_identity(path: Path) -> Identity | None:
    """Path, device, inode, size and times of a file; None where there is none: reading it says what is wrong."""
    try:
        status = path.stat()
    except OSError:
        return None
    place = str(path.absolute())
    return place, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def declared_inputs(model: onnx.ModelProto) -> dict[str, TensorSpec]:
    """A model's inputs by name, without those that initializers give."""
    constants = {tensor.name for tensor in model.graph.initializer}
    return {info.name: _spec(info) for info in model.graph.input if info.name not in constants}


def _checked(proto: onnx.ModelProto, component: str) -> onnx.ModelProto:
    checked = copied(proto)
    shorten_domains(checked)
    checked = inline_branches(inline_functions(checked, component), component)
    order = check_model(checked, component)
    nodes = [checked.graph.node[index] for index in order]
    del checked.graph.node[:]
    checked.graph.node.extend(nodes)
    return checked


def _metadata(file: ComponentFile) -> dict[str, str]:
    return {entry.key: entry.value for entry in file.proto.metadata_props}


def _signature(file: ComponentFile) -> Signature:
    return Signature(declared_inputs(file.graph), {info.name: _spec(info) for info in file.graph.graph.output})


def _weight_bytes(file: ComponentFile) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for tensor in file.tensors():
        sizes[type_name(tensor.data_type).lower()] += tensor_nbytes(tensor, file.component)
    return sizes


def copied(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A message of its own with the content of ``proto``."""
    copied = onnx.ModelProto()
    copied.CopyFrom(proto)
    return copied


def _attribute_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """The tensors in the attributes of all nodes, of functions' nodes too."""
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR and not attribute.ref_attr_name:
                yield attribute.t


def _spec(info: onnx.ValueInfoProto) -> TensorSpec:
    tensor = info.type.tensor_type
    shape = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]
    return TensorSpec(info.name, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type), tuple(shape))
