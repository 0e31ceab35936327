"""``sdort add``: a name for a model."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(
    epilog="""\b
Examples:
  sdort add ~/models/dreamshaper_8.safetensors dreamshaper
  sdort run dreamshaper --prompt "a lighthouse at dusk"
  sdort add fast                a folder of sdort optimize, by its own name
"""
)
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("name", required=False)
@click.option("--overwrite", is_flag=True, help="Take the name from the model that has it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(path: Path, name: str | None, overwrite: bool, as_json: bool) -> None:
    """Give a model a name, for run, bench, verify, warm and inspect.

    PATH is a single file (.safetensors), a diffusers folder, or a folder of sdort export or sdort optimize. It stays
    where it is, and nothing is copied. NAME is the file's or folder's own unless given. If a file or folder of that
    name exists where sdort runs, sdort takes that, and says so.
    """
    import shlex

    from sdort.console import conclude, emit_json
    from sdort.first_use.model_names import add_model

    added = add_model(path, name=name, overwrite=overwrite)
    if as_json:
        emit_json(added)
        return
    conclude(f"{added.name} is {added.path}", f'sdort run {shlex.quote(added.name)} --prompt "a lighthouse at dusk"')
