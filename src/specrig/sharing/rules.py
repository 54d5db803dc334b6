"""What a study's records must say, whatever was measured. No model, GPU or reference is needed.

The rules find damage and mistakes. Somebody who invents records can invent them within the rules: only another person's
run answers that.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from specrig.cell import Cell
from specrig.engines import registry as engines
from specrig.measurement.records import Record, Run
from specrig.models.endpoint import endpoint_of
from specrig.results.study_data import StudyData
from specrig.study.study import Study


def violations(study: Study, data: StudyData) -> Iterator[str]:
    """A sentence for each rule that the records of a study break."""
    requested = {cell.name: cell for _, cell in study.grid.requested}
    for name, records in data.every.items():
        if name not in requested:
            yield f"cell {name}: study.json does not list it"
            continue
        for record in records:
            where = f"cell {name}, replicate {record.replicate}, prompt {record.prompt_id}, repeat {record.repeat}"
            if record.lossless and record.simulated_acceptance is not None:
                yield f"{where}: lossless, though its acceptance was declared"
            for side, run, k in (("run", record.run, requested[name].k), ("baseline", record.baseline, 0)):
                for rules in (_length(run, study.max_new_tokens), _rounds(run, k), _counts(run), _times(run)):
                    yield from (f"{where}, {side}: {sentence}" for sentence in rules)
        yield from _prompts(name, records, study)
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


def _prompts(name: str, records: Sequence[Record], study: Study) -> Iterator[str]:
    """Every replicate and repeat of a cell has the same prompts, each once."""
    runs: dict[tuple[int, int], list[str]] = defaultdict(list)
    for record in records:
        runs[record.replicate, record.repeat].append(record.prompt_id)
    prompts = max(runs.values(), key=len)
    for (replicate, repeat), ids in runs.items():
        if repeat >= study.repeats or len(set(ids)) < len(ids) or set(ids) != set(prompts):
            yield f"cell {name}, replicate {replicate}, repeat {repeat}: prompts {', '.join(ids)}"
    if short := [replicate for replicate, repeat in runs if repeat == 0 and (replicate, study.repeats - 1) not in runs]:
        yield f"cell {name}, replicate {short[0]}: fewer than {study.repeats} repeats"


def _missing(study: Study, data: StudyData) -> Iterator[str]:
    """Every cell of study.json has records or a reason why it failed, in every replicate."""
    present: Collection[tuple[str, int]] = {
        ("/".join((*job.key, slug)), job.replicate) for job in data.jobs for slug in (*job.files, *job.failed)
    }
    measured = {job.engine for job in data.jobs}
    for _, cell in study.grid.requested:
        missing = [number for number in range(study.replicates) if (cell.name, number) not in present]
        if cell.engine in measured and missing and not (len(missing) == study.replicates and _refused(study, cell)):
            yield f"cell {cell.name}, replicate {missing[0]}: study.json lists it, and it is missing"


def _refused(study: Study, cell: Cell) -> bool:
    """Whether no machine runs the cell: its engine or its pair is against it, or no server has it."""
    engine = engines()[cell.engine]
    unserved = not engine.loads_pairs and endpoint_of(cell, study.servers) is None
    grid = study.grid
    return unserved or bool(engine.refuses(cell) or grid.impossible(*cell.method_key) or grid.speechless(cell))
