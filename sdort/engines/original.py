"""What a pipeline is compared with: the one it was made from, found through its manifest, or one that is named."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sdort.console import warn
from sdort.demo import NAMES, write_demo
from sdort.engines.onnx import Engine, OnnxEngine
from sdort.engines.torch import TorchEngine
from sdort.errors import SdortError, UsageError
from sdort.generation.images import Generated
from sdort.generation.schedulers import read_config
from sdort.pipelines.folder import MANIFEST
from sdort.providers.options import CPU, Provider, RuntimeOptions
from sdort.runtime.session import Array
from sdort.verification.checks import Precision, Verdict, check_images, check_outputs
from sdort.workload.cases import PIPELINE, Case

INDEX = "model_index.json"

Result = dict[str, Array] | list[Generated]


@dataclass
class Reference:
    """Outputs to compare with, per case; ``label`` says in words where they come from.

    ``more`` draws the images of further cases: it opens the reference again, which is freed while others are measured.
    """

    label: str
    results: dict[Case, Result]
    more: Callable[[Sequence[Case]], list[Generated]] | None = None

    def verdict(self, case: Case, result: Result, precision: Precision) -> Verdict:
        """Compare the result of a case."""
        return verdict(case, result, self.results.get(case), self.label, precision)


def verdict(case: Case, result: Result, wanted: Result | None, label: str, precision: Precision) -> Verdict:
    """Check a result, against another of the same case when there is one."""
    if isinstance(result, dict):
        return check_outputs(result, wanted if isinstance(wanted, dict) else None, label, case.component, precision)
    return check_images(result, wanted if isinstance(wanted, list) else None, label, precision)


def holds_onnx(path: Path) -> bool:
    """Whether ``path`` is an ONNX pipeline or file, not a diffusers checkpoint."""
    return path.is_file() or any(path.glob("*.onnx")) or any(path.glob("*/*.onnx"))


@contextmanager
def original_of(path: Path) -> Iterator[Path | None]:
    """What the pipeline in ``path`` was made from, as its manifest says; None when that is not on this machine.

    An optimized pipeline names the folder that it was made from. An export names its source as the user called it, so
    that is looked for from the current folder and beside the pipeline; ``demo`` is made again.
    """
    manifest = read_config(path / MANIFEST) if (path / MANIFEST).is_file() else {}
    optimized = manifest.get("optimized")
    source = optimized.get("from") if isinstance(optimized, dict) else manifest.get("source")
    if source in NAMES and not isinstance(optimized, dict):
        with tempfile.TemporaryDirectory(prefix="sdort-demo-") as folder:
            demo = Path(folder) / source
            demo.mkdir()
            write_demo(source, demo)
            yield demo
        return
    places = [Path(source), path.resolve().parent / source] if isinstance(source, str) else []
    yield next((place for place in places if _is_pipeline(place) and place.resolve() != path.resolve()), None)


def _is_pipeline(path: Path) -> bool:
    return path.is_dir() and (holds_onnx(path) or (path / INDEX).is_file())


@contextmanager
def checkpoint_of(path: Path) -> Iterator[Path]:
    """The diffusers checkpoint behind a pipeline: itself, or at the end of the chain of manifests.

    Raises:
        UsageError: it is not known where it is.
    """
    if not holds_onnx(path):
        yield path
        return
    with original_of(path) as source:
        if source is None:
            raise UsageError(
                f"the diffusers checkpoint that {path} was made from is not known", hint="Name it: --checkpoint DIR."
            )
        with checkpoint_of(source) as checkpoint:
            yield checkpoint


def compute_reference(
    path: Path, cases: Sequence[Case], provider: Provider, options: RuntimeOptions, steps: int, scheduler: str | None
) -> Reference:
    """Run the reference on every case.

    Components run in fp32 on the CPU, whose kernels share nothing with the provider's; images are drawn on the
    provider, where a whole pipeline takes seconds and not hours.
    """
    results: dict[Case, Result] = {}
    for where in dict.fromkeys((CPU, provider)):
        mine = [case for case in cases if (provider if case.component == PIPELINE else CPU) is where]
        if not mine:
            continue
        engine = open_reference(path, where, options)
        for case in mine:
            try:
                results[case] = _run(engine, case, steps, scheduler)
            except SdortError as error:
                warn(f"{path} gives no reference for {case}: {error.message}")
        engine.close()
    return Reference(f"{path.resolve().name} ({'ONNX' if holds_onnx(path) else 'torch'})", results)


def draw(engine: Engine, cases: Sequence[Case], steps: int, scheduler: str | None) -> list[Generated]:
    """The images of pipeline cases, in their order."""
    results = [_run(engine, case, steps, scheduler) for case in cases]
    return [image for result in results if isinstance(result, list) for image in result]


def _run(engine: Engine, case: Case, steps: int, scheduler: str | None) -> Result:
    if case.component not in engine.components():
        raise UsageError("it does not have that component")
    runner = engine.prepare(case, steps, scheduler)
    runner()
    return runner.result()


def open_reference(path: Path, provider: Provider, options: RuntimeOptions) -> Engine:
    """The engine that fits what lies in ``path``: ONNX Runtime, or torch in fp32."""
    if holds_onnx(path):
        return OnnxEngine(path, provider, options)
    return TorchEngine(path, _torch_place(provider), "float32", compiled=False, device_id=options.device_id)


def _torch_place(provider: Provider) -> Provider:
    """The CPU when torch is a CPU build, whatever ONNX Runtime runs on."""
    import torch

    return provider if torch.cuda.is_available() else CPU
