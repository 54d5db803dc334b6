"""Where an SQLite store may lie: in a file that can be written, on storage that no other machine shares."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psutil

SHARED = frozenset(
    ["nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "afs", "panfs", "wekafs", "pvfs2"]
) | {f"fuse.{name}" for name in ["sshfs", "glusterfs", "ceph", "juicefs", "lustre", "s3fs", "rclone"]}
"""Types of file systems that several machines write to."""


def check_sqlite(path: Path) -> None:
    """Raise OSError where an SQLite store cannot be kept: MLflow would retry for 100 seconds, or lose runs.

    SQLite's locks do not hold between machines that share a file system (https://sqlite.org/lockingv3.html, section 6).
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = file_system(path.parent)
        if kind in SHARED:
            raise OSError(
                f"{path} is on storage shared by machines ({kind}), where SQLite can lose runs: "
                "name a server, MLFLOW_TRACKING_URI=http://HOST:PORT, or a folder of this machine, results: PATH"
            )
        with closing(sqlite3.connect(path)) as store:
            store.execute("begin immediate").connection.rollback()
            damage = store.execute("pragma quick_check(1)").fetchone()[0]
            if damage != "ok":
                raise sqlite3.DatabaseError(damage)
    except sqlite3.OperationalError as error:
        raise OSError(f"{path}: {error}") from error
    except sqlite3.DatabaseError as error:
        reason = " ".join(str(error).split())
        raise OSError(f"{path} is damaged ({reason}): move it away, and the runs are entered into a new one") from error


def file_system(folder: Path) -> str:
    """The type of the file system that a folder lies on, e.g. `ext4` or `nfs4`; "" if the machine does not say."""
    holding = {str(part) for part in (folder.resolve(), *folder.resolve().parents)}
    mounts = [mount for mount in psutil.disk_partitions(all=True) if mount.mountpoint in holding]
    # Of mounts at one place, the last is the one that is seen.
    return max(enumerate(mounts), key=lambda each: (len(each[1].mountpoint), each[0]))[1].fstype if mounts else ""
