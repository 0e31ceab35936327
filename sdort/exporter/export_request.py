"""The parameters of an export, checked, and with the texts in them read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_type_hints

from sdort.adapters.adapter_choice import AdapterChoice, parse_adapter_choice
from sdort.adapters.embedding_file import EmbeddingChoice, parse_embedding_choice
from sdort.demo import demo_adapter
from sdort.errors import UsageError
from sdort.exporter.export_options import ExportedOptions, ExportOptions, StaticSize
from sdort.exporter.ip_adapters import IpAdapterFiles
from sdort.exporter.replacements import MadeWith, Replacements
from sdort.families.component_names import SAFETY_CHECKER
from sdort.files.user_folders import traces_folder
from sdort.options.declared_options import lone_option, made_of, ranges_of
from sdort.options.number_ranges import parse_size
from sdort.options.option_types import check_types


@dataclass(frozen=True, kw_only=True)
class ExportRequest(ExportedOptions):
    """Checked options of an export.

    Raises:
        UsageError: two options exclude each other.
    """

    static: StaticSize | None
    lora: Sequence[AdapterChoice]
    embedding: Sequence[EmbeddingChoice]

    def __post_init__(self) -> None:
        if not self.safety_checker and SAFETY_CHECKER in self.components:
            raise UsageError("--component safety_checker and --no-safety-checker exclude each other")

    @property
    def traces(self) -> Path:
        """The folder of the traces."""
        return self.cache_dir or traces_folder()

    @property
    def replaced(self) -> Replacements:
        """Parts that stand for those of the checkpoint."""
        encoders, tokenizers = (
            {name: Path(path) for name, path in given.items()} for given in (self.text_encoders, self.tokenizers)
        )
        return Replacements(self.config, self.vae, self.scheduler, self.prediction_type, self.ema, encoders, tokenizers)

    @property
    def ip_adapters(self) -> IpAdapterFiles:
        """Files of the IP-Adapters."""
        return IpAdapterFiles(tuple(map(Path, self.ip_adapter)), self.image_encoder)

    @property
    def made_with(self) -> MadeWith:
        """How the checkpoint is read."""
        return MadeWith(self.replaced, self.variant, self.allow_pickle)


def _static_size(static: str | StaticSize | None, size: str | None) -> StaticSize | None:
    if size is not None:
        if static:
            raise UsageError(f"--size {size} and --static {static} both fix the sizes", hint="Give one of them.")
        return StaticSize(1, *parse_size(size))
    return StaticSize.parse(static) if isinstance(static, str) else static


def check_options(options: ExportOptions) -> ExportRequest:
    """The options with defaults filled in.

    Raises:
        TypeError: there is no option of that name.
        UsageError: a value is none that the option can have.
    """
    choices = {each.__name__: each for each in (AdapterChoice, EmbeddingChoice)}
    check_types(options, get_type_hints(ExportOptions, localns=choices), ranges_of(ExportedOptions))
    if problem := lone_option(options, ExportedOptions):
        raise UsageError(problem)
    lora, embedding = options.get("lora") or (), options.get("embedding") or ()
    return made_of(
        ExportRequest,
        options,
        static=_static_size(options.get("static"), options.get("size")),
        lora=[demo_adapter(parse_adapter_choice(each) if isinstance(each, str) else each) for each in lora],
        embedding=[parse_embedding_choice(each) if isinstance(each, str) else each for each in embedding],
    )
