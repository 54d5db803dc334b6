"""The one decode loop. It owns the target's cache, the stop rules, the accounting and the clock. Methods differ only in
their drafter.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from specrig.decoding.sampling import Sampler
from specrig.decoding.simulated import SimulatedAcceptance
from specrig.decoding.types import Context, Draft, Drafter, Generation, Round, TokenCallback, Verdict
from specrig.decoding.verify import verify
from specrig.runtime.device import on_device, padded
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
    tell: TokenCallback | None = None,
) -> list[Generation]:
    """Continue a batch of prompts, token ids in, token ids out.

    A round: the drafter proposes, one target pass scores the last token and every draft node, verification accepts a
    path and adds one token, the cache keeps what was accepted. Without a draft (`autoregressive`) this is plain
    decoding, so the baseline runs through the same lines. A round emits between 1 and depth + 1 tokens a row.

    simulated_acceptance: for random weights, the declared chance that a drafted token is accepted
    (`decoding.simulated`).
    tell: called with each row's tokens as soon as they are final, within the time that counts as decoding.

    Raises DecodingError for an empty prompt or one that leaves no room in the model's context.
    """
    B = len(prompts)
    _check(target, prompts, max_new_tokens)
    longest = max(map(len, prompts))
    seeds = list(seeds if seeds is not None else range(B))
    sampler = Sampler(temperature, seeds, target.device)
    simulated = None if simulated_acceptance is None else SimulatedAcceptance(simulated_acceptance, seeds)
    context = Context([list(prompt) for prompt in prompts], [False] * B, sampler, [0] * B)
    target.start(B, longest + max_new_tokens + SPARE_SLOTS)

    # Prefill: one pass over the prompts, then each row's first token. `hidden` is [B, P, D], P the longest prompt.
    target.aux_layers, target.aux_hidden_states = drafter.aux_layers, None
    started = target.now()
    logits, hidden = target.forward(
        padded(prompts, longest, target.device), last=[len(prompt) - 1 for prompt in prompts]
    )
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
    typical, block = drafter.criterion(), drafter.acceptance(drafter.options) == "block"
    ready = target.now()
    if tell is not None:
        for row in range(B):
            tell(row, output[row], None)

    while not all(context.done):
        active = [not done for done in context.done]
        # Every round drafts its full k, the last one too: a shortened k would blur every figure that is given per k.
        depths = [
            min(k, target.max_positions - len(row)) if on else 0 for row, on in zip(context.tokens, active, strict=True)
        ]
        depth = max(depths)
        context.depths = depths.copy()
        draft = drafter.propose(context, depth) if depth > 0 else empty_draft(context)
        _limit(draft, depths)

        # The last token and the draft, n + 1 tokens: logits [B, n + 1, V], hidden [B, n + 1, D].
        logits, hidden = target.forward(_with_root(context, draft), parents=_with_root_parents(draft))
        verdict = verify(draft, logits, sampler, active=active, typical=typical, block=block, simulated=simulated)
        verdict.logits, verdict.hidden, verdict.aux_hidden_states = logits, hidden, target.aux_hidden_states
        # The cache keeps the last token, place 0, and the accepted nodes, node i at place i + 1. The target's own token
        # is not run yet.
        target.keep(
            [[0, *(node + 1 for node in path)] if on else [] for path, on in zip(verdict.paths, active, strict=True)]
        )

        # Accounting, row by row: what the stop rules leave of the accepted path and the target's token is emitted.
        offered = _offered(draft, verdict)
        for row in range(B):
            if context.done[row]:
                verdict.tokens[row] = []
                continue
            emitted = stop_at(verdict.tokens[row], max_new_tokens - len(output[row]), eos)
            drafted, longest_path = offered[row]
            cut = len(emitted) < len(verdict.tokens[row]) or depths[row] < k
            rounds[row].append(
                Round(drafted, longest_path, min(len(verdict.paths[row]), len(emitted)), len(emitted), cut)
            )
            overlap[row] += verdict.overlap[row]
            reached[row] += verdict.reached[row]
            verdict.tokens[row] = emitted
            output[row] += emitted
            context.tokens[row] += emitted
            context.done[row] = emitted[-1] in eos or len(output[row]) >= max_new_tokens
            if tell is not None:
                tell(row, emitted, rounds[row][-1])
        drafter.observe(verdict)
    ended = target.now()

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
            target_passes=target_passes,
            draft_passes=drafter.passes(),
        )
        for row in range(B)
    ]


def empty_draft(context: Context) -> Draft:
    """The empty draft: a plain decoding step."""
    return Draft(torch.empty((context.batch_size, 0), dtype=torch.long, device=context.sampler.device))


def _check(target: CachedModel, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    if not prompts or any(len(prompt) == 0 for prompt in prompts):
        raise DecodingError("a prompt is empty: every prompt needs at least one token")
    needed = max(map(len, prompts)) + max_new_tokens
    if needed > target.max_positions:
        raise DecodingError(
            f"a prompt of {max(map(len, prompts))} tokens and {max_new_tokens} new ones need {needed} positions, the model has "
            f"{target.max_positions}: shorten the prompt or lower max_new_tokens"
        )


def _with_root(context: Context, draft: Draft) -> torch.Tensor:
    root = on_device([[tokens[-1]] for tokens in context.tokens], draft.tokens.device)
    return torch.cat((root, draft.tokens), 1) if draft.tokens.shape[1] else root


def _with_root_parents(draft: Draft) -> Parents | None:
    """Parents of the pass's tokens, None for a chain. Token 0 is the root, which hangs on the context (-1); node i is
    token i + 1.
    """
    if isinstance(draft.parents, torch.Tensor):
        return torch.nn.functional.pad(draft.parents + 1, (1, 0), value=-1)
    return None if draft.parents is None else [[-1, *(parent + 1 for parent in row)] for row in draft.parents]


def _limit(draft: Draft, depths: list[int]) -> None:
    """Lower a chain's lengths to what each row can still use. A tree is left alone: the stop rule cuts what is too
    deep.
    """
    n = draft.tokens.shape[1]
    if draft.parents is None and min(depths) < n:
        draft.lengths = [min(length, depth) for length, depth in zip(draft.offered, depths, strict=True)]


def _offered(draft: Draft, verdict: Verdict) -> list[tuple[int, int]]:
    """Per row (draft tokens that could be accepted, length of the longest path among them)."""
    if verdict.parents is None:
        return [(count, count) for count in draft.offered]
    result = []
    for parents, count in zip(verdict.parents, draft.offered, strict=True):
        depth: list[int] = []
        for parent in parents[:count]:
            depth.append(1 if parent < 0 else depth[parent] + 1)
        result.append((count, max(depth, default=0)))
    return result


def stop_at(tokens: list[int], room: int, eos: Collection[int]) -> list[int]:
    """Of `tokens` at most `room`, and none behind the first end-of-sequence token, which itself is kept."""
    tokens = tokens[:room]
    for index, token in enumerate(tokens):
        if token in eos:
            return tokens[: index + 1]
    return tokens
