"""Checkpoints that a pipeline exports and optimizes on first use, with a bar of diffusers' kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from sdort.console import following
from sdort.engines.original import holds_onnx
from sdort.errors import UsageError
from sdort.first_use.making_plan import Making
from sdort.first_use.models import optimized_model
from sdort.generation.requests.typed_options import runtime_options
from sdort.providers.runtime_options import LoadOptions
from sdort.runtime.probe import choose_provider

Precision = Literal["fp16", "fp32"]


def optimized_checkpoint(checkpoint: Path, precision: Literal[True] | Precision, options: LoadOptions) -> Path:
    """The optimized pipeline of a checkpoint, for the provider that will run it.

    Args:
        precision: True is fp16 on a GPU and fp32 on the CPU.

    Raises:
        UsageError: there is nothing, it is a pipeline of ONNX models already, or there is no such precision.
        BadModelError: the checkpoint is none that sdort exports.
        ProviderError: the provider does not load.
        OutputError: the cache cannot be written.
    """
    if precision not in (True, "fp16", "fp32"):
        raise UsageError(f"there is no optimize={precision!r}", hint="There are True, 'fp16' and 'fp32'.")
    if checkpoint.is_dir() and holds_onnx(checkpoint):
        raise UsageError(
            f"{checkpoint} holds ONNX models, and optimize takes a checkpoint",
            hint="Load it without, or optimize it to a folder of your own:\n    sdort optimize MODEL OUT",
        )
    provider = choose_provider(runtime_options(options))[0]
    usual = provider.usual_precision
    with _bar():
        return optimized_model(checkpoint, Making((), provider.name, usual if precision is True else precision))


@contextmanager
def _bar() -> Iterator[None]:
    """A block whose progress is shown as diffusers shows its own."""
    from diffusers.utils.logging import tqdm

    bar: Any = None
    shown: tuple[str, float | None] | None = None

    def follow(description: str, done: float, total: float | None) -> None:
        nonlocal bar, shown
        if shown != (description, total):
            if bar is not None:
                bar.close()
            shown = description, total
            form = "{desc}: {percentage:3.0f}% {bar}"
            bar = tqdm(desc=description, total=total, leave=False, bar_format=form, disable=None)  # in terminals alone
        bar.update(done - bar.n)

    try:
        with following(follow):
            yield
    finally:
        if bar is not None:
            bar.close()
