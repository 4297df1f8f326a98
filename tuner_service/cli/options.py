"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

UrlOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--url", envvar="TUNER_URL", help="Address of a running service, like http://127.0.0.1:8000."),
]
DataDirOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Data directory of the service to use or start. Default: TUNER_DATA_DIR, or ours."),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]
LimitOption: TypeAlias = Annotated[int | None, typer.Option("--limit", min=1, help="Print at most so many.")]

KernelArgument: TypeAlias = Annotated[str | None, typer.Argument(help="Name of a built-in kernel.", show_default=False)]
ProgramOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--program", help="JSON file with a program document, instead of a built-in kernel's name."),
]
ShapeOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="AxB", help="One case: extents in the order of the kernel's dims. Repeatable."),
]
DimsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--dims", metavar="rows=A,cols=B", help="One case: extents by name. Repeatable."),
]
ParamOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--param", metavar="NAME=NUMBER", help="A kernel parameter, like eps=1e-5.")
]
DtypeOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--dtype", metavar="TENSOR=DTYPE", help="A tensor's dtype, like x=float32.")
]
SpaceOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--space", metavar="KNOB=A,B", help="A knob's values, like width=8,16. Other knobs take the device's lists."
    ),
]
BudgetOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--budget", metavar="N|none", help="Private scalars a lane may hold; none = unlimited. Default 64."),
]
NoSpillsOption: TypeAlias = Annotated[
    bool, typer.Option("--forbid-spills", help="Reject code that spills registers. CUDA devices only.")
]
CacheContextOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--cache-context", metavar="warm|cold", help="Buffers reused at each call, or not. Cold: GPUs only."),
]
DeviceOption: TypeAlias = Annotated[
    str, typer.Option("--device", help="A device kind or id, or a compile-only one: cuda-sm_90.")
]
BaselineOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--baseline",
        help="torch_eager (default where candidates are timed), torch_compile, inductor_core, none. Repeatable.",
    ),
]
LabelOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="A label of the job. Repeatable.")
]
PriorityOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--priority", metavar="N", help="From -100 to 100; larger goes first, equal ones take turns. Default 0."
    ),
]
DeviceSecondsOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--device-seconds", metavar="S", help="Begin nothing more once the job has held the device so long."),
]
WallSecondsOption: TypeAlias = Annotated[
    str | None, typer.Option("--wall-seconds", metavar="S", help="Begin nothing more so long after the job began.")
]
IdempotencyKeyOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--idempotency-key", metavar="KEY", help="The same key with the same request makes nothing new."),
]
