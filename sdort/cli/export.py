"""``sdort export``: a diffusers checkpoint to ONNX."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sdort.cli.dry_run import DRY_RUN_HELP, show_plan
from sdort.cli.number_types import Whole
from sdort.cli.options import needs, signing_options
from sdort.errors.number_ranges import OPSET
from sdort.model.component_names import EXPORTED

if TYPE_CHECKING:
    from sdort.exporter.manifest import ExportReport
    from sdort.tables import Table


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
@click.option("--opset", type=Whole(OPSET), default=23, help="ONNX opset; Attention needs 23.")
@click.option(
    "--static",
    metavar="BxHxW",
    help="Fix all sizes: images a run, height and width in pixels. The UNet then takes 2 B latents, with and without "
    "the prompt. Without it, batch, height, width and sequence length are dynamic.",
)
@click.option("--variant", help="Read the weights of this variant, such as fp16.")
@click.option("--allow-pickle", is_flag=True, help="Read .bin weights where there are no safetensors.")
@click.option("--cache-dir", type=click.Path(path_type=Path), help="Where traces are kept. [default: ~/.cache/sdort]")
@signing_options
@click.option("--overwrite", is_flag=True, help="Replace OUT, if sdort wrote all that it holds.")
@click.option("--dry-run", is_flag=True, help=DRY_RUN_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print a report as JSON.")
@needs("certificate", "sign")
def command(
    model: str,
    out: Path,
    components: tuple[str, ...],
    opset: int,
    static: str | None,
    variant: str | None,
    allow_pickle: bool,
    cache_dir: Path | None,
    sign: Path | None,
    certificate: Path | None,
    overwrite: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Export a Stable Diffusion pipeline to ONNX.

    MODEL is a diffusers directory, a hub id, or demo. OUT gets one folder per component, the scheduler and tokenizer,
    and a manifest. An architecture is traced once; later checkpoints of it export in the time of writing them.
    """
    from sdort.console import conclude, emit_json, is_quiet, show
    from sdort.exporter.command import export, plan_export
    from sdort.tables import size_text

    options: dict[str, Any] = {
        "components": components,
        "opset": opset,
        "static": static,
        "variant": variant,
        "allow_pickle": allow_pickle,
        "cache_dir": cache_dir,
        "overwrite": overwrite,
    }
    if dry_run:
        show_plan(plan_export(model, out, **options), as_json=as_json)
        return
    report = export(model, out, **options, sign=sign, certificate=certificate)
    if as_json:
        emit_json(report)
    if as_json or is_quiet():
        return
    show(_table(report))
    size = size_text(sum(component.bytes for component in report.components))
    verdict = f"Exported to {report.out}: {size} in {report.seconds:.1f} s"
    conclude(verdict, f"sdort optimize {shlex.quote(str(report.out))} fast {_fastest()}")


def _table(report: ExportReport) -> Table:
    from sdort.tables import Table, count_text, size_text

    table = Table(
        f"{report.source}: {report.pipeline}, opset {report.opset}",
        ("component", ">nodes", ">parameters", ">size", ">seconds", "graph"),
    )
    for component in report.components:
        table.add_row(
            component.name,
            f"{component.nodes:,}",
            count_text(component.parameters),
            size_text(component.bytes),
            f"{component.seconds:.1f}",
            "traced" if component.traced else "from the cache",
        )
    return table


def _fastest() -> str:
    """The options of ``sdort optimize`` for the installed ONNX Runtime; a CPU gains nothing from fp16."""
    from sdort.machine.distributions import installed_flavours

    vendors = {"onnxruntime-rocm": "rocm", "onnxruntime-migraphx": "migraphx", "onnxruntime-gpu": "cuda"}
    named = [vendors[flavour.distribution] for flavour in installed_flavours() if flavour.distribution in vendors]
    return f"--fp16 --provider {named[0]}" if named else "--provider cpu"
