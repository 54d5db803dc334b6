"""The times of a generation from its repeats: the least time of each round, repeated until that settles.

At one seed a prompt's output is the same tokens in the same rounds every time. So repeats do the same work round by
round, and what makes one of them slower is the machine's neighbours, not the method. The decode time is the sum over
the rounds of the least time that the round took in any repeat: a round lasts milliseconds, so it finds a quiet moment
where a whole generation finds none. No torch here.

An engine that reports no rounds, or a method whose rounds differ between repeats, counts with its least whole run. A
batch whose rounds a server composes by itself does other work each time: it counts with its mean time per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from specrig.measurement.records import Repeat, Run, Timing

Batch = Sequence[Run]
"""The runs of the prompts that decoded together; each carries the times of the whole batch."""


def timing(repeats: Sequence[Batch]) -> Timing:
    """How the time of a batch follows from its repeats."""
    timed = all(batch[0].repeats[0].round_s for batch in repeats)
    if timed and len({_work(batch) for batch in repeats}) == 1:
        return "rounds"
    lengths = {tuple(len(run.tokens) for run in batch) for batch in repeats}
    composed_by_engine = len(repeats[0]) > 1 and not timed
    return "run" if len(lengths) == 1 and not composed_by_engine else "mean"


def _work(batch: Batch) -> str:
    """Tokens and rounds of a batch: repeats in which it is the same do the same work, round by round."""
    rows = [(run.tokens, run.rounds.model_dump()) for run in batch]
    return repr((rows, len(batch[0].repeats[0].round_s)))


def decode_seconds(repeats: Sequence[Repeat], how: Timing) -> float:
    """Seconds of decoding by the rule `how`; of "mean" for as many tokens as the first repeat decoded."""
    if how == "rounds":
        return sum(map(min, zip(*(repeat.round_s for repeat in repeats), strict=True)))
    if how == "run":
        return min(repeat.decode_s for repeat in repeats)
    per_token = [repeat.decode_s / repeat.tokens for repeat in repeats if repeat.tokens]
    return fmean(per_token) * repeats[0].tokens if per_token else repeats[0].decode_s


def settled(repeats: Sequence[Repeat], how: Timing, agree: float) -> bool:
    """Whether the last repeat lowered the decode time by less than `agree`, a share; of "mean": changed it by less."""
    if len(repeats) < 2:
        return False
    before, now = decode_seconds(repeats[:-1], how), decode_seconds(repeats, how)
    return not repeats[0].tokens or (abs(now - before) if how == "mean" else before - now) < agree * before


def pooled(repeats: Sequence[Batch], agree: float) -> list[Run]:
    """The runs of a batch, with the times that its repeats give.

    The time to the first token and of prefill are the least of the repeats too; energy is their mean, since its counter
    moves in steps; memory is their peak. Times of bare passes are those of the fastest whole repeat, as shares of its
    decode time. Tokens and rounds are those of the repeat that counts: of "run" the fastest one, else the first.
    """
    how = timing(repeats)
    times = [batch[0].repeats[0] for batch in repeats]
    fastest = min(range(len(times)), key=lambda index: times[index].decode_s)
    counted = fastest if how == "run" else 0
    decode_s, over = decode_seconds(times, how), fmean if how == "mean" else min
    passes = counted if how == "mean" else fastest
    share = decode_s / times[passes].decode_s if times[passes].decode_s else 1.0
    energies = [repeat.energy_j for repeat in times if repeat.energy_j is not None]
    common = {
        "ttft_s": over(repeat.ttft_s for repeat in times),
        "prefill_s": over(repeat.prefill_s for repeat in times),
        "decode_s": decode_s,
        "energy_j": fmean(energies) if len(energies) == len(times) else None,
        "timing": how,
        "settled": settled(times, how, agree),
        "repeats": times,
    }
    rows = []
    for row, run in enumerate(repeats[counted]):
        own = {
            "target_passes": _scaled(repeats[passes][row].target_passes, share),
            "draft_passes": _scaled(repeats[passes][row].draft_passes, share),
            "peak_memory_mb": max(batch[row].peak_memory_mb for batch in repeats),
            "fallbacks": repeats[-1][row].fallbacks,
        }
        rows.append(run.model_copy(update=common | own))
    return rows


def _scaled(passes: dict[int, tuple[int, float]], share: float) -> dict[int, tuple[int, float]]:
    return {width: (calls, share * seconds) for width, (calls, seconds) in passes.items()}
