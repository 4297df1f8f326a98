"""Settings that every process of a deployment must have alike: the database keeps them, and a start compares.

The first process that starts on a database records its own; another value is refused until somebody changes it for all.
SQLite has one process, which agrees with itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from search.errors import InvalidInput, Problem
from tuner_service.db.engine import Database
from tuner_service.db.queries import deployment
from tuner_service.errors import SettingsDisagree
from tuner_service.settings import ENVIRONMENT_PREFIX, Settings, load_settings


@dataclass(frozen=True, kw_only=True)
class AgreedSetting:
    """One of them. ``value``: as text, such that equal ones mean the same."""

    field: str
    value: Callable[[Settings], str]
    scaled_out: bool = True
    """It means something only where several processes work together."""

    @property
    def variable(self) -> str:
        return (ENVIRONMENT_PREFIX + self.field).upper()


_SETTINGS = (
    # Two embedded services, or one beside workers, would void each other's tasks.
    AgreedSetting(field="engine", value=lambda settings: settings.engine, scaled_out=False),
    # What one builds the other must find.
    AgreedSetting(field="artifacts", value=lambda settings: settings.artifacts_place.rstrip("/")),
    # What one keeps the other must read.
    AgreedSetting(field="max_artifact_bytes", value=lambda settings: str(settings.max_artifact_bytes)),
    # Whom one takes for lost the other must not take for alive: a device would have two workers.
    AgreedSetting(field="worker_lost_seconds", value=lambda settings: f"{settings.worker_lost_seconds:g}"),
)
ENGINE = "TUNER_ENGINE"
AGREED: Mapping[str, AgreedSetting] = {setting.variable: setting for setting in _SETTINGS}
"""By their environment variables."""


def agreed_values(settings: Settings) -> dict[str, str]:
    """Variable → value of what a process with these settings must have like the others."""
    scaled_out = settings.engine == "postgres"
    return {name: one.value(settings) for name, one in AGREED.items() if scaled_out or not one.scaled_out}


def agree(database: Database, settings: Settings, *, who: str, grows: bool = False) -> None:
    """Records what nobody has recorded yet. SettingsDisagree when the others have something else; DatabaseProblem.

    ``who``: this process, for people. ``grows``: where one embedded service was alone and does not run any more, this
    one begins to work with others; the way back must be asked for.
    """
    if database.is_sqlite:
        return
    own = agreed_values(settings)
    with database.read() as session:
        known = deployment.facts(session)
    before = known.get(ENGINE, {}).get("value")
    begins = grows and (before, own[ENGINE]) == ("embedded", "postgres")
    if begins or not own.keys() <= known.keys():
        with database.write() as session:
            replace = begins and not deployment.other_processes(session)
            for name, value in own.items():
                deployment.record_fact(session, name, value, by=who, replace=replace and name == ENGINE)
            known = deployment.facts(session)
    differing = [(name, value, known[name]) for name, value in own.items() if known[name]["value"] != value]
    if differing:
        raise SettingsDisagree("; ".join(_disagreement(*one) for one in differing), [one[0] for one in differing])


def change(database: Database, values: Mapping[str, str], *, who: str) -> None:
    """Has all processes that start from now on agree on these values.

    SettingsDisagree while processes run that have others; InvalidInput for a value that no process may have;
    DatabaseProblem.
    """
    valid = {name: _valid(database, name, value) for name, value in values.items()}
    with database.write() as session:
        if running := deployment.other_processes(session):
            sessions = "1 session" if running == 1 else f"{running} sessions"
            raise SettingsDisagree(
                f"processes of this deployment run ({sessions} in the database) with the settings as they are; stop "
                "every tuner serve and tuner worker, change the settings, start them again with the new ones",
                list(values),
            )
        for name, value in valid.items():
            deployment.record_fact(session, name, value, by=who, replace=True)


def _valid(database: Database, name: str, value: str) -> str:
    setting = AGREED.get(name)
    if setting is None:
        message = "this is no setting that all processes of a deployment have alike"
        raise InvalidInput([Problem(field="--set", value=name, message=message, allowed=list(AGREED))])
    given: dict[str, Any] = {"engine": "postgres", "database_url": database.url.render_as_string(hide_password=False)}
    return setting.value(load_settings(**(given | {setting.field: value})))


def _disagreement(name: str, own: str, known: Mapping[str, str]) -> str:
    return (
        f"{name} is {own} here, and {known['value']} for all processes of this database (since {known['recorded_at']}, "
        f"by {known['recorded_by']}). Start this one with {name}={known['value']}; or, to change it for all of them, "
        f"stop them and type: tuner db settings --set {name}={own}"
    )
