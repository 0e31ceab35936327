"""``sdort doctor --measure``: what a machine reaches, and what is wrong, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sdort.checkup.command import CheckUp
    from sdort.checkup.figures import Figure
    from sdort.tables import Table

_MOST = 5
"""Reasons that are shown whole; the page is to fit a screen."""
_STEPS = 20


def report(found: CheckUp, output: Path | None, as_json: bool) -> None:
    """Write the file, show the page or JSON, and end with the exit code.

    Raises:
        OutputError: the file cannot be written.
    """
    from sdort.console import emit_json
    from sdort.errors import ProviderError

    if output:
        write(found, output)
    if as_json:
        emit_json(found.figures)
    else:
        show_page(found, output)
    if not found.works:
        raise click.exceptions.Exit(ProviderError.exit_code)


def refuse_output(output: Path | None) -> None:
    """Refuse a file that cannot be written before minutes are spent.

    Raises:
        OutputError: it is a folder, or its folder is not there.
    """
    from sdort.errors import OutputError

    if output and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise OutputError(
            f"cannot write {output}: {'it is a folder' if output.is_dir() else 'its folder is not there'}"
        )


def write(found: CheckUp, output: Path) -> None:
    """Write the file that can be sent.

    Raises:
        OutputError: it cannot be written.
    """
    import json

    from sdort.console import to_json
    from sdort.errors import OutputError
    from sdort.files.staging import staged_file

    try:
        with staged_file(output, regular=True) as file:
            file.write((json.dumps(to_json(found.figures), indent=2) + "\n").encode())
    except OSError as error:
        raise OutputError(f"cannot write {output}: {error.strerror or error}") from error


def show_page(found: CheckUp, output: Path | None = None) -> None:
    """The page: times, the card, reasons with their next steps, and the recommendation."""
    from sdort.console import conclude, show

    show(_times(found))
    show("\n".join(_card(found)))
    if reasons := _reasons(found):
        show(f"\nWhat is wrong, the best evidence first\n{reasons}")
    show(f"\n{_recommendation(found)}")
    if output:
        show(f"{output} can be sent: it names no user, host or file.")
    conclude(_verdict(found))


def _times(found: CheckUp) -> Table:
    from sdort.tables import Table

    table = Table(_title(found), ("", ">ms", ">should take", ">at least", ">times"))
    for figure in found.figures.figures:
        factor = f"{figure.factor:.1f}" if figure in found.figures.true_size else ""
        times = (_number(figure.median_ms), _number(figure.expected_ms), _number(figure.roofline_ms))
        table.add_row(_words(figure), *times, factor)
    return table


def _title(found: CheckUp) -> str:
    figures = found.figures
    details = [figures.architecture, f"{figures.memory_gib} GiB" if figures.memory_gib else ""]
    known = ", ".join(filter(None, details))
    card = f"{figures.card} ({known})" if known else figures.card
    driver = f", driver {figures.driver}" if figures.driver else ""
    toolkit = f", ROCm {figures.toolkit}" if figures.toolkit else ""
    return f"{card}{driver}{toolkit}: {figures.provider}, {figures.runtime} {figures.runtime_version}"


def _words(figure: Figure) -> str:
    from sdort.checkup.graphs import DEMO, UNET

    model = "demo" if figure.model == DEMO else "SD 1.5"
    what = f"step, {figure.samples} x" if figure.component == UNET else "decode,"
    return f"{model} {what} {figure.width}x{figure.height}"


def _number(milliseconds: float) -> str:
    return f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.2f}"


def _card(found: CheckUp) -> list[str]:
    """Lines on the rates, the card's state, an image and its published times."""
    from sdort.checkup.command import image_seconds

    figures = found.figures
    peak = f" of {figures.published_tflops:.0f}" if figures.published_tflops else ""
    bandwidth = f" of {figures.published_gbs:.0f}" if figures.published_gbs else ""
    product, copy = figures.product_tflops, figures.copy_gbs
    lines = [f"Reached: {product:.3g}{peak} TFLOP/s in a product, {copy:.3g}{bandwidth} GB/s in a copy."]
    if figures.clock_mhz and figures.power_w and figures.power_limit_w:
        clock = f"{figures.clock_mhz:.0f} of {figures.top_clock_mhz or 0:.0f} MHz"
        lines[0] += f" {clock}, {figures.power_w:.0f} of {figures.power_limit_w:.0f} W."
    if image := image_seconds(figures.true_size, _STEPS):
        first = sum(figure.first_s + figure.opened_s for figure in figures.true_size)
        plain = " without guidance" * (figures.true_size[0].samples == 1)
        what = f"an image of that size and {_STEPS} steps{plain}"
        lines.append(f"So {what} takes {image:.3g} s, and the models {first:.3g} s to be ready.")
    for each in found.published[:2]:
        lines.append(f"Published: {each.seconds:g} s for {each.steps} steps, {each.what} ({each.source}).")
    return lines


def _reasons(found: CheckUp) -> str:
    reasons = found.figures.reasons
    lines = [f"{number}. {each.message}.\n{_step(each.next_step)}" for number, each in enumerate(reasons[:_MOST], 1)]
    more = ", ".join(each.code for each in reasons[_MOST:])
    return "\n".join([*lines, *([f"And: {more} (--json has all)."] if more else [])])


def _step(text: str) -> str:
    return "\n".join(line if line.startswith("    ") else f"   {line}" for line in text.split("\n"))


def _recommendation(found: CheckUp) -> str:
    from sdort.providers import PROVIDERS

    best = found.recommended
    where = f"{best.card} ({best.architecture})" if best.card and best.architecture else best.card or "this processor"
    have = f"{found.figures.runtime} {found.figures.runtime_version} is installed and has it"
    lines = [f"For {where}: --provider {best.provider}, {best.package}. Why: {best.why}."]
    lines += [f"Source: {best.source}"] if best.source else []
    lines += [f"Next, as {have if best.installed else 'it is not installed'}:", found.install]
    if PROVIDERS[best.provider].on_gpu:
        lines += ["    sdort ops build"] * (not found.figures.operators)
        lines.append(f"    sdort warm MODEL --provider {best.provider} --size 512x512")
    lines.append(f"    sdort run MODEL --provider {best.provider} --prompt ...")
    return "\n".join(filter(None, lines))


def _verdict(found: CheckUp) -> str:
    figures = found.figures
    if not found.works:
        if not figures.true_size:
            return f"{figures.provider} was not ready in time: {figures.reasons[0].message}."
        return f"{figures.provider} gives wrong results here: {figures.reasons[0].message}."
    if not found.slow:
        worst = max(figures.true_size, key=lambda figure: figure.factor)
        return f"As fast as it should be: {_words(worst)} takes {worst.factor:.1f} times what it should at most."
    worst = max(found.slow, key=lambda figure: figure.factor)
    why = f"; most probably: {figures.reasons[0].message}" if figures.reasons else "; nothing tells why"
    took = f"{_words(worst)} takes {_number(worst.median_ms)} ms and should take {_number(worst.expected_ms)}"
    return f"Too slow by a factor of {worst.factor:.0f}: {took}{why}."
