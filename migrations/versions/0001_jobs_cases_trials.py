"""Jobs, cases, trials and what is recorded about them."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Creates every table."""
    op.create_table(
        "devices",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("heartbeat_at", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_devices"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("device_id", sa.String(length=128), nullable=False),
        sa.Column("device_kind", sa.String(length=64), nullable=False),
        sa.Column("device", sa.JSON(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.Column("started_at", sa.String(length=32), nullable=True),
        sa.Column("finished_at", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
    )
    op.create_index("ix_jobs_device_kind_id", "jobs", ["device_kind", "id"])
    op.create_index("ix_jobs_state_id", "jobs", ["state", "id"])

    op.create_table(
        "cases",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("kernel", sa.String(length=128), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("space", sa.JSON(), nullable=False),
        sa.Column("inert_knobs", sa.JSON(), nullable=False),
        sa.Column("enumerated", sa.Integer(), nullable=False),
        sa.Column("opened", sa.Boolean(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("settled", sa.Boolean(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("failures", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_cases_job_id"),
        sa.PrimaryKeyConstraint("id", name="pk_cases"),
        sa.UniqueConstraint("job_id", "position", name="uq_cases_job_id_position"),
    )
    op.create_index("ix_cases_kernel_settled", "cases", ["kernel", "settled"])
    op.create_index("ix_cases_settled", "cases", ["settled"])

    op.create_table(
        "idempotency_keys",
        sa.Column("key", sa.String(length=256), nullable=False),
        sa.Column("body_sha256", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_idempotency_keys_job_id"),
        sa.PrimaryKeyConstraint("key", name="pk_idempotency_keys"),
    )
    op.create_table(
        "job_events",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_events_job_id"),
        sa.PrimaryKeyConstraint("sequence", name="pk_job_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_job_events_job_id_sequence", "job_events", ["job_id", "sequence"])

    op.create_table(
        "job_labels",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.String(length=256), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_labels_job_id"),
        sa.PrimaryKeyConstraint("job_id", "name", name="pk_job_labels"),
    )
    op.create_index("ix_job_labels_name_value", "job_labels", ["name", "value"])

    op.create_table(
        "case_events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("case_id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name="fk_case_events_case_id"),
        sa.PrimaryKeyConstraint("id", name="pk_case_events"),
        sa.UniqueConstraint("case_id", "kind", "name", name="uq_case_events_case_id_kind_name"),
    )
    op.create_table(
        "claims",
        sa.Column("key", sa.String(length=160), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("case_id", sa.String(length=40), nullable=False),
        sa.Column("step", sa.JSON(), nullable=False),
        sa.Column("attempts", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name="fk_claims_case_id"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_claims_job_id"),
        sa.PrimaryKeyConstraint("key", name="pk_claims"),
    )
    op.create_index("ix_claims_job_id", "claims", ["job_id"])

    op.create_table(
        "trials",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("case_id", sa.String(length=40), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("candidate", sa.JSON(), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("in_space", sa.Boolean(), nullable=False),
        sa.Column("is_default", sa.Boolean(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=True),
        sa.Column("reason", sa.String(length=64), nullable=True),
        sa.Column("detail", sa.JSON(), nullable=True),
        sa.Column("private_scalars", sa.Integer(), nullable=False),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("plan", sa.JSON(), nullable=True),
        sa.Column("artifact", sa.JSON(), nullable=True),
        sa.Column("source_sha256", sa.String(length=64), nullable=True),
        sa.Column("code", sa.JSON(), nullable=True),
        sa.Column("build", sa.JSON(), nullable=True),
        sa.Column("checks", sa.JSON(), nullable=True),
        sa.Column("timing", sa.JSON(), nullable=True),
        sa.Column("median_seconds", sa.Double(), nullable=True),
        sa.Column("same_code_as", sa.String(length=40), nullable=True),
        sa.Column("overlapped", sa.Boolean(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(length=128), nullable=True),
        sa.Column("created_at", sa.String(length=32), nullable=False),
        sa.Column("finished_at", sa.String(length=32), nullable=True),
        sa.ForeignKeyConstraint(["case_id"], ["cases.id"], name="fk_trials_case_id"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_trials_job_id"),
        sa.PrimaryKeyConstraint("id", name="pk_trials"),
        sa.UniqueConstraint("case_id", "digest", name="uq_trials_case_id_digest"),
        sa.UniqueConstraint("case_id", "ordinal", name="uq_trials_case_id_ordinal"),
    )
    op.create_index("ix_trials_case_id_outcome_median_seconds", "trials", ["case_id", "outcome", "median_seconds"])
    op.create_index("ix_trials_job_id_in_space_outcome", "trials", ["job_id", "in_space", "outcome"])
    op.create_index("ix_trials_job_id_median_seconds", "trials", ["job_id", "median_seconds"])
    op.create_index("ix_trials_source_sha256", "trials", ["source_sha256"])
