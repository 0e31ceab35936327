"""``sdort remove``: a name is taken away."""

from __future__ import annotations

import click


def _complete_names(ctx: click.Context, argument: click.Parameter, incomplete: str) -> list[str]:
    """Names that begin so, for the shell's completion."""
    from sdort.first_use.model_names import list_models

    return [model.name for model in list_models().models if model.name.startswith(incomplete)]


@click.command(
    epilog="""\b
Examples:
  sdort remove dreamshaper
"""
)
@click.argument("name", shell_complete=_complete_names)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(name: str, as_json: bool) -> None:
    """Take a name away from a model.

    The model stays where it is. What sdort made of it stays in the cache: sdort cache clean models removes that.
    """
    from sdort.console import conclude, emit_json
    from sdort.first_use.model_names import remove_model

    removed = remove_model(name)
    if as_json:
        emit_json(removed)
        return
    conclude(f"{removed.name} is no name any more; {removed.path} stays")
