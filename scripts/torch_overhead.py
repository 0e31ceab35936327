"""What a call of a torch module costs above the run of its graph: ``python scripts/torch_overhead.py FOLDER``.

Each row is the median and the minimum over calls in turns, in microseconds, of one step of the UNet on tensors that are
on the module's device, with the timesteps of a schedule one after the other: ``graph`` is ONNX Runtime alone on inputs
and outputs that were bound before; ``tensors`` is the core (:class:`sdort.integrations.torch.TensorSession`) and
``module`` the whole forward, both with what is made of the timestep, which ``graph`` has as an input. ``rows`` is that
part alone. On a GPU each call is timed from its beginning to the end of the device's work, and from its beginning to
its return (``... returns``), which is what the host needs. ``host`` rows are those calls without the run of the graph,
many in a row: what the host does for them.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from measuring import Arguments, timed

from sdort.errors import SdortError
from sdort.families.denoiser_arguments import timestep_shape
from sdort.families.unet import UNET
from sdort.integrations.torch import GraphUNet, load_unet
from sdort.integrations.torch.tensor_binding import Tensors, torch_dtype


def feeds_of(unet: GraphUNet, batch: int, side: int) -> dict[str, torch.Tensor]:
    """Random inputs of the whole model, on its device and in its dtypes."""
    inputs, found = unet.session.inputs, {}
    known = {"batch": batch, "height": side, "width": side}
    for name, spec in inputs.items():
        shape = [batch, *(size if isinstance(size, int) else None for size in spec.shape[1:])]
        if name == UNET.roles.timestep:
            shape = list(timestep_shape(inputs, batch))
        elif name == "sample":
            shape[2:] = [known["height"], known["width"]]
        elif name == "encoder_hidden_states":
            shape[1] = 77
        values = torch.randn([size or 1 for size in shape], device=unet.device)
        found[name] = (
            values.to(torch_dtype(spec.dtype)) if name != UNET.roles.timestep else torch.full_like(values, 500.0)
        )
    return found


STEPS = 20


class _NoRun:
    """An ``InferenceSession`` that does not run."""

    def __init__(self, ort: Any) -> None:
        self._ort = ort

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ort, name)

    def run_with_iobinding(self, binding: object, settings: object) -> None:
        """Nothing."""


def calls_of(unet: GraphUNet, feeds: Tensors) -> dict[str, Callable[[], object]]:
    """What is timed, by name; each call takes the next timestep and another sample."""
    core = unet.session
    session, parts = core.session, core.session.preparation
    samples = [torch.randn_like(feeds["sample"]) for _ in range(3)]
    clock = feeds[UNET.roles.timestep]
    schedule = torch.linspace(999, 1, STEPS, device=unet.device).round().to(clock.dtype)
    steps = itertools.cycle([
        {**feeds, "sample": samples[step % 3], UNET.roles.timestep: schedule[step].expand(clock.shape)}
        for step in range(STEPS)
    ])  # fmt: skip
    for _ in range(STEPS):  # what prompts and timesteps decide is made, and sizes are known
        outputs = core.run(next(steps))
    made = core._prompts.of(feeds, session.weights.version) if core._prompts else None
    make_rows = partial(core._timed, core._rows, parts) if parts and core._rows else None
    rows = make_rows(feeds, made) if make_rows else None
    bound, number = session.io_binding(), session.new_graph()
    values = {name: feeds[name].contiguous() for name in (parts.step if parts else session.inputs)}
    for each in (values, *([made.step.values] if made else []), *([rows.values] if rows else [])):
        for name, value in each.items():
            core._step._graph.bind_input(bound, name, value)
    for name, value in outputs.items():
        core._step._graph.bind_output(bound, name, value)
    others = ("sample", UNET.roles.timestep, "encoder_hidden_states")

    def graph(_alive: object = (values, made, rows, outputs)) -> None:  # their addresses are bound
        session.run_bound(bound, number)

    def module() -> object:
        step = next(steps)
        added = {name: value for name, value in step.items() if name not in others}
        return unet(*(step[name] for name in others), added_cond_kwargs=added, return_dict=False)

    calls: dict[str, Callable[[], object]] = {"graph": graph}
    if make_rows:
        calls["rows"] = lambda: make_rows(next(steps), made)
    calls["tensors"] = lambda: core.run(next(steps))
    calls["module"] = module
    return calls


def host_times(unet: GraphUNet, calls: Mapping[str, Callable[[], object]], repeat: int) -> dict[str, list[float]]:
    """The microseconds of the host in each call, without the run of the graph."""
    session = unet.session.session
    found: dict[str, list[float]] = {}
    ort, session.ort = session.ort, _NoRun(session.ort)
    try:
        for name in ("graph", "tensors", "module"):
            for _ in range(5):
                seconds = timed(lambda call=calls[name]: [call() for _ in range(repeat)])[1]  # type: ignore[misc]
                found.setdefault(f"{name} host", []).append(seconds / repeat * 1e6)
    finally:
        session.ort = ort
    return found


def turns_of(calls: Mapping[str, Callable[[], object]], repeat: int, gpu: bool) -> dict[str, list[float]]:
    """The times of each in microseconds, measured in turns, so that a slow moment is all rows'."""
    found: dict[str, list[float]] = {}
    wait = torch.cuda.synchronize if gpu else lambda: None
    for number in range(repeat + 3):
        for name, call in calls.items():
            wait()
            returned, whole = timed(lambda call=call: (timed(call)[1], wait())[0])  # type: ignore[misc]
            if number >= 3:
                found.setdefault(name, []).append(whole * 1e6)
                if gpu:
                    found.setdefault(f"{name} returns", []).append(returned * 1e6)
    return found


def main() -> int:
    parser = Arguments(__doc__, "pipeline --provider --repeat", repeat=200)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--side", type=int, default=64, help="latents along a side")
    options = parser.parse_args()
    try:
        for graph in (False, True):
            unet = load_unet(options.pipeline, provider=options.provider, graph=graph)
            gpu = unet.device.type != "cpu"
            with torch.no_grad():
                calls = calls_of(unet, feeds_of(unet, options.batch, options.side))
                times = turns_of(calls, options.repeat, gpu) | host_times(unet, calls, options.repeat)
            where = f"{unet.session.session.provider.name}, tensors on {unet.device}, batch {options.batch}"
            print(f"{where}, {'graph of the device' if graph else 'no graph of the device'}")
            print(f"  {'':18}{'median':>12}{'above graph':>14}{'minimum':>12}{'above graph':>14}")
            for name, values in times.items():
                _, _, kind = name.partition(" ")
                base = times[f"graph {kind}".strip()]
                row = [f"{each(values):12,.1f}{each(values) - each(base):+14,.1f}" for each in (statistics.median, min)]
                print(f"  {name:18}{''.join(row)}")
            if not unet.session.session.provider.graph:
                print(f"{unet.session.session.provider.name} has no graphs of the device")
                break
    except SdortError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
