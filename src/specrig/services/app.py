"""What the services share: keys, errors, the pages for health and metrics, and the process that listens."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from specrig import __version__
from specrig.services.client import KEY_ENV, ServiceError

MAX_BODY = 256 << 20
"""Largest request in bytes: a batch of drafts with the probabilities of a large vocabulary stays below."""
BODY_S = 60.0
"""Most seconds in which a request's body may arrive."""
GONE = 499
"""The status, as nginx counts it, of a request whose client left; nobody reads it."""
Sample = tuple[str, str, float]
"""(name, labels such as `position="0"` or "", value). A name that ends with `_total` is a counter, another a gauge."""


class ServingError(ServiceError):
    """A service that cannot be started with these options; the message names what and the fix."""


class RefusedError(Exception):
    """A request that is refused. fix: what the client can do; retry_s: when it may come again."""

    def __init__(
        self, status: int, what: str, fix: str, *, where: str | None = None, retry_s: int | None = None
    ) -> None:
        super().__init__(what)
        self.status, self.what, self.fix, self.where, self.retry_s = status, what, fix, where, retry_s

    def body(self) -> dict[str, Any]:
        """The error in the form of OpenAI's API."""
        other = "invalid_request_error" if self.status < 500 else "server_error"
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(self.status, other)
        prefix = f"{self.where}: " if self.where else ""
        message = f"{prefix}{self.what} → {self.fix}"
        return {"error": {"message": message, "type": kind, "param": self.where, "code": self.status}}

    def response(self) -> Response:
        """The same as a response."""
        headers = {} if self.retry_s is None else {"Retry-After": str(self.retry_s)}
        if self.status in (408, 413):  # the rest of the body is not read
            headers["Connection"] = "close"
        return JSONResponse(self.body(), self.status, headers)


def make_app(
    name: str,
    health: Callable[[], dict[str, Any]],
    samples: Callable[[], Iterable[Sample]],
    background: Callable[[], contextlib.AbstractAsyncContextManager[None]],
    key: str | None,
) -> FastAPI:
    """An application with `/health`, `/metrics` and `/version`, to which a service adds its own paths.

    background: what runs while the application does. key: what every request but `/health` must carry as a bearer
    token; None: nothing.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with background():
            yield

    async def guard(request: Request) -> None:
        if key is None or request.url.path == "/health":
            return
        sent = request.headers.get("authorization", "")
        if not hmac.compare_digest(sent.encode(), f"Bearer {key}".encode()):
            raise RefusedError(401, "no valid key", f"send the header Authorization: Bearer <the service's {KEY_ENV}>")

    app = FastAPI(
        title=f"specrig {name}",
        version=__version__,
        lifespan=lifespan,
        dependencies=[Depends(guard)],
        docs_url=None,  # the pages of its own load scripts from elsewhere
        redoc_url=None,
        openapi_url=None,
    )

    @app.exception_handler(RefusedError)
    async def refused(_: Request, error: RefusedError) -> Response:
        return error.response()

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, _: ClientDisconnect) -> Response:
        client = request.client.host if request.client else "a client"
        print(f"{client}: left before its request to {request.url.path} was whole", file=sys.stderr)
        return Response(status_code=GONE)

    @app.exception_handler(HTTPException)
    async def no_such(request: Request, error: HTTPException) -> Response:
        what = f"{request.method} {request.url.path}: {error.detail}"
        return RefusedError(
            error.status_code, what, f"this is specrig's {name} service; see its paths in docs/services.md"
        ).response()

    @app.get("/health")
    async def health_page() -> dict[str, Any]:
        return {"status": "ok", "service": name, "version": __version__, **health()}

    @app.get("/version")
    async def version_page() -> dict[str, Any]:
        return {"version": __version__}

    @app.get("/metrics")
    async def metrics_page() -> Response:
        return PlainTextResponse(prometheus_text(samples()), media_type="text/plain; version=0.0.4")

    return app


def prometheus_text(samples: Iterable[Sample]) -> str:
    """Prometheus' text format; samples of one name stand together."""
    lines, typed = [], set()
    for name, labels, value in samples:
        if name not in typed:
            lines.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
            typed.add(name)
        lines.append(f"{name}{f'{{{labels}}}' if labels else ''} {value:.15g}")
    return "\n".join(lines) + "\n"


async def body_of(request: Request, limit: int = MAX_BODY) -> bytes:
    """A request's body. Raises RefusedError for one that is too long or takes too long, before it is read to its end."""
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                found += chunk
                if len(found) > limit:
                    raise RefusedError(413, f"the request is longer than {limit >> 20} MiB", "send less at once")
    except TimeoutError as error:
        raise RefusedError(408, f"the body did not arrive in {BODY_S:g} s", "send it faster, or in parts") from error
    return bytes(found)


async def json_of(request: Request) -> Any:
    """A request's body as JSON. Raises RefusedError."""
    text = await body_of(request, 16 << 20)
    try:
        return from_json(text)  # Python's own would take halves of characters, which no answer could repeat
    except ValueError as error:
        raise RefusedError(422, f"not JSON ({str(error)[:200]})", "send a JSON object", where="body") from error


def key_for(host: str) -> str | None:
    """The key that requests must carry, from the environment. Raises ServingError where a service would listen widely
    without one.
    """
    key = os.environ.get(KEY_ENV) or None
    try:
        wide = not ipaddress.ip_address(host).is_loopback
    except ValueError:
        wide = host != "localhost"
    if wide and key is None:
        raise ServingError(
            f"--host {host}: whoever reaches this address could use the service: set a key in the environment variable "
            f"{KEY_ENV} (any long random text, the same for all services), or leave --host at 127.0.0.1"
        )
    return key


def serve(app: FastAPI, host: str, port: int) -> None:
    """Listen until the process gets a signal to end."""
    from specrig.services.http_server import server_of

    server = server_of(app, host, port)
    with contextlib.suppress(KeyboardInterrupt):  # how a service is ended
        server.run()
    if not server.started:
        raise ServingError(f"the service could not start at {host}:{port}; the lines above say why")
