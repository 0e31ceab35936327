"""``<lora:name:0.8>`` in prompts: adapters by their names in a folder, as AUTOMATIC1111 writes them.

``<lora:name>`` is a scale of 1, ``<lora:name:0.8>`` one for all, ``<lora:name:0.5:0.8>`` one for the text encoders and
one for the UNet; ``te=`` and ``unet=`` name them.
https://github.com/AUTOMATIC1111/stable-diffusion-webui, extensions-builtin/Lora/extra_networks_lora.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from sdort.adapters.adapter_choice import AdapterChoice
from sdort.checkpoints.safetensors import read_header
from sdort.errors import SdortError, UsageError, did_you_mean
from sdort.errors.plain_text import cut, one_line
from sdort.files.named_files import files_below
from sdort.generation.prompts.prompt_syntax import WEIGHTINGS, network_texts
from sdort.generation.requests.request import Request
from sdort.options.number_ranges import ADAPTER_SCALE

_OTHERS = (".pt", ".ckpt", ".bin", ".pth")
"""Files of adapters that programs had before safetensors."""
_LISTED = 12
"""Names of a folder that a message lists."""
_ALIAS = "ss_output_name"
"""The name that training gave a file, by its header; A1111 takes it."""


@dataclass(frozen=True)
class Network:
    """An adapter that a prompt asks for."""

    text: str
    """As it was written."""
    kind: str
    """``lora``, or another name for it; ``hypernet`` is another kind of file."""
    name: str
    scales: tuple[str, ...]
    """Of the text encoders and of the UNet, or of both."""
    named: tuple[tuple[str, str], ...]
    """Scales that have names."""

    @property
    def is_adapter(self) -> bool:
        """Whether it is none of the networks that sdort does not have."""
        return not self.kind.startswith("hypernet")

    @property
    def stem(self) -> str:
        """Its name without folders, in lower case."""
        return self.name.rpartition("/")[2].casefold()

    @property
    def both(self) -> tuple[float, float]:
        """The scales of the text encoders and of the UNet.

        Raises:
            UsageError: one is no number, out of range, or another setting.
        """
        settings = dict(self.named)
        if len(self.scales) > 2 or settings.keys() - {"te", "unet"}:
            raise UsageError(
                f"the prompt asks for {self._shown}, which cuts an adapter to a smaller rank: sdort does not",
                hint="Write <lora:name:0.8>, or <lora:name:0.5:0.8> for the text encoders and the UNet.",
            )
        first = self.scales[0] if self.scales else "1"
        text = settings.get("te", first)
        unet = settings.get("unet", self.scales[1] if len(self.scales) > 1 else text)
        return self._scale(text), self._scale(unet)

    def _scale(self, text: str) -> float:
        value = ADAPTER_SCALE.parse(text)
        problem = ADAPTER_SCALE.problem(value)
        if problem:
            raise UsageError(f"the prompt asks for {self._shown}, whose scale {problem}")
        return ADAPTER_SCALE.check(value)

    @property
    def _shown(self) -> str:
        return cut(one_line(self.text))


def read_networks(text: str) -> list[Network]:
    """The networks that a text asks for, in their order."""
    return [_network(found) for found in network_texts(text)]


def _network(text: str) -> Network:
    kind, name, *items = (part.strip() for part in text.strip("<>").split(":"))
    named = tuple((key.strip(), value.strip()) for key, equals, value in (i.partition("=") for i in items) if equals)
    return Network(text, kind, name, tuple(item for item in items if "=" not in item), named)


class LoraFolder:
    """Adapters of a folder and its subfolders, by the names of their files without the suffix."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._found: dict[str, Path] = {}
        self._aliases: dict[Path, str | None] = {}

    @cached_property
    def _files(self) -> list[Path]:
        """
        Raises:
            UsageError: it is no folder.
        """
        if not self.folder.is_dir():
            raise UsageError(f"--lora-folder {self.folder} is no folder", hint="Give the folder of your LoRA files.")
        return files_below(self.folder, (".safetensors", *_OTHERS))

    def find(self, network: Network) -> Path:
        """The file of a network.

        Raises:
            UsageError: there is none, or there are several.
        """
        if network.name not in self._found:
            self._found[network.name] = self._find(network)
        return self._found[network.name]

    def _find(self, network: Network) -> Path:
        for fits in (self._is_called, self._is_called_about, self._is_alias):
            found = [path for path in self._files if fits(path, network.name)]
            usable = [path for path in found if path.suffix.lower() not in _OTHERS]
            if len(usable) > 1:
                places = ", ".join(self._name(path) for path in usable[:4])
                raise UsageError(
                    f"{network.text} could be any of {len(usable)} files: {one_line(places)}",
                    hint=f"Write its folder too: <lora:{one_line(self._name(usable[0]))}>.",
                )
            if usable:
                return usable[0]
            if found:
                raise UsageError(
                    f"{network.text} is {found[0]}, which sdort does not read", hint="It reads .safetensors files."
                )
        raise self._missing(network)

    def _missing(self, network: Network) -> UsageError:
        names = [self._name(path) for path in self._files if path.suffix.lower() not in _OTHERS]
        question = did_you_mean(network.name, names) or ""
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        there = f"There are: {', '.join(map(one_line, names[:_LISTED]))}{more}." if names else "It has none."
        return UsageError(
            f"the prompt asks for {cut(one_line(network.text))}, and {self.folder} has no such adapter",
            hint=f"{question}{there}",
        )

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).with_suffix("").as_posix()

    def _is_called(self, path: Path, name: str) -> bool:
        return name in (path.stem, self._name(path))

    def _is_called_about(self, path: Path, name: str) -> bool:
        return name.casefold() in (path.stem.casefold(), self._name(path).casefold())

    def _is_alias(self, path: Path, name: str) -> bool:
        if path not in self._aliases:
            self._aliases[path] = _alias(path)
        return self._aliases[path] == name


def _alias(path: Path) -> str | None:
    """The name that a file's header gives it; None where there is none to read."""
    if path.suffix.lower() in _OTHERS:
        return None
    try:
        return read_header(path).notes.get(_ALIAS)
    except SdortError:
        return None


def with_adapters(request: Request, folder: LoraFolder | None) -> Request:
    """A request with the adapters that its prompt asks for, after those that it has.

    What ``--lora`` gives keeps its scale there. Without a folder nothing is added: what is left out is told with the
    prompts.

    Raises:
        UsageError: an adapter is not there, is asked for twice, or has no scale.
    """
    if request.prompt_weighting != WEIGHTINGS[0] or folder is None:
        return request
    given = {choice.path.stem.casefold() for choice in request.lora}
    found: dict[Path, AdapterChoice] = {}
    for network in read_networks(request.prompt):
        if not network.is_adapter or network.stem in given:
            continue
        path, (text_scale, scale) = folder.find(network), network.both
        if path in found:
            raise UsageError(
                f"the prompt asks for {cut(one_line(network.name))} twice", hint="Give it once, with one scale."
            )
        found[path] = AdapterChoice(path, scale, None if text_scale == scale else text_scale)
    return replace(request, lora=(*request.lora, *found.values()))


def named_stems(texts: Sequence[str]) -> Iterator[str]:
    """The names of the adapters that texts ask for, as :attr:`Network.stem`."""
    yield from (network.stem for text in texts for network in read_networks(text) if network.is_adapter)
