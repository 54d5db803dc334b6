"""What the services share: keys, errors, the pages for health and metrics, and the process that listens."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from specrig import __version__
from specrig.http_client import ServerError
from specrig.services.client import KEY_ENV

MAX_BODY = 256 << 20
"""Largest request in bytes: a batch of drafts with the probabilities of a large vocabulary stays below."""
GONE = 499
"""The status, as nginx counts it, of a request whose client left; nobody reads it."""
KINDS = {401: "authentication_error", 429: "rate_limit_error"}
"""Status -> type of an error in OpenAI's API, where it is neither the request's fault nor the server's."""
Sample = tuple[str, str, float]
"""(name, labels such as `position="0"` or "", value). A name that ends with `_total` is a counter, another a gauge."""


class ServingError(ServerError):
    """A service that cannot be started with these options; the message names what and the fix."""


class RefusedError(HTTPException):
    """A request that is refused. fix: what the client can do; retry_s: when it may come again."""

    def __init__(
        self, status: int, what: str, fix: str, *, where: str | None = None, retry_s: int | None = None
    ) -> None:
        headers = {"Connection": "close"} if status == 413 else {}  # the rest of the body is not read
        headers |= {} if retry_s is None else {"Retry-After": str(retry_s)}
        super().__init__(status, f"{f'{where}: ' if where else ''}{what} → {fix}", headers)
        self.where = where


def error_body(error: HTTPException) -> dict[str, Any]:
    """An error in the form of OpenAI's API."""
    status = error.status_code
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    where = error.where if isinstance(error, RefusedError) else None
    return {"error": {"message": error.detail, "type": kind, "param": where, "code": status}}


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

    async def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, ValidationError):
            error = invalid(error)
        assert isinstance(error, HTTPException)
        if not isinstance(error, RefusedError):
            what = f"{request.method} {request.url.path}: {error.detail}"
            fix = f"this is specrig's {name} service; see its paths in docs/services.md"
            error = RefusedError(error.status_code, what, fix)
        return JSONResponse(error_body(error), error.status_code, error.headers)

    async def gone(_: Request, __: Exception) -> Response:
        return Response(status_code=GONE)

    app = FastAPI(
        title=f"specrig {name}",
        version=__version__,
        lifespan=lifespan,
        dependencies=[Depends(guard)],
        exception_handlers={HTTPException: refused, ValidationError: refused, ClientDisconnect: gone},
        docs_url=None,  # the pages of its own load scripts from elsewhere
        redoc_url=None,
        openapi_url=None,
    )

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


def invalid(error: ValidationError) -> RefusedError:
    """The refusal of a body that is no request of its kind: it names one wrong field and what it may be."""
    # A prompt may be of two kinds: what is wrong within the kind that was meant says more than that it is not the other.
    issue = max(error.errors(), key=lambda issue: (not issue["type"].endswith("_type"), len(issue["loc"])))
    where = ".".join(str(part) for part in issue["loc"] if not re.search(r"constrained|list\[|^str$", str(part)))
    if issue["type"] == "extra_forbidden":
        return RefusedError(422, "no such field here", "leave it out", where=where[:80])
    if issue["type"] == "missing":
        return RefusedError(422, "it is missing", "add it", where=where)
    given = issue["input"]
    value = repr(given[:80] if isinstance(given, str | bytes) else given)
    value = value if len(value) <= 80 else value[:77] + "..."
    allowed = re.sub(r"^\w+ should", "it should", issue["msg"].removeprefix("Value error, "))
    return RefusedError(422, f"you gave {value}", allowed, where=where or "body")


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
    """A request's body. Raises RefusedError for one that is too long, before it is read to its end."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise RefusedError(413, f"the request is longer than {limit >> 20} MiB", "send less at once")
    return bytes(body)


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


def server_of(app: FastAPI, host: str, port: int) -> uvicorn.Server:
    """The server of an application, to be run. It says at the start where it listens."""
    config = uvicorn.Config(
        app, host, port, access_log=False, limit_concurrency=1000, timeout_keep_alive=75, timeout_graceful_shutdown=5
    )
    return uvicorn.Server(config)


def serve(app: FastAPI, host: str, port: int) -> None:
    """Listen until the process gets a signal to end."""
    server = server_of(app, host, port)
    with contextlib.suppress(KeyboardInterrupt):  # how a service is ended
        server.run()
    if not server.started:
        raise ServingError(f"the service could not start at {host}:{port}; the lines above say why")
