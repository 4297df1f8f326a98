"""The parent's hold on one measuring child across calls: started when needed, given its case, replaced when it died."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from search.children.child import Child, ChildExit, ChildGone, ChildTimeout
from search.errors import Cancelled, ChildFailed, DeviceContended, DeviceUnavailable
from search.program.case import Case

log = logging.getLogger(__name__)

Asked = Callable[[], bool]
"""Says whether the caller wants to stop."""


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Patience with children, in seconds."""

    item_seconds: float = 60.0
    """For everything that one candidate's code does, and for one round of finals."""
    prepare_seconds: float = 600.0
    """For our own work: start, inputs, oracle, torch's import and compilation."""


def utc_now() -> str:
    """RFC 3339 timestamp in UTC, to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def case_bytes(case: Case) -> int:
    """Bytes of all tensors of a case."""
    sizes = (case.domain_extent(tensor.axes) * case.element_bytes(tensor.name) for tensor in case.program.tensors)
    return sum(sizes)


def own_work_seconds(case: Case) -> float:
    """Generous allowance for checking three input sets of a case ourselves: comparisons, copies, page faults."""
    return 5.0 + case_bytes(case) / 4 * 3 * 200e-9


class Workbench:
    """At most one child, of one module, with at most one case. Not thread-safe: the Measurer serialises."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        work_dir: str,
        cpus: Sequence[int],
        lock_fd: int | None,
        timeouts: Timeouts,
        memory_limit_bytes: int | None = None,
        environment: Mapping[str, str] | None = None,
        kin: Callable[[], Sequence[int]] | None = None,
    ) -> None:
        """``kin``: on a GPU, gives the processes (as its driver counts them) that each command names as ``ours``."""
        self._module = module
        self._arguments = tuple(arguments)
        self._work_dir = work_dir
        self._cpus = tuple(cpus)
        self._lock_fd = lock_fd
        self._timeouts = timeouts
        self._memory_limit_bytes = memory_limit_bytes
        self._environment = dict(environment or {})
        self._child: Child | None = None
        self._case: dict[str, Any] | None = None
        self._kin = kin
        self.device_pids: set[int] = set()
        """Every child so far as the driver of its GPU counts processes: it tells of the dead for a while."""
        self.forks: str | None = None
        """What keeps foreign code in the present child from starting processes (``search.children.forks``)."""
        self.used = False
        """True once foreign code ran in the present child: what goes wrong now may be an earlier item's fault."""

    @property
    def pid(self) -> int | None:
        """Process id of the present child; None if there is none."""
        return self._child.pid if self._child else None

    def open(self, case: Case, cancelled: Asked) -> None:
        """Have a living child with this case on its bench. ChildFailed if a fresh one cannot even do that."""
        document = case.document()
        if self._child is not None and self._child.alive and self._case == document:
            return
        if self._child is not None and self._child.alive and self.used:
            try:
                self._put(document, cancelled)
            except (ChildGone, ChildTimeout):
                self.discard()  # something that ran earlier broke it: a fresh one follows
            else:
                return
        if self._child is None or not self._child.alive:
            self.discard()
            self._child = Child.start(
                self._module,
                self._arguments,
                cpus=self._cpus,
                lock_fd=self._lock_fd,
                environment=self._environment,
                memory_limit_bytes=self._memory_limit_bytes,
            )
        try:
            self._put(document, cancelled)
        except (ChildGone, ChildTimeout) as error:
            exit_ = self.discard()
            told = exit_.document() if exit_ else {}
            raise ChildFailed(f"{self._module} could not prepare {case.kernel} {dict(case.dims)}: {told}") from error

    def ask(self, cancelled: Asked, timeout_seconds: float, operation: str, **fields: Any) -> dict[str, Any]:
        """Send a command and wait for its first answer. Raises what :meth:`answer` raises."""
        self.tell(operation, **fields)
        return self.answer(cancelled, timeout_seconds)

    def tell(self, operation: str, **fields: Any) -> None:
        """Send a command."""
        assert self._child is not None, "open comes first"
        kin = {} if self._kin is None else {"ours": list(self._kin())}
        self._child.send({"op": operation, **fields, **kin})

    def answer(self, cancelled: Asked, timeout_seconds: float) -> dict[str, Any]:
        """Next answer. ChildGone, ChildTimeout, Cancelled (then the child is gone), ChildFailed (our own bug).

        DeviceContended (nothing was measured; ask again), DeviceUnavailable (then the child is gone too).
        """
        assert self._child is not None, "open comes first"
        try:
            message = self._child.receive(timeout_seconds=timeout_seconds, cancelled=cancelled)
        except Cancelled:
            self.discard()
            raise
        if message.get("event") == "broken":
            self.discard()
            raise ChildFailed(f"{self._module}: {message.get('error')}\n{message.get('traceback')}")
        if message.get("event") == "contended":
            raise DeviceContended(f"others compute on the device: processes {message['pids']}")
        if message.get("event") == "unavailable":
            self.discard()
            raise DeviceUnavailable(str(message["reason"]))
        return message

    def discard(self) -> ChildExit | None:
        """Kill the child, if there is one; how it ended."""
        if self._child is None:
            return None
        child, self._child, self._case, self.used = self._child, None, None, False
        return child.kill()

    def _put(self, document: dict[str, Any], cancelled: Asked) -> None:
        self._case = None
        ready = self.ask(cancelled, self._timeouts.prepare_seconds, "case", document=document, work_dir=self._work_dir)
        self._case = document
        self.device_pids.update(ready.get("device_pids", ()))
        before, self.forks = self.forks, ready.get("forks")
        if self.forks != before and self.forks is not None:
            level = logging.INFO if self.forks == "seccomp" else logging.WARNING
            log.log(level, "%s: what keeps kernels from starting processes is %s", self._module, self.forks)


class Deadline:
    """Seconds left until a moment that is fixed now."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Never negative."""
        return max(0.0, self._end - time.monotonic())
