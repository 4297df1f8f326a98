"""The command line against a real service, compiler and measurements on this machine: one small job, seen every way."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tuner_service.cli.launch import PrivateService
from tuner_service.cli.main import run

pytestmark = pytest.mark.toolchain

TUNER = [sys.executable, "-m", "tuner_service.cli"]
SPACE = ["--space", "width=8,16", "--space", "simd_scope=none", "--space", "nontemporal=false"]
SMALL = ["softmax", "--shape", "8x33", *SPACE]
BUDGET = ["--budget", "6"]
"""softmax at 33 columns: ceil(33 / 8) = 5 private scalars a tile fit, two tiles do not."""


def tuner(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command as its process would end, run in this one: half a second of imports less, forty times."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(arguments)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


def tuner_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command as a user starts it."""
    return subprocess.run([*TUNER, *arguments], capture_output=True, text=True, timeout=180)


def answer(*arguments: str, status: int = 0) -> Any:
    """The JSON that a command prints, with the exit status it must have."""
    done = tuner(*arguments, "--json")
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def service(data_dir: Path) -> Iterator[PrivateService]:
    with PrivateService(data_dir) as running:
        yield running


@pytest.fixture(scope="module")
def job(service: PrivateService, data_dir: Path) -> Any:
    return answer("tune", *SMALL, *BUDGET, "--data-dir", str(data_dir))


def test_a_job_comes_back_complete(job: Any) -> None:
    assert job["state"] == "succeeded"
    progress = job["progress"]
    assert progress["enumerated"] == 8  # width 2 × input 2 × materialize 2
    assert progress["rejected"] + progress["measured"] == 8
    assert progress["rejected"] >= 1
    (case,) = job["cases"]
    assert case["winner"]["outcome"] == "measured"
    assert case["winner"]["id"] in case["tie_set"]
    assert case["baselines"]["torch_eager"]["ratio"]["min"] > 0


def test_the_plan_agrees_with_the_job(job: Any, service: PrivateService) -> None:
    plan = answer("plan", *SMALL, *BUDGET, "--url", service.url)
    rejected = [item for item in plan["items"] if item["in_space"] and item["outcome"] == "rejected"]
    recorded = answer("trials", job["id"], "--outcome", "rejected", "--stage", "constraints", "--url", service.url)
    assert [(i["candidate"], i["reason"]) for i in rejected] == [
        (t["candidate"], t["reason"]) for t in recorded["items"]
    ]


def test_an_exact_lookup_hits_and_another_shape_misses_with_the_difference(job: Any, service: PrivateService) -> None:
    entry = answer("lookup", "softmax", "--shape", "8x33", "--url", service.url)
    assert entry["trial_id"] == job["cases"][0]["winner"]["id"]
    miss = answer("lookup", "softmax", "--shape", "9x33", "--url", service.url, status=1)
    assert miss["misses"][0]["differs"] == {"dims.rows": [9, 8]}


def test_tables_print_what_the_json_says(job: Any, service: PrivateService) -> None:
    shown = tuner("jobs", job["id"], "--url", service.url)
    assert shown.returncode == 0, shown.stderr
    assert "softmax 8×33" in shown.stdout
    assert "private_budget" in shown.stdout
    for command in ("jobs", "devices", "kernels"):
        listed = tuner(command, "--url", service.url)
        assert listed.returncode == 0, listed.stderr
        assert len(listed.stdout.splitlines()) >= 2
    assert job["id"] in tuner("jobs", "--kernel", "softmax", "--url", service.url).stdout


def test_an_exported_trial_builds_by_hand(job: Any, service: PrivateService, tmp_path: Path) -> None:
    winner = job["cases"][0]["winner"]["id"]
    done = tuner_process("trials", "--id", winner, "--export", str(tmp_path / "out"), "--url", service.url)
    assert done.returncode == 0, done.stderr
    built = subprocess.run(["sh", "build.sh"], cwd=tmp_path / "out", capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert list((tmp_path / "out").glob("*.so"))


def test_the_winner_is_reproduced_from_its_record(job: Any, service: PrivateService) -> None:
    winner = job["cases"][0]["winner"]["id"]
    result = answer("reproduce", winner, "--url", service.url)
    assert result["reproduced"]
    facts = {c["name"]: c for c in result["comparisons"]}
    assert facts["artifact_sha256"]["now"] == job["cases"][0]["winner"]["code"]["artifact_sha256"]
    assert facts["median"]["now"]


def test_a_program_of_ones_own_is_tuned_and_reproduced(service: PrivateService, tmp_path: Path) -> None:
    program = answer("kernels", "softmax", "--url", service.url)["program"]
    program["name"] = "half_softmax"
    program["body"][1]["tile"]["value"] = "exp((x - peak) / 2)"
    path = tmp_path / "program.json"
    path.write_text(json.dumps(program))
    job = answer("tune", "--program", str(path), "--dims", "rows=3,cols=17", *SPACE, "--url", service.url)
    winner = job["cases"][0]["winner"]
    assert winner["checks"]["passed"]
    assert winner["case"]["kernel"] == "half_softmax"
    assert answer("reproduce", winner["id"], "--url", service.url)["reproduced"]


def test_a_rejection_is_reproduced_too(job: Any, service: PrivateService) -> None:
    trials = answer("trials", job["id"], "--outcome", "rejected", "--limit", "1", "--url", service.url)
    assert (len(trials["items"]), trials["total"]) == (1, job["progress"]["rejected"])
    result = answer("reproduce", trials["items"][0]["id"], "--url", service.url)
    assert result["reproduced"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["softmax", "--shape", "0x33"], ["/cases/0/dims/rows", "0"]),
        (["softmax", "--shape", "8x33", "--space", "wide=8"], ["/space/wide", "width"]),
        (["softmax", "--shape", "8x33", "--device", "tpu"], ["/device", "tpu", "cpu"]),
        (["softmax", "--shape", "8x33", "--budget=-1"], ["/private_budget_scalars", "-1"]),
        (["softmax", "--shape", "8x33", "--baseline", "numpy"], ["/baselines/0", "numpy", "torch_eager"]),
        (["nonsense", "--shape", "8x33"], ["softmax"]),
    ],
)
def test_bad_input_exits_2_and_creates_nothing(arguments: list[str], words: list[str], service: PrivateService) -> None:
    before = len(answer("jobs", "--url", service.url)["items"])
    done = tuner("tune", *arguments, "--url", service.url)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
    assert len(answer("jobs", "--url", service.url)["items"]) == before


def test_one_service_to_a_data_directory(service: PrivateService, data_dir: Path) -> None:
    second = tuner_process("serve", "--port", "0", "--data-dir", str(data_dir))
    assert second.returncode != 0
    assert "in use" in second.stderr
    assert tuner("devices", "--url", service.url).returncode == 0


def test_serve_refuses_an_address_that_others_can_reach(tmp_path: Path) -> None:
    done = tuner_process("serve", "--host", "0.0.0.0", "--port", "0", "--data-dir", str(tmp_path))
    assert done.returncode == 2
    assert "0.0.0.0" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell that runs the tests in the background ignores SIGINT for them, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_cancels_the_job_and_takes_the_private_service_along(tmp_path: Path) -> None:
    arguments = ["tune", "softmax", "--shape", "64x512", "--data-dir", str(tmp_path)]
    with subprocess.Popen([*TUNER, *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        seen = ""
        while "candidates in 1 case on" not in seen:
            line = running.stderr.readline()
            assert line, seen
            seen += line
        service_pid = json.loads((tmp_path / "service.json").read_text())["pid"]
        running.send_signal(signal.SIGINT)
        rest = running.communicate(timeout=60)[1]
    assert running.returncode == 130
    assert "cancelled; what was measured is kept" in rest
    assert "Traceback" not in rest
    assert gone(service_pid)
    jobs = answer("jobs", "--data-dir", str(tmp_path))["items"]
    assert [job["state"] for job in jobs] == ["cancelled"]
    assert jobs[0]["progress"]["not_run"] > 0


def test_a_killed_command_leaves_no_private_service_behind(tmp_path: Path) -> None:
    arguments = ["tune", "softmax", "--shape", "64x512", "--data-dir", str(tmp_path)]
    with subprocess.Popen([*TUNER, *arguments], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as running:
        while not (tmp_path / "service.json").exists():
            assert running.poll() is None
            time.sleep(0.02)
        service_pid = json.loads((tmp_path / "service.json").read_text())["pid"]
        running.kill()
    assert gone(service_pid)


def gone(pid: int, *, within_seconds: float = 30.0) -> bool:
    """Whether a process is no longer there (zombies that nobody waits for count as gone)."""
    deadline = time.monotonic() + within_seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_serve_json_says_url_and_pid_and_stops_on_a_signal(tmp_path: Path) -> None:
    arguments = ["serve", "--json", "--port", "0", "--data-dir", str(tmp_path)]
    with subprocess.Popen(
        [*TUNER, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as running:
        assert running.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            text += running.stdout.readline()
        ready = json.loads(text)
        assert ready["pid"] == running.pid
        assert tuner("kernels", "--url", ready["url"]).returncode == 0
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=30) == 0
    assert not (tmp_path / "service.json").exists()
