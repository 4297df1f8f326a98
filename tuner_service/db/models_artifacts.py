"""The table of artifacts that machines share, where the database is their store. See ``models``."""

from __future__ import annotations

from sqlalchemy import LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from tuner_service.db.models import STAMP, Base


class SharedArtifact(Base):
    """One blob under its name. It verifies itself when it is read (``search.lowering.sealing``)."""

    __tablename__ = "artifacts"

    name: Mapped[str] = mapped_column(String(96), primary_key=True)
    data: Mapped[bytes] = mapped_column(LargeBinary)
    size_bytes: Mapped[int]
    created_at: Mapped[str] = mapped_column(STAMP)
