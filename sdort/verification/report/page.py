"""The report as one HTML file that needs nothing else: styles and images are inside, readable in light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from sdort import __version__
from sdort.verification.bisection.blame import Finding
from sdort.verification.images import ImageComparison
from sdort.verification.limits import REASONS
from sdort.verification.report.difference import difference_map
from sdort.verification.report.page_parts import badge, figure, section
from sdort.verification.report.semantic_text import KIND_HEADS, kind_cells, original_words
from sdort.verification.report.text import (
    HEADS,
    IMAGE_HEADS,
    image_cells,
    image_verdict,
    lines,
    summarize,
    summary_cells,
)
from sdort.verification.report.timesteps import timestep_table
from sdort.verification.result import FAILED, PASSED, Verification
from sdort.verification.semantic import Miss, Semantic

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --paper: #ffffff; --soft: #f3f4f6; --line: #d5d9de; --dim: #5b6470;
  --good: #14692f; --bad: #b3261e; --good-paper: #e4f3e8; --bad-paper: #fbe7e5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --paper: #15181c; --soft: #1e2329; --line: #363d46; --dim: #a2acb8;
    --good: #7bd494; --bad: #ff9a91; --good-paper: #173322; --bad-paper: #43201d; } }
body { margin: 0 auto; max-width: 1240px; padding: 1.5rem 1rem 4rem; color: var(--ink); background: var(--paper);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.verdict { display: inline-block; padding: .15rem .7rem; border-radius: 1rem; font-weight: 600; }
.differs { background: var(--soft); }
.ok { color: var(--good); background: var(--good-paper); } .failed { color: var(--bad); background: var(--bad-paper); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; } dt { color: var(--dim); } dd { margin: 0;
  overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .4rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--dim); font-weight: 600; }
.words { text-align: left; } .wrap { white-space: normal; min-width: 18rem; }
tr.bad td { background: var(--bad-paper); }
.row { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: .8rem; margin: .5rem 0 1.6rem; }
figure { margin: 0; } figcaption { color: var(--dim); font-size: .85rem; margin-top: .25rem; }
img, .none { width: 100%; border: 1px solid var(--line); border-radius: 4px; background: var(--soft); display: block;
  box-sizing: border-box; }
img.small { image-rendering: pixelated; }
.none { aspect-ratio: 1; display: grid; place-items: center; color: var(--dim); }
code { background: var(--soft); padding: .05rem .3rem; border-radius: 3px; overflow-wrap: anywhere; }
li { margin: .2rem 0; } @media (max-width: 640px) { .row { grid-template-columns: 1fr; } }
"""


def html_report(result: Verification) -> str:
    """The whole report."""
    verdict = badge(PASSED, "everything is within its limits") if result.passed else badge(FAILED, FAILED)
    problems = "".join(f"<li>{escape(line.strip())}</li>" for line in lines(result))
    parts = [
        f"<h1>sdort verify: {escape(result.candidate.resolve().name)}</h1><p>{verdict}</p>",
        _facts(result),
        f"<h2>Notes</h2><ul>{problems}</ul>" if problems else "",
        section("Components", HEADS, [summary_cells(each) for each in summarize(result.comparisons)], words=3),
        section("Errors by timestep", *timestep_table(result.comparisons), words=3),
        _findings(result.findings),
        section("Images", IMAGE_HEADS, [image_cells(each) for each in result.images], words=1, wide=[0]),
        "".join(_picture(each) for each in result.images),
        _semantic(result.semantic) if result.semantic else "",
        _limits(),
        f"<p class='words'>sdort {escape(__version__)}</p>",
    ]
    head = (
        "<meta charset='utf-8'><meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>sdort verify: {escape(result.candidate.resolve().name)}</title><style>{_STYLE}</style>"
    )
    return f"<!doctype html>\n<html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def _facts(result: Verification) -> str:
    precisions = ", ".join(f"{name} {each.dtype}" for name, each in result.precisions.items())
    facts = {
        "candidate": result.candidate,
        "ONNX original": result.against or "none",
        "torch, fp32": result.checkpoint or "not compared",
        "execution provider": result.provider,
        "limits are those of": precisions,
        "steps": result.steps,
    }
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(str(v))}</dd>" for k, v in facts.items()) + "</dl>"


def _findings(findings: Sequence[Finding]) -> str:
    if not findings:
        return ""
    items = []
    for each in findings:
        nodes = ", ".join(
            f"<code>{escape(culprit.node)}</code> {escape(culprit.operator)}" for culprit in each.culprits
        )
        originals = ", ".join(f"<code>{escape(name)}</code>" for name in each.originals)
        items.append(
            f"<li><b>{escape(each.component)}</b>: {escape(each.message)}<br>nodes of the candidate: {nodes or 'none'}"
            f"<br>nodes of the original that they stand for: {originals or 'none'}</li>"
        )
    return f"<h2>Where the graphs part</h2><ul>{''.join(items)}</ul>"


def _picture(each: ImageComparison) -> str:
    """Reference, candidate and difference side by side."""
    figures = [figure(each.reference, "reference"), figure(each.image, "candidate")]
    if each.image.shape == each.reference.shape and each.image.size:
        difference, scale = difference_map(each.image, each.reference)
        figures.append(figure(difference, f"difference, {scale}"))
    else:
        figures.append(figure(np.zeros((0, 0, 3), np.uint8), "difference"))
    verdict = badge(image_verdict(each), PASSED if each.passed else each.problem or each.differs or "")
    return f"<p>{escape(each.prompt)} · seed {each.seed} {verdict}</p><div class='row'>{''.join(figures)}</div>"


def _semantic(found: Semantic) -> str:
    """The counts, and each wrong picture beside the original's of the same noise."""
    table = section("Semantic score", KIND_HEADS, kind_cells(found), words=1)
    return table + "".join(_miss(each) for each in found.misses)


def _miss(each: Miss) -> str:
    figures = [figure(each.image, f"candidate: {each.seen}")]
    if each.original is not None:
        figures.insert(0, figure(each.reference, original_words(each)))
    verdict = badge(FAILED, f"{', '.join(each.wrong)} wrong")
    return f"<p>{escape(each.prompt)} · seed {each.seed} {verdict}</p><div class='row'>{''.join(figures)}</div>"


def _limits() -> str:
    rows = "".join(
        f"<tr><td class='words'>{escape(each.measure)}</td><td>{escape(each.float32)}</td>"
        f"<td>{escape(each.float16)}</td><td>{escape(each.bfloat16)}</td>"
        f"<td class='words wrap'>{escape(each.why)}</td></tr>"
        for each in REASONS
    )
    heads = "<th class='words'>measure</th><th>fp32</th><th>fp16</th><th>bf16</th><th class='words'>why</th>"
    return f"<h2>Limits, and why</h2><div class='scroll'><table><tr>{heads}</tr>{rows}</table></div>"
