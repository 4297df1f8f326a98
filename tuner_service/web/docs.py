"""``/docs``: Swagger UI from files of ours, so that it works with no internet, under a policy that allows no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

STATIC = Path(__file__).parent / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    # Swagger UI writes style attributes; styles can fetch nothing here.
    "style-src 'self' 'unsafe-inline'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_VENDOR = "/static/vendor/swagger-ui"
_PAGE = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Tuner API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="{_VENDOR}/favicon-32x32.png">
<link rel="stylesheet" href="{_VENDOR}/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<noscript>This page needs JavaScript; <a href="/openapi.json">the OpenAPI document</a> does not.</noscript>
<script src="{_VENDOR}/swagger-ui-bundle.js"></script>
<script src="/static/docs.js"></script>
</body>
</html>
"""

router = APIRouter(include_in_schema=False)


@router.get("/docs")
async def docs() -> HTMLResponse:
    """The page; it reads ``/openapi.json``."""
    return HTMLResponse(_PAGE, headers={"Content-Security-Policy": POLICY})


class _Static(StaticFiles):
    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers["Cache-Control"] = "public, max-age=3600"
        return response


def static_files() -> Mount:
    """``/static``: scripts, styles and their licenses."""
    return Mount("/static", _Static(directory=STATIC), name="static")
