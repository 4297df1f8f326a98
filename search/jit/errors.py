"""Exceptions of the JIT side. What is wrong with the tensors of a call is ``search.errors.InvalidInput``.

::

    TunerError
    └── JitError
        ├── FrozenMismatch       what was rebuilt, or this machine, is not what the catalog froze
        │   ├── OtherDevice          frozen on another device
        │   ├── ProgramChanged       the kernel of that name computes something else in this version
        │   ├── PlanChanged          this version plans the candidate otherwise (a pulled library)
        │   ├── SourceChanged        this version lowers the candidate to other C text
        │   │   └── TextChanged          … to other TileLang text (a pulled library)
        │   └── MachineCodeChanged   this compiler makes other machine code of the same text
        ├── NotBuilt             the candidate is illegal, or does not compile
        ├── NotCompiled          no compiled library is at hand and ``may_compile`` is off
        ├── LoadFailed           the library cannot be loaded, or is not what its record says
        ├── LaunchFailed         the driver refused to launch a GPU kernel
        └── KernelFailed         the kernel returned a code
"""

from __future__ import annotations

from search.errors import TunerError
from search.outcome import Rejected


class JitError(TunerError):
    """Root of what building and calling a kernel raises, beside InvalidInput and ToolchainUnavailable."""


class FrozenMismatch(JitError):  # noqa: N818 - named for what happened, as in search.errors
    """Something differs from what was frozen; ``frozen`` and ``found`` are the two hashes."""

    what = "it"
    hint = ""

    def __init__(self, *, subject: str, frozen: str, found: str) -> None:
        self.subject, self.frozen, self.found = subject, frozen, found
        super().__init__(
            f"{subject}: {self.what} differs from the frozen one: frozen {frozen}, here {found}; {self.hint}"
        )


class OtherDevice(FrozenMismatch):
    """The entry was frozen on a device with another identity."""

    what = "this device's identity"
    hint = "look up with this machine's own device (catalogs.this_device(), search.jit.this_gpu()), or tune here"


class ProgramChanged(FrozenMismatch):
    """The program of that name is not the one that was frozen."""

    what = "the program's digest"
    hint = "it computes something else than what was frozen; give the program that was frozen, or tune this one"


class SourceChanged(FrozenMismatch):
    """The rebuilt source has another sha256."""

    what = "the rebuilt source"
    hint = "this version lowers the candidate to other text: tune and accept it again, or run the version that froze it"


class TextChanged(SourceChanged):
    """The TileLang text that this version emits has another sha256."""

    what = "the emitted TileLang text"


class PlanChanged(FrozenMismatch):
    """The plan's facts are others; the two hashes are of their canonical JSON."""

    what = "the plan"
    hint = "case and candidate do not give the plan that was frozen: tune and accept it again, or run that version"


class MachineCodeChanged(FrozenMismatch):
    """The source is the frozen one and the compiler made other machine code of it."""

    what = "the machine code"
    hint = "another compiler was used: pull the compiled library, or say allow_other_machine_code=True"


class NotBuilt(JitError):  # noqa: N818 - named for what happened
    """The candidate cannot be built; ``rejection`` says at which stage and why."""

    def __init__(self, *, subject: str, rejection: Rejected) -> None:
        self.rejection = rejection
        super().__init__(f"{subject}: rejected at {rejection.stage}: {rejection.reason} {dict(rejection.detail)}")


class NotCompiled(JitError):  # noqa: N818 - named for what happened
    """Nothing compiled is at hand, and compiling is not allowed."""


class LoadFailed(JitError):  # noqa: N818 - named for what happened
    """The compiled library is missing, damaged, or lacks the symbol or arguments that its record names."""


class LaunchFailed(JitError):  # noqa: N818 - named for what happened
    """The driver refused a launch, or the context was poisoned by what ran before."""


class KernelFailed(JitError):  # noqa: N818 - named for what happened
    """The kernel returned a non-zero code; its outputs are not to be used."""

    def __init__(self, *, subject: str, code: int) -> None:
        self.code = code
        super().__init__(f"{subject}: the kernel returned {code}; its outputs hold nothing")
