"""Table of what holds for a deployment as a whole, whichever process asks."""

from __future__ import annotations

from sqlalchemy import String, Text
from sqlalchemy.orm import Mapped, mapped_column

from tuner_service.db.models import STAMP, Base


class DeploymentFact(Base):
    """A setting that all processes have, or what the last one asked of all."""

    __tablename__ = "deployment_facts"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[str] = mapped_column(Text)
    recorded_at: Mapped[str] = mapped_column(STAMP)
    """By the database's clock."""
    recorded_by: Mapped[str] = mapped_column(String(320))
    """What recorded it, ``tuner worker h:1:…``, for people."""
