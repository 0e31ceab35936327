"""Every way an exporter writes the tiny models of :mod:`models`, each traced once."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from support import models, parsed_once
from support.models import Built, build
from support.turns import ALL

parsed_once.keep_signatures()

EXPORTERS = ("ts14", "ts17", "dy18", "dy23", "dy18raw", "dy23raw")
"""TorchScript and dynamo with their opsets; ``raw`` is dynamo without the exporter's own optimizer."""


@dataclass(frozen=True)
class Case:
    """One exported graph: a model family, an exporter, and what was asked of it.

    ``legacy`` spells attention the way old diffusers and transformers did (baddbmm, softmax, bmm on merged batch
    and heads); ``odd`` traces a latent whose size the UNet's downsampling does not divide.
    """

    family: str
    exporter: str
    dynamic: bool = True
    legacy: bool = False
    odd: bool = False

    def __str__(self) -> str:
        parts = [self.family, self.exporter, "dynamic" if self.dynamic else "static"]
        return "-".join(parts + [flag for flag in ("legacy", "odd") if getattr(self, flag)])


DYNAMO = [
    *(Case(family, "dy18", dynamic=False) for family in ("vae_decoder", "clip", "openclip", "text2")),
    *(Case(family, "dy23") for family in ("vae_decoder", "vae_encoder", "clip", "openclip", "text2")),
    *(Case(family, "dy18") for family in ("sd1", "clip")),
    *(Case(family, "dy23", dynamic=False) for family in ("sd1", "clip")),
    *(Case("clip", exporter, dynamic=False) for exporter in ("dy24", "dy25")),
]
"""All that CI traces by torch.export, which takes a minute for a UNet, here with and without ``raw``.

The exports of sdort itself, which are by torch.export too, have the UNets of the other families.
"""


def is_traced(case: Case) -> bool:
    """Whether tests may ask for a case: any that TorchScript writes; of dynamo's those of DYNAMO, if not all."""
    return ALL or case.exporter.startswith("ts") or replace(case, exporter=case.exporter.removesuffix("raw")) in DYNAMO


def export_case(case: Case, cache_dir: Path) -> Path:
    """The exported ``model.onnx`` of a case, weights inside, traced once and shared by all test processes."""
    assert is_traced(case), f"take one of support.exports.DYNAMO instead of {case}"
    folder = cache_dir / cache_key()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{case}.onnx"
    with open(folder / f"{str(case).replace('raw', '')}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with quiet(), torch.no_grad():
                (torchscript if case.exporter.startswith("ts") else dynamo)(case, folder)
    return path


def cache_key() -> str:
    """Changes whenever a trace could: these files' text and the exporting packages' versions."""
    sources = Path(__file__).read_bytes() + Path(models.__file__).read_bytes()
    versions = " ".join(version(name) for name in ("torch", "diffusers", "transformers", "onnxscript", "onnx"))
    return hashlib.sha256(sources + versions.encode()).hexdigest()[:16]


def torchscript(case: Case, folder: Path) -> None:
    """Write ``CASE.onnx`` by torch's TorchScript exporter."""
    built = build(case.family, legacy=case.legacy, odd=case.odd)
    partial = folder / f"{case}.partial"
    torch.onnx.export(
        built.module,
        tuple(built.inputs.values()),
        str(partial),
        input_names=list(built.inputs),
        output_names=built.outputs,
        opset_version=int(case.exporter[2:]),
        dynamo=False,
        dynamic_axes={name: dims for name, dims in built.dynamic.items() if dims} if case.dynamic else None,
    )
    partial.rename(folder / f"{case}.onnx")


def dynamo(case: Case, folder: Path) -> None:
    """Write ``CASE.onnx`` by torch's dynamo exporter, and its raw twin, which costs nothing more."""
    built, program = traced(case.family, case.dynamic, case.legacy, case.odd)
    opset = case.exporter[2:4]
    onnx_program = torch.onnx.export(
        program,
        (),
        None,
        input_names=list(built.inputs),
        output_names=built.outputs,
        opset_version=int(opset),
        dynamo=True,
        optimize=False,
        verbose=False,
    )
    for exporter in (f"dy{opset}raw", f"dy{opset}"):
        name = str(replace(case, exporter=exporter))
        onnx_program.save(str(folder / f"{name}.partial"), external_data=False)
        (folder / f"{name}.partial").rename(folder / f"{name}.onnx")
        if exporter.endswith("raw"):
            onnx_program.optimize()


@lru_cache(maxsize=2)
def traced(family: str, dynamic: bool, legacy: bool, odd: bool) -> tuple[Built, Any]:
    """The torch.export program of a family; both opsets are converted from it."""
    built = build(family, legacy=legacy, odd=odd)
    shapes = tuple(dict.fromkeys(dims, torch.export.Dim.DYNAMIC) for dims in built.dynamic.values())
    tensors = tuple(built.inputs.values())
    return built, torch.export.export(built.module, tensors, dynamic_shapes=shapes if dynamic else None)


@contextmanager
def quiet() -> Iterator[None]:
    """Drop what the exporters say about their own deprecations and about packages that are not installed."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
