"""What cannot be in a record, whatever was measured: each function yields a sentence for each contradiction."""

from __future__ import annotations

import math
from collections.abc import Iterator

from specrig.cell import Cell
from specrig.decoding.drafters import registry as methods
from specrig.measurement.blocks import is_lossless, seed_of
from specrig.measurement.records import Record, Run
from specrig.study.study import Study

LEAST_PASS_S = 1e-6
"""Seconds. No forward pass is faster: the launch of one GPU kernel takes longer."""
MOST_GAP_S, MOST_GAP = 0.02, 0.1
"""What a generation may take beside its passes: seconds, and a part of the whole. Pauses of the machine come on top."""


def _was_default(cell: Cell, name: str, value: object) -> bool:
    """Whether an option of the study's cell has the method's default, and a record's `value` is an earlier default."""
    method = methods()[cell.method]
    own = method.Options.model_fields[name].default
    return bool(cell.options[name] == own) and value in method.former_defaults.get(name, ())


def contradictions(record: Record, study: Study, cell: Cell | None) -> Iterator[str]:
    """What `record` says that cannot be. cell: the study's own cell of that name; None: the study has none."""
    if cell is None:
        yield "study.json has no such cell"
        return
    changed = [
        name
        for name, value in record.cell.options.items()
        if cell.options.get(name, value) != value and not _was_default(cell, name, value)
    ]
    if changed:
        yield f"option {changed[0]} = {record.cell.options[changed[0]]}, in study.json {cell.options[changed[0]]}"
    elif record.lossless != (record.simulated_acceptance is None and is_lossless(cell)):
        yield f"lossless: {str(record.lossless).lower()}, which {cell.method} with these options is not"
    seed = seed_of(study.seed, cell.task, record.prompt_id, record.repeat, record.replicate)
    if record.seed != seed:
        yield f"seed {record.seed}; study, prompt, repeat and replicate give {seed}"
    yield from _text(record)
    for side, run, k in (("run", record.run, cell.k), ("baseline", record.baseline, 0)):
        for what in (*_length(run, study.max_new_tokens), *_rounds(run, k), *_counts(run), *_times(run)):
            yield f"{side}: {what}"
    # The times of a baseline that could not alternate are means of two runs, its load is their sum.
    runs = [("run", record.run), *([("baseline", record.baseline)] if record.baseline_drift is None else [])]
    # Before `Engine.ready` the first generation loaded the drafter, where there was no warm-up.
    cold = study.warmup == 0 and (record.group, record.repeat) == (0, 0)
    yield from (f"{side}: {what}" for side, run in runs for what in _load(run, cold=cold and side == "run"))


def prefill_is_round(run: Run) -> bool:
    """Whether the first round is the prompt's pass: in transformers it verifies drafts together with the prompt."""
    return run.rounds.emitted[:1] == [run.prefill_tokens] and sum(run.rounds.emitted) == len(run.tokens)


def _length(run: Run, most: int) -> Iterator[str]:
    tokens = len(run.tokens)
    emitted = run.prefill_tokens + sum(run.rounds.emitted)
    if tokens > most:
        yield f"{tokens} tokens, of which a study with max_new_tokens {most} has at most {most}"
    elif run.stop == "length" and tokens < most:
        yield f"stopped by length after {tokens} of {most} tokens"
    if run.rounds.emitted and emitted != tokens and not prefill_is_round(run):
        yield f"{tokens} tokens, its rounds emitted {emitted}"


def _rounds(run: Run, k: int) -> Iterator[str]:
    rounds = run.rounds
    columns = rounds.drafted, rounds.depth, rounds.accepted, rounds.emitted
    if len({len(column) for column in columns}) > 1:
        yield f"drafted, depth, accepted and emitted have {', '.join(str(len(column)) for column in columns)} rounds"
        return
    for number, (drafted, depth, accepted, emitted) in enumerate(zip(*columns, strict=True), 1):
        last = number == len(rounds.emitted)
        if depth > k or (k == 0 and drafted):
            yield f"round {number} drafted {drafted} tokens, {depth} deep, at k = {k}"
        if not 0 <= accepted <= depth <= drafted:
            yield f"round {number} accepted {accepted} of {drafted} drafted tokens on a path of {depth}"
        # The stop rule cuts the last round; then there is no token of the target's own.
        if emitted != accepted + 1 and not (last and emitted == accepted > 0):
            yield f"round {number} emitted {emitted} tokens, of which {accepted} were drafted and accepted"
    if not 0 <= run.overlap <= run.reached + 1e-6:
        yield (
            f"overlap {run.overlap:g} of {run.reached} reached positions, which makes alpha more than 1 or less than 0"
        )
    if rounds.depth and run.reached > sum(rounds.depth):
        yield f"{run.reached} positions reached, {sum(rounds.depth)} drafted"


def _counts(run: Run) -> Iterator[str]:
    counts = run.counts
    if counts is None:
        return
    after, accepted = len(run.tokens) - run.prefill_tokens, counts.accepted or 0
    if counts.rounds > len(run.tokens) or (counts.accepted is not None and counts.rounds + accepted < after):
        yield f"{counts.rounds} rounds that accepted {accepted} tokens cannot emit {after}"
    if counts.drafted is not None and accepted > counts.drafted:
        yield f"accepted {accepted} of {counts.drafted} drafted tokens"
    taken = counts.per_position or []
    if taken != sorted(taken, reverse=True) or (taken and taken[0] > counts.rounds):
        yield f"accepted per position {taken} in {counts.rounds} rounds: a later one needs the one before it"


def _times(run: Run) -> Iterator[str]:
    times = run.ttft_s, run.prefill_s, run.decode_s
    if not all(math.isfinite(value) and value >= 0 for value in times):
        yield f"times of {', '.join(f'{value:g} s' for value in times)}"
        return
    if run.prefill_s < run.ttft_s:
        yield f"prefill of {run.prefill_s:g} s ends before the first token at {run.ttft_s:g} s"
    passes = [*run.target_passes.values(), *run.draft_passes.values()]
    spent, number = sum(seconds for _, seconds in passes), sum(count for count, _ in passes)
    if run.decode_s < 0.99 * spent:  # clocks of GPU and processor may differ by less
        yield f"decoded in {run.decode_s:.3g} s, its passes took {spent:.3g} s"
    least = number or (run.counts.rounds if run.counts else len(run.rounds.emitted))
    if least and (spent if number else run.decode_s) < least * LEAST_PASS_S:
        yield f"{least} passes in {spent if number else run.decode_s:.3g} s; none takes less than {LEAST_PASS_S:g} s"


def _load(run: Run, *, cold: bool) -> Iterator[str]:
    """The machine's own clock ran from before a generation to after it. cold: a model may have been loaded meanwhile."""
    load = run.load
    if load is None:
        return
    spent = run.prefill_s + run.decode_s
    if spent > 1.01 * load.elapsed_s + 1e-3:
        yield f"generated in {spent:.3g} s, in which the machine counted {load.elapsed_s:.3g} s"
    pauses = (load.waited_s or 0) + (load.held_s or 0) + load.steal_s + load.slept_s
    gap = max(MOST_GAP_S, MOST_GAP * load.elapsed_s) + pauses
    if run.target_passes and not cold and load.elapsed_s > spent + gap:
        yield f"generated in {spent:.3g} s, for which the machine counted {load.elapsed_s:.3g} s"


def _text(record: Record) -> Iterator[str]:
    ends, tokens, text = record.ends, record.run.tokens, record.text
    if tokens == record.baseline.tokens and text != record.baseline_text:
        yield "the same tokens as the baseline's, and another text"
    if ends is not None and (len(ends) != len(tokens) or ends != sorted(ends) or ends[-1:] not in ([], [len(text)])):
        yield f"ends of {len(ends)} tokens up to {max(ends, default=0)}, the text has {len(tokens)} and {len(text)}"
