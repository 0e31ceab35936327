"""Tables of what is in models, and of what differs between two; what does not fit a screen is shown under ``-v``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from sdort import console
from sdort.graph.domains import MICROSOFT
from sdort.inspection.description import Change, Component, Rewrite, is_fused
from sdort.inspection.graph_difference import Place
from sdort.tables import Table, count_text, counted, share_text, size_text

_MOST_ROWS = 14
"""Operators that are shown without -v: the fused ones, then the most frequent."""
_SMALL_SHARE = 0.001
"""Dtypes of a smaller share of the weights are named under -v only."""
_FUSED = "* fused: of domain com.microsoft, or of the one named"


def component_tables(components: Sequence[Component]) -> Iterator[Table]:
    """The contents of each component: sizes, operators, and, for one component or under ``-v``, inputs and outputs."""
    yield _sizes(components)
    yield _operators(components)
    if len(components) == 1 or _is_verbose():
        yield _inputs_and_outputs(components)
    parts = _parts(components)
    if parts.row_count:
        yield parts
    rewrites = _rewrites(components)
    if rewrites.row_count:
        yield rewrites


def rewriting_verdict(components: Sequence[Component]) -> str:
    """The number of nodes that each provider's lowering rewrites: ``To rewrite: nothing for rocm and cuda; ...``."""
    nodes = {
        provider: sum(rewrite.nodes for c in components for rewrite in c.providers[provider] if not _is_opset(rewrite))
        for provider in components[0].providers
    }
    opset = {
        provider for provider in nodes for c in components for rewrite in c.providers[provider] if _is_opset(rewrite)
    }
    providers: dict[str, list[str]] = {}
    for provider, count in nodes.items():
        parts = [*["the opset"] * (provider in opset), *[counted(count, "node")] * bool(count)]
        providers.setdefault(" and ".join(parts) or "nothing", []).append(provider)
    return "To rewrite: " + "; ".join(f"{what} for {', '.join(names)}" for what, names in providers.items()) + "."


def change_tables(changes: Mapping[str, Sequence[Change]], places: Mapping[str, Sequence[Place]]) -> Iterator[Table]:
    """The differences: what is computed differently, a summary of each component, inputs and outputs; under ``-v``
    every place and number."""
    if any(places.values()):
        yield _places(places)
    if not any(changes.values()):
        return
    tables = [_change_summary(changes), _operator_changes(changes), _changed_values(changes)]
    if _is_verbose():
        tables.append(_changed_counts(changes))
    yield from (table for table in tables if table.row_count)


def change_verdict(changes: Mapping[str, Sequence[Change]], places: Mapping[str, Sequence[Place]]) -> str:
    """One sentence: ``4 components differ: computed differently in 9 places, 376 nodes less, 12.0 MB of weights less,
    the same inputs and outputs.``"""
    differing = [name for name in changes if changes[name] or places.get(name)]
    if not differing:
        return "No differences."
    every = [change for differences in changes.values() for change in differences]
    nodes = sum(_difference(change) for change in every if (change.kind, change.name) == ("count", "nodes"))
    size = sum(_difference(change) for change in every if change.kind == "bytes")
    values = sum(change.kind in ("input", "output", "component") for change in every)
    found = sum(map(len, places.values()))
    alone = all(changes[name] and changes[name][0].kind == "component" for name in differing)
    parts = [
        *([] if alone else [f"computed differently in {counted(found, 'place')}" if found else "the same is computed"]),
        f"{counted(abs(nodes), 'node')} {_more_or_less(nodes)}" if nodes else "as many nodes",
        f"{size_text(abs(size))} of weights {_more_or_less(size)}" if size else "weights of the same size",
        f"{counted(values, 'change')} of inputs, outputs and components" if values else "the same inputs and outputs",
    ]
    verb = "differs" if len(differing) == 1 else "differ"
    return f"{counted(len(differing), 'component')} {verb}: {', '.join(parts)}."


def _is_verbose() -> bool:
    return console.verbosity() >= console.VERBOSE


def _sizes(components: Sequence[Component]) -> Table:
    table = Table(
        "Components",
        ("component", ">nodes", ">parameters", ">weights", "dtypes", "opsets", ">IR", "producer"),
        details=("opsets", "IR", "producer"),
    )
    for c in components:
        opsets = ", ".join(f"{domain} {version}" for domain, version in c.opsets.items())
        row = (c.component, f"{c.nodes:,}", count_text(c.parameters), size_text(sum(c.weight_bytes.values())))
        table.add_row(*row, _dtypes(c), opsets, str(c.ir_version or ""), c.producer)
    return table


def _dtypes(c: Component) -> str:
    total = sum(c.weight_bytes.values()) or 1
    shares = {dtype: size / total for dtype, size in c.weight_bytes.items()}
    shown = [dtype for dtype, share in shares.items() if share >= _SMALL_SHARE or _is_verbose()]
    parts = [f"{dtype} {share_text(shares[dtype])}" for dtype in shown]
    return ", ".join([*parts, *([f"computed in {c.computed_in}"] if c.computed_in else [])])


def _inputs_and_outputs(components: Sequence[Component]) -> Table:
    table = Table("Inputs and outputs", ("component", "", "name", "dtype and shape"))
    for c in components:
        for direction, values in (("in", c.inputs), ("out", c.outputs)):
            for value in values:
                table.add_row(c.component, direction, value.name, str(value))
    return table


def _operators(components: Sequence[Component]) -> Table:
    totals: Counter[str] = Counter()
    for c in components:
        totals.update(c.operators)
    names = sorted(totals, key=lambda name: (not is_fused(name), -totals[name], name))
    counts = {name: [c.operators.get(name, 0) for c in components] for name in names}
    return _operator_table("Operators", [c.component for c in components], counts, "{:,}")


def _operator_table(title: str, components: Sequence[str], rows: Mapping[str, Sequence[int]], form: str) -> Table:
    """A row an operator and a column a component; without ``-v`` the first rows, and one for the rest."""
    title += f" ({_FUSED})" if any(map(is_fused, rows)) else ""
    table = Table(title, ("operator", *(f">{name}" for name in components)))
    names = list(rows)
    most = len(names) if _is_verbose() or len(names) <= _MOST_ROWS + 1 else _MOST_ROWS
    for name in names[:most]:
        cells = [form.format(number) if number else "" for number in rows[name]]
        table.add_row(_label(name), *cells, style="bold" if is_fused(name) else "")
    if rest := [rows[name] for name in names[most:]]:
        sums = [sum(column) for column in zip(*rest, strict=True)]
        table.add_row(f"  {len(rest)} more (-v)", *(form.format(number) if number else "" for number in sums))
    return table


def _label(operator: str) -> str:
    """ONNX Runtime's domain is left out: most fused operators are of it, and a pipeline's table fits 80 columns."""
    return f"* {operator.removeprefix(f'{MICROSOFT}.')}" if is_fused(operator) else f"  {operator}"


def _parts(components: Sequence[Component]) -> Table:
    """Of models that are run in parts: what runs when, and what of it stays in memory."""
    table = Table(
        "Prepared before the steps (bytes of one sample)",
        ("component", "runs", ">nodes", ">prepares", ">bytes", "tensors"),
        details=("tensors",),
    )
    for c in components:
        if c.parts is None:
            continue
        p = c.parts
        for when, nodes, made, size in (
            ("once a prompt", p.prompt_nodes, p.prompt_outputs, size_text(p.prompt_bytes)),
            ("once a schedule", p.schedule_nodes, p.step_outputs, f"{size_text(p.step_bytes)} a step"),
        ):
            names = ", ".join(f"{value.name} {value}" for value in made)
            table.add_row(c.component, when, f"{nodes:,}", counted(len(made), "tensor"), size, names)
        table.add_row(c.component, "every step", f"{p.step_nodes:,}", "", "", "")
    return table


def _rewrites(components: Sequence[Component]) -> Table:
    """A row for each operator and reason, whatever providers and components it is of."""
    table = Table("To rewrite", ("operator", ">nodes", "for", "why", "in"), details=("in",))
    nodes: dict[tuple[str, str], dict[str, dict[str, int]]] = {}
    for c in components:
        for provider, rewrites in c.providers.items():
            for rewrite in rewrites:
                name = rewrite.operator.removeprefix(f"{MICROSOFT}.")
                why = rewrite.reason.replace(f"{provider} has no kernel for {name}", "no kernel")
                places = nodes.setdefault((rewrite.operator, why), {}).setdefault(provider, {})
                places[c.component] = rewrite.nodes
    rows = []
    for (operator, why), providers in nodes.items():
        for places in {tuple(places.items()): places for places in providers.values()}.values():
            names = [provider for provider, others in providers.items() if others == places]
            rows.append((sum(places.values()), operator, names, why, list(places)))
    for count, operator, names, why, where in sorted(rows, key=lambda row: -row[0]):
        table.add_row(_label(operator), f"{count:,}", ", ".join(names), why, ", ".join(where))
    return table


def _is_opset(rewrite: Rewrite) -> bool:
    return rewrite.operator.startswith("opset ")


def _places(places: Mapping[str, Sequence[Place]]) -> Table:
    """A row for places that differ alike; under ``-v`` one for each."""
    table = Table(
        "What is computed differently", ("component", ">places", "operator", "what", "node", "other node"),
        details=("node", "other node"),
    )  # fmt: skip
    alike: dict[tuple[str, ...], list[Place]] = {}
    for component, found in places.items():
        for place in found:
            names = (place.before_name, place.after_name) if _is_verbose() else ()
            alike.setdefault((component, place.operator, place.what, *names), []).append(place)
    most = len(alike) if _is_verbose() or len(alike) <= _MOST_ROWS + 1 else _MOST_ROWS
    for (component, operator, what, *_), found in islice(alike.items(), most):
        table.add_row(component, str(len(found)), operator, what, found[0].before_name, found[0].after_name)
    if len(alike) > most:
        table.add_row(f"{len(alike) - most} more (-v)", *[""] * 5)
    return table


def _change_summary(changes: Mapping[str, Sequence[Change]]) -> Table:
    table = Table("Differences", ("component", ">nodes", ">weights", ">opset"))
    for component, differences in changes.items():
        of = {(change.kind, change.name): change for change in differences}
        nodes, opset = of.get(("count", "nodes")), of.get(("version", "opset ai.onnx"))
        sizes = [change for change in differences if change.kind == "bytes"]
        size = sum(map(_difference, sizes))
        table.add_row(
            component if differences else f"{component} (none)",
            f"{nodes.before:,} -> {nodes.after:,}" if nodes else "",
            f"{'-' if size < 0 else '+'}{size_text(abs(size))}" if sizes else "",
            f"{opset.before} -> {opset.after}" if opset else "",
        )
    return table


def _operator_changes(changes: Mapping[str, Sequence[Change]]) -> Table:
    differences = {
        component: {change.name: _difference(change) for change in every if change.kind == "operator"}
        for component, every in changes.items()
    }
    names = {
        name: sum(abs(of.get(name, 0)) for of in differences.values()) for of in differences.values() for name in of
    }
    ordered = sorted(names, key=lambda name: (not is_fused(name), -names[name], name))
    rows = {name: [of.get(name, 0) for of in differences.values()] for name in ordered}
    return _operator_table("Changes of operators", list(changes), rows, "{:+,}")


def _changed_values(changes: Mapping[str, Sequence[Change]]) -> Table:
    table = Table("Inputs, outputs, components", ("component", "", "name", "before", "after"))
    for component, differences in changes.items():
        for change in differences:
            if change.kind in ("input", "output", "component"):
                table.add_row(component, change.kind, change.name, change.before or "-", change.after or "-")
    return table


def _changed_counts(changes: Mapping[str, Sequence[Change]]) -> Table:
    table = Table("Counts", ("component", "", "name", ">before", ">after", ">change"))
    for component, differences in changes.items():
        for change in differences:
            if change.kind in ("count", "bytes", "version"):
                text = size_text if change.kind == "bytes" else "{:,}".format
                sign = "-" if _difference(change) < 0 else "+"
                cells = (text(change.before or 0), text(change.after or 0), sign + text(abs(_difference(change))))
                table.add_row(component, change.kind, change.name, *cells)
    return table


def _difference(change: Change) -> int:
    """The number after less the one before; a missing one is 0."""
    return int((change.after or 0) - (change.before or 0))


def _more_or_less(difference: int) -> str:
    return "less" if difference < 0 else "more"
