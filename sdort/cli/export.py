"""``sdort export``: a checkpoint to ONNX."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sdort.cli.dry_run import DRY_RUN_HELP, show_plan
from sdort.cli.from_options import needs, options_of, sections
from sdort.cli.sections import SectionedCommand
from sdort.exporter.export_options import ExportedOptions
from sdort.pipelines.signing_options import SigningOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdort.exporter.export_options import ExportOptions
    from sdort.exporter.manifest import ExportReport
    from sdort.tables import Table


_EPILOG = """\b
Examples:
  sdort export demo model       a tiny pipeline that draws coloured shapes
  sdort export demo-transformer model     one of Z-Image's architecture
  sdort export random:sd15 model     its shape with random weights, to measure
  sdort export dreamshaper.safetensors model
  sdort export xl.safetensors model --vae ./sdxl-vae-fp16-fix
  sdort export ./stable-diffusion-v1-5 model
  sdort export owner/name model --variant fp16
  sdort export ./stable-diffusion-v1-5 model --lora style.safetensors:0.8
  sdort export ./inpainting model --component unet --static 1x512x512
  sdort export ./stable-diffusion-v1-5 model --control
  sdort export ./sd-controlnet-canny canny
  sdort export sd15.safetensors model --ip-adapter ip-adapter_sd15.safetensors
"""


@click.command(
    cls=SectionedCommand,
    sections=sections(ExportedOptions),
    common=("lora", "vae", "control", "ip_adapter", "variant", "components", "dry_run", "overwrite"),
    epilog=_EPILOG,
)
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@options_of(ExportedOptions, SigningOptions)
@click.option("--overwrite", is_flag=True, help="Replace OUT, if sdort wrote everything in it.")
@click.option("--dry-run", is_flag=True, help=DRY_RUN_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print a report as JSON.")
@needs(ExportedOptions, SigningOptions)
def command(
    model: str,
    out: Path,
    sign: Path | None,
    certificate: Path | None,
    dry_run: bool,
    as_json: bool,
    overwrite: bool,
    **options: Unpack[ExportOptions],
) -> None:
    """Export a Stable Diffusion pipeline to ONNX.

    MODEL is a single file (.safetensors), a diffusers folder, a hub id, or demo. It may also be a VAE (file or folder),
    or the folder of a ControlNet or T2I-Adapter. OUT gets one folder for each component, the scheduler, the tokenizer
    and a manifest. sdort traces an architecture once; later checkpoints of it take only the time to write them.
    """
    from sdort.console import conclude, emit_json, is_quiet, show
    from sdort.exporter.command import export, plan_export
    from sdort.tables import size_text

    if dry_run:
        show_plan(plan_export(model, out, overwrite=overwrite, **options), as_json=as_json)
        return
    report = export(model, out, overwrite=overwrite, sign=sign, certificate=certificate, **options)
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
    """The options of ``sdort optimize`` for this machine; a CPU gains nothing from fp16."""
    from sdort.optimizer.provider_choice import best_here

    provider = best_here()
    return f"--fp16 --provider {provider.name}" if provider.on_gpu else f"--provider {provider.name}"
