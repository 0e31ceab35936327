"""``sdort upscale``: images made larger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from sdort.cli.from_options import options_of
from sdort.cli.number_types import Real, Whole
from sdort.cli.sections import SectionedCommand
from sdort.options.number_ranges import QUALITY, UPSCALE_SCALE, UPSCALE_TILE
from sdort.providers.runtime_options import ExecutionOptions

if TYPE_CHECKING:
    from sdort.generation.upscaled_files import Upscaled

_RUNTIME = ("provider", "fallback", "device_id")


@click.command(
    cls=SectionedCommand,
    sections={"Result": ("output", "scale", "quality", "overwrite"), "Execution": ("tile", "precision", *_RUNTIME)},
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
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    show_default="NAME-4x.png",
    help="File to write (.png, .jpg or .webp), or a folder.",
)
@click.option(
    "--scale",
    type=Real(UPSCALE_SCALE),
    show_default="the upscaler's own",
    help="How many times as high and wide the result is. To reach this, the upscaler runs again, or the result is "
    "resized.",
)
@click.option(
    "--tile",
    type=Whole(UPSCALE_TILE),
    show_default="what fits into memory, at most 512",
    help="Largest side of a tile, in pixels. Smaller tiles take less memory and more time.",
)
@click.option(
    "--precision",
    type=click.Choice(["auto", "fp16", "fp32"]),
    default="auto",
    help="Precision of the upscaler. auto is fp16 on a GPU. If it gives NaN in fp16, sdort continues in fp32.",
)
@options_of(ExecutionOptions, only=_RUNTIME)
@click.option(
    "--quality",
    type=Whole(QUALITY),
    show_default="95",
    help="Quality of JPEG and WebP. WebP with 100 keeps every pixel.",
)
@click.option("--overwrite", is_flag=True, help="Replace files that exist.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    images: tuple[Path, ...],
    model: Path,
    output: Path | None,
    scale: float | None,
    tile: int | None,
    precision: Literal["auto", "fp16", "fp32"],
    provider: str,
    fallback: bool | None,
    device_id: int,
    quality: int | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Make images larger with an upscaler (ESRGAN and its kin).

    sdort optimizes the upscaler at its first use and keeps the result. It enlarges a large image in tiles that overlap,
    so that the memory stays small. Transparency stays, and so do the parameters in a generated image.
    """
    from sdort.console import conclude, emit_json, is_quiet
    from sdort.generation.upscaled_files import upscale

    result = upscale(
        images,
        model,
        output=output,
        scale=scale,
        tile=tile,
        precision=precision,
        provider=provider,
        fallback=fallback,
        device_id=device_id,
        quality=quality,
        overwrite=overwrite,
    )
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
