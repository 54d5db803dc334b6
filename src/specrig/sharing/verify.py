"""`specrig verify`: is a publication possible, and does all of it follow from its records? No model or GPU is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from pathlib import Path

from specrig.cell import Cell
from specrig.errors import first_line
from specrig.measurement.records import SCHEMA_VERSIONS, Record, RecordError, replicate_of
from specrig.sharing.archive import published_index, published_points, read_lines
from specrig.sharing.checks import Located
from specrig.sharing.checks.attempts import wrong_attempts
from specrig.sharing.checks.audit import audit_differences
from specrig.sharing.checks.completeness import Part, absent, digests, prompts
from specrig.sharing.checks.records import contradictions
from specrig.sharing.checks.together import disagreements
from specrig.sharing.manifest import FILE, Manifest, PublicationError, current_manifest, file_hashes, read_manifest
from specrig.sharing.publish import TABLES, compute_tables, rendered, unpacked
from specrig.sharing.table_differences import compare_csv, compare_drawing, compare_text, packed_or_not
from specrig.study.load import load_study
from specrig.study.problems import StudyError
from specrig.study.study import Study


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


def verify(folder: Path, show: Callable[[str], None], *, render: bool = True) -> Verification:
    """Check a publication and report on each of its files as soon as it is checked.

    show: takes each line of the report. render: render figures and report again, if the same code published them.
    Raises PublicationError for a folder that is no publication, or whose records have a schema that this code does not
    read.
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
    same = _same_code(manifest, now)
    drawn = render and same
    steps = chain(_files(folder, manifest), check_records(folder, jobs), _computed(folder, show, drawn=drawn))
    total, done, findings = len(jobs) + 3 + 2 * len(TABLES) + (_drawings(folder) if drawn else 0), 0, []
    for finding in steps:
        findings.append(finding)
        if finding.checked != "hash":  # a file whose hash differs has a line of its own
            done += 1
        sign = "✗" if finding.differences else "✓"
        show(f"[{done}/{total}] {sign} {finding.file}: {finding.checked}")
        for line in [*finding.differences, *finding.remarks]:
            show(f"    {line}")
    show("· scores, the audit of sampled outputs: checked for contradictions only; they need references and models")
    if not same:
        show(
            "· figures, report.html: only their hashes are checked, since other code or libraries made them. To draw "
            f"and compare them: git checkout {manifest.commit or manifest.specrig}, with "
            f"{', '.join(f'{name} {number}' for name, number in manifest.libraries.items())}"
        )
    found = Verification(manifest, now, findings)
    if found.wrong and (manifest.dirty or manifest.code != now.code):
        show(
            "Other code made this publication. To see whether the publication or the code was changed: git checkout "
            f"{manifest.commit or manifest.specrig}"
        )
    elif any(finding.remarks for finding in findings if finding.checked == "recomputed"):
        show(f"This code computes more than {manifest.code} did; all that was published follows from the records.")
    show(f"{found.wrong} differences" if found.wrong else "All published tables follow from the published records.")
    return found


def _same_code(manifest: Manifest, now: Manifest) -> bool:
    """Whether this code draws figures as the one that published: other libraries place letters differently."""
    return (manifest.code, manifest.libraries) == (now.code, now.libraries)


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


def check_records(folder: Path, jobs: Sequence[Path]) -> Iterator[Finding]:
    """Check each job's records, then all of them together against study.json, each other and the audit."""
    try:
        study = load_study(folder / "study.json")
    except StudyError as error:
        yield Finding("study.json", "not readable", [str(error)])
        return
    requested = {cell.name: cell for _, cell in study.grid.requested}
    located: list[Located] = []
    parts: set[Part] = set()
    for path in jobs:
        yield _job(folder, path, study, requested, located, parts)
    absences, engines = absent(study, parts)
    repetitions, short = prompts(study, located)
    together = [*absences, *repetitions, *disagreements(located, study)]
    yield Finding("records", "complete, and do not contradict each other", together, [*engines, *short])
    cells = [
        cell for name, cell in requested.items() if any((name, number) in parts for number in range(study.replicates))
    ]
    try:
        differences = audit_differences(folder, study, cells, located, published_points(folder))
    except (PublicationError, ValueError, LookupError, TypeError) as error:
        differences = [f"not readable ({type(error).__name__}: {error}); restore the files"]
    yield Finding("audit", "agrees with the records", differences)


def _job(
    folder: Path, path: Path, study: Study, requested: Mapping[str, Cell], located: list[Located], parts: set[Part]
) -> Finding:
    """Check a job's records against the hashes in its index and against the study; adds to `located` and `parts`."""
    job = path.parent
    finding = Finding(job.relative_to(folder).as_posix(), "")
    try:
        lines = read_lines(job)
        index = published_index(path)
        cells, failed = index["cells"], index["failed"]
    except PublicationError as error:
        finding.checked, finding.differences = "not readable", [str(error)]
        return finding
    replicate, own = replicate_of(job), []
    key = tuple((job.parent if replicate else job).parts[-3:])
    texts: dict[str, list[str]] = {}
    for location, line in lines:
        try:
            one = Located(location, Record.model_validate_json(line))
        except ValueError as error:
            finding.differences.append(f"{location}: not a record ({first_line(error)})")
            continue
        cell = one.record.cell
        texts.setdefault(cell.slug, []).append(line)
        if (cell.method_key, one.record.replicate) != (key, replicate):
            finding.differences.append(
                one.says(f"of {cell.name}, replicate {one.record.replicate}, in another's folder")
            )
            continue
        own.append(one)
        finding.differences += [one.says(what) for what in contradictions(one.record, study, requested.get(cell.name))]
    for slug, entry in cells.items():
        if sha256("".join(f"{line}\n" for line in texts.get(slug, [])).encode()).hexdigest() != entry.get("sha256"):
            finding.differences.append(f"cell {slug}: records whose hash is not the one in index.json")
    finding.differences += [
        f"cell {slug}: records that index.json does not name" for slug in texts.keys() - cells.keys()
    ]
    finding.differences += digests(cells, own)
    try:
        finding.differences += wrong_attempts(job, own, study, requested)
    except (PublicationError, OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        finding.differences.append(f"attempts that do not count: not readable ({first_line(error)})")
    if not (job / "environment.json").is_file():
        finding.differences.append("environment.json: missing")
    located += own
    parts |= {("/".join((*key, slug)), replicate) for slug in {*cells, *failed}}
    finding.checked = f"{len(lines)} records of {len(cells)} cells"
    return finding


def _computed(folder: Path, show: Callable[[str], None], *, drawn: bool) -> Iterator[Finding]:
    """Recompute every table from the records, with `drawn` figures and report too, and compare the published ones."""
    show(f"computing the tables{', the figures and the report' if drawn else ''} from the records …")
    try:
        with rendered(folder) if drawn else unpacked(folder) as results:
            if not drawn:
                compute_tables(folder, results)
            for stem in TABLES:
                for name in (f"{stem}.csv", f"{stem}.md"):
                    yield _table(folder, results, stem, name)
            if drawn:
                yield from _rendered(folder, results)
    except (PublicationError, RecordError) as error:
        yield Finding("tables", "not recomputed", [str(error)])


def _drawings(folder: Path) -> int:
    return 1 + len(list((folder / "figures").glob("*")))


def _rendered(folder: Path, made: Path) -> Iterator[Finding]:
    """Compare figures and report with those in `made`."""
    names = sorted({path.name.removesuffix(".gz") for base in (folder, made) for path in (base / "figures").glob("*")})
    for name in (*(f"figures/{name}" for name in names), "report.html"):
        pair = [packed_or_not(base / name) for base in (folder, made)]
        if all(path.is_file() for path in pair):
            yield Finding(name, "rendered again", compare_drawing(*pair))
        else:
            yield Finding(name, "rendered again", ["missing" if pair[1].is_file() else "the records do not give it"])


def _table(folder: Path, results: Path, stem: str, name: str) -> Finding:
    """Compare a table that was recomputed into `results` with the published one.

    Code that knows more tables than the code that published is no fault of the publication, as with columns; a table
    that the manifest names and nobody finds is found by its hash.
    """
    published = packed_or_not(folder / "tables" / name)
    finding = Finding(published.relative_to(folder).as_posix(), "recomputed")
    if not published.is_file():
        finding.remarks.append("this code computes it, the publication does not have it")
    elif name.endswith(".csv"):
        finding.differences, finding.remarks = compare_csv(results / "tables" / name, folder, stem)
    else:
        finding.differences = compare_text(results / "tables" / name, published)
    return finding
