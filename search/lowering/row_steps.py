"""What every target writes of a schedule's steps alike: their order, serial loops, and what belongs to a row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager

from search.lowering import names
from search.lowering.expressions import IDENTITIES, Scope, UnsupportedError
from search.lowering.purposes import purpose
from search.lowering.tensors import Layout
from search.lowering.text import Text
from search.planning.schedule import (
    Collective,
    DistributedLoop,
    OpenReducer,
    ReducerState,
    RowCompute,
    RowLoad,
    RowStore,
    RowUpdate,
    Schedule,
    SerialLoop,
    Step,
)
from search.program.ir import STRUCTURED_OPS


class RowWriter(ABC):
    """Writes the steps that belong to a row, not to its elements: epochs, collectives, row scalars, row stores."""

    text: Text
    scope: Scope
    layouts: Mapping[str, Layout]
    reducers: Mapping[str, ReducerState]

    def write(self, step: Step) -> None:
        """One step that is no loop."""
        match step:
            case OpenReducer():
                self._open(self.reducers[step.reducer])
            case RowUpdate():
                self._update(step)
            case Collective():
                self._collective(step)
            case RowLoad():
                with self._each_row():
                    index = self.layouts[step.tensor].index(step.index, self.scope, self._row, ())
                    stored = f"{names.tensor(step.tensor)}[{index}]"
                    self._assign(step.into, self.scope.widened(stored, step.dtype).text)
            case RowCompute():
                with self._each_row():
                    self._assign(step.into, self.scope.render_as(step.value, step.dtype).text)
            case RowStore():
                layout = self.layouts[step.tensor]
                with self._each_live_row():
                    index = layout.index(layout.natural, self.scope, self._row, ())
                    value = self.scope.narrowed(step.value, layout.dtype)
                    self.text.line(f"{names.tensor(step.tensor)}[{index}] = {value.text}")
            case DistributedLoop() | SerialLoop():
                raise TypeError("loops are written by Traversal and by write_steps")

    def _assign(self, scalar: str, value: str) -> None:
        self.text.line(f"{names.scalar(scalar)}[{self._slot}] = {value}")

    @property
    @abstractmethod
    def _row(self) -> str:
        """Text of the row that is worked on."""

    @property
    @abstractmethod
    def _slot(self) -> str:
        """Index text of a row scalar."""

    @abstractmethod
    def _each_row(self) -> AbstractContextManager[object]:
        """Within it: every row that is worked on."""

    @abstractmethod
    def _each_live_row(self) -> AbstractContextManager[object]:
        """Within it: every row that is there, by one lane."""

    @abstractmethod
    def _open(self, state: ReducerState) -> None:
        """Every partial := identity."""

    @abstractmethod
    def _update(self, step: RowUpdate) -> None:
        """The row contributes once."""

    @abstractmethod
    def _collective(self, step: Collective) -> None:
        """Partials and lanes combine, then the seed joins once."""


def write_steps(
    text: Text,
    schedule: Schedule,
    *,
    rows: str,
    loop: Callable[[DistributedLoop], None],
    row: RowWriter,
    before: Callable[[Step], None] = lambda step: None,
) -> None:
    """Every step in order, each under its purpose; ``rows`` names the row count, ``before`` may write ahead of one."""
    row_dim = schedule.case.program.row_axis.dim

    def write(steps: Iterable[Step], depth: int) -> None:
        for step in steps:
            text.line(f"# {purpose(step)}")
            before(step)
            match step:
                case SerialLoop(trips=0):
                    text.line("# (no trips)")
                case SerialLoop():
                    count = rows if step.count == row_dim else str(step.trips)
                    counter = f"trip{depth}" if step.index is None else names.counter(step.index)
                    with text.block(f"for {counter} in T.serial({count}):"):
                        write(step.steps, depth + 1)
                case DistributedLoop():
                    loop(step)
                case _:
                    row.write(step)

    write(schedule.steps, 0)


def known_reducers(schedule: Schedule) -> dict[str, ReducerState]:
    """Reducers by name. Raises UnsupportedError for an op and dtype that no identity is known of."""
    unknown = [
        state.name
        for state in schedule.reducers
        if state.op not in STRUCTURED_OPS and (state.op, state.dtype) not in IDENTITIES
    ]
    if unknown:
        raise UnsupportedError(f"reducer dtypes of {', '.join(unknown)}")
    return {state.name: state for state in schedule.reducers}
