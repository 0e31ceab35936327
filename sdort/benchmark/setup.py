"""Set-up of a benchmark: options, engines, cases and the reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from sdort.benchmark.bench_options import ENGINES, PRESETS, TORCH_ENGINES, BenchOptions
from sdort.console import progress
from sdort.engines.default_prompts import default_prompts
from sdort.engines.engine import Engine
from sdort.engines.fast_torch import FastTorchEngine
from sdort.engines.onnx import OnnxEngine
from sdort.engines.original import as_exported, checkpoint_of, holds_onnx, open_reference, original_of
from sdort.errors import UsageError
from sdort.families.known_families import DENOISERS
from sdort.generation.pictures.images import Generated
from sdort.options.integer_weights import INTEGERS
from sdort.options.number_ranges import size_words
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.verification.references import Reference, compute_reference, generate_images
from sdort.workload.cases import WHOLE_PIPELINE, Case, cases


def plan_cases(path: Path, components: Sequence[str], engines: Sequence[Engine], options: BenchOptions) -> list[Case]:
    """Every case to measure.

    Args:
        path: the pipeline, which says what it can generate images of.

    Raises:
        UsageError: a size that the autoencoder cannot make.
        MemoryShortageError: a case that cannot fit into the free memory.
    """
    factor = engines[-1].factor
    for height, width in options.sizes:
        if height % factor or width % factor:
            raise UsageError(f"--size {size_words((height, width))}: width and height must be multiples of {factor}")
    sizes = options.sizes or [engines[-1].default_size()]
    made = cases(components, options.batch_sizes, sizes, default_prompts(path)[0])
    todo = [_guided(case, engines) for case in made]
    for engine in engines:
        if isinstance(engine, OnnxEngine):
            for case in todo:
                engine.refuse_shortage(case, options.steps)
    return todo


def _guided(case: Case, engines: Sequence[Engine]) -> Case:
    """A static UNet is exported for guidance, with two samples an image; it takes no other batch."""
    if case.component in DENOISERS and all(engine.static_batch(case.component) == 2 * case.batch for engine in engines):
        return replace(case, batch=2 * case.batch)
    return case


def apply_preset(name: str, path: Path, options: BenchOptions) -> BenchOptions:
    """The settings of a preset in place of the options' own.

    ``mlperf-sdxl`` has those of MLPerf Inference's text-to-image task: SDXL, 1024x1024, 20 steps, Euler, one image
    (https://github.com/mlcommons/inference/tree/master/text_to_image).

    Raises:
        UsageError: there is no such preset, or the pipeline is not SDXL.
    """
    if name not in PRESETS:
        raise UsageError(f"there is no preset {name!r}", hint=f"Choose one of: {', '.join(PRESETS)}.")
    if not (path / "text_encoder_2").is_dir():
        raise UsageError(f"--preset {name} is for SDXL, and {path} is not: it has no text_encoder_2")
    return replace(options, sizes=((1024, 1024),), steps=20, scheduler="euler", batch_sizes=(1,))


@contextmanager
def open_engines(path: Path, options: BenchOptions, provider: Provider) -> Iterator[list[Engine]]:
    """The engines to measure, the baseline first.

    Raises:
        UsageError: a torch engine's checkpoint is not known.
        ProviderError: torch does not reach the device.
        BadModelError: a folder holds no pipeline.
    """
    with ExitStack() as stack:
        engines: list[Engine] = []
        chosen = [(path, kind) for kind in options.engines or (options.engine,)]
        if options.checkpoint:
            options = replace(options, checkpoint=stack.enter_context(as_exported(path, options.checkpoint)))
        if options.checkpoint is None and len(chosen) > 1 and any(kind != "onnxruntime" for _, kind in chosen):
            options = replace(options, checkpoint=stack.enter_context(checkpoint_of(path)))  # found or made once
        if options.baseline:
            chosen.insert(0, _baseline(path, options, stack))
        for folder, kind in chosen:
            engine = _open_engine(folder, kind, options, provider, stack)
            stack.callback(engine.close)
            engines.append(engine)
        yield engines


def _baseline(path: Path, options: BenchOptions, stack: ExitStack) -> tuple[Path, str]:
    """The baseline's folder and engine; an engine's name stands for the checkpoint behind the pipeline."""
    named = options.baseline or Path()
    if str(named) in TORCH_ENGINES and not named.exists():
        checkpoint = options.checkpoint or stack.enter_context(checkpoint_of(path))
        return checkpoint, options.baseline_engine or str(named)
    kind = options.baseline_engine or ("onnxruntime" if holds_onnx(named) else "torch")
    return stack.enter_context(as_exported(path, named)), kind


def _open_engine(path: Path, kind: str, options: BenchOptions, provider: Provider, stack: ExitStack) -> Engine:
    if kind == "onnxruntime":
        return OnnxEngine(path, provider, options.runtime)
    if kind not in ENGINES:
        raise UsageError(f"there is no engine {kind!r}", hint=f"Choose one of: {', '.join(ENGINES)}.")
    checkpoint = options.checkpoint or stack.enter_context(checkpoint_of(path))
    dtype, device = _torch_dtype(path, options, provider), options.runtime.device_id
    return FastTorchEngine(checkpoint, provider, dtype, compiled=kind == "torch-compile", device_id=device)


def _torch_dtype(path: Path, options: BenchOptions, provider: Provider) -> str:
    """On a GPU that of the ONNX pipeline beside it.

    On the CPU fp32: that is what ONNX Runtime computes in between the casts of an fp16 model, while torch rounds every
    result and takes a hundred times as long.
    """
    if not provider.on_gpu:
        return "float32"
    found = OnnxEngine(path, provider, options.runtime).dtype(WHOLE_PIPELINE) if holds_onnx(path) else "float16"
    return "float16" if found in INTEGERS else found


def choose_components(engines: Sequence[Engine], chosen: Sequence[str]) -> list[str]:
    """The components that all engines have, of those that are chosen.

    Raises:
        UsageError: a chosen component is not there.
    """
    common = [name for name in engines[-1].components() if all(name in engine.components() for engine in engines)]
    unknown = [name for name in chosen if name not in common]
    if unknown:
        raise UsageError(
            f"there is no component {', '.join(unknown)} to measure", hint=f"There are: {', '.join(common)}."
        )
    return list(chosen) or common


def find_reference(path: Path, options: BenchOptions, todo: Sequence[Case], provider: Provider) -> Reference | None:
    """The outputs to compare with, computed and freed before anything is measured; None leaves the baseline."""
    with _reference_path(path, options) as reference:
        if reference is None:
            return None
        with progress("computing the reference"):
            outputs = compute_reference(reference, todo, provider, _plain(options), options.steps, options.scheduler)
    outputs.more = partial(_generate_more, path, options, provider)
    return outputs


@contextmanager
def _reference_path(path: Path, options: BenchOptions) -> Iterator[Path | None]:
    if options.reference:
        with as_exported(path, options.reference) as reference:
            yield reference
    elif options.baseline:
        yield None
    elif holds_onnx(path):
        with original_of(path, "Name it: --reference ORIGINAL.") as original:
            yield original
    else:
        with checkpoint_of(path) as checkpoint:
            yield checkpoint


def _plain(options: BenchOptions) -> RuntimeOptions:
    return replace(options.runtime, tuning=False, fallback=None, graph=False, provider_options={})


def _generate_more(path: Path, options: BenchOptions, provider: Provider, cases: Sequence[Case]) -> list[Generated]:
    with _reference_path(path, options) as reference, progress("generating more with the reference"):
        if reference is None:
            raise UsageError(f"the original of {path} is gone")
        engine = open_reference(reference, provider, _plain(options))
        try:
            return generate_images(engine, cases, options.steps, options.scheduler)
        finally:
            engine.close()
