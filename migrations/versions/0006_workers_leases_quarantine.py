"""Workers on other hosts, leases of their devices, and devices in quarantine."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Devices that are there are in no quarantine."""
    op.create_table(
        "workers",
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("host", sa.String(256), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("place", sa.String(128), nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("devices", sa.JSON(), nullable=False),
        sa.Column("compile_keys", sa.JSON(), nullable=False),
        sa.Column("compile_slots", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("started_at", sa.String(32), nullable=False),
        sa.Column("heartbeat_at", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_index(op.f("ix_workers_state_heartbeat_at"), "workers", ["state", "heartbeat_at"])
    op.create_table(
        "device_leases",
        sa.Column("device_id", sa.String(128), nullable=False),
        sa.Column("worker_id", sa.String(128), nullable=False),
        sa.Column("taken_at", sa.String(32), nullable=False),
        sa.Column("renewed_at", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("device_id", name=op.f("pk_device_leases")),
    )
    op.add_column("devices", sa.Column("quarantine_reason", sa.Text(), nullable=True))
    op.add_column("devices", sa.Column("quarantined_at", sa.String(32), nullable=True))
