"""The verbs that measure and audit. Each imports its stage when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from specrig.cli.arguments import DEFAULT, ConfigFile, Json, PairName, StudyFile, load, print_json
from specrig.dag.command_line import AGAIN
from specrig.terminal import console

EngineName = Annotated[str, typer.Option(help="Engine of the study")]
MethodName = Annotated[str, typer.Option(help="Method of the study")]


def measure(
    study: StudyFile,
    engine: EngineName,
    pair: PairName,
    method: Annotated[list[str] | None, typer.Option(help="Repeatable. Default: every method of the study")] = None,
    again: Annotated[bool, typer.Option("--again", envvar=AGAIN, help="Measure also what is measured")] = False,
) -> None:
    """Measure the missing cells of an engine and a pair, in one process."""
    from specrig.measurement.failures import count_failures
    from specrig.measurement.runner import measure

    loaded = load(study)
    methods = method or [job[2] for job in loaded.grid.by_method if job[:2] == (engine, pair)]
    if not methods:
        known = ", ".join(dict.fromkeys(" ".join(job[:2]) for job in loaded.grid.by_method)) or "none"
        raise typer.BadParameter(f"study {loaded.study} measures nothing on {pair!r} with {engine!r} (it has: {known})")
    measure(loaded, engine, pair, methods, again=again)
    for name in methods:
        count_failures(loaded.root / "records" / engine / pair / name)


def traffic(
    study: StudyFile,
    engine: EngineName,
    pair: PairName,
    method: MethodName,
) -> None:
    """Measure a method's servers under load: the missing points, in one process."""
    from specrig.measurement.failures import count_failures
    from specrig.measurement.traffic.records import FOLDER
    from specrig.measurement.traffic.sweep import measure_traffic

    loaded = load(study)
    measure_traffic(loaded, engine, pair, method)
    count_failures(loaded.root / FOLDER / engine / pair / method)


def tune(
    config: ConfigFile = DEFAULT,
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of the grid's measurements to spend")] = 0.1,
    as_json: Json = False,
) -> None:
    """Find the best method and k of each task by successive halving, at about a tenth of the grid's measurements.

    Cells that are measured stay: the same command goes on after an interruption.
    """
    from specrig.planning.tune import show_tuned, tune

    found = tune(load(config), share)
    if as_json:
        print_json(found)
    else:
        show_tuned(found, console())


def answers(
    study: StudyFile, pair: PairName, task: Annotated[str, typer.Option(help="Row of tasks.tsv with turns")]
) -> None:
    """Let the target of a pair answer the turns of a task's conversations, all but the last."""
    from specrig.measurement.answers import write_answers

    loaded = load(study)
    if (pair, task) not in loaded.grid.conversations:
        known = ", ".join(" ".join(each) for each in loaded.grid.conversations) or "none"
        raise typer.BadParameter(f"study {loaded.study} has no turns of {task!r} on {pair!r} (it has: {known})")
    write_answers(loaded, pair, task, loaded.root)


def audit(study: StudyFile = DEFAULT) -> None:
    """Audit every record: at temperature 0 it must equal plain decoding; above, its tokens must fit the target's
    distribution.
    """
    from specrig.audit.run import audit_records
    from specrig.report.audit_tables import identity
    from specrig.report.study_data import read_study
    from specrig.tables import read_table

    loaded = load(study)
    found, out = read_study(loaded.root), loaded.root / "audit" / "records.csv"
    audit_records(loaded, found.records, loaded.root, out, found.under_load[0].values())
    if text := identity(read_table(out)):
        typer.echo(text)


def audit_exact(
    study: StudyFile,
    engine: EngineName,
    processes: Annotated[int, typer.Option(min=1, help="Methods tested side by side")] = 1,
) -> None:
    """Test the samples of an engine's methods against the exactly known distribution of a tiny model."""
    from specrig.audit.run import audit_exact as run

    loaded = load(study)
    measured = dict.fromkeys(job[0] for job in loaded.grid.by_method)
    if engine not in measured:
        listed = ", ".join(measured) or "none"
        raise typer.BadParameter(f"study {loaded.study} has no cell with {engine!r} (it has: {listed})")
    run(loaded, engine, loaded.root / "audit" / f"exact-{engine}.csv", processes)
