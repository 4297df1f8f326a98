"""Answers whose documents hold records as the database has them: JSON text that is sent on unread."""

from __future__ import annotations

from typing import Any

from fastapi.responses import JSONResponse

from tuner_service.db.json_text import json_text


class DocumentResponse(JSONResponse):
    """A JSONResponse that also takes ``db.json_text.JsonText``, at any depth."""

    def render(self, content: Any) -> bytes:
        """The body. ValueError for NaN and infinity."""
        return json_text(content).encode()
