"""A kernel's torch calls as one function of tensors. Torch child only.

The calls are data of our library or of an installed package (``TorchCall``), never of a request. Their functions are
resolved here: public ones, directly in one of ``NAMESPACES``. They become a torch.fx graph, so that eager mode runs the
lines that somebody would write, no dispatch of ours between them, and torch.compile sees an ordinary module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search.program.library.torch_call import NAMESPACES, TorchCall, bound, call_references


@dataclass(frozen=True, kw_only=True)
class TorchSequence:
    """A torch module that gives the outputs as a tuple, and the tensors to call it with."""

    module: Any
    tensors: tuple[Any, ...]
    prepare: Callable[[], None]
    """Brings tensors that follow from the inputs up to date: what is done before anything is timed."""


def torch_sequence(
    torch: Any,
    calls: Sequence[TorchCall],
    tensors: Mapping[str, Any],
    numbers: Mapping[str, float | int],
    outputs: Sequence[str],
    *,
    preallocated: bool,
) -> TorchSequence:
    """The module of some calls; its results are ``outputs``, in that order.

    With ``preallocated`` each call that can writes into the output's own tensor. Raises ValueError for functions that
    a baseline may not name and for outputs that no call computes, KeyError for names that nothing has.
    """
    before, calls = [call for call in calls if call.untimed], [call for call in calls if not call.untimed]
    forms = _forms(torch, before, {**numbers, **tensors})
    tensors = {**tensors, **forms}

    def prepare() -> None:
        for name, value in _forms(torch, before, {**numbers, **tensors}).items():
            forms[name].copy_(value)

    graph = torch.fx.Graph()
    made = [call.into for call in calls]
    missing = [name for name in outputs if name not in made]
    if missing:
        raise ValueError(f"no call of the baseline computes {', '.join(missing)}")
    own = [call.into for call in calls if preallocated and call.out is not None]
    used = {name for call in calls for name in call_references(call)}
    taken = [name for name in tensors if name in own or (name in used and name not in made)]
    given = {name: graph.placeholder(f"tensor_{place}") for place, name in enumerate(taken)}
    values: dict[str, Any] = {**numbers, **{name: given[name] for name in taken if name not in made}}
    for call in calls:
        keywords = {name: bound(value, values) for name, value in call.keywords.items()}
        if call.into in own:
            keywords[str(call.out)] = given[call.into]
        arguments = tuple(bound(value, values) for value in call.arguments)
        values[call.into] = graph.call_function(resolve(torch, call.function), arguments, keywords)
    graph.output(tuple(values[name] for name in outputs))
    given_tensors = tuple(tensors[name] for name in taken)
    return TorchSequence(module=torch.fx.GraphModule({}, graph), tensors=given_tensors, prepare=prepare)


def _forms(torch: Any, calls: Sequence[TorchCall], values: Mapping[str, Any]) -> dict[str, Any]:
    """The results of untimed calls."""
    found: dict[str, Any] = {}
    for call in calls:
        known = {**values, **found}
        arguments = [bound(value, known) for value in call.arguments]
        keywords = {name: bound(value, known) for name, value in call.keywords.items()}
        found[call.into] = resolve(torch, call.function)(*arguments, **keywords)
    return found


def resolve(torch: Any, dotted: str) -> Any:
    """A torch function by its dotted name. ValueError for anything that is not public and where functions live."""
    namespace, _, name = dotted.rpartition(".")
    if namespace not in NAMESPACES or not name.isidentifier() or name.startswith("_"):
        raise ValueError(f"a baseline names a public function in {', '.join(NAMESPACES)}, not {dotted!r}")
    found = torch
    for part in dotted.split(".")[1:]:
        found = getattr(found, part, None)
    if not callable(found):
        raise ValueError(f"{dotted} is not a function")
    return found
