"""Where a person sees previews: in the terminal, else in a file beside the output."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from sdort.console import draw_picture, has_bars, say
from sdort.errors import UsageError
from sdort.files.staging import staged_output
from sdort.generation.files.image_files import free_path
from sdort.generation.latents.preview import OnPreview, Preview, Previewer, make_decode
from sdort.generation.pictures.terminal_picture import draw
from sdort.generation.pipeline import TextToImage
from sdort.generation.requests.typed_options import PreviewOptions
from sdort.graph.signature import Array
from sdort.machine.os_calls import os_calls
from sdort.machine.terminal import Graphics, terminal_graphics
from sdort.providers.runtime_options import RuntimeOptions

_ROWS = 16
"""The most lines of a preview: it leaves room for what was printed before."""


@contextmanager
def previewing(
    models: TextToImage, wanted: PreviewOptions, output: Path | None, options: RuntimeOptions, *, judged: bool = False
) -> Iterator[None]:
    """Show previews of what a pipeline generates within the block.

    Args:
        judged: show a preview that the pipeline's safety checker flags as a black one.
        output: the first image's file; None where none is written, and previews go to ``on_preview`` alone.

    Raises:
        BadModelError, UsageError: as :func:`make_decode`.
        UsageError: previews are to be judged, and the pipeline's models are loaded in turn.
    """
    if not wanted.wanted:
        yield
        return
    with ExitStack() as stack:
        shown = stack.enter_context(preview_display(output or Path("sdort.png"))) if wanted.preview else None
        watchers = [watcher for watcher in (shown, wanted.on_preview) if watcher]
        if not watchers:
            yield
            return
        if judged and models.one_group:
            raise UsageError(
                "previews are shown to the safety checker, which --memory low does not load beside the UNet",
                hint="Leave the previews out, or take --memory normal, or --safety off.",
            )
        vae = Path(wanted.preview_vae) if wanted.preview_vae else None
        if vae not in models.preview_decoders:
            models.preview_decoders[vae] = make_decode(
                models.folder, models.folder.latent_channels, vae, models.provider, replace(options, graph=False)
            )
        decode = models.preview_decoders[vae]

        def show(preview: Preview) -> None:
            if judged:
                preview = replace(preview, images=[_unflagged(models, image) for image in preview.images])
            for watcher in watchers:
                watcher(preview)

        models.previewer = Previewer(wanted.preview_every, decode, show)
        try:
            yield
        finally:
            models.previewer = None
            if models.one_group:
                models.preview_decoders.clear()


def _unflagged(models: TextToImage, image: Array) -> Array:
    """A preview, black if the safety checker flags it."""
    return np.zeros_like(image) if models.judge(image).flagged else image


@contextmanager
def preview_display(
    output: Path, graphics: Callable[[], Graphics | None] = terminal_graphics
) -> Iterator[OnPreview | None]:
    """The display of previews while the block runs; None where nobody looks: in a pipe, and under ``-q``.

    Args:
        output: the first image's file. A terminal that shows no pictures gets previews in a file beside it, which goes
            when the block ends well.
        graphics: asks the terminal what it shows.
    """
    if not has_bars():
        say("no previews: there is no terminal to show them")
        yield None
        return
    protocol = graphics()
    if protocol is not None:
        yield lambda preview: _show(preview, protocol)
        return
    file = free_path(output.with_name(f"{output.stem}-preview.png"))
    say(f"this terminal shows no pictures: previews are in {file}")
    yield lambda preview: _write(preview, file)
    file.unlink(missing_ok=True)


def _show(preview: Preview, graphics: Graphics) -> None:
    columns, lines = shutil.get_terminal_size()
    picture = draw(side_by_side(preview.images), graphics, columns - 1, max(1, min(_ROWS, lines - 4)), _cell())
    draw_picture(picture.sequence, picture.rows)


def _write(preview: Preview, file: Path) -> None:
    from PIL import Image

    file.parent.mkdir(parents=True, exist_ok=True)
    with staged_output(file) as target:
        Image.fromarray(side_by_side(preview.images)).save(target, format="PNG")


def side_by_side(images: list[Array]) -> Array:
    """Images of one size in a row."""
    return np.concatenate(images, axis=1)


def _cell() -> tuple[int, int]:
    """Pixels of a character's width and height, as the terminal says, or as they usually are."""
    return os_calls.character_size() or (10, 20)
