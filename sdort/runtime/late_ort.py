"""An ONNX Runtime session that opens when it is used, and closes to give its memory back until it is used again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import onnx
from onnx import TensorProto

from sdort.errors import BadModelError
from sdort.onnx_io.check_tensors import tensor_nbytes
from sdort.onnx_io.component_file import file_identity
from sdort.runtime.memory import return_freed_pages
from sdort.runtime.placed_weights import PlacedWeights


class Argument(NamedTuple):
    """An input or output, as ONNX Runtime's ``NodeArg``."""

    name: str
    type: str
    shape: list[int | str | None]


class LateOrt:
    """Stand-in for an ``InferenceSession`` that may not be open. Everything but its inputs and outputs opens it.

    An ``IOBinding`` belongs to the session that made it: whoever keeps one drops it before :meth:`close`, or the memory
    stays.

    Args:
        graph: what is opened, whose inputs and outputs it has.
        opener: opens it; gives the session and the weights that it reads and does not own.
        path: the model file that the graph was made from. It and the files of its weights stay as they are, or an
            opening is refused: the graph in memory would read another model's weights.
        component: for messages.
    """

    def __init__(
        self,
        graph: onnx.ModelProto,
        opener: Callable[[], tuple[Any, PlacedWeights | None]],
        path: Path,
        component: str,
    ) -> None:
        given = {tensor.name for tensor in graph.graph.initializer}
        self._inputs = arguments_of(info for info in graph.graph.input if info.name not in given)
        self._outputs = arguments_of(graph.graph.output)
        self._opener = opener
        self._component = component
        self._files = {file: _state(file) for file in _files_of(graph, path)}
        self._opened: tuple[Any, PlacedWeights | None] | None = None
        self.nbytes = sum(tensor_nbytes(tensor, graph.graph.name) for tensor in graph.graph.initializer)
        """Bytes of its weights."""
        self.openings = 0
        """How often it was opened."""

    def get_inputs(self) -> list[Argument]:
        """Its inputs, without those that initializers give."""
        return self._inputs

    def get_outputs(self) -> list[Argument]:
        """Its outputs."""
        return self._outputs

    @property
    def is_open(self) -> bool:
        """Whether it holds memory."""
        return self._opened is not None

    @property
    def opened(self) -> Any:
        """The session; None where it is not open."""
        return self._opened and self._opened[0]

    @property
    def placed(self) -> PlacedWeights | None:
        """The weights that it reads and does not own; it opens for them."""
        return self.start()[1]

    def start(self) -> tuple[Any, PlacedWeights | None]:
        """The session and its placed weights, opened where they are not.

        Raises:
            BadModelError: a file is not the one any more that it was.
            SdortError: as the opener.
        """
        if self._opened is None:
            self._check_files()
            self._opened = self._opener()
            self.openings += 1
        return self._opened

    def close(self) -> None:
        """Give the memory back."""
        self._opened = None
        return_freed_pages()  # weights on the CPU lie among blocks that stay

    def _check_files(self) -> None:
        for file, state in self._files.items():
            now = _state(file)
            if now != state:
                what = "has changed" if now else "is gone"
                raise BadModelError(
                    f"{file} {what} since the model was loaded, which opens again from it",
                    component=self._component,
                    hint="Put the file back, or load the pipeline again.",
                )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.start()[0], name)


def _files_of(graph: onnx.ModelProto, path: Path) -> set[Path]:
    """The model file and those of the weights of a graph that was made from it."""
    entries = (entry for tensor in graph.graph.initializer for entry in tensor.external_data)
    return {path, *(path.parent / entry.value for entry in entries if entry.key == "location")}


def _state(file: Path) -> tuple[object, ...] | None:
    """The device, inode, size and time of a file, which others in its place or of its contents change; None of none."""
    identity = file_identity(file)
    return identity and identity[1:-1]  # a new link to the file changes the last time, and the path is known


def arguments_of(infos: Iterable[onnx.ValueInfoProto]) -> list[Argument]:
    found = []
    for info in infos:
        tensor = info.type.tensor_type
        shape = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim]
        found.append(Argument(info.name, f"tensor({TensorProto.DataType.Name(tensor.elem_type).lower()})", shape))
    return found
