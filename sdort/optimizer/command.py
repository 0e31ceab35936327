"""The optimization of a pipeline: :func:`sdort.optimize`, which ``sdort optimize`` calls."""

from __future__ import annotations

import json
import resource
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sdort.console import detail, progress, say
from sdort.errors import BadModelError, MissedFusionError, OutputError, ParityError, UsageError
from sdort.machine.version import __version__
from sdort.model.domains import MICROSOFT
from sdort.model.weights import Weight
from sdort.onnx_io.bf16 import BF16, KEY
from sdort.onnx_io.components import Survey, refuse_misfits, refuse_none, refuse_others, survey, walk
from sdort.onnx_io.load import load_model
from sdort.onnx_io.save import save_model
from sdort.optimizer.expected import expected_operators
from sdort.optimizer.pipeline import ComponentReport, Options, optimize_model
from sdort.passes.expand import NAME as EXPAND
from sdort.providers import find_provider, load_target
from sdort.providers.bf16 import refuse_bf16
from sdort.rewrite.fusion import load_fusions
from sdort.staging import staged_directory

if TYPE_CHECKING:
    from sdort.model.model import Model
    from sdort.precision.fp32_selection import Keeper

MANIFEST = "sdort.json"
PASSES = ("nhwc", "group_norm")
"""Beside the fusions, what can be disabled: the channels-last region, and the target's GroupNorm kernels in it."""
SAFETY_CHECKER = "safety_checker"
"""No part of the generation, and no pass is made for it: only who asks for it gets it."""
SHOWN = 5
"""Files that are named where there are many."""
COPIED = (".json", ".txt", ".jinja", ".model")
"""Configs, tokenizers and schedulers: everything of a pipeline folder that is no weight."""


@dataclass(frozen=True)
class OptimizeRequest:
    """The parameters of :func:`optimize`."""

    source: Path
    out: Path
    provider: str = "rocm"
    fp16: bool = False
    io_fp16: bool = False
    fp16_auto: bool = False
    """With fp16: measure what fp16 cannot hold, and leave that in fp32."""
    bf16: bool = False
    """Write an fp32 model that its provider computes in bf16 (:mod:`sdort.onnx_io.bf16`)."""
    fp16_plan: Path | None = None
    """With fp16: leave in fp32 what this file says (:mod:`sdort.precision.plan`)."""
    sdort_ops: bool = False
    """Also fuse into sdort's own operators."""
    components: Collection[str] = ()
    """By name, what to optimize; empty for every component of the pipeline."""
    any_graph: bool = False
    """Also take models that are no component of a pipeline, and one that is not in a component's folder as it is."""
    disable: Collection[str] = ()
    expect: Mapping[str, int] = field(default_factory=dict)
    """Operator -> count, summed over the components; ``component:operator`` for one of them."""
    allow_misses: bool = False
    explain: bool = False
    overwrite: bool = False
    report: Path | None = None


@dataclass
class OptimizeReport:
    """What was done: written with ``--report``, printed with ``--json``."""

    source: str
    out: str
    provider: str
    fp16: bool
    sdort: str = __version__
    components: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Models that nobody asked for, and why they were not optimized."""
    misses: list[str] = field(default_factory=list)
    seconds: float = 0.0
    peak_rss_mb: int = 0
    """Peak resident memory of the process, in MB (10^6 bytes)."""


def optimize(
    source: str | Path,
    out: str | Path,
    *,
    provider: str = "rocm",
    fp16: bool | Literal["plain", "auto"] = False,
    fp16_plan: str | Path | None = None,
    bf16: bool = False,
    io_fp16: bool = False,
    sdort_ops: bool = False,
    components: Collection[str] = (),
    any_graph: bool = False,
    disable: Collection[str] = (),
    expect: Mapping[str, int] | None = None,
    allow_misses: bool = False,
    explain: bool = False,
    report: str | Path | None = None,
    overwrite: bool = False,
) -> OptimizeReport:
    """Fuse, lower and convert every component of a pipeline folder, or one ``.onnx`` file, for an execution provider.

    Args:
        source: a folder of :func:`sdort.export`, optimum or diffusers' converter, or one ``.onnx`` file.
        out: the folder to make; it appears complete or not at all.
        provider: the execution provider to optimize for: ``rocm``, ``migraphx``, ``cuda`` or ``cpu``.
        fp16: convert to 16-bit floats; with ``"auto"`` run the model first, and leave in fp32 what fp16 cannot hold.
            ``"plain"`` is the same as True.
        fp16_plan: with ``fp16=True``: leave in fp32 what this file says; ``"auto"`` wrote it as ``fp16-plan.json``.
        bf16: make an fp32 model that migraphx computes in bf16.
        io_fp16: with ``fp16``: inputs and outputs too.
        sdort_ops: also fuse into sdort's own operators.
        components: the components to optimize, by name; all of the pipeline if empty.
        any_graph: take any model, diffusion component or not.
        disable: fusions to leave out, by name.
        expect: operator, or ``component:operator``, and how many of it the result must have.
        allow_misses: write the result though something did not fuse; a wrong ``expect`` is an error all the same.
        explain: report for every fusion each place that it left, and why.
        report: a file for the result as JSON.
        overwrite: replace ``out`` if it exists.

    Returns:
        Each component's nodes, operators, fusions, bytes and seconds.

    Raises:
        UsageError: parameters that exclude each other, or ``disable`` or ``components`` names nothing.
        BadModelError: a component cannot be read, or a model is no component and was not asked for.
        MissedFusionError: something should have fused and did not, and ``allow_misses`` is off; or a count that
            ``expect`` names is another.
        ParityError: a weight overflows fp16.
        OutputError: ``out`` exists or cannot be written.

    Example:
        >>> report = sdort.optimize("model", "fast", provider="rocm", fp16=True)
        >>> report.misses
        []
    """
    request = OptimizeRequest(
        source=Path(source),
        out=Path(out),
        provider=provider,
        fp16=bool(fp16),
        io_fp16=io_fp16,
        fp16_auto=fp16 == "auto",
        bf16=bf16,
        fp16_plan=Path(fp16_plan) if fp16_plan else None,
        sdort_ops=sdort_ops,
        components=components,
        any_graph=any_graph,
        disable=disable,
        expect=expect or {},
        allow_misses=allow_misses,
        explain=explain,
        overwrite=overwrite,
        report=Path(report) if report else None,
    )
    _check_precision(request)
    return _optimize(request)


def _check_precision(request: OptimizeRequest) -> None:
    if request.io_fp16 and not request.fp16:
        raise UsageError("--io-fp16 needs --fp16")
    if request.fp16_plan and not request.fp16:
        raise UsageError("--fp16-plan needs --fp16")
    if request.fp16_plan and request.fp16_auto:
        raise UsageError("--fp16 auto makes its own plan")
    if request.bf16 and request.fp16:
        raise UsageError("--bf16 and --fp16 exclude each other")
    if request.bf16:
        refuse_bf16(find_provider(request.provider))


def _optimize(request: OptimizeRequest) -> OptimizeReport:
    start = time.perf_counter()
    _check_disable(request.disable)
    found = survey(request.source, apart_from=request.out, recognise_lone=not request.any_graph)
    chosen = _select(request, found)
    report = OptimizeReport(str(request.source), str(request.out), request.provider, request.fp16)
    report.left_out.update(_left_out(request, found))
    with staged_directory(request.out, request.overwrite, [request.source, *chosen.values()]) as stage:
        keeper = _keeper(request, stage)
        for name, path in chosen.items():
            _optimize_component(request, report, name, path, stage, keeper, known=name in found.components)
        if keeper:
            keeper.write_plan(stage, request.provider)
        wrong = _wrong_counts(request, report)
        report.misses += wrong
        if request.source.is_dir():
            _copy_configs(request, stage)
        report.seconds = round(time.perf_counter() - start, 3)
        report.peak_rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 // 10**6
        _write_json(stage / MANIFEST, _manifest(request, report))
        _write_report(request, report)
        if wrong or (report.misses and not request.allow_misses):
            anyway = "" if wrong else ", --allow-misses to write the result anyway"
            raise MissedFusionError(
                "what should have fused did not:\n" + "\n".join(f"    {miss}" for miss in report.misses),
                hint=f"Use --explain for every place{anyway}.",
            )
    return report


def _check_disable(names: Collection[str]) -> None:
    known = {*load_fusions(), *PASSES}
    for name in names:
        if name not in known:
            raise UsageError(f"--disable {name!r} names no fusion", hint=f"Known: {', '.join(sorted(known))}.")


def _select(request: OptimizeRequest, found: Survey) -> dict[str, Path]:
    """What to optimize: what is asked for by name, everything with ``any_graph``, else the components of a pipeline.

    Raises:
        UsageError: something is asked for that is not there.
        BadModelError: something is there that sdort does not know, and that nobody asked for.
    """
    for name in request.components:
        if name not in found.models:
            raise UsageError(f"there is no component {name!r}", hint=f"The model has {', '.join(found.models)}.")
    if not found.models:
        refuse_none(found)
    if request.any_graph:
        return {name: path for name, path in found.models.items() if name in (request.components or found.models)}
    asked = set(request.components)
    refuse_misfits(found, asked)
    if asked:
        return {name: path for name, path in found.models.items() if name in asked}
    refuse_others(found)
    return {name: path for name, path in found.components.items() if name != SAFETY_CHECKER}


def _left_out(request: OptimizeRequest, found: Survey) -> dict[str, str]:
    """The models that nobody asked for and that are no error, with the reason; told."""
    if request.components or request.any_graph:
        return {}
    reasons = {}
    if SAFETY_CHECKER in found.components:
        reasons[SAFETY_CHECKER] = "it has no part in drawing"
    for name, path in found.spare.items():
        reasons[name] = f"{path.with_name('model.onnx').relative_to(found.path)} is beside it"
    for name, reason in reasons.items():
        say(f"left out: {name}, as {reason} (--component {name} takes it)")
    return reasons


def _keeper(request: OptimizeRequest, stage: Path) -> Keeper | None:
    """What decides which nodes stay in fp32; None if nothing does."""
    if not request.fp16 or not (request.fp16_auto or request.fp16_plan):
        return None
    from sdort.precision.fp32_selection import Keeper
    from sdort.precision.plan import read_plan

    return Keeper(request.source, stage, read_plan(request.fp16_plan) if request.fp16_plan else None)


def _optimize_component(
    request: OptimizeRequest,
    report: OptimizeReport,
    name: str,
    path: Path,
    stage: Path,
    keeper: Keeper | None,
    *,
    known: bool,
) -> None:
    """``known``: it is a component of a pipeline, so that its config says what has to be in it."""
    start = time.perf_counter()
    model = load_model(path, name)
    loaded = time.perf_counter() - start
    target = load_target(request.provider)
    options = Options(
        target.without("com.microsoft.GroupNorm", "com.microsoft.SkipGroupNorm")
        if "group_norm" in request.disable
        else target,
        fp16=request.fp16,
        io_fp16=request.io_fp16,
        islands=partial(keeper.choose, path=path) if keeper else lambda editor: (),
        sdort_ops=request.sdort_ops,
        disable=frozenset(request.disable),
        explain=request.explain,
    )
    with progress(f"{name}: fusing"):
        done = optimize_model(model, options)
    report.misses.extend(
        f"{name}: {m['fusion']} left {m['node']!r}: {m['reason']} ({m['matched']} of {m['of']} nodes matched)"
        for m in done.misses
    )
    if known:
        report.misses.extend(f"{name}: {miss}" for miss in _config_misses(request, model, path, done))
    target_file = _place(request, name, path, stage, known=known)
    target_file.parent.mkdir(parents=True, exist_ok=True)
    if request.bf16:
        model.metadata[KEY] = BF16
    with progress(f"{name}: writing", total=float(_weight_bytes(model))) as advance:
        written = save_model(model, target_file, advance=advance)
    if written.overflowed:
        raise ParityError(
            f"fp16 cannot hold values of {len(written.overflowed)} weights: {', '.join(written.overflowed[:5])}",
            component=name,
            hint="Leave what overflows in fp32 with --fp16 auto, or the whole component: optimize it without --fp16.",
        )
    detail(f"{name}: {done.nodes_before} -> {done.nodes_after} nodes, {written.bytes / 1e6:.0f} MB")
    seconds = {"load": loaded, **done.seconds, "write": written.seconds}
    report.components[name] = _component(done, seconds, written.bytes)
    if keeper and name in keeper.outcomes:
        report.components[name]["precision"] = keeper.outcomes[name].record()


def _place(request: OptimizeRequest, name: str, path: Path, stage: Path, *, known: bool) -> Path:
    """The file to write: laid out as IN is, with the names that a pipeline's components have."""
    if not request.source.is_dir():
        return stage / "model.onnx"
    if not known:
        return stage / path.relative_to(request.source)
    return (stage if path.parent == request.source else stage / name) / "model.onnx"


def _component(done: ComponentReport, seconds: dict[str, float], size: int) -> dict[str, Any]:
    return {
        "nodes_before": done.nodes_before,
        "nodes_after": done.nodes_after,
        "operators_before": done.operators_before,
        "operators": done.operators,
        "fusions": {
            o.name: {"matched": o.matched, "candidates": o.candidates, "left": o.refusals}
            for o in done.fusions.values()
        },
        "declined": done.declined,
        "seconds": {step: round(value, 4) for step, value in seconds.items()},
        "bytes": size,
    }


def _weight_bytes(model: Model) -> int:
    tensors = {id(t): t for n in model.graph.nodes for t in n.inputs}
    weights = (getattr(t, "_values", None) for t in tensors.values())
    return sum(w.nbytes for w in weights if isinstance(w, Weight))


def _config_misses(request: OptimizeRequest, model: Model, path: Path, done: ComponentReport) -> list[str]:
    """What the graph lacks of what its architecture, told by config.json alone, has to have.

    The raised graph is held to it on every target, the fused one where the target declined nothing.
    """
    config = path.parent / "config.json"
    if request.disable or not config.is_file():
        return []
    try:
        settings = _read_json(config)
        raised = expected_operators(settings, model.component, "raised")
        fused = expected_operators(settings, model.component, request.provider)
    except BadModelError as error:
        detail(f"{model.component}: no counts can be derived from {config}: {error}")
        return []
    counts = done.operators_raised
    misses = [e.judge(sum(counts.get(op, 0) for op in e.operators)) for e in raised]
    complete = f"{MICROSOFT}.GroupNorm" in load_target(request.provider).conditions
    if complete and not any(o.declined for o in done.fusions.values() if o.name != EXPAND):
        misses += [e.miss(model.graph) for e in fused]
    return [miss for miss in misses if miss]


def _wrong_counts(request: OptimizeRequest, report: OptimizeReport) -> list[str]:
    """What ``expect`` asked for and is not so."""
    wrong = []
    for name, wanted in request.expect.items():
        component, _, operator = name.rpartition(":")
        if component and component not in report.components:
            raise UsageError(f"--expect {name}: there is no component {component!r}")
        counts = [c["operators"] for n, c in report.components.items() if component in ("", n)]
        found = sum(v for c in counts for k, v in c.items() if k.rpartition(".")[2] == operator)
        if found != wanted:
            wrong.append(f"--expect {name}={wanted}: found {found}")
    return wrong


def _copy_configs(request: OptimizeRequest, stage: Path) -> None:
    """Everything beside the models: configs, tokenizers, scheduler, model_index.json.

    Links are not followed. They are told, and so is what lies in folders without a model and is not copied either.
    """
    files = list(walk(request.source, request.out, follow=False))
    with_models = {path.parent for path in files if path.suffix == ".onnx"}
    left = []
    for path in files:
        place = path.relative_to(request.source)
        if path.is_symlink() or not path.is_file() or path.suffix not in COPIED:
            left += [str(place)] if path.suffix in COPIED or path.parent not in with_models else []
            continue
        (stage / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, stage / place)
    if left:
        more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
        say(f"not copied, as only configs and tokenizers are, and no links: {', '.join(left[:SHOWN])}{more}")


def _manifest(request: OptimizeRequest, report: OptimizeReport) -> dict[str, Any]:
    original = request.source / MANIFEST
    return {
        **(_read_json(original) if original.is_file() else {}),
        "optimized": {
            "sdort": __version__,
            "from": str(request.source.resolve()),
            "provider": request.provider,
            "fp16": request.fp16,
            "precision": BF16 if request.bf16 else "fp16" if request.fp16 else "fp32",
            "components": {n: {"operators": c["operators"], "bytes": c["bytes"]} for n, c in report.components.items()},
        },
    }


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadModelError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise BadModelError(f"{path} holds no JSON object")
    return content


def _write_report(request: OptimizeRequest, report: OptimizeReport) -> None:
    if request.report is not None:
        _write_json(request.report, asdict(report))


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    try:
        path.write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
