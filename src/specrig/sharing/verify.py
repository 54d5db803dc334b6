"""`specrig verify`: is a publication what was published, and does it follow from its records? No model is needed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from specrig import __version__
from specrig.measurement.records import SCHEMA_VERSION, RecordError
from specrig.provenance.environment import code_version
from specrig.report.study_data import read_study
from specrig.sharing.archive import unpacked
from specrig.sharing.manifest import FILE, Manifest, PublicationError, file_hashes, read_manifest
from specrig.sharing.publish import compute_tables
from specrig.sharing.rules import unmeasured_engines, violations
from specrig.sharing.tables import compare_tables
from specrig.study.load import load_study
from specrig.study.problems import StudyError


@dataclass(slots=True)
class Finding:
    """The result for one file. checked: what was checked. A file with `differences` fails; `remarks` inform."""

    file: str
    checked: str
    differences: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Verification:
    """The result for a publication. recomputed: whether this code reads its records, and computed the tables again."""

    manifest: Manifest
    findings: list[Finding]
    recomputed: bool

    @property
    def differences(self) -> int:
        """The number of differences; 0: the publication is sound as far as it was checked."""
        return sum(len(finding.differences) for finding in self.findings)


def verify(folder: Path, show: Callable[[str], None]) -> Verification:
    """Check a publication, and report on each of its files as soon as it is checked.

    The hashes are checked always. Records and tables are checked where the publication's record schema is this code's;
    otherwise the report says which commit to check out. show: takes each line of the report. Raises PublicationError
    for a folder that is no publication.
    """
    manifest = read_manifest(folder)
    measured = ", ".join(commit[:12] for commit in manifest.measured_with) or "not recorded"
    show(f"{folder}: {manifest.study} on {manifest.hardware}")
    show(f"measured with commit {measured}; published with {manifest.code}; verified with {running_code()}")
    findings, recomputed = [_hashes(folder, manifest)], False
    _show(findings[0], show)
    if manifest.record_schema != SCHEMA_VERSION:
        show(
            f"· records and tables are not checked: their record schema is {manifest.record_schema}, this code's "
            f"{SCHEMA_VERSION}. To check them: {manifest.checkout}"
        )
    else:
        try:
            for finding in _contents(folder):
                _show(finding, show)
                findings.append(finding)
            recomputed = True
        except StudyError as error:
            show(
                f"· records and tables are not checked: this code does not read study.json. To check them: {manifest.checkout}"
            )
            show(f"    {error}")
        except (PublicationError, RecordError) as error:
            findings.append(Finding("records.tar.xz", "not readable", [str(error)]))
            _show(findings[-1], show)
    verification = Verification(manifest, findings, recomputed)
    if verification.differences:
        other = (
            f" Other code made this publication: {manifest.checkout} verifies with it."
            if manifest.code != running_code()
            else ""
        )
        show(f"{verification.differences} differences.{other}")
    else:
        show("All tables follow from the records." if recomputed else "All files are as they were published.")
    return verification


def running_code() -> str:
    """The running code as `Manifest.code` names it."""
    git = code_version()
    changes = " with uncommitted changes" if git.get("dirty") else ""
    return f"SpecRig {__version__}" + (f", commit {git['commit'][:12]}{changes}" if git.get("commit") else "")


def _show(finding: Finding, show: Callable[[str], None]) -> None:
    show(f"{'✗' if finding.differences else '✓'} {finding.file}: {finding.checked}")
    for line in [*finding.differences, *finding.remarks]:
        show(f"    {line}")


def _hashes(folder: Path, manifest: Manifest) -> Finding:
    """Check the hash of every file."""
    hashes = file_hashes(folder)
    differences = [
        f"{name}: {'changed since it was published' if name in hashes else 'missing'}"
        for name, sha256 in manifest.files.items()
        if hashes.get(name) != sha256
    ]
    good = len(manifest.files) - len(differences)
    differences += [f"{name}: not in the manifest" for name in hashes if name not in manifest.files]
    return Finding(FILE, f"{good} of {len(manifest.files)} files have the published hash", differences)


def _contents(folder: Path) -> Iterator[Finding]:
    """Check the records against the rules, and recompute the tables."""
    with unpacked(folder) as results, tempfile.TemporaryDirectory() as scratch:
        study, data = load_study(results / "study.json"), read_study(results)
        records = sum(map(len, data.every.values()))
        absent = [
            f"engine {engine}: study.json lists it, and nothing of it is published"
            for engine in unmeasured_engines(study, data)
        ]
        yield Finding("records.tar.xz", f"{records} records keep the rules", list(violations(study, data)), absent)
        recomputed = {path.name: path for path in compute_tables(results, Path(scratch))}
        published = {path.name: path for path in sorted((folder / "tables").glob("*.csv"))}
        for name, path in published.items():
            if name not in recomputed:
                yield Finding(f"tables/{name}", "not recomputed", [], ["this code does not make this table"])
                continue
            differences, alone = compare_tables(path, recomputed[name])
            remarks = [f"columns that only one of the two has: {', '.join(alone)}"] if alone else []
            yield Finding(f"tables/{name}", "recomputed", differences, remarks)
        if more := sorted(recomputed.keys() - published.keys()):
            yield Finding("tables", "complete", [], [f"this code makes more: {', '.join(more)}"])
