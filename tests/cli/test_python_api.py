"""The public Python API: what ``import sdort`` offers, and that it and the command line agree."""

from __future__ import annotations

import ast
import importlib
import inspect
import logging
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from support.tiny_pipeline import Tiny

import sdort
from sdort import console
from sdort.batches.batch_options import BatchKeywords, BatchOptions
from sdort.cli import COMMANDS, cli
from sdort.errors import UsageError
from sdort.exporter.export_options import ExportOptions
from sdort.generation.requests.request import Request
from sdort.generation.requests.typed_options import GenerationOptions, PreviewOptions, RunOptions
from sdort.providers import PROVIDER_NAMES
from sdort.providers.runtime_options import LoadOptions, RuntimeOptions
from sdort.serving.serve_options import ServeKeywords, ServeOptions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python-api.md").read_text()
BLOCKS = re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)

# diffusers' schedulers hand tensors to numpy in a way that numpy 2.4 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

CALLS: dict[str, tuple[str, ...]] = {
    "export": ("export", "plan_export"),
    "optimize": ("optimize", "plan_optimize"),
    "run": ("run", "plan_run"),
    "batch": ("batch",),
    "serve": ("serve",),
    "add": ("add_model",),
    "list": ("list_models",),
    "remove": ("remove_model",),
    "cache limit": ("cache_limit",),
    "upscale": ("upscale",),
    "verify": ("verify",),
    "bench": ("bench",),
    "inspect": ("inspect", "compare", "placement"),
    "fusions": ("list_fusions",),
    "warm": ("warm", "plan_warm"),
    "cache size": ("list_cache",),
    "cache list": ("list_cache",),
    "cache clean": ("clean_cache",),
    "tuning list": ("list_tuning",),
    "tuning export": ("export_tuning",),
    "tuning import": ("import_tuning",),
    "tuning verify": ("verify_tuning",),
    "tuning prune": ("prune_tuning",),
    "integrate comfyui": ("write_comfyui_nodes", "remove_comfyui_nodes"),
    "ops build": ("build_ops",),
    "ops list": ("list_ops",),
    "ops tune": ("tune_ops", "tuned_ops"),
    "doctor": ("diagnose", "list_devices", "measure_machine"),
}
"""Command -> the functions that it calls."""

NO_PARAMETER = {
    ("", "as_json"): "the function returns its result; sdort.to_json makes JSON of it",
    ("", "verbose"): "sdort.set_verbosity",
    ("", "help_all"): "the text of the command line",
    ("", "quiet"): "sdort.set_verbosity",
    ("export", "dry_run"): "sdort.plan_export",
    ("optimize", "dry_run"): "sdort.plan_optimize",
    ("warm", "dry_run"): "sdort.plan_warm",
    ("run", "dry_run"): "sdort.plan_run",
    ("verify", "signature"): "sdort.verify_signature",
    ("inspect", "paths"): "path; before and after",
    ("inspect", "diff"): "sdort.compare",
    ("inspect", "exit_code"): "ModelDiff.differ",
    ("inspect", "placement"): "sdort.placement",
    ("doctor", "devices"): "sdort.list_devices",
    ("doctor", "measure"): "sdort.measure_machine",
    ("doctor", "output"): "sdort.to_json of CheckUp.figures",
    ("integrate comfyui", "remove"): "sdort.remove_comfyui_nodes",
    ("ops tune", "show_only"): "sdort.tuned_ops",
}
"""Command (empty for all) and option -> what takes the place of a parameter of the same name."""

NO_DEFAULT = {"providers": PROVIDER_NAMES, "steps": Request.steps, "guidance_scale": Request.guidance_scale}
"""Option without a default -> what its parameter is where it is not given."""

OPTIONS: dict[str, tuple[type, ...]] = {
    "export": (ExportOptions,),
    "plan_export": (ExportOptions,),
    "run": (GenerationOptions, LoadOptions),
    "plan_run": (GenerationOptions, LoadOptions),
    "generate": (GenerationOptions,),
    "batch": (BatchKeywords,),
    "serve": (ServeKeywords,),
}
"""Function with ``**options`` -> the dictionaries that list them."""

FUNCTIONS = sorted({name for names in CALLS.values() for name in names} | {"load"})


@pytest.fixture
def silent() -> Iterator[None]:
    """The verbosity of a program that imports sdort."""
    console.set_verbosity(console.SILENT)
    yield
    console.set_verbosity(console.NORMAL)


def function(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(sdort, name)
    return found


def commands() -> dict[str, click.Command]:
    """Every command that does something; a group's are named with the group."""
    found = {}
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        for sub, leaf in getattr(command, "commands", {"": command}).items():
            found[f"{name} {sub}".strip()] = leaf
    return found


# What there is


def test_importing_sdort_imports_no_library() -> None:
    code = "import sdort, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "sdort" in printed.split()
    assert set(printed.split()) & {"numpy", "torch", "onnx", "onnxruntime", "diffusers", "click", "rich"} == set()


def test_every_public_name_is_there_and_typed() -> None:
    stub = ast.parse((ROOT / "sdort" / "__init__.pyi").read_text())
    typed: dict[str, str] = {}
    for node in stub.body:
        if isinstance(node, ast.ImportFrom):
            typed |= {alias.name: str(node.module) for alias in node.names}
    assert set(sdort.__all__) == set(typed)
    assert set(sdort.__all__) <= set(dir(sdort))
    for name, module in typed.items():
        if name != "errors":
            assert getattr(sdort, name) is getattr(importlib.import_module(module), name)
    assert set(FUNCTIONS) <= set(typed)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        sdort.optimise  # type: ignore[attr-defined]  # noqa: B018


def test_no_module_hides_a_function() -> None:
    """Importing ``sdort.NAME`` would put the module in the function's place."""
    importlib.import_module("sdort.optimizer.command")
    modules = {module.name for module in pkgutil.iter_modules(sdort.__path__)}
    assert modules & set(sdort.__all__) == {"errors"}
    assert callable(sdort.optimize)


def parameters_of(name: str) -> dict[str, Any]:
    """The parameters of a function, and those of its options, with their defaults."""
    defaults = {
        field.name: field.default
        for field in (
            *fields(Request),
            *fields(PreviewOptions),
            *fields(RuntimeOptions),
            *fields(BatchOptions),
            *fields(ServeOptions),
        )
    }
    defaults |= {name: inspect.signature(sdort.load).parameters[name].default for name in LoadOptions.__annotations__}
    listed = [option for options in OPTIONS.get(name, ()) for option in options.__annotations__]
    own = inspect.signature(function(name)).parameters.values()
    named = {each.name: each.default for each in own if each.kind != each.VAR_KEYWORD}
    # Random seeds, files and callbacks are no part of a request.
    return named | {option: defaults.get(option) for option in listed} | ({"seed": None} if "seed" in listed else {})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_typed_and_documented(name: str) -> None:
    signature, text = inspect.signature(function(name)), inspect.getdoc(function(name)) or ""
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in signature.parameters.values():
        assert parameter.kind != parameter.VAR_POSITIONAL
        assert (parameter.kind == parameter.VAR_KEYWORD) == (parameter.name == "options" and name in OPTIONS)
        assert parameter.annotation is not inspect.Parameter.empty
        if signature.parameters.keys() - {"before", "after"}:
            assert re.search(rf"^ +{parameter.name}: |``{parameter.name}``", text, re.MULTILINE), parameter.name
    assert text.partition("\n")[0].endswith("."), "the first line is a sentence"


def test_the_options_of_a_generation_are_those_of_a_request() -> None:
    of_request = {field.name for field in (*fields(Request), *fields(PreviewOptions))} - {"prompt", "templates"}
    of_request -= {"distilled", "guidance_base"}  # the denoiser's, which no option changes
    of_job = {
        "prompts",
        "from_image",
        "size",
        "lora_folder",
        "wildcards",
        "grid",
        "output",
        "quality",
        "overwrite",
        "on_progress",
        "cancel",
    }
    assert set(GenerationOptions.__annotations__) == of_request | of_job
    assert inspect.signature(sdort.Pipeline.generate).parameters["options"].annotation == "Unpack[GenerationOptions]"
    assert inspect.signature(sdort.run).parameters["options"].annotation == "Unpack[RunOptions]"
    assert (
        RunOptions.__annotations__.keys()
        == GenerationOptions.__annotations__.keys() | LoadOptions.__annotations__.keys()
    )


def test_the_options_of_loading_are_the_parameters_of_load() -> None:
    parameters = dict(inspect.signature(sdort.load).parameters)
    del parameters["pipeline"]
    assert {name: str(hint.__forward_arg__) for name, hint in LoadOptions.__annotations__.items()} == {
        name: parameter.annotation for name, parameter in parameters.items()
    }


def test_every_option_of_a_generation_is_documented() -> None:
    [definition] = ast.parse(inspect.getsource(GenerationOptions)).body
    assert isinstance(definition, ast.ClassDef)
    kinds = [type(node) for node in definition.body[1:]]
    assert kinds == [ast.AnnAssign, ast.Expr] * (len(kinds) // 2)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_refuses_values_of_other_types(name: str) -> None:
    """Before it reads or writes anything: text is no switch, and no list of names."""
    needed = {"run": {"prompt": "a"}, "plan_run": {"prompt": "a"}}.get(name, {})
    for parameter in inspect.signature(function(name)).parameters.values():
        if parameter.default is parameter.empty and parameter.kind != parameter.VAR_KEYWORD:
            needed[parameter.name] = "nothing"
    options = {option: str(hint) for each in OPTIONS.get(name, ()) for option, hint in each.__annotations__.items()}
    own = inspect.signature(function(name)).parameters.values()
    kinds = {each.name: str(each.annotation) for each in own if each.kind != each.VAR_KEYWORD} | options
    for parameter_name, kind in kinds.items():
        is_text = re.search(r"(?<!\[)\bstr\b(?!\])", kind)
        wrong = [object(), *([] if is_text else ["no"])]
        if parameter_name not in options and "None" not in kind:
            wrong.append(None)
        for value in wrong:
            with pytest.raises(UsageError, match=parameter_name.replace("_", "[_-]")):
                function(name)(**{**needed, parameter_name: value})


def test_an_option_that_there_is_not_is_refused(tiny: Tiny) -> None:
    with pytest.raises(TypeError, match="there is no option component; there are components, "):
        sdort.export("demo", "model", component="unet")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"there is no option step; there are prompts, .*, steps, "):
        sdort.run(tiny.onnx, "a", step=3)  # type: ignore[call-arg]


# The command line


def test_every_command_names_its_functions() -> None:
    assert set(CALLS) == set(commands())


@pytest.mark.parametrize("name", CALLS)
def test_every_option_is_a_parameter(name: str) -> None:
    parameters = {each for called in CALLS[name] for each in parameters_of(called)}
    options = {option.name or "" for option in commands()[name].params}
    assert {o for o in options if ("", o) not in NO_PARAMETER and (name, o) not in NO_PARAMETER} <= parameters
    excused = {option for command, option in NO_PARAMETER if command == name}
    assert excused <= options - (parameters - {"placement"})


@pytest.mark.parametrize("name", CALLS)
def test_a_command_calls_its_functions(name: str) -> None:
    source = (ROOT / "sdort" / "cli" / f"{name.split()[0]}.py").read_text()
    called = {node.func.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)
              and isinstance(node.func, ast.Name)}  # fmt: skip
    assert set(CALLS[name]) <= called


@pytest.mark.parametrize("name", [name for name in CALLS if len(CALLS[name]) == 1])
def test_defaults_agree(name: str) -> None:
    parameters = parameters_of(*CALLS[name])
    for option in commands()[name].params:
        if option.name in parameters and isinstance(option, click.Option):
            default = parameters[option.name]
            if option.required:
                assert default is inspect.Parameter.empty
            elif option.default is not False and isinstance(option.default, bool | int | float | str):
                assert option.type_cast_value(click.Context(commands()[name]), option.default) == default, option.name
            else:
                # A repeatable option of text says nothing with (), its parameter may with "".
                nothing = (None, False, (), *([""] if option.multiple else []))
                assert default in (*nothing, NO_DEFAULT.get(option.name)), option.name


# What it does


def test_the_page_names_every_function() -> None:
    assert {name for name in FUNCTIONS if not re.search(rf"\b{name}\b", PAGE)} == set()


def test_every_example_of_the_page_runs_and_prints_nothing_of_its_own(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """On the tiny pipeline, whose ONNX takes the place of an export."""
    monkeypatch.chdir(tmp_path)

    def exported(*args: str, **options: Any) -> None:
        bound = inspect.signature(real).bind(*args, **options)
        shutil.copytree(tiny.onnx, bound.arguments["out"])

    real = sdort.export
    monkeypatch.setattr(sdort, "export", exported)
    names: dict[str, Any] = {}
    printed: list[tuple[object, ...]] = []
    names["print"] = lambda *values: printed.append(values)
    for block in BLOCKS:
        exec(compile(block, "docs/python-api.md", "exec"), names)
    assert capfd.readouterr() == ("", "")
    assert {path.name for path in tmp_path.iterdir()} == {"model", "fast", "star.png", "circle.png"}
    assert names["works"]
    assert names["verification"].passed
    assert [image.seed for image in names["result"].images] == [1, 1], "the same seeds for each prompt"
    assert len(names["images"]) == 2
    assert str(printed[-1][0]).endswith("fast exists")
    assert ("4 of 4 steps",) in printed
    assert console.verbosity() == console.NORMAL, "the last example asks for messages"


def test_an_image_has_its_parameters_and_is_written_where_it_is_told(tiny: Tiny, tmp_path: Path, silent: None) -> None:
    from PIL import Image

    result = sdort.load(tiny.onnx, provider="cpu").generate("a house", steps=1, seed=3, num_images=2)
    assert [(image.seed, image.path) for image in result.images] == [(3, None), (4, None)]
    assert (result.prompt, result.steps, result.provider, result.num_images) == ("a house", 1, "cpu", 2)
    assert result.save(tmp_path / "x.png") == [tmp_path / "x-1.png", tmp_path / "x-2.png"]
    second = result.images[1].save(tmp_path / "again.png")
    with Image.open(second) as again, Image.open(tmp_path / "x-2.png") as first:
        assert again.tobytes() == first.tobytes() == result.images[1].pixels.tobytes()
        assert '"seed": 4' in again.text["sdort"]  # type: ignore[attr-defined]
    with pytest.raises(sdort.errors.OutputError, match="exists"):
        result.images[1].save(second)
    same = {"path": None, "variation_seed": None, "prompt": "a house", "negative_prompt": ""}
    same |= {"flagged": None, "safety_score": None}
    assert sdort.to_json(result)["images"] == [{**same, "seed": 3}, {**same, "seed": 4}]


def test_a_program_hears_of_a_fallback_through_the_logger(
    tiny: Tiny, silent: None, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "sdort"):
        pipeline = sdort.load(tiny.onnx, provider="rocm", fallback=True)
    assert (pipeline.provider, pipeline.fallback is None) == ("cpu", False)
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert any("rocm cannot be used" in warning for warning in warnings)
    assert capfd.readouterr() == ("", "")
