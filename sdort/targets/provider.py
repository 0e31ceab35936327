"""What an execution provider is to the runtime, as data: what it is called, what it can be asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, eq=False)
class Provider:
    """One execution provider of ONNX Runtime.

    ``device`` is the name that ONNX Runtime's Python API gives to the provider's memory, None where inputs and
    outputs stay in host memory; ``torch_device`` is torch's name for the same device.
    """

    name: str
    ep: str
    library: str | None = None
    device: str | None = None
    torch_device: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    """Set on every run."""
    tuning: Mapping[str, str] = field(default_factory=dict)
    """Set in addition by ``--tuning``; empty where there is nothing to search."""
    graph: Mapping[str, str] = field(default_factory=dict)
    """Set in addition by ``--graph``; empty where the provider has no graphs."""
    no_graph: str = ""
    """Why it has no graphs, in words for the user."""
    note: str = ""
    """Why ``options`` are set when ``--tuning`` is not, in words for the user."""
    needs: str = ""
    """What a user installs when the provider does not load."""

    @property
    def on_gpu(self) -> bool:
        return self.ep != "CPUExecutionProvider"
