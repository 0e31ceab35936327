"""``sdort export``: a diffusers checkpoint to ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sdort.model.component_names import EXPORTED

if TYPE_CHECKING:
    from rich.table import Table

    from sdort.exporter.manifest import ExportReport


_EPILOG = """\b
Examples:
  sdort export demo model       a tiny pipeline that draws coloured shapes
  sdort export ./stable-diffusion-v1-5 model
  sdort export owner/name model --variant fp16
  sdort export ./inpainting model --component unet --static 1x512x512
"""


@click.command(epilog=_EPILOG)
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--component",
    "components",
    multiple=True,
    type=click.Choice(EXPORTED),
    help="Export only this component (repeatable); all of them unless given.",
)
@click.option("--opset", type=click.IntRange(18, 25), default=23, help="ONNX opset; Attention needs 23.")
@click.option(
    "--static",
    metavar="BxHxW",
    help="Fix all sizes: images a run, height and width in pixels. The UNet then takes 2 B latents, with and without "
    "the prompt. Without it, batch, height, width and sequence length are dynamic.",
)
@click.option("--variant", help="Read the weights of this variant, such as fp16.")
@click.option("--allow-pickle", is_flag=True, help="Read .bin weights where there are no safetensors.")
@click.option("--cache-dir", type=click.Path(path_type=Path), help="Where traces are kept. [default: ~/.cache/sdort]")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print a report as JSON.")
def command(
    model: str,
    out: Path,
    components: tuple[str, ...],
    opset: int,
    static: str | None,
    variant: str | None,
    allow_pickle: bool,
    cache_dir: Path | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Export a Stable Diffusion pipeline to ONNX.

    MODEL is a diffusers directory, a hub id, or demo. OUT gets one folder per component, the scheduler and tokenizer,
    and a manifest. An architecture is traced once; later checkpoints of it export in the time of writing them.
    """
    from sdort.console import emit_json, show
    from sdort.exporter.command import export

    report = export(
        model,
        out,
        components=components,
        opset=opset,
        static=static,
        variant=variant,
        allow_pickle=allow_pickle,
        cache_dir=cache_dir,
        overwrite=overwrite,
    )
    if as_json:
        emit_json(report)
    else:
        show(_table(report))


def _table(report: ExportReport) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        title=f"\n{report.out}: {report.pipeline}, opset {report.opset}", box=box.SIMPLE_HEAD, show_edge=False
    )
    for header in ("component", "nodes", "parameters", "MB", "seconds", "graph"):
        table.add_column(header, justify="left" if header in ("component", "graph") else "right")
    for component in report.components:
        table.add_row(
            component.name,
            f"{component.nodes:,}",
            f"{component.parameters:,}",
            f"{component.bytes / 1e6:,.1f}",
            f"{component.seconds:.1f}",
            "traced" if component.traced else "from the cache",
        )
    return table
