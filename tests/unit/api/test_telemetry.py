"""Log lines are JSON, one line each, whatever is logged."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from tuner_service.telemetry import JsonFormatter, accept_request_id, log_ids, request_id_variable


def record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    return logging.getLogger("tuner.test").makeRecord(
        "tuner.test", logging.INFO, __file__, 1, message, arguments, None, extra=extra
    )


def test_a_line_is_one_json_object_with_the_ids() -> None:
    token = request_id_variable.set("req_1")
    try:
        with log_ids(job_id="job_1", trial_id=None):
            text = JsonFormatter().format(record("two\nlines %s", 'a"b', status=200))
        assert "job_id" not in json.loads(JsonFormatter().format(record("after")))
    finally:
        request_id_variable.reset(token)
    assert "\n" not in text
    line = json.loads(text)
    assert line["message"] == 'two\nlines a"b'
    assert (line["request_id"], line["job_id"], line["status"], line["level"]) == ("req_1", "job_1", 200, "INFO")
    assert "trial_id" not in line


def test_a_traceback_is_kept_in_the_line() -> None:
    made = record("failed")
    try:
        raise ValueError("why")
    except ValueError:
        made.exc_info = sys.exc_info()
    line = json.loads(JsonFormatter().format(made))
    assert "ValueError: why" in line["exception"]


def test_long_messages_are_cut() -> None:
    assert len(json.loads(JsonFormatter().format(record("x" * 100_000)))["message"]) == 4000


@pytest.mark.parametrize("offered", [None, "", "a b", "a\nb", "x" * 65, "é"])
def test_an_unfit_request_id_is_replaced(offered: str | None) -> None:
    assert accept_request_id(offered) != offered
    assert accept_request_id(offered) != accept_request_id(offered)
