"""One ONNX model on one execution provider."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import numpy as np
import onnx

from sdort.console import detail, say, warn
from sdort.errors import BadModelError, MemoryShortageError, ProviderError, SdortError
from sdort.families.component_names import DECODER
from sdort.families.known_families import DENOISERS, find_roles, roles_of
from sdort.graph.domains import OWN_DOMAIN
from sdort.graph.signature import Array, TensorSpec, cast_feeds
from sdort.machine.distributions import import_onnxruntime
from sdort.machine.gpus import free_memory
from sdort.onnx_io.check_tensors import tensor_nbytes
from sdort.onnx_io.component_file import copied, declared_inputs, read_component
from sdort.onnx_io.overridable import (
    ReplaceableWeight,
    computed_weights,
    make_overridable,
    replaceable_weights,
    weights_of,
)
from sdort.onnx_io.precision_mark import integers_of, says_bf16
from sdort.operator_library.library import resolve
from sdort.providers import CPU, LOW
from sdort.providers.bf16 import check_bf16, with_bf16, without_bf16
from sdort.providers.plugins import find_plugin
from sdort.providers.provider import Provider
from sdort.providers.runtime_options import RuntimeOptions
from sdort.runtime import placement
from sdort.runtime.compiled_programs import Programs
from sdort.runtime.device_block import KINDS, is_reachable
from sdort.runtime.device_stream import DeviceStream, open_stream
from sdort.runtime.failures import load_error, run_error
from sdort.runtime.late_ort import LateOrt
from sdort.runtime.memory_pool import MemoryPool, open_pool
from sdort.runtime.opener import ALL, FATAL, create_session, stoppable, turn
from sdort.runtime.operator_trials import refuse_wrong_operators
from sdort.runtime.other_devices import OtherDevice
from sdort.runtime.piecewise_ort import Offloaded, PiecewiseOrt
from sdort.runtime.placed_weights import PlacedWeights, placeable
from sdort.runtime.plugins import refuse_untaken
from sdort.runtime.renewed_binding import RenewedBinding
from sdort.runtime.replaced_weights import ReplacedWeights
from sdort.runtime.step.control_inputs_removed import remove_control_inputs
from sdort.runtime.step.deep_cut import cut_deep
from sdort.runtime.step.patch_cut import PatchPoints, cut_patches
from sdort.runtime.step.pieces import cut_pieces, plan_pieces
from sdort.runtime.step.preparation import Part, Preparation
from sdort.runtime.step.prepared_tensors import split_file
from sdort.runtime.step.step_split import StepSplit, split_step
from sdort.runtime.streamed_weights import StreamedWeights
from sdort.runtime.weight_sums import WeightSums
from sdort.tables import size_text
from sdort.tuning.key import InputDims
from sdort.tuning.session_hooks import SessionTuning, prepare_tuning
from sdort.workload.steering_inputs import steering_inputs

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(bool)": "bool",
    **{f"tensor({kind}{bits})": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}
"""ONNX Runtime's names of the types that NumPy has."""

MOST_SHAPES = 4
"""Sessions that a model has at most, each for other shapes."""
_CONVOLUTIONS = ("Conv", "ConvTranspose", "NhwcConv")
_ROOM = 4
"""How often the memory of a session is to be free before another one opens."""
_SPARE = 128 << 20
_ANEW = 1 << 20
"""Increment of a graph's number when it is recorded again."""
UNRECORDED = -1
"""In the place of a graph's number: a run that is neither recorded nor replayed (ONNX Runtime's ``gpu_graph_id``)."""


class Binding:
    """Inputs on the provider's device and outputs that stay there, to be run again and again."""

    def __init__(self, session: Session, feeds: Mapping[str, Array]) -> None:
        self.session = session
        self._feeds = session.cast(feeds)
        session.require_programs({name: np.shape(value) for name, value in self._feeds.items()})
        self._binding = session.io_binding()
        for name, value in session.step_feeds(self._feeds).items():
            self._binding.bind_ortvalue_input(name, session.on_device(value))
        for spec in session.outputs:
            self._binding.bind_output(spec.name, *session.memory)

    def prepare(self) -> bool:
        """Make anew what runs before a step; whether something does. A run does not repeat it."""
        if self.session.preparation is None:
            return False
        self.session.preparation.forget()
        self.session.step_feeds(self._feeds)
        return True

    def run(self) -> None:
        """Run the model once, of a model in parts a step, and wait for its end."""
        self.session.guard(self._binding.synchronize_inputs)
        self.session.run_bound(self._binding)
        self.session.guard(self._binding.synchronize_outputs)

    def outputs(self) -> dict[str, Array]:
        """The outputs of the last run, in host memory."""
        values = self.session.guard(self._binding.copy_outputs_to_cpu)
        return {spec.name: value for spec, value in zip(self.session.outputs, values, strict=True)}


def _run_options(graph: int = UNRECORDED, shrinks: str = "") -> Any:
    """Options of runs that print nothing, and of the recorded graph that they are.

    Args:
        shrinks: the device, as ONNX Runtime names it, of which a run gives memory back that it does not need any more.
    """
    options = import_onnxruntime().RunOptions()
    options.log_severity_level = FATAL
    # Without it ONNX Runtime 1.31 throws and catches an exception in every run of an IOBinding: 28 microseconds.
    options.add_run_config_entry("gpu_graph_id", str(graph))
    if shrinks:
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", shrinks)
    return options


class Bound(Protocol):
    """Owner of an ``IOBinding`` of a session."""

    def unbind(self) -> None:
        """Drop it; a later run makes another one."""
        ...


class SessionPlace(NamedTuple):
    """The file of a session, what runs it, and the weights that it was opened on, which another one may share."""

    path: Path
    component: str
    provider: Provider
    weights: ReplacedWeights | None
    others: tuple[ReplacedWeights, ...] = ()
    """Those of the further devices."""


class Session:
    """An open model. ``provider`` is what really runs it, after any fallback.

    Args:
        weights: the weights that it was opened on and that may change.
        preparation: what runs before the steps, where ``ort`` has a step alone.
        inputs: the whole model's, with a preparation.
        placed: the weights that ``ort`` reads and does not own.
        pool: what ``ort`` allocates from, where that is no arena of its own.
        stream: what ``ort`` computes on, where others compute on it too and a run need not be waited for.
        again: opens another session on the same weights, for other shapes; None where one is enough for all.

    Attributes:
        shallow: the same model without its deep part, which takes what this one gives of that as :attr:`kept`; None
            where the model is not cut (``options.deep_cut``).
        patch: the same model for the rows of one patch, which takes and gives what ``patch_points`` say; both None
            where the model is not cut so (``options.patch_cut``).
        others: the same model on further devices (``options.devices``).
        programs: those that the provider compiles for shapes of inputs; None where it compiles none, and of parts of a
            model.
    """

    def __init__(
        self,
        ort: Any,
        path: Path,
        component: str,
        provider: Provider,
        options: RuntimeOptions,
        weights: ReplacedWeights | None = None,
        preparation: Preparation | None = None,
        inputs: Mapping[str, TensorSpec] | None = None,
        placed: PlacedWeights | None = None,
        pool: MemoryPool | None = None,
        stream: DeviceStream | None = None,
        again: Callable[[], Session] | None = None,
    ) -> None:
        self.ort = ort
        self.pool = pool
        self.stream = stream
        self._recorded: dict[int, tuple[int, int]] = {}
        self._own_placed = placed
        self.path = path
        self.component = component
        self.provider = provider
        self.options = options
        self.weights = weights or ReplacedWeights()
        """The weights that an adapter may change."""
        declared = {arg.name: arg for arg in ort.get_inputs()}
        self._changing = {name: value for name, value in self.weights.inputs.items() if name in declared}
        self.preparation = preparation
        own = {name: self._spec(arg) for name, arg in declared.items() if name not in self._changing}
        self.inputs = own if inputs is None else dict(inputs)
        self.outputs = [self._spec(arg) for arg in ort.get_outputs()]
        self.shallow: Session | None = None
        self.patch: Session | None = None
        self.patch_points: PatchPoints | None = None
        self.others: Sequence[OtherDevice[Session]] = ()
        self.programs: Programs | None = None
        self._again = again
        self._shapes: object = None
        """Those that this session runs on, where there are more for other shapes."""
        self._of_shapes: dict[object, Session] = {}
        """Those sessions."""
        # A session that was opened to log its placement would log every step of every run too.
        self._shrinks = ""
        if options.offload and pool is None:  # pieces do not share an arena
            self._shrinks = f"gpu:{options.device_id}" if provider.device else "cpu:0"
        self._quiet = _run_options(shrinks=self._shrinks)
        self._graphs: dict[tuple[int, bool], Any] = {}
        self._numbers = 0
        self.opening: Callable[[], AbstractContextManager[None]] = nullcontext
        """A block in which :meth:`start` opens the model."""
        self.bound: WeakSet[Bound] = WeakSet()
        """Those that keep a binding of this session."""
        self.ran_on: set[tuple[tuple[str, tuple[int, ...]], ...]] = set()
        """The dimensions of all inputs, by name, of every :meth:`run` from host memory that succeeded."""

    def _spec(self, arg: Any) -> TensorSpec:
        if arg.type not in _DTYPES:
            raise BadModelError(
                f"{arg.name!r} has the type {arg.type}, which NumPy does not have", component=self.component
            )
        return TensorSpec(arg.name, np.dtype(_DTYPES[arg.type]), tuple(arg.shape))

    @property
    def place(self) -> SessionPlace:
        """Where it was opened, to open it again."""
        if not self.options.adapters:
            return SessionPlace(self.path, self.component, self.provider, None)
        others = tuple(other.session.weights for other in self.others)
        return SessionPlace(self.path, self.component, self.provider, self.weights, others)

    @property
    def _placed(self) -> PlacedWeights | None:
        return self.ort.placed if isinstance(self.ort, LateOrt) else self._own_placed

    @property
    def is_open(self) -> bool:
        """Whether the model is in memory: with ``--memory low`` a step opens when what runs before it is done."""
        return not isinstance(self.ort, LateOrt) or self.ort.is_open

    @property
    def openings(self) -> int:
        """How often the model was opened."""
        return self.ort.openings if isinstance(self.ort, LateOrt) else 1

    @property
    def offloaded(self) -> Offloaded | None:
        """How its weights take turns; None where all are in memory, or it is not open."""
        ort = self.ort.opened if isinstance(self.ort, LateOrt) else self.ort
        return ort.offloaded if isinstance(ort, PiecewiseOrt) else None

    @property
    def nbytes(self) -> int:
        """Bytes of the weights of a model that can be closed; 0 of others."""
        return self.ort.nbytes if isinstance(self.ort, LateOrt) else 0

    def start(self) -> None:
        """Open the model where it is not; a run does so too.

        Raises:
            BadModelError, ProviderError: as :func:`open_session`.
        """
        if isinstance(self.ort, LateOrt) and not self.ort.is_open:
            with self.opening():
                self.ort.start()

    def close(self) -> None:
        """Give the memory of a model that can be closed back, until it is used again."""
        if isinstance(self.ort, LateOrt) and self.ort.is_open:
            for each in list(self.bound):
                each.unbind()
            if self.shallow:
                self.shallow.close()
            self._recorded.clear()
            self._graphs.clear()
            self.ort.close()

    @property
    def kept(self) -> str:
        """The output that :attr:`shallow` takes."""
        return self.outputs[-1].name

    @property
    def memory(self) -> tuple[str, int]:
        """Device name and index, as ONNX Runtime's ``OrtValue`` and ``IOBinding`` take them."""
        return memory_of(self.provider, self.options)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Run the model.

        Args:
            feeds: per input an array, cast to the dtype that the input declares, or what :meth:`upload` returned.

        Returns:
            The outputs by name, in host memory.

        Raises:
            ProviderError: the provider failed, or ran out of memory.
            BadModelError: a required input is missing, or a shape does not fit.
        """
        fed = self.cast(feeds)
        if self._again and all(isinstance(value, np.ndarray) for value in fed.values()):
            session = self.for_shapes(tuple(np.shape(value) for value in fed.values()))
            if session is not self:
                outputs = session.run(fed)
                self.ran_on |= session.ran_on
                return outputs
        if self.programs:
            self.require_programs({name: shape_of(value) for name, value in fed.items()})
        values = self.step_feeds(fed)
        if not self._changing and all(isinstance(value, np.ndarray) for value in values.values()):
            results = self.guard(lambda: self.ort.run(None, values, self._quiet))
        else:
            uploaded = {name: self.on_device(value) for name, value in values.items()} | self._changing
            kept = self.guard(lambda: self.ort.run_with_ort_values(None, uploaded, self._quiet))
            results = [self.download(value) for value in kept]
        if all(isinstance(value, np.ndarray) for value in fed.values()):
            self.ran_on.add(tuple((name, np.shape(value)) for name, value in fed.items()))
        return {spec.name: value for spec, value in zip(self.outputs, results, strict=True)}

    def require_programs(self, shapes: InputDims) -> None:
        """See to it that a run on inputs of these shapes compiles nothing in this process, for whoever binds them.

        Raises:
            NotCompiledError: nothing is compiled for them, and nobody asked to.
            SdortError: it cannot be compiled or kept.
        """
        if self.programs:
            self.programs.require(shapes)

    def for_shapes(self, shapes: Hashable) -> Session:
        """The session to run on some shapes: another one for each of the first few, where the provider would plan its
        convolutions anew whenever they take turns (:attr:`Provider.plans_shapes`), and this one for all others. They
        have the same weights in memory.

        Args:
            shapes: whatever stands for them.
        """
        if self._again is None or self.shallow or self.others:
            return self
        self._shapes = shapes if self._shapes is None else self._shapes
        if shapes == self._shapes:
            return self
        if shapes not in self._of_shapes and len(self._of_shapes) < MOST_SHAPES - 1:
            opened = self._opened_again()
            if opened:
                self._of_shapes[shapes] = opened
        return self._of_shapes.get(shapes, self)

    def _opened_again(self) -> Session | None:
        """Another session on the same weights; None where there is no room for it."""
        free = free_memory(self.provider.vendor, self.options.device_id)
        if free is not None and free < _ROOM * self.provider.session_bytes:
            detail(f"{self.component}: no room for a session of another size; each change of sizes takes longer")
            return None
        assert self._again is not None
        try:
            return self._again()
        except MemoryShortageError as error:
            detail(f"{self.component}: no session of another size: {error.message}")
            return None

    def step_feeds(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        """Inputs of the open graph: the model's, or those of a step with the tensors prepared for it."""
        return self.preparation.step_feeds(feeds, self.weights.version) if self.preparation else feeds

    def io_binding(self) -> Any:
        """An ``IOBinding`` of ONNX Runtime's with the weights that are inputs; the rest is its owner's."""
        binding = self.ort.io_binding()
        if self.provider.copies_inputs:
            binding = RenewedBinding(binding)
        for name, value in self._changing.items():
            binding.bind_ortvalue_input(name, value)
        return binding

    def new_graph(self) -> int:
        """A number for :meth:`run_bound` that no other graph of this session has, where all are taken from here."""
        self._numbers += 1
        return self._numbers

    def run_bound(self, binding: Any, graph: int = 1, *, wait: bool = True) -> None:
        """Run an ``IOBinding`` of ONNX Runtime's.

        Args:
            graph: with ``options.graph``, which recorded graph this is. The first run of a number records it; from then
                on the number stands for those shapes and addresses. :data:`UNRECORDED` records and replays nothing.
            wait: until the device is done. Without it, on a session that has a stream, and always with
                ``options.stream``, this may return before; what comes after on that stream begins when it is done.
        """
        number = self._number_of(graph)
        wait = not self.options.stream and (wait or self.stream is None)
        settings = self._settings(number, wait) if self.options.graph or not wait else self._quiet
        self.guard(partial(self._run_bound, binding, settings))
        if self.pool and self.options.graph and number != UNRECORDED and graph not in self._recorded:
            self._recorded[graph] = (number, self.pool.sizes().state)

    def _run_bound(self, binding: Any, settings: Any) -> None:
        if isinstance(binding, RenewedBinding):
            binding.renew()
        self.ort.run_with_iobinding(binding, settings)

    def records(self, graph: int) -> bool:
        """Whether :meth:`run_bound` is going to record a graph, while no other thread may use the device's driver."""
        if not self.options.graph or self.pool is None:
            return self.options.graph and all(number != graph for number, _ in self._graphs)
        return graph not in self._recorded or self._recorded[graph][1] != self.pool.sizes().state

    def _number_of(self, graph: int) -> int:
        """ONNX Runtime's number of a graph: a new one where its replay would write into what others took since then."""
        if self.pool is None or not self.options.graph or graph == UNRECORDED:
            return graph
        number, taken = self._recorded.get(graph, (graph, None))
        if taken in (None, self.pool.sizes().state):
            return number
        del self._recorded[graph]
        return number + _ANEW

    def _settings(self, graph: int, wait: bool) -> Any:
        if (graph, wait) not in self._graphs:
            self._graphs[graph, wait] = settings = _run_options(
                graph if self.options.graph else UNRECORDED, self._shrinks
            )
            if not wait:
                settings.add_run_config_entry("disable_synchronize_execution_providers", "1")
        return self._graphs[graph, wait]

    def stop(self) -> None:
        """End every run of this session, the one that is going on in another thread too, with a ProviderError."""
        for settings in (self._quiet, *self._graphs.values()):
            settings.terminate = True
        for part in self.preparation.parts if self.preparation else ():
            part.stop()
        for session in (self.shallow, self.patch, *self._of_shapes.values()):
            if session:
                session.stop()

    def bind(self, feeds: Mapping[str, Array]) -> Binding:
        """Put ``feeds`` on the device once, for many runs."""
        return Binding(self, feeds)

    def upload(self, value: Array) -> Any:
        """``value`` as an ``OrtValue`` in the provider's memory; on the CPU it shares the array's memory."""
        return self.guard(lambda: _uploaded(value, self.memory))

    def download(self, value: Any) -> Array:
        """An ``OrtValue`` as an array in host memory; on the CPU it shares the value's memory."""
        return np.asarray(self.guard(value.numpy))

    def on_device(self, value: Any) -> Any:
        """``value`` as an ``OrtValue``."""
        return self.upload(value) if isinstance(value, np.ndarray) else value

    def cast(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The model's inputs from ``feeds``, arrays cast to the declared dtypes, the rest as it is.

        Raises:
            BadModelError: an input is missing.
        """
        return cast_feeds(feeds, self.inputs.values(), self.component)

    def guard(self, call: Any) -> Any:
        """Run ``call`` and turn what ONNX Runtime raises into an error of ours."""
        try:
            with turn(self.provider), stoppable(self.stop), self.pool.used() if self.pool else nullcontext():
                return call()
        except SdortError:
            raise
        except Exception as error:  # its classes share no base but Exception
            raise run_error(error, self.component, self.provider) from error


def open_session(path: Path, component: str, provider: Provider, options: RuntimeOptions) -> Session:
    """Open a model on a provider that is known to load (:func:`sdort.runtime.probe.choose_provider`).

    Raises:
        BadModelError: the file is unsafe or broken, or ONNX Runtime cannot read it.
        ProviderError: the provider has no kernel for one of its operators, or ``options.fallback`` is False and
            part of the model would run on the CPU.
    """
    return prepare_session(path, component, provider, options)()


def prepare_session(path: Path, component: str, provider: Provider, options: RuntimeOptions) -> Callable[[], Session]:
    """:func:`open_session` in two: what sdort does itself, now; what the call does is ONNX Runtime's, in any thread.

    Where the log of the session is read, which is the process's, the call does all of it, and no other one meanwhile.

    Raises:
        BadModelError, ProviderError: as :func:`open_session`, which the call raises too.
    """
    if not is_logged(provider, options):
        return _prepare(path, component, provider, options, FATAL)

    def open_and_look() -> Session:
        session, log = open_logged(path, component, provider, options)
        placement.refuse_fallback(log, provider, component)
        return session

    return open_and_look


def is_logged(provider: Provider, options: RuntimeOptions) -> bool:
    """Whether a session's log is read, for nodes that may not be on the CPU."""
    return options.fallback is False and not provider.is_fallback


def open_again(place: SessionPlace, options: RuntimeOptions, model: onnx.ModelProto | None = None) -> Session:
    """A session where another one was, with other options, on the same weights where these may change.

    Args:
        model: the graph, made from the file; the file itself by default.

    Raises:
        BadModelError, ProviderError: as :func:`open_session`, and :func:`open_graph` with a model.
    """
    path, component, provider, weights, others = place
    shared, others = (weights, others) if options.adapters else (None, ())
    if model is not None or not is_logged(provider, options):
        return _prepare_start(model, path, component, provider, options, FATAL, weights=shared, others=others)()
    opened: tuple[Session, str] = placement.run_logged(
        lambda: _prepare_start(None, path, component, provider, options, 0, weights=shared, others=others)()
    )
    placement.refuse_fallback(opened[1], provider, component)
    return opened[0]


def open_or_fall_back(
    path: Path,
    component: str,
    provider: Provider,
    options: RuntimeOptions,
    opening: Callable[[], Session] | None = None,
) -> tuple[Session, str | None]:
    """:func:`open_session`, on the CPU where the provider refuses the component and ``options`` allow that.

    Args:
        opening: gives that session, where it is being opened already.

    Returns:
        The session, and why it is not on ``provider``, which is also a warning; None where it is.

    Raises:
        BadModelError, ProviderError: as :func:`open_session`; the provider's where the CPU refuses the component too,
            and where the CPU knows nothing of what ``options`` ask for.
    """
    try:
        return (opening or partial(open_session, path, component, provider, options))(), None
    except SdortError as error:
        if provider.is_fallback or not options.may_fall_back or options.graph or options.provider_options:
            raise
        refusal = error
    try:
        session = open_session(path, component, CPU, replace(options, tuning=False, fallback=None))
    except SdortError:
        raise refusal from None
    reason = f"{component} runs on {CPU.name}: {refusal.message}"
    warn(reason)
    return session, reason


def open_logged(path: Path, component: str, provider: Provider, options: RuntimeOptions) -> tuple[Session, str]:
    """:func:`open_session`, and the log of the initialisation, for :func:`sdort.runtime.placement.parse_placement`."""
    return placement.run_logged(lambda: _prepare(path, component, provider, options, 0)())


def open_graph(
    model: onnx.ModelProto,
    path: Path,
    component: str,
    provider: Provider,
    options: RuntimeOptions,
    optimization: str = ALL,
    weights: ReplacedWeights | None = None,
) -> Session:
    """Open a graph in memory as :func:`open_session` opens the file that it was made from.

    Args:
        model: the graph, in which external data is named as in the file.
        path: the file; the weights lie in its folder.
        optimization: which of ONNX Runtime's own optimizations there are (:mod:`sdort.runtime.opener`).
        weights: with ``options.adapters``, another session's of the same file, to be shared.

    Raises:
        BadModelError, ProviderError: as :func:`open_session`; what part of it runs on the CPU is not looked at.
    """
    return _prepare_start(model, path, component, provider, options, FATAL, optimization, weights)()


def _prepare(
    path: Path, component: str, provider: Provider, options: RuntimeOptions, severity: int
) -> Callable[[], Session]:
    """All of a session that is sdort's own; the call is ONNX Runtime's part, in any thread."""
    check_file(path, component)
    refuse_wrong_operators(path, component, provider, options)
    _tell_of_bodies(path, component, provider, options)
    return _prepare_start(None, path, component, provider, options, severity)


def _tell_of_bodies(path: Path, component: str, provider: Provider, options: RuntimeOptions) -> None:
    """Say that operators of sdort's own run as their definitions, where a GPU has kernels of the library for them."""
    if not provider.on_gpu or resolve(options.custom_ops):
        return
    functions = read_component(path, component).proto.functions
    names = ", ".join(sorted(function.name for function in functions if function.domain == OWN_DOMAIN))
    if names:
        tell = detail if options.custom_ops == "off" else warn
        tell(
            f"{component} was optimized for sdort's operator library, which is not built here: {names} run in several "
            "operators of ONNX Runtime, which is slower. Build it (sdort ops build), or optimize with --no-sdort-ops"
        )


def _prepare_start(
    graph: onnx.ModelProto | None,
    path: Path,
    component: str,
    provider: Provider,
    options: RuntimeOptions,
    severity: int,
    optimization: str = ALL,
    weights: ReplacedWeights | None = None,
    others: Sequence[ReplacedWeights] = (),
) -> Callable[[], Session]:
    """:func:`_prepare_one` on the device of ``options``, and on the further ones where they share the component.

    Args:
        others: weights as :attr:`SessionPlace.others`.
    """

    def prepared(options: RuntimeOptions, severity: int, weights: ReplacedWeights | None) -> Callable[[], Session]:
        return _prepare_one(graph, path, component, provider, options, severity, optimization, weights)

    further = options.other_devices if component in (*DENOISERS, DECODER) else ()
    first = prepared(options, severity, weights)
    kept: Sequence[ReplacedWeights | None] = others or [None] * len(further)
    starts = {
        number: prepared(replace(options, devices=None, device_id=number), FATAL, own)
        for number, own in zip(further, kept, strict=True)
    }
    return partial(_start_on_all, first, starts) if starts else first


def _start_on_all(first: Callable[[], Session], starts: Mapping[int, Callable[[], Session]]) -> Session:
    """The session of the first device, with those of the others; all of them are opened side by side."""
    others = [OtherDevice(number, start) for number, start in starts.items()]
    session = first()
    for other in others:
        _ = other.session  # what failed is raised here
    session.others = others
    return session


def _prepare_one(
    graph: onnx.ModelProto | None,
    path: Path,
    component: str,
    provider: Provider,
    options: RuntimeOptions,
    severity: int,
    optimization: str = ALL,
    weights: ReplacedWeights | None = None,
) -> Callable[[], Session]:
    """A session on ``graph``, or on the file itself, with the file's precision and what was tuned for it. The call is
    ONNX Runtime's part."""
    of_file = graph is None
    options = with_bf16(path, component, provider, options, None if graph is None else says_bf16(graph))
    # What is tuned is read from parts that are open; where the log is read, it is that of an opening.
    in_turn = options.memory == LOW and component in DENOISERS and graph is None and severity == FATAL
    in_turn = in_turn and not options.tuning
    inputs = [info.name for info in graph.graph.input] if graph else read_component(path, component).signature.inputs
    splits = options.split and find_roles(inputs) is not None
    split = split_file(read_component(path, component), options.control_inputs) if splits and graph is None else None
    if split is None and not options.control_inputs and steering_inputs(inputs):
        graph = graph or read_component(path, component).copy()
        remove_control_inputs(graph, component)
    if options.adapters:
        weights = weights or _own_weights(path, component, provider, options)
    # A compiled program holds weights, or takes them: what was kept is of the other kind.
    other = weights is not None and weights.as_inputs
    tuned = SessionTuning(options) if other else prepare_tuning(path, component, provider, options)
    place = SessionPlace(path, component, provider, weights)
    if splits and graph is not None:
        split = split_step(graph)
    start = _Start(place, options, tuned, severity, optimization, in_turn)
    if not provider.programs or options.compiles or not of_file:
        return _opening_of(graph, split, start)
    programs = Programs(path, component, provider, options, kept=not other)
    specs = split.inputs if split else declared_inputs(graph or read_component(path, component).proto)
    if all(isinstance(size, int) for spec in specs.values() for size in spec.shape):
        # Such a model is compiled while it opens.
        programs.require({name: [int(size or 0) for size in spec.shape] for name, spec in specs.items()})
    return partial(_start_with, programs, _opening_of(graph, split, start))


def _start_with(programs: Programs, opening: Callable[[], Session]) -> Session:
    """A session that runs no shapes but those that ``programs`` has or compiles."""
    session = opening()
    session.programs = programs
    return session


def _opening_of(graph: onnx.ModelProto | None, split: StepSplit | None, start: _Start) -> Callable[[], Session]:
    """The opening of a graph or of the file itself, cut as the options ask."""
    options, (path, component, *_) = start.options, start.place
    if (options.deep_cut or options.patch_cut) and component in DENOISERS:
        step = split.step if split else graph or read_component(path, component).copy()
        taken = split.inputs if split else declared_inputs(step)
        if options.patch_cut:
            patches = cut_patches(step, options.patch_cut, component)
            return partial(_start_patches, Cut(patches.whole, patches.patch), patches.points, split, taken, start)
        deep = cut_deep(step, options.deep_cut, component)
        return partial(_start_deep, Cut(deep.whole, deep.shallow), split, taken, start)
    if split is not None:
        return partial(_start_parts, split, start)
    return partial(_start_graph, graph, start)


@dataclass(frozen=True)
class _Start:
    """The way in which the graphs of one file are opened."""

    place: SessionPlace
    options: RuntimeOptions
    tuned: SessionTuning
    severity: int
    optimization: str
    in_turn: bool = False
    """Whether the parts of a denoiser open in turn, each when it is used."""

    def with_options(self, **changes: Any) -> _Start:
        """The same with other options."""
        tuned = SessionTuning(replace(self.tuned.options, **changes), self.tuned.results)
        return replace(self, options=replace(self.options, **changes), tuned=tuned)

    def in_fp32(self) -> _Start:
        """The same for a graph that a bf16 model's provider is to compute in fp32."""
        provider = self.place.provider
        tuned = SessionTuning(without_bf16(provider, self.tuned.options), self.tuned.results)
        return replace(self, options=without_bf16(provider, self.options), tuned=tuned)


class Cut(NamedTuple):
    """The graph of a whole step, and the one that runs in its place in some steps, with further inputs."""

    whole: onnx.ModelProto
    part: onnx.ModelProto


def _start_deep(cut: Cut, split: StepSplit | None, inputs: Mapping[str, TensorSpec], start: _Start) -> Session:
    """A session on a whole step, and one on its outer part."""
    whole, shallow = _start_cut(cut, split, inputs, start)
    whole.shallow = shallow
    return whole


def _start_patches(
    cut: Cut, points: PatchPoints, split: StepSplit | None, inputs: Mapping[str, TensorSpec], start: _Start
) -> Session:
    """A session on a whole step, and one for the rows of a patch."""
    whole, patch = _start_cut(cut, split, inputs, start)
    whole.patch, whole.patch_points = patch, points
    return whole


def _start_cut(
    cut: Cut, split: StepSplit | None, inputs: Mapping[str, TensorSpec], start: _Start
) -> tuple[Session, Session]:
    """A session on a whole step, and one on a part of it, which reads the weights of the first.

    Args:
        inputs: the whole model's.
    """
    whole = _start_graph(cut.whole, start) if split is None else _start_parts(split, start, cut.whole)
    whole.inputs = dict(inputs)
    step = {info.name for info in cut.whole.graph.input}
    taken = [info.name for info in cut.part.graph.input]
    prepared = whole.preparation.for_step(taken) if whole.preparation else None
    own, late = start.with_options(profile=""), isinstance(whole.ort, LateOrt)
    placed = whole.ort if late else whole._placed
    part = _start_graph(cut.part, own, prepared, placed=placed, late=late)
    if whole.is_open:
        part.start()
    if prepared:
        part.inputs = {**inputs, **{name: spec for name, spec in part.inputs.items() if name not in step}}
    return whole, part


def _start_parts(split: StepSplit, start: _Start, step: onnx.ModelProto | None = None) -> Session:
    """A session on a step, with those that run before it; where models load in turn, each opens when it is used.

    Args:
        step: the step, where it has more outputs than that of ``split``.
    """
    step = step or split.step
    # They run once for many steps: to record them would cost more than it saves.
    # Their results stay while the step runs, each in a pool of its own.
    # 999 times a frequency, and a place in a long text, need more than bf16's 8 bits.
    early = start.with_options(graph=False, profile="", pool=0).in_fp32()
    prompt, time = (
        None if part is None else _start_graph(part, early, late=True) for part in (split.prompt, split.time)
    )
    preparation = Preparation(
        prompt, time, split.each_sample, [info.name for info in step.graph.input], roles_of(split.inputs)
    )
    preparation.frees = start.in_turn
    with _opening([] if start.in_turn else preparation.parts, start):
        return _start_graph(step, start, preparation, split.inputs, late=start.in_turn)


@contextmanager
def _opening(parts: Sequence[Part], start: _Start) -> Iterator[None]:
    """A block in which the step opens, and the parts too: before it, or on a GPU, to which each copies its weights, in
    threads beside it. Where the log of sessions is read, which is the process's, one opens at a time.

    Raises:
        BadModelError, ProviderError: a part does not open; of several errors that of the first part.
    """
    if not start.place.provider.on_gpu or start.severity != FATAL:
        for part in parts:
            part.start()
        yield
        return
    # The step opens in the thread of its caller, which has its device from then on.
    with ThreadPoolExecutor(max(len(parts), 1), "sdort-parts") as threads:
        opening = [threads.submit(part.start) for part in parts]
        try:
            yield
        finally:
            for each in opening:
                each.result()


def _start_graph(
    graph: onnx.ModelProto | None,
    start: _Start,
    preparation: Preparation | None = None,
    inputs: Mapping[str, TensorSpec] | None = None,
    placed: PlacedWeights | LateOrt | None = None,
    *,
    late: bool = False,
) -> Session:
    """A session on ``graph`` as it is but for weights that change, or on the file itself.

    Args:
        placed: another session's weights in the GPU's memory, to be shared; or that session, which has them when it is
            open.
        late: whether it opens when it is used, and can be closed; with a graph.
    """
    options, (path, component, provider, weights, _) = start.options, start.place
    initializers: dict[str, Any] = {}
    if options.adapters and weights is not None:
        graph = copied(graph) if graph else read_component(path, component).copy()  # parts are shared
        graph = _with_replaceable(graph, weights, component, provider)
        initializers = _those_of(graph, weights.initializers)
    pool = open_pool(provider, start.tuned.options)
    stream = open_stream(provider, options) if component in DENOISERS else None
    opener = partial(_open_ort, graph, start, initializers, pool, stream, placed)
    again = None
    if late and graph is not None:
        ort = LateOrt(graph, opener, path, component)
        return Session(ort, path, component, provider, options, weights, preparation, inputs, None, pool, stream)
    ort, own = opener()
    # Where models load in turn, they do so for each image.
    if provider.plans_shapes and options.memory != LOW and _convolves(graph or read_component(path, component).proto):
        again = partial(_start_graph, graph, start.with_options(profile=""), preparation, inputs, own)
    return Session(ort, path, component, provider, options, weights, preparation, inputs, own, pool, stream, again)


def _open_ort(
    graph: onnx.ModelProto | None,
    start: _Start,
    initializers: Mapping[str, Any],
    pool: MemoryPool | None,
    stream: DeviceStream | None,
    placed: PlacedWeights | LateOrt | None,
) -> tuple[Any, PlacedWeights | None]:
    """ONNX Runtime's session on ``graph``, or on the file itself, and the weights that it reads and does not own."""
    options, (path, component, *_) = start.options, start.place
    placed = placed.placed if isinstance(placed, LateOrt) else placed
    if options.offload and component in DENOISERS:
        pieces = _open_pieces(graph or read_component(path, component).copy(), start, pool, stream)
        if pieces:
            return pieces, None
    if placed is None:
        placed = _place_weights(graph, start.place, options, initializers)
        own = placed.initializers if placed else {}
    else:
        own = _those_of(graph, placed.initializers) if graph else placed.initializers
    return _created(graph, start, {**own, **initializers}, pool, stream), placed


def _created(
    graph: onnx.ModelProto | None,
    start: _Start,
    initializers: Mapping[str, Any],
    pool: MemoryPool | None,
    stream: DeviceStream | None,
    *,
    packs: bool = True,
) -> Any:
    """ONNX Runtime's session on ``graph``, or on the file itself, on weights that lie where they are.

    Args:
        packs: as :func:`create_session` takes it.
    """
    options, (path, component, provider, *_) = start.options, start.place
    model, folder = (str(path), None) if graph is None else (graph.SerializeToString(), path.parent)
    try:
        ort = create_session(
            model,
            provider,
            replace(start.tuned.options, stream=stream.address) if stream else start.tuned.options,
            severity=start.severity,
            data_folder=folder,
            optimization=start.optimization,
            initializers=initializers,
            pool=pool,
            packs=packs,
        )
    except SdortError:
        raise
    except Exception as error:  # its classes share no base but Exception
        raise load_error(error, path, component, provider) from error
    check_bf16(ort, component, provider, options)
    if plugin := find_plugin(provider, options.ep_libraries):
        refuse_untaken(ort, plugin, component)
    start.tuned.apply(ort)
    return ort


def _open_pieces(
    graph: onnx.ModelProto, start: _Start, pool: MemoryPool | None, stream: DeviceStream | None
) -> PiecewiseOrt | None:
    """Sessions on the pieces of a graph, where the device has no memory for all of its weights; None where it has.

    Raises:
        ProviderError: the provider's memory is not reached.
        MemoryShortageError: there is too little for the slots too.
    """
    options, (path, component, provider, *_) = start.options, start.place
    if not can_offload(provider) or (provider.on_gpu and not is_reachable(provider.vendor)):
        raise ProviderError(
            f"--offload is not for {provider.name}, whose sessions hold weights of their own",
            component=component,
            hint="Take rocm or cuda, or leave it out.",
        )
    free = free_memory(provider.vendor, options.device_id)
    weights = placeable(graph, path, component)
    sizes = {name: values.nbytes for name, values in weights.items()}
    if free is None or not sizes:
        return None
    others = sum(tensor_nbytes(each, component) for each in graph.graph.initializer if each.name not in sizes)
    room = free - options.step_bytes - others - spare_bytes(provider)
    plan = plan_pieces(graph.graph, sizes, room, provider.session_bytes)
    if plan is None:
        detail(
            f"--offload: all of the {component}'s weights fit, {size_text(sum(sizes.values()))} in {size_text(room)}"
        )
        return None
    models = cut_pieces(graph, plan)
    own = [_those_of(model, weights) for model in models]
    vendor = provider.vendor if provider.device else ""
    resident = PlacedWeights(own[0], vendor, options.device_id) if plan.stays else None
    compute = stream.address if stream else options.stream
    streamed = StreamedWeights(own[plan.stays :], vendor, options.device_id, compute)
    sessions = []
    for number, model in enumerate(models):
        values = resident.initializers if resident and not number else streamed.values(number - plan.stays)
        # Only kernels of the CPU pack weights of these operators. CUDA's and ROCm's NhwcConv copy none, but learn in
        # that call that theirs are channels last (microsoft/onnxruntime, core/providers/cuda/nn/conv.cc, PrePack).
        sessions.append(_created(model, start, values, pool, stream, packs=provider.on_gpu))
    seconds = plan.streamed / streamed.speed
    tell = detail if graph.graph.name.endswith((".prompt", ".time")) else say
    tell(
        f"--offload: {size_text(plan.resident)} of {size_text(sum(plan.sizes))} of the {component}'s weights stay in "
        f"{provider.name}'s memory; {size_text(plan.streamed)} are copied in every step in {len(streamed.sizes)} "
        f"pieces, about {seconds:.2g} s of each at {size_text(int(streamed.speed))} a second"
    )
    offloaded = Offloaded(plan.resident, plan.streamed, len(streamed.sizes), round(seconds, 4))
    return PiecewiseOrt(graph, sessions, streamed, resident, offloaded, memory_of(provider, options))


def can_offload(provider: Provider) -> bool:
    """Whether a provider's sessions read weights where sdort puts them, which may be others in the next moment."""
    on_device = bool(provider.device) and provider.vendor in KINDS and not keeps_constants(provider)
    return provider.is_fallback or on_device


def spare_bytes(provider: Provider) -> int:
    """Bytes of the device's memory that are left free beside weights that stay there while others take turns."""
    return _SPARE if provider.on_gpu else 0


def _convolves(graph: onnx.ModelProto) -> bool:
    return any(node.op_type in _CONVOLUTIONS for node in graph.graph.node)


def _those_of(graph: onnx.ModelProto | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a graph's own initializers."""
    names = {tensor.name for tensor in graph.graph.initializer} if graph else ()
    return {name: value for name, value in values.items() if name in names}


def _place_weights(
    graph: onnx.ModelProto | None, place: SessionPlace, options: RuntimeOptions, but: Mapping[str, Any]
) -> PlacedWeights | None:
    """The weights in the GPU's memory; None where ONNX Runtime places them.

    Args:
        but: initializers that have a place.

    Raises:
        MemoryShortageError: they do not fit.
    """
    path, component, provider, *_ = place
    if not provider.device or keeps_constants(provider) or not is_reachable(provider.vendor):
        return None
    model = read_component(path, component).proto if graph is None else graph
    stored = placeable(model, path, component, but)
    return PlacedWeights(stored, provider.vendor, options.device_id) if stored else None


def _own_weights(path: Path, component: str, provider: Provider, options: RuntimeOptions) -> ReplacedWeights:
    """The weights of a file that adapters can change, in the provider's memory."""
    replaceable = find_replaceable(path, component)
    if provider.device and not keeps_constants(provider) and is_reachable(provider.vendor):
        stored = {name: weight.stored for name, weight in replaceable.items()}
        placed = PlacedWeights(stored, provider.vendor, options.device_id, tied=False)
        return ReplacedWeights(replaceable, placed=placed, sums=WeightSums(provider, options))

    def upload(values: Array) -> Any:
        try:
            return _borrowed(_uploaded(values, memory_of(provider, options)))
        except Exception as error:  # its classes share no base but Exception
            raise run_error(error, component, provider) from error

    return ReplacedWeights(replaceable, upload, as_inputs=keeps_constants(provider))


def _with_replaceable(
    graph: onnx.ModelProto, weights: ReplacedWeights, component: str, provider: Provider
) -> onnx.ModelProto:
    """``graph``, changed in place, so that nothing is computed from weights that change before a run.

    What operators read that take weights as constants alone stays constant: they read it in place.
    """
    constant = weights_of(graph, provider.constant_weights)
    changing = {name: weight for name, weight in weights.replaceable.items() if name not in constant}
    make_overridable(graph, changing, required=weights.as_inputs)
    computed = computed_weights(graph, provider.constant_weights)
    if computed:
        operators = ", ".join(sorted(provider.constant_weights))
        warn(
            f"{component}: {computed} {operators} run on the CPU, as {provider.name} takes their weights as constants "
            "alone, and adapters may change what these are computed from"
        )
    return graph


def memory_of(provider: Provider, options: RuntimeOptions) -> tuple[str, int]:
    """Device name and index, as ONNX Runtime's ``OrtValue`` and ``IOBinding`` take them."""
    return (provider.device, options.device_id) if provider.device else ("cpu", 0)


def shape_of(value: Any) -> tuple[int, ...]:
    """Dimensions of an array or an ``OrtValue``."""
    return np.shape(value) if isinstance(value, np.ndarray) else tuple(value.shape())


def _uploaded(value: Array, memory: tuple[str, int]) -> Any:
    """An array as an ``OrtValue``; on the CPU it shares the array's memory."""
    return import_onnxruntime().OrtValue.ortvalue_from_numpy(np.asarray(value, order="C"), *memory)


def _borrowed(value: Any) -> Any:
    """An ``OrtValue`` on the memory of ``value``, which lives as long: a session takes none that owns its memory.

    By DLPack, of which every build has the part that is below the Python class
    (microsoft/onnxruntime, onnxruntime/python/onnxruntime_pybind_ortvalue.cc).
    """
    own = value._get_c_value()
    if own.device_name().lower() == "cpu":
        return value  # memory of the array
    return type(value)(type(own).from_dlpack(own.to_dlpack(), False))


def keeps_constants(provider: Provider) -> bool:
    """Whether a provider compiles weights into its programs, and goes on with these whatever a run binds.

    So does MIGraphX's: what is an initializer of the graph is a constant of the program, a graph input or not
    (microsoft/onnxruntime, onnxruntime/core/providers/migraphx/migraphx_execution_provider.cc).
    """
    return bool(provider.programs)


def find_replaceable(path: Path, component: str) -> dict[str, ReplaceableWeight]:
    """The weights of a model that adapters can replace while its session is open.

    Raises:
        BadModelError: the file does not say what its weights are made of, has integers in their place, or is broken.
    """
    file = read_component(path, component)
    if integers := integers_of(file.metadata):
        raise BadModelError(
            f"{path} has the weights of its linear layers in {integers}, which no adapter changes",
            component=component,
            hint="Put the adapter into the model, then optimize it:\n    sdort export MODEL OUT --lora FILE\nOr leave "
            "--weights out.",
        )
    weights = replaceable_weights(file)
    if not weights:
        raise BadModelError(
            f"{path} does not say which parameters its weights are made of, so no adapter can change them",
            component=component,
            hint="Another tool or an older sdort wrote it. Export and optimize it anew:\n    sdort export MODEL OUT",
        )
    return weights


def check_file(path: Path, component: str) -> None:
    """Refuse an untrusted file that points outside its folder or is otherwise unsafe, before ONNX Runtime reads it.

    Raises:
        BadModelError: as :meth:`sdort.onnx_io.component_file.ComponentFile.check`.
    """
    read_component(path, component).check()
