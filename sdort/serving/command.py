"""The server: :func:`sdort.serve`, which ``sdort serve`` calls."""

from __future__ import annotations

import math
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import uvicorn

from sdort.batches.ray_cluster import check_workers
from sdort.console import say
from sdort.errors import UsageError
from sdort.first_use.find_pipeline import pipeline_folder
from sdort.generation.requests.typed_options import annotations_of, runtime_options
from sdort.options.declared_options import declared, lone_option, made_of, ranges_of
from sdort.options.option_types import check_types, typed
from sdort.pipelines.folder import open_folder
from sdort.providers import AUTO, PROVIDERS
from sdort.providers.runtime_options import LoadOptions, RuntimeOptions
from sdort.runtime.probe import choose_provider
from sdort.serving.connection import Connection
from sdort.serving.engine import Engine, OwnEngine
from sdort.serving.keys import Keys, check_host
from sdort.serving.logs import structured
from sdort.serving.metrics import ServeReport
from sdort.serving.ray_engine import ray_engines
from sdort.serving.serve_options import ServeKeywords, ServeOptions
from sdort.serving.served_model import ServedModel, named_model
from sdort.serving.service import Service
from sdort.serving.web import application

if TYPE_CHECKING:
    from typing_extensions import Unpack

_CONNECTIONS = 512
"""Connections beside two for each place in the queue."""


@typed
def serve(pipelines: str | Path | Sequence[str | Path], **options: Unpack[ServeKeywords]) -> ServeReport:
    """Serve images over HTTP until a signal ends it: SIGTERM or SIGINT.

    Requests of the same settings are drawn together, each with its own seeds. OpenAI's and A1111's clients can speak
    to it, and a page at ``/`` (docs/guide/serve.md).

    Args:
        pipelines: as for :func:`sdort.load`, also as ``NAME=PIPELINE``; the first one draws what names none.
        options: of the server and of :func:`sdort.load`.

    Returns:
        Counts of all requests.

    Raises:
        UsageError: two pipelines have one name, or the address cannot be had.
        SdortError: as :func:`sdort.load`.

    Example:
        >>> sdort.serve("fast", port=7860)  # doctest: +SKIP
    """
    with listening(pipelines, options) as (server, sockets):
        service = server.service
        with structured(service.options.log_prompts, service.worker.is_warm.is_set):
            server.run(sockets)
        return service.metrics.report


@contextmanager
def listening(
    pipelines: str | Path | Sequence[str | Path], options: ServeKeywords
) -> Iterator[tuple[Server, list[socket.socket]]]:
    """A server that has its address, and the sockets that it listens at.

    Raises:
        SdortError: as :func:`serve`; also why the server ended by itself.
    """
    check_types(options, annotations_of(ServeKeywords), ranges_of(ServeOptions, RuntimeOptions))
    own = made_of(ServeOptions, options)
    check_host(own.host, own.api_keys, own.no_keys)
    if lone := lone_option(options, ServeOptions):
        raise UsageError(lone)
    loading = {name: value for name, value in options.items() if name in declared(RuntimeOptions)}
    # Its sizes are warmed up before it is ready, and with --any-size others when they are first asked for. Models that
    # are opened for adapters do not load again for the first one.
    more = {"compile": True} | ({"adapters": True} if own.adapter_folder else {})
    runtime = runtime_options(cast("LoadOptions", loading | more))
    if own.ray:
        check_workers(runtime)
    models = _models([pipelines] if isinstance(pipelines, str | Path) else pipelines, own, runtime)
    # Workers may be on other machines than this one.
    provider = choose_provider(runtime)[0] if not own.ray or runtime.provider == AUTO else PROVIDERS[runtime.provider]
    # A provider that compiles programs has one for each number of images.
    batches = sorted({1, own.images_at_once} if provider.programs else range(1, own.images_at_once + 1))
    keys = Keys(own.api_keys) if own.api_keys else None
    with _listener(own) as listener, _engines(own, models, runtime, batches) as engines:
        service = Service(models, own, runtime, batches, engines)
        host, port = listener.getsockname()[:2]
        say(f"listening at http://{f'[{host}]' if ':' in host else host}:{port}")
        yield Server(service, keys), [listener]
    if service.worker.failure:
        raise service.worker.failure


@contextmanager
def _engines(
    own: ServeOptions, models: Sequence[ServedModel], runtime: RuntimeOptions, batches: Sequence[int]
) -> Iterator[Sequence[Engine]]:
    if own.ray is None:
        yield [OwnEngine(models, runtime, batches)]
        return
    with ray_engines(own.ray, own.workers, models, runtime, batches) as engines:
        yield engines


def _models(places: Sequence[str | Path], options: ServeOptions, runtime: RuntimeOptions) -> list[ServedModel]:
    if not places:
        raise UsageError("there is no pipeline to serve", hint="Name one: sdort serve fast")
    found: dict[str, ServedModel] = {}
    for given in places:
        name, place = named_model(str(given))
        if name in found:
            raise UsageError(f"two pipelines are called {name}", hint=f"Give one another name: OTHER={place}")
        folder = open_folder(pipeline_folder(place, runtime))
        found[name] = ServedModel(name, folder, options.sizes, options.any_size, options.adapter_folder)
    return list(found.values())


def _listener(options: ServeOptions) -> socket.socket:
    try:
        family = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((options.host, options.port), family=family, backlog=_CONNECTIONS)
        # asyncio does not know that a socket which it did not make is TCP: answers would wait 40 ms for an
        # acknowledgement. Connections have the options of what they come by.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise UsageError(
            f"cannot listen at {options.host} port {options.port}: {error.strerror or error}",
            hint="Choose another one with --port; 0 takes any that is free.",
        ) from error


class Server(uvicorn.Server):
    """Uvicorn's server, which ends the service with it: at a signal what waits is still drawn, within a bound."""

    def __init__(self, service: Service, keys: Keys | None) -> None:
        self.service = service
        drain = service.options.drain
        super().__init__(
            uvicorn.Config(
                application(service, keys),
                log_config=None,
                access_log=False,
                lifespan="on",
                server_header=False,
                date_header=False,
                http=Connection,
                limit_concurrency=2 * service.options.queue + _CONNECTIONS,
                backlog=_CONNECTIONS,
                timeout_graceful_shutdown=math.ceil(drain),
            )
        )
        service.on_end = self.stop

    def stop(self) -> None:
        """End soon."""
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End at a signal. Uvicorn raises it once more behind the end, which would then be no good one."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take nothing new, and end when what there is has been drawn, or its time is over."""
        deadline = time.monotonic() + self.service.options.drain
        self.service.waiting.close()
        await super().shutdown(sockets)
        await self.service.stop(deadline)
