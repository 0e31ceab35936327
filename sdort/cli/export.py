"""``sdort export``: a checkpoint to ONNX."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sdort.cli.dry_run import DRY_RUN_HELP, show_plan
from sdort.cli.number_types import Whole
from sdort.cli.options import needs, signing_options
from sdort.cli.sections import SectionedCommand
from sdort.errors.number_ranges import OPSET
from sdort.model.component_names import EXPORTED

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdort.exporter.export_options import ExportOptions
    from sdort.exporter.manifest import ExportReport
    from sdort.tables import Table


_EPILOG = """\b
Examples:
  sdort export demo model       a tiny pipeline that draws coloured shapes
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


_PATH = click.Path(path_type=Path)


@click.command(
    cls=SectionedCommand,
    sections={
        "Parts of the checkpoint": (
            "components", "variant", "vae", "scheduler", "prediction_type", "config", "ema", "allow_pickle",
        ),
    },
    epilog=_EPILOG,
)  # fmt: skip
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--component",
    "components",
    multiple=True,
    metavar="NAME",
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
@click.option(
    "--control",
    is_flag=True,
    help="Give the UNet inputs for ControlNets and T2I-Adapters, as sdort run --control wants them.",
)
@click.option(
    "--ip-adapter",
    multiple=True,
    metavar="FILE",
    type=_PATH,
    help="Let the UNet take images by this IP-Adapter (plain or plus), as sdort run --ip-adapter-image wants it. "
    "Repeatable.",
)
@click.option(
    "--image-encoder",
    metavar="DIR|FILE",
    type=_PATH,
    help="CLIP's image encoder for --ip-adapter; by default the one that lies beside it.",
)
@click.option("--variant", help="Read the weights of this variant, such as fp16.")
@click.option("--allow-pickle", is_flag=True, help="Read .bin weights where there are no safetensors.")
@click.option(
    "--vae", metavar="DIR|FILE", type=_PATH, help="Another VAE: its folder, its file, or a pipeline's folder."
)
@click.option("--scheduler", help="Another scheduler, as for sdort run.")
@click.option(
    "--prediction-type",
    type=click.Choice(("epsilon", "v_prediction", "sample")),
    help="What the UNet predicts, where the checkpoint does not say it or is wrong.",
)
@click.option(
    "--config",
    metavar="DIR",
    type=_PATH,
    help="Of single files: a diffusers folder whose configs, tokenizers and scheduler are taken, and whose VAE and "
    "text encoders where the file has none.",
)
@click.option("--ema", is_flag=True, help="Of single files: read the averaged weights (model_ema.) of the UNet.")
@click.option(
    "--lora",
    multiple=True,
    metavar="FILE[:SCALE]",
    help="Put this adapter into the weights (repeatable): LoRA, LoHa, LoKr, DoRA, as .safetensors. [scale: 1]",
)
@click.option(
    "--embedding",
    multiple=True,
    metavar="FILE[:WORD]",
    help="Add this textual inversion as a word for prompts (repeatable); its name unless WORD is given.",
)
@click.option("--cache-dir", type=click.Path(path_type=Path), help="Where traces are kept. [default: ~/.cache/sdort]")
@signing_options
@click.option("--overwrite", is_flag=True, help="Replace OUT, if sdort wrote all that it holds.")
@click.option("--dry-run", is_flag=True, help=DRY_RUN_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print a report as JSON.")
@needs("certificate", "sign")
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

    MODEL is a single file (.safetensors), a diffusers directory, a VAE's file or directory, the directory of a
    ControlNet or T2I-Adapter, a hub id, or demo. OUT gets one folder per component, the scheduler and tokenizer, and a
    manifest. An architecture is traced once; later checkpoints of it export in the time of writing them.
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
    """The options of ``sdort optimize`` for the installed ONNX Runtime; a CPU gains nothing from fp16."""
    from sdort.machine.distributions import installed_flavours

    vendors = {"onnxruntime-rocm": "rocm", "onnxruntime-migraphx": "migraphx", "onnxruntime-gpu": "cuda"}
    named = [vendors[flavour.distribution] for flavour in installed_flavours() if flavour.distribution in vendors]
    return f"--fp16 --provider {named[0]}" if named else "--provider cpu"
