"""Processes below a process, told apart from later ones that got their numbers."""

from __future__ import annotations

from pathlib import Path


def descendants(pid: int) -> list[tuple[int, str]]:
    """(pid, start time) of every process below this one."""
    parents: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := stat_of(int(entry.name))):
            parents.setdefault(int(stat[1]), []).append((int(entry.name), stat[19]))
    found, queue = [], [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += [child for child, _ in children]
    return found


def stat_of(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat after the command's name; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields


def alive(process: tuple[int, str]) -> bool:
    """Whether this very process still runs."""
    stat = stat_of(process[0])
    return stat is not None and stat[19] == process[1]
