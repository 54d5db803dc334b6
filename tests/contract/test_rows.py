"""Draft, target and coordinator without processes between them: rows that join and leave decode as they would alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import Lab
from sampled import FALSE_ALARM, PROMPT, TEMPERATURE, judged
from sampled import LENGTH as CONTINUED

from specrig.decoding.loop import generate
from specrig.http_client import ServerError
from specrig.services import protocol
from specrig.services.coordinator import BatchedClient, Coordinator, DecodeRequest, DraftClient
from specrig.services.protocol import ProtocolError, RowOutput, RowRequest, RowsOutput, RowsRequest
from specrig.services.workers import DraftWorker, TargetWorker, Worker

PROMPTS = [
    [5, 9, 11, 5, 9],
    [3],
    [7, 7, 2, 30, 12, 7, 7],
    [*range(1, 30)],
    [39, 0],
    [8, 8, 8, 8],
    [21, 4, 21, 4, 21],
    [2, 35, 17],
]
K, LENGTH = 4, 24


class Local:
    """A service without a network: messages are packed and unpacked, and run at once."""

    def __init__(self, work: Worker) -> None:
        self.work, self.url, self.rows, self.down = work, "here", list[int](), False

    def run(
        self, rows: Sequence[RowRequest], *, half: bool = False, ended: Sequence[int] = ()
    ) -> tuple[list[RowOutput], protocol.Passes]:
        if self.down:
            raise ServerError("here: it is down")
        message = protocol.unpack_request(protocol.pack(RowsRequest(list(rows), half, list(ended))))
        self.work.check(message.rows)
        self.work.sessions.end(message.ended)
        self.rows.append(len(message.rows))
        output = protocol.unpack_output(protocol.pack(RowsOutput(self.work.step(message.rows, message.half))))
        return output.rows, output.passes


def services(lab: Lab, *, target_rows: int = 16, draft_rows: int = 32, draft_context: int = 200) -> tuple[Local, Local]:
    target, draft = (
        TargetWorker(lab.target, target_rows, 200),
        DraftWorker(lab.model("draft"), draft_rows, draft_context),
    )
    return Local(target), Local(draft)


def decode(
    requests: Sequence[DecodeRequest],
    target: Local,
    draft: Local | None,
    *,
    running: int = 16,
    half: bool = False,
    stagger: bool = False,
) -> tuple[list[list[int]], Coordinator]:
    """The outputs of requests that run side by side. stagger: they arrive one by one, so that rows join and leave at
    all times.
    """

    async def all_of_them() -> tuple[list[list[int]], Coordinator]:
        judged = BatchedClient(target, 8, 9_999)  # type: ignore[arg-type]
        drafts = None
        if draft is not None:
            room = draft.work.sessions.context
            drafts = DraftClient(draft, 32, 9_999, check=lambda: room, half=half)  # type: ignore[arg-type]
        coordinator = Coordinator(judged, drafts, eos=(), context=200, running=running, queue=9_999)
        workers = [asyncio.create_task(link.batcher.work()) for link in (judged, drafts) if link]

        async def one(number: int, request: DecodeRequest) -> list[int]:
            if stagger:
                await asyncio.sleep(0.004 * number)
            return [token async for tokens in coordinator.decode(request) for token in tokens]

        found = await asyncio.gather(*[one(number, request) for number, request in enumerate(requests)])
        for worker in workers:
            worker.cancel()
        return found, coordinator

    return asyncio.run(all_of_them())


@pytest.fixture(scope="module")
def native() -> Lab:
    return Lab(vocab_size=40)


def expected(native: Lab, requests: DecodeRequest) -> Any:
    (found,) = generate(
        native.target,
        native.drafter("draft_model"),
        [list(requests.prompt)],
        k=requests.k,
        max_new_tokens=requests.max_tokens,
        temperature=requests.temperature,
        seeds=[requests.seed],
    )
    return found


@pytest.mark.parametrize("rows", [(16, 32), (8, 32), (9, 33)])
def test_rows_that_join_and_leave_decode_as_alone_in_the_native_loop(native: Lab, rows: tuple[int, int]) -> None:
    """Greedy and sampled rows side by side, each with its own seed: the very tokens, and rounds, of `draft_model`.

    Where 16 requests share 8 or 9 rows of the target's cache, texts are pushed out and sent anew.
    """
    target, draft = services(Lab(vocab_size=40), target_rows=rows[0], draft_rows=rows[1])
    requests = [
        DecodeRequest(prompt, LENGTH - number % 5, temperature, seed=number, k=K)
        for number, (prompt, temperature) in enumerate(
            (prompt, temperature) for temperature in (0.0, 0.7, 1.0) for prompt in PROMPTS
        )
    ]
    found, coordinator = decode(requests, target, draft, stagger=rows[0] == 16)
    truth = [expected(native, request) for request in requests]
    assert found == [generation.tokens for generation in truth]
    rounds = [entry for generation in truth for entry in generation.rounds]
    counts = coordinator.counts
    assert (counts["drafts"], counts["drafted"]) == (len(rounds), sum(entry.drafted for entry in rounds))
    assert counts["accepted"] == sum(entry.accepted for entry in rounds) == sum(coordinator.accepted_at.values())
    assert max(target.rows) == 8 and len(set(target.rows)) > 2, "batches of different sizes"
    assert len(target.work.sessions) <= rows[0] and coordinator.running == coordinator.waiting == 0


def test_the_sampled_distribution_is_the_targets_in_half_precision() -> None:
    """In full precision the tokens are those of the native loop. A bias of .12 at all tokens would be seen here."""
    lab = Lab(vocab_size=8, noise=0.5)
    target, draft = services(lab, target_rows=64, draft_rows=64)
    requests = [DecodeRequest(PROMPT, CONTINUED, TEMPERATURE, seed, 3) for seed in range(512)]
    found, coordinator = decode(requests, target, draft, running=64, half=True)
    test = judged(lab.target, found)
    assert test.p_value > FALSE_ALARM, test.worst
    assert 0 < coordinator.counts["accepted"] < coordinator.counts["drafted"], "some are rejected, some accepted"


def test_a_text_too_long_for_the_draft_goes_on_without_it_and_stops_no_other(native: Lab) -> None:
    target, draft = services(Lab(vocab_size=40), draft_context=20)
    requests = [DecodeRequest(prompt, LENGTH, 0.0, 0, K) for prompt in PROMPTS]
    found, coordinator = decode(requests, target, draft)
    assert found == [expected(native, request).tokens for request in requests]
    assert coordinator.draft is not None and coordinator.draft.failures == 0
    assert coordinator.counts["undrafted"] > 0 and coordinator.counts["drafts"] > 0


def test_without_a_draft_the_output_is_plain_decoding_and_the_draft_is_asked_again_later(native: Lab) -> None:
    target, draft = services(Lab(vocab_size=40))
    draft.down = True
    requests = [DecodeRequest(prompt, LENGTH, 0.0, 0, K) for prompt in PROMPTS]
    found, coordinator = decode(requests, target, draft)
    truth = [expected(native, request).tokens for request in requests]
    assert found == truth
    assert coordinator.counts["drafts"] == 0 and coordinator.counts["undrafted"] > 0
    assert coordinator.draft is not None and 1 <= coordinator.draft.failures <= 8, "it is not asked in every round"
    draft.down = False
    again, coordinator = decode(requests, target, draft)
    assert again == truth and coordinator.counts["undrafted"] == 0 < coordinator.counts["accepted"]


def test_a_message_comes_back_as_it_was_sent() -> None:
    q = np.random.default_rng(0).random((2, 5), dtype=np.float32)
    rows = [
        RowRequest(1 << 62, 0, [4, 2], depth=3, temperature=0.7, uniforms=[0.5, 0.25, 0.125]),
        RowRequest(7, 12, [1], draft=[3, 4], temperature=1.0, uniforms=[0.5, 0.5, 0.0], q=q),
        RowRequest(9, 3, [2], uniforms=[]),
    ]
    request = protocol.unpack_request(protocol.pack(RowsRequest(rows, half=True, ended=[3, 1 << 61])))
    assert request.half is True and request.ended == [3, 1 << 61]
    assert request.rows[1].q is not None and np.array_equal(request.rows[1].q, q)
    request.rows[1].q = rows[1].q = None
    assert request.rows == rows
    outputs = [RowOutput(True, [1, 2], q.astype(np.float16)), RowOutput(False)]
    back = protocol.unpack_output(protocol.pack(RowsOutput(outputs, {1: (3, 0.25), 5: (1, 0.5)})))
    assert back.passes == {1: (3, 0.25), 5: (1, 0.5)} and back.rows[1] == outputs[1]
    assert back.rows[0].q is not None and back.rows[0].q.dtype == np.float16
    assert np.array_equal(back.rows[0].q, outputs[0].q)


MESSAGE = protocol.pack(
    RowsRequest(
        [RowRequest(5, 0, [1, 2, 3], draft=[4], temperature=0.5, uniforms=[0.1, 0.2], q=np.full((1, 6), 1 / 6, "f4"))]
    )
)


@settings(max_examples=300)
@given(at=st.integers(0, len(MESSAGE) - 1), put=st.binary(max_size=6), cut=st.integers(0, 8))
def test_bytes_that_are_no_message_are_refused(at: int, put: bytes, cut: int) -> None:
    """A changed message is read as one or refused in a sentence; nothing else is raised."""
    changed = MESSAGE[:at] + put + MESSAGE[at + cut :]
    try:
        request = protocol.unpack_request(changed)
    except ProtocolError as error:
        assert 0 < len(str(error)) < 300
    else:
        assert all(isinstance(row, RowRequest) and row.tokens for row in request.rows)


def test_what_a_service_cannot_run_is_named(native: Lab) -> None:
    target, draft = services(Lab(vocab_size=40))
    for local, row, message in [
        (target, RowRequest(1, 0, [40]), "row 0 holds token 40, the model has 40"),
        (target, RowRequest(1, 0, [1] * 201), "row 0 has 201 tokens, there is room for 200"),
        (
            target,
            RowRequest(1, 0, [1], draft=[2], temperature=1.0, uniforms=[0.5]),
            "row 0 has 1 uniforms, it needs 2",
        ),
        (
            target,
            RowRequest(1, 0, [1], draft=[2], q=np.ones((1, 39), "f4")),
            "probabilities of 39 tokens, the model has 40",
        ),
        (draft, RowRequest(1, 0, [1], depth=3, temperature=1.0), "row 0 has 0 uniforms, it needs 3"),
        (draft, RowRequest(1, 0, [1], depth=17), "rows.0.depth: Input should be less than or equal to 16"),
        (draft, RowRequest(1, 0, []), "rows.0.tokens: List should have at least 1 item"),
        (
            draft,
            RowRequest(1, 0, [1], temperature=float("nan")),
            "rows.0.temperature: a temperature is a finite number",
        ),
    ]:
        with pytest.raises(ProtocolError, match=message):
            local.run([row])
    answers, _ = target.run([RowRequest(1, 5, [1]), RowRequest(2, 0, [1]), RowRequest(2, 0, [1])])
    assert [answer.known for answer in answers] == [False, True, False], (
        "an unknown text, and one that is asked about twice at once"
    )


def test_rows_that_do_not_lie_side_by_side_share_no_entries() -> None:
    """A pass over rows 2, 0 of a cache reads and writes what one over each of them alone does."""
    lab = Lab(vocab_size=40)
    model, texts = lab.target, [[5, 9, 11], [1, 2, 3, 4, 5], [7, 7]]
    model.start(3, 64)
    whole = model.cache
    alone = []
    for row, text in enumerate(texts):
        model.cache = whole.select_rows([row], [0])
        alone.append(model.forward(torch.tensor([text]))[0][0, -1])
        model.keep([range(len(text))])
    for rows in ([2, 0], [0, 2, 1], [1, 2]):
        model.cache = whole.select_rows(rows, [len(texts[row]) - 1 for row in rows])
        logits, _ = model.forward(torch.tensor([[texts[row][-1]] for row in rows]))
        for place, row in enumerate(rows):
            torch.testing.assert_close(logits[place, 0], alone[row], rtol=1e-4, atol=1e-4)
