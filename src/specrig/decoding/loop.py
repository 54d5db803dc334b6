"""The one decode loop. It owns the target's cache, the stop rules, the accounting and the clock. Methods differ only in
their drafter.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

import torch

from specrig.decoding.sampling import Sampler
from specrig.decoding.simulated import SimulatedAcceptance
from specrig.decoding.types import Context, Draft, Drafter, Generation, Round, TokenCallback, Verdict, empty_draft
from specrig.decoding.verify import verify
from specrig.runtime.device import clock, on_device, padded
from specrig.runtime.model import CachedModel
from specrig.runtime.types import DecodingError, Parents

SPARE_SLOTS = 256
"""Cache slots beyond prompt and output for a round's draft nodes (the largest trees hold about a hundred)."""


@torch.inference_mode()
def generate(
    target: CachedModel,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    *,
    k: int,
    max_new_tokens: int,
    temperature: float,
    eos: Collection[int] = (),
    seeds: Sequence[int] | None = None,
    simulated_acceptance: float | None = None,
    callback: TokenCallback | None = None,
) -> list[Generation]:
    """Continue a batch of prompts: token ids in, token ids out.

    A round: the drafter proposes, one target pass scores the last token and every draft node, verification accepts a
    path and adds one token, the cache keeps what was accepted. Without a draft (`autoregressive`) this is plain
    decoding, so the baseline runs through the same lines. A round emits between 1 and depth + 1 tokens a row.

    simulated_acceptance: the declared acceptance rate (`decoding.simulated`).
    callback: called with each row's tokens as soon as they are final, within the time that counts as decoding.

    Raises DecodingError for an empty prompt or one that leaves no room in the model's context.
    """
    B = len(prompts)
    _check(target, prompts, max_new_tokens)
    longest = max(map(len, prompts))
    seeds = list(seeds if seeds is not None else range(B))
    sampler = Sampler(temperature, seeds, target.device)
    simulated = None if simulated_acceptance is None else SimulatedAcceptance(simulated_acceptance, seeds)
    context = Context([list(prompt) for prompt in prompts], [False] * B, sampler, [0] * B)
    target.choose_tables([len(prompt) for prompt in prompts], max_new_tokens)
    target.start(B, longest + max_new_tokens + SPARE_SLOTS)

    # Prefill: one pass over the prompts, then each row's first token. `hidden` is [B, P, D], P the longest prompt.
    target.aux_layers, target.aux_hidden_states = drafter.aux_layers, None
    started = target.now()
    last = [len(prompt) - 1 for prompt in prompts]
    logits, hidden = target.forward(padded(prompts, longest, target.device), last=last)
    target.keep([range(len(prompt)) for prompt in prompts])
    target.watch.clear()  # the prompt's pass is prefill, not a decoding step
    rounds: list[list[Round]] = [[] for _ in range(B)]
    output: list[list[int]] = [[] for _ in range(B)]
    overlap, reached = [0.0] * B, [0] * B
    for row, token in enumerate(sampler.next(logits[:, 0])[0].tolist()):
        context.tokens[row].append(token)
        output[row].append(token)
        context.done[row] = token in eos or max_new_tokens == 1
    first = target.now()
    drafter.begin(context, hidden, target.aux_hidden_states)
    typical, block = drafter.criterion(), drafter.acceptance(drafter.options) in ("block", "traversal")
    ready = target.now()
    round_ends: list[float] = []
    if callback is not None:
        for row in range(B):
            callback(row, output[row], None)

    while not all(context.done):
        # Draft. Every round drafts its full k, the last one too: a shorter k would blur the figures that are per k.
        active = [not done for done in context.done]
        room = [target.max_positions - len(tokens) for tokens in context.tokens]
        depths = [min(k, left) if on else 0 for left, on in zip(room, active, strict=True)]
        context.depths = depths.copy()
        draft = drafter.propose(context, max(depths)) if max(depths) > 0 else empty_draft(context)
        if draft.tokens.shape[1] >= SPARE_SLOTS:
            raise DecodingError(
                f"a round runs {draft.tokens.shape[1]} draft nodes, more than {SPARE_SLOTS - 1}: lower k or the size of "
                "the tree"
            )
        _limit(draft, depths)

        # Verify. One pass over the last token and the draft: logits [B, n + 1, V], hidden [B, n + 1, D].
        logits, hidden = target.forward(_with_root(context, draft), parents=_with_root_parents(draft))
        verdict = verify(
            draft,
            logits,
            sampler,
            active=active,
            typical=typical,
            block=block,
            simulated=simulated,
            choices=target.choices,
        )
        round_ends.append(clock())  # the accepted tokens are on the host by now, so nothing waits for this mark
        verdict.logits, verdict.hidden, verdict.aux_hidden_states = logits, hidden, target.aux_hidden_states
        # Keep the last token (index 0) and the accepted nodes (node i is index i + 1). The added token is not run yet.
        paths = zip(verdict.paths, active, strict=True)
        target.keep([[0, *(node + 1 for node in path)] if on else [] for path, on in paths])

        # Emit, row by row, what the stop rules leave of the accepted path and the added token.
        offered = _offered(draft, verdict)
        for row in range(B):
            if context.done[row]:
                verdict.tokens[row] = []
                continue
            emitted = stop_at(verdict.tokens[row], max_new_tokens - len(output[row]), eos)
            drafted, longest_path = offered[row]
            accepted = min(len(verdict.paths[row]), len(emitted))
            cut = len(emitted) < len(verdict.tokens[row]) or depths[row] < k
            rounds[row].append(Round(drafted, longest_path, accepted, len(emitted), cut))
            overlap[row] += verdict.overlap[row]
            reached[row] += verdict.reached[row]
            verdict.tokens[row] = emitted
            output[row] += emitted
            context.tokens[row] += emitted
            context.done[row] = emitted[-1] in eos or len(output[row]) >= max_new_tokens
            if callback is not None:
                callback(row, emitted, rounds[row][-1])
        drafter.observe(verdict)
    ended = target.now()

    # What follows verification in a round counts as the next one's, in every repeat alike; the last round ends last.
    round_s = [end - start for start, end in pairwise([ready, *round_ends[:-1], ended])] if round_ends else []
    target_passes = target.pass_totals()
    return [
        Generation(
            tokens=output[row],
            stop="eos" if output[row][-1] in eos else "length",
            rounds=rounds[row],
            overlap=overlap[row],
            reached=reached[row],
            ttft_s=first - started,
            prefill_s=ready - started,
            decode_s=ended - ready,
            round_s=round_s,
            target_passes=target_passes,
            draft_passes=drafter.passes(),
        )
        for row in range(B)
    ]


def stop_at(tokens: list[int], room: int, eos: Collection[int]) -> list[int]:
    """The first `room` of `tokens`, up to the first end-of-sequence token, which is kept."""
    tokens = tokens[:room]
    end = next((index for index, token in enumerate(tokens) if token in eos), len(tokens))
    return tokens[: end + 1]


def _check(target: CachedModel, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    if not prompts or any(len(prompt) == 0 for prompt in prompts):
        raise DecodingError("a prompt is empty: every prompt needs at least one token")
    if (largest := max(map(max, prompts))) >= target.rows:
        raise DecodingError(
            f"a prompt holds token {largest}, the model's embedding has {target.rows} rows: take the special token out of it"
        )
    longest = max(map(len, prompts))
    if longest + max_new_tokens > target.max_positions:
        raise DecodingError(
            f"a prompt of {longest} tokens and {max_new_tokens} new ones need {longest + max_new_tokens} positions, "
            f"the model has {target.max_positions}: shorten the prompt or lower max_new_tokens"
        )


def _with_root(context: Context, draft: Draft) -> torch.Tensor:
    """The tokens of a target pass `[B, n + 1]`: the last token (the root), then the draft."""
    device, roots = draft.tokens.device, [tokens[-1] for tokens in context.tokens]
    if draft.rows is not None:
        return on_device([[root, *row] for root, row in zip(roots, draft.rows, strict=True)], device)
    first = on_device(roots, device).unsqueeze(1)
    return torch.cat((first, draft.tokens), 1) if draft.tokens.shape[1] else first


def _with_root_parents(draft: Draft) -> Parents | None:
    """The parents of these tokens, None for a chain. The root follows the context (-1); node i is token i + 1."""
    if isinstance(draft.parents, torch.Tensor):
        return torch.nn.functional.pad(draft.parents + 1, (1, 0), value=-1)
    return None if draft.parents is None else [[-1, *(parent + 1 for parent in row)] for row in draft.parents]


def _limit(draft: Draft, depths: list[int]) -> None:
    """Lower a chain's lengths to what each row can still use. A tree is cut by the stop rules instead."""
    if draft.parents is None and min(depths) < draft.tokens.shape[1]:
        draft.lengths = [min(length, depth) for length, depth in zip(draft.offered, depths, strict=True)]


def _offered(draft: Draft, verdict: Verdict) -> list[tuple[int, int]]:
    """Per row (draft tokens that could be accepted, length of the longest path of these)."""
    if verdict.parents is None:
        return [(count, count) for count in draft.offered]
    result = []
    for parents, count in zip(verdict.parents, draft.offered, strict=True):
        depth: list[int] = []
        for parent in parents[:count]:
            depth.append(1 if parent < 0 else depth[parent] + 1)
        result.append((count, max(depth, default=0)))
    return result
