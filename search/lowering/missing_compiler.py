"""Why a name or a path is no compiler."""

from __future__ import annotations

from pathlib import Path


def missing_compiler(kind: str, wanted: str, mend: str) -> str:
    """What to tell whoever named ``wanted`` where no program is; ``mend`` says what to do."""
    path = Path(wanted)
    if path.is_dir():
        return f"{kind} {wanted!r} is a directory; name the program in it, or {mend}"
    if path.name != wanted and path.exists():
        return f"{kind} {wanted!r} cannot be run: it is no executable file; {mend}"
    return f"{kind} {wanted!r} not found; {mend}"
