"""The lists of the API: pages that are fetched as they are read, and how many items there are in all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Document: TypeAlias = dict[str, Any]
PAGE_ITEMS = 500


class Pages(Iterator[Document]):
    """Items of a list, one request for each page of it, none before the first item is asked for."""

    def __init__(
        self, fetch: Callable[[Mapping[str, Any]], Document], query: Mapping[str, Any], *, limit: int | None = None
    ) -> None:
        """``fetch`` gets the page that a query asks for; ``limit``: how many items to give at most."""
        self.total = 0
        """How many items there are in all, beyond ``limit`` too; known with the first item."""
        self._items = self._each(fetch, dict(query), limit)

    def __next__(self) -> Document:
        return next(self._items)

    def _each(
        self, fetch: Callable[[Mapping[str, Any]], Document], query: dict[str, Any], left: int | None
    ) -> Iterator[Document]:
        while left is None or left > 0:
            page = fetch({**query, "limit": PAGE_ITEMS if left is None else min(left, PAGE_ITEMS)})
            items: Sequence[Document] = page["items"]
            self.total = page["total"]
            yield from items if left is None else items[:left]
            left = None if left is None else left - len(items)
            if not page.get("next"):
                return
            query["cursor"] = page["next"]


class Listing(list[Document]):
    """The items of pages, all fetched. ``total``: how many there are in all, beyond the limit too."""

    def __init__(self, pages: Pages) -> None:
        super().__init__(pages)
        self.total = pages.total
