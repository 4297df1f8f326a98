"""The lowering child: ``python -m search.lowering.child PARENT_PID [CPU,CPU…]``.

Long-lived, so that TileLang is imported once. Commands come as JSON lines on stdin, answers go as JSON lines to what
was stdout; whatever TileLang or a compiler prints goes to stderr. Ends when stdin does, and dies with its parent.

One command: ``{"requests": [BuildRequest…], "target": "cpu", "store": dir, "fresh": bool,
"compile_timeout_seconds": s}``. Its answers:

``{"lowering": id}``           a request is begun
``{"compiling": true}``        a compiler call is begun
``{"result": BuildResult}``    once for each request
``{"unavailable": reason}``    the toolchain does not work
``{"failed": reason}``         something else of ours does not work (a full disk)
``{"done": n}``                the command is over
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from search.errors import ToolchainUnavailable
from search.lowering.contract import BuildRequest

_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> int:
    """Serve commands until stdin ends."""
    _die_with(int(arguments[0]))
    if len(arguments) > 1 and arguments[1]:
        os.sched_setaffinity(0, [int(cpu) for cpu in arguments[1].split(",")])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    commands = os.fdopen(os.dup(0), "r")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    speaking = threading.Lock()

    def send(answer: Mapping[str, Any]) -> None:
        with speaking:  # progress comes from the thread that compiles
            answers.write(json.dumps(answer, allow_nan=False) + "\n")

    for line in commands:
        _serve(json.loads(line), send)
    return 0


def _serve(command: Mapping[str, Any], send: Callable[[Mapping[str, Any]], None]) -> None:
    """Answer one command."""
    from search.lowering.registry import LOWERINGS

    def announced() -> Iterator[BuildRequest]:
        for document in command["requests"]:
            send({"lowering": document["id"]})
            yield BuildRequest.from_document(document)

    try:
        lowering = LOWERINGS[command["target"]]()
        results = lowering.build(
            announced(),
            command["store"],
            fresh=command["fresh"],
            compile_timeout_seconds=command["compile_timeout_seconds"],
            progress=lambda: send({"compiling": True}),
        )
        for result in results:
            send({"result": result.document()})
    except ToolchainUnavailable as error:
        send({"unavailable": str(error)})
    except Exception as error:  # not a candidate's doing: a full disk, a bug of ours
        traceback.print_exc()
        send({"failed": f"{type(error).__name__}: {error}"})
    send({"done": len(command["requests"])})


def _die_with(parent_pid: int) -> None:
    """SIGKILL when the thread that started this process ends; at once when the parent is gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
