"""Command-line words to a request body, and words that are refused with option, value and what is allowed."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from tuner_service.cli import request
from tuner_service.cli.errors import CommandError, ExitStatus
from tuner_service.cli.output import visible


def cases(**given: Any) -> list[dict[str, Any]]:
    plain: dict[str, Any] = dict.fromkeys(("kernel", "program", "shapes", "dims", "params", "dtypes"))
    words = {**plain, **given}
    return request.build_cases(
        request.read_words(**words),
        shapes=words["shapes"],
        dims=words["dims"],
        kernel_document=lambda name: {"dims": ["rows", "cols"]},
    )


def test_shapes_follow_the_order_of_the_dims_and_each_is_a_case() -> None:
    found = cases(
        kernel="rms_norm",
        shapes=["1024x4096", "3X7", "2×5"],
        dims=["cols=9,rows=1"],
        params=["eps=1e-5"],
        dtypes=["x=float32,weight=float32"],
    )
    assert [case["dims"] for case in found] == [
        {"rows": 1024, "cols": 4096},
        {"rows": 3, "cols": 7},
        {"rows": 2, "cols": 5},
        {"cols": 9, "rows": 1},
    ]
    assert all(case["params"] == {"eps": 1e-5} for case in found)
    assert all(case["dtypes"] == {"x": "float32", "weight": "float32"} for case in found)


def test_what_was_not_said_is_left_to_the_service() -> None:
    body = request.build_request(cases=cases(kernel="k", shapes=["1x2"]), device="cpu", space=None, budget=None)
    assert body == {"cases": [{"kernel": "k", "dims": {"rows": 1, "cols": 2}}], "device": "cpu"}


def test_everything_that_can_be_said() -> None:
    body = request.build_request(
        cases=[],
        device="cpu",
        space=["width=8,16", "input=reload,cache", "nontemporal=false,true", 'input_map=[{"x": "cache"}]', "vector="],
        budget="none",
        baselines=["torch_eager", "torch_compile"],
        labels=["team=kernels", "run=7"],
    )
    assert body["space"] == {
        "width": [8, 16],
        "input": ["reload", "cache"],
        "nontemporal": [False, True],
        "input_map": [{"x": "cache"}],
        "vector": [],
    }
    assert body["private_budget_scalars"] is None
    assert body["baselines"] == ["torch_eager", "torch_compile"]
    assert body["labels"] == {"team": "kernels", "run": "7"}
    assert request.build_request(cases=[], device="cpu", space=None, budget="0", baselines=["none"]) == {
        "cases": [],
        "device": "cpu",
        "private_budget_scalars": 0,
        "baselines": [],
    }


def test_extents_and_budgets_that_are_integers_are_judged_by_the_service() -> None:
    assert cases(kernel="k", shapes=["0x-3"])[0]["dims"] == {"rows": 0, "cols": -3}
    assert request.parse_budget("-1") == -1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kernel": "k", "shapes": ["1024"]}, ["--shape", "'1024'", "has 1 extents", "ROWSXCOLS"]),
        ({"kernel": "k", "shapes": ["4xmany"]}, ["--shape", "'4xmany'", "'many' is not an integer"]),
        ({"kernel": "k", "shapes": ["4x1.5"]}, ["--shape", "'1.5' is not an integer"]),
        ({"kernel": "k", "dims": ["rows"]}, ["--dims", "'rows'", "NAME=VALUE"]),
        ({"kernel": "k", "dims": ["rows=1,rows=2"]}, ["--dims", "'rows' twice"]),
        ({"kernel": "k"}, ["at least one --shape ROWSXCOLS"]),
        ({"shapes": ["1x2"]}, ["name one kernel, or give one --program"]),
        ({"kernel": "k", "program": Path("p.json"), "shapes": ["1x2"]}, ["name one kernel, or give one --program"]),
        ({"kernel": "k", "shapes": ["1x2"], "params": ["eps=small"]}, ["--param", "'small'", "finite"]),
        ({"kernel": "k", "shapes": ["1x2"], "params": ["eps=inf"]}, ["--param", "'inf'", "finite"]),
        ({"kernel": "k", "shapes": ["1x2"], "params": ["eps=nan"]}, ["--param", "'nan'", "finite"]),
        ({"kernel": "k", "shapes": ["1x2"], "dtypes": ["x"]}, ["--dtype", "'x'"]),
    ],
)
def test_wrong_words_name_option_value_and_what_is_allowed(given: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(CommandError) as raised:
        cases(**given)
    assert raised.value.status == ExitStatus.BAD_INPUT
    for word in words:
        assert word.lower() in str(raised.value).lower()


@pytest.mark.parametrize("space", [["width"], ["=1"], ["width=8", "width=16"], ["width=[8"]])
def test_wrong_spaces_are_refused(space: list[str]) -> None:
    with pytest.raises(CommandError, match="--space"):
        request.build_request(cases=[], device="cpu", space=space, budget=None)


def test_wrong_budgets_are_refused() -> None:
    with pytest.raises(CommandError, match=r"--budget 'lots'.*none"):
        request.parse_budget("lots")


def test_a_program_file_stands_in_for_a_kernel(tmp_path: Path) -> None:
    path = tmp_path / "program.json"
    path.write_text(json.dumps({"name": "mine", "dims": ["n", "m"]}))
    assert cases(program=path, shapes=["2x3"]) == [
        {"program": {"name": "mine", "dims": ["n", "m"]}, "dims": {"n": 2, "m": 3}}
    ]


@pytest.mark.parametrize("text", [None, "{", "[1]", "\ufeff\x00"])
def test_a_program_file_that_is_none_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "program.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CommandError, match="--program"):
        cases(program=path, shapes=["2x3"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"params": {"eps": NaN}}', "/params/eps: NaN, infinity"),
        (b'{"params": {"eps": 1e999}}', "/params/eps: NaN, infinity"),
        (b'{"name": "a", "name": "b"}', "/name: this name stands more than once"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested more than 64 deep"),
        (b'{"params": {"n": 1' + b"0" * 10_000 + b"}}", "/params/n: this integer is too large"),
        (b'{"name": "\xff"}', "byte 10 is not UTF-8"),
        (b'{"name": "\\ud800"}', "half of a surrogate pair"),
        (b"", "the file is empty"),
        (b"[]", "must be a JSON object"),
        (b"{", "is not JSON"),
    ],
)
def test_a_program_file_is_read_as_strictly_as_a_body(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "program.json").write_bytes(content)
    with pytest.raises(CommandError, match=re.escape(message)) as raised:
        request.read_program(tmp_path / "program.json")
    assert raised.value.status == ExitStatus.BAD_INPUT
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("text", ["[NaN]", "[" * 5000, "[1" + "0" * 5000 + "]", '[{"x": 1, "x": 2}]', "[1] x"])
def test_a_list_of_a_knob_is_read_strictly(text: str) -> None:
    with pytest.raises(CommandError, match="--space"):
        request.parse_space([f"width={text}"])


def test_what_a_terminal_would_obey_is_shown_instead() -> None:
    trick = "\x1b[31mx\u202ey\u200bz\x00\u2028 \xa0é\n"
    assert visible(trick) == "\\x1b[31mx\\u202ey\\u200bz\\x00\\u2028 \xa0é\n"


def test_a_program_that_comes_from_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "program"
    os.mkfifo(pipe)
    document = {"name": "p", "dims": ["rows", "cols"]}
    writer = threading.Thread(target=pipe.write_text, args=(json.dumps(document),))
    writer.start()
    found = cases(program=pipe, shapes=["2x3"])
    writer.join()
    assert found == [{"program": document, "dims": {"rows": 2, "cols": 3}}]
