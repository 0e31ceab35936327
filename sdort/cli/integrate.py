"""``sdort integrate``: sdort inside of other programs."""

from __future__ import annotations

from pathlib import Path

import click


@click.group(
    epilog="""\b
Examples:
  sdort integrate comfyui ~/ComfyUI
  sdort integrate comfyui ~/ComfyUI --remove
"""
)
def command() -> None:
    """Install sdort's nodes in the program that you use."""


@command.command(
    epilog="""\b
Examples:
  sdort integrate comfyui ~/ComfyUI
  sdort integrate comfyui ~/ComfyUI --overwrite      after an update of sdort
"""
)
@click.argument("path", type=click.Path(path_type=Path), metavar="PATH/TO/COMFYUI")
@click.option("--remove", is_flag=True, help="Remove the nodes.")
@click.option("--overwrite", is_flag=True, help="Replace nodes that are there already.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def comfyui(path: Path, remove: bool, overwrite: bool, as_json: bool) -> None:
    """Add nodes to ComfyUI that run its models on ONNX Runtime.

    The command writes a folder of two small files, custom_nodes/sdort-nodes. The Python that runs ComfyUI needs sdort
    and an ONNX Runtime. The code of the nodes is in sdort and is updated with it.
    """
    from sdort.console import conclude, emit_json, is_quiet, show
    from sdort.errors import UsageError
    from sdort.integrations.comfyui.node_folder import remove_comfyui_nodes, write_comfyui_nodes
    from sdort.integrations.program_python import advice, find_python

    if remove and overwrite:
        raise UsageError("--remove and --overwrite exclude each other")
    folder = remove_comfyui_nodes(path) if remove else write_comfyui_nodes(path, overwrite=overwrite)
    if as_json:
        emit_json(folder)
    elif remove and not is_quiet():
        conclude(f"removed {folder.path}; restart ComfyUI")
    elif not is_quiet():
        conclude(f"wrote {folder.path}; restart ComfyUI, and find the nodes under sdort.")
        for line in advice(find_python(path), "ComfyUI"):
            show(line)
