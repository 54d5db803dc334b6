"""The audit as a stage: its tables for every lossless method of a study.

A row with a p-value has no verdict yet: `multiple_testing` gives the verdicts when all tables of a study are there.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, cached_property, partial
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from specrig.audit.identity import (
    Answer,
    answer,
    first_divergence,
    served_answers,
    summary,
)
from specrig.audit.multiple_testing import (
    EXACT,
    IDENTITY,
    LOSSY,
    UNDER_LOAD,
    UNIFORMITY,
    audited_cells,
    strictest_level,
)
from specrig.audit.positions import transform, uniformity
from specrig.audit.reference import BaselineCheck, check_baselines
from specrig.cell import Cell
from specrig.engines import registry as engines
from specrig.engines.base import EngineError
from specrig.measurement.blocks import is_lossless
from specrig.measurement.records import Record
from specrig.measurement.task_prompts import prepared
from specrig.models.pair import ModelError
from specrig.runtime.gpus import resolve_device
from specrig.tables import write_table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specrig.engines.native import Native
    from specrig.measurement.traffic.records import Turn
    from specrig.study.study import Study

COLUMNS = [
    *["engine", "pair", "method", "variant", "task", "temperature", "test", "ks", "samples"],
    *["p_value", "identical", "passed", "finding"],
]


class Outcome(NamedTuple):
    """What a test found. passed: None where the p-value decides, with those of the other tests. identical: how many
    outputs equal plain decoding's; None where they need not.
    """

    test: str
    ks: str
    samples: int
    finding: str
    p_value: float = float("nan")
    passed: bool | None = None
    identical: int | None = None


def audit_exact(study: Study, engine: str, out: Path, processes: int = 1) -> None:
    """Test samples of an engine's methods against the exact distribution, so many methods at a time; writes `out`, one
    row for each of a method's `audited_cells`.
    """
    probes = audited_cells(cell for cell in study.grid.cells if cell.engine == engine)
    if processes == 1:
        outcomes = [_exact(study, probe) for probe in probes]
    else:
        from specrig.audit import exact  # noqa: F401 - loads torch, once for all that are forked

        with ProcessPoolExecutor(processes, get_context("fork"), _with_one_thread) as pool:
            outcomes = list(pool.map(partial(_exact, study), probes))
    _write((_row(probe, is_lossless(probe), outcome) for probe, outcome in zip(probes, outcomes, strict=True)), out)


def _with_one_thread() -> None:
    """Let this process, and those that its engines start, compute with a thread each: the models are tiny."""
    import torch

    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


def _exact(study: Study, probe: Cell) -> Outcome:
    from specrig.audit.exact import LENGTH, exact_test

    gc.collect()  # an engine and its drafters refer to each other, and this one may need the memory of the last
    build = engines()[probe.engine].build(study.engine_options.get(probe.engine, {}))
    test, ks, note = EXACT, str(probe.k), f" [{build}]" if build else ""
    try:
        with TemporaryDirectory() as folder:
            cell = probe.model_copy(update={"pair": "toy_pair", "task": "exact"})
            found = exact_test(
                probe.engine,
                cell,
                Path(folder),
                study.audit_samples,
                study.engine_options,
                resolve_device(study.device),
            )
    except (EngineError, ModelError) as error:
        # What could not be tested has not passed; the other verdicts and the report go on.
        return Outcome(test, ks, 0, f"not tested: {error}{note}", passed=False)
    finding = f"{found.samples:,} samples of {LENGTH} tokens; {found.describe(strictest_level(study.grid.cells))}{note}"
    return Outcome(test, ks, found.samples, finding, found.p_value)


def audit_records(
    study: Study, records: Sequence[Record], root: Path, out: Path, points: Iterable[Sequence[Turn]] = ()
) -> None:
    """Test a study's records: plain decoding against a reference, token identity at temperature 0, uniformity above;
    writes `out`. points: turns of servers under load; their answers at temperature 0 are tested alike.
    """
    rows = []
    greedy = (turns for turns in points if turns[0].point.cell.temperature == 0 and served_answers(turns))
    under_load = sorted(greedy, key=_order)
    records = [record for record in records if record.simulated_acceptance is None]  # these have no true output
    records = sorted(records, key=_order)
    pairs = {record.cell.pair for record in records} | {turns[0].point.cell.pair for turns in under_load}
    for pair in sorted(pairs):
        target, members = AuditTarget(study, pair, root), [each for each in records if each.cell.pair == pair]
        rows += [_baseline(made) for made in check_baselines(members, study, target.files, root, target)]
        for _, group in groupby(members, key=_order):
            found = list(group)
            try:
                rows.append(
                    _identity(found, target)
                    if found[0].cell.temperature == 0
                    else _positions(found, target, study.seed)
                )
            except (EngineError, ModelError) as error:
                rows.append(_judged(found, "not tested", float("nan"), False, found[0].lossless, str(error)))
        of_pair = (turns for turns in under_load if turns[0].point.cell.pair == pair)
        rows += [_served(list(loads), target) for _, loads in groupby(of_pair, key=_order)]
        del target
        gc.collect()  # an engine and its drafters refer to each other, and the next pair needs the memory
    _write(rows, out)


class AuditTarget:
    """A pair's target and prompts, loaded on first use."""

    def __init__(self, study: Study, pair: str, root: Path) -> None:
        self.study, self.pair, self.root = study, pair, root
        self.files = study.paths.pair_files(pair, root).only(())
        # Not `@cache` on the methods: that keeps every pair in memory until the process ends.
        self.prompts, self._scores = cache(self._prompts), cache(self._computed_scores)

    @cached_property
    def engine(self) -> Native:
        """The pair in the native engine."""
        from specrig.engines.native import Native

        return Native(
            self.files, device=resolve_device(self.study.device, self.study.most_gpus()), threads=self.study.threads
        )

    def _prompts(self, task: str) -> dict[str, list[int]]:
        """Prompt id -> token ids."""
        return {
            prompt.id: self.engine.encode(prompt.text) for prompt in prepared(self.study, task, self.files, self.root)
        }

    def plain(self, cell: Cell, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
        """What the native engine decodes after `prompt` with this cell."""
        (made,) = self.engine.generate(cell, [prompt], max_new_tokens=max_new_tokens, seeds=[0])
        return made.tokens

    def first_logits(self, prompt: Sequence[int]) -> NDArray[np.float32]:
        """The target's logits `[V]` after `prompt`, in the study's precision, as plain decoding computes them."""
        model = self.engine.target
        model.start(1, len(prompt) + 1)
        found: NDArray[np.float32] = model.catch_up([prompt], [False])[0].float().cpu().numpy()
        return found

    @cached_property
    def precise(self) -> Native:
        """The pair in float32; on the processor where the device cannot hold it."""
        import torch

        from specrig.engines.native import Native

        if self.files.dtype == "float32":
            return self.engine
        files = replace(self.files, dtype="float32", engine_options={})
        try:
            return Native(
                files, device=resolve_device(self.study.device, self.study.most_gpus()), threads=self.study.threads
            )
        except torch.OutOfMemoryError:
            return Native(files, threads=self.study.threads)

    def scores(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The target's logits `[V]` after `tokens`, in float32; kept, since methods diverge at the same positions."""
        return self._scores(tuple(tokens))

    def _computed_scores(self, tokens: tuple[int, ...]) -> NDArray[np.float32]:
        import torch

        model = self.precise.target
        model.choose_tables([len(tokens)], 0)
        model.start(1, len(tokens))
        scores, _ = model.forward(torch.tensor([tokens], device=model.device), last=[len(tokens) - 1])
        found: NDArray[np.float32] = scores[0, 0].float().cpu().numpy()
        return found

    def logits(self, tokens: Sequence[int], last: int) -> NDArray[np.float64]:
        """`[last, V]`: the target's logits at the last positions of `tokens`, in the study's precision."""
        import torch

        model = self.engine.target
        model.choose_tables([len(tokens) - 1], 0)
        model.start(1, len(tokens))
        scores, _ = model.forward(torch.tensor([list(tokens)], device=model.device))
        found: NDArray[np.float64] = scores[0, -last:].double().cpu().numpy()
        return found


def _baseline(made: BaselineCheck) -> dict[str, Any]:
    """The row of a baseline; `passed` is empty where nothing could be compared."""
    row = _judged([made.record], made.test, float("nan"), made.passed is True, True, made.finding)
    own = {"method": "autoregressive", "variant": "", "temperature": 0.0, "ks": "0"}
    return row | own | ({"passed": None} if made.passed is None else {})


def _identity(records: list[Record], target: AuditTarget) -> dict[str, Any]:
    cell, lossless = records[0].cell, records[0].lossless
    passed, identical, finding = _compared([answer(record) for record in records], cell, target)
    row = _judged(records, IDENTITY, float("nan"), passed or not lossless, lossless, finding)
    return row | {"identical": identical}


def _served(loads: list[Sequence[Turn]], target: AuditTarget) -> dict[str, Any]:
    """The row of a method's answers under load, those of all loads together."""
    cells = [turns[0].point.cell for turns in loads]
    answers = [each for turns in loads for each in served_answers(turns)]
    ks, lossless = _ks({cell.k for cell in cells}), is_lossless(cells[0])
    try:
        passed, identical, finding = _compared(answers, cells[0], target)
    except (EngineError, ModelError) as error:
        return _row(cells[0], lossless, Outcome(UNDER_LOAD, ks, len(answers), f"not tested: {error}", passed=False))
    outcome = Outcome(UNDER_LOAD, ks, len(answers), finding, passed=passed, identical=identical)
    return _row(cells[0], lossless, outcome)


def _compared(answers: Sequence[Answer], cell: Cell, target: AuditTarget) -> tuple[bool, int, str]:
    """(whether rounding explains all differences, how many answers are identical, the finding in words)."""
    precision = engines()[cell.engine].precision(target.files)
    found = [
        first_divergence(each, target.prompts(cell.task)[each.prompt_id], target.scores, precision)
        for each in answers
        if each.found != each.expected
    ]
    divergences = [divergence for divergence in found if divergence]
    tied = all(divergence.tie for divergence in divergences)
    return tied, len(answers) - len(divergences), summary(divergences, len(answers))


def _positions(records: list[Record], target: AuditTarget, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    values: dict[tuple[int, int], list[NDArray[np.float64]]] = {}
    for record in records:
        cell, tokens = record.cell, record.run.tokens
        prompt = target.prompts(cell.task)[record.prompt_id]
        scores = target.logits([*prompt, *tokens[:-1]], len(tokens)) / cell.temperature
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        found = transform(scores / scores.sum(-1, keepdims=True), tokens, rng)
        # A prompt has one seed for every k and batch size, so these outputs are no independent draws.
        values.setdefault((cell.k, cell.batch_size), []).append(found)
    test = uniformity(*map(np.concatenate, values.values()))
    level = strictest_level(target.study.grid.cells)
    finding = f"{test.describe(level)}; {100 * test.first:.1f} % in the likeliest twentieth (5 % expected)"
    return _judged(records, UNIFORMITY, test.p_value, None, records[0].lossless, finding)


def _order(found: Record | Sequence[Turn]) -> tuple[str, str, str, str, str, float]:
    """By what a row is about. found: a record, or the turns of a point."""
    cell = found.cell if isinstance(found, Record) else found[0].point.cell
    return cell.pair, cell.engine, cell.method, cell.variant, cell.task, cell.temperature


def _judged(
    records: list[Record], test: str, p_value: float, passed: bool | None, lossless: bool, finding: str
) -> dict[str, Any]:
    ks = _ks({record.cell.k for record in records})
    return _row(records[0].cell, lossless, Outcome(test, ks, len(records), finding, p_value, passed))


def _ks(ks: set[int]) -> str:
    return str(min(ks)) if len(ks) == 1 else f"{min(ks)}–{max(ks)}"


def _row(cell: Cell, lossless: bool, outcome: Outcome) -> dict[str, Any]:
    """lossless: whether the method claims to be; one that does not has no verdict."""
    found = outcome if lossless else outcome._replace(passed=True, finding=f"{LOSSY}{outcome.finding}")
    columns = {name: getattr(cell, name) for name in COLUMNS if name in type(cell).model_fields}
    return columns | found._asdict()


def _write(rows: Iterable[dict[str, Any]], out: Path) -> None:
    write_table(out, pd.DataFrame(list(rows), columns=COLUMNS))
