"""The keys of caches: whatever a stored result depends on is in its key, each field and each fact alone."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from onnx import parser

import sdort
from sdort.exporter import trace_cache as traces
from sdort.exporter.signatures import ComponentSpec, GraphTensor
from sdort.exporter.trace_cache import TraceCache, trace_key
from sdort.machine.distributions import Flavour
from sdort.onnx_io.model_hash import hash_files, hash_model
from sdort.onnx_io.precision_mark import BF16
from sdort.onnx_io.precision_mark import PRECISION_KEY as BF16_KEY
from sdort.ops.library import library_hash
from sdort.providers.cuda import PROVIDER as CUDA
from sdort.providers.migraphx import PROVIDER as MIGRAPHX
from sdort.providers.rocm import PROVIDER as ROCM
from sdort.providers.runtime_options import RuntimeOptions
from sdort.tuning import device as machines
from sdort.tuning import key as keys
from sdort.tuning.device import Machine, this_machine
from sdort.tuning.key import Key, make_key


def others(value: Any) -> Any:
    """Another value of the same type, as near as there is."""
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, int):
        return value + 1
    if isinstance(value, tuple):
        return (*value[:-1], others(value[-1]))
    if isinstance(value, GraphTensor):
        return replace(value, name=others(value.name))
    if isinstance(value, dict):
        return {**value, "another": 1}
    assert value is None
    return "something"


# ------------------------------------------------------------------------------------------------------ tuning

HERE = Machine("gfx1100", 96, "HIP 7.0.1", ROCM.ep, "1.22.2", "onnxruntime-rocm 1.22.2")
KEY = Key(
    **asdict(HERE), custom_ops=None, model="0123", component="unet", shapes=(("x", (1, 4)),), options=(("a", "1"),)
)


@pytest.mark.parametrize("field", [field.name for field in fields(Key)])
def test_every_field_of_a_tuning_key_is_in_its_name(field: str) -> None:
    """The name is the bundle's folder: two keys of one name would share it."""
    other = replace(KEY, **{field: others(getattr(KEY, field))})
    assert other.name != KEY.name
    assert replace(other, **{field: getattr(KEY, field)}).name == KEY.name


def test_every_number_of_a_shape_is_in_the_name() -> None:
    shapes = [(), (1,), (4, 1), (1, 4), (1, 5), (2, 4), (1, 4, 1)]
    assert len({replace(KEY, shapes=(("x", dims),)).name for dims in shapes}) == len(shapes)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Neg (x) }'
    path = tmp_path / "model" / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(parser.parse_model(text).SerializeToString())
    return path


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with several GPUs, no two alike."""

    def ask(provider: str, device_id: int = 0) -> Machine:
        return replace(HERE, compute_units=HERE.compute_units + device_id)

    monkeypatch.setattr(keys, "this_machine", ask)


@pytest.mark.usefixtures("machine")
def test_what_a_run_is_given_is_in_its_key(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "libsdort_ops.so"
    library.write_bytes(b"one")
    options = RuntimeOptions("rocm", custom_ops="off")

    def name(
        path: Path = model, component: str = "unet", shapes: Any = (("x", (2,)),), given: RuntimeOptions = options
    ) -> str:
        return make_key(path, component, ROCM, given, dict(shapes)).name

    first = name()
    assert name() == first
    found = [first, name(component="vae_decoder"), name(shapes=(("x", (3,)),)), name(shapes=(("z", (2,)),))]
    found.append(name(given=replace(options, provider_options={"do_copy_in_default_stream": "0"})))
    found.append(name(given=replace(options, device_id=1)))
    monkeypatch.setattr(keys, "resolve", lambda asked: library if asked == "auto" else None)
    assert name() == first
    found.append(name(given=replace(options, custom_ops="auto")))
    library.write_bytes(b"two")
    library_hash.cache_clear()
    found.append(name(given=replace(options, custom_ops="auto")))
    model.write_bytes(model.read_bytes() + b"\x28\x01")
    found.append(name())
    assert len(set(found)) == len(found) == 9


@pytest.mark.usefixtures("machine")
def test_the_order_of_inputs_and_options_does_not_matter(model: Path) -> None:
    shapes = {"a": (1,), "b": (2, 3)}
    given = {"do_copy_in_default_stream": "0", "arena_extend_strategy": "kSameAsRequested"}
    both = [
        make_key(model, "unet", ROCM, RuntimeOptions("rocm", provider_options=dict(options)), dict(dims))
        for options, dims in (
            (given.items(), shapes.items()),
            (reversed(given.items()), reversed(shapes.items())),
        )
    ]
    assert both[0] == both[1]
    assert both[0].name == both[1].name


@pytest.mark.usefixtures("machine")
def test_bf16_is_in_the_key(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider's option is not asked for by the user: the model itself says it."""
    monkeypatch.setattr("sdort.providers.bf16.flavour", lambda: Flavour("onnxruntime-migraphx", "1.27.1"))
    options = RuntimeOptions("migraphx")
    plain = make_key(model, "unet", MIGRAPHX, options, {})
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Neg (x) }'
    )
    proto.metadata_props.add(key=BF16_KEY, value=BF16)
    model.write_bytes(proto.SerializeToString())
    made = make_key(model, "unet", MIGRAPHX, options, {})
    assert dict(made.options) == {**dict(plain.options), "migraphx_bf16_enable": "1"}


DEVICE = {"architecture": "gfx1100", "compute_units": 96, "toolkit": "HIP 7.0.1"}


@pytest.mark.parametrize("provider", [ROCM, CUDA, MIGRAPHX], ids=lambda each: each.name)
def test_a_machine_is_all_that_driver_and_packages_say(provider: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(device: dict[str, Any], flavour: Flavour) -> Machine:
        monkeypatch.setattr(machines, "_device", lambda name, device_id: tuple(device.values()))
        monkeypatch.setattr(machines, "flavour", lambda: flavour)
        made: Machine = this_machine.__wrapped__(provider.name)
        return made

    here = Flavour("onnxruntime-rocm", "1.22.2")
    first = found(DEVICE, here)
    assert asdict(first).items() >= DEVICE.items()
    assert first.ep == provider.ep
    changed = [found({**DEVICE, name: others(value)}, here) for name, value in DEVICE.items()]
    changed += [found(DEVICE, replace(here, **{name: others(getattr(here, name))})) for name in asdict(here)]
    differing = [{f.name for f in fields(Machine) if getattr(one, f.name) != getattr(first, f.name)} for one in changed]
    assert differing == [
        {"architecture"}, {"compute_units"}, {"toolkit"}, {"onnxruntime"}, {"ep_version", "onnxruntime"},
    ]  # fmt: skip


def test_what_nvidias_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attributes by their numbers in cuda.h."""
    numbers = {16: 132, 75: 9, 76: 0}

    class Driver:
        version, device = 13010, -1

        def cuInit(self, flags: int) -> int:
            return flags

        def cuDeviceGet(self, place: Any, number: int) -> int:
            place._obj.value = 40 + number
            return 0

        def cuDeviceGetAttribute(self, place: Any, attribute: int, device: Any) -> int:
            self.device = device.value
            place._obj.value = numbers[attribute]
            return 0

        def cuDriverGetVersion(self, place: Any) -> int:
            place._obj.value = self.version
            return 0

    driver = Driver()
    ort = SimpleNamespace(cuda_version="13.0")
    monkeypatch.setattr(machines, "_load", lambda *names: driver)
    monkeypatch.setattr(machines, "import_onnxruntime", lambda: ort)
    assert machines._device("cuda", 1) == ("sm_90", 132, "CUDA 13.0, driver for 13.1")
    assert driver.device == 41
    driver.version = 12080
    assert machines._device("cuda", 0)[2] == "CUDA 13.0, driver for 12.8"
    ort.cuda_version = "12.8"
    assert machines._device("cuda", 0)[2] == "CUDA 12.8, driver for 12.8"


# ------------------------------------------------------------------------------------------------------ models


def test_a_models_hash_covers_its_data(tmp_path: Path) -> None:
    def content(**files: bytes) -> str:
        for path in tmp_path.iterdir():
            path.unlink()
        for name, data in files.items():
            (tmp_path / name.replace("__", ".")).write_bytes(data)
        return hash_model(tmp_path / "model.onnx")

    large = bytes(5 << 20)
    found = [
        content(model__onnx=b"a"),
        content(model__onnx=b"b"),
        content(model__onnx=b"a", model__onnx__data=b""),
        content(model__onnx=b"a", model__onnx__data=b"c"),
        content(model__onnx=b"a", model__onnx_data=b"c"),  # the same bytes elsewhere
        content(model__onnx=b"ac", model__onnx_data=b""),
        content(model__onnx=b"a", model__onnx__data=large),
        content(model__onnx=b"a", model__onnx__data=large + b"\0"),
        content(model__onnx=b"a", model__onnx__data=b"\1" + large[1:]),
    ]
    assert len(set(found)) == len(found)
    assert content(model__onnx=b"a", other__onnx=b"d") == found[0]


def test_a_change_of_a_small_file_is_seen_anywhere(tmp_path: Path) -> None:
    data = bytearray(300_000)
    seen = set()
    for place in (None, 0, 70_000, 150_001, 299_999):
        changed = bytes(data) if place is None else bytes(data[:place]) + b"\1" + bytes(data[place + 1 :])
        (tmp_path / "file").write_bytes(changed)
        seen.add(hash_files([tmp_path / "file"]))
    assert len(seen) == 5


# ------------------------------------------------------------------------------------------------------ traces

SPEC = GraphTensor("x", "float32", ("N", 4))
COMPONENT = ComponentSpec("unet", "UNet2DConditionModel", {"layers": 2}, (SPEC,), (SPEC,))


@pytest.mark.parametrize("field", [field.name for field in fields(ComponentSpec)])
def test_every_field_of_a_component_is_in_the_key_of_its_trace(field: str) -> None:
    other = replace(COMPONENT, **{field: others(getattr(COMPONENT, field))})
    assert trace_key(other, 23) != trace_key(COMPONENT, 23)


@pytest.mark.parametrize("side", ["inputs", "outputs"])
@pytest.mark.parametrize("field", [field.name for field in fields(GraphTensor)])
def test_every_field_of_a_tensor_is_in_the_key(side: str, field: str) -> None:
    spec = replace(SPEC, **{field: others(getattr(SPEC, field))})
    change: dict[str, Any] = {side: (spec,)}
    assert trace_key(replace(COMPONENT, **change), 23) != trace_key(COMPONENT, 23)


def test_settings_inside_a_config_are_in_the_key() -> None:
    configs: list[dict[str, Any]] = [{}, {"a": 1}, {"a": 2}, {"a": [1]}, {"a": {"b": 1}}, {"a": {"b": 2}}, {"a": None}]
    assert len({trace_key(replace(COMPONENT, config=config), 23) for config in configs}) == len(configs)
    ordered = [{"a": 1, "b": 2}, {"b": 2, "a": 1}]
    assert len({trace_key(replace(COMPONENT, config=config), 23) for config in ordered}) == 1


def test_what_traces_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the packages that a trace passes through every release may write another graph, and so may sdort's own."""
    installed = {"torch": "2.13.0+cpu", "diffusers": "0.42.1", "transformers": "5.23.0", "onnxscript": "0.7.2"}
    monkeypatch.setattr(traces, "version", lambda package: installed[package])
    first = trace_key(COMPONENT, 23)
    found = [first, trace_key(COMPONENT, 22)]
    for package, version in list(installed.items()):
        installed[package] = "9" + version
        found.append(trace_key(COMPONENT, 23))
        installed[package] = version
    with monkeypatch.context() as context:
        context.setattr(traces, "__version__", sdort.__version__ + ".1")
        found.append(trace_key(COMPONENT, 23))
    with monkeypatch.context() as context:
        context.setattr(traces, "_FORMAT", traces._FORMAT + 1)
        found.append(trace_key(COMPONENT, 23))
    assert len(set(found)) == len(found) == 8
    installed["torch"] = "2.13.0+rocm7.1"  # another build of the same code
    assert trace_key(COMPONENT, 23) == first


def test_defaults_are_kept_for_each_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"diffusers": "0.42.1", "transformers": "5.23.0"}
    monkeypatch.setattr(traces, "version", lambda package: installed[package])
    asked: list[str] = []

    def compute(name: str) -> dict[str, Any]:
        asked.append(name)
        return {"number": len(asked)}

    cache = TraceCache(tmp_path)
    assert [cache.defaults("AutoencoderKL", compute) for _ in range(2)] == [{"number": 1}] * 2
    installed["diffusers"] = "0.43.0"
    assert cache.defaults("AutoencoderKL", compute) == {"number": 2}
    assert cache.defaults("CLIPTextModel", compute) == {"number": 3}
    assert asked == ["AutoencoderKL", "AutoencoderKL", "CLIPTextModel"]
