"""The acceptance that a pair needs: from a study's measured costs, or else from the roofline of the hardware."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from specrig.analysis import roofline
from specrig.analysis.cost_model import required_alpha
from specrig.analysis.roofline import Size
from specrig.models.facts.devices import Device
from specrig.planning.measured import Kind, number_or_empty, read_table
from specrig.results.labels import DISTURBED_SIGN, method_name
from specrig.terminal import Column, print_table

SPEEDUPS = (1.0, 1.5)
KS = (2, 4, 8)
BATCHES = (1, 8, 32, 128)
COLUMNS: dict[str, Kind] = {
    **dict.fromkeys(("engine", "pair", "method", "variant"), str),
    **dict.fromkeys(("k", "batch_size"), int),
    **dict.fromkeys(("temperature", "round_cost", "acceptance_length"), float),
    **dict.fromkeys(("alpha", "alpha_for_1", "alpha_for_1.5"), number_or_empty),
}
"""Column of `break_even.csv` -> what its entries are."""


@dataclass(frozen=True, slots=True)
class Needed:
    """What a speedup takes with one method, k and batch size.

    cost: of a round in plain tokens, which is the τ for a speedup of 1. tokens, alpha: measured, None where nothing
    was. alphas: the α for each of `SPEEDUPS`, None for what is no chain of k and where no α is enough. disturbed:
    whether the machine did other things while the cost was measured.
    """

    method: str
    k: int
    batch_size: int
    cost: float
    tokens: float | None
    alpha: float | None
    alphas: tuple[float | None, float | None]
    disturbed: bool = False


def measured_needs(study: Path, pair: str) -> list[Needed]:
    """What the table `break_even` of a study says of a pair at its lowest temperature; empty without the table. Raises
    StudyError for a damaged one.
    """
    file = study / "tables" / "break_even.csv"
    if not file.is_file():
        return []
    rows = [row for row in read_table(file, COLUMNS) if row["pair"] == pair]
    engines = {row["engine"] for row in rows}
    coldest = min((float(row["temperature"]) for row in rows), default=0.0)
    return [
        Needed(
            " ".join(
                [method_name(row["method"], variant=row["variant"]), *_at(row.get("context")), *_in(row, engines)]
            ),
            int(row["k"]),
            int(row["batch_size"]),
            float(row["round_cost"]),
            float(row["acceptance_length"]),
            number_or_empty(row["alpha"]),
            (number_or_empty(row["alpha_for_1"]), number_or_empty(row["alpha_for_1.5"])),
            bool(row.get("disturbed")),
        )
        for row in rows
        if float(row["temperature"]) == coldest
    ]


def predicted_needs(
    target: Size, draft: Size, device: Device | None, precision: str, draft_precision: str | None = None
) -> list[Needed]:
    """What a draft model's chain takes by the roofline of a device: at several k, and with a device at several batch
    sizes; without one the ratio of parameters is the draft's cost. draft_precision: None for the target's.
    """
    found = []
    for batch in BATCHES if device else BATCHES[:1]:
        c = draft.active / target.active
        if device:
            c = roofline.draft_cost(target, draft, device, precision, draft_precision, batch)
        for k in KS:
            v = roofline.verify_cost(target, device, precision, k + 1, batch)
            first, second = (required_alpha(speedup, k, c, v) for speedup in SPEEDUPS)
            found.append(Needed("draft_model", k, batch, k * c + v, None, None, (first, second)))
    return found


def show_needs(needs: Sequence[Needed], console: Console) -> None:
    """Print what acceptance pays, one row a method, k and batch size."""
    measured = any(row.tokens is not None for row in needs)
    titles = ["k", "batch", "τ for 1×", "τ for 1.5×", *(["τ measured"] if measured else []), "α for 1×", "α for 1.5×"]
    titles += ["α measured"] if measured else []
    rows = []
    for row in needs:
        name = f"{row.method} {DISTURBED_SIGN}" if row.disturbed else row.method
        entries = [name, str(row.k), str(row.batch_size), f"{row.cost:.2f}", f"{1.5 * row.cost:.2f}"]
        entries += [_text(row.tokens)] if measured else []
        entries += [_text(alpha) for alpha in row.alphas]
        rows.append([*entries, *([_text(row.alpha)] if measured else [])])
    source = "costs as measured" if measured else "costs predicted"
    console.print(
        f"\nAcceptance needed: {source}; – where no α is enough, or for what is no chain of k tokens", markup=False
    )
    print_table(console, [Column("method"), *(Column(title, right=True) for title in titles)], rows)


def _at(context: str | None) -> list[str]:
    return [f"at {context} tokens"] if context and context != "0" else []


def _in(row: dict[str, str], engines: Collection[str]) -> list[str]:
    return [f"in {row['engine']}"] if len(engines) > 1 else []


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
