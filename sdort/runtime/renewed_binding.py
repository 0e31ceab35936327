"""An ``IOBinding`` whose inputs are bound again before each run, for providers with memory of their own.

ONNX Runtime copies an input to such memory when it is bound (``IOBinding::BindInput`` in its
onnxruntime/core/session/IOBinding.cc). What is written to the host's memory later, no run would see.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any


class RenewedBinding:
    """ONNX Runtime's ``binding``, to which inputs are given by :meth:`renew`."""

    def __init__(self, binding: Any) -> None:
        self._binding = binding
        self._inputs: dict[str, Callable[[], None]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._binding, name)

    def bind_input(self, name: str, *arguments: Any) -> None:
        """Take an input from an address, as ``IOBinding.bind_input``."""
        self._inputs[name] = partial(self._binding.bind_input, name, *arguments)

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        """Take an input from an ``OrtValue``, as ``IOBinding.bind_ortvalue_input``."""
        self._inputs[name] = partial(self._binding.bind_ortvalue_input, name, value)

    def renew(self) -> None:
        """Give all inputs, as they are now, to the next run."""
        for bind in self._inputs.values():
            bind()
