"""The draft and the target service: rows come in messages over HTTP, and are run in batches over all messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from specrig.models import gate
from specrig.models.pair import PairFiles
from specrig.models.vocabularies import token_map
from specrig.models.weights import weights_of
from specrig.runtime.types import Passes, add_passes
from specrig.services import protocol
from specrig.services.app import RefusedError, Sample, ServingError, body_of, key_for, make_app, serve
from specrig.services.batching import Batcher
from specrig.services.protocol import RowOutput, RowRequest, RowsOutput
from specrig.services.workers import DraftWorker, TargetWorker, Worker

WORKERS: dict[str, type[Worker]] = {kind.name: kind for kind in (DraftWorker, TargetWorker)}


@dataclass(frozen=True, slots=True)
class Serving:
    """How a model is served; see `specrig serve draft --help`."""

    model: str
    revision: str | None
    dtype: str
    device: str
    batch: int
    sessions: int | None
    context: int
    queue: int
    threads: int | None
    vocabulary: int | None
    """Tokens of the target that a draft is served for; None: those of its own tokenizer."""
    random_weights: bool
    common_with: str | None = None
    """A target of another vocabulary: the draft speaks in the numbers of their map, of which the target's tokens are the
    first (`models.vocabularies`)."""
    common_revision: str | None = None


def serve_model(kind: str, serving: Serving, host: str, port: int) -> None:
    """Load the model and serve it until the process gets a signal to end. Raises ServingError or ModelError before it
    listens.

    One thread loads the model and runs it. OpenMP keeps a team of threads for every thread that has ever computed, and
    libgomp lets none of them wait ready where there are more than cores: a pass takes twice as long as soon as two
    threads have computed.
    """
    key = key_for(host)
    thread = ThreadPoolExecutor(1, thread_name_prefix=kind)
    worker, about = thread.submit(_loaded, kind, serving).result()
    serve(worker_app(worker, batch=serving.batch, queue=serving.queue, key=key, about=about, thread=thread), host, port)


def _loaded(kind: str, serving: Serving) -> tuple[Worker, dict[str, Any]]:
    """The worker, and what the service reports about its model."""
    import torch

    if serving.device == "cuda" and not torch.cuda.is_available():
        raise ServingError(f"--device cuda: PyTorch {torch.__version__} finds no GPU on this machine; use --device cpu")
    if serving.threads is not None:
        torch.set_num_threads(serving.threads)
    pair = PairFiles(
        f"the {kind} service",
        serving.model,
        target_revision=serving.revision,
        dtype=serving.dtype,
        random_weights=serving.random_weights,
    )
    weights = weights_of(pair, drafts=kind == DraftWorker.name)
    weights.dtype()  # an unknown precision is refused before weights are read
    model = weights.cached("target", serving.device)
    if serving.vocabulary is not None:
        model.vocab_size = serving.vocabulary
    if serving.common_with is not None:
        tokens = token_map(serving.common_with, serving.model, serving.common_revision, serving.revision)
        model.renumber(torch.tensor(tokens.order, device=model.device), len(tokens.common))
    own = not (serving.random_weights or gate.targets_tokenizer(serving.model))
    known = vocabulary_digest(gate.vocabulary(serving.model, serving.revision)) if own else None
    about = {
        "model": serving.model,
        "revision": serving.revision,
        "dtype": serving.dtype,
        "vocabulary": known,
        "eos": sorted(weights.eos),
    }
    context = min(serving.context, model.max_positions)
    if model.tables is not None and kind == TargetWorker.name:
        context = min(context, model.tables.at)  # texts of many lengths share its cache: all stay with the first table
    return WORKERS[kind](model, serving.sessions or serving.batch, context), about


def vocabulary_digest(tokens: dict[str, int]) -> str:
    """A digest of which token has which id: equal for models of one vocabulary."""
    named = "\n".join(f"{number} {token!r}" for token, number in sorted(tokens.items(), key=lambda item: item[1]))
    return sha256(named.encode()).hexdigest()[:16]


def worker_app(
    worker: Worker,
    *,
    batch: int,
    queue: int,
    key: str | None,
    about: dict[str, Any] | None = None,
    thread: ThreadPoolExecutor | None = None,
) -> FastAPI:
    """The application of a draft or target service.

    batch: most rows in a pass. queue: most rows that wait; with more the service answers 503 and Retry-After. about:
    more for `/health`. thread: runs the model; it should be the one that loaded it (see `serve_model`).
    """
    pool = thread or ThreadPoolExecutor(1)
    passes: Passes = {}  # those that no answer has held yet

    def run(items: list[tuple[RowRequest, bool]]) -> tuple[list[RowOutput], Passes]:
        outputs: dict[int, RowOutput] = {}
        for half in {flag for _, flag in items}:
            chosen = [at for at, (_, flag) in enumerate(items) if flag == half]
            outputs |= zip(chosen, worker.step([items[at][0] for at in chosen], half), strict=True)
        made = worker.model.pass_totals()
        worker.model.watch.clear()
        return [outputs[at] for at in range(len(items))], made

    async def run_aside(items: list[tuple[RowRequest, bool]]) -> list[RowOutput]:
        outputs, made = await asyncio.get_running_loop().run_in_executor(pool, run, items)
        add_passes(passes, made)
        return outputs

    size = min(batch, worker.sessions.rows)
    most = queue + size  # a batch of them runs at once
    batcher = Batcher(run_aside, size, most)

    @contextlib.asynccontextmanager
    async def background() -> AsyncIterator[None]:
        task = asyncio.create_task(batcher.work())
        yield
        task.cancel()
        pool.shutdown(wait=False)

    def health() -> dict[str, Any]:
        sizes = {"batch": batcher.size, "sessions": worker.sessions.rows, "context": worker.sessions.context}
        open_sessions = {"vocabulary_size": worker.model.vocab_size, "open_sessions": len(worker.sessions)}
        return {**(about or {}), **sizes, **open_sessions}

    def samples() -> Iterable[Sample]:
        yield f"specrig:{worker.name}_rows_total", "", batcher.items
        yield f"specrig:{worker.name}_batches_total", "", batcher.batches
        yield f"specrig:{worker.name}_rows_waiting", "", batcher.waiting
        yield f"specrig:{worker.name}_sessions", "", len(worker.sessions)

    app = make_app(worker.name, health, samples, background, key)

    @app.post(protocol.PATH)
    async def rows(request: Request) -> Response:
        try:
            message = protocol.unpack_request(await body_of(request))
            worker.check(message.rows)
        except protocol.ProtocolError as error:
            fix = "send rows as specrig/services/protocol.py describes them"
            raise RefusedError(422, str(error), fix, where="body") from error
        if batcher.waiting + len(message.rows) > most:
            what = f"{batcher.waiting} rows wait already, {queue} may"
            raise RefusedError(503, what, "come again later, with fewer rows", retry_s=1)
        worker.ended += message.ended
        outputs = await asyncio.gather(*[batcher.submit((row, message.half)) for row in message.rows])
        packed = protocol.pack(RowsOutput(outputs, passes))
        passes.clear()
        return Response(packed, media_type=protocol.MEDIA_TYPE)

    return app
