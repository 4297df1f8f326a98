"""Winner against torch eager on the demo's cases, side by side in one run, with geometric means.

    python bench/cpu_winners.py                 run the demo's job now on .data/bench/ and print its ratios
    python bench/cpu_winners.py --job JOB       print those of a job that is done, on --data-dir or --url
    python bench/cpu_winners.py --json          the same as JSON

A ratio is the winner's time divided by torch's, paired within interleaved rounds of the same run; below 1 the winner
is faster. One thread, this machine, this toolchain. Exit status 1 when a case has no ratio.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from search.stats.summary import median
from tuner_service.cli.connect import connected
from tuner_service.cli.demo_job import demo_request
from tuner_service.cli.follow import follow
from tuner_service.cli.results import baseline_ratio, winner_seconds
from tuner_service.cli.words import candidate_words, case_words, ratio_words, seconds_words

BASELINE = "torch_eager"


def geometric_mean(values: list[float]) -> float:
    """The geometric mean of positive numbers."""
    product = 1.0
    for value in values:
        product *= value
    return product ** (1 / len(values))


def report(job: dict[str, Any]) -> dict[str, Any]:
    """Per case winner, times and ratio; per kernel the geometric mean and worst ratio."""
    cases = []
    for case in job["cases"]:
        ratio = baseline_ratio(case, BASELINE)
        baseline = case["baselines"].get(BASELINE) or {}
        cases.append(
            {
                "kernel": case["kernel"],
                "case": case_words(case),
                "winner": candidate_words(case["winner"]["candidate"]) if case["winner"] else None,
                "winner_seconds": winner_seconds(case),
                "beside_seconds": median(baseline["kernel_seconds"]) if baseline.get("kernel_seconds") else None,
                "torch_eager_seconds": baseline.get("median_seconds"),
                "ratio": ratio,
            }
        )
    kernels = {}
    for name in dict.fromkeys(case["kernel"] for case in cases):
        ratios = [case["ratio"]["median"] for case in cases if case["kernel"] == name and case["ratio"]]
        if ratios:
            kernels[name] = {"geometric_mean": geometric_mean(ratios), "worst": max(ratios), "cases": len(ratios)}
    return {"job": job["id"], "device": job["device"]["name"], "cases": cases, "kernels": kernels}


def show(found: dict[str, Any]) -> None:
    """The report as text."""
    print(f"{found['device']}, one thread, job {found['job']}: winner / torch eager, paired rounds of one run")
    for case in found["cases"]:
        times = f"{seconds_words(case['beside_seconds'])} / {seconds_words(case['torch_eager_seconds'])}"
        print(f"  {case['case']:24} {ratio_words(case['ratio']):20} {times:22} {case['winner'] or 'no winner'}")
    for name, kernel in found["kernels"].items():
        mean, worst = kernel["geometric_mean"], kernel["worst"]
        print(f"  {name:24} geometric mean {mean:.2f}, worst {worst:.2f} over {kernel['cases']} shapes")
    print("  [low, high] is the range of the rounds seen, not a confidence interval.")


def main() -> int:
    """Run or read a job and print its ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--job", help="a finished job; default: run the demo's job now")
    parser.add_argument("--data-dir", type=Path, default=Path(".data/bench"))
    parser.add_argument("--url", default=None)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with connected(url=given.url, data_dir=given.data_dir) as client:
        job_id = given.job or client.submit(demo_request())["id"]
        found = report(follow(client, job_id, quiet=given.job is not None))
    if given.json:
        json.dump(found, sys.stdout, indent=2)
        print()
    else:
        show(found)
    return 0 if all(case["ratio"] for case in found["cases"]) else 1


if __name__ == "__main__":
    sys.exit(main())
