"""A job or plan body, resolved against this service's devices and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from search.device.spec import DeviceSpec
from search.program.limits import DEFAULT_LIMITS
from tuner_service.api.context import Context
from tuner_service.jobs.planned_devices import planned_devices
from tuner_service.jobs.request import DEFAULT_DEVICE, Limits, ResolvedRequest, resolve_request
from tuner_service.settings import Settings


def limits_of(settings: Settings) -> Limits:
    """The limits that the settings name."""
    program = replace(
        DEFAULT_LIMITS,
        dim_extent=settings.max_dim,
        tensor_bytes=settings.max_tensor_bytes,
        points=settings.max_case_points,
        statements=settings.max_program_statements,
        tensors=settings.max_program_tensors,
        loop_depth=settings.max_loop_depth,
        expression_chars=settings.max_expression_characters,
        expression_depth=settings.max_expression_depth,
        expression_nodes=settings.max_expression_nodes,
    )
    return Limits(
        cases=settings.max_cases_per_job, candidates_per_case=settings.max_candidates_per_case, program=program
    )


def resolve(context: Context, body: Mapping[str, Any], *, planning: bool = False) -> ResolvedRequest:
    """The request with every default resolved; for a job, or for a plan, whose device need not be there.

    Raises InvalidInput with every fault, or a not-ready problem while devices are still being probed; DatabaseProblem
    where the device is not here.
    """
    wanted = body.get("device", DEFAULT_DEVICE)
    devices = context.probed_devices(None if planning else wanted)
    away: dict[str, DeviceSpec] = {}
    if not any(spec.available and wanted in (spec.id, spec.kind) for spec in devices.values()):
        away |= context.runtime.away()
        if planning:
            away |= {id_: spec for id_, spec in devices.items() if not spec.available and id_ not in away}
            away |= {id_: spec for id_, spec in planned_devices().items() if id_ not in away}
    return resolve_request(body, devices=devices, limits=limits_of(context.settings), away=away)
