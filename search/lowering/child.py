"""The lowering child: ``python -m search.lowering.child ENTRY``.

Long-lived, so that TileLang is imported once. Commands and answers are the JSON lines of ``search.children``; whatever
TileLang or a compiler prints goes to the log.

One command: ``{"requests": [BuildRequest…], "target": "cuda", "architecture": "sm_90", "store": dir, "fresh": bool,
"compile_timeout_seconds": s, "shared": bool}``. Its answers:

``{"lowering": id}``           a request is begun
``{"wanted": build key}``      it may be known elsewhere: the next line to the child says that it was looked for
``{"compiling": true}``        a compiler call is begun
``{"result": BuildResult}``    once for each request
``{"unavailable": reason}``    the toolchain does not work
``{"failed": reason}``         something else of ours does not work (a full disk)
``{"done": n}``                the command is over
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from search.children.entry import enter
from search.errors import ToolchainUnavailable
from search.lowering.contract import BuildRequest, Lowering
from search.lowering.torch_left_out import leave_torch_out


def main() -> None:
    """Enter, then serve commands until the parent closes its end."""
    channel = enter(sys.argv[1])
    leave_torch_out()
    speaking = threading.Lock()

    def send(answer: Mapping[str, Any]) -> None:
        with speaking:  # progress comes from the thread that compiles
            channel.answer(answer)

    lowerings: dict[tuple[str, str | None], Lowering] = {}
    commands = channel.commands()
    for command in commands:
        _serve(command, send, commands, lowerings)


def _serve(
    command: Mapping[str, Any],
    send: Callable[[Mapping[str, Any]], None],
    commands: Iterator[Mapping[str, Any]],
    lowerings: dict[tuple[str, str | None], Lowering],
) -> None:
    """Answer one command; lowerings stay between commands, with the compilers that they hold."""
    from search.lowering.registry import LOWERINGS

    def announced() -> Iterator[BuildRequest]:
        for document in command["requests"]:
            send({"lowering": document["id"]})
            yield BuildRequest.from_document(document)

    def fetch(key: str) -> None:
        send({"wanted": key})
        next(commands)

    try:
        key = command["target"], command["architecture"]
        if key not in lowerings:
            lowerings[key] = LOWERINGS[command["target"]](command["architecture"])
        results = lowerings[key].build(
            announced(),
            command["store"],
            fresh=command["fresh"],
            compile_timeout_seconds=command["compile_timeout_seconds"],
            progress=lambda: send({"compiling": True}),
            fetch=fetch if command["shared"] else None,
        )
        for result in results:
            send({"result": result.document()})
    except ToolchainUnavailable as error:
        send({"unavailable": str(error)})
    except Exception as error:  # not a candidate's doing: a full disk, a bug of ours
        traceback.print_exc()
        send({"failed": f"{type(error).__name__}: {error}"})
    send({"done": len(command["requests"])})


if __name__ == "__main__":
    main()
