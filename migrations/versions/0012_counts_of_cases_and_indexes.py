"""Cases count their trials' outcomes, so that no list has to; and indexes for what lists and pruning ask."""

from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

COUNTED = ("measured", "checked", "rejected")
LISTED = (
    "id",
    "outcome",
    "stage",
    "reason",
    "width",
    "input",
    "is_default",
    "in_space",
    "median_seconds",
    "private_scalars",
    "score",
    "registers",
    "spill_bytes",
    "finished_at",
)
CASES = sa.table("cases", sa.column("id", sa.String), *(sa.column(word, sa.Integer) for word in COUNTED))
TRIALS = sa.table(
    "trials", sa.column("case_id", sa.String), sa.column("outcome", sa.String), sa.column("in_space", sa.Boolean)
)
INDEXES = (
    ("ix_cases_kernel_job_id", "cases", ["kernel", "job_id"]),
    ("ix_jobs_device_id_id", "jobs", ["device_id", "id"]),
    ("ix_jobs_state_finished_at", "jobs", ["state", "finished_at"]),
    ("ix_claims_case_id", "claims", ["case_id"]),
    ("ix_idempotency_keys_made_id", "idempotency_keys", ["made_id"]),
    ("ix_alias_states_acceptance_id", "alias_states", ["acceptance_id"]),
)


def upgrade() -> None:
    """Reads every trial once. SQLite has no columns beside an index's key, so the one of lists stays as it is there."""
    for word in COUNTED:
        op.add_column("cases", sa.Column(word, sa.Integer(), server_default="0", nullable=False))
    connection = op.get_bind()
    counts = list(_counts(connection))
    if counts:
        values = {word: sa.bindparam(f"new_{word}") for word in COUNTED}
        connection.execute(CASES.update().where(CASES.c.id == sa.bindparam("case_id")).values(values), counts)
    if connection.dialect.name != "sqlite":
        op.drop_index("ix_trials_listed", "trials")
        op.create_index("ix_trials_listed", "trials", ["job_id", "case_id", "ordinal"], postgresql_include=list(LISTED))
    where = sa.text("is_default")
    op.create_index(
        "ix_trials_defaults", "trials", ["job_id", "case_id", "id"], postgresql_where=where, sqlite_where=where
    )
    op.drop_index("ix_cases_kernel_settled", "cases")
    for name, table, columns in INDEXES:
        op.create_index(name, table, columns)


def _counts(connection: sa.Connection) -> Iterator[dict[str, object]]:
    found: dict[str, dict[str, int]] = {}
    query = sa.select(TRIALS.c.case_id, TRIALS.c.outcome, sa.func.count()).where(TRIALS.c.in_space)
    for case_id, outcome, number in connection.execute(query.group_by(TRIALS.c.case_id, TRIALS.c.outcome)):
        found.setdefault(case_id, {})[outcome] = number
    for case_id, by_outcome in found.items():
        yield {"case_id": case_id, **{f"new_{word}": by_outcome.get(word, 0) for word in COUNTED}}
