"""Schedule → TileLang text for CUDA. Pure: imports no TileLang; equal schedules give equal text."""

from __future__ import annotations

import json
import re
from math import prod

from search.lowering import names
from search.lowering.contract import Emitted
from search.lowering.cuda.expressions import STORED, CudaScope
from search.lowering.cuda.fragments import Fragments
from search.lowering.cuda.geometry import Geometry, geometry_of
from search.lowering.cuda.preamble import MAIN, PASS_CONFIG, definitions, imports
from search.lowering.cuda.reducers import DEFERRED, array_lines, deferred_reducers
from search.lowering.cuda.rows import RowSteps
from search.lowering.cuda.texts import SYMBOL
from search.lowering.cuda.traversal import Traversal
from search.lowering.known_names import known_names
from search.lowering.opening import opening
from search.lowering.row_steps import known_reducers, write_steps
from search.lowering.tensors import Layout, array_layout, layout_of
from search.lowering.text import Text
from search.planning.schedule import DistributedLoop, GlobalStore, RowStore, Schedule, Step

_THREAD = re.compile(r"\btx\b")


def emit(schedule: Schedule) -> Emitted:
    """The schedule as one Python module that defines ``kernel`` and prints its CUDA text when run.

    Raises UnsupportedError for what this target cannot express.
    """
    return Emitted(tilelang_text=_Module(schedule).source(), symbol=SYMBOL)


class _Module:
    """One emission: collects the body first, because what stands before it depends on what it uses."""

    def __init__(self, schedule: Schedule) -> None:
        case = schedule.case
        self.schedule, self.case = schedule, case
        self.rows = names.dim(case.program.row_axis.dim)
        self.geometry: Geometry = geometry_of(schedule, self.rows)
        self.layouts: dict[str, Layout] = {t.name: layout_of(case, t) for t in case.program.tensors}
        self.fragments = Fragments(self.geometry, schedule.private_tiles)
        self.deferred = deferred_reducers(schedule, self.geometry)
        self.used: set[str] = set()
        self.shared = [name for t in case.program.tensors if t.aliases for name in (t.aliases, t.name)]
        """Arguments whose buffers may be the same."""

    def source(self) -> str:
        """The whole module."""
        body = self._body()
        head = opening(
            self.schedule,
            "Functions called tuner_* and the namespace tuner belong to the header tuner.cuh beside this file.",
        )
        layouts = self.fragments.source() if "PASS" in body or "owners(" in body else ""
        helpers = definitions(self.used, self.geometry)
        main = MAIN.format(config=json.dumps(PASS_CONFIG).replace("true", "True"))
        rows = f"ROWS_PER_BLOCK = {self.geometry.rows_per_block}\n"
        return "".join([head, imports(helpers + body), rows, helpers, layouts, body, main])

    def _body(self) -> str:
        text = Text()
        text.line("")
        text.line("")
        text.line(f'{self.rows} = T.dynamic("{self.rows}")')
        text.line("")
        text.line("")
        text.line("@T.prim_func")
        arguments = (
            f"{names.tensor(n)}: T.Tensor({layout.shape(self.rows)}, {STORED[layout.dtype]})"
            for n, layout in self.layouts.items()
        )
        geometry = self.geometry
        launch = f"with T.Kernel({geometry.grid}, threads={geometry.threads}) as bx:"
        with text.block(f"def {SYMBOL}({', '.join(arguments)}):"), text.block(launch):
            at = len(text.lines)
            self._steps(text)
            steps = text.lines[at:]
            del text.lines[at:]
            self._storage(text, needs_thread=any(_THREAD.search(line) for line in steps))
            text.lines += steps
        return text.source()

    def _storage(self, text: Text, *, needs_thread: bool) -> None:
        """What the launch is told, and everything a thread holds: partials, row scalars, fragments."""
        geometry, schedule = self.geometry, self.schedule
        text.line("""T.import_source('#include "tuner.cuh"\\n')""")
        if self.shared:
            text.line(f"T.annotate_restrict_buffers({', '.join(names.tensor(name) for name in self.shared)})")
        if geometry.min_blocks > 0:
            text.line(f"T.annotate_min_blocks_per_sm({geometry.min_blocks})")
        if needs_thread or geometry.rows_per_block > 1:
            text.line("tx = T.get_thread_binding()")
        if geometry.rows_per_block > 1:
            first = f"bx * {geometry.rows_per_block} + tx // {geometry.width}"
            text.line("row = T.alloc_local((1,), I32)")
            text.line(f"row[0] = T.min({first}, {self.rows} - 1)")
        for state in schedule.reducers:
            if state.name in self.deferred:
                dtype, op = STORED[state.dtype], DEFERRED[state.op, state.dtype]
                shape = f"({geometry.rows_per_block},)"
                text.line(f'{names.partials(state.name)} = T.alloc_reducer({shape}, {dtype}, op="{op}")')
                text.line(f"{names.delivered(state.name)} = T.alloc_fragment({shape}, {dtype})")
                continue
            for line in array_lines(state, geometry, STORED):
                text.line(line)
        for name, dtype in schedule.scalar_dtypes:
            text.line(f"{names.scalar(name)} = T.alloc_local((1,), {STORED[dtype]})")
        for array in schedule.arrays:
            text.line(f"{names.array(array.name)} = T.alloc_local(({prod(array.extents)},), {STORED[array.dtype]})")
        self.fragments.declare(text)

    def _steps(self, text: Text) -> None:
        strict = any(state.strict for state in self.schedule.reducers)
        scope = CudaScope(
            names=known_names(
                self.schedule, CudaScope(names={}, coordinates={}, used=self.used), rows=self.rows, slot="0"
            ),
            coordinates={},
            used=self.used,
            contracted=not strict,
        )
        reducers = known_reducers(self.schedule)
        arrays = {array.name: array_layout(array) for array in self.schedule.arrays}
        row_axis = self.case.program.row_axis.name
        rows = RowSteps(
            text=text,
            geometry=self.geometry,
            scope=scope,
            layouts=self.layouts,
            reducers=reducers,
            deferred=self.deferred,
            arrays=arrays,
            row_axis=row_axis,
        )
        extents = {axis.name: self.case.extent(axis.name) for axis in self.case.program.axes}

        def traverse(loop: DistributedLoop) -> None:
            Traversal(
                text=text,
                geometry=self.geometry,
                loop=loop,
                scope=scope,
                layouts=self.layouts,
                extents=extents,
                reducers=reducers,
                deferred=self.deferred,
                arrays=arrays,
                row_axis=row_axis,
                fragments=self.fragments,
            ).write()

        def wait(step: Step) -> None:
            if self._overwrites(step):
                text.line("T.sync_threads()  # other lanes may still read what is written over")

        write_steps(text, self.schedule, rows=self.rows, loop=traverse, row=rows, before=wait)

    def _overwrites(self, step: Step) -> bool:
        """Whether a step writes into a buffer that it, or lanes that are behind, may still read."""
        if isinstance(step, RowStore):
            return step.tensor in self.shared
        ops = step.ops if isinstance(step, DistributedLoop) else ()
        return any(isinstance(op, GlobalStore) and op.tensor in self.shared for op in ops)
