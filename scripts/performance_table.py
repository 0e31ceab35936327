#!/usr/bin/env python3
"""Writes docs/performance.md: what machines reach, from the files that `sdort doctor --measure -o FILE` wrote there.

python scripts/performance_table.py [FOLDER]            reads docs/performance/*.json
python scripts/performance_table.py [FOLDER] --check    exit code 1 if the page is not what it would write

Every file is a stranger's. One that is malformed, that says what cannot be, or that repeats another one is named with
the reason; the exit code is then 1, and nothing is written.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import jsonschema
from generated_files import REPOSITORY, settle
from measuring import Arguments

from sdort.checkup.command import image_seconds
from sdort.checkup.figures import Figure, plain
from sdort.checkup.graphs import UNET, Load, loads
from sdort.checkup.prediction import counted, expected_ms, roofline_ms
from sdort.checkup.rates import Device, published_rates
from sdort.checkup.reasons import CODES
from sdort.checkup.work import totals
from sdort.errors import BadModelError
from sdort.files.input_file import read_input
from sdort.files.json_text import parse_json
from sdort.providers import PROVIDERS

FOLDER = "docs/performance"
PAGE = "docs/performance.md"
SCHEMA = "docs/schemas/sdort-machine-figures-1.json"
MOST_BYTES = 1 << 16
FIRST_DAY = date(2026, 11, 1)
"""No sdort before it wrote such files."""
STEPS = 20
NEAR = 0.1
"""Of what is computed from the same graphs: another sdort may have fused more or less of them."""
BEYOND = 1.05
"""Times a published rate that a measured one may be: boost clocks."""
HEAD = """# What machines reach

Made by `scripts/performance_table.py` from files that `sdort doctor --measure -o figures.json` wrote, a row each, in
[a folder](performance/). Stable Diffusion 1.5's shape, random weights, as `sdort run` runs by default; an image is 20
steps and a decode. *Times* is how many times as long a step takes as [it should](guide/speed.md). To add your machine,
put your file into the folder, run the script, and send both. It refuses files that are malformed, that cannot be, or
that are there already; no file names a user, host or path.
"""


class RefusedError(Exception):
    """A file that is not taken, and why."""


@dataclass(frozen=True)
class Entry:
    """A file that was checked."""

    name: str
    values: Mapping[str, Any]
    figures: list[Figure]

    def of(self, component: str) -> Figure:
        """The figure of a component of a true size."""
        return next(each for each in self.figures if each.model != "demo" and each.component == component)

    @property
    def same(self) -> str:
        """Equal for files of one measurement."""
        return json.dumps([self.values["card"], self.values["provider"], self.values["figures"]], sort_keys=True)


def read_entry(path: Path, today: date) -> Entry:
    """A file, checked as a stranger's.

    Raises:
        RefusedError: why it is not taken.
    """
    try:
        values = parse_json(read_input(path, limit=MOST_BYTES, links=False))
    except (BadModelError, ValueError, RecursionError) as error:
        raise RefusedError(f"it is no JSON of at most {MOST_BYTES} bytes: {error}") from None
    schema = json.loads((REPOSITORY / SCHEMA).read_text())
    wrong = next(jsonschema.Draft202012Validator(schema).iter_errors(values), None)
    if wrong:
        raise RefusedError(f"it is not of the schema, at {wrong.json_path}: {wrong.message[:200]}")
    figures = [Figure(**each) for each in values["figures"]]
    problem = next(_problems(values, figures, today), None)
    if problem:
        raise RefusedError(problem)
    return Entry(path.name, values, figures)


def _problems(values: Mapping[str, Any], figures: list[Figure], today: date) -> Iterator[str]:
    """What cannot be; in an order in which each may rely on those before."""
    yield from _impossible_texts("", values)
    yield from _impossible_numbers("", values)
    yield from _impossible_facts(values, today)
    on_gpu = PROVIDERS[values["provider"]].on_gpu
    known = [*loads(on_gpu, False), *loads(on_gpu, True)]
    found = [Load(each.model, each.component, each.samples, each.width, each.height) for each in figures]
    if not set(found) <= set(known) or len(set(found)) != len(found):
        yield "it has figures of sizes that sdort does not measure, or one twice"
    if len([load for load in found if load.model != "demo"]) != 2:
        yield "it lacks the step or the decode of the true size"
    device = _device(values)
    for load, figure in zip(found, figures, strict=True):
        yield from _impossible_figure(values, load, figure, device)


def _impossible_texts(place: str, value: Any) -> Iterator[str]:
    """Texts with characters that sdort writes nowhere: of paths, of control sequences."""
    if isinstance(value, str) and value != plain(value):
        yield f"{place or 'a text'} is no plain name: {plain(value)!r}"
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from _impossible_texts(f"{place}.{key}".lstrip("."), str(key))
        yield from _impossible_texts(f"{place}.{key}".lstrip("."), each)


def _impossible_numbers(place: str, value: Any) -> Iterator[str]:
    if value in ("inf", "-inf") or (isinstance(value, float) and not math.isfinite(value)):
        yield f"{place} is infinite"
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and not 0 <= value < 1e9:
        yield f"{place} is {value}"
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from _impossible_numbers(f"{place}.{key}".lstrip("."), each)


def _impossible_facts(values: Mapping[str, Any], today: date) -> Iterator[str]:
    if values["provider"] not in PROVIDERS or values["recommended"] not in PROVIDERS:
        yield "sdort has no such provider"
    day = date.fromisoformat(values["day"]) if re.fullmatch(r"\d{4}-\d\d-\d\d", values["day"]) else date.min
    if not FIRST_DAY <= day <= today + timedelta(days=1):
        yield f"it was not measured on {values['day']}"
    if not all(values[name] for name in ("sdort", "runtime", "runtime_version", "card", "processors")):
        yield "it does not say what was measured"
    strange = sorted({each["code"] for each in values["reasons"]} - set(CODES))
    if strange:
        yield f"there is no reason {strange[0]}"
    published = published_rates(values["card"]) if PROVIDERS[values["provider"]].on_gpu else None
    rates = (published.bandwidth / 1e9, published.peak / 1e12) if published else (None, None)
    if (values["published_gbs"], values["published_tflops"]) != rates:
        yield f"the published rates of {values['card']} are others"
    for name, rate in zip(("copy_gbs", "product_tflops"), rates, strict=True):
        if not 0 < values[name] <= (math.inf if rate is None else BEYOND * rate):
            yield f"{name} is {values[name]}, which the card does not reach"


def _device(values: Mapping[str, Any]) -> Device:
    measured = Device(
        values["card"], values["provider"], values["copy_gbs"] * 1e9, values["product_tflops"] * 1e12,
        values["architecture"],
    )  # fmt: skip
    return (published_rates(values["card"]) if values["published_gbs"] else None) or measured


def _impossible_figure(values: Mapping[str, Any], load: Load, figure: Figure, device: Device) -> Iterator[str]:
    name = f"{load.model}'s {load.component}"
    provider = PROVIDERS[values["provider"]]
    if figure.precision != provider.usual_precision:
        yield f"{name} is in {figure.precision}, which sdort does not measure on {provider.name}"
    work = totals(counted(load, provider.name, half=figure.precision == "fp16", own=values["operators"]), device)
    for what, given, computed in (
        ("at least", figure.roofline_ms, roofline_ms(work)),
        ("as it should", figure.expected_ms, expected_ms(work, device)),
    ):
        if not abs(given - computed) <= NEAR * computed:
            yield f"{name} takes {computed:.4g} ms {what}, not {given:g}"
    if not 0 < figure.least_ms <= figure.median_ms or figure.runs < 1:
        yield f"{name} has times that are none: {figure.least_ms:g} to {figure.median_ms:g} ms"
    if values["published_gbs"] and figure.least_ms < figure.roofline_ms:
        yield f"{name} takes {figure.least_ms:g} ms, less than the card can: {figure.roofline_ms:g}"
    if figure.processors > 1.1 * values["processors"] + 0.1:
        yield f"{name} used {figure.processors:g} of {values['processors']} processors"
    if figure.on_cpu and not provider.on_gpu:
        yield f"{name} has nodes beside its provider, which is the CPU"


def read_folder(folder: Path, today: date) -> tuple[list[Entry], list[str]]:
    """The entries of a folder, and a sentence about each file that is refused."""
    entries: dict[str, Entry] = {}
    refused = []
    for path in sorted(folder.glob("*.json")):
        try:
            entry = read_entry(path, today)
        except RefusedError as error:
            refused.append(f"{path.name}: {error}")
            continue
        before = entries.setdefault(entry.same, entry)
        if before is not entry:
            refused.append(f"{path.name}: it is the measurement of {before.name}")
    return [*entries.values()], refused


def page(entries: list[Entry]) -> str:
    """The page's text: a table of GPUs, one of processors."""
    text = HEAD
    for title, on_gpu in (("GPUs", True), ("Processors", False)):
        chosen = [each for each in entries if PROVIDERS[each.values["provider"]].on_gpu == on_gpu]
        text += f"\n## {title}\n\n"
        text += table(sorted(chosen, key=lambda each: each.of(UNET).median_ms)) if chosen else "None yet.\n"
    return text


def table(entries: list[Entry]) -> str:
    columns = ("card", "driver", "provider", "ONNX Runtime", "size", "step, ms", "times", "decode, ms", "times",
               "image, s", "day, file")  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for entry in entries:
        values, step = entry.values, entry.of(UNET)
        [decode] = [each for each in entry.figures if each.model != "demo" and each.component != UNET]
        driver = " ".join(filter(None, (values["driver"], values["toolkit"] and f"ROCm {values['toolkit']}"))) or "-"
        provider = f"{values['provider']}{', own operators' * values['operators']}, {step.precision}"
        busy = ", others were busy" * any(each["code"] == "disturbed" for each in values["reasons"])
        image = image_seconds([step, decode], STEPS)
        lines.append(
            f"| {values['card']} | {driver} | {provider} | {values['runtime']} {values['runtime_version']} "
            f"| {step.samples} x {step.width}x{step.height} | {milliseconds(step.median_ms)} | {step.factor:.1f} "
            f"| {milliseconds(decode.median_ms)} | {decode.factor:.1f} | {image:.3g} "
            f"| [{values['day']}](performance/{entry.name}){busy} |"
        )
    return "\n".join(lines) + "\n"


def milliseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> int:
    parser = Arguments(__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=REPOSITORY / FOLDER, help="where the files are")
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    entries, refused = read_folder(args.folder, date.today())
    for line in refused:
        print(f"refused: {line}", file=sys.stderr)
    if refused:
        return 1
    return settle({REPOSITORY / PAGE: page(entries)}, check=args.check)


if __name__ == "__main__":
    sys.exit(main())
