"""What is made of checkpoints on first use, in place of an export and an optimization."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sdort.first_use import making
from sdort.optimizer.optimize_request import OptimizeRequest
from sdort.pipelines.manifest import write_listed_files

Fill = Callable[[Path, Path, OptimizeRequest], None]
"""Fills a folder with what is made of a checkpoint."""


@dataclass
class Made:
    """What was asked for: the checkpoint and options of each export, and each optimization."""

    exports: list[tuple[Path, dict[str, Any]]] = field(default_factory=list)
    requests: list[OptimizeRequest] = field(default_factory=list)


def copy_of(source: Path, out: Path, _: OptimizeRequest) -> None:
    """Make a file of the checkpoint's content: ``of``."""
    file = source if source.is_file() else source / "of.safetensors"
    (out / "of").write_bytes(file.read_bytes())
    write_listed_files(out, {}, {})


def replace_making(monkeypatch: pytest.MonkeyPatch, fill: Fill = copy_of) -> Made:
    """Let ``fill`` make models from now on."""
    made = Made()

    @contextmanager
    def opened(model: Path, **options: Any) -> Iterator[Any]:
        made.exports.append((Path(model), options))
        parts = [SimpleNamespace(name=name) for name in ("text_encoder", "unet", "vae_decoder")]
        yield SimpleNamespace(tensors={}, new=[], elements=1, components=parts, write=lambda _: {})

    def optimized(request: OptimizeRequest) -> None:
        made.requests.append(request)
        request.out.mkdir()
        fill(made.exports[-1][0], request.out, request)

    monkeypatch.setattr(making, "open_export", opened)
    monkeypatch.setattr(making, "optimize_request", optimized)
    return made
