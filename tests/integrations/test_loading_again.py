"""A module that is pickled or copied is loaded again with everything that it was loaded with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sdort.integrations.diffusers import assembled_pipeline
from sdort.integrations.torch import control_module, text_module, transformer_module, unet_module, vae_module

OPTIONS: dict[str, Any] = {"provider": "cuda", "graph": True, "device_id": 2}
LOADERS: list[tuple[Any, str, dict[str, Any]]] = [
    (unet_module, "load_unet", {}),
    (unet_module, "load_unet", {"control_inputs": True}),
    (vae_module, "load_vae", {}),
    (text_module, "load_text_encoder", {}),
    (text_module, "load_text_encoder", {"component": "text_encoder_2"}),
    (control_module, "load_controlnet", {}),
    (transformer_module, "load_transformer", {}),
]


class Opened(Exception):
    """What a loader asks for."""


def asked(load: Any, *arguments: Any, **options: Any) -> Any:
    with pytest.raises(Opened) as caught:
        load(*arguments, **options)
    return caught.value.args


@pytest.mark.parametrize(("module", "name", "own"), LOADERS)
@pytest.mark.parametrize("options", [{}, OPTIONS], ids=["plain", "with options"])
def test_the_same_is_opened_again(
    module: Any,
    name: str,
    own: dict[str, Any],
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """From another folder too: the path is kept whole."""
    load, real, kept = getattr(module, name), module.reloader, []

    def opened(path: Any, components: Any, given: Any, **more: Any) -> Any:
        raise Opened(Path(path).resolve(), tuple(components), dict(given), more)

    def keep(*given: Any, **more: Any) -> Any:
        kept.append(real(*given, **more))
        raise Opened

    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(module, "open_components", opened)
        first = asked(load, "fast", **own, **options)
    with monkeypatch.context() as patch:
        patch.setattr(module, "open_components", lambda *_, **__: None)
        patch.setattr(module, "reloader", keep)
        if module is control_module:
            config = SimpleNamespace(path=tmp_path / "model.onnx")
            session = SimpleNamespace(sessions={"controlnet": SimpleNamespace(session=config)})
            patch.setattr(module, "open_components", lambda *_, **__: session)
            patch.setattr(module, "read_component_config", lambda *_: {})
        asked(load, "fast", **own, **options)
    (again,) = kept
    monkeypatch.chdir("/")
    with monkeypatch.context() as patch:
        patch.setattr(module, "open_components", opened)
        assert asked(again) == first
    assert first[0] == tmp_path / "fast"
    assert first[2] == options


@pytest.mark.parametrize("steered", [True, False])
def test_a_pipelines_modules_are_loaded_as_the_pipeline_was(
    steered: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: dict[str, Any] = {}
    monkeypatch.setattr(assembled_pipeline, "open_components", lambda *_, **__: None)
    monkeypatch.setattr(assembled_pipeline, "unet_of", lambda _, again: made.update(unet=again))
    monkeypatch.setattr(assembled_pipeline, "vae_of", lambda _, again: made.update(vae=again))
    monkeypatch.setattr(assembled_pipeline, "text_encoder_of", lambda _, name, again: made.update({name: again}))
    encoders = [SimpleNamespace(component=name) for name in ("text_encoder", "text_encoder_2")]
    family = SimpleNamespace(encoders=encoders)
    folder: Any = SimpleNamespace(path=tmp_path / "fast", family=family, denoiser="unet")
    options: Any = OPTIONS
    assembled_pipeline._components(folder, options, steered, None)
    named: dict[str, Any] = {name: {"component": name} for name in ("text_encoder", "text_encoder_2")}
    wanted: dict[str, Any] = {"unet": {"control_inputs": steered}, "vae": {}, **named}
    assert {name: again.keywords for name, again in made.items()} == {n: {**OPTIONS, **k} for n, k in wanted.items()}
    functions = [each.func.__name__ for each in made.values()]
    assert functions == ["load_unet", "load_vae", "load_text_encoder", "load_text_encoder"]
    assert {each.args for each in made.values()} == {(str(tmp_path / "fast"),)}
