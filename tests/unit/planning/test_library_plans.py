"""Every kernel of the library has candidates in every shape of the seeds; empty cases have a message."""

import pytest

from search.errors import InvalidInput
from search.planning.plan import plan_case
from search.program.library import kernels
from search.program.resolve import resolve_case
from search.space.resolve import resolve_space

SHAPES = [
    (1, 1), (5, 1), (1, 4096), (17, 65), (17, 66), (64, 128), (64, 256), (23, 769), (128, 2048), (128, 8193),
    (17, 16384), (1024, 4096),
]  # fmt: skip


def dims(kernel, rows, columns):
    names = kernels()[kernel].program.dims
    if names == ("rows", "cols"):
        return {"rows": rows, "cols": columns}
    assert names == ("rows", "parts", "half"), "say here what a shape means for this kernel"
    return {"rows": rows, "parts": 2, "half": columns // 2}


@pytest.mark.parametrize("kernel", kernels())
def test_some_candidate_is_accepted_in_every_shape(kernel):
    for rows, columns in SHAPES:
        extents = dims(kernel, rows, columns)
        if 0 in extents.values():  # half of one column
            continue
        case = resolve_case({"kernel": kernel, "dims": extents})
        planned = list(plan_case(case, resolve_space({"fusion": ["separate", "fused"]}, case, "cpu")))
        assert any(item.rejection is None for item in planned if item.in_space), (rows, columns)
        (default,) = (item for item in planned if item.is_default)
        assert default.rejection is None, (rows, columns, default.rejection)


@pytest.mark.parametrize("kernel", kernels())
def test_no_rows_and_no_columns_are_refused(kernel):
    for extents in (dims(kernel, 0, 8), dims(kernel, 3, 0)):
        with pytest.raises(InvalidInput, match="must be positive"):
            resolve_case({"kernel": kernel, "dims": extents})
