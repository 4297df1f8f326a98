"""The command loop that the measuring children share. Child side."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from search.children.entry import Channel


def serve(channel: Channel, handlers: Mapping[str, Callable[..., dict[str, Any]]]) -> None:
    """Answer commands until the parent closes its end. An exception of ours is an answer too, then the end."""
    # Each sample follows a collection, which would look through all that was imported, and that through the caches.
    gc.freeze()
    for command in channel.commands():
        operation = command.pop("op")
        try:
            answer = handlers[operation](**command)
        except BaseException as error:
            trace = traceback.format_exc()[-4000:]
            channel.answer({"event": "broken", "error": f"{type(error).__name__}: {error}", "traceback": trace})
            raise SystemExit(1) from error
        channel.answer(answer)
