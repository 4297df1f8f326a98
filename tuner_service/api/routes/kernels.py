"""``/v1/kernels``: the kernels that have names."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import JSONResponse

from search.device.spec import DTYPES_BY_TARGET
from search.program.library import kernel_document, kernels
from search.space.candidate import TargetKind
from search.space.knobs import default_lists, target_knobs
from tuner_service.api import kinds, schemas
from tuner_service.api.documented import problems
from tuner_service.api.pages import Cursor, Limit, page_response, whole
from tuner_service.api.problems import ProblemError

router = APIRouter(prefix="/v1/kernels", tags=["kernels"])


@router.get(
    "",
    summary="List the kernels",
    response_model=None,
    responses={200: {"model": schemas.KernelPage}, **problems()},
)
def list_kernels(request: Request, limit: Limit = 1000, cursor: Cursor = None) -> JSONResponse:
    """Built-in kernels and those of installed packages, each with its params, dims, tensors and dtypes, its program as
    a document, its torch baseline, and the default space of each device kind. The list always fits one page."""
    return page_response(request, whole([document(name) for name in kernels()]))


@router.get(
    "/{name}",
    summary="One kernel",
    response_model=None,
    responses={200: {"model": schemas.KernelDocument}, **problems(kinds.NOT_FOUND)},
)
def get_kernel(
    name: Annotated[str, Path(description="Name of a kernel.", examples=["rms_norm"])],
) -> JSONResponse:
    """The kernel's params with defaults, dims in declared order, tensors, dtypes, program and default space."""
    if name not in kernels():
        known = ", ".join(kernels())
        raise ProblemError(kinds.NOT_FOUND, f"there is no kernel of that name; there are {known}")
    return JSONResponse(document(name))


def document(name: str) -> dict[str, Any]:
    """JSON of a kernel, with the default space and the knobs of each target that has a lowering."""
    targets: list[TargetKind] = [target for target in ("cpu", "cuda") if target in DTYPES_BY_TARGET]
    return {
        **kernel_document(kernels()[name]),
        "default_space": {target: default_lists(target) for target in targets},
        "knobs": {target: [knob.document(target) for knob in target_knobs(target)] for target in targets},
    }
