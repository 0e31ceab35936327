"""Torch as an engine that is timed: with all that makes it fast and leaves the model as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from sdort.engines.engine import Runner
from sdort.engines.torch import TorchEngine
from sdort.engines.torch_runners import ComponentRunner
from sdort.graph.signature import Array
from sdort.providers.provider import Provider
from sdort.workload.cases import Case


class FastTorchEngine(TorchEngine):
    """A diffusers folder in torch, as fast as torch runs it.

    On a GPU the denoiser and the autoencoder are channels last, and the fastest convolutions are searched for.

    Args:
        compiled: run the denoiser and the decoder through ``torch.compile``, for the sizes of each case alone: on a GPU
            in the mode ``reduce-overhead``, which records CUDA or HIP graphs, on the CPU in the default mode.
    """

    _compiled_for: ClassVar[tuple[Any, ...] | None] = None
    """The case that something is compiled for in this process, by this engine or by one beside it."""

    def __init__(self, checkpoint: Path, provider: Provider, dtype: str, *, compiled: bool, device_id: int = 0) -> None:
        super().__init__(checkpoint, provider, dtype, device_id=device_id)
        self.compiled = compiled
        self.name = "torch-compile" if compiled else "torch"
        self._mode = "reduce-overhead" if provider.on_gpu else "default"
        self.settings = ", ".join(
            [*(["channels last"] if provider.on_gpu else []), *([f"mode {self._mode}"] if compiled else [])]
        )

    def _load(self, needed: Set[str]) -> Any:
        import torch

        pipeline = super()._load(needed)
        if self.provider.on_gpu:
            for name in {self.denoiser, "vae"} & needed:
                getattr(pipeline, name).to(memory_format=torch.channels_last)
        if self.compiled and self.denoiser in needed:
            setattr(pipeline, self.denoiser, self._compile(getattr(pipeline, self.denoiser)))
        if self.compiled and "vae" in needed:
            pipeline.vae.decode = self._compile(pipeline.vae.decode)
        return pipeline

    def _compile(self, call: Callable[..., Any]) -> Any:
        import torch

        return self.guard(partial(torch.compile, call, mode=self._mode, dynamic=False))

    def prepare(self, case: Case, steps: int, scheduler: str | None) -> Runner:
        sizes = (case.component, case.batch, case.height, case.width)
        if self.compiled and sizes != FastTorchEngine._compiled_for:
            # After a few sizes torch.compile gives up and runs a module as it is; its graphs keep their memory.
            self._forget_compiled(sizes)
        return super().prepare(case, steps, scheduler)

    def component_runner(self, component: str, feeds: Mapping[str, Array]) -> ComponentRunner:
        """A component on inputs; of a denoiser all that its family does around the module is compiled with it."""
        runner = super().component_runner(component, feeds)
        if self.compiled and component == self.denoiser and runner.whole:
            runner.whole = self._compile(runner.whole)
        return runner

    @staticmethod
    def _forget_compiled(sizes: tuple[Any, ...] | None) -> None:
        import torch

        torch.compiler.reset()
        FastTorchEngine._compiled_for = sizes

    def guard(self, call: Callable[[], Any]) -> Any:
        """As :meth:`TorchEngine.guard`, with the search for convolutions on."""
        import torch

        cudnn = torch.backends.cudnn  # of ROCm: MIOpen
        before, cudnn.benchmark = cudnn.benchmark, self.provider.on_gpu
        try:
            return super().guard(call)
        finally:
            cudnn.benchmark = before

    def close(self) -> None:
        if self.compiled:
            self._forget_compiled(None)
        super().close()
