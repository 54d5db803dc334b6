"""Measure servers under load: at each point method and baseline take turns, and each point is a record file of its own.

A point that fails is listed in the index with the reason and does not stop the others. A later run measures the points
whose files are missing or of another digest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from specrig.cell import digest
from specrig.decoding.drafters import registry as methods
from specrig.engines import registry as engines
from specrig.engines.base import EngineError
from specrig.engines.http import counters
from specrig.engines.http.client import Completion, HttpEngine
from specrig.engines.server import settled
from specrig.files import write_atomically
from specrig.measurement.blocks import baseline_of, seed_of
from specrig.measurement.energy import Meter, metered
from specrig.measurement.plan import MEASURING, gpus_used, is_current, model_digests
from specrig.measurement.progress import progress
from specrig.measurement.recording import reported, write_index
from specrig.measurement.records import Counts
from specrig.measurement.task_prompts import prepared
from specrig.measurement.traffic.loops import Requests, closed_loop, open_loop
from specrig.measurement.traffic.records import FOLDER, Turn, damaged_points, read_turns, write_turns
from specrig.models.endpoint import endpoint_of
from specrig.models.hub import at_commits
from specrig.models.pair import PairFiles
from specrig.provenance.digests import code_digest
from specrig.provenance.environment import capture
from specrig.provenance.trained_for import check_trained_for
from specrig.runtime.gpus import resolve_device
from specrig.study.traffic import Point, Traffic
from specrig.tasks import Prompt

if TYPE_CHECKING:
    from specrig.study.study import Study


ENDING_S = 5.0
"""A server that refuses requests because it is ending gets so long to end."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one process measures: the points of a method on an engine and a pair."""

    traffic: Traffic
    seed: int
    max_new_tokens: int
    points: Sequence[Point]
    prompts: dict[str, list[Prompt]]
    digests: dict[Point, str]
    folder: Path
    damaged: Collection[str]
    """The names of points whose files are not as the index says."""

    def path(self, point: Point) -> Path:
        """The point's record file."""
        return self.folder / f"{point.slug}.jsonl"

    @property
    def pending(self) -> list[Point]:
        """The points whose files are missing, damaged or of another digest."""
        return [
            point
            for point in self.points
            if point.slug in self.damaged or not is_current(self.path(point), self.digests[point], read_turns)
        ]


def measure_traffic(study: Study, engine: str, pair: str, method: str) -> None:
    """Measure the points of a method that are not measured yet, and write their files and `index.json`.

    Raises EngineError for what the study does not have, PromptError for unusable prompts, ModelError for a head that was
    trained for another target.
    """
    points, traffic = study.grid.points.get((engine, pair, method)), study.traffic
    if points is None or traffic is None:
        raise EngineError(f"study {study.study} has no traffic for {engine}/{pair}/{method}")
    kind = engines()[engine]
    files = study.paths.pair_files(pair, study.root).only(methods()[method].needs)
    device = resolve_device(study.device, gpus_used(kind, files.tensor_parallel))
    prompts = {
        task: prepared(study, task, files, study.root)[: traffic.prompts]
        for task in {point.cell.task for point in points}
    }
    shared: list[object] = [study.seed, study.max_new_tokens, study.threads, device, traffic.of_a_point]
    shared += [model_digests(files), code_digest(*MEASURING)]
    shared += [files.engine_options.get(engine, {}), files.dtype, files.tensor_parallel, files.max_model_len]
    shared += [files.quantization, files.gpu_memory_utilization]
    digests = {point: digest([point.model_dump(), shared, *_own(point, files, prompts)]) for point in points}
    folder = study.root / FOLDER / engine / pair / method
    index = folder / "index.json"
    damaged = damaged_points(folder) if index.is_file() else []
    plan = Plan(traffic, study.seed, study.max_new_tokens, points, prompts, digests, folder, damaged)
    failed: dict[Point, str] = {}
    if plan.pending:
        check_trained_for(files)
        files = at_commits(files)
        index.unlink(missing_ok=True)  # what is written from now on is in no index until the end
        with ExitStack() as open_things:
            server = open_things.enter_context(kind(files, device=device, threads=study.threads))
            assert isinstance(server, HttpEngine)  # an engine that serves
            server.limit_s = traffic.timeout_s
            meter = Meter()
            if server.loads_pairs:
                meter = open_things.enter_context(metered(device, gpus_used(kind, files.tensor_parallel)))
            environment = capture(files, device=device, threads=study.threads) | server.environment()
            environment["energy"] = meter.source
            write_atomically(folder / "environment.json", json.dumps(environment, indent=1))
            failed = _measure_points(plan, server, meter)
    write_index(
        folder,
        {point.slug: digests[point] for point in points if point not in failed},
        {point.slug: reason for point, reason in failed.items()},
        rows="points",
    )


def _own(point: Point, files: PairFiles, prompts: dict[str, list[Prompt]]) -> tuple[object, ...]:
    """What decides a point besides what all share."""
    servers = [endpoint_of(each, files.servers) for each in (point.cell, baseline_of(point.cell))]
    return servers, [(prompt.id, prompt.text) for prompt in prompts[point.cell.task]]


def _measure_points(plan: Plan, server: HttpEngine, meter: Meter) -> dict[Point, str]:
    """Measure the pending points; returns why points failed.

    Where method and baseline run at the same time they take turns at one load after the other. Else each start is used
    for all loads.
    """
    pending, turns = plan.pending, range(plan.traffic.turns)
    found: dict[Point, list[Turn]] = {point: [] for point in pending}
    failed: dict[Point, str] = {}
    sides = [(turn, is_baseline) for turn in turns for is_baseline in (turn % 2 == 0, turn % 2 == 1)]
    by_turn = [(point, side) for side in sides for point in pending]
    order = list(product(pending, sides)) if server.beside else by_turn
    title = f"traffic {server.name}/{server.pair.name}/{pending[0].cell.method}"
    with progress(title, len(order)) as advance:
        for point, (turn, is_baseline) in order:
            if point not in failed:
                try:
                    found[point].append(_turn(plan, server, meter, point, turn, is_baseline))
                except Exception as error:
                    failed[point] = reported(point.name, error)
            if len(found[point]) == len(sides):
                write_turns(plan.path(point), found[point])
            advance(f"{point.load:g}")
    return failed


def _turn(plan: Plan, server: HttpEngine, meter: Meter, point: Point, turn: int, is_baseline: bool) -> Turn:
    """One turn. Raises EngineError where the server ended, or answers no more."""
    cell = baseline_of(point.cell) if is_baseline else point.cell
    cell = cell.model_copy(update={"batch_size": plan.traffic.slots})
    prompts = plan.prompts[cell.task]
    encoded = [server.encode(prompt.text) for prompt in prompts]
    seeds = [seed_of(plan.seed, cell.task, prompt.id) for prompt in prompts]
    server.ready(cell)

    def send(number: int) -> Completion:
        place = number % len(prompts)
        return server.stream(cell, encoded[place], max_new_tokens=plan.max_new_tokens, seed=seeds[place])

    counted = _share(plan.traffic.requests, turn, plan.traffic.turns)
    at_once = int(point.load) if point.loop == "closed" else 1
    before, joules, processor = server.counters(cell), meter.joules(), time.process_time()
    began = datetime.now(UTC).isoformat(timespec="seconds")
    requests = Requests(
        send,
        [prompt.id for prompt in prompts],
        warmup=max(plan.traffic.warmup, at_once),
        counted=counted,
        at_once=at_once,
        k=cell.k,
    )
    if point.loop == "closed":
        closed_loop(requests, at_once)
    else:
        open_loop(requests, point.load, plan.traffic.burstiness, plan.seed + turn)
    processor, energy = time.process_time() - processor, meter.since(joules)
    side = "the baseline" if is_baseline else cell.method
    answered = [request for request in requests.found if not request.error]
    parts = [(request.part, bool(request.error)) for request in requests.found]
    gave_up = sum(part == "counted" for part, _ in parts) < counted or ("counted", False) not in parts
    broken = any(request.error and not request.timed_out for request in requests.found)
    if reason := server.ended(cell, within_s=ENDING_S if gave_up or broken else 0.0):
        raise EngineError(f"{side}: {reason}")
    if gave_up:
        errors = [request.error for request in requests.found if request.error]
        raise EngineError(
            f"{side}: it gave {len(answered)} answers to {len(requests.found)} requests and then none: {errors[-1]}"
        )
    tokens = sum(len(request.tokens) for request in answered)
    if len(answered) == len(requests.found):
        after = settled(server.counters, cell, before, tokens)
    else:  # nobody knows how many tokens the others cost the server
        after = server.counters(cell)
    found = counters.counts(before, after, tokens - len(answered) + 1)
    return Turn(
        point=point,
        digest=plan.digests[point],
        turn=turn,
        is_baseline=is_baseline,
        began=began,
        client_cpu_s=processor,
        counts=None if found is None else Counts.model_validate(found, from_attributes=True),
        energy_j=energy,
        requests=requests.found,
    )


def _share(total: int, turn: int, turns: int) -> int:
    """How many of `total` requests a turn has."""
    return max(total * (turn + 1) // turns - total * turn // turns, 1)
