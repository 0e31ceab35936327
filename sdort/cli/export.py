"""``sdort export``: a checkpoint to ONNX."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sdort.cli.dry_run import DRY_RUN_HELP, show_plan
from sdort.cli.from_options import needs, options_of
from sdort.cli.number_types import Size, Whole
from sdort.cli.options import complete_files, complete_schedulers
from sdort.cli.sections import SectionedCommand
from sdort.families.known_families import COMPONENTS
from sdort.options.number_ranges import OPSET
from sdort.pipelines.signing_options import SigningOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdort.exporter.export_options import ExportOptions
    from sdort.exporter.manifest import ExportReport
    from sdort.tables import Table


_EPILOG = """\b
Examples:
  sdort export demo model       a tiny pipeline that draws coloured shapes
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


_PATH = click.Path(path_type=Path)


@click.command(
    cls=SectionedCommand,
    sections={
        "Parts of the checkpoint": (
            "components", "variant", "vae", "scheduler", "prediction_type", "config", "ema", "allow_pickle",
            "safety_checker",
        ),
    },
    common=("lora", "vae", "control", "ip_adapter", "variant", "components", "dry_run", "overwrite"),
    epilog=_EPILOG,
)  # fmt: skip
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--component",
    "components",
    multiple=True,
    metavar="NAME",
    type=click.Choice(COMPONENTS),
    help="Export only this component (repeatable). The default is all components.",
)
@click.option(
    "--safety-checker/--no-safety-checker",
    default=True,
    help="Export the pipeline's safety checker too. sdort run --safety asks it.",
)
@click.option("--opset", type=Whole(OPSET), default=23, help="ONNX opset. The Attention operator needs 23.")
@click.option(
    "--static",
    metavar="BxHxW",
    help="Fix all sizes: images per run, height, then width in pixels. The UNet then takes 2 B latents: B with the "
    "prompt and B without. By default batch, height, width and sequence length are dynamic.",
)
@click.option(
    "--size",
    type=Size(),
    metavar="WxH",
    help="Fix all sizes for one image of this width and height, such as 768x512: the same as --static 1x512x768.",
)
@click.option(
    "--control",
    is_flag=True,
    help="Give the UNet inputs for ControlNets and T2I-Adapters. sdort run --control needs them.",
)
@click.option(
    "--ip-adapter",
    multiple=True,
    metavar="FILE",
    type=_PATH,
    help="Build this IP-Adapter (plain or plus) into the UNet. sdort run --ip-adapter-image needs it. Repeatable.",
)
@click.option(
    "--image-encoder",
    metavar="DIR|FILE",
    type=_PATH,
    help="CLIP's image encoder for --ip-adapter. The default is the one beside the adapter.",
)
@click.option("--variant", help="Read the weights of this variant, such as fp16.")
@click.option(
    "--allow-pickle",
    is_flag=True,
    help="Read pickles: .bin weights where there are no safetensors, or a single .ckpt file.",
)
@click.option(
    "--vae", metavar="DIR|FILE", type=_PATH, help="Use another VAE: its folder, its file, or the folder of a pipeline."
)
@click.option(
    "--scheduler", shell_complete=complete_schedulers, help="Use another scheduler; sdort run takes the same names."
)
@click.option(
    "--prediction-type",
    type=click.Choice(("epsilon", "v_prediction", "sample")),
    help="What the UNet predicts, if the checkpoint does not say it or says it wrong.",
)
@click.option(
    "--config",
    metavar="DIR",
    type=_PATH,
    help="For single files: a diffusers folder that supplies configs, tokenizers and scheduler. It also supplies "
    "the VAE and the text encoders that the file lacks.",
)
@click.option("--ema", is_flag=True, help="For single files: read the averaged weights (model_ema.) of the UNet.")
@click.option(
    "--lora",
    multiple=True,
    shell_complete=complete_files,
    metavar="FILE[:SCALE]",
    help="Add this adapter to the weights (repeatable). LoRA, LoHa, LoKr or DoRA, as .safetensors. [scale: 1]",
)
@click.option(
    "--embedding",
    multiple=True,
    shell_complete=complete_files,
    metavar="FILE[:WORD]",
    help="Add this textual inversion as a word for prompts (repeatable). WORD is its own name unless you give one.",
)
@click.option("--cache-dir", type=click.Path(path_type=Path), help="Folder of the traces. [default: ~/.cache/sdort]")
@options_of(SigningOptions)
@click.option("--overwrite", is_flag=True, help="Replace OUT, if sdort wrote everything in it.")
@click.option("--dry-run", is_flag=True, help=DRY_RUN_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print a report as JSON.")
@needs(SigningOptions)
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
