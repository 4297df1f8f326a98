"""A child's death or silence as the rejection of the candidate that was running. Parent side."""

from __future__ import annotations

from search.children.child import ChildExit
from search.outcome import Rejected


def died(doing: str, exit_: ChildExit) -> Rejected:
    """``crashed`` by a signal, or ``exited`` without an answer."""
    reason = "crashed" if exit_.signal_name else "exited"
    return Rejected(stage="runtime", reason=reason, detail={"while": doing, **exit_.document()})


def timed_out(seconds: float, doing: str, exit_: ChildExit) -> Rejected:
    """No answer in time; the child was killed."""
    detail = {"while": doing, "seconds": seconds, "log_tail": exit_.log_tail}
    return Rejected(stage="timeout", reason="no_result", detail=detail)
