"""A pipeline that is served, under a name: its folder, what it draws, and how its requests are told apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from sdort.errors import UsageError
from sdort.families.component_names import ENCODER, SAFETY_CHECKER
from sdort.generation.prompts.plain_tokenizer import PlainTokenizer
from sdort.generation.prompts.prompt_chunks import Tokenizer, Vocabulary
from sdort.generation.requests.default_sampling import default_sampling
from sdort.generation.requests.request import Request
from sdort.generation.requests.tokenizers import load_tokenizers
from sdort.options.number_ranges import size_words
from sdort.pipelines.folder import PipelineFolder
from sdort.samplers.sampler_names import short_sampler

_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._+-]{0,99})=(.+)", re.DOTALL)


def named_model(text: str) -> tuple[str, str]:
    """The name and the place of ``NAME=PLACE``; a place alone is named by its last part."""
    if (found := _NAMED.fullmatch(text)) and not Path(text).exists():
        return found[1], found[2]
    return Path(text).resolve().name.removesuffix(".safetensors") or "model", text


def _lengths(tokenizer: Tokenizer | PlainTokenizer) -> Callable[[str], int]:
    """How long what an encoder reads of a text is: in chunks, or in tokens where it has no chunks."""
    if isinstance(tokenizer, PlainTokenizer):
        return lambda text: len(tokenizer.row(text).ids)
    vocabulary = Vocabulary(tokenizer)
    return lambda text: -(-len(vocabulary.ids(text)) // vocabulary.room)


class ServedModel:
    """A pipeline by its name.

    Args:
        sizes: heights and widths that it is warmed up for; its own if empty.
        any_size: whether it draws others too.
        adapters: the folder of adapters.
    """

    def __init__(
        self,
        name: str,
        folder: PipelineFolder,
        sizes: Sequence[tuple[int, int]],
        any_size: bool,
        adapters: Path | None = None,
    ) -> None:
        self.name, self.folder, self.any_size = name, folder, any_size
        self.sizes = list(dict.fromkeys(sizes)) or [folder.default_size]
        self.places = {str(folder.path): name, **({str(adapters): "the folder of adapters"} if adapters else {})}
        """Paths that clients are not told -> the words in their place."""
        self.safety = "replace" if SAFETY_CHECKER in folder.models else None
        """Fate of images that the safety checker flags: a client gets a black one."""

    @property
    def tasks(self) -> list[str]:
        """The tasks that it can do: ``text``, ``image``, ``inpaint``."""
        return ["text", "image", "inpaint"] if ENCODER in self.folder.models else ["text"]

    @cached_property
    def default(self) -> dict[str, object]:
        """The settings of an image of which a request says nothing."""
        usual = default_sampling(self.folder, None)
        height, width = self.sizes[0]
        return {
            "steps": usual.steps,
            "guidance": usual.guidance_scale,
            "scheduler": short_sampler(usual.scheduler or self.folder.scheduler_class),
            "size": [width, height],
        }

    def check_size(self, height: int, width: int) -> None:
        """Refuse a size for which nothing is compiled.

        Raises:
            UsageError: it is not one of :attr:`sizes`, which the message lists.
        """
        if not self.any_size and (height, width) not in self.sizes:
            served = ", ".join(map(size_words, self.sizes))
            raise UsageError(
                f"{self.name} draws no images of {width}x{height} pixels here", hint=f"It draws: {served}."
            )

    @cached_property
    def _lengths(self) -> list[Callable[[str], int]]:
        return [_lengths(tokenizer) for tokenizer in load_tokenizers(self.folder).values()]

    def chunks(self, request: Request) -> tuple[int, ...]:
        """The numbers of chunks, or of tokens, of a request's texts: what has the same is of one shape when it is
        drawn together."""
        counts = {count(text) for text in request.texts for count in self._lengths}
        return tuple(sorted(counts | {1}))
