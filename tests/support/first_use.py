"""What is made of checkpoints on first use, in place of an export and an optimization."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sdort.exporter import open_source
from sdort.files import staging
from sdort.first_use import given_checkpoint, making
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


STAGES: dict[str, tuple[Any, str, bool]] = {
    "before the download": (open_source, "run_worker", False),
    "before it is read": (given_checkpoint, "file_digest", False),
    "before it is opened": (making, "open_export", False),
    "before it is fused": (making, "optimize_request", False),
    "after it was fused": (making, "optimize_request", True),
    "before its record": (making, "write_kept", False),
    "before it is moved": (staging, "_swap", False),
    "after it was moved": (staging, "_swap", True),
}
"""Where it ends: a module, a function of it, and whether that is done by then."""


def strike(stage: str, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a first use call ``act`` at a stage."""
    module, name, after = STAGES[stage]
    own = getattr(module, name)

    def struck(*given: Any, **options: Any) -> Any:
        if not after:
            act()
        result = own(*given, **options)
        if after:
            act()
        return result

    monkeypatch.setattr(module, name, struck)
