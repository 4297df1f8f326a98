"""Database URLs: which ones the service can use, and how to show one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tuner_service.loopback import is_loopback

if TYPE_CHECKING:
    from sqlalchemy import URL

DATABASE_URLS = "sqlite:////PATH/FILE or postgresql://USER:PASSWORD@HOST/DATABASE"
_BACKENDS = ("sqlite", "postgresql")


def database_url_fault(url: str) -> str | None:
    """What is wrong with a database URL, or None. Nothing is connected to."""
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        parsed = parse_database_url(url)
    except (ArgumentError, ValueError):
        return "this is not a database URL"
    if parsed.get_backend_name() not in _BACKENDS:
        return f"{parsed.get_backend_name()!r} is no kind of database that the service can use"
    try:
        dialect = parsed.get_dialect()
        dialect.import_dbapi()
    except NoSuchModuleError:
        return f"{parsed.drivername!r} is no known dialect and driver"
    except ImportError as error:
        return f"the driver of {parsed.drivername!r} is not installed ({error})"
    if dialect.is_async:
        return f"{parsed.drivername!r} is an asynchronous driver"
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        return "a database in memory is lost with each connection; name a file"
    return None


def parse_database_url(url: str) -> URL:
    """The URL as SQLAlchemy takes it: PostgreSQL without a driver's name means ours, psycopg. ArgumentError."""
    from sqlalchemy import make_url  # a third of a second that commands without a database need not pay

    parsed = make_url(url)
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername == "postgresql" else parsed


def same_database(first: str, second: str) -> bool:
    """Whether two URLs (or paths of SQLite files) name one database, whoever connects; names of this machine are one.

    ArgumentError.
    """
    return _named(first) == _named(second)


def _named(url: str) -> tuple[str, ...]:
    parsed = parse_database_url(url if "://" in url else f"sqlite:///{url}")
    if parsed.get_backend_name() == "sqlite":
        return ("sqlite", str(Path(parsed.database or "").resolve()))
    host = str(parsed.host or parsed.query.get("host") or "")
    local = not host or host.startswith("/") or is_loopback(host)
    return ("postgresql", "" if local else host, str(parsed.port or 5432), str(parsed.database or parsed.username))


def without_password(text: str) -> str:
    """A URL, or what was meant as one, with its password hidden."""
    return re.sub(r"([?&]password=)[^&]*", r"\1***", re.sub(r"(//[^/@:]*):.*@", r"\1:***@", text))
