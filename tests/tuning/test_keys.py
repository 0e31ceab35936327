"""The keys of caches: whatever a stored result depends on is in its key, each field and each fact alone."""

from __future__ import annotations

import ast
import json
import os
import shutil
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from onnx import parser

import sdort
from sdort.errors import SdortError
from sdort.exporter import trace_cache as traces
from sdort.exporter.signatures import ComponentSpec
from sdort.exporter.template import Template
from sdort.exporter.trace_cache import TraceCache, trace_key
from sdort.families.graph_tensor import GraphTensor
from sdort.files import package_sources
from sdort.files.package_sources import read_sources
from sdort.files.verified_cache import VerifiedCache
from sdort.machine.onnxruntime_copies import Flavour
from sdort.onnx_io.model_hash import hash_files, hash_model
from sdort.onnx_io.precision_mark import BF16
from sdort.onnx_io.precision_mark import PRECISION_KEY as BF16_KEY
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

    def ask(provider: str, device_id: int = 0, libraries: object = ()) -> Machine:
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
@pytest.mark.parametrize(
    "change",
    [
        {"tuning": True},
        {"graph": True},
        {"stream": 4096},
        {"provider_options": {"tunable_op_max_tuning_duration_ms": "7"}},
        {"provider_options": {"tunable_op_tuning_enable": "1"}},
    ],
    ids=str,
)
def test_how_a_run_searches_is_not_in_the_key(change: dict[str, Any], model: Path) -> None:
    """Else a run would not find what a run that searched has kept."""
    plain = RuntimeOptions("rocm", custom_ops="off")
    keys_of = [make_key(model, "unet", ROCM, given, {"x": (2,)}) for given in (plain, replace(plain, **change))]
    assert keys_of[0] == keys_of[1]


@pytest.mark.usefixtures("machine")
def test_bf16_is_in_the_key(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider's option is not asked for by the user: the model itself says it."""
    monkeypatch.setattr("sdort.providers.session_settings.flavour", lambda: Flavour("onnxruntime-migraphx", "1.27.1"))
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


SOURCES = {"diffusers": "0a", "transformers": "1b", "sdort": "2c"}


def key(component: ComponentSpec = COMPONENT, opset: int = 23, sources: Any = None) -> dict[str, Any]:
    return trace_key(component, opset, sources or SOURCES)


@pytest.mark.parametrize("field", [field.name for field in fields(ComponentSpec)])
def test_every_field_of_a_component_is_in_the_key_of_its_trace(field: str) -> None:
    other = replace(COMPONENT, **{field: others(getattr(COMPONENT, field))})
    assert key(other) != key()


@pytest.mark.parametrize("side", ["inputs", "outputs"])
@pytest.mark.parametrize("field", [field.name for field in fields(GraphTensor)])
def test_every_field_of_a_tensor_is_in_the_key(side: str, field: str) -> None:
    spec = replace(SPEC, **{field: others(getattr(SPEC, field))})
    change: dict[str, Any] = {side: (spec,)}
    assert key(replace(COMPONENT, **change)) != key()


def test_settings_inside_a_config_are_in_the_key() -> None:
    configs: list[dict[str, Any]] = [{}, {"a": 1}, {"a": 2}, {"a": [1]}, {"a": {"b": 1}}, {"a": {"b": 2}}, {"a": None}]
    assert len({json.dumps(key(replace(COMPONENT, config=config))) for config in configs}) == len(configs)
    assert key(replace(COMPONENT, config={"a": 1, "b": 2})) == key(replace(COMPONENT, config={"b": 2, "a": 1}))


def test_what_traces_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled packages by their versions, sources by their content."""
    installed = {
        "torch": "2.13.0+cpu", "onnx": "1.23.2", "onnx-ir": "1.1.0", "onnxscript": "0.7.2", "numpy": "2.4.6",
    }  # fmt: skip

    def made(**arguments: Any) -> str:
        traces._versions.cache_clear()
        return json.dumps(key(**arguments))

    monkeypatch.setattr(traces, "version", lambda package: installed[package])
    first = made()
    found = [first, made(opset=22)]
    found += [made(sources=SOURCES | {package: "ff"}) for package in SOURCES]
    for package, version in list(installed.items()):
        installed[package] = "9" + version
        found.append(made())
        installed[package] = version
    for name in ("__version__", "FORMAT"):
        with monkeypatch.context() as context:
            context.setattr(traces, name, others(getattr(traces, name)))
            found.append(made())
    installed["torch"] = "2.13.0a0+git0123456"  # somebody's own build
    found.append(made())
    assert len(set(found)) == len(found) == 13
    installed["torch"] = "2.13.0+rocm7.1"  # another build of the same source
    assert made() == first
    traces._versions.cache_clear()


def imported_by(module: str) -> set[str]:
    """The modules of sdort that ``module`` imports, inside of functions too, but for type checkers."""
    path = Path(sdort.__file__).parents[1].joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    top = Path(sdort.__file__).parents[1]
    return {
        name for name in names
        if name.startswith("sdort.")
        and (top.joinpath(*name.split(".")).is_dir() or top.joinpath(*name.split(".")).with_suffix(".py").is_file())
    }  # fmt: skip


def test_sdorts_part_of_a_trace_is_hashed_whole() -> None:
    """Whatever tracing imports of sdort is hashed, but for messages, files and processes."""
    seen, left = set[str](), {"sdort.exporter.trace", "sdort.exporter.torch_modules", "sdort.exporter.template"}
    left |= {"sdort.exporter.component_configs", "sdort.passes.tidy", "sdort.passes.upgrade"}
    while left:
        seen |= left
        left = {name for module in left for name in imported_by(module)} - seen
    hashed = set(traces.SOURCES["sdort"][""])
    assert {name.split(".")[1] for name in seen} - hashed <= {
        "errors",
        "console",
        "tables",
        "files",
        "machine",
        "options",
    }


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "library"
    (folder / "models" / "used").mkdir(parents=True)
    (folder / "models" / "other").mkdir()
    for name in ("__init__.py", "models/__init__.py", "models/used/net.py", "models/other/net.py", "notes.txt"):
        (folder / name).write_text("one = 1\n")
    return folder


def test_sources_are_what_their_files_hold(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memo = VerifiedCache(tmp_path / "memo", "the hash", ".sources", 4096)
    monkeypatch.setattr(package_sources, "_SETTLED_NS", 0)

    def digest() -> str:
        return read_sources(package, memo, {"models": ("used",)}).digest

    first = digest()
    assert digest() == first
    assert len(list(memo.folder.iterdir())) == 1
    (package / "models/other/net.py").write_text("another model\n")
    (package / "notes.txt").write_text("another text\n")
    assert digest() == first
    found = [first]
    for name in ("models/__init__.py", "models/used/net.py"):
        status = (package / name).stat()
        (package / name).write_text("one = 2\n")  # as long as before, and with its old time
        os.utime(package / name, ns=(status.st_atime_ns, status.st_mtime_ns))
        found.append(digest())
    (package / "models/used/net.py").rename(package / "models/used/nets.py")
    found.append(digest())
    (package / "models/used/more.py").touch()
    found.append(digest())
    assert len(set(found)) == 5
    shutil.copytree(package, tmp_path / "again" / "library")
    assert read_sources(tmp_path / "again" / "library", memo, {"models": ("used",)}).digest == found[-1]


def test_a_source_that_just_changed_is_read_each_time(package: Path, tmp_path: Path) -> None:
    """Two changes within one tick of the file system's clock have the same time."""
    memo = VerifiedCache(tmp_path / "memo", "the hash", ".sources", 4096)
    first = read_sources(package, memo)
    assert not memo.folder.exists()
    assert first.changed_ns > 0


def test_what_is_not_installed_is_told() -> None:
    with pytest.raises(SdortError, match="no_such_package is not installed"):
        package_sources.package_folder("no_such_package")


class Library:
    """A cache of traces whose packages are small folders."""

    def __init__(self, folder: Path, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(traces, "package_folder", lambda name: package)
        monkeypatch.setattr(traces, "process_start_ns", lambda: 2**62)
        self.folder, self.asked = folder, 0

    def defaults(self, name: str = "AutoencoderKL") -> dict[str, Any]:
        return TraceCache(self.folder).defaults(name, self._compute)

    def _compute(self, name: str) -> dict[str, Any]:
        self.asked += 1
        return {"heads": 4, "name": name}


@pytest.fixture
def library(tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    return Library(tmp_path / "traces", package, monkeypatch)


def test_defaults_are_kept_for_each_state_of_the_library(library: Library, package: Path) -> None:
    assert library.defaults() == library.defaults() == {"heads": 4, "name": "AutoencoderKL"}
    assert library.asked == 1
    library.defaults("CLIPTextModel")
    assert library.asked == 2
    (package / "__init__.py").write_text("edited, of the same version\n")
    library.defaults()
    assert library.asked == 3


def test_the_trace_of_an_edited_library_is_not_given_to_the_stock_one(library: Library, package: Path) -> None:
    component = ComponentSpec("unet", "UNet2DConditionModel", {}, (), ())
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    proto = onnx.helper.make_model(onnx.helper.make_graph([node], "graph", [], []))
    stock = (package / "models/used/net.py").read_text()
    (package / "models/used/net.py").write_text("two = 2\n")  # of the same version
    TraceCache(library.folder).store(component, 23, Template(proto, {}, 0, (), {}))
    assert TraceCache(library.folder).load(component, 23) is not None
    (package / "models/used/net.py").write_text(stock)
    assert TraceCache(library.folder).load(component, 23) is None
    assert not TraceCache(library.folder).has(component, 23)


def test_no_bit_of_kept_defaults_makes_another_model(library: Library, capsys: pytest.CaptureFixture[str]) -> None:
    """Bits flipped (tests of VerifiedCache flip all), cuts, and another class' entry under this one's name."""
    library.defaults("UNet2DConditionModel")
    (foreign,) = library.folder.glob("*.defaults")
    content = foreign.read_bytes()
    foreign.unlink()
    right = library.defaults()
    (entry,) = library.folder.glob("*.defaults")
    whole = entry.read_bytes()
    damaged = [content, b"", *(whole[:end] for end in range(1, len(whole), 7))]
    number = int.from_bytes(whole, "big")
    damaged += [(number ^ 1 << bit).to_bytes(len(whole), "big") for bit in range(0, len(whole) * 8, 11)]
    cache = TraceCache(library.folder)
    for other in damaged:
        entry.write_bytes(other)
        library.asked = 0
        assert cache.defaults("AutoencoderKL", library._compute) == right
        assert library.asked == 1
        assert entry.read_bytes() == whole
    assert capsys.readouterr().err.count("it is made anew") == len(damaged)


def test_what_changed_while_it_was_imported_is_not_kept(
    library: Library, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(traces, "process_start_ns", lambda: 0)
    library.defaults()
    assert not list(library.folder.glob("*.defaults"))
    assert "changed while this process ran" in " ".join(capsys.readouterr().err.split())
