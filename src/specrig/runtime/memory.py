"""How much main memory a process may still take."""

from __future__ import annotations

from pathlib import Path

import psutil

LIMITS = {"": ("", "memory.max", "anon"), "memory": ("memory", "memory.limit_in_bytes", "total_rss")}
"""Controller -> where its groups lie, the file with a group's limit, and the line of memory.stat that counts against it:
control groups of version 2 and 1.
"""


def available_memory(process: Path = Path("/proc/self/cgroup"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that are free on the machine and within the limits of this process's control groups, such as Slurm and
    containers set: what takes more is killed. process, groups: what Linux says of them.
    """
    free = psutil.virtual_memory().available
    lines = process.read_text().splitlines() if process.is_file() else []
    for controllers, path in (line.split(":", 2)[1:] for line in lines):
        for controller in set(controllers.split(",")) & LIMITS.keys():
            root, limit_file, held = LIMITS[controller]
            group = groups / root / path.lstrip("/")
            for folder in (group, *group.parents):  # a limit of any of them holds
                limit, counts = folder / limit_file, folder / "memory.stat"
                if limit.is_file() and counts.is_file() and (text := limit.read_text().strip()) != "max":
                    taken = dict(line.split() for line in counts.read_text().splitlines())
                    free = min(free, int(text) - int(taken.get(held, 0)))
    return free
