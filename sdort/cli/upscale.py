"""``sdort upscale``: images made larger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sdort.cli.from_options import given, options_of, sections
from sdort.cli.sections import SectionedCommand
from sdort.generation.upscale_options import UpscaleOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sdort.generation.upscale_options import UpscaleKeywords
    from sdort.generation.upscaled_files import Upscaled


@click.command(
    cls=SectionedCommand,
    sections=sections(UpscaleOptions),
    common=("model", "output", "scale", "tile", "provider", "overwrite"),
    epilog="""\b
Examples:
  sdort upscale image.png --model 4x-UltraSharp.pth
  sdort upscale a.png b.jpg --model RealESRGAN_x4plus.pth -o large/
  sdort upscale image.png --model 4x-UltraSharp.pth --scale 2 -o image.webp
""",
)
@click.argument("images", nargs=-1, required=True, metavar="IMAGE...", type=click.Path(path_type=Path))
@click.option(
    "-m",
    "--model",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Upscaler: a .pth, .safetensors or .onnx file. sdort reads ESRGAN, Real-ESRGAN, BSRGAN, compact (SRVGG) and "
    "SPAN from their weights, others as .onnx.",
)
@options_of(UpscaleOptions)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(images: tuple[Path, ...], model: Path, as_json: bool, **options: Unpack[UpscaleKeywords]) -> None:
    """Make images larger with an upscaler (ESRGAN and its kin).

    sdort optimizes the upscaler at its first use and keeps the result. It enlarges a large image in tiles that overlap,
    so that the memory stays small. Transparency stays, and so do the parameters in a generated image.
    """
    from sdort.console import conclude, emit_json, is_quiet
    from sdort.generation.upscaled_files import upscale

    result = upscale(images, model, **given(options))
    if as_json:
        emit_json(result)
    elif not is_quiet():
        conclude(_last_lines(result))


def _last_lines(result: Upscaled) -> str:
    """A line for each image, and one for the upscaler."""
    from sdort.generation.denoising.step_progress import three_digits
    from sdort.tables import size_text

    lines = [
        f"{image.path}: {image.width}x{image.height}, {image.tiles} tile{'s' * (image.tiles != 1)}, "
        f"{three_digits(image.seconds)} s"
        for image in result.images
    ]
    memory = f", peak memory {size_text(result.peak_memory)}" if result.peak_memory else ""
    used = f"{result.model} ({result.architecture}, {result.model_scale}x) in {result.precision} on {result.provider}"
    return "\n".join([*lines, f"{used}, load {three_digits(result.load_seconds)} s{memory}"])
