"""The alerting rules ask for metrics, labels and words that exist, and the how-to explains each of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import yaml

from search.outcome import Stage
from tuner_service.api.gauges import CAUSES, JOB_STATES

ROOT = Path(__file__).parents[3]
RULES = yaml.safe_load((ROOT / "examples" / "deploy" / "alerts.yaml").read_text())["groups"][0]["rules"]
PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text()
HOW_TO = (ROOT / "docs" / "how-to" / "operate.md").read_text()
METRICS = {
    name: frozenset(re.findall(r"`(\w+)`", labels))
    for name, labels in re.findall(r"^\| `(tuner_\w+)` \| \w+ \| (.*?) \|", PAGE, flags=re.MULTILINE)
}
"""tests/unit/api/test_metrics.py holds the page to the code."""
WORDS = {
    *CAUSES,
    *JOB_STATES,
    *get_args(Stage),
    "waiting",
    "running",
    "draining",
    "full",
    "lost",
    "rejected",
    "measured",
}


def test_every_expression_names_what_is_there() -> None:
    expressions = [rule["expr"] for rule in RULES] + re.findall(r"^\| .*\? \| `(.*)` \|$", HOW_TO, flags=re.MULTILINE)
    assert len(expressions) > len(RULES)
    for expression in expressions:
        named = re.findall(r"(tuner_\w+?)(?:_bucket|_sum|_count)?(?:\{(.*?)\})?(?![\w{])", expression)
        assert named, expression
        for metric, labels in named:
            assert metric in METRICS, (metric, expression)
            for label, word in re.findall(r'(\w+)="(.*?)"', labels):
                assert label in METRICS[metric], (label, expression)
                assert word in WORDS, (word, expression)


def test_the_how_to_explains_every_alert_and_no_other() -> None:
    explained = re.findall(r"^\| `(Tuner\w+)` \|", HOW_TO, flags=re.MULTILINE)
    assert sorted(explained) == sorted(rule["alert"] for rule in RULES)
