"""What a call of a torch module costs above the run of its graph: ``python scripts/torch_overhead.py FOLDER``.

Each row is the median and the minimum over calls in turns, in microseconds, of one step of the UNet on tensors that are
on the module's device: ``graph`` is ONNX Runtime alone on inputs and outputs that were bound before; ``tensors`` is the
core (:class:`sdort.integrations.torch.TensorSession`) and ``module`` the whole forward, both with what is made of the
timestep, which ``graph`` has as an input. ``rows`` is that part alone. On a GPU each call is timed from its beginning
to the end of the device's work, and from its beginning to its return (``... returns``), which is what the host needs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch

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


def calls_of(unet: GraphUNet, feeds: Tensors) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    core = unet.session
    session, parts = core.session, core.session.preparation
    outputs = core.run(feeds)  # what a prompt decides is made, and sizes are known
    made = core._prompts.of(feeds, session.weights.version) if core._prompts else None
    make_rows = partial(core._timed, core._rows, parts, feeds, made) if parts and core._rows else None
    rows = make_rows() if make_rows else None
    graph_of_step = core._step._graph
    bound, number = session.io_binding(), session.new_graph()
    values = {name: feeds[name].contiguous() for name in (parts.step if parts else session.inputs)}
    for each in (values, *([made.step.values] if made else []), *([rows.values] if rows else [])):
        for name, value in each.items():
            graph_of_step.bind_input(bound, name, value)
    for name, value in outputs.items():
        graph_of_step.bind_output(bound, name, value)
    others = ("sample", UNET.roles.timestep, "encoder_hidden_states")
    added = {name: value for name, value in feeds.items() if name not in others}

    def graph(_alive: object = (values, made, rows, outputs)) -> None:  # their addresses are bound
        with core.place.running():
            session.run_bound(bound, number)

    calls: dict[str, Callable[[], object]] = {"graph": graph}
    if make_rows:
        calls["rows"] = make_rows
    calls["tensors"] = lambda: core.run(feeds)
    calls["module"] = lambda: unet(*(feeds[name] for name in others), added_cond_kwargs=added)
    return calls


def timed(calls: Mapping[str, Callable[[], object]], repeat: int, gpu: bool) -> dict[str, list[float]]:
    """The times of each in microseconds, measured in turns, so that a slow moment is all rows'."""
    found: dict[str, list[float]] = {}
    for number in range(repeat + 3):
        for name, call in calls.items():
            if gpu:
                torch.cuda.synchronize()
            started = time.perf_counter()
            call()
            returned = time.perf_counter() - started
            if gpu:
                torch.cuda.synchronize()
            if number >= 3:
                found.setdefault(name, []).append((time.perf_counter() - started) * 1e6)
                if gpu:
                    found.setdefault(f"{name} returns", []).append(returned * 1e6)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", help="an exported or optimized pipeline")
    parser.add_argument("--provider", default="auto")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--side", type=int, default=64, help="latents along a side")
    parser.add_argument("--repeat", type=int, default=200)
    options = parser.parse_args()
    try:
        for graph in (False, True):
            unet = load_unet(options.folder, provider=options.provider, graph=graph)
            gpu = unet.device.type != "cpu"
            with torch.no_grad():
                calls = calls_of(unet, feeds_of(unet, options.batch, options.side))
                times = timed(calls, options.repeat, gpu)
            where = f"{unet.session.session.provider.name}, tensors on {unet.device}, batch {options.batch}"
            print(f"{where}, {'graph of the device' if graph else 'no graph of the device'}")
            print(f"  {'':18}{'median':>12}{'above graph':>14}{'minimum':>12}{'above graph':>14}")
            for name, values in times.items():
                base = times["graph returns" if name.endswith("returns") else "graph"]
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
