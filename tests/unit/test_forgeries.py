"""Forged publications, with digests as the forger would make them: each is found, or listed with the reason why not."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specrig.cell import Cell
from specrig.sharing.archive import compressed, read_lines
from specrig.sharing.verify import check_records

REAL = Path(__file__).parents[2] / "reports" / "published" / "amd-epyc-quick"
CELL, SAMPLED = "code-k4-t0-b1", "code-k4-t1-b1"
Records = list[dict[str, Any]]
Forge = Callable[[Path], object]


def job(folder: Path, method: str = "draft_model", replicate: int = 0) -> Path:
    found = folder / "records/native/embedded" / method
    return found / f"replicate-{replicate}" if replicate else found


def rewrite(path: Path, change: Callable[[Records], Records]) -> None:
    """Change the records of a job, and make its index agree with them."""
    records = change([json.loads(line) for _, line in read_lines(path)])
    lines = [json.dumps(record, separators=(",", ":"), ensure_ascii=False) for record in records]
    for part in path.glob("records*.jsonl.gz"):
        part.unlink()
    (path / "records.jsonl.gz").write_bytes(compressed("".join(f"{line}\n" for line in lines)))
    index = json.loads((path / "index.json").read_text())
    cells: dict[str, str] = {}
    for record, line in zip(records, lines, strict=True):
        slug = Cell.model_validate(record["cell"]).slug
        cells[slug] = cells.get(slug, "") + f"{line}\n"
    index["cells"] = {
        slug: entry | {"sha256": sha256(cells[slug].encode()).hexdigest()}
        for slug, entry in index["cells"].items()
        if slug in cells
    }
    (path / "index.json").write_text(json.dumps(index))


def slug_of(record: dict[str, Any]) -> str:
    return Cell.model_validate(record["cell"]).slug


def first(change: Callable[[dict[str, Any]], object], *, slug: str = CELL, method: str = "draft_model") -> Forge:
    """Change the first record of a cell."""

    def forge(folder: Path) -> None:
        def changed(records: Records) -> Records:
            change(next(record for record in records if slug_of(record) == slug))
            return records

        rewrite(job(folder, method), changed)

    return forge


def kept(keep: Callable[[dict[str, Any]], bool]) -> Forge:
    """Remove records of a job."""
    return lambda folder: rewrite(job(folder), lambda records: [record for record in records if keep(record)])


def everywhere(change: Callable[[dict[str, Any]], object]) -> Forge:
    """Change every record of the publication."""

    def forge(folder: Path) -> None:
        def changed(records: Records) -> Records:
            for record in records:
                change(record)
            return records

        for path in folder.rglob("index.json"):
            rewrite(path.parent, changed)

    return forge


def unlisted(folder: Path, methods: Iterable[str] = ("rest",)) -> None:
    """Methods leave the study as if they had never been measured."""
    gone = list(methods)
    for method in gone:
        for path in (folder / "records").glob(f"*/*/{method}"):
            shutil.rmtree(path)
        (folder / f"audit/exact-native-{method}.csv").unlink()
    audit(lambda table: table[~table["method"].isin(gone)])(folder)
    study = json.loads((folder / "study.json").read_text())
    study["methods"] = [entry for entry in study["methods"] if entry["method"] not in gone]
    (folder / "study.json").write_text(json.dumps(study))


def audit(change: Callable[[pd.DataFrame], pd.DataFrame | None]) -> Forge:
    """Change the table of the audit that is computed from records."""

    def forge(folder: Path) -> None:
        path = folder / "audit/records.csv"
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
        changed = change(table)
        (table if changed is None else changed).to_csv(path, index=False)

    return forge


def row(table: pd.DataFrame, test: str, method: str = "draft_model", **more: str) -> Any:
    chosen = (table["test"] == test) & (table["method"] == method)
    for name, value in more.items():
        chosen &= table[name] == value
    return table.index[chosen][0]


def scale(run: dict[str, Any], factor: float) -> None:
    """Every time of a run, its passes' and the machine's own, times `factor`."""
    for name in ("ttft_s", "prefill_s", "decode_s"):
        run[name] *= factor
    for passes in ("target_passes", "draft_passes"):
        run[passes] = {width: [count, seconds * factor] for width, (count, seconds) in run[passes].items()}
    for name, value in (run["load"] or {}).items():
        run["load"][name] = value and value * factor


def one_round(record: dict[str, Any]) -> None:
    run = record["run"]
    left = len(run["tokens"]) - 1
    run["rounds"] |= {"drafted": [left], "depth": [left], "accepted": [left - 1], "emitted": [left]}
    run["target_passes"] = {str(left + 1): [1, 0.5 * run["decode_s"]]}


def nanosecond(record: dict[str, Any]) -> None:
    scale(record["run"], 1e-9 / record["run"]["decode_s"])
    record["run"]["load"] = None


def faster_than_the_clock(record: dict[str, Any]) -> None:
    load = dict(record["run"]["load"])
    scale(record["run"], 0.1)
    record["run"]["load"] = load


def swap(record: dict[str, Any]) -> None:
    record["run"], record["baseline"] = record["baseline"], record["run"]


def another_word(record: dict[str, Any]) -> None:
    """A letter that no token of this place makes."""
    at = record["ends"][9]
    for name in ("text", "baseline_text"):
        record[name] = f"{record[name][:at]}\u0416{record[name][at + 1 :]}"


def shorter(record: dict[str, Any]) -> None:
    rounds = record["run"]["rounds"]
    record["run"]["tokens"].pop()
    if rounds["emitted"][-1] == rounds["accepted"][-1]:
        rounds["accepted"][-1] -= 1
    rounds["emitted"][-1] -= 1
    record["ends"].pop()
    record["text"] = record["text"][: record["ends"][-1]]


def both_sides(record: dict[str, Any]) -> None:
    for side in ("run", "baseline"):
        record[side]["tokens"][7] = record[side]["tokens"][6]


def a_pass_with_a_divergence(folder: Path) -> None:
    """Outputs differ otherwise than at ties, the audit counts them, and calls that a pass."""
    first(lambda record: record["run"]["tokens"].__setitem__(5, 1))(folder)

    def turned(table: pd.DataFrame) -> None:
        at = row(table, "token identity", task="code", temperature="0.0")
        samples = int(table.loc[at, "samples"])
        finding = f"{samples - 1} of {samples} outputs identical (97 %), 1 differ otherwise; code-000: token 5 is 1"
        table.loc[at, ["identical", "finding", "passed"]] = [str(samples - 1), finding, "True"]

    audit(turned)(folder)


def set_in(table: pd.DataFrame, column: str, value: str, *place: str, **more: str) -> None:
    table.loc[row(table, *place, **more), column] = value


UNIFORM = "per-position uniformity"
FORGERIES: dict[str, tuple[Forge, str]] = {
    "a greedy token that the baseline does not have": (
        first(lambda record: record["run"]["tokens"].__setitem__(5, 1)),
        r"audit/records.csv:\d+: token identity of .*outputs identical to plain decoding's, in the records \d+ of \d+",
    ),
    "a failed verdict turned": (a_pass_with_a_divergence, "the verdict True with 1 outputs that differ otherwise"),
    "more accepted than emitted": (
        first(lambda record: record["run"]["rounds"]["accepted"].__setitem__(0, 0)),
        r"run: round 1 emitted \d tokens, of which 0 were",
    ),
    "more accepted than drafted": (
        first(lambda record: record["run"]["rounds"]["accepted"].__setitem__(0, 9)),
        "round 1 accepted 9 of 4 drafted tokens",
    ),
    "a draft deeper than k": (
        first(lambda record: record["run"]["rounds"]["depth"].__setitem__(0, 16)),
        "round 1 drafted 4 tokens, 16 deep, at k = 4",
    ),
    "a tree deeper than k": (
        first(lambda record: record["run"]["rounds"]["depth"].__setitem__(0, 12), method="tree", slug="code-k4-t0-b1-branching2_2_1_1"),
        r"round 1 drafted \d+ tokens, 12 deep, at k = 4",
    ),
    "more drafted than the passes hold": (
        first(lambda record: record["run"]["rounds"]["drafted"].__setitem__(0, 200)),
        r"passes of \d+ tokens hold no draft of its rounds",
    ),
    "one round that emits everything": (first(one_round), "round 1 drafted 35 tokens, 35 deep, at k = 4"),
    "decoding faster than its passes": (
        first(lambda record: record["run"].update(decode_s=0.5 * record["run"]["decode_s"])),
        r"run: decoded in .* s, its passes took",
    ),
    "decoding in a nanosecond": (first(nanosecond), "none takes less than 1e-06 s"),
    "times and passes a tenth": (first(faster_than_the_clock), "for which the machine counted"),
    "a baseline that drafts": (first(swap), r"baseline: round 1 drafted 4 tokens, 4 deep, at k = 0"),
    "one cell's baseline slower": (
        first(lambda record: scale(record["baseline"], 1.5), slug=SAMPLED),
        f"cell {SAMPLED}, prompt code-000, a baseline that the other cells of its block do not have",
    ),
    "one cell's tokens replaced on both sides": (
        first(both_sides, slug=SAMPLED),
        "a baseline that the other cells of its block do not have",
    ),
    "a prompt removed": (
        kept(lambda record: (slug_of(record), record["prompt_id"]) != (CELL, "code-003")),
        f"cell {CELL}: prompt code-003, repeat 0 is missing",
    ),
    "a prompt doubled": (
        lambda folder: rewrite(job(folder), lambda records: [*records, next(r for r in records if slug_of(r) == CELL)]),
        "repeat 0 is there 2 times",
    ),
    "a cell removed": (
        kept(lambda record: slug_of(record) != CELL),
        f"cell native/embedded/draft_model/{CELL}, replicate 0: study.json lists it, and it is missing",
    ),
    "a replicate removed": (lambda folder: shutil.rmtree(job(folder, "rest", 1)), "embedded/rest/.*replicate 1: "
    "study.json lists it"),
    "a method removed": (lambda folder: shutil.rmtree(job(folder, "rest")), "embedded/rest/.*replicate 0: study.json "
    "lists it"),
    "another k": (
        lambda folder: rewrite(
            job(folder),
            lambda records: [
                record | {"cell": record["cell"] | {"k": 2}} if slug_of(record) == CELL else record
                for record in records
                if slug_of(record) != "code-k2-t0-b1"
            ],
        ),
        "4 deep, at k = 2",
    ),
    "another option": (
        first(lambda record: record["cell"]["options"].update(acceptance="block")),
        "option acceptance = block, in study.json exact",
    ),
    "a lossy method called lossless": (
        lambda folder: rewrite(job(folder, "medusa"), lambda records: [record | {"lossless": True} for record in records]),
        "lossless: true, which medusa with these options is not",
    ),
    "another seed": (first(lambda record: record.update(seed=5)), "seed 5; study, prompt, repeat and replicate give"),
    "an alpha above 1": (
        first(lambda record: record["run"].update(overlap=1.5 * record["run"]["reached"])), "which makes alpha more "
        "than 1"
    ),
    "a shorter prompt": (first(lambda record: record.update(prompt_tokens=3)), r"3 prompt tokens, in \d+ other "
    r"records \d+"),
    "tokens cut away": (first(shorter), "stopped by length after 35 of 36 tokens"),
    "another text": (first(another_word), r"token \d+ is the text .*\u0416.*, in \d+ other places"),
    "text that does not end with its tokens": (
        first(lambda record: record["ends"].__setitem__(-1, 1)), r"ends of 36 tokens up to"
    ),
    "another text for the same tokens": (
        first(lambda record: record.update(baseline_text="I am better")), "the same tokens as the baseline's, and "
        "another text"
    ),
    "a verdict beside a p-value": (
        audit(lambda table: set_in(table, "passed", "True", UNIFORM)), "from which Holm's procedure gives it"
    ),
    "a p-value that its finding contradicts": (
        audit(lambda table: set_in(table, "p_value", "1e-30", UNIFORM)), r"p-value 1e-30 at the level .*within chance"
    ),
    "a test removed": (
        audit(lambda table: table.drop(index=row(table, UNIFORM))), r"audit: per-position uniformity of .*: 0 rows, 1 "
        r"expected"
    ),
    "a method's failed test called lossy by design": (
        audit(lambda table: set_in(table, "finding", "lossy by design; 576 tokens, not uniform", UNIFORM)),
        "and the method is lossless",
    ),
    "fewer samples audited": (audit(lambda table: set_in(table, "samples", "3", UNIFORM)), r"3 samples, there are \d+ "
    r"records"),
    "an environment removed": (lambda folder: (job(folder) / "environment.json").unlink(), "environment.json: missing"),
}  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real publication with four of its methods."""
    folder = Path(shutil.copytree(REAL, tmp_path_factory.mktemp("real") / "small"))
    methods = {path.name for path in folder.glob("records/native/embedded/*")}
    unlisted(folder, methods - {"draft_model", "tree", "medusa", "rest"})
    assert not found(folder)
    return folder


def found(folder: Path) -> list[str]:
    return [
        f"{finding.file}: {what}"
        for finding in check_records(folder, sorted((folder / "records").rglob("index.json")))
        for what in finding.differences
    ]


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_found(name: str, small: Path, tmp_path: Path) -> None:
    forge, expected = FORGERIES[name]
    folder = Path(shutil.copytree(small, tmp_path / "forged"))
    forge(folder)
    differences = found(folder)
    named = [what for what in differences if re.search(expected, what)]
    assert named, "\n".join(differences[:20]) or "nothing was found"
    assert re.search(r"\.gz:\d+: cell |\.csv:\d+: |study\.json|environment\.json|^audit: |is missing", named[0]), named[
        0
    ]
    assert not [what for what in differences if "hash" in what], "the forger's digests agree"


def slower_machine(folder: Path) -> None:
    everywhere(lambda record: [scale(record[side], 3.0) for side in ("run", "baseline")])(folder)


def better_machine(folder: Path) -> None:
    for path in folder.rglob("environment.json"):
        path.write_text(path.read_text().replace("EPYC", "EPYC 9999"))


def renamed_tokens(folder: Path) -> None:
    """Two tokens change places in all outputs, of runs and baselines."""
    table = {300: 301, 301: 300}

    def change(record: dict[str, Any]) -> None:
        for side in ("run", "baseline"):
            record[side]["tokens"] = [table.get(token, token) for token in record[side]["tokens"]]

    everywhere(change)(folder)


def likelier(folder: Path) -> None:
    path = folder / "audit/exact-native-rest.csv"
    table = pd.read_csv(path)
    table.assign(p_value=0.987).to_csv(path, index=False)


UNFINDABLE: dict[str, tuple[Forge, str]] = {
    "all times scaled": (slower_machine, "Times scaled as a whole"),
    "the method's times scaled, the machine's clock with them": (
        everywhere(lambda record: scale(record["run"], 0.8)),
        "Times of methods scaled",
    ),
    "another environment": (better_machine, "The machine and its software"),
    "tokens replaced on both sides everywhere": (renamed_tokens, "Tokens replaced in method and baseline"),
    "a method removed from study.json too": (unlisted, "Cells that the study never listed"),
    "a likelier p-value": (likelier, "p-values of sampled outputs"),
}


@pytest.mark.parametrize("name", UNFINDABLE)
def test_what_no_verifier_can_find_is_on_the_page(name: str, small: Path, tmp_path: Path, repository: Path) -> None:
    """If a check finds one of them, it belongs into FORGERIES and off the page."""
    forge, named = UNFINDABLE[name]
    folder = Path(shutil.copytree(small, tmp_path / "forged"))
    forge(folder)
    assert not found(folder)
    assert named in (repository / "docs/publishing.md").read_text()


@pytest.mark.parametrize("value", [1.0, 2.0])
def test_an_earlier_default_of_an_option_is_no_forgery_and_any_other_value_is(value: float, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(REAL.with_name("amd-epyc-zen3-context"), tmp_path / "published"))
    method = folder / "records/native/smollm2_135m_shipped/suffix_p_eagle"

    def changed(record: dict[str, Any]) -> dict[str, Any]:
        cell = record["cell"]
        return record | {"cell": cell | {"options": cell["options"] | {"max_spec_factor": value}}}

    rewrite(method, lambda records: [changed(record) for record in records])
    assert any("option max_spec_factor" in what for what in found(folder)) == (value == 2.0)
