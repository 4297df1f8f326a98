"""docs/problems holds the same pages as the service."""

from __future__ import annotations

from pathlib import Path

from tuner_service.api.kinds import KINDS

DOCS = Path(__file__).parents[3] / "docs" / "problems"


def test_there_is_one_page_per_kind_with_the_served_text() -> None:
    pages = {page.stem: page.read_text(encoding="utf-8") for page in DOCS.glob("*.md")}
    assert pages == {slug: kind.markdown() for slug, kind in KINDS.items()}
