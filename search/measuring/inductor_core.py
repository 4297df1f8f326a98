"""What torch.compile computes, called without torch.compile's own cost per call. Torch child only.

Dynamo's guards and dispatch take about 20 µs a call whatever the kernel; the compiled function below them is what a
kernel competes with. It is caught where Inductor hands it over, with the inputs of its first call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class NotOneGraph(Exception):  # noqa: N818 - becomes the baseline's ``error``
    """The computation did not become exactly one compiled function."""


Bound = Callable[[Sequence[Any]], Callable[[], Sequence[Any]]]
"""Tensors → a call over them."""


def inductor_core(torch: Any, run: Callable[..., Any], tensors: Sequence[Any]) -> Bound:
    """Compile ``run(*tensors)``; Inductor's function over these tensors, or others like them, its results in order."""
    from torch._functorch import config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    caught: list[tuple[Any, list[Any]]] = []

    def inner(graph: Any, example_inputs: Sequence[Any], **options: Any) -> Any:
        compiled = compile_fx_inner(graph, example_inputs, **options)

        def first(inputs: list[Any]) -> Any:
            # A copy: the compiled function empties the list that it is given.
            caught.append((compiled, list(inputs)))
            return compiled(inputs)

        first._boxed_call = True  # type: ignore[attr-defined]
        return first

    def backend(graph: Any, example_inputs: Sequence[Any]) -> Any:
        return compile_fx(graph, example_inputs, inner_compile=inner)

    # A function from the autograd cache would not come past ``inner``.
    with config.patch(enable_autograd_cache=False):
        torch.compile(run, backend=backend, fullgraph=True)(*tensors)
    if len(caught) != 1:
        raise NotOneGraph(f"the program became {len(caught)} compiled functions, not one")
    ((compiled, inputs),) = caught
    function = getattr(compiled, "current_callable", None) or compiled
    # It takes the tensors that it needs, in an order of its own.
    places = {tensor.data_ptr(): place for place, tensor in enumerate(tensors)}

    def bound(given: Sequence[Any]) -> Callable[[], Sequence[Any]]:
        taken = [
            given[places[one.data_ptr()]] if isinstance(one, torch.Tensor) and one.data_ptr() in places else one
            for one in inputs
        ]
        return lambda: function(list(taken))

    return bound
