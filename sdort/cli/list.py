"""``sdort list``: the models that have names."""

from __future__ import annotations

import click


@click.command(
    epilog="""\b
Examples:
  sdort list
  sdort list --json
"""
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """Show the models that have names.

    sdort add gives names, sdort remove takes them away.
    """
    from sdort.console import conclude, emit_json, show
    from sdort.first_use.model_names import list_models
    from sdort.tables import Table, counted

    listed = list_models()
    if as_json:
        emit_json(listed)
        return
    models = listed.models
    if not models:
        conclude("No model has a name.", "sdort add FILE NAME")
        return
    table = Table("", ("name", "model", ""))
    for model in models:
        table.add_row(model.name, str(model.path), "" if model.exists else "not there any more")
    show(table)
    conclude(counted(len(models), "name"))
