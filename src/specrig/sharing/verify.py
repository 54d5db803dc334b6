"""`specrig verify`: recompute a publication's tables from its records with this code, without a model or a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path

from specrig.measurement.records import SCHEMA_VERSIONS, Record
from specrig.sharing.archive import read_lines
from specrig.sharing.manifest import FILE, Manifest, PublicationError, current_manifest, file_hashes, read_manifest
from specrig.sharing.publish import TABLES, compute_tables, unpacked
from specrig.sharing.table_differences import compare_csv, compare_text, table_path


@dataclass(slots=True)
class Finding:
    """The result for one file. checked: what was checked. A file with `differences` fails; `remarks` are for
    information.
    """

    file: str
    checked: str
    differences: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Verification:
    """The result for a publication: its manifest, the present code's, and what was found of each file."""

    manifest: Manifest
    now: Manifest
    findings: Sequence[Finding]

    @property
    def wrong(self) -> int:
        """The number of differences; 0: all that was published follows from the records."""
        return sum(len(finding.differences) for finding in self.findings)


def verify(folder: Path, show: Callable[[str], None]) -> Verification:
    """Check a publication and report on each of its files as soon as it is checked.

    show: takes each line of the report. Raises PublicationError for a folder that is no publication, or whose records
    have a schema that this code does not read.
    """
    manifest, now = read_manifest(folder), current_manifest(study="", hardware="")
    if manifest.record_schema not in SCHEMA_VERSIONS:
        raise PublicationError(
            f"{folder / FILE}: record schema {manifest.record_schema}, this {now.code} reads "
            f"{', '.join(map(str, SCHEMA_VERSIONS))}; verify with the code that made it, {manifest.code}"
        )
    measured = ", ".join(commit[:12] for commit in manifest.measured_with) or "not recorded"
    show(f"{folder}: {manifest.study} on {manifest.hardware}")
    show(f"measured with commit {measured}; published with {manifest.code}; verified with {now.code}")
    jobs = sorted((folder / "records").rglob("index.json"))
    steps = chain(_files(folder, manifest), map(partial(_records, folder), jobs), _tables(folder, show))
    total, done, findings = 1 + len(jobs) + 2 * len(TABLES), 0, []
    for finding in steps:
        findings.append(finding)
        if finding.checked != "hash":  # a file whose hash differs has a line of its own
            done += 1
        sign = "✗" if finding.differences else "✓"
        show(f"[{done}/{total}] {sign} {finding.file}: {finding.checked}")
        for line in [*finding.differences, *finding.remarks]:
            show(f"    {line}")
    show(
        "· figures, report.html, audit and scores: only their hashes are checked; audit and scores need models and "
        "references"
    )
    found = Verification(manifest, now, findings)
    if found.wrong and (manifest.specrig, manifest.commit) != (now.specrig, now.commit):
        show(
            "Other code made this publication. To see whether the publication or the code was changed: git checkout "
            f"{manifest.commit or manifest.specrig}"
        )
    elif any(finding.remarks for finding in findings):
        show(f"This code computes more than {manifest.code} did; all that was published follows from the records.")
    show(f"{found.wrong} differences" if found.wrong else "All published tables follow from the published records.")
    return found


def _files(folder: Path, manifest: Manifest) -> list[Finding]:
    """Check the hash of every file; the findings count the files that agree and name the others."""
    found = file_hashes(folder)
    bad = {
        name: "changed since it was published"
        for name in found
        if name in manifest.files and found[name] != manifest.files[name]
    }
    bad |= dict.fromkeys(manifest.files.keys() - found.keys(), "missing")
    bad |= dict.fromkeys(found.keys() - manifest.files.keys(), "not in the manifest")
    good = len(manifest.files.keys() & found.keys()) - sum(name in found and name in manifest.files for name in bad)
    whole = Finding(FILE, f"{good} of {len(manifest.files)} files have the published hash")
    return [whole, *(Finding(name, "hash", [why]) for name, why in sorted(bad.items()))]


def _records(folder: Path, index_path: Path) -> Finding:
    """Check a job's records against the hashes in its index, and each record's tokens against its rounds."""
    job = index_path.parent
    finding = Finding(job.relative_to(folder).as_posix(), "")
    try:
        lines = read_lines(job)
        index = json.loads(index_path.read_text(encoding="utf-8"))["cells"]
    except (PublicationError, ValueError, KeyError) as error:
        finding.checked, finding.differences = "not readable", [str(error)]
        return finding
    cells: dict[str, list[str]] = {}
    for location, line in lines:
        try:
            record = Record.model_validate_json(line)
        except ValueError as error:
            finding.differences.append(f"{location}: not a record ({str(error).splitlines()[0]})")
            continue
        cells.setdefault(record.cell.slug, []).append(line)
        finding.differences += [f"{location}: {what}" for what in _miscounted(record)]
    for slug, entry in index.items():
        if sha256("".join(f"{line}\n" for line in cells.get(slug, [])).encode()).hexdigest() != entry["sha256"]:
            finding.differences.append(f"cell {slug}: records whose hash is not the one in index.json")
    finding.differences += [
        f"cell {slug}: records that index.json does not name" for slug in cells.keys() - index.keys()
    ]
    finding.checked = f"{len(lines)} records of {len(index)} cells"
    return finding


def _miscounted(record: Record) -> list[str]:
    """Where the rounds of a record do not add up to its tokens. Engines that report no rounds are not checked."""
    found = []
    for side, run in (("run", record.run), ("baseline", record.baseline)):
        emitted = run.prefill_tokens + sum(run.rounds.emitted)
        # In transformers the first pass verifies drafts together with the prompt, and is a round itself.
        first_is_round = run.rounds.emitted[:1] == [run.prefill_tokens] and sum(run.rounds.emitted) == len(run.tokens)
        if run.rounds.emitted and emitted != len(run.tokens) and not first_is_round:
            found.append(
                f"cell {record.cell.slug}, prompt {record.prompt_id}, {side}: {len(run.tokens)} tokens, "
                f"its rounds emitted {emitted}"
            )
    return found


def _tables(folder: Path, show: Callable[[str], None]) -> Iterator[Finding]:
    """Recompute every table from the records and compare it with the published one."""
    show("computing the tables from the records …")
    try:
        with unpacked(folder) as results:
            compute_tables(folder, results)
            for stem in TABLES:
                for name in (f"{stem}.csv", f"{stem}.md"):
                    yield _table(folder, results, stem, name)
    except PublicationError as error:
        yield Finding("tables", "not recomputed", [str(error)])


def _table(folder: Path, results: Path, stem: str, name: str) -> Finding:
    """Compare a table that was recomputed into `results` with the published one."""
    published = table_path(folder, name)
    finding = Finding(published.relative_to(folder).as_posix(), "recomputed")
    if not published.is_file():
        finding.differences.append("missing")
    elif name.endswith(".csv"):
        finding.differences, finding.remarks = compare_csv(results / "tables" / name, folder, stem)
    else:
        finding.differences = compare_text(results / "tables" / name, published)
    return finding
