"""Schedule → TileLang text. Pure: imports no TileLang; equal schedules give equal text."""

from __future__ import annotations

from math import prod

from search.lowering import names
from search.lowering.contract import Emitted
from search.lowering.cpu.geometry import Geometry, geometry_of
from search.lowering.cpu.narrow import Narrow
from search.lowering.cpu.rows import RowSteps
from search.lowering.cpu.traversal import Traversal
from search.lowering.expressions import Scope
from search.lowering.known_names import known_names
from search.lowering.opening import opening
from search.lowering.preamble import helper_source
from search.lowering.row_steps import known_reducers, write_steps
from search.lowering.states import partial_arrays
from search.lowering.tensors import Layout, array_layout, layout_of
from search.lowering.text import Text
from search.planning.schedule import (
    DistributedLoop,
    GlobalStore,
    Schedule,
    flat_steps,
)

SYMBOL = "kernel"
PASS_CONFIG = {"tl.disable_safe_memory_legalize": True, "tirx.disable_vectorize": True}
"""Our subscripts are proven or clamped, so TileLang's own guards would only cost; gcc vectorises better than it."""

_IMPORTS = """import struct
from math import inf

import tilelang
import tilelang.cpu.language as T

F32 = "float32"
I32 = "int32"
"""
_BITS = 'U16 = "uint16"\n'
"""How elements of 16 bits are stored: TileLang's C text has no bfloat16."""

_NO_CONTRACTION = """
CONTRACTION = False  # a strict fold rounds every operation, so the C compiler may not make fma of them
"""

_SHARED = """
SHARED = {names}  # arguments whose buffers may be the same: no restrict
"""

_MAIN = """

if __name__ == "__main__":
    from tilelang import tvm
    from tilelang.engine import lower

    target = tvm.target.Target("c")
    config = {config}
    with tvm.transform.PassContext(opt_level=3, config=config), target:
        print(lower(kernel, target=target).kernel_source)
"""


def emit(schedule: Schedule) -> Emitted:
    """The schedule as one Python module that defines ``kernel`` and prints its C text when run.

    Raises UnsupportedError for what this target cannot express.
    """
    return Emitted(tilelang_text=_Module(schedule).source(), symbol=SYMBOL)


class _Module:
    """One emission: collects the body first, because the preamble depends on what the body calls."""

    def __init__(self, schedule: Schedule) -> None:
        case = schedule.case
        self.schedule, self.case = schedule, case
        self.geometry: Geometry = geometry_of(schedule)
        self.rows = names.dim(case.program.row_axis.dim)
        self.layouts: dict[str, Layout] = {t.name: layout_of(case, t) for t in case.program.tensors}
        self.used: set[str] = set()
        self.blocks: set[str] = set()
        """Runs of float16 that wait as float32: of a value that was read, or of a tensor to be written."""

    def source(self) -> str:
        """The whole module."""
        body = self._body()
        head = opening(
            self.schedule,
            "Functions called tuner_* and the marks TUNER_* belong to the header tuner.h beside this file.",
        )
        helpers = "".join(f"\n\n{helper_source(name)}\n" for name in sorted(self.used))
        parts = [head, _IMPORTS, _BITS if "U16" in helpers + body else ""]
        if any(state.strict for state in self.schedule.reducers):
            parts.append(_NO_CONTRACTION)
        shared = [name for t in self.case.program.tensors if t.aliases for name in (t.aliases, t.name)]
        if shared:
            parts.append(_SHARED.format(names=repr(tuple(names.tensor(name) for name in shared)).replace("'", '"')))
        return "".join([*parts, helpers, body, _MAIN.format(config=repr(PASS_CONFIG).replace("'", '"'))])

    def _body(self) -> str:
        text = Text()
        text.line("")
        text.line("")
        text.line(f'{self.rows} = T.dynamic("{self.rows}")')
        text.line("")
        text.line("")
        text.line("@T.prim_func")
        arguments = (
            f"{names.tensor(n)}: T.Tensor({layout.shape(self.rows)}, {_constant(layout.dtype)})"
            for n, layout in self.layouts.items()
        )
        with text.block(f"def {SYMBOL}({', '.join(arguments)}):"):
            grid = f"T.ceildiv({self.rows}, {self.geometry.slots})" if self.geometry.slots > 1 else self.rows
            with text.block(f"with T.Kernel({grid}) as bx:"):
                at = len(text.lines)
                self._steps(text)
                steps = text.lines[at:]
                del text.lines[at:]
                self._storage(text)
                text.lines += steps
        return text.source()

    def _storage(self, text: Text) -> None:
        """Everything a packet holds: partials, row scalars, private tiles, packets to stream."""
        geometry, schedule = self.geometry, self.schedule
        for state in schedule.reducers:
            shape = f"({state.elements * geometry.row_block * geometry.partials}, {geometry.width})"
            if state.strict:
                shape = f"({state.elements * geometry.row_block}, {geometry.rows_across})"
            for held in partial_arrays(state):
                text.line(f"{held.text} = T.alloc_local({shape}, {_constant(held.dtype)})")
        for name, dtype in schedule.scalar_dtypes:
            text.line(f"{names.scalar(name)} = T.alloc_local(({geometry.slots},), {_constant(dtype)})")
        for array in schedule.arrays:
            shape = f"({geometry.slots}, {prod(array.extents)})"
            text.line(f"{names.array(array.name)} = T.alloc_local({shape}, {_constant(array.dtype)})")
        for tile in schedule.private_tiles:
            passes = -(-tile.extent // geometry.chunk)
            shape = f"({geometry.row_block}, {passes * geometry.width * geometry.vector})"
            text.line(f"{names.tile(tile.name)} = T.alloc_local({shape}, {_constant(tile.dtype)})")
        for tensor in self._streamed():
            stored = _constant(self.layouts[tensor].dtype)
            text.line(f"{names.stream(tensor)} = T.alloc_local(({geometry.chunk},), {stored})")
        for name in sorted(self.blocks):
            text.line(f"{names.block(name)} = T.alloc_local(({geometry.chunk},), F32)")
        if geometry.slots > 1:
            text.line(f"row = T.alloc_local(({geometry.slots},), I32)")
            with text.block(f"for g in T.serial({geometry.slots}):"):
                text.line(f"row[g] = T.min(bx * {geometry.slots} + g, {self.rows} - 1)")

    def _streamed(self) -> list[str]:
        out = []
        for step, _ in flat_steps(self.schedule.steps):
            for op in step.ops if isinstance(step, DistributedLoop) else ():
                if isinstance(op, GlobalStore) and op.streaming and op.tensor not in out:
                    out.append(op.tensor)
        return out

    def _steps(self, text: Text) -> None:
        scope = Scope(
            names=known_names(
                self.schedule, Scope(names={}, coordinates={}, used=self.used), rows=self.rows, slot=self.geometry.slot
            ),
            coordinates={self.case.program.row_axis.name: self.geometry.row},
            used=self.used,
        )
        reducers = known_reducers(self.schedule)
        arrays = {array.name: array_layout(array) for array in self.schedule.arrays}
        steps = RowSteps(
            text=text,
            geometry=self.geometry,
            scope=scope,
            layouts=self.layouts,
            reducers=reducers,
            arrays=arrays,
            rows=self.rows,
        )
        extents = {axis.name: self.case.extent(axis.name) for axis in self.case.program.axes}
        tile_dtypes = {tile.name: tile.dtype for tile in self.schedule.private_tiles}

        def traverse(loop: DistributedLoop) -> None:
            Traversal(
                text=text,
                geometry=self.geometry,
                loop=loop,
                scope=scope,
                layouts=self.layouts,
                extents=extents,
                reducers=reducers,
                arrays=arrays,
                rows=self.rows,
                narrow=Narrow(loop, self.geometry, self.layouts, tile_dtypes, self.blocks),
            ).write()

        write_steps(text, self.schedule, rows=self.rows, loop=traverse, row=steps)


def _constant(dtype: str) -> str:
    """The text's constant for a storage dtype (conditions are held as int32)."""
    return {"float32": "F32", "int32": "I32", "bool": "I32", "float16": "U16", "bfloat16": "U16"}[dtype]
