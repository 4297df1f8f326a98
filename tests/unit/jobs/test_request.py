"""Request resolution: defaults are echoed, and every problem is named at once with a pointer."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from search.device.spec import DeviceSpec
from search.errors import InvalidInput
from search.program.document import dump_program
from search.program.library import kernels
from tuner_service.jobs.plan import plan_document, plan_items
from tuner_service.jobs.request import Limits, ResolvedRequest, resolve_request

Resolve = Callable[..., ResolvedRequest]


def problems(resolve: Resolve, body: Any, **limits: Any) -> dict[str, Any]:
    with pytest.raises(InvalidInput) as caught:
        resolve(body, **limits)
    return {problem.field: problem for problem in caught.value.problems}


def cases_like(small: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """So many cases that differ in their rows only."""
    (case,) = small["cases"]
    return [{**case, "dims": {**case["dims"], "rows": 8 + more}} for more in range(number)]


def test_every_default_is_resolved_and_echoed(resolve: Resolve) -> None:
    resolved = resolve({"cases": [{"kernel": "rms_norm", "dims": {"rows": 4, "cols": 64}}]})
    document = resolved.document
    assert document["cases"][0]["params"] == {"eps": 1e-6}
    assert document["cases"][0]["dtypes"]["x"] == "float32"
    assert document["device"] == "cpu"
    assert document["private_budget_scalars"] == 64
    assert document["protocol"] == "search"
    assert document["baselines"] == ["torch_eager"]
    assert document["labels"] == {}
    assert document["space"]["width"] == [8, 16, 32, 64]
    assert document["space"]["simd_scope"] == ["none", "main", "all"]
    assert len(document["space"]) == 12


def test_a_resolved_request_resolves_to_itself(resolve: Resolve, small: dict[str, Any]) -> None:
    first = resolve({**small, "labels": {"team": "kernels"}, "baselines": [], "private_budget_scalars": None})
    second = resolve(dict(first.document))
    assert second == first
    assert first.budget_scalars is None


@pytest.mark.parametrize("body", [None, [], "text", 3, True])
def test_a_body_that_is_no_object(resolve: Resolve, body: Any) -> None:
    assert "" in problems(resolve, body)


BAD: list[tuple[str, dict[str, Any]]] = [
    ("/cases", {"cases": []}),
    ("/cases", {"cases": {"kernel": "softmax"}}),
    ("/cases/0", {"cases": ["softmax"]}),
    ("/cases/0/kernel", {"cases": [{"kernel": "sofmax", "dims": {"rows": 1, "cols": 1}}]}),
    ("/cases/0/dims/cols", {"cases": [{"kernel": "softmax", "dims": {"rows": 1}}]}),
    ("/cases/0/dims/rows", {"cases": [{"kernel": "softmax", "dims": {"rows": 0, "cols": 1}}]}),
    ("/cases/0/dims/rows", {"cases": [{"kernel": "softmax", "dims": {"rows": -1, "cols": 1}}]}),
    ("/cases/0/dims/rows", {"cases": [{"kernel": "softmax", "dims": {"rows": 1.5, "cols": 1}}]}),
    ("/cases/0/dims/rows", {"cases": [{"kernel": "softmax", "dims": {"rows": True, "cols": 1}}]}),
    ("/cases/0/dims", {"cases": [{"kernel": "softmax", "dims": {"rows": 2**20, "cols": 2**20}}]}),
    (
        "/cases/0/dtypes/x",
        {"cases": [{"kernel": "softmax", "dims": {"rows": 1, "cols": 1}, "dtypes": {"x": "float64"}}]},
    ),
    ("/space/width", {"space": {"width": []}}),
    ("/space/width/1", {"space": {"width": [8, 8]}}),
    ("/space/width/0", {"space": {"width": [8.5]}}),
    ("/space/width/0", {"space": {"width": [2048]}}),
    ("/space/widht", {"space": {"widht": [8]}}),
    ("/space/rows_per_block", {"space": {"rows_per_block": [1]}}),
    ("/space", {"space": [8]}),
    ("/device", {"device": "tpu"}),
    ("/device", {"device": 3}),
    ("/device", {"device": None}),
    ("/baselines/0", {"baselines": ["numpy"]}),
    ("/baselines/1", {"baselines": ["torch_eager", "torch_eager"]}),
    ("/baselines/0", {"baselines": [["torch_eager"]]}),
    ("/baselines", {"baselines": "torch_eager"}),
    ("/private_budget_scalars", {"private_budget_scalars": -1}),
    ("/private_budget_scalars", {"private_budget_scalars": 1.0}),
    ("/private_budget_scalars", {"private_budget_scalars": True}),
    ("/private_budget_scalars", {"private_budget_scalars": "64"}),
    ("/protocol", {"protocol": "finals"}),
    ("/protocol", {"protocol": {}}),
    ("/labels", {"labels": ["a"]}),
    ("/labels/a", {"labels": {"a": 1}}),
    ("/labels/", {"labels": {"": "empty name"}}),
    ("/labels/a=b", {"labels": {"a=b": "x"}}),
    ("/labels/a", {"labels": {"a": "x" * 257}}),
    ("/kernel", {"kernel": "softmax"}),
]


@pytest.mark.parametrize(("pointer", "change"), BAD)
def test_each_bad_value_is_named(resolve: Resolve, small: dict[str, Any], pointer: str, change: dict[str, Any]) -> None:
    found = problems(resolve, {**small, **change})
    assert pointer in found
    assert found[pointer].message
    assert found[pointer].allowed is not None


def test_all_problems_of_a_body_come_at_once(resolve: Resolve) -> None:
    body = {
        "cases": [{"kernel": "nothing"}, {"kernel": "softmax", "dims": {"rows": -3, "cols": 2}}],
        "device": "tpu",
        "space": {"width": [7], "colour": ["red"]},
        "private_budget_scalars": -5,
        "protocol": "fast",
        "baselines": ["numpy"],
        "labels": 3,
        "extra": 1,
    }
    assert set(problems(resolve, body)) == {
        "/cases/0/kernel",
        "/cases/1/dims/rows",
        "/device",
        "/space/width/0",
        "/space/colour",
        "/private_budget_scalars",
        "/protocol",
        "/baselines/0",
        "/labels",
        "/extra",
    }


def test_a_problem_that_cases_share_is_told_once(resolve: Resolve, small: dict[str, Any]) -> None:
    body = {**small, "cases": cases_like(small, 3), "space": {"width": [7]}}
    with pytest.raises(InvalidInput) as caught:
        resolve(body)
    assert [problem.field for problem in caught.value.problems] == ["/space/width/0"]


def test_limits_on_cases_and_candidates(resolve: Resolve, small: dict[str, Any]) -> None:
    assert "at most" in problems(resolve, small, candidates_per_case=3)["/space"].allowed
    assert resolve(small, candidates_per_case=4)
    assert "1 to 2" in problems(resolve, {**small, "cases": cases_like(small, 3)}, cases=2)["/cases"].allowed
    two = {**small, "cases": cases_like(small, 2)}
    assert "per job" in problems(resolve, two, candidates_per_job=7)["/space"].allowed
    assert resolve(two, candidates_per_job=8)


def test_more_than_20_000_candidates_in_a_case(resolve: Resolve, small: dict[str, Any]) -> None:
    huge = {
        "width": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024],
        "vector": [1, 2, 4, 8, 16],
        "unroll": list(range(1, 17)),
        "partials": [1, 2, 4, 8],
        "row_block": [1, 2, 4],
        "fusion": ["separate", "fused"],
    }
    found = problems(resolve, {**small, "space": huge})
    assert found["/space"].value > 20_000
    assert "20000" in str(found["/space"].allowed)


def test_a_device_is_named_by_kind_or_id(resolve: Resolve, small: dict[str, Any], device: DeviceSpec) -> None:
    assert resolve({**small, "device": device.id}).device == device
    assert resolve({**small, "device": "cpu"}).device == device


def test_an_unavailable_device_is_refused_with_its_reason(small: dict[str, Any], make_device: Any) -> None:
    broken = make_device(available=False, reason="gcc is missing")
    with pytest.raises(InvalidInput, match="gcc is missing"):
        resolve_request(small, devices={broken.id: broken}, limits=Limits())


def test_of_several_devices_of_a_kind_a_usable_one_is_taken(small: dict[str, Any], make_device: Any) -> None:
    broken = make_device(id="cpu:a", available=False, reason="gcc is missing")
    sound = make_device(id="cpu:b")
    assert resolve_request(small, devices={"cpu:a": broken, "cpu:b": sound}, limits=Limits()).device == sound


def test_a_width_beyond_the_device_is_refused(small: dict[str, Any], make_device: Any) -> None:
    narrow = make_device(max_width=8)
    with pytest.raises(InvalidInput) as caught:
        resolve_request(small, devices={narrow.id: narrow}, limits=Limits())
    assert [(p.field, p.value) for p in caught.value.problems] == [("/space/width", [16])]


def test_plan_counts_and_pages(resolve: Resolve, small: dict[str, Any]) -> None:
    resolved = resolve({**small, "cases": cases_like(small, 2)})
    whole = plan_document(resolved, limit=100)
    assert whole["total"] == 10
    assert [case["enumerated"] for case in whole["cases"]] == [4, 4]
    assert [case["planned"] for case in whole["cases"]] == [3, 3]
    assert whole["cases"][0]["reasons"] == {"private_budget": 1}
    paged = [plan_document(resolved, limit=3, offset=offset)["items"] for offset in (0, 3, 6, 9, 12)]
    assert [len(page) for page in paged] == [3, 3, 3, 1, 0]
    assert list(itertools.chain(*paged)) == whole["items"]
    assert [*plan_items(resolved, 0), *plan_items(resolved, 1)] == whole["items"]
    rejected = [item for item in whole["items"] if item["outcome"] == "rejected"]
    assert [item["detail"]["budget_scalars"] for item in rejected] == [8, 8]


def test_what_is_allowed_instead_of_an_unavailable_device(small: Any, make_device: Any) -> None:
    broken = make_device(available=False, reason="gcc is gone")
    with pytest.raises(InvalidInput) as none:
        resolve_request(small, devices={broken.id: broken}, limits=Limits())
    assert [problem.allowed for problem in none.value.problems] == ["none: no attached device can be used now"]
    other = make_device(id="gpu:1", kind="nvidia-paper")
    with pytest.raises(InvalidInput) as some:
        resolve_request({**small, "device": "cpu"}, devices={broken.id: broken, other.id: other}, limits=Limits())
    assert [problem.allowed for problem in some.value.problems] == [["gpu:1", "nvidia-paper"]]


DIMS = {"rows": 4, "cols": 64}
RMS_NORM = {"kernel": "rms_norm", "dims": DIMS}


@pytest.mark.parametrize(
    "again",
    [
        RMS_NORM,
        {"kernel": "rms_norm", "dims": {"cols": 64, "rows": 4}, "params": {"eps": 1e-6}, "dtypes": {"x": "float32"}},
        {"program": dump_program(kernels()["rms_norm"].program), "dims": DIMS},
        {"program": {**dump_program(kernels()["rms_norm"].program), "name": "my_norm"}, "dims": DIMS},
    ],
)
def test_the_same_case_twice_is_refused_however_it_is_said(resolve: Resolve, again: Any) -> None:
    other = {"kernel": "softmax", "dims": DIMS}
    found = problems(resolve, {"cases": [other, RMS_NORM, again]})
    assert list(found) == ["/cases/2"]
    assert "/cases/1" in found["/cases/2"].message
    assert list(problems(resolve, {"cases": [again, other, again, RMS_NORM]})) == ["/cases/2", "/cases/3"]


def test_cases_that_differ_in_one_thing_are_not_the_same(resolve: Resolve) -> None:
    cases = [
        RMS_NORM,
        {**RMS_NORM, "params": {"eps": 1e-5}},
        {**RMS_NORM, "dims": {"rows": 64, "cols": 4}},
        {"kernel": "layer_norm", "dims": DIMS},
    ]
    assert len(resolve({"cases": cases}).cases) == len(cases)


def test_a_program_without_params_says_so(resolve: Resolve) -> None:
    found = problems(resolve, {"cases": [{"kernel": "softmax", "dims": DIMS, "params": {"eps": 1.0}}]})
    (problem,) = found.values()
    assert problem.message == "unknown param 'eps': the program has no params"
    assert problem.allowed == "nothing: the program has no params"


def test_planning_is_bounded_by_the_size_of_programs_and_the_number_of_candidates(
    resolve: Resolve, small: dict[str, Any]
) -> None:
    space = {knob: list(small["space"][knob]) for knob in small["space"]}
    size = sum(item.space.size for item in resolve(small).cases)
    nodes = size * 17  # of softmax: 5 statements, and 12 operands and operations
    assert resolve(small, planned_nodes=nodes)
    found = problems(resolve, small, planned_nodes=nodes - 1)
    assert found["/space"].value == nodes
    assert resolve({**small, "space": {**space, "width": [8]}}, planned_nodes=nodes - 1)


def test_a_device_that_is_away_may_be_named_unless_one_of_its_kind_is_here(small: Any, make_device: Any) -> None:
    def chosen(name: str, devices: list[DeviceSpec], away: list[DeviceSpec]) -> str:
        given = {spec.id: spec for spec in devices}
        elsewhere = {spec.id: spec for spec in away}
        return resolve_request({**small, "device": name}, devices=given, limits=Limits(), away=elsewhere).device.id

    here, broken = make_device(id="cpu:here"), make_device(id="cpu:broken", available=False, reason="gcc is gone")
    gone, old = (make_device(id=name, available=False, reason="gone") for name in ("cpu:gone", "cpu:old"))
    assert chosen("cpu", [here, gone], [gone, old]) == "cpu:here"
    assert chosen("cpu:old", [here], [old]) == "cpu:old"
    assert chosen("cpu", [gone], [old, gone]) == "cpu:gone", "what was here before what was somewhere once"
    assert chosen("cpu", [], [gone, old]) == "cpu:gone", "the likeliest first"
    with pytest.raises(InvalidInput, match="gcc is gone"):
        chosen("cpu", [broken], [old])
    with pytest.raises(InvalidInput) as unknown:
        chosen("gpu", [here], [old])
    assert [p.allowed for p in unknown.value.problems] == [["cpu", "cpu:here", "cpu:old"]]
    with pytest.raises(InvalidInput) as nothing:
        chosen("gpu", [], [])
    assert [p.allowed for p in nothing.value.problems] == ["none: no device was ever attached, see `tuner worker`"]
