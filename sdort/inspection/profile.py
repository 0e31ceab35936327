"""The placement of a model's nodes and their time: per execution provider and operator.

The nodes come from the log of a session's initialisation, the times from ONNX Runtime's profile of one run after a
first. A GPU provider that was built with its profiler reports the kernels' own times; without it the profile has only
the time that the host spends on each node, which on a GPU is that of the launch.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdort.console import detail
from sdort.families.family import CHUNK
from sdort.files.staging import temporary_folder
from sdort.graph.signature import Array
from sdort.onnx_io.component_file import read_component
from sdort.pipelines.folder import image_channels
from sdort.providers import CPU, PROVIDERS
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime.placement import COPIES, SHAPE_OPERATORS, parse_placement, run_logged
from sdort.runtime.session import Session, open_logged
from sdort.runtime.step.prepared_tensors import split_file

if TYPE_CHECKING:
    from sdort.tables import Table
    from sdort.workload.cases import Case


@dataclass(frozen=True)
class Share:
    """The nodes of one operator on one execution provider; ``milliseconds`` are of all of them in one run."""

    provider: str
    """The execution provider that ran the nodes, by ONNX Runtime's name."""
    operator: str
    """The operator."""
    nodes: int
    """Number of nodes."""
    milliseconds: float | None
    """Time of all of them in one run; None where nothing tells."""


@dataclass(frozen=True)
class Placement:
    """The placement of one component."""

    component: str
    """The component's name."""
    shares: tuple[Share, ...]
    """The longest first, then the most nodes."""
    kernel_times: bool
    """Whether times are those of the device's kernels, and not of the host's calls."""
    fallen: dict[str, int]
    """Operators that compute on the CPU though the model runs elsewhere: nodes of each. Arithmetic on sizes is none."""
    copies: dict[str, int]
    """Copies that ONNX Runtime inserted between host and device."""
    untimed: int = 0
    """Nodes that run before the steps, once for a prompt or a schedule: their time is not in ``milliseconds``."""

    def total(self, provider: str) -> tuple[int, float | None]:
        """Nodes and milliseconds on one execution provider."""
        rows = [share for share in self.shares if share.provider == provider]
        times = [share.milliseconds for share in rows if share.milliseconds is not None]
        return sum(share.nodes for share in rows), sum(times) if times else None


def measure_placement(
    path: Path, component: str, provider: Provider, options: RuntimeOptions, feeds: Mapping[str, Array] | None = None
) -> Placement:
    """Open a model in a session of its own, and time a run.

    Args:
        feeds: inputs to time a run on; without them nothing runs, and there are no times.

    Raises:
        SdortError: the model cannot be opened or run.
    """
    with temporary_folder("profile") as folder:
        profile = str(folder / "profile") if feeds is not None else ""
        # A graph's nodes are not run one by one.
        plain = replace(options, graph=False, fallback=None, tuning=False, profile=profile)
        # A session that logs its placement also logs its end.
        (log, events), _ = run_logged(lambda: _open_and_run(path, component, provider, plain, feeds))
    placed = summarize_placement(component, provider, parse_placement(log), events)
    return placed if feeds is None else replace(placed, untimed=_untimed(path, component, options))


def list_placement(path: Path, component: str, provider: Provider) -> Placement:
    """The placement of a model's nodes by the list of a provider's kernels, without the provider.

    Raises:
        BadModelError: the model cannot be read.
    """
    from sdort.onnx_io.load import load_model
    from sdort.rewrite.editor import Editor

    editor = Editor(load_model(path, component))
    placed: dict[str, Counter[str]] = defaultdict(Counter)
    for node in editor.graph.nodes:
        place = CPU if provider.target.unsupported(node, editor) else provider
        placed[place.ep][node.op] += 1
    return summarize_placement(component, provider, placed, [])


def _untimed(path: Path, component: str, options: RuntimeOptions) -> int:
    """Nodes of the parts that run before the steps, of which the session's profile knows nothing."""
    split = split_file(read_component(path, component), options.control_inputs) if options.split else None
    return sum(len(part.graph.node) for part in (split.prompt, split.time) if part) if split else 0


def _open_and_run(
    path: Path, component: str, provider: Provider, options: RuntimeOptions, feeds: Mapping[str, Array] | None
) -> tuple[str, list[dict[str, Any]]]:
    session, log = open_logged(path, component, provider, options)
    return log, profile_run(session, feeds) if feeds is not None else []


def measure_cases(
    models: Mapping[str, Path],
    todo: Sequence[Case],
    provider: Provider,
    options: RuntimeOptions,
    factor: int,
    tokens: int = CHUNK,
) -> list[Placement]:
    """The placement of each component at its case.

    Args:
        factor: pixels a latent.
        tokens: of a prompt, as the component takes them.
    """
    from sdort.workload.cases import make_feeds

    placements = []
    for case in todo:
        path = models[case.component]
        channels = image_channels(path, case.component)
        inputs = read_component(path, case.component).signature.inputs
        feeds = make_feeds(case, inputs, factor, channels, tokens)
        placements.append(measure_placement(path, case.component, provider, options, feeds))
    return placements


def profile_run(session: Session, feeds: Mapping[str, Array]) -> list[dict[str, Any]]:
    """The events of a second run: the first allocates and tunes."""
    for _ in range(2):
        session.run(feeds)
    path = Path(session.ort.end_profiling())
    try:
        events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        detail(f"{session.component}: ONNX Runtime's profile cannot be read: {error}")
        return []
    runs = [event["ts"] for event in events if event.get("name") == "model_run"]
    return [event for event in events if runs and event.get("ts", 0) >= max(runs)]


def summarize_placement(
    component: str, provider: Provider, placed: Mapping[str, Counter[str]], events: Sequence[Mapping[str, Any]]
) -> Placement:
    """Put the log's counts and the profile's times together.

    Args:
        placed: execution provider -> operator -> nodes; operator "" where one provider has all.
        events: of the profile of one run.
    """
    host, kernels, seen = _times(events)
    kernel_times = provider.on_gpu and bool(kernels)
    shares = []
    for ep, counts in placed.items():
        known = counts if "" not in counts else (seen.get(ep) or counts)
        times = kernels if kernel_times and ep == provider.ep else host.get(ep, Counter())
        for operator, nodes in known.items():
            microseconds = times.get(operator, 0 if times else None)
            shares.append(Share(ep, operator, nodes, None if microseconds is None else microseconds / 1000))
    shares.sort(key=lambda share: (-(share.milliseconds or 0), -share.nodes, share.operator))
    on_cpu = placed.get(CPU.ep, Counter()) if not provider.is_fallback else Counter[str]()
    return Placement(
        component,
        tuple(shares),
        kernel_times,
        {operator: nodes for operator, nodes in sorted(on_cpu.items()) if operator not in SHAPE_OPERATORS},
        {name: nodes for name in COPIES if (nodes := sum(counts[name] for counts in placed.values()))},
    )


def _times(
    events: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, Counter[str]], Counter[str], dict[str, Counter[str]]]:
    """Microseconds of the host per execution provider and operator, those of kernels per operator, and nodes seen."""
    host: dict[str, Counter[str]] = defaultdict(Counter)
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    kernels: Counter[str] = Counter()
    for event in events:
        arguments = event.get("args", {})
        operator = arguments.get("op_name", "")
        if event.get("cat") == "Node" and str(event.get("name", "")).endswith("_kernel_time"):
            host[arguments.get("provider", "")][operator] += event["dur"]
            seen[arguments.get("provider", "")][operator] += 1
        elif event.get("cat") == "Kernel":
            kernels[operator or "(no operator)"] += event["dur"]
    return host, kernels, seen


def placement_table(placements: Sequence[Placement], most: int = 12) -> Table:
    """Lines for people: per component and provider the sum, then its ``most`` costly operators."""
    from sdort.tables import Table

    kind = "of kernels" if any(placement.kernel_times for placement in placements) else "of the host's calls"
    is_timed = any(share.milliseconds is not None for placement in placements for share in placement.shares)
    title = f"Placement, with the time {kind}" if is_timed else "Placement"
    if any(placement.untimed for placement in placements):
        title += ", of a step alone: not of what runs before the steps"
    table = Table(title, ("operator", ">nodes", ">ms"))
    for placement in placements:
        for ep in dict.fromkeys(share.provider for share in placement.shares):
            nodes, milliseconds = placement.total(ep)
            table.add_row(f"{placement.component} on {_short(ep)}", f"{nodes:,}", _ms(milliseconds), style="bold")
            rows = [share for share in placement.shares if share.provider == ep and share.operator]
            for share in rows[:most]:
                table.add_row(f"  {share.operator}", f"{share.nodes:,}", _ms(share.milliseconds))
            if len(rows) > most:
                table.add_row(f"  {len(rows) - most} more", f"{sum(share.nodes for share in rows[most:]):,}", "")
    return table


def _short(ep: str) -> str:
    """Our name of an execution provider, where there is one."""
    return next((provider.name for provider in PROVIDERS.values() if provider.ep == ep), ep)


def _ms(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds:.3f}"


def list_remarks(placements: Sequence[Placement], provider: Provider) -> list[str]:
    """Sentences on :func:`list_placement`: what has no kernel, and whose list tells."""
    lines = [
        f"{placement.component}: {', '.join(f'{nodes} {operator}' for operator, nodes in placement.fallen.items())} on "
        "the CPU"
        for placement in placements
        if placement.fallen
    ]
    whole = [placement.component for placement in placements if not placement.fallen]
    if whole:
        lines.append(f"{provider.name} has kernels for all of {', '.join(whole)} but arithmetic on sizes.")
    source = f"the kernels that {provider.kernel_table} registers for opset {provider.target.opset}"
    return [*lines, f"{provider.name} does not run here. Nothing was opened: the nodes are placed by {source}."]


def remarks(placements: Sequence[Placement], provider: Provider) -> list[str]:
    """Sentences on the operators that fell to the CPU and on copies: one a component, one for all that have none."""
    if provider.is_fallback:
        return [f"{provider.name} runs every node of {', '.join(placement.component for placement in placements)}."]
    lines, whole = [], []
    for placement in placements:
        if not placement.fallen and not placement.copies:
            whole.append(placement.component)
            continue
        fallen = ", ".join(f"{nodes} {operator}" for operator, nodes in placement.fallen.items())
        copies = ", ".join(f"{nodes} {name}" for name, nodes in placement.copies.items())
        lines.append(
            f"{placement.component}: {fallen or 'nothing but arithmetic on sizes'} on the CPU, {copies or 'no'} copies"
            " between host and device"
        )
    if whole:
        lines.append(f"{provider.name} runs all of {', '.join(whole)} but arithmetic on sizes; no copies to the host.")
    return lines
