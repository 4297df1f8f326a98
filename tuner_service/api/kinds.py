"""Every kind of problem that the service answers: one table. A kind's ``type`` is the address of its page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ProblemKind:
    """One row: what went wrong in general, and what the caller can do about it."""

    slug: str
    status: int
    title: str
    meaning: str
    remedy: str

    @property
    def type_path(self) -> str:
        """The ``type`` of such a problem, relative to the server."""
        return f"/problems/{self.slug}"

    def markdown(self) -> str:
        """The page about this kind, as in ``docs/problems``."""
        return (
            f"# {self.title}\n\n`type`: `{self.type_path}` · HTTP status {self.status}\n\n"
            f"## What it means\n\n{self.meaning}\n\n## What to do\n\n{self.remedy}\n"
        )


INVALID_REQUEST = ProblemKind(
    slug="invalid-request",
    status=422,
    title="The request is not valid",
    meaning=(
        "One or more values in the body, the query string or a header are not accepted. Every fault that was found is "
        "in `errors`: `field` is a JSON pointer into the body (`/cases/0/dims/rows`), `/query/NAME` for a query "
        "parameter or `/header/NAME` for a header; `value` is what stood there; `allowed` lists or describes what is "
        "accepted. Nothing was created."
    ),
    remedy="Change each named field to one of the allowed values and send the request again.",
)
BODY_TOO_LARGE = ProblemKind(
    slug="body-too-large",
    status=413,
    title="The request body is too large",
    meaning="The body holds more bytes than the service accepts (setting `TUNER_MAX_BODY_BYTES`). Nothing was created.",
    remedy="Send fewer cases in one job, or start the service with a larger limit.",
)
NOT_FOUND = ProblemKind(
    slug="not-found",
    status=404,
    title="There is no such thing",
    meaning="No kernel, device, job, trial or page has the name or id that the path names.",
    remedy="List the collection (the path without its last part) to see the ids that exist.",
)
NO_WINNER = ProblemKind(
    slug="no-winner",
    status=404,
    title="No winner has exactly this key",
    meaning=(
        "An exact lookup never guesses. `reason` says what is missing, and `misses` lists up to five entries, the "
        "nearest first, each with the key fields that differ as `[asked, stored]`; of entries that differ in the same "
        "way only the newest."
    ),
    remedy="Ask for a stored key, or tune the asked one with `POST /v1/jobs`.",
)
METHOD_NOT_ALLOWED = ProblemKind(
    slug="method-not-allowed",
    status=405,
    title="The path exists, but not with this method",
    meaning="The `Allow` header names the methods that the path answers.",
    remedy="Use one of the methods in `Allow`; `/docs` lists every operation.",
)
CROSS_ORIGIN = ProblemKind(
    slug="cross-origin",
    status=403,
    title="A page of another origin may not use this service",
    meaning=(
        "A browser sent this request for a page that the service did not serve. The service has no API keys and "
        "trusts whoever reaches it on this machine, so other sites' pages must not reach it through a browser."
    ),
    remedy="Call the service from a program on this machine, or from its own pages (`/docs`).",
)
HOST_NOT_ALLOWED = ProblemKind(
    slug="host-not-allowed",
    status=421,
    title="The Host header names another machine",
    meaning=(
        "The service is bound to a loopback address and answers only to loopback names (`127.0.0.1`, `localhost`, "
        "`[::1]`). Anything else may be a DNS-rebinding attack: a foreign site's name that resolves to this machine."
    ),
    remedy="Use `http://127.0.0.1:PORT`, also through an SSH tunnel.",
)
BAD_HTTP = ProblemKind(
    slug="bad-http",
    status=400,
    title="The request is not well-formed HTTP",
    meaning="A header that HTTP needs is missing or malformed.",
    remedy="Send the request with an ordinary HTTP client.",
)
IDEMPOTENCY_CONFLICT = ProblemKind(
    slug="idempotency-conflict",
    status=422,
    title="This Idempotency-Key belongs to another request",
    meaning="The same `Idempotency-Key` was sent before with another request. Nothing was created.",
    remedy="Use a new key for a new request; send a key again only with the request it was first sent with.",
)
CONFLICT = ProblemKind(
    slug="conflict",
    status=409,
    title="The thing is not in a state that allows this",
    meaning="For example, a job that has succeeded or failed can no longer be cancelled. `detail` names the state.",
    remedy="Read the current state first.",
)
NOT_READY = ProblemKind(
    slug="not-ready",
    status=503,
    title="The service is still starting",
    meaning="Devices are being probed, the named one is being looked at for the first time, or the database is being "
    "brought up to date. Nothing was created.",
    remedy="Wait for the number of seconds in `Retry-After`, or until `/readyz` answers 200, and try again.",
)
STORAGE_UNAVAILABLE = ProblemKind(
    slug="storage-unavailable",
    status=503,
    title="The database cannot be written or read now",
    meaning="The disk is full, another process holds the database, or the database or the shared artifact store does "
    "not answer. What was recorded before is not lost.",
    remedy="Free disk space, close the other process, or bring the named store back; then send the request again.",
)
INTERNAL_ERROR = ProblemKind(
    slug="internal-error",
    status=500,
    title="The service made a mistake",
    meaning="This is a bug. The log on stderr holds the traceback under the request id of this answer.",
    remedy="Report it with the request id (`instance`, and the `X-Request-ID` header) and the log line.",
)

KINDS: dict[str, ProblemKind] = {
    kind.slug: kind
    for kind in (
        INVALID_REQUEST,
        BODY_TOO_LARGE,
        NOT_FOUND,
        NO_WINNER,
        METHOD_NOT_ALLOWED,
        CROSS_ORIGIN,
        HOST_NOT_ALLOWED,
        BAD_HTTP,
        IDEMPOTENCY_CONFLICT,
        CONFLICT,
        NOT_READY,
        STORAGE_UNAVAILABLE,
        INTERNAL_ERROR,
    )
}
