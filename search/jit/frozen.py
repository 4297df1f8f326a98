"""From a frozen entry to what is to be built, after everything that can be compared without building was compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from catalogs import DeviceIdentity, Entry, KernelRow, this_device
from search.errors import InvalidInput, Problem
from search.jit.errors import MachineCodeChanged, OtherDevice, ProgramChanged, SourceChanged
from search.lowering.contract import Argument, Artifact, Launch
from search.program.case import Case
from search.program.digest import program_digest
from search.program.library import kernel_named, kernels
from search.program.resolve import resolve_case
from search.space.candidate import Candidate, TargetKind


class KernelTable(Protocol):
    """A catalog, as far as its kernels table goes (``catalogs.Catalog``, a snapshot)."""

    @property
    def kernels(self) -> tuple[KernelRow, ...]:
        """The rows."""
        ...


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """An entry of this machine whose program is known."""

    entry: Entry
    case: Case
    candidate: Candidate
    source_sha256: str
    artifact_sha256: str

    @property
    def subject(self) -> str:
        """For messages: which entry."""
        dims = ", ".join(f"{name}={extent}" for name, extent in self.entry.key.dims.items())
        return f"{self.entry.kernel} ({dims}), trial {self.entry.trial_id}"

    def library(self) -> Artifact | None:
        """The compiled library that the entry names, its path still to be found; None when it names none."""
        named = self.entry.artifact
        if named is None:
            return None
        try:
            arguments = tuple(Argument(**argument) for argument in named["arguments"])
        except TypeError as error:
            raise _unreadable("/artifact/arguments", named["arguments"], error) from None
        try:
            launch = Launch(**named["launch"]) if named.get("launch") is not None else None
        except TypeError as error:
            raise _unreadable("/artifact/launch", named["launch"], error) from None
        return Artifact(
            source_sha256=self.source_sha256,
            artifact_sha256=self.artifact_sha256,
            library_path="",
            library_sha256=named["library_sha256"],
            symbol=named["symbol"],
            arguments=arguments,
            launch=launch,
            architecture=named.get("architecture"),
        )

    def compare(self, built: Artifact, *, allow_other_machine_code: bool) -> None:
        """SourceChanged or MachineCodeChanged when what was built is not what was frozen."""
        if built.source_sha256 != self.source_sha256:
            raise SourceChanged(subject=self.subject, frozen=self.source_sha256, found=built.source_sha256)
        if built.artifact_sha256 != self.artifact_sha256 and not allow_other_machine_code:
            raise MachineCodeChanged(subject=self.subject, frozen=self.artifact_sha256, found=built.artifact_sha256)


def target_of(entry: Entry) -> TargetKind:
    """What an entry is for, as far as can be told before it is read: a CPU's mapping names lanes, a GPU's does not."""
    mapping = entry.candidate.get("mapping")
    others = entry.key.device != this_device().digest and isinstance(mapping, Mapping) and "local_lanes" not in mapping
    return "cuda" if others else "cpu"


def thaw(
    entry: Entry,
    *,
    program: Mapping[str, Any] | None,
    table: KernelTable | None,
    device: DeviceIdentity | None = None,
) -> Frozen:
    """The entry, checked against a device (default: this machine's CPU) and this version's programs.

    The program is the built-in kernel's, or ``program``, or that of the catalog's kernels table. Raises OtherDevice,
    ProgramChanged, or InvalidInput when the program is not known or the entry cannot be read.
    """
    _servable(entry)
    target: TargetKind = "cpu" if device is None else "cuda"
    here = this_device().digest if device is None else device.digest
    if entry.key.device != here:
        raise OtherDevice(subject=f"{entry.kernel}, trial {entry.trial_id}", frozen=entry.key.device, found=here)
    document = {"params": dict(entry.params), "dims": dict(entry.key.dims), "dtypes": dict(entry.key.dtypes)}
    found = _program(entry, program, table)
    what = {"kernel": entry.kernel} if found is None else {"program": found}
    case = resolve_case({**document, **what}, admitted=True)
    digest = program_digest(case.program, case.params)
    if digest != entry.key.program_digest:
        raise ProgramChanged(
            subject=f"{entry.kernel}, trial {entry.trial_id}", frozen=entry.key.program_digest, found=digest
        )
    try:
        candidate = Candidate.from_document(entry.candidate)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _unreadable("/candidate", dict(entry.candidate), error) from None
    if candidate.target != target:
        message = "a winner for another target than its device"
        raise InvalidInput(
            [Problem(field="/candidate/mapping", value=candidate.target, message=message, allowed=target)]
        )
    hashes = {name: entry.code.get(name) for name in ("source_sha256", "artifact_sha256")}
    for name, value in hashes.items():
        if not isinstance(value, str):
            message = "the entry does not say what its code is, so nothing can be compared with it"
            raise InvalidInput([Problem(field=f"/code/{name}", value=value, message=message, allowed="a sha256")])
    return Frozen(entry=entry, case=case, candidate=candidate, **hashes)  # type: ignore[arg-type] # both are texts


def _servable(entry: Entry) -> None:
    """InvalidInput for a winner that is called otherwise than this module calls: on one thread, outputs apart."""
    problems = []
    if entry.key.threads != 1:
        message = "kernels run on the calling thread alone"
        problems.append(Problem(field="/key/threads", value=entry.key.threads, message=message, allowed=1))
    if entry.key.aliasing != "none":
        message = "outputs overlap nothing"
        problems.append(Problem(field="/key/aliasing", value=entry.key.aliasing, message=message, allowed="none"))
    if problems:
        raise InvalidInput(problems)


def _program(entry: Entry, program: Mapping[str, Any] | None, table: KernelTable | None) -> Mapping[str, Any] | None:
    """The entry's program document; None for a built-in kernel."""
    if program is not None:
        return program
    if _built_in(entry):
        return None
    for row in table.kernels if table is not None else ():
        if row.program_digest == entry.key.program_digest and row.program is not None:
            return row.program
    kept = entry.extra.get("program")
    if isinstance(kept, Mapping):
        return kept
    if kernel_named(entry.kernel) is not None:
        return None
    message = "not a built-in kernel, and its program is not at hand: give catalog=, or program="
    raise InvalidInput([Problem(field="/kernel", value=entry.kernel, message=message, allowed=list(kernels()))])


def _built_in(entry: Entry) -> bool:
    """Whether the entry is of the built-in kernel of its name: a program that was sent may have had that name first."""
    kernel = kernel_named(entry.kernel)
    if kernel is None or kernel.params.keys() != entry.params.keys():
        return False
    return program_digest(kernel.program, entry.params) == entry.key.program_digest


def _unreadable(field: str, value: Any, error: Exception) -> InvalidInput:
    message = f"not of this version's form ({error})"
    return InvalidInput([Problem(field=field, value=value, message=message, allowed=None)])
