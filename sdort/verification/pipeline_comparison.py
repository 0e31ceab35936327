"""``sdort verify`` as a library call: every component, every image, and the first wrong node."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from sdort.checkpoints.configs import MANIFEST, read_manifest
from sdort.console import progress, warn
from sdort.engines.original import (
    as_exported,
    checkpoint_of,
    holds_onnx,
    is_recorded,
    original_of,
    unknown_original,
)
from sdort.engines.torch import check_checkpoint
from sdort.errors import BadModelError, MissingPackageError, SdortError, UsageError
from sdort.families.component_names import IMAGE_ENCODER
from sdort.generation.memory_need import refuse_generation
from sdort.generation.pictures.images import Generated
from sdort.generation.requests.request import Request
from sdort.machine.optional_packages import COMPARING, RUNNING, need_packages
from sdort.onnx_io.precision_mark import coarsest_dtype
from sdort.pipelines.content_check import ContentCheck, checked
from sdort.pipelines.folder import PipelineFolder, open_folder
from sdort.pipelines.manifest import changed_files
from sdort.providers.provider import Provider
from sdort.runtime.environment import device_name, versions
from sdort.runtime.opener import NotLoadedError
from sdort.runtime.probe import choose_provider
from sdort.verification.bisection.blame import bisect, of_other_models
from sdort.verification.bisection.tensor_pairs import GraphPair
from sdort.verification.checks import precision
from sdort.verification.command_line import VerifyOptions
from sdort.verification.component_comparison import ONNX, TORCH, Comparison, compare_component
from sdort.verification.image_comparison import compare_images, failed_images, make_requests
from sdort.verification.limits import COARSEST_FIRST
from sdort.verification.outcome import Provenance, Verification
from sdort.verification.recorded_inputs import (
    RANDOM,
    RECORDED,
    Inputs,
    RecordedRun,
    in_batches,
    random_inputs,
    record_run,
)
from sdort.verification.runners import RunConfiguration, is_emulated, open_text_to_image
from sdort.verification.semantic_score import score_candidate
from sdort.verification.torch_images import generate_in_torch
from sdort.workload.steering_inputs import count_images

_NAME_IT = "Name it: --against ORIGINAL, an ONNX pipeline, a diffusers folder or a single file."


@dataclass
class _Run:
    """One verification on its way."""

    folder: PipelineFolder
    original: PipelineFolder | None
    checkpoint: Path | None
    configuration: RunConfiguration
    options: VerifyOptions
    result: Verification

    @property
    def components(self) -> list[str]:
        return list(self.options.components) or self.folder.compared


def verify_pipeline(candidate: Path, options: VerifyOptions) -> Verification:
    """Compare a pipeline, or one component, with what it was made from.

    Args:
        candidate: a folder of ONNX components, or one ``.onnx`` file.

    Returns:
        What was measured; nothing is raised for a difference, see :meth:`Verification.raise_if_failed`.

    Raises:
        UsageError: it is not known what to compare with, or a component does not exist.
        BadModelError: there is no pipeline.
        ProviderError: ONNX Runtime is not installed, or the provider that was named does not load and
            ``options.runtime.fallback`` is not True.
    """
    provider, fallback = choose_provider(options.runtime)
    if fallback:
        warn(fallback)
    with ExitStack() as stack:
        folder, content = _open_checked(candidate, options, stack)
        original, checkpoint, note = _find_references(candidate, options, stack)
        against = original.path if original else None
        result = Verification(candidate, against, checkpoint, provider.name, options.steps, options)
        result.made_of = None if folder.given == str(folder.path) else Path(folder.given)
        result.provenance = _provenance(folder, provider, options)
        result.notes += [note] if note else []
        run = _Run(folder, original, checkpoint, RunConfiguration(provider, options.runtime), options, result)
        _check_components(run)
        _refuse_shortage(run)
        recorded = _record(run)
        content.finish()  # before the comparisons, which take longest
        for component in run.components:
            _verify_component(run, component, recorded)
        if options.draws:
            _verify_images(run, recorded)
        if options.semantic:
            _score(run)
    if checkpoint and not checkpoint.exists():
        result.checkpoint = Path(checkpoint.name)  # temporary, as the demo's is: a name, not a path
    return result


def _open_checked(path: Path, options: VerifyOptions, stack: ExitStack) -> tuple[PipelineFolder, ContentCheck]:
    """A pipeline whose files are compared with what sdort wrote, until ``stack`` ends."""
    content = stack.enter_context(checked(path, options.runtime.check))
    folder = open_folder(path, ())
    content.reads(folder.models.values())
    return folder, content


def _find_references(
    candidate: Path, options: VerifyOptions, stack: ExitStack
) -> tuple[PipelineFolder | None, Path | None, str | None]:
    """The original's ONNX folder, the diffusers checkpoint, and what is to be said about the latter."""
    named = options.against
    checkpoint, note = None, None
    try:
        if options.checkpoint and not named and _is_export(candidate):
            against = None  # it is the checkpoint, and another one is named
        else:
            recorded = original_of(candidate, _NAME_IT, torch=options.torch and not options.checkpoint)
            against = stack.enter_context(as_exported(candidate, named) if named else recorded)
    except UsageError as error:
        if named or not options.checkpoint:
            raise
        against, note = None, f"not compared with the ONNX original: {error.message} ({error.hint})"
    original = _open_checked(against, options, stack)[0] if against and holds_onnx(against) else None
    if options.checkpoint:
        checkpoint = stack.enter_context(as_exported(candidate, options.checkpoint))
    elif options.torch:
        try:
            checkpoint = stack.enter_context(checkpoint_of(against or candidate))
            need_packages(*COMPARING, what=RUNNING)
        except UsageError as error:
            note = f"not compared with torch: {error.message} ({error.hint})"
        except MissingPackageError as error:
            if original is None:
                raise
            checkpoint, note = None, f"not compared with torch: {error.message}"
    if checkpoint:
        check_checkpoint(checkpoint)
        need_packages(*COMPARING, what=RUNNING)
    for reference in filter(None, (named, options.checkpoint)):
        if is_recorded(candidate, reference) is False:
            warn(f"{reference} is not what {candidate} was made from, by its mark in {MANIFEST}")
    if against and original is None and checkpoint is None:
        raise UsageError(
            f"{candidate} was made from a checkpoint, which only torch runs, and --no-torch leaves that out",
            hint="Leave out --no-torch, or name an ONNX pipeline: --against DIR",
        )
    if original is None and checkpoint is None:
        unknown = f"it is not known what {candidate} was made from, or that is not on this machine"
        raise unknown_original(candidate, unknown, _NAME_IT)
    return original, checkpoint, note


def _is_export(path: Path) -> bool:
    """Whether a pipeline was made of a checkpoint, not of an ONNX pipeline."""
    manifest = read_manifest(path) if path.is_dir() else {}
    return bool(manifest.get("source")) and "optimized" not in manifest


def _check_components(run: _Run) -> None:
    for name in run.options.components:
        if name not in run.folder.models:
            raise UsageError(f"there is no component {name!r}", hint=f"There are: {', '.join(run.folder.models)}.")
    generated = [name for name in run.folder.needed if run.options.draws and name in run.folder.models]
    graphs = {name: run.folder.file(name).graph for name in dict.fromkeys([*run.components, *generated])}
    for name, graph in graphs.items():
        run.result.precisions[name] = precision(coarsest_dtype(graph), run.configuration.provider)
    if any(is_emulated(graph, run.configuration) for graph in graphs.values()):
        device = run.result.provenance.made_for or "a GPU"
        run.result.notes.append(
            f"made for {device} and checked on the CPU, with every result rounded as "
            "a GPU stores it; errors inside a GPU's kernels show only on that GPU"
        )


def _refuse_shortage(run: _Run) -> None:
    """Refuse images that cannot fit into the free memory at the model's own size, before a component is loaded.

    Random inputs are of a bounded size.

    Raises:
        MemoryShortageError: what it needs and what is free.
    """
    options, folder = run.options, run.folder
    provider, device_id = run.configuration.provider, options.runtime.device_id
    if folder.is_complete and (options.draws or RECORDED in options.kinds):
        request = _requests(run)[0]
        refuse_generation(folder, request, len(options.texts) * options.seeds, provider, device_id)


def _provenance(folder: PipelineFolder, provider: Provider, options: VerifyOptions) -> Provenance:
    optimized = folder.manifest.get("optimized")
    return Provenance(
        date=datetime.now().astimezone().isoformat(timespec="seconds"),
        machine=device_name(provider, options.runtime.device_id),
        versions=versions(),
        made_for=optimized.get("provider") if isinstance(optimized, dict) else None,
        precision=str(optimized.get("precision", "fp32")) if isinstance(optimized, dict) else "fp32",
        weights=optimized.get("weights") if isinstance(optimized, dict) else None,
        command=options.command_line(Path(folder.given)),
    )


def _requests(run: _Run) -> list[Request]:
    options, folder = run.options, run.folder
    refined = (options.sides or folder.default_size) if folder.family.aesthetic else None
    return make_requests(options.texts, options.seeds, options.steps, refined, options.sides)


def _steps(request: Request) -> int:
    """The steps that an image takes."""
    return int(request.steps * request.image_strength) if request.init_image else request.steps


def _record(run: _Run) -> RecordedRun:
    """Generate with the original, for recorded inputs and for images; an export has no ONNX original and stands for it.

    What cannot be compared without a whole pipeline is recorded as missing.
    """
    options = run.options
    originals = [
        what for what, asked in (("recorded inputs", RECORDED in options.kinds), ("images", options.draws)) if asked
    ]
    if not originals:
        return RecordedRun()
    requests = _requests(run)
    total = len(requests) * options.seeds * _steps(requests[0])
    try:
        with progress("generating with the original", total=total) as advance:
            return record_run(run.original or run.folder, _plain(run), requests, advance, images=options.draws)
    except NotLoadedError:
        raise
    except SdortError as error:
        run.result.missing.append(
            f"{' and '.join(originals)}: {error.message} (--inputs random --no-images asks for less)"
        )
        return RecordedRun()


def _plain(run: _Run) -> RunConfiguration:
    """Provider and options of the original: the candidate's without what is there for speed."""
    options = replace(run.options.runtime, tuning=False, fallback=None, graph=False, provider_options={})
    return RunConfiguration(run.configuration.provider, options)


def _inputs(run: _Run, component: str, recorded: RecordedRun) -> list[Inputs]:
    inputs: list[Inputs] = []
    if RANDOM in run.options.kinds:
        reference = run.original or run.folder
        factor = run.folder.vae_factor
        height, width = (side // factor for side in run.options.sides or run.folder.default_size)
        path = reference.models.get(component, run.folder.models[component])
        inputs += random_inputs(path, component, factor, (height, width), candidate=run.folder.models[component])
    if RECORDED in run.options.kinds:
        inputs += recorded.inputs.get(component, [])
    return [part for each in inputs for part in in_batches(each, run.folder.models[component], component)]


def _verify_component(run: _Run, component: str, recorded: RecordedRun) -> None:
    result = run.result
    references: dict[str, Path] = {}
    if run.original and component in run.original.models:
        references[ONNX] = run.original.models[component]
    if run.checkpoint and _has_images(run, component):
        # The images of both are compared: there the UNet gets none, as in the checkpoint.
        result.notes.append(f"{component} is not compared with torch, whose checkpoint has no IP-Adapter")
        if not references:
            return
    elif run.checkpoint:
        references[TORCH] = run.checkpoint
    try:
        if not references:
            raise BadModelError("the original has no such component")
        inputs = _inputs(run, component, recorded)
        path, limits = run.folder.models[component], result.precisions[component]
        with progress(f"{component}: comparing"):
            comparisons, missing = compare_component(component, path, references, run.configuration, inputs, limits)
    except NotLoadedError:
        raise
    except SdortError as error:
        result.missing.append(f"{component}: {error.message}")
        return
    result.comparisons += comparisons
    result.missing += missing
    if run.options.bisect:
        _bisect(run, comparisons)


def _has_images(run: _Run, component: str) -> bool:
    """Whether a component is for IP-Adapters, or its inputs are."""
    return component == IMAGE_ENCODER or bool(count_images(run.folder.file(component).signature.inputs))


def _why_apart(run: _Run, component: str) -> str | None:
    """Why the candidate's component is not sdort's result of the original's; None where nothing says so."""
    for folder in filter(None, (run.folder, run.original)):
        model = folder.models[component]
        edited = [place for place in changed_files(folder.path) if (folder.path / place).parent == model.parent]
        if edited:
            return f"{folder.path} has files that were edited since sdort wrote them ({', '.join(edited)})"
    if run.original and is_recorded(run.folder.path, run.original.path) is False:
        return f"{run.original.path} is not the model that {run.folder.path} was made from"
    return None


def _bisect(run: _Run, comparisons: Sequence[Comparison]) -> None:
    """Search in the first failed comparison of each output with the original's ONNX, the smallest inputs first."""
    outputs: set[str] = set()
    for comparison in comparisons:
        if (
            comparison.passed
            or comparison.against != ONNX
            or comparison.output in outputs
            or run.original is None
            or comparison.feeds is None
        ):
            continue
        outputs.add(comparison.output)
        component = comparison.component
        original, candidate = run.original.models[component], run.folder.models[component]
        graphs = GraphPair(component, original, candidate, run.configuration, comparison.feeds.feeds)
        run.result.searched.append(component)
        try:
            with progress(f"{component}: searching for the node"):
                finding = bisect(graphs, comparison)
            reason = _why_apart(run, component)
            run.result.findings.append(of_other_models(finding, reason) if reason else finding)
        except SdortError as error:  # the comparisons are worth reporting without it
            run.result.missing.append(f"{component}: --bisect cannot tell: {error.message}")
    if not outputs and not all(comparison.passed for comparison in comparisons):
        known = run.original is not None and comparisons[0].component in run.original.models
        why = "differs from torch and not from the ONNX original" if known else "has no ONNX original to search in"
        run.result.notes.append(f"{comparisons[0].component}: nothing to bisect, it {why}")


def _verify_images(run: _Run, recorded: RecordedRun) -> None:
    """Generate with the candidate and compare image by image."""
    dtypes = [run.result.precisions[name].dtype for name in run.folder.needed if name in run.result.precisions]
    coarsest = min(dtypes, default="float32", key=COARSEST_FIRST.index)
    requests = _requests(run)
    references = recorded.images
    if not references:
        return  # recorded as missing already
    if run.original is None and run.checkpoint is not None:
        context = run.folder.file(run.folder.denoiser).signature.inputs.get(run.folder.family.denoiser.roles.context)
        references = generate_in_torch(run.checkpoint, requests, context)
    total = len(requests) * run.options.seeds * _steps(requests[0])
    try:
        pipeline = open_text_to_image(run.folder, run.configuration)
    except NotLoadedError:
        raise
    except SdortError as error:
        run.result.missing.append(f"images: {error.message}")
        return
    with progress("generating", total=total) as advance:
        for request in requests:
            generated: dict[tuple[str, int], Generated] = {}
            try:
                for image in pipeline.generate(request, advance):
                    generated[request.prompt, image.seed] = image
            except SdortError as error:
                run.result.images += failed_images(request, references, coarsest, error.message, len(generated))
            run.result.images += compare_images(generated, references, coarsest)


def _score(run: _Run) -> None:
    original = (run.original, _plain(run)) if run.original else run.checkpoint
    score_candidate(run.folder, run.configuration, original, run.options, run.result)
