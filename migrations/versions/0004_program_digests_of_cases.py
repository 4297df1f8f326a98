"""A case keeps the digest of its program, so that a kernel which changes does not take the winners of the old one."""

import json

import sqlalchemy as sa
from alembic import op

from search.errors import InvalidInput
from search.program.digest import program_digest
from search.program.resolve import resolve_case

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

CASES = sa.table(
    "cases", sa.column("id", sa.String), sa.column("document", sa.JSON), sa.column("program_digest", sa.String)
)


def upgrade() -> None:
    """Rows that are there get the digest of what their kernel's name stands for now; NULL where there is none."""
    op.add_column("cases", sa.Column("program_digest", sa.String(length=64), nullable=True))
    connection = op.get_bind()
    found: dict[str, str | None] = {}
    for case_id, document in connection.execute(sa.select(CASES.c.id, CASES.c.document)).all():
        text = json.dumps([document.get(key) for key in ("kernel", "program", "params")], sort_keys=True)
        if text not in found:
            found[text] = _digest(document)
        connection.execute(CASES.update().where(CASES.c.id == case_id).values(program_digest=found[text]))


def _digest(document: dict[str, object]) -> str | None:
    try:
        case = resolve_case(document, admitted=True)
    except InvalidInput:
        return None
    return program_digest(case.program, case.params)
