"""Which methods a pair can run: those whose draft and heads its row names. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from specrig.decoding.drafters import registry as methods
from specrig.study.config_checks import BASELINE
from specrig.study.rows import Pair


def lacking(pair: Pair, *, draft_fits: bool = True) -> dict[str, tuple[str, ...]]:
    """Method -> what it needs and the pair does not have: `draft` or names of heads; empty where the pair can run it.

    draft_fits: whether the pair's draft can speculate for its target at all.
    """
    return {
        name: tuple(part for part in sorted(pair.parts_for(method.needs)) if not _has(pair, part, draft_fits))
        for name, method in methods().items()
        if name != BASELINE
    }


def _has(pair: Pair, part: str, draft_fits: bool) -> bool:
    if part == "draft":
        return pair.draft is not None and draft_fits
    return part in pair.head_folders or pair.trained_in(part) is not None


def parts_text(parts: Sequence[str]) -> str:
    """Parts in words, e.g. `a fitting draft and the head draft_medusa`."""
    return " and ".join("a fitting draft" if part == "draft" else f"the head {part}" for part in parts)


def show_runnable(pair: Pair, lacks: Mapping[str, Sequence[str]], console: Console) -> None:
    """Print the methods that the pair can run, and what the others need."""
    console.print(f"\nThis pair can run: {', '.join(name for name, parts in lacks.items() if not parts)}", markup=False)
    trained = {part for name, parts in lacks.items() if not parts for part in methods()[name].needs}
    if named := sorted(part for part in trained if pair.trained_in(part) is not None):
        console.print(f"A study trains first what these need: {', '.join(named)}", markup=False)
    groups: dict[str, list[str]] = {}
    for name, parts in lacks.items():
        if parts:
            groups.setdefault(parts_text(parts), []).append(name)
    if groups:
        console.print("Others need more in the columns draft and heads of its row (`trained`: a study trains it):")
    for parts, names in groups.items():
        console.print(f"  {parts}: {', '.join(names)}", markup=False)
