"""The optimization of a pipeline: :func:`sdort.optimize`, which ``sdort optimize`` calls."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sdort.console import detail, progress, to_json, warn
from sdort.errors import MissedFusionError, ParityError, SdortError, UsageError, did_you_mean
from sdort.families.known_families import find_roles
from sdort.files.disk import WritePlan
from sdort.files.staging import check_output, check_output_file, real, staged_directory, write_atomically
from sdort.graph.domains import MICROSOFT
from sdort.graph.fact import NOTHING
from sdort.graph.group_quantized import GroupFormat
from sdort.graph.operator import Call
from sdort.graph.weights import Weight
from sdort.lowering.component_report import ComponentReport
from sdort.lowering.own_operators import own_operators
from sdort.lowering.steps import OptimizeOptions, optimize_model
from sdort.machine.os_calls import os_calls
from sdort.machine.process_settings import rare_collections
from sdort.onnx_io.component_file import read_component
from sdort.onnx_io.components import Survey, survey
from sdort.onnx_io.load import load_model
from sdort.onnx_io.precision_mark import BF16, PRECISION_KEY
from sdort.onnx_io.save import save_model
from sdort.optimizer.believed_kernels import believed_target
from sdort.optimizer.expected import check_expected, config_misses, wrong_counts
from sdort.optimizer.fixed_sizes import Shapes, fix_inputs, fix_outputs, fixed_shapes
from sdort.optimizer.fusion_list import DISABLED_STEPS
from sdort.optimizer.optimize_options import OptimizationOptions, OptimizeKeywords, PlanKeywords, PlannedOptions
from sdort.optimizer.optimize_request import OptimizeRequest
from sdort.optimizer.output import copy_configs, extend_manifest, model_file
from sdort.optimizer.provider_choice import provider_here
from sdort.optimizer.report import OptimizeReport
from sdort.optimizer.result_size import plan_space
from sdort.optimizer.selection import left_out, select_models
from sdort.optimizer.summary import miss_lines, miss_number
from sdort.options.declared_options import made_of
from sdort.options.option_types import typed, with_options
from sdort.passes import half
from sdort.pipelines.content_check import ContentCheck, checked
from sdort.pipelines.explain_path import expect_onnx
from sdort.pipelines.folder_signature import Signer, make_signer
from sdort.pipelines.manifest import why_foreign
from sdort.providers import AUTO, find_provider, load_target
from sdort.providers.bf16 import refuse_bf16
from sdort.rewrite.editor import Editor
from sdort.rewrite.fusion import load_fusions
from sdort.tables import size_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdort.graph.model import Model
    from sdort.precision.fp32_selection import Fp32Selector

FUSING, WRITING = "{}: fusing", "{}: writing"
"""The steps of an optimization, for a component's name."""
GROUP_NORMS = (f"{MICROSOFT}.GroupNorm", f"{MICROSOFT}.SkipGroupNorm")


@with_options(OptimizationOptions)
@typed
def optimize(source: str | Path, out: str | Path, **options: Unpack[OptimizeKeywords]) -> OptimizeReport:
    """Fuse, lower and convert every component of a pipeline folder, or one ``.onnx`` file, for an execution provider.

    Args:
        source: a folder of :func:`sdort.export`, optimum or diffusers' converter, or one ``.onnx`` file.
        out: the folder to make; it appears complete or not at all.
        options: what is made, for what, and what must come out.

    Returns:
        Each component's nodes, operators, fusions, bytes and seconds.

    Raises:
        UsageError: parameters that exclude each other, ``disable``, ``components`` or ``expect`` names nothing, or
            ``out`` lies in ``source``.
        BadModelError: a component cannot be read, a model is no component and was not asked for, or a file is not
            what sdort wrote.
        MissedFusionError: something should have fused and did not, and ``allow_misses`` is off; or a count that
            ``expect`` names is another.
        ParityError: a weight overflows fp16.
        OutputError: ``out`` exists or cannot be written.
        ProviderError: ``auto``, and the ONNX Runtime here is broken.
        SdortError: any of these; with ``explain``, its ``record["report"]`` is the report as far as it came.

    Example:
        >>> report = sdort.optimize("model", "fast", provider="rocm", fp16=True)
        >>> report.misses
        []
    """
    return optimize_request(_request(source, out, options))


def _request(source: str | Path, out: str | Path, options: PlanKeywords) -> OptimizeRequest:
    chosen = {**options, "provider": provider_here(options.get("provider", AUTO))}
    return made_of(OptimizeRequest, chosen, source=Path(source), out=Path(out))


def optimize_request(request: OptimizeRequest) -> OptimizeReport:
    """:func:`optimize` of parameters that are together."""
    signer = make_signer(request.sign, request.certificate)
    _check_request(request)
    _check_report(request)
    result = OptimizeReport(str(request.source), str(request.out), request.provider, request.half, request.precision)
    result.weights = request.weights
    result.sdort_ops, result.sdort_ops_reason = own_operators(request.provider, request.sdort_ops)
    request = replace(request, sdort_ops=result.sdort_ops)
    try:
        with checked(request.source, request.check) as content, rare_collections():
            _optimize(request, result, content, signer)
    except SdortError as error:
        if request.explain:
            error.record["report"] = result
        raise
    return result


@with_options(PlannedOptions)
@typed
def plan_optimize(source: str | Path, out: str | Path, **options: Unpack[PlanKeywords]) -> WritePlan:
    """Say what :func:`optimize` would write, and whether it fits; nothing is written or fused.

    Args:
        source: as for :func:`optimize`, and so is ``out``.
        options: what would be made, and for what.

    Returns:
        The size of each component, free disk space, and an estimate of the peak memory.
        See :meth:`sdort.files.disk.WritePlan.raise_if_short`.

    Raises:
        SdortError: as :func:`optimize` where a parameter, the source or ``out`` is wrong.

    Example:
        >>> sdort.plan_optimize("model", "fast", provider="cpu", fp16=True).fits
        True
    """
    request = _request(source, out, options)
    _check_request(request)
    chosen = select_models(request, _survey(request))
    check_output(request.out, request.overwrite, [request.source, *chosen.values()], why_foreign=why_foreign)
    return plan_space(request, chosen)


def _check_request(request: OptimizeRequest) -> None:
    """Refuse what is wrong with the parameters alone, before anything is read."""
    _check_precision(request)
    _check_disable(request.disable)
    _check_out(request)


def _check_precision(request: OptimizeRequest) -> None:
    if request.fp16_plan and request.measures:
        raise UsageError("--fp16 auto makes its own plan")
    if request.bf16 and request.fp16:
        raise UsageError("--bf16 and --fp16 exclude each other")
    if request.bf16:
        refuse_bf16(find_provider(request.provider))
    if request.integers:
        _check_integers(request.provider, request.integers)


def _check_integers(provider: str, form: GroupFormat) -> None:
    if form.group & (form.group - 1):
        raise UsageError(f"--group {form.group} is no power of two", hint="Take 32, 64 or 128.")
    stored = ("A", "B", "scales", *(() if form.symmetric else ("zero_points",)))
    call = Call(dict.fromkeys(stored, NOTHING), (), {"bits": form.bits, "block_size": form.group})
    if reason := load_target(provider).conditions[f"{MICROSOFT}.MatMulNBits"](call):
        raise UsageError(f"--weights int{form.bits}: {reason}", hint="Take --weights int4.")


def _check_disable(names: Collection[str]) -> None:
    known = [*load_fusions(), *DISABLED_STEPS]
    for name in names:
        if name not in known:
            hint = f"{did_you_mean(name, known)}To list them:\n    sdort fusions"
            raise UsageError(f"--disable {name!r} names no fusion", hint=hint)


def _check_out(request: OptimizeRequest) -> None:
    """A later run would take what lies in IN for a part of it."""
    source, out = real(request.source), real(request.out)
    if source.is_dir() and out.is_relative_to(source):
        place = "is the input" if out == source else f"lies in the input ({request.source})"
        raise UsageError(f"{request.out} {place}", hint="Choose an output folder apart from the input.")


def _check_report(request: OptimizeRequest) -> None:
    if request.report is None:
        return
    if real(request.report).is_relative_to(real(request.out)):
        raise UsageError(
            f"--report {request.report} lies in the output folder, which appears only if all succeeds",
            hint="Choose a file apart from it.",
        )
    reads = [path for path in (request.source, request.fp16_plan) if path]
    check_output_file(request.report, request.overwrite, reads)


def _optimize(request: OptimizeRequest, report: OptimizeReport, content: ContentCheck, signer: Signer | None) -> None:
    start = time.perf_counter()
    models = _survey(request)
    chosen = select_models(request, models)
    check_expected(request.expect, chosen)
    report.left_out.update(left_out(request, models))
    shapes = fixed_shapes(request, {name: path for name, path in chosen.items() if name in models.components})
    reads = [request.source, *chosen.values()]
    hashes: dict[Path, str] = {}
    with staged_directory(request.out, request.overwrite, reads, why_foreign=why_foreign) as stage:
        plan_space(request, chosen).raise_if_short()
        content.reads(chosen.values())
        selector = _fp32_selector(request, stage)
        for name, path in chosen.items():
            known = name in models.components
            fixed = shapes.get(name, {})
            hashes.update(_optimize_component(request, report, name, path, stage, selector, fixed, known=known))
        if selector:
            selector.write_plan(stage, request.provider)
        wrong = wrong_counts(request.expect, report.components)
        report.wrong_counts += wrong
        report.misses += report.wrong_counts
        if request.source.is_dir():
            copy_configs(request, stage)
        report.seconds = round(time.perf_counter() - start, 3)
        report.peak_rss_mb = os_calls.peak_memory() // 10**6
        extend_manifest(request, report, stage, hashes)
        content.finish()
        if signer:
            signer.sign(stage, real(request.out).name)
        if request.report is not None:
            write_atomically(request.report, json.dumps(to_json(report), indent=2) + "\n")
        if wrong or (report.misses and not request.allow_misses):
            raise _missed(request, report, certain=bool(wrong))


def _survey(request: OptimizeRequest) -> Survey:
    expect_onnx(request.source, nested=request.any_graph)
    return survey(request.source, recognise_lone=not request.any_graph)


def _missed(request: OptimizeRequest, report: OptimizeReport, *, certain: bool) -> MissedFusionError:
    """``certain``: what was expected is not so, which --allow-misses does not allow."""
    ways = ["--explain shows them as a table, with -v every node."] * (not request.explain)
    ways += ["--allow-misses writes the result all the same."] * (not certain)
    if request.disable and not certain:
        ways.append(f"Other fusions may need what --disable leaves out: {', '.join(request.disable)}.")
    lines = [] if request.explain else [f"\n  {line}" for line in miss_lines(report)]
    message = f"{miss_number(report)}, so nothing was written{':' * bool(lines)}{''.join(lines)}"
    return MissedFusionError(message, hint=" ".join(ways) or None)


def _fp32_selector(request: OptimizeRequest, stage: Path) -> Fp32Selector | None:
    """The selection of nodes that stay in fp32; None if there is none."""
    if not request.fp16 or not (request.measures or request.fp16_plan):
        return None
    from sdort.precision.fp32_selection import Fp32Selector
    from sdort.precision.plan import read_plan

    return Fp32Selector(request.source, stage, read_plan(request.fp16_plan) if request.fp16_plan else None)


def _optimize_component(
    request: OptimizeRequest,
    report: OptimizeReport,
    name: str,
    path: Path,
    stage: Path,
    selector: Fp32Selector | None,
    shapes: Shapes,
    *,
    known: bool,
) -> dict[Path, str]:
    """Read one component and write what becomes of it.

    Args:
        shapes: those that its inputs get; none where it keeps its own.
        known: it is a component of a pipeline, so that its config says what has to be in it.

    Returns:
        The hashes of the files that were written.
    """
    start = time.perf_counter()
    model = load_model(path, name, request.unwritten.get(name))
    fix_inputs(model, shapes)
    done = report.components[name] = ComponentReport(name)
    done.bytes_before = max(sum(read_component(path, name).weight_bytes.values()), path.stat().st_size)
    done.seconds["load"] = round(time.perf_counter() - start, 4)
    with progress(FUSING.format(name)):
        optimize_model(model, _options(request, path, selector), done)
    if shapes:
        fix_outputs(model)
    report.misses.extend(f"{name}: {miss}" for miss in done.misses)
    own = bool(request.sdort_ops)
    misses = config_misses(model, path.parent / "config.json", request.provider, done, own) if known else None
    done.architecture_known = misses is not None
    if misses and not request.disable:
        report.wrong_counts.extend(f"{name}: {miss}" for miss in misses)
    hashes = _write(request, model, model_file(request, name, path, stage, known=known), done)
    if selector and name in selector.selections:
        done.precision = selector.selections[name].report()
    return hashes


def _options(request: OptimizeRequest, path: Path, selector: Fp32Selector | None) -> OptimizeOptions:
    target = believed_target(request.provider, "float16" if request.half else "float32")
    if "group_norm" in request.disable:
        target = target.without(*GROUP_NORMS)
    if request.integers:
        target = target.without(f"{MICROSOFT}.Attention")  # its weights are an input of its own, in floats
    return OptimizeOptions(
        target,
        fp16=request.half,
        io_fp16=request.io_fp16,
        fp32_nodes=partial(selector.select_nodes, path=path) if selector else lambda editor: (),
        weights=request.integers,
        sdort_ops=bool(request.sdort_ops),
        disable=frozenset(request.disable),
        explain=request.explain,
    )


def _warn_of_places(model: Model) -> None:
    """Say that bf16 is too coarse for the places that a component computes with; a denoiser does so before it."""
    cut = find_roles([tensor.name for tensor in model.graph.inputs]) is not None
    if not cut and half.places(Editor(model)):
        warn(
            f"{model.component} computes with places in the text, for which bf16 has too few bits: the longer the "
            "prompt, the more its result differs. Export it with --static, where they are constants, or take --fp16"
        )


def _write(request: OptimizeRequest, model: Model, path: Path, done: ComponentReport) -> dict[Path, str]:
    """Write one component, with the weights that fp16 makes of it.

    Returns:
        The hashes of its files.

    Raises:
        ParityError: fp16 cannot hold one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if request.bf16:
        model.metadata[PRECISION_KEY] = BF16
        _warn_of_places(model)
    if done.weights and done.weights.layers:
        model.metadata[PRECISION_KEY] = str(request.weights)
    with progress(WRITING.format(model.component), total=float(_weight_bytes(model))) as advance:
        written = save_model(model, path, advance=advance, checksum=True)
    if written.overflowed:
        raise ParityError(
            f"fp16 cannot hold values of {len(written.overflowed)} weights: {', '.join(written.overflowed[:5])}",
            component=model.component,
            hint="Leave what overflows in fp32 with --fp16 auto, or the whole component: optimize it without --fp16.",
        )
    done.seconds["write"], done.bytes = round(written.seconds, 4), written.bytes
    detail(f"{model.component}: {done.nodes_before} -> {done.nodes_after} nodes, {size_text(written.bytes)}")
    return written.hashes


def _weight_bytes(model: Model) -> int:
    tensors = {id(t): t for n in model.graph.nodes for t in n.inputs}
    weights = (getattr(t, "_values", None) for t in tensors.values())
    return sum(w.nbytes for w in weights if isinstance(w, Weight))
