"""TorchCall: what somebody would write in torch, as data. Nothing here imports torch.

A baseline is a tuple of calls, run in order; a call's result has a name, and later calls may use it. An empty tuple
says that the program is evaluated statement by statement with torch operations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from search.program.ir import Program

NAMESPACES = ("torch", "torch.nn.functional", "torch.special", "torch.linalg", "torch.Tensor")
"""Where the functions of a call may live, directly."""

PREALLOCATED = "preallocated"
ALLOCATED = "allocated_by_torch"


@dataclass(frozen=True, kw_only=True)
class TorchCall:
    """A call of a torch function, as data.

    In ``arguments`` and ``keywords`` the text ``"$name"`` stands for a tensor, param or dim of the program, or for an
    earlier call's result; lists are walked.
    """

    function: str
    """Dotted name, directly in one of ``NAMESPACES``: ``torch.nn.functional.rms_norm``."""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    arguments: tuple[Any, ...] = ()
    """Positional ones, for methods (``torch.Tensor.long``) and what torch takes in no other way."""
    into: str
    """The output that the result is, or a new name for later calls."""
    out: str | None = None
    """The keyword that takes a preallocated result; None if the function has none and always allocates."""
    wrong_at_plus_infinity: bool = False
    """The function is known to be wrong for +inf, so rows that hold it are not compared when a baseline is checked."""
    untimed: bool = False
    """Done before anything is timed: it gives an input the form in which a torch user would hold it."""

    def document(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "function": self.function,
            "arguments": list(self.arguments),
            "keywords": dict(self.keywords),
            "into": self.into,
            "out": self.out,
            "wrong_at_plus_infinity": self.wrong_at_plus_infinity,
            "untimed": self.untimed,
        }

    def text(self, *, named: bool = False) -> str:
        """The call as a line of Python, with ``$`` before what is given; with ``named`` what its result is called."""
        words = [_shown(value) for value in self.arguments]
        words += [f"{keyword}={_shown(value)}" for keyword, value in self.keywords.items()]
        if self.out is not None:
            words.append(f"{self.out}=${self.into}")
        return f"{f'{self.into} = ' if named else ''}{self.function}({', '.join(words)})"


def references(value: Any) -> list[str]:
    """The names that an argument refers to, in order."""
    if isinstance(value, str) and value.startswith("$"):
        return [value[1:]]
    if isinstance(value, list | tuple):
        return [name for item in value for name in references(item)]
    return []


def call_references(call: TorchCall) -> list[str]:
    """The names that a call's arguments refer to, in order."""
    return references([*call.arguments, *call.keywords.values()])


def bound(value: Any, values: Mapping[str, Any]) -> Any:
    """An argument with each ``"$name"`` replaced by ``values[name]`` (KeyError if it is not there)."""
    if isinstance(value, str) and value.startswith("$"):
        return values[value[1:]]
    if isinstance(value, list | tuple):
        return [bound(item, values) for item in value]
    return value


def call_problems(program: Program, calls: tuple[TorchCall, ...]) -> list[str]:
    """What is wrong with the calls of a program's baseline, in words: names, places of functions, missing outputs."""
    outputs = {tensor.name for tensor in program.tensors if tensor.role == "output"}
    known = {tensor.name for tensor in program.tensors} - outputs
    known |= {param.name for param in program.params} | set(program.dims)
    problems = []
    timed: set[str] = set()
    for call in calls:
        namespace, _, function = call.function.rpartition(".")
        if namespace not in NAMESPACES or not function.isidentifier() or function.startswith("_"):
            problems.append(f"{call.function} is no public function directly in {', '.join(NAMESPACES)}")
        problems += [f"{call.text()} reads {name}, which nothing gives" for name in unknown(call, known)]
        if call.into in known:
            problems.append(f"{call.text()} gives {call.into}, which is taken")
        if call.out is not None and call.into not in outputs:
            problems.append(f"{call.text()} has {call.out}=, but {call.into} is no output")
        if call.untimed and timed & set(call_references(call)):
            problems.append(f"{call.text()} is untimed, but needs the result of a timed call")
        timed |= set() if call.untimed else {call.into}
        known.add(call.into)
    missing = sorted(outputs - known) if calls else []
    return problems + [f"no call computes {name}" for name in missing]


def unknown(call: TorchCall, known: Collection[str]) -> list[str]:
    """The names that a call refers to and nothing gives."""
    return [name for name in call_references(call) if name not in known]


def allocation(calls: tuple[TorchCall, ...], outputs: tuple[str, ...]) -> str:
    """Who owns the outputs' memory; what lies between is always allocated by torch."""
    own = [call.into for call in calls if call.out is not None]
    if calls and all(output in own for output in outputs):
        return PREALLOCATED
    return f"{PREALLOCATED}: {', '.join(own)}" if own else ALLOCATED


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_shown(item) for item in value)}]"
    return value if isinstance(value, str) and value.startswith("$") else repr(value)
