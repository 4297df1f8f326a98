"""The shapes of an evidence bundle's parts, as docs/reference/evidence.md gives them."""

from __future__ import annotations

from typing import Final

from catalogs.auditing.kinds import (
    ANYTHING,
    BOOLEAN,
    COUNT,
    INDEX,
    LIST,
    NOT_NEGATIVE,
    NULL,
    NUMBER,
    OBJECT,
    POSITIVE,
    SHA256,
    TEXT,
    TIMESTAMP,
    TRUE,
    each,
    exactly,
    members,
    one_of,
    or_null,
    shape,
)

SCHEMA_VERSION: Final = 1
METRICS: Final = ("device_batch", "e2e_batch")
SAMPLES: Final = 9
BATCH_SECONDS: Final = 0.03
MARGIN_FLOOR: Final = 0.02
INCONCLUSIVE_ABOVE: Final = 0.15
ROUNDS_MULTIPLE: Final = 4
GUARD_ELEMENTS: Final = 68
"""The fewest around each buffer."""
KERNEL_ARMS: Final = ("R", "C", "D", "I")
ARMS: Final = (*KERNEL_ARMS, "A", "T")
INPUT_SETS: Final = ("normal", "large_offset", "edge_rows")
OPPONENTS: Final = {"reference": "R", "default": "D", "incumbent": "I", "torch": "T"}
STAGES: Final = ("constraints", "compile", "resources", "runtime", "timeout", "correctness", "lost_worker")

BUNDLE = shape(
    {
        "schema_version": exactly(SCHEMA_VERSION),
        "kind": exactly("acceptance_evidence"),
        "id": TEXT,
        "scope": OBJECT,
        "rounds": COUNT,
        "protocol": OBJECT,
        "metrics": LIST,
        "margin_rule": OBJECT,
        "catalogs": OBJECT,
        "cases": each(ANYTHING, least=1),
        "builds": LIST,
        "records": LIST,
        "search": LIST,
        "results": OBJECT,
        "statements": each(TEXT, least=1),
        "sha256": SHA256,
    }
)
"""The outermost members alone: each part has a shape of its own below."""

SCOPE = shape(
    {
        "device": shape({"kind": TEXT, "identity": OBJECT, "digest": SHA256}),
        "toolchain": OBJECT,
        "toolchain_fingerprint": SHA256,
        "threads": COUNT,
        "cache_context": TEXT,
    }
)
PROTOCOL = shape(
    {
        "name": exactly("acceptance"),
        "warmup_seconds": exactly(0.2),
        "samples": exactly(SAMPLES),
        "batch_seconds": exactly(BATCH_SECONDS),
    }
)
MARGIN_RULE = shape({"floor": exactly(MARGIN_FLOOR), "inconclusive_above": exactly(INCONCLUSIVE_ABOVE)})
CATALOGS = shape({"candidate": OBJECT, "reference": OBJECT, "incumbent": or_null(OBJECT)})
CATALOG = shape(
    {
        "schema_version": COUNT,
        "role": one_of("candidate", "reference"),
        "device": SHA256,
        "toolchain": SHA256,
        "kernels": each(
            shape({"name": TEXT, "params": members(NUMBER), "program_digest": SHA256}, unknown_allowed=True), least=1
        ),
        "entries": each(OBJECT, least=1),
        "digest": SHA256,
    },
    unknown_allowed=True,
)
ENTRY_DIGESTS = shape({"samples_sha256": SHA256})
DEVICE_IDENTITY = shape({"device_identity": shape({"kind": TEXT, "identity": OBJECT})})

_CODE = {"source_sha256": SHA256, "artifact_sha256": SHA256}
_KERNEL_ARM = shape(
    {"trial_id": TEXT, "candidate": OBJECT, "plan": OBJECT, **_CODE, "same_code_as": or_null(one_of(*KERNEL_ARMS))}
)
_CONTROL_ARM = shape({"trial_id": TEXT, "candidate": OBJECT, "plan": OBJECT, **_CODE, "same_code_as": NULL})
_TORCH_ARM = shape({"implementation": TEXT, "allocation": TEXT, "versions": members(TEXT)})
_IDENTITY = {
    "index": INDEX,
    "kernel": TEXT,
    "params": members(NUMBER),
    "dims": members(COUNT),
}
CASE = shape(
    {
        **_IDENTITY,
        "dtypes": members(TEXT),
        "key_digest": SHA256,
        "arms": shape(
            {
                "R": _KERNEL_ARM,
                "C": _KERNEL_ARM,
                "D": _KERNEL_ARM,
                "I": or_null(_KERNEL_ARM),
                "A": _CONTROL_ARM,
                "T": or_null(_TORCH_ARM),
            }
        ),
    }
)

_PHASE = shape(
    {"samples_seconds": each(POSITIVE, least=1), "calls_per_sample": COUNT, "median_seconds": POSITIVE},
    optional={"conditions": OBJECT},
)
_INPUT_CHECK = shape(
    {
        "name": TEXT,
        "elements_checked": COUNT,
        "guard_elements_checked": COUNT,
        "input_sha256": SHA256,
        "tolerance": TEXT,
        "max_abs_error": or_null(NOT_NEGATIVE),
        "max_rel_error": or_null(NOT_NEGATIVE),
        "max_ulp_error": or_null(NOT_NEGATIVE),
    },
    optional={
        "max_tolerance": or_null(NOT_NEGATIVE),
        "failures": exactly(0),
        "first_failure": NULL,
        "patterns": each(TEXT),
    },
)
CHECKS = shape({"passed": TRUE, "inputs": each(_INPUT_CHECK), "guards_intact": TRUE, "inputs_unchanged": TRUE})
BUILD = shape(
    {"round": INDEX, "case": INDEX, "arm": one_of(*KERNEL_ARMS), **_CODE, "plan": OBJECT, "build_process": TEXT}
)
RECORD_PLACE = shape({"round": INDEX, "case": INDEX, "arm": one_of(*ARMS)}, unknown_allowed=True)
"""What says which record this is."""
_RECORD = {
    "id": TEXT,
    "round": INDEX,
    "position": INDEX,
    "case": INDEX,
    "toolchain_fingerprint": SHA256,
    "device_digest": SHA256,
    "started_at": TIMESTAMP,
    "finished_at": TIMESTAMP,
    "started_monotonic_seconds": NOT_NEGATIVE,
    "finished_monotonic_seconds": NOT_NEGATIVE,
    "timing": shape(dict.fromkeys(METRICS, _PHASE)),
    "samples_sha256": SHA256,
    "checks": CHECKS,
}
KERNEL_RECORD = shape(
    {
        **_RECORD,
        "arm": one_of(*KERNEL_ARMS, "A"),
        **_CODE,
        "plan": OBJECT,
        "candidate": OBJECT,
        "build_process": TEXT,
    }
)
TORCH_RECORD = shape(
    {
        **_RECORD,
        "arm": exactly("T"),
        "source_sha256": NULL,
        "artifact_sha256": NULL,
        "plan": NULL,
        "candidate": NULL,
        "build_process": or_null(TEXT),
    }
)

_OPPONENT = shape(
    {
        "class": one_of("positive", "negative", "mixed", "control"),
        "ratio_median": POSITIVE,
        "ratio_min": POSITIVE,
        "ratio_max": POSITIVE,
    }
)
RESULTS = shape({"cases": LIST, "verdict": one_of("accepted", "rejected"), "reasons": each(TEXT)})
RESULT = shape(
    {
        **_IDENTITY,
        "metrics": shape({metric: shape({name: or_null(_OPPONENT) for name in OPPONENTS}) for metric in METRICS}),
        "margin": POSITIVE,
        "state": one_of("ok", "worse", "inconclusive"),
    },
    optional={"dtypes": members(TEXT), "key_digest": SHA256, "spread": NOT_NEGATIVE},
)

SEARCH = shape({"job_id": TEXT, "cases": each(ANYTHING, least=1)})
SEARCH_CASE = shape(
    {
        "kernel": TEXT,
        "dims": members(COUNT),
        "space": members(each(ANYTHING, least=1)),
        "inert_knobs": each(TEXT),
        "enumerated": INDEX,
        "trials": LIST,
    },
    optional={"params": members(NUMBER), "dtypes": members(TEXT)},
)
SEARCH_SPACE = shape({"space": shape({"width": each(COUNT, least=1)}, unknown_allowed=True)})
"""The one knob that others are counted by."""
SEARCH_TRIAL = shape(
    {
        "id": TEXT,
        "outcome": one_of("measured", "rejected"),
        "stage": or_null(one_of(*STAGES)),
        "reason": or_null(TEXT),
        "candidate": OBJECT,
        "in_space": BOOLEAN,
        "is_default": BOOLEAN,
        "median_seconds": or_null(POSITIVE),
        "samples_seconds": or_null(each(POSITIVE)),
        "same_code_as": or_null(TEXT),
        "checks_passed": or_null(BOOLEAN),
        "elements_checked": or_null(INDEX),
        "private_scalars": or_null(INDEX),
    }
)
