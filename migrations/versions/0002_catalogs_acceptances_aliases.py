"""Catalogs, acceptances with their records, and where aliases point."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def _sequence() -> sa.Column[int]:
    return sa.Column(
        "sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
    )


def upgrade() -> None:
    """Creates every table."""
    op.create_table(
        "catalogs",
        _sequence(),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("other", sa.String(length=64), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("device_kind", sa.String(length=64), nullable=False),
        sa.Column("toolchain", sa.String(length=64), nullable=False),
        sa.Column("entries", sa.Integer(), nullable=False),
        sa.Column("kernels", sa.JSON(), nullable=False),
        sa.Column("jobs", sa.JSON(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name="pk_catalogs"),
        sa.UniqueConstraint("digest", name="uq_catalogs_digest"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_catalogs_role_sequence", "catalogs", ["role", "sequence"])

    op.create_table(
        "acceptances",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("catalog", sa.String(length=64), nullable=False),
        sa.Column("reference", sa.String(length=64), nullable=False),
        sa.Column("incumbent", sa.String(length=64), nullable=True),
        sa.Column("alias", sa.String(length=64), nullable=False),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.String(length=128), nullable=False),
        sa.Column("device", sa.JSON(), nullable=False),
        sa.Column("replay", sa.JSON(), nullable=False),
        sa.Column("step", sa.JSON(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("verdict", sa.String(length=16), nullable=True),
        sa.Column("evidence", sa.Text(), nullable=True),
        sa.Column("evidence_sha256", sa.String(length=64), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.Column("started_at", sa.String(length=32), nullable=True),
        sa.Column("finished_at", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_acceptances"),
    )
    op.create_index("ix_acceptances_catalog_id", "acceptances", ["catalog", "id"])
    op.create_index("ix_acceptances_state_id", "acceptances", ["state", "id"])

    op.create_table(
        "acceptance_records",
        _sequence(),
        sa.Column("acceptance_id", sa.String(length=40), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("case_index", sa.Integer(), nullable=False),
        sa.Column("arm", sa.String(length=8), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["acceptance_id"], ["acceptances.id"], name="fk_acceptance_records_acceptance_id"),
        sa.PrimaryKeyConstraint("sequence", name="pk_acceptance_records"),
        sa.UniqueConstraint(
            "acceptance_id",
            "round",
            "case_index",
            "arm",
            "attempt",
            name="uq_acceptance_records_once",
        ),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "alias_states",
        _sequence(),
        sa.Column("alias", sa.String(length=64), nullable=False),
        sa.Column("action", sa.String(length=16), nullable=False),
        sa.Column("entries", sa.JSON(), nullable=False),
        sa.Column("acceptance_id", sa.String(length=40), nullable=True),
        sa.Column("previous", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("promoted_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["acceptance_id"], ["acceptances.id"], name="fk_alias_states_acceptance_id"),
        sa.PrimaryKeyConstraint("sequence", name="pk_alias_states"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_alias_states_alias_sequence", "alias_states", ["alias", "sequence"])
