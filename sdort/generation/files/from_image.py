"""The options that an image was drawn with, from the file that holds them.

sdort's own images say all of it (the text ``sdort``); those of A1111 and what writes as it does say what A1111's
``parameters`` holds. What is given beside the image overrides what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdort.console import say, warn
from sdort.errors import BadModelError, SdortError, UsageError
from sdort.errors.plain_text import cut, one_line
from sdort.files.json_text import parse_json
from sdort.generation.files.comfyui_graph import read_comfyui_graph
from sdort.generation.files.image_texts import XMP, read_texts
from sdort.generation.files.infotext import Infotext, has_parameters, read_infotext
from sdort.generation.pictures.input_image import InputImage
from sdort.generation.requests.lora_tags import named_stems
from sdort.generation.requests.request import GOES_WITH
from sdort.generation.requests.typed_options import GENERATION, DrawnOptions
from sdort.options.declared_options import declared
from sdort.options.number_ranges import flag_of
from sdort.samplers.scheduler_names import WITH_ETA, WITHOUT_SPACING, find_scheduler

COMFYUI = "ComfyUI"
UNKNOWN = "another program"

Texts = Mapping[str, str]
Object = Mapping[str, Any]


def _has(*keywords: str) -> Callable[[Texts, Object], bool]:
    """Texts of one of these keywords, or an object with such a key."""
    return lambda texts, value: not {*texts, *value}.isdisjoint(keywords)


def _says(name: str, *keywords: str) -> Callable[[Texts, Object], bool]:
    """A name in a text of one of these keywords."""
    return lambda texts, value: any(name in str(texts.get(each) or value.get(each) or "") for each in keywords)


def _is_graph(texts: Texts, value: Object) -> bool:
    """A graph of ComfyUI's as it saves it, or as model sites put it into the user comment."""
    graph = any(isinstance(each, dict) and "class_type" in each for each in value.values())
    return graph or "workflow" in texts or texts.get("prompt", "").lstrip().startswith("{")


_FORMS: tuple[tuple[str, Callable[[Texts, Object], bool]], ...] = (
    ("NovelAI", _says("NovelAI", "Software", "Title", "Source")),
    ("SwarmUI", _has("sui_image_params")),
    ("InvokeAI", _has("invokeai_metadata", "invokeai_graph", "invokeai_workflow", "sd-metadata", "Dream")),
    ("Draw Things", _says("Draw Things", XMP, "Software")),
    ("Draw Things", lambda _, value: {"c", "uc"} <= value.keys()),
    ("Easy Diffusion", _has("use_stable_diffusion_model", "num_inference_steps", "Stable Diffusion model")),
    ("RuinedFooocus", _says("RuinedFooocus", "software")),
    ("Fooocus", _has("fooocus_scheme")),
    ("Fooocus", _says("Fooocus", "version", "software")),
    ("Midjourney", _says("Job ID:", "Description")),
    ("TensorArt", _has("generation_data")),
    ("NovelAI", lambda texts, _: {"uc", "scale"} <= _object(texts.get("Comment", "")).keys()),
    (COMFYUI, _is_graph),
)
"""Program -> whether an image is its own, by the texts and the JSON object in ``parameters``; the first counts."""


def program_of(texts: Texts) -> str | None:
    """The program that drew an image whose texts are not A1111's; None if they are, or there are none."""
    parameters = texts.get("parameters", "")
    value = _object(parameters)
    if not value and has_parameters(parameters):
        return None
    found = next((program for program, is_own in _FORMS if is_own(texts, value)), None)
    if found or not value:
        return found
    named = next((value[key] for key in ("Software", "software", "app", "generator") if value.get(key)), None)
    return cut(one_line(named), 40) if isinstance(named, str) else UNKNOWN


def _object(text: str) -> Object:
    try:
        value = parse_json(text.encode(), constants=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


_OPTIONS = declared(*GENERATION)
REPLAYED = {
    name: option.recorded_as or name
    for name, option in declared(DrawnOptions).items()
    if not (option.names_file or option.not_replayed)
}
"""Option -> the field of :class:`GenerationRecord` that it is taken from."""

GIVEN_AGAIN = [name for name, option in _OPTIONS.items() if option.names_file and not option.not_replayed]
"""Options that name files, and the fields that say which: files are not in the image, so the caller has to give
them."""

COMPARED = {
    "lora": {"sha256": "its file", "scale": "its scale", "text_scale": "its scale for the text encoders"},
    "control": {"model_hash": "its model", "image_hash": "its image", "scale": "its scale", "start": "its start",
                "end": "its end"},
    "ip_adapter_image": {"image_hash": "its image", "scale": "its scale"},
}  # fmt: skip
"""Option that names files -> the fields of their records that change an image, and what they are of a file."""

_MOST = 8000
"""Characters of all that is left of an image, as long as a page: each reason why the new one differs has to be told."""


@dataclass(frozen=True)
class DrawnWith:
    """The settings that an image says it was drawn with."""

    options: dict[str, Any]
    """Options of a generation, ``prompt`` among them."""
    model: str | None = None
    """The model's name, where it is told."""
    model_hash: str | None = None
    """sdort's hash of the model; None in images of other programs."""
    refiner: str | None = None
    """The refiner's name, where there was one."""
    refiner_hash: str | None = None
    images: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Option that names an image -> the name and the hash of the one that it was drawn with."""
    files: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Option of :data:`COMPARED` -> what the image's record says of its files."""

    def remark_on_image(self, option: str, image: InputImage) -> None:
        """Say if ``image``, which was given for an option, is not the one that the image was drawn with."""
        name, digest = self.images.get(option, ("", image.digest))
        if digest != image.digest:
            warn(
                f"{flag_of(option)} {image} is not the {one_line(name)} that the image was drawn with: its pixels are "
                "others, so that the new one will differ"
            )

    def remark_on_files(self, option: str, records: Sequence[Any]) -> None:
        """Say which files of an option of :data:`COMPARED` are not those that the image was drawn with.

        Args:
            records: of those that are given, dataclasses as a generation's record has them.
        """
        given, said = [vars(record) for record in records], self.files.get(option, ())
        flag, parts = flag_of(option), COMPARED[option]
        if self.model_hash is None:  # another program's image says nothing of files
            return
        if len(said) != len(given):
            warn(f"the image was drawn with {len(said)} {flag}, not {len(given)}, so that the new one will differ")
            return
        for before, now in zip(said, given, strict=True):
            # An older sdort wrote less; what it does not say is not compared.
            others = [words for name, words in parts.items() if name in before and before[name] != now[name]]
            if others:
                warn(
                    f"{flag} {one_line(str(now['name']))} is not as the {one_line(str(before.get('name')))} that the "
                    f"image was drawn with: {' and '.join(others)} differ{'s' * (len(others) == 1)}, so that the new "
                    "one will differ"
                )

    def remark_on_model(self, model_hash: str) -> None:
        """Say if the image was drawn with another model than the one of this hash."""
        if self.model_hash and self.model_hash != model_hash:
            warn(
                f"the image was drawn with another model ({one_line(self.model or 'unknown')}, {self.model_hash}; this "
                f"one is {model_hash}), so that the new one will differ"
            )
        elif not self.model_hash:
            model = f", drawn with the model {one_line(self.model)}" if self.model else ""
            say(f"the image is of another program{model}: the new one will be like it, not the same")

    def remark_on_refiner(self, refiner_hash: str) -> None:
        """Say if the image had another refiner than the one of this hash, or none."""
        if self.model_hash is None or self.refiner_hash == refiner_hash:
            return
        had = f"by {one_line(self.refiner)} ({one_line(str(self.refiner_hash))})" if self.refiner else "by none"
        warn(f"the image was refined {had}, not by this refiner ({refiner_hash}), so that the new one will differ")


def read_image_options(path: Path, given: Mapping[str, Any]) -> DrawnWith:
    """The options in an image's file, without those that are ``given``.

    Raises:
        BadModelError: it is no PNG, JPEG or WebP, or damaged.
        UsageError: it has no parameters, or was drawn with files that are not given.
    """
    return image_options(path, read_texts(path), given)


def image_options(path: Path, texts: Texts, given: Mapping[str, Any]) -> DrawnWith:
    """:func:`read_image_options` of the texts of an image.

    Args:
        path: its name, for messages.
    """
    if "sdort" in texts:
        return _of_record(path, texts["sdort"], given)
    program = program_of(texts)
    if program == COMFYUI and "prompt" in texts:
        try:
            return _taken_over(path, read_comfyui_graph(texts["prompt"]), given)
        except ValueError as error:
            raise UsageError(
                f"{path} was drawn by ComfyUI, with a graph that sdort does not read: {error}",
                hint="Give its prompt and options yourself, or an image that was saved with A1111's parameters.",
            ) from error
    if program:
        raise UsageError(
            f"{path} was drawn by {program}, whose notes in it sdort does not read",
            hint="Give its prompt and options yourself, or an image that was saved with A1111's parameters.",
        )
    if not has_parameters(texts.get("parameters", "")):
        raise UsageError(
            f"{path} says nothing of how it was drawn",
            hint="Take an image of sdort, or one with A1111's parameters; editors and chat programs remove them.",
        )
    return _taken_over(path, read_infotext(texts["parameters"]), given)


def _taken_over(path: Path, info: Infotext, given: Mapping[str, Any]) -> DrawnWith:
    """Settings of another program's image that sdort takes over; the rest is told."""
    options = {name: value for name, value in info.options.items() if name not in given}
    options, left = _fitting(options, given)
    _tell_left(path, [*info.left, *left])
    return DrawnWith(options, info.model)


def _tell_left(path: Path, left: Sequence[str]) -> None:
    if left:
        warn(f"{path} says what sdort does not take over: {cut('; '.join(left), _MOST)}")


def _fitting(options: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The options of an image that go with each other and with what is given; the others, with the reason.

    Of an image from another image A1111 says how strongly, never from which: without one the rest means nothing. And
    nobody is refused an option that they did not give.
    """
    there = {**options, **given}
    reasons = {name: f"needs {flag_of(needed)}" for name in options if (needed := _lacks(name, there))}
    beside = next((name for name in ("init_image", "refiner") if given.get(name)), None)
    if beside and "hires" in options:
        clash = [name for name in options if name == "hires" or GOES_WITH.get(name) == "hires"]
        reasons |= dict.fromkeys(clash, f"does not go with {flag_of(beside)}")
    reasons |= {name: why for name, why in _of_scheduler(there.get("scheduler")).items() if name in options}
    # A switch that is off is what is drawn without it too.
    left = [
        f"{flag_of(name)} {one_line(str(options[name]))} ({why})"
        for name, why in reasons.items()
        if options[name] is not False
    ]
    return {name: value for name, value in options.items() if name not in reasons}, left


def _of_scheduler(name: Any) -> dict[str, str]:
    """Options that a scheduler has not -> the reason; of one that an image does not name it is not known."""
    try:
        class_name = find_scheduler(name)[0] if isinstance(name, str) else None
    except SdortError:
        return {}  # refused where it is asked for
    reasons = {}
    if class_name not in WITH_ETA:
        reasons["eta"] = f"{class_name or 'the scheduler, which it does not say,'} takes none"
    if class_name in WITHOUT_SPACING:
        reasons["timestep_spacing"] = f"{class_name} has none"
    return reasons


def _lacks(option: str, there: Collection[str]) -> str | None:
    """The option without which ``option`` means nothing and that is not ``there``; None if nothing lacks."""
    while option in GOES_WITH:
        option = GOES_WITH[option]
        if option not in there:
            return option
    return None


def _of_record(path: Path, text: str, given: Mapping[str, Any]) -> DrawnWith:
    try:
        record = parse_json(text.encode())
    except ValueError as error:
        raise BadModelError(
            f"the record in {path} {error}", hint="The file is damaged, or somebody edited it."
        ) from error
    if not isinstance(record, dict) or not isinstance(record.get("prompt"), str):
        raise BadModelError(f"the record in {path} has no prompt", hint="The file is damaged, or somebody edited it.")
    _tell_grid(path, record.get("grid"))
    missing = [option for option in GIVEN_AGAIN if record.get(option) and option not in given]
    named = "lora" in missing and _names_adapters(record, given)
    if named and "lora_folder" in given:
        missing.remove("lora")
    if missing:
        files = ", ".join(_named(record[option]) for option in missing)
        raise UsageError(
            f"{path} was drawn with files that are not in it: {files}",
            hint=f"Give them with {' and '.join(map(flag_of, missing))}."
            + (" Its prompt names the adapters: --lora-folder DIR finds them." if named else ""),
        )
    options = {
        option: record[name]
        for option, name in REPLAYED.items()
        if option not in given and record.get(name) is not None
    }
    if options.get("scheduler") is None and "scheduler" not in given and isinstance(record.get("scheduler"), str):
        options["scheduler"] = record["scheduler"]
    wrong = next((option for option, value in options.items() if not isinstance(value, _OPTIONS[option].kind)), None)
    if wrong:
        raise BadModelError(f"the record in {path} has a {wrong} that is none", hint="Somebody edited it.")
    options, left = _fitting(options, given)
    _tell_left(path, left)
    if isinstance(record.get("upscale"), str) and "upscale" not in given:
        say(f"{path} was enlarged by {one_line(record['upscale'])} in the end: --upscale FILE does that again")
    told = (record.get(name) for name in ("model", "model_hash", "refiner", "refiner_hash"))
    model, model_hash, refiner, refiner_hash = (value if isinstance(value, str) else None for value in told)
    listed = {option: _records(record.get(option)) for option in COMPARED}
    return DrawnWith(options, model, model_hash or "unknown", refiner, refiner_hash, _images(record), listed)


def _tell_grid(path: Path, grid: Any) -> None:
    """Say of a grid that its first image is drawn again."""
    if isinstance(grid, dict) and isinstance(grid.get("seeds"), list):
        seeds = one_line(cut(",".join(map(str, grid["seeds"])), 100))
        say(f"{path} is a grid of {len(grid['seeds'])} images: the first is drawn again (the seeds of all: {seeds})")


def _names_adapters(record: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether the prompt of a record names all of its adapters, which a folder of them then has."""
    prompt = given.get("prompt", record["prompt"])
    names = set(named_stems([prompt] if isinstance(prompt, str) else prompt))
    files = {Path(str(each.get("name"))).stem.casefold() for each in _records(record.get("lora"))}
    return bool(files) and files <= names


def _records(listed: Any) -> list[Mapping[str, Any]]:
    """The objects of a list; nothing else of it."""
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def _images(record: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The init image and the mask of a record, as :attr:`DrawnWith.images`."""
    said = {option: (record.get(option), record.get(f"{option}_hash")) for option in ("init_image", "mask")}
    return {
        option: (name, digest)
        for option, (name, digest) in said.items()
        if isinstance(name, str) and isinstance(digest, str)
    }


def _named(files: Any) -> str:
    """Names of the files that a record lists, with their scales."""
    names = []
    for file in files if isinstance(files, list) else [files]:
        entry = file if isinstance(file, dict) else {"name": file}
        scale = entry.get("scale")
        names.append(one_line(str(entry.get("name"))) + (f":{scale:g}" if isinstance(scale, int | float) else ""))
    return cut(", ".join(names), 200)
