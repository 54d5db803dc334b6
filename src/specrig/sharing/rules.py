"""What a study's records must say, whatever was measured. No model, GPU or reference is needed.

The rules find damage and mistakes. Somebody who invents records can invent them within the rules: only another person's
run answers that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from specrig.cell import Cell
from specrig.engines import registry as engines
from specrig.measurement.records import Record, Run
from specrig.measurement.repeats import decode_seconds, settled
from specrig.models.endpoint import endpoint_of
from specrig.report.study_data import StudyData
from specrig.study.config import Repeats
from specrig.study.study import Study


def violations(study: Study, data: StudyData) -> Iterator[str]:
    """A sentence for each rule that the records of a study break."""
    requested = {cell.name: cell for _, cell in study.grid.requested}
    for name, records in data.every.items():
        if name not in requested:
            yield f"cell {name}: study.json does not list it"
            continue
        for record in records:
            where = f"cell {name}, prompt {record.prompt_id}"
            if record.lossless and record.simulated_acceptance is not None:
                yield f"{where}: lossless, though its acceptance was declared"
            for side, run, k in (("run", record.run, requested[name].k), ("baseline", record.baseline, 0)):
                length, repeats = _length(run, study.max_new_tokens), _repeats(run, study.repeats)
                for rules in (length, _rounds(run, k), _counts(run), _times(run), repeats):
                    yield from (f"{where}, {side}: {sentence}" for sentence in rules)
        yield from _prompts(name, records)
    yield from _missing(study, data)


def unmeasured_engines(study: Study, data: StudyData) -> list[str]:
    """The engines of a study of which nothing was measured, e.g. since they were not installed."""
    measured = {job.engine for job in data.jobs}
    return [engine for engine in study.engines if engine not in measured]


def _length(run: Run, most: int) -> Iterator[str]:
    tokens, emitted = len(run.tokens), sum(run.rounds.emitted)
    if tokens > most:
        yield f"{tokens} tokens, and max_new_tokens is {most}"
    elif run.stop == "length" and tokens < most:
        yield f"stopped by length after {tokens} of {most} tokens"
    # An engine that verifies drafts in the prompt's pass counts it as its first round.
    if run.rounds.emitted and tokens not in (emitted, run.prefill_tokens + emitted):
        yield f"{tokens} tokens, its rounds emitted {emitted}"


def _rounds(run: Run, k: int) -> Iterator[str]:
    rounds = run.rounds
    columns = rounds.drafted, rounds.depth, rounds.accepted, rounds.emitted
    if len({len(column) for column in columns}) > 1:
        yield f"drafted, depth, accepted and emitted have {', '.join(str(len(column)) for column in columns)} rounds"
        return
    for number, (drafted, depth, accepted, emitted) in enumerate(zip(*columns, strict=True), 1):
        if depth > k or (k == 0 and drafted):
            yield f"round {number} drafted {drafted} tokens, {depth} deep, at k = {k}"
        if not 0 <= accepted <= depth <= drafted:
            yield f"round {number} accepted {accepted} of {drafted} drafted tokens on a path of {depth}"
        # The stop rule cuts the last round; then there is no token of the target's.
        if emitted != accepted + 1 and not (number == len(rounds.emitted) and emitted == accepted > 0):
            yield f"round {number} emitted {emitted} tokens, of which {accepted} were drafted and accepted"
    if not 0 <= run.overlap <= run.reached + 1e-6 or (rounds.depth and run.reached > sum(rounds.depth)):
        yield f"overlap {run.overlap:g} of {run.reached} reached positions, {sum(rounds.depth)} drafted"


def _counts(run: Run) -> Iterator[str]:
    counts = run.counts
    if counts is None:
        return
    after, accepted = len(run.tokens) - run.prefill_tokens, counts.accepted or 0
    if counts.rounds > len(run.tokens) or (counts.accepted is not None and counts.rounds + accepted < after):
        yield f"{counts.rounds} rounds that accepted {accepted} tokens cannot emit {after}"
    if counts.drafted is not None and accepted > counts.drafted:
        yield f"accepted {accepted} of {counts.drafted} drafted tokens"


def _times(run: Run) -> Iterator[str]:
    times = run.ttft_s, run.prefill_s, run.decode_s
    if not all(math.isfinite(seconds) and seconds >= 0 for seconds in times):
        yield f"times of {', '.join(f'{seconds:g} s' for seconds in times)}"
    if run.prefill_s < run.ttft_s:
        yield f"prefill of {run.prefill_s:g} s ends before the first token at {run.ttft_s:g} s"
    passes_s = sum(seconds for _, seconds in [*run.target_passes.values(), *run.draft_passes.values()])
    if run.decode_s < 0.99 * passes_s:  # clocks of GPU and processor may differ by less
        yield f"decoded in {run.decode_s:.3g} s, its passes took {passes_s:.3g} s"


def _repeats(run: Run, repeats: Repeats) -> Iterator[str]:
    """The times of a run follow from its repeats."""
    if not repeats.least <= len(run.repeats) <= repeats.most:
        yield f"{len(run.repeats)} repeats, and the study has {repeats.least} to {repeats.most}"
        return
    for number, repeat in enumerate(run.repeats, 1):
        if repeat.round_s and not math.isclose(sum(repeat.round_s), repeat.decode_s, rel_tol=1e-3, abs_tol=1e-5):
            yield f"repeat {number} decoded in {repeat.decode_s:.3g} s, its rounds took {sum(repeat.round_s):.3g} s"
    if not math.isclose(decode_seconds(run.repeats, run.timing), run.decode_s, rel_tol=1e-6):
        yield f"decoded in {run.decode_s:.3g} s, which does not follow from its repeats"
    elif run.settled != settled(run.repeats, run.timing, repeats.agree):
        yield f"settled: {run.settled}, which does not follow from its repeats"


def _prompts(name: str, records: Sequence[Record]) -> Iterator[str]:
    """A cell has each of its prompts once."""
    ids = [record.prompt_id for record in records]
    if len(set(ids)) < len(ids):
        yield f"cell {name}: prompts {', '.join(ids)}"


def _missing(study: Study, data: StudyData) -> Iterator[str]:
    """Every cell of study.json has records or a reason why it failed."""
    present = {"/".join((*job.key, slug)) for job in data.jobs for slug in (*job.files, *job.failed)}
    measured = {job.engine for job in data.jobs}
    for _, cell in study.grid.requested:
        if cell.engine in measured and cell.name not in present and not _refused(study, cell):
            yield f"cell {cell.name}: study.json lists it, and it is missing"


def _refused(study: Study, cell: Cell) -> bool:
    """Whether no machine runs the cell: its engine or its pair is against it, or no server has it."""
    engine = engines()[cell.engine]
    unserved = not engine.loads_pairs and endpoint_of(cell, study.servers) is None
    grid = study.grid
    return unserved or bool(engine.refuses(cell) or grid.impossible(*cell.method_key) or grid.speechless(cell))
