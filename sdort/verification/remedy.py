"""The command that helps against what ``--bisect`` found: without a fusion, with fp32 where it must be, or anew."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sdort.providers import CPU
from sdort.rewrite.fusion_names import fusion_names
from sdort.verification.bisection.blame import CAST, FUSION, NODE, OTHER, BisectionFinding
from sdort.verification.command_line import VerifyOptions


def remedy(
    findings: Sequence[BisectionFinding],
    candidate: Path,
    original: Path | None,
    provider: str | None,
    precision: str,
    options: VerifyOptions,
) -> tuple[str, str] | None:
    """The remedy against the first finding that has one, and its command; None if nothing is known to.

    Args:
        original: the un-optimized ONNX that the candidate is made from.
        provider: the one that the candidate is made for; None if that is not known.
        precision: of its weights: ``fp16``, ``bf16`` or ``fp32``.
    """
    made_here = original is not None and provider is not None and candidate.is_dir()
    for finding in findings:
        if finding.kind == NODE and options.runtime.provider != CPU.name:
            runtime = replace(options.runtime, provider=CPU.name, tuning=False, graph=False, provider_options={})
            again = replace(options, components=[finding.component], images=None, bisect=False, runtime=runtime)
            return "See whether its weights or the provider's kernel differ", again.command_line(candidate)
        if not made_here:
            continue
        if finding.kind == OTHER:
            kept = [f"--{precision}"] if precision != "fp32" else []
            return "Make it again, of this original", _optimize(candidate, original, provider, kept)
        if finding.kind == CAST and precision == "fp16":
            return "Make it again with fp32 where it must", _optimize(candidate, original, provider, ["--fp16", "auto"])
        kept = [f"--{precision}"] if precision != "fp32" else []
        fusions = [name for name in finding.blamed if name in fusion_names()] if finding.kind == FUSION else []
        if fusions:
            left_out = [word for name in fusions for word in ("--disable", name)]
            return f"Make it again without {', '.join(fusions)}", _optimize(
                candidate, original, provider, [*kept, *left_out]
            )
        if finding.kind == NODE:
            return "Make it again, its weights may be damaged", _optimize(candidate, original, provider, kept)
    return None


def _optimize(candidate: Path, original: Path | None, provider: str | None, words: Sequence[str]) -> str:
    """``sdort optimize``, into a folder beside the candidate."""
    out = candidate.with_name(f"{candidate.resolve().name}-again")
    return shlex.join(["sdort", "optimize", str(original), str(out), "--provider", str(provider), *words])
