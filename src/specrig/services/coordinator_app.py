"""The coordinator's HTTP face: OpenAI's completions and chat API, whole or as a stream of events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from specrig.http_client import ServerError
from specrig.models import hub
from specrig.models.chat_template import ChatTemplateError, of_tokenizer, prompt_ids
from specrig.services.app import RefusedError, Sample, ServingError, body_of, error_body, key_for, make_app, serve
from specrig.services.batching import FullError
from specrig.services.client import RowsClient
from specrig.services.coordinator import BatchedClient, Coordinator, DecodeRequest, DraftClient
from specrig.services.openai import (
    ChatCompletionRequest,
    CompletionRequest,
    Detokenizer,
    GenerationRequest,
    ResponseBuilder,
)
from specrig.services.protocol import MAX_DRAFT_TOKENS

START_S, DRAFT_START_S = 600.0, 20.0
"""How long the coordinator waits for target and draft service to load; without a target it cannot start, without a
draft it can.
"""
DRAFT_BATCH = 32
MAX_BODY = 16 << 20
MOST_CHARACTERS = 64
"""Characters of a prompt for each token of the context, where the vocabulary has no longer token."""


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """See `specrig serve coordinator --help`."""

    target: str
    draft: str | None
    tokenizer: str | None
    k: int
    queue: int
    draft_timeout_s: float
    target_timeout_s: float
    half: bool


def serve_coordinator(settings: CoordinatorSettings, host: str, port: int) -> None:
    """Wait for the services, check that they fit each other, and listen. Raises ServingError or ModelError."""
    key = key_for(host)
    target = RowsClient(settings.target, timeout_s=settings.target_timeout_s)
    about = _expect(target, "target", START_S)
    draft = None
    if settings.draft is not None and settings.k:
        draft = RowsClient(settings.draft, timeout_s=settings.draft_timeout_s)
        try:
            _fitting(draft, about, DRAFT_START_S)
        except ServingError:
            raise
        except ServerError as error:
            print(f"{error}: until it answers, everything is decoded without drafts", file=sys.stderr)
    model = settings.tokenizer or about["model"]
    tokenizer = hub.tokenizer(model, None if settings.tokenizer else about["revision"])

    def made() -> Coordinator:
        drafts = None
        if draft is not None:
            check = partial(_fitting, draft, about, 0.0)
            drafts = DraftClient(draft, DRAFT_BATCH, 10_000, check=check, half=settings.half)
        verified = BatchedClient(target, about["batch"], 10_000)
        return Coordinator(
            verified,
            drafts,
            eos=about["eos"],
            context=about["context"],
            running=about["sessions"],
            queue=settings.queue,
        )

    serve(coordinator_app(made, tokenizer, about["model"], settings.k, key), host, port)


def coordinator_app(made: Callable[[], Coordinator], tokenizer: Any, model: str, k: int, key: str | None) -> FastAPI:
    """The coordinator's application. made: makes the coordinator, in the application's own event loop."""
    state: dict[str, Coordinator] = {}
    template = of_tokenizer(tokenizer, model)

    @contextlib.asynccontextmanager
    async def background() -> AsyncIterator[None]:
        coordinator = state["coordinator"] = made()
        clients = [coordinator.target, *([coordinator.draft] if coordinator.draft else [])]
        tasks = [asyncio.create_task(client.batcher.work()) for client in clients]
        yield
        for task in tasks:
            task.cancel()

    def health() -> dict[str, Any]:
        draft = state["coordinator"].draft
        state_of_draft = "none" if draft is None else "available" if draft.available else "unavailable"
        return {"model": model, "k": k, "draft": state_of_draft}

    def samples() -> list[Sample]:
        return state["coordinator"].samples()

    longest = max(MOST_CHARACTERS, *map(len, tokenizer.get_vocab()))

    def check_length(characters: int) -> None:
        """Refuse a text that is beyond any context before it is taken apart, which would hold up all others."""
        if characters > (most := state["coordinator"].context * longest):
            raise RefusedError(
                422, f"a prompt of {characters} characters, the most are {most}", "shorten it", where="prompt"
            )

    app = make_app("coordinator", health, samples, background, key)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {
            "object": "list",
            "data": [{"id": model, "object": "model", "created": int(time.time()), "owned_by": "specrig"}],
        }

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = CompletionRequest.model_validate_json(await body_of(request, MAX_BODY))
        check_length(len(body.prompt) if isinstance(body.prompt, str) else 0)
        prompt = prompt_ids(tokenizer, body.prompt) if isinstance(body.prompt, str) else body.prompt
        return await respond(body, prompt, body.max_tokens)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = ChatCompletionRequest.model_validate_json(await body_of(request, MAX_BODY))
        if not template.text:
            fix = "send it to /v1/completions, or serve an instruction-tuned model"
            raise RefusedError(422, f"the tokenizer of {model} has no chat template", fix, where="messages")
        check_length(sum(len(message.content) for message in body.messages))
        turns = [message.model_dump(exclude_none=True) for message in body.messages]
        try:
            text = template.render(turns, clock=datetime.now())
        except ChatTemplateError as error:
            raise RefusedError(422, error.reason, "correct roles and order", where="messages") from error
        return await respond(body, prompt_ids(tokenizer, text), body.max_completion_tokens or body.max_tokens)

    async def respond(body: GenerationRequest, prompt: list[int], max_tokens: int) -> Response:
        coordinator = state["coordinator"]
        if body.model not in (None, model):
            raise RefusedError(
                404, f"{body.model!r} is not served here", f"ask for {model!r}, or leave it out", where="model"
            )
        # Every draft stays within the model's positions, whatever its neighbours in the batch draft.
        most = coordinator.context - MAX_DRAFT_TOKENS
        if len(prompt) + max_tokens > most:
            what = (
                f"a prompt of {len(prompt)} tokens and {max_tokens} new ones need {len(prompt) + max_tokens}, there is "
                f"room for {most}"
            )
            raise RefusedError(422, what, "shorten the prompt or lower max_tokens", where="max_tokens")
        if not prompt or max(prompt) >= len(tokenizer):
            what = f"token {max(prompt)}, the model has {len(tokenizer)}" if prompt else "no token"
            raise RefusedError(422, what, "send text, or ids of the model's tokenizer", where="prompt")
        seed = secrets.randbits(31) if body.seed is None else body.seed
        if body.draft_tokens and coordinator.draft is None:
            fix = "start the coordinator with --draft, and without --k 0"
            raise RefusedError(
                422, f"{body.draft_tokens} draft tokens, but no service drafts", fix, where="draft_tokens"
            )
        drafted = k if body.draft_tokens is None else body.draft_tokens
        rounds = coordinator.decode(DecodeRequest(prompt, max_tokens, body.temperature, seed, drafted))
        response = ResponseBuilder(body, model, len(prompt))
        try:
            first = await anext(rounds)  # whatever refuses a request does so before the first token
        except FullError as error:
            raise RefusedError(429, str(error), "come again later", retry_s=1) from error
        except ServerError as error:
            raise _target_failed(error) from error
        if body.stream:
            return StreamingResponse(
                _events(coordinator, rounds, first, response, tokenizer, max_tokens), media_type="text/event-stream"
            )
        tokens = list(first)
        try:
            async for more in rounds:
                tokens += more
        except ServerError as error:
            raise _target_failed(error) from error
        text = Detokenizer(tokenizer).add(tokens, last=True)
        return JSONResponse(response.whole(text, tokens, _finish(coordinator, tokens)))

    return app


def _target_failed(error: ServerError) -> RefusedError:
    return RefusedError(503, str(error), "see that the target service runs", retry_s=2)


def _finish(coordinator: Coordinator, tokens: list[int]) -> str:
    return "stop" if tokens[-1] in coordinator.eos else "length"


async def _events(
    coordinator: Coordinator,
    rounds: AsyncIterator[list[int]],
    first: list[int],
    response: ResponseBuilder,
    tokenizer: Any,
    most: int,
) -> AsyncIterator[str]:
    """The stream: an event a round, the usage if requested, and `[DONE]`."""
    detokenizer, count, tokens = Detokenizer(tokenizer), 0, first
    try:
        while True:
            count += len(tokens)
            finish = _finish(coordinator, tokens)
            over = finish == "stop" or count == most
            text = detokenizer.add(tokens, last=over)
            yield _line(response.event(text, tokens, finish if over else None, first=count == len(tokens)))
            if over:
                break
            tokens = await anext(rounds)
    except ServerError as error:
        yield _line(error_body(_target_failed(error)))
        return
    finally:
        await rounds.aclose()  # type: ignore[attr-defined]
    if response.request.stream_options and response.request.stream_options.include_usage:
        yield _line(response.usage_event(count))
    yield "data: [DONE]\n\n"


def _line(event: dict[str, Any]) -> str:
    return f"data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _expect(client: RowsClient, kind: str, within_s: float) -> dict[str, Any]:
    """What a service says of itself, once it has loaded.

    Raises ServerError where none answers in time, ServingError where another kind of service does, or one that wants
    another key.
    """
    deadline, announced = time.monotonic() + within_s, False
    while True:
        try:
            about: dict[str, Any] = client.http.get("/health").json()
            client.http.get("/version")  # unlike `/health` it needs the key, as requests do
            break
        except ServerError as error:
            if error.status is not None and error.status < 500:  # a wrong key or another program: no use to wait
                raise ServingError(f"--{kind}: {error}") from error
            if within_s and not announced:
                print(f"Waiting up to {within_s:g} s for the {kind} service at {client.url}", file=sys.stderr)
            announced = True
            if time.monotonic() >= deadline:
                raise ServerError(f"--{kind}: {error}; start it with `specrig serve {kind} MODEL`") from error
            time.sleep(0.25)
        except ValueError as error:
            raise ServingError(f"--{kind} {client.url}: what answers there is no service of specrig") from error
    if about.get("service") != kind:
        raise ServingError(
            f"--{kind} {client.url}: a {about.get('service', 'foreign')} service answers there, not a {kind} service"
        )
    return about


def _fitting(client: RowsClient, target: dict[str, Any], within_s: float) -> int:
    """The most tokens of a text that the draft service takes. Raises ServerError where none answers, ServingError where
    one answers that does not fit the target.
    """
    draft = _expect(client, "draft", within_s)
    _check_vocabulary(target, draft)
    if within_s and draft["sessions"] < target["sessions"]:
        print(
            f"The draft service holds {draft['sessions']} texts, the target service {target['sessions']}: with more at "
            f"once it reads texts again. Start it with --sessions {target['sessions']}",
            file=sys.stderr,
        )
    return int(draft["context"])


def _check_vocabulary(target: dict[str, Any], draft: dict[str, Any]) -> None:
    """Raise ServingError unless both services speak of the same tokens."""
    if None not in (target["vocabulary"], draft["vocabulary"]) and target["vocabulary"] != draft["vocabulary"]:
        raise ServingError(
            f"the draft service's model {draft['model']} does not share the vocabulary of the target's, "
            f"{target['model']}: serve a draft of the same family, or start the coordinator with --k 0"
        )
    if target["vocabulary_size"] != draft["vocabulary_size"]:
        sizes = target["vocabulary_size"], draft["vocabulary_size"]
        raise ServingError(
            f"the target service works with {sizes[0]} tokens, the draft service with {sizes[1]}: start the draft service "
            f"with --vocab-size {sizes[0]}"
        )
