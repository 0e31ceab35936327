"""Count the damaged graphs that sdort accepts and ONNX Runtime refuses.

    scripts/refused_graphs.py MODEL.onnx --count 400 --seed 1

Each graph is one of the models, or a small one of the tests, with one or two fields of its messages changed as by
scripts/fuzz.py. sdort loads it and optimizes it for the CPU; ONNX Runtime opens it and what sdort made of it, in a
process of its own, since some graphs end ONNX Runtime's. Printed are a table of how many graphs ended how, and of each
that sdort accepted though ONNX Runtime refuses the input or the output: its number (again with --only NUMBER), what
ONNX Runtime says of the input, and what of the output.
"""

from __future__ import annotations

import collections
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from measuring import Arguments

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import onnx  # noqa: E402
from support.fuzzing.messages import damage_message  # noqa: E402
from support.fuzzing.small_inputs import mlp  # noqa: E402

from sdort.errors import SdortError  # noqa: E402
from sdort.lowering.steps import OptimizeOptions, optimize_model  # noqa: E402
from sdort.onnx_io.load import load_model  # noqa: E402
from sdort.onnx_io.save import save_model  # noqa: E402
from sdort.providers import load_target  # noqa: E402

ENDED, OPENS = "ended the process", "opens"


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL.onnx", help="one file each, without .data")
    parser.add_argument("--count", type=int, default=200, help="of graphs (200)")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers (1)")
    parser.add_argument("--only", type=int, help="this one alone")
    args = parser.parse_args()
    bases = [mlp(), *(onnx.load(path) for path in args.models)]
    ends: collections.Counter[str] = collections.Counter()
    told = []
    for number in range(args.count) if args.only is None else [args.only]:
        with tempfile.TemporaryDirectory(prefix="sdort-graphs-") as folder:
            end, before, after = judged(damaged(bases, f"{args.seed}.{number}"), Path(folder))
        words = f"input {word(before)}, output {word(after)}" if end == "accepted" else f"input {word(before)}"
        ends[f"{end}: {words}"] += 1
        if end == ENDED or (end == "accepted" and {before, after} != {OPENS}):
            told.append(f"{number}:\n  input:  {before}\n  output: {after}")
    for words, count in sorted(ends.items()):
        print(f"{count:6} {words}")
    print("", *told, sep="\n")


def word(said: str) -> str:
    return said if said in (OPENS, ENDED, "") else "refused"


def damaged(bases: list[onnx.ModelProto], seed: str) -> onnx.ModelProto:
    rng = random.Random(seed)
    model = onnx.ModelProto()
    while True:
        model.CopyFrom(rng.choice(bases))
        before = model.SerializeToString(deterministic=True)
        try:
            for _ in range(rng.choice([1, 1, 1, 2])):
                damage_message(model, rng)
            if model.SerializeToString(deterministic=True) != before:
                return model
        except (TypeError, ValueError):  # bytes of a name that are no UTF-8: protobuf writes none
            continue


def judged(model: onnx.ModelProto, folder: Path) -> tuple[str, str, str]:
    """Whether sdort refuses or accepts, and what ONNX Runtime says of the input and of sdort's output."""
    (folder / "in.onnx").write_bytes(model.SerializeToString())
    steps = [lambda: sdorts(folder), lambda: runtimes(folder / "in.onnx"), lambda: runtimes(folder / "out.onnx")]
    end, before = apart(steps[0]), apart(steps[1])
    return end, before, apart(steps[2]) if end == "accepted" else ""


def apart(step: Callable[[], str]) -> str:
    """What a step returns in a process of its own."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.write(write, json.dumps(step()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return str(json.loads(text)) if text else ENDED


def sdorts(folder: Path) -> str:
    try:
        model = load_model(folder / "in.onnx", "model")
    except SdortError:
        return "refused by the loader"
    try:
        optimize_model(model, OptimizeOptions(load_target("cpu")))
        save_model(model, folder / "out.onnx")
    except SdortError:
        return "refused by optimize"
    return "accepted"


def runtimes(path: Path) -> str:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's classes share no base but Exception
        return str(error).partition("\n")[0][-300:]
    return OPENS


if __name__ == "__main__":
    main()
