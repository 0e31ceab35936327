"""MIGraphX by AMD's plugins: which one is taken, and its options by the names of each."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest

from sdort.doctor.diagnosis import _options_of
from sdort.doctor.software import Software
from sdort.errors import ProviderError, UsageError
from sdort.machine.onnxruntime_copies import Flavour
from sdort.onnx_io.precision_mark import BF16, PRECISION_KEY
from sdort.providers import plugins
from sdort.providers.bf16 import check_bf16, with_bf16
from sdort.providers.migraphx import PLUGIN, UMBRELLA
from sdort.providers.migraphx import PROVIDER as MIGRAPHX
from sdort.providers.plugins import find_plugin
from sdort.providers.provider import Plugin
from sdort.providers.runtime_options import RuntimeOptions
from sdort.providers.session_settings import provider_options
from sdort.tuning import device
from sdort.tuning.key import make_key
from sdort.tuning.session_hooks import prepare_tuning
from sdort.tuning.working_folder import working_folder

MODEL = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu (x) }'
Install = Callable[[Plugin], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Packages of plugins, without what they have in them."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(device, "_device", lambda *_: ("gfx1201", 64, "HIP 10.0.0"))
    plugins.installed_plugin.cache_clear()
    device.this_machine.cache_clear()

    def put(plugin: Plugin) -> None:
        module = tmp_path / "site" / plugin.module
        module.mkdir(parents=True)
        (module / "__init__.py").write_text(f"def get_library_path(): return {str(module / 'plugin.so')!r}\n")
        importlib.invalidate_caches()
        plugins.installed_plugin.cache_clear()
        device.this_machine.cache_clear()

    yield put
    for plugin in (PLUGIN, UMBRELLA):
        sys.modules.pop(plugin.module, None)
    plugins.installed_plugin.cache_clear()
    device.this_machine.cache_clear()
    working_folder.cache_clear()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    model = onnx.parser.parse_model(MODEL)
    model.metadata_props.add(key=PRECISION_KEY, value=BF16)
    onnx.save(model, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def asked(**options: str) -> RuntimeOptions:
    return RuntimeOptions("migraphx", provider_options=options)


def test_its_own_plugin_comes_before_the_umbrella(install: Install) -> None:
    assert find_plugin(MIGRAPHX, {}) is None
    install(UMBRELLA)
    found = find_plugin(MIGRAPHX, {})
    assert found is not None
    assert found.plugin.execution_provider == "AMDGPUExecutionProvider"
    install(PLUGIN)
    found = find_plugin(MIGRAPHX, {})
    assert found is not None
    assert found.plugin is PLUGIN
    assert found.path.parent.name == "onnxruntime_ep_migraphx"


def test_options_have_the_names_of_whoever_runs_it(install: Install) -> None:
    given = asked(migraphx_fp16_enable="1", migraphx_model_cache_dir="/programs")
    assert {"device_id": "0", **given.provider_options} == provider_options(MIGRAPHX, given)
    install(PLUGIN)
    assert provider_options(MIGRAPHX, given) == {"fp16_enable": "1", "cache_dir": "/programs"}
    assert provider_options(MIGRAPHX, asked(fp16_enable="1")) == {"fp16_enable": "1"}
    tuned = RuntimeOptions("migraphx", tuning=True)
    assert provider_options(MIGRAPHX, tuned) == {"exhaustive_tune": "1"}


def test_the_umbrella_is_asked_for_migraphx(install: Install) -> None:
    install(UMBRELLA)
    given = RuntimeOptions("migraphx", tuning=True, provider_options={"migraphx_model_cache_dir": "/programs"})
    assert provider_options(MIGRAPHX, given) == {
        "profile": "migraphx", "exhaustive_tune": "1", "cache_dir": "/programs"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("plugin", "name", "message"),
    [
        (PLUGIN, "migraphx_mem_limit", "MIGraphXExecutionProvider of onnxruntime-ep-migraphx .* has no option"),
        (PLUGIN, "fp61_enable", "no option 'fp61_enable'"),
        (PLUGIN, "disable_caching", "disable_caching cannot be set"),
        (UMBRELLA, "fp16_enable", "AMDGPUExecutionProvider of onnxruntime-ep-amdgpu .* has no option"),
        (UMBRELLA, "migraphx_fp16_enable", "has no option 'migraphx_fp16_enable'"),
        (UMBRELLA, "profile", "profile cannot be set"),
    ],
)
def test_an_option_that_it_does_not_know_is_refused(plugin: Plugin, name: str, message: str, install: Install) -> None:
    install(plugin)
    with pytest.raises(UsageError, match=message):
        provider_options(MIGRAPHX, asked(**{name: "1"}))


def test_one_option_by_two_names_is_refused(install: Install) -> None:
    install(PLUGIN)
    with pytest.raises(UsageError, match="migraphx_fp16_enable and fp16_enable are the same option"):
        provider_options(MIGRAPHX, asked(migraphx_fp16_enable="1", fp16_enable="0"))


def test_bf16_is_asked_of_a_plugin_that_has_it(install: Install, path: Path) -> None:
    install(UMBRELLA)
    with pytest.raises(ProviderError, match=r"AMDGPUExecutionProvider of .* has no migraphx_bf16_enable"):
        with_bf16(path, "unet", MIGRAPHX, asked())
    install(PLUGIN)
    made = with_bf16(path, "unet", MIGRAPHX, asked())
    assert provider_options(MIGRAPHX, made) == {"bf16_enable": "1"}
    session: Any = SimpleNamespace(get_provider_options=lambda: {PLUGIN.execution_provider: {"bf16_enable": "1"}})
    check_bf16(session, "unet", MIGRAPHX, made)
    with pytest.raises(UsageError, match=r"fp16_enable=1: .* was made for bf16"):
        with_bf16(path, "unet", MIGRAPHX, asked(fp16_enable="1"))


def test_what_one_compiles_is_not_for_another(install: Install, path: Path) -> None:
    built_in = make_key(path, "unet", MIGRAPHX, asked(), {})
    install(PLUGIN)
    key = make_key(path, "unet", MIGRAPHX, asked(), {})
    assert key.difference(built_in, ["ep_version"])
    assert (key.ep, key.provider) == (PLUGIN.execution_provider, MIGRAPHX)
    assert key.ep_version.startswith("onnxruntime-ep-migraphx")
    assert dict(key.options) == {"bf16_enable": "1"}


def test_programs_lie_where_a_plugin_looks_for_them(install: Install, path: Path) -> None:
    install(PLUGIN)
    made = prepare_tuning(path, "unet", MIGRAPHX, asked()).options
    folder = provider_options(MIGRAPHX, made)["cache_dir"]
    assert Path(folder).is_dir()
    own = prepare_tuning(path, "unet", MIGRAPHX, asked(cache_dir="/own")).options
    assert provider_options(MIGRAPHX, own)["cache_dir"] == "/own"


def test_the_doctor_lists_the_options_of_the_plugin(install: Install) -> None:
    software = Software((Flavour("onnxruntime", "1.32.0"),), None, ("migraphx", "cpu"))
    assert "migraphx_fp16_enable" in _options_of("migraphx", software)[1]
    install(PLUGIN)
    owner, options = _options_of("migraphx", software)
    assert owner.startswith("onnxruntime-ep-migraphx")
    assert {"fp16_enable", "cache_dir"} <= set(options)
