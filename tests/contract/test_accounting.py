"""What the loop writes down of a generation whose every round is known beforehand: rounds, alpha's parts, stops, times."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from models import Lab

from specrig.decoding.drafters import registry
from specrig.decoding.loop import generate
from specrig.decoding.types import Context, Draft, Drafter, Generation, MethodOptions, Round, Verdict
from specrig.measurement.recording import as_runs
from specrig.measurement.records import Rounds

METHODS = sorted(registry())
DRAFTING = sorted(set(METHODS) - {"autoregressive", "naive_batching"})
PROMPTS = [[5, 9, 11, 5, 9], [3], [7, 7, 2, 30, 12, 7, 7]]
END = 256
"""Positions of the toy pair's models."""


@pytest.fixture(scope="module")
def lab() -> Lab:
    return Lab(vocab_size=40)


class Planned(Drafter):
    """Offers each row k tokens of which so many are right as its plan says, round by round; what is right it is told."""

    def __init__(self, truth: list[list[int]], plans: list[list[int]]) -> None:
        super().__init__(MethodOptions(), None)  # type: ignore[arg-type]
        self.truth, self.plans = truth, plans

    def propose(self, context: Context, k: int) -> Draft:
        rows = []
        for tokens, truth, plan, done in zip(context.tokens, self.truth, self.plans, context.done, strict=True):
            right = 0 if done or not plan else plan.pop(0)
            ahead = [*truth[len(tokens) :], *[0] * k][:k]
            rows.append([token if place < right else (token + 1) % 40 for place, token in enumerate(ahead)])
        return Draft(torch.tensor(rows))


def plain(lab: Lab, prompts: list[list[int]], length: int) -> list[Generation]:
    drafter = lab.drafter("autoregressive")
    return [generate(lab.target, drafter, [prompt], k=0, max_new_tokens=length, temperature=0)[0] for prompt in prompts]


def texts(lab: Lab, prompts: list[list[int]], length: int) -> list[list[int]]:
    return [[*prompt, *row.tokens] for prompt, row in zip(prompts, plain(lab, prompts, length), strict=True)]


def test_rounds_are_those_that_happened_in_their_order(lab: Lab) -> None:
    """20 tokens: the first comes with the prompt; a round emits what it accepts and one more; the last is cut where too
    much came.
    """
    plans = [[2, 0, 4, 1, 3, 0, 0, 4], [0, 1, 2, 3, 4, 4, 4], [4, 4, 4, 4, 0]]
    found = generate(
        lab.target,
        Planned(texts(lab, PROMPTS, 30), [plan.copy() for plan in plans]),
        PROMPTS,
        k=4,
        max_new_tokens=20,
        temperature=0,
    )
    ends = [
        # 1 + 3 + 1 + 5 + 2 + 4 + 1 + 1 = 18, two more of the five that came
        Round(4, 4, 2, 2, cut=True),
        # 1 + 1 + 2 + 3 + 4 + 5 = 16, four more of five
        Round(4, 4, 4, 4, cut=True),
        # 1 + 5 + 5 + 5 = 16
        Round(4, 4, 4, 4, cut=True),
    ]
    recorded = as_runs(found, None)
    assert recorded[0].repeats[0].tokens == 3 * 19
    for row, (plan, last) in enumerate(zip(plans, ends, strict=True)):
        whole = len(found[row].rounds) - 1
        assert found[row].rounds == [*(Round(4, 4, accepted, accepted + 1) for accepted in plan[:whole]), last]
        assert whole == (7, 5, 3)[row]
        judged = plan[: whole + 1]
        assert found[row].overlap == sum(judged)
        assert found[row].reached == sum(min(accepted + 1, 4) for accepted in judged)
        assert (len(found[row].tokens), found[row].stop) == (20, "length")
        assert len(found[row].round_s) == 8 and sum(found[row].round_s) == pytest.approx(found[row].decode_s)
        counts = [*plan[:whole], last.accepted]
        emitted = [*(accepted + 1 for accepted in plan[:whole]), last.emitted]
        offered = [4] * len(counts)
        expected = Rounds(drafted=offered, depth=offered, accepted=counts, emitted=emitted, cut=True)
        assert recorded[row].rounds == expected, "and so they are recorded"


def test_an_end_of_sequence_within_a_path_cuts_its_round(lab: Lab) -> None:
    (truth,) = texts(lab, PROMPTS[:1], 30)
    output = truth[len(PROMPTS[0]) :]
    end = next(place for place in range(6, 30) if output[place] not in output[:place])
    start = end - 3  # one round each for the tokens before, then four right ones of which the second ends the text
    plan = [0] * (start + 1) + [4]
    (found,) = generate(
        lab.target, Planned([truth], [plan]), PROMPTS[:1], k=4, max_new_tokens=30, temperature=0, eos={output[end]}
    )
    assert (found.tokens, found.stop) == (output[: end + 1], "eos")
    assert found.rounds == [Round(4, 4, 0, 1)] * (start + 1) + [Round(4, 4, 2, 2, cut=True)]


@pytest.mark.parametrize("method", METHODS)
def test_an_end_of_sequence_may_be_the_very_first_token(lab: Lab, method: str) -> None:
    """Such a row is over before its first round; its neighbours in the batch go on as if alone."""
    free = plain(lab, PROMPTS, 12)
    eos = free[1].tokens[0]
    assert eos not in free[0].tokens + free[2].tokens
    found = generate(lab.target, lab.drafter(method), PROMPTS, k=3, max_new_tokens=12, temperature=0, eos={eos})
    assert (found[1].tokens, found[1].stop, found[1].rounds) == ([eos], "eos", [])
    assert [row.tokens for row in found] == [free[0].tokens, [eos], free[2].tokens]
    (alone,) = generate(lab.target, lab.drafter(method), PROMPTS[1:2], k=3, max_new_tokens=12, temperature=0, eos={eos})
    assert (alone.tokens, alone.stop, alone.rounds, alone.target_passes) == ([eos], "eos", [], {})


@pytest.mark.parametrize("method", DRAFTING)
def test_an_end_of_sequence_may_be_the_first_of_several_tokens_of_a_round(lab: Lab, method: str) -> None:
    """Every round accepts its whole path, so that nothing but the stop keeps the tokens behind the first."""

    def decoded(prompt: list[int], eos: set[int]) -> Generation:
        return generate(
            lab.target, lab.drafter(method), [prompt], k=3, max_new_tokens=24, temperature=0, eos=eos,
            simulated_acceptance=1.0,
        )[0]  # fmt: skip

    for prompt in PROMPTS + [[token, token + 1, token] for token in range(10)]:
        free, start = decoded(prompt, set()), 1
        for number, one in enumerate(free.rounds):
            if one.emitted > 1 and not one.cut and free.tokens[start] not in free.tokens[:start]:
                found = decoded(prompt, {free.tokens[start]})
                assert (found.tokens, found.stop) == (free.tokens[: start + 1], "eos")
                assert found.rounds[:-1] == free.rounds[:number]
                assert found.rounds[-1] == Round(one.drafted, one.depth, 1, 1, cut=True)
                return
            start += one.emitted
    raise AssertionError("no round whose first of several tokens is new")


def test_one_token_needs_no_round(lab: Lab) -> None:
    (found,) = generate(lab.target, lab.drafter("ngram"), PROMPTS[:1], k=3, max_new_tokens=1, temperature=0)
    assert (len(found.tokens), found.stop, found.rounds) == (1, "length", [])


def test_rounds_shortened_by_the_end_of_the_context_are_cut(lab: Lab) -> None:
    """24 places are left to the first row, so k = 8 finds less than 8 from its 17th round on, though it emits all that
    comes.
    """
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(40, (length,), generator=generator).tolist() for length in (END - 24, 5)]
    wrong = Planned([[0] * 300, [0] * 300], [[], []])
    wrong.truth = texts(lab, prompts, 24)
    found = generate(lab.target, wrong, prompts, k=8, max_new_tokens=24, temperature=0)
    assert [row.tokens for row in found] == [row[-24:] for row in wrong.truth]
    room = [min(8, 23 - round_) for round_ in range(23)]
    assert found[0].rounds == [Round(offered, offered, 0, 1, cut=offered < 8) for offered in room]
    assert found[1].rounds == [Round(8, 8, 0, 1)] * 23


def test_times_are_booked_where_they_were_spent(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only moves when someone works: a target pass 1000, the drafter's start 100, a proposal 10, learning
    1.
    """
    clock = 0.0
    forward = lab.target.forward

    def working(*args: Any, **kwargs: Any) -> Any:
        nonlocal clock
        clock += 1000
        return forward(*args, **kwargs)

    class Working(Planned):
        def begin(self, context: Context, hidden: torch.Tensor, features: torch.Tensor | None = None) -> None:
            nonlocal clock
            clock += 100

        def propose(self, context: Context, k: int) -> Draft:
            nonlocal clock
            clock += 10
            return super().propose(context, k)

        def observe(self, verdict: Verdict) -> None:
            nonlocal clock
            clock += 1

    drafter = Working(texts(lab, PROMPTS[:1], 20), [[2, 0, 3, 1]])
    monkeypatch.setattr(lab.target, "forward", working)
    monkeypatch.setattr(lab.target, "now", lambda: clock)
    (found,) = generate(lab.target, drafter, PROMPTS[:1], k=3, max_new_tokens=11, temperature=0)
    assert len(found.rounds) == 4
    assert (found.ttft_s, found.prefill_s, found.decode_s) == (1000, 1100, 4 * 1011)


@pytest.mark.parametrize(
    ("method", "passes"),
    [
        ("draft_model", 4),
        ("tree", 4),
        ("eagle", 4),
        ("eagle2", 4),
        ("eagle3", 4),
        ("p_eagle", 1),
        ("dflash", 1),
        ("dspark", 1),
        ("medusa", 1),
        ("medusa_draft", 2),
        ("pard", 1),
        ("ngram", 0),
    ],
)
def test_a_drafters_passes_are_those_of_its_rounds(lab: Lab, method: str, passes: int) -> None:
    """Prefill is none of them, and a second generation starts from nothing."""
    drafter = lab.drafter(method)
    for _ in range(2):
        (found,) = generate(lab.target, drafter, PROMPTS[:1], k=4, max_new_tokens=25, temperature=0)
        assert sum(calls for calls, _ in found.draft_passes.values()) == passes * len(found.rounds)
        assert all(seconds > 0 for _, seconds in found.draft_passes.values())
        assert sum(calls for calls, _ in found.target_passes.values()) == len(found.rounds)


def test_a_draft_model_runs_what_it_has_not_run_yet(lab: Lab) -> None:
    """One token a pass; two where all was accepted, since it never ran the last one it drafted."""
    twins = Lab(vocab_size=40, noise=0.0)
    for models in (lab, twins):
        (found,) = generate(
            models.target, models.drafter("draft_model"), PROMPTS[:1], k=4, max_new_tokens=23, temperature=0
        )
        full = sum(entry.accepted == 4 for entry in found.rounds[:-1])
        assert (full > 0) == (models is twins)
        calls = {width: count for width, (count, _) in found.draft_passes.items()}
        assert calls == {1: 4 * len(found.rounds) - full} | ({2: full} if full else {})
