"""Every metric of a cell, once: tables, docs/metrics.md and MLflow read this list, so a new metric is one entry.

`python -m specrig.report.metrics` prints the table of docs/metrics.md; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from specrig.measurement.records import Record
from specrig.report import grid
from specrig.report.grid import Column

Shown = Literal["speed", "acceptance", "device", ""]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    name: its column in `cells.csv`; `<name>_low` and `<name>_high` hold its interval if `interval`. title: what tables
    call it. unit: "%" is a share of 1 in the column; "" where it has none. digits: decimals in tables. of: computes it
    from a cell's records; None where `analysis.cells` does. shown: the part of the tables of cells that has it: speed,
    acceptance, or device, whose columns are there only where they are known; empty: `cells.csv` alone has it.
    """

    name: str
    title: str
    unit: str
    definition: str
    digits: int = 2
    interval: bool = False
    of: Callable[[Sequence[Record]], float] | None = None
    shown: Shown = ""

    @property
    def columns(self) -> list[str]:
        """Its columns in `cells.csv`."""
        return [self.name, *(f"{self.name}_{end}" for end in ("low", "high") if self.interval)]

    @property
    def column(self) -> Column:
        """How tables show it."""
        return grid.share(self.name, self.digits) if self.unit == "%" else grid.figure(self.name, self.digits)


METRICS = {
    metric.name: metric
    for metric in (
        Metric("tokens_per_s", "tokens/s", "tokens/s", "decode tokens / decode seconds of all prompts; in a batch of all rows together", 1, True, shown="speed"),
        Metric("baseline_tokens_per_s", "baseline tokens/s", "tokens/s", "the same of plain decoding", 1, shown="speed"),
        Metric("speedup", "speedup", "×", "baseline decode seconds per token / method decode seconds per token, geometric mean over prompts (batches)", 2, True),
        Metric("end_to_end_speedup", "end-to-end speedup", "×", "the same with the prefill of target and draft"),
        Metric("ttft_ms", "TTFT", "ms", "time to the first token", 1),
        Metric("baseline_ttft_ms", "baseline TTFT", "ms", "the same of plain decoding", 1),
        Metric("ms_per_token", "ms/token", "ms", "between two tokens of one sequence (TPOT)", 1, True),
        Metric("baseline_ms_per_token", "baseline ms/token", "ms", "the same of plain decoding", 1),
        Metric("acceptance_length", "τ", "tokens", "tokens emitted per target pass, the target's own token included; rounds without a draft count, a cut last round does not", 2, True, shown="acceptance"),
        Metric("acceptance_rate", "acceptance rate", "%", "accepted / drafted tokens over all rounds", 0, True, shown="acceptance"),
        Metric("depth_acceptance_rate", "acceptance by depth", "%", "accepted tokens / depth of the longest offered path: compares trees with chains", 0),
        Metric("alpha", "α", "%", "mean over reached draft positions of Σ min(p, q): the probability that one drafted token is accepted (Leviathan et al., arXiv 2211.17192)", 0, True),
        Metric("draft_cost", "draft cost c", "plain passes", "draft seconds per drafted position / seconds of a bare one-token target pass of the baseline"),
        Metric("verify_cost", "verification cost v", "plain passes", "mean seconds of the method's target passes / seconds of a bare one-token target pass"),
        Metric("target_pass_ms", "plain pass", "ms", "the target's forward pass over one token in plain decoding, without the loop around it", 1),
        Metric("predicted_speedup", "predicted", "×", "τ / (draft cost of a round + v); for a chain of constant k the denominator is k·c + v(k+1)", shown="acceptance"),
        Metric("efficiency", "efficiency", "", "measured / predicted speedup: what remains after the harness's own work", shown="acceptance"),
        Metric("target_share", "in target passes", "%", "share of the method's decode time in target passes", 0),
        Metric("draft_share", "in draft passes", "%", "the same in draft passes", 0),
        Metric("loop_share", "elsewhere", "%", "the same outside of both", 0),
        Metric("peak_memory_mb", "peak memory", "MB", "peak memory in use while measuring", 0),
        Metric("prompts_needed", "prompts needed", "", "prompts (batches) that a study needs to detect a difference of 5 % in this cell", 0),
        Metric("rounds", "rounds", "", "target passes while decoding", 0),
        Metric("cut_rounds", "cut rounds", "", "rounds that the end of the text shortened", 0),
        Metric("repeated_4grams", "repeated 4-grams", "%", "share of 4-grams that occurred before in the same output", 0),
        Metric("baseline_repeated_4grams", "baseline's repeated 4-grams", "%", "the same of plain decoding", 0),
        Metric("distinct_2grams", "distinct 2-grams", "%", "different 2-grams / all 2-grams of the outputs", 0),
        Metric("floor_share", "memory floor / measured pass", "%", "the time for the bytes that a plain pass must read, at the speed of a large copy, / its measured time; a model that stays in a processor's cache can exceed it", 0, shown="device"),
        Metric("energy_per_token_j", "J/token", "J", "joules of the device over whole generations, prefill included, per emitted token (NVML)", 3, shown="device"),
        Metric("baseline_energy_per_token_j", "baseline J/token", "J", "the same of plain decoding", 3),
        Metric("energy_ratio", "energy / baseline's energy", "", "the method's joules per token over the baseline's", 3, shown="device"),
    )
}  # fmt: skip


def columns(*shown: Shown) -> dict[str, Column]:
    """Title -> column for readers, of the metrics that these parts of the tables of cells show."""
    return {metric.title: metric.column for metric in METRICS.values() if metric.shown in shown}


def definitions() -> dict[str, str]:
    """Title -> definition, of the metrics that tables or figures of a report name."""
    named = ("speedup", "end_to_end_speedup", "alpha", "draft_cost", "verify_cost")
    shown = [metric for metric in METRICS.values() if metric.shown in ("speed", "acceptance") or metric.name in named]
    return {metric.title: metric.definition for metric in shown if not metric.name.startswith("baseline_")}


def markdown() -> str:
    """The table of docs/metrics.md."""
    rows = [
        f"| {', '.join(f'`{name}`' for name in metric.columns)} | {metric.unit or '–'} | {metric.definition} |"
        for metric in METRICS.values()
    ]
    return "\n".join(["| column | unit | meaning |", "|---|---|---|", *rows])


if __name__ == "__main__":
    print(markdown())
