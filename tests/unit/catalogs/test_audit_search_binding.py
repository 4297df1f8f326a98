"""A search is bound to the entries that were frozen from it, and to its space: nothing leaves it unseen."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

import bundle_factory as make
from bundle_damage import OTHER, PLAIN, Bundle, Damage, edit, named, refuses

from catalogs.audit import audit

LOSER, REJECTED = 2, 3
"""Places of a losing and of a rejected trial; the winner and the reference come first."""
SPACE_KNOB = ("search", 0, "cases", 0, "space")


def searched(bundle: Bundle) -> dict[str, Any]:
    case: dict[str, Any] = bundle["search"][0]["cases"][0]
    return case


def redigested(bundle: Bundle) -> Bundle:
    """Every catalog with the digest that its contents have."""
    for catalog in bundle["catalogs"].values():
        del catalog["digest"]
        catalog["digest"] = make.sha(catalog)
    return bundle


def rebound(bundle: Bundle) -> Bundle:
    """Every entry of the first case with the sha256 that its search has."""
    kernel = searched(bundle)["kernel"]
    for role in ("candidate", "reference"):
        for entry in bundle["catalogs"][role]["entries"]:
            if entry["kernel"] == kernel:
                entry["search_sha256"] = make.sha(searched(bundle))
    return redigested(bundle)


def removed(place: int) -> Damage:
    """A trial leaves, and ``enumerated`` says so."""

    def damage(bundle: Bundle) -> None:
        del searched(bundle)["trials"][place]
        searched(bundle)["enumerated"] -= 1

    return damage


def removed_from_the_space(place: int) -> Damage:
    """As above, and the list of widths is shorter by the trial's."""

    def damage(bundle: Bundle) -> None:
        searched(bundle)["space"]["width"].remove(searched(bundle)["trials"][place]["candidate"]["width"])
        removed(place)(bundle)

    return damage


@pytest.mark.parametrize("place", [LOSER, REJECTED], ids=["a losing trial", "a rejected trial"])
def test_a_trial_that_left_with_its_count(place: int) -> None:
    for role in ("candidate", "reference"):
        refuses(removed(place), f"catalogs.{role}", "search_sha256", "edited")
        refuses(removed_from_the_space(place), f"catalogs.{role}", "search_sha256", "edited")
    refuses(removed(place), "search[0].cases[0]", "enumerated", "the lists of the space make 5")


@pytest.mark.parametrize("place", [LOSER, REJECTED], ids=["a losing trial", "a rejected trial"])
def test_catalogs_digested_anew_do_not_hide_it(place: int) -> None:
    """Only entries that name the new search would: and then the space still has the candidate."""
    refuses(lambda b: (removed(place)(b), redigested(b)), "catalogs.candidate", "search_sha256", "edited")
    refuses(lambda b: (removed(place)(b), rebound(b)), "search[0].cases[0]", "enumerated", "lists of the space")


@pytest.mark.parametrize(
    "path",
    [
        ("trials", LOSER, "id"),
        ("trials", REJECTED, "reason"),
        ("trials", 0, "elements_checked"),
        ("trials", 5, "samples_seconds", 0),
        ("inert_knobs", 0),
    ],
    ids=lambda path: ".".join(str(step) for step in path),
)
def test_what_nothing_else_depends_on_is_bound_too(path: tuple[Any, ...]) -> None:
    values: dict[str, Any] = {
        "id": "trl_x",
        "reason": "spill_limit",
        "elements_checked": 5,
        "samples_seconds": 1.26e-5,
        "inert_knobs": "vector",
    }
    name = next(step for step in reversed(path) if isinstance(step, str))
    refuses(edit("search", 0, "cases", 0, *path, value=values[name]), "catalogs.candidate", "search_sha256")


def test_trials_in_another_order_are_another_search() -> None:
    refuses(lambda b: searched(b)["trials"].reverse(), "catalogs.reference", "search_sha256")


@pytest.mark.parametrize("role", ["candidate", "reference"])
def test_an_entry_that_names_no_search_or_another(role: str) -> None:
    def dropped(bundle: Bundle) -> None:
        del bundle["catalogs"][role]["entries"][0]["search_sha256"]

    where = f"catalogs.{role}"
    refuses(dropped, where, "search_sha256", "freeze it anew")
    refuses(dropped, where, "digest")
    refuses(lambda b: (dropped(b), redigested(b)), where, "search_sha256", "freeze it anew")
    for value in (OTHER, None, 7, "abc", [OTHER]):
        change = edit("catalogs", role, "entries", 0, "search_sha256", value=value)
        refuses(lambda b, change=change: (change(b), redigested(b)), where, "search_sha256")  # type: ignore[misc]


def test_an_entry_of_another_job_than_its_trial() -> None:
    def another(bundle: Bundle) -> None:
        bundle["catalogs"]["candidate"]["entries"][0]["job_id"] = "job_0"

    refuses(lambda b: (another(b), redigested(b)), "catalogs.candidate", "job_id", "in the search bundle")


def test_an_incumbent_from_before_searches_were_named() -> None:
    assert "search_sha256" not in PLAIN["catalogs"]["incumbent"]["entries"][0]
    assert audit(PLAIN).findings == ()
    refuses(
        lambda b: (b["catalogs"]["incumbent"].update(entries=b["catalogs"]["candidate"]["entries"]), removed(LOSER)(b)),
        "catalogs.incumbent", "search_sha256", "edited",
    )  # fmt: skip


SPACES: dict[str, tuple[Damage, str, str]] = {
    "a longer list": (lambda b: searched(b)["space"]["vector"].append(2), "enumerated", "make 10"),
    "a value twice": (lambda b: searched(b)["space"]["vector"].append(1), "space.vector", "twice"),
    "a value of no trial": (edit(*SPACE_KNOB, "fusion", 0, value="fused"), "candidate", "no candidate"),
    "a knob of no trial": (lambda b: searched(b)["space"].update(extra=[1]), "candidate", "no candidate"),
    "a knob that is missing": (lambda b: searched(b)["space"].pop("unroll"), "candidate", "no candidate"),
    "no widths": (lambda b: searched(b)["space"].pop("width"), "space.width", "missing"),
    "an empty list": (edit(*SPACE_KNOB, "vector", value=[]), "space.vector", "at least 1"),
    "no list": (edit(*SPACE_KNOB, "vector", value=1), "space.vector", "a list"),
    "no space": (lambda b: searched(b).pop("space"), "space", "missing"),
    "an inert knob with two values": (lambda b: searched(b)["inert_knobs"].append("width"), "inert_knobs", "one value"),
    "an inert knob that is none": (lambda b: searched(b)["inert_knobs"].append("depth"), "inert_knobs", "one value"),
    "a width that is a text": (edit(*SPACE_KNOB, "width", 0, value="8"), "space.width[0]", "an integer"),
    "a candidate outside": (
        edit("search", 0, "cases", 0, "trials", LOSER, "candidate", "vector", value=2), "candidate", "no candidate",
    ),
    "a candidate without mapping": (
        edit("search", 0, "cases", 0, "trials", LOSER, "candidate", "mapping", value=None), "candidate", "no candidate",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "field", "message"), SPACES.values(), ids=list(SPACES))
def test_a_space_that_its_trials_do_not_fill(damage: Damage, field: str, message: str) -> None:
    """The entries name the edited search, and the catalogs are digested anew: the lists alone contradict the trials."""
    refuses(lambda b: (damage(b), rebound(b)), "search[0].cases[0]", field, message)


def test_lanes_of_a_packet_and_their_number_are_one_value() -> None:
    """Of widths 8, 16, 128, 256 and 512 with "width" and 8 lanes, the first has one candidate and the others two."""
    bundle = copy.deepcopy(PLAIN)
    case = searched(bundle)
    case["space"]["local_lanes"] = ["width", 8]
    for width in case["space"]["width"][1:]:
        what = make.candidate(width=width)
        what["mapping"]["local_lanes"] = 8
        case["trials"].append({**copy.deepcopy(case["trials"][REJECTED]), "id": f"trl_8_of_{width}", "candidate": what})
    case["enumerated"] = 9
    assert audit(make.sealed(rebound(bundle))).findings == ()
    case["enumerated"] = 10
    report = audit(make.sealed(rebound(bundle)))
    assert named(report, "search[0].cases[0]", "enumerated", "make 9")


def test_the_plain_algorithm_is_in_the_space_and_in_no_candidate() -> None:
    """Candidates leave `algorithm` out where they compute the program as written; older bundles know no such knob."""
    for algorithms, ok in ((["written"], True), (["online"], False)):
        bundle = copy.deepcopy(PLAIN)
        searched(bundle)["space"]["algorithm"] = algorithms
        report = audit(make.sealed(rebound(bundle)))
        assert named(report, "search[0].cases[0]", "candidate", "no candidate of the space") != ok
        assert ok == (not any("space" in finding.message for finding in report.findings))


def test_a_candidate_with_an_algorithm_is_one_of_the_space_that_lists_it() -> None:
    def another(bundle: Bundle) -> None:
        searched(bundle)["trials"][LOSER]["candidate"]["algorithm"] = "online"

    refuses(lambda b: (another(b), rebound(b)), "search[0].cases[0]", "candidate", "no candidate of the space")
