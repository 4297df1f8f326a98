"""Whether TileLang mapped a kernel to threads as its candidate says. What differs is rejected, never run as it is."""

from __future__ import annotations

import re

from search.lowering.cuda.dialect import CudaKernel
from search.planning.schedule import Schedule
from search.space.candidate import CudaMapping

_COLLECTIVE = re.compile(r"tl::AllReduce<(?P<op>[\w:]+), (?P<lanes>\d+), (?P<scale>\d+)")


class MappingError(ValueError):
    """TileLang mapped a kernel to threads in another way than its candidate says."""


def check_mapping(kernel: CudaKernel, schedule: Schedule) -> None:
    """Raises MappingError unless every collective combines the W consecutive lanes of one row, and W·R threads run.

    With several rows in a block a wider collective would mix rows, or reduce them one after the other.
    """
    width, mapping = schedule.candidate.width, schedule.candidate.mapping
    assert isinstance(mapping, CudaMapping)
    threads = width * mapping.rows_per_block
    if kernel.launch.threads_per_block != threads:
        raise MappingError(f"TileLang runs {kernel.launch.threads_per_block} threads in a block, not {threads}")
    for found in _COLLECTIVE.finditer(kernel.body):
        if (int(found["lanes"]), int(found["scale"])) != (width, 1):
            raise MappingError(f"TileLang combines rows by {found[0]}>, not over {width} consecutive lanes")
