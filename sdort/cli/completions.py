"""Values of options, for the shell's completion."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from sdort.samplers.scheduler_names import CLASSES, SAMPLERS, leveled_names


def complete_fusions(ctx: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """Fusions whose names begin so, for the shell's completion."""
    from sdort.rewrite.fusion_names import fusion_names

    return [name for name in fusion_names() if name.startswith(incomplete)]


def complete_schedulers(ctx: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """Schedulers whose names begin so, for the shell's completion: samplers first, then each with its noise levels."""
    found = [name for name in SAMPLERS if name.startswith(incomplete.lower())]
    if incomplete:
        found += [name for name in leveled_names() if name.startswith(incomplete.lower())]
        found += sorted(name for name in CLASSES if name.startswith(incomplete))
    return found


def complete_files(ctx: click.Context, option: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files, for the shell's completion of options that take a file and something behind it."""
    return [CompletionItem(incomplete, type="file")]
