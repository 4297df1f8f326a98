"""What a job on a compile-only device found: what would fit, what would spill. Pure: documents in, rows out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tuner_service.cli.words import NOTHING, case_words

UNTIMED_COLUMNS = (
    "case",
    ">candidates",
    ">rejected",
    ">checked",
    ">machine codes",
    ">registers",
    ">spilling",
    ">merged reloads",
)
UNTIMED_NOTES = (
    "checked: built, and its simulation was right on every input set. machine codes: different ones among the checked.",
    "registers: least and most per thread. spilling, merged reloads (global loads that the compiler made into one):",
    "candidates of which the machine code says so. `tuner trials JOB` shows each beside its planned private scalars.",
)


def is_timed(job: Mapping[str, Any]) -> bool:
    """Whether candidates of the job are timed: they are on every device that is not compile-only."""
    return bool((job.get("device") or {}).get("timed", True))


def ended_well(job: Mapping[str, Any]) -> str:
    """The outcome, and counter, of the trials of a job that nothing is wrong with: ``measured`` or ``checked``."""
    return "measured" if is_timed(job) else "checked"


def untimed_row(case: Mapping[str, Any], progress: Mapping[str, int], trials: Iterable[Mapping[str, Any]]) -> list[str]:
    """One case of the table; ``trials`` are its own."""
    checked = [trial for trial in trials if trial["outcome"] == "checked" and trial["in_space"]]
    codes = [trial["code"] for trial in checked]
    registers = [code["registers"] for code in codes if code.get("registers") is not None]
    return [
        case_words(case),
        *(str(progress[count]) for count in ("enumerated", "rejected", "checked")),
        str(sum(trial["same_code_as"] is None for trial in checked)),
        _range(registers),
        str(sum(bool(code.get("spill_bytes")) for code in codes)),
        str(sum(bool(code.get("reload_merged")) for code in codes)),
    ]


def untimed_shortfalls(job: Mapping[str, Any]) -> list[str]:
    """Cases of which not one candidate was right."""
    return [
        f"{case_words(case)} has no candidate that was built and right: {case.get('error') or 'all were rejected'}"
        for case in job["cases"]
        if not case["progress"]["checked"]
    ]


def code_words(trial: Mapping[str, Any]) -> list[str]:
    """Registers, spilled bytes and shared bytes of a trial's machine code, in cells."""
    code = trial.get("code") or {}
    return [_cell(code.get(name)) for name in ("registers", "spill_bytes", "shared_bytes")]


def merged_words(code: Mapping[str, Any]) -> str:
    """What the compiler did to a reload whose loads it merged."""
    planned, counted = code.get("planned_load_sites"), (code.get("memory_instructions") or {}).get("LDG", {})
    found = sum(counted.values())
    if planned is None or found >= planned:
        return "its reloads were merged into one"
    return f"{found} of {planned} loads left: the compiler merged the others"


def names_registers(trials: Sequence[Mapping[str, Any]]) -> bool:
    """Whether some trial's machine code says how many registers it takes."""
    return any((trial.get("code") or {}).get("registers") is not None for trial in trials)


def _range(figures: Sequence[int]) -> str:
    if not figures:
        return NOTHING
    low, high = min(figures), max(figures)
    return str(low) if low == high else f"{low}–{high}"


def _cell(figure: int | None) -> str:
    return NOTHING if figure is None else str(figure)
