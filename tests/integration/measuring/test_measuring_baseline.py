"""Baselines in the torch child: paired samples, the oracle's check, allocation policy, failures as data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from search.errors import InvalidInput
from search.measuring.protocol import PHASES, PROTOCOLS
from search.measuring.run import Measurer
from search.program.document import dump_program
from search.program.library import kernels
from search.program.resolve import resolve_case

ROUNDS = PROTOCOLS["finals"].samples


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measurer]:
    """One Measurer for the module: importing torch once is enough."""
    from search.device.spec import DeviceSpec

    device = DeviceSpec(
        id="cpu:baseline",
        kind="cpu",
        target="cpu",
        name="test",
        identity={},
        identity_digest="",
        toolchain={},
        toolchain_fingerprint="",
        available=True,
    )
    folder: Path = tmp_path_factory.mktemp("baseline")
    with Measurer(device, folder, lock_dir=folder / "locks") as one:
        yield one


@pytest.mark.parametrize("kernel", ["softmax", "rms_norm", "layer_norm"])
@pytest.mark.parametrize("shape", [(3, 7), (64, 256)])
def test_torch_eager_of_a_library_kernel(kernel, shape, shared) -> None:
    case = resolve_case({"kernel": kernel, "dims": {"rows": shape[0], "cols": shape[1]}})
    samples = shared.baseline(case, "torch_eager")
    assert samples.error is None
    assert samples.checks.passed
    assert samples.kernel_id is None
    assert samples.kernel_seconds == ()
    assert samples.threads == 1
    assert sorted(samples.timing) == sorted(PHASES)
    assert len(samples.timing["device_batch"].samples_seconds) == ROUNDS
    assert "torch" in samples.versions
    (call,) = kernels()[kernel].baseline
    assert samples.implementation.startswith(call.function + "(")
    assert samples.allocation == ("preallocated (out=)" if call.out else "allocates its result inside the timed call")


def test_rounds_are_paired_with_our_kernel(shared, build, case) -> None:
    samples = shared.baseline(case, "torch_eager", against=build("ours"))
    assert samples.error is None
    assert samples.kernel_id == "ours"
    assert len(samples.kernel_seconds) == len(samples.timing["device_batch"].samples_seconds) == ROUNDS
    assert all(sample > 0 for sample in samples.kernel_seconds)


def test_both_children_stay_alive(shared, build, case) -> None:
    shared.baseline(case, "torch_eager", against=build("ours"))
    before = (shared._torch.pid, shared._kernels.pid)
    shared.baseline(case, "torch_eager", against=build("ours"))
    assert (shared._torch.pid, shared._kernels.pid) == before
    assert None not in before


@pytest.mark.parametrize("kernel", ["softmax", "rms_norm", "layer_norm"])
def test_a_program_without_a_torch_call_is_evaluated_with_torch_operations(kernel, shared) -> None:
    program = dump_program(kernels()[kernel].program)
    case = resolve_case({"program": program, "dims": {"rows": 5, "cols": 65}})
    samples = shared.baseline(case, "torch_eager")
    assert samples.error is None
    assert samples.checks.passed
    assert samples.implementation.startswith(f"program {kernel}")
    assert samples.allocation == "allocates its result inside the timed call"


EVERYTHING = {
    "name": "everything",
    "params": {"scale": 0.5},
    "dims": ["rows", "cols", "half"],
    "axes": {
        "row": {"dim": "rows", "kind": "row"},
        "col": {"dim": "cols", "kind": "column"},
        "h": {"dim": "half", "kind": "column"},
    },
    "tensors": {
        "x": {"axes": ["row", "col"], "role": "input", "dtype": "float32"},
        "w": {"axes": ["col"], "role": "input", "dtype": "float32"},
        "s": {"axes": ["row"], "role": "input", "dtype": "float32"},
        "y": {"axes": ["row", "h"], "role": "output", "dtype": "float32"},
        "z": {"axes": ["row"], "role": "output", "dtype": "float32"},
    },
    "body": [
        {"reducer": {"name": "r", "op": "sum", "dtype": "float32", "seed": "s"}},
        {"update": {"reducer": "r", "over": ["col"], "value": "x * w", "where": "x > 0 and not x > 3"}},
        {"update": {"reducer": "r", "over": ["h"], "value": "x[h + half] * scale"}},
        {"finalize": {"reducer": "r", "into": "total"}},
        {"reduce": {"into": "top", "op": "max", "over": ["col"], "value": "abs(x)"}},
        {"reduce": {"into": "low", "op": "min", "over": ["col"], "value": "x"}},
        {"tile": {"name": "t", "over": ["h"], "value": "select(x[h] > x[h + half], tanh(x[h]), sigmoid(x[h + half]))"}},
        {"store": {"tensor": "y", "over": ["h"], "value": "t * cast(index(h), float32) + max(-t, erf(t)) - low"}},
        {"store": {"tensor": "z", "over": [], "value": "total / (top + 1) + cols"}},
    ],
}


def test_torch_operations_cover_the_language(shared) -> None:
    case = resolve_case({"program": EVERYTHING, "dims": {"rows": 4, "cols": 12, "half": 6}})
    samples = shared.baseline(case, "torch_eager")
    assert samples.error is None
    assert samples.checks.passed
    assert [one.elements_checked for one in samples.checks.inputs][:2] == [4 * 6 + 4] * 2


SEVERAL_AXES = {
    "row": {"dim": "rows", "kind": "row"},
    "i": {"dim": "ni", "kind": "column"},
    "j": {"dim": "nj", "kind": "column"},
}
STRUCTURED = {
    "name": "structured",
    "dims": ["rows", "ni", "nj"],
    "axes": SEVERAL_AXES,
    "tensors": {
        "x": {"axes": ["row", "i", "j"], "role": "input"},
        "w": {"axes": ["row", "j"], "role": "input"},
        "y": {"axes": ["row", "j"], "role": "output"},
        "z": {"axes": ["row"], "role": "output"},
        "best": {"axes": ["row"], "role": "output"},
        "place": {"axes": ["row"], "role": "output", "dtype": "int32"},
    },
    "body": [
        {"reduce": {"into": ["peak", "total"], "op": "online_softmax", "over": ["j"], "value": "w"}},
        {"reduce": {"into": ["n", "mean", "squares"], "op": "welford", "over": ["i", "j"], "value": "x"}},
        {"reduce": {"into": ["top", "at"], "op": "argmax", "over": ["j", "i"], "value": "x"}},
        {"store": {"tensor": "y", "over": ["j"], "value": "exp(w - peak) / total"}},
        {"store": {"tensor": "z", "over": [], "value": "squares / n + mean"}},
        {"store": {"tensor": "best", "over": [], "value": "top"}},
        {"store": {"tensor": "place", "over": [], "value": "at"}},
    ],
}
SEVERAL_SITES = {
    "name": "several_sites",
    "params": {"trips": 3},
    "dims": ["rows", "ni", "nj"],
    "axes": SEVERAL_AXES,
    "tensors": {
        "x": {"axes": ["row", "j"], "role": "input"},
        "h": {"axes": ["row", "j"], "role": "input", "dtype": "int32"},
        "changed": {"axes": ["row", "j"], "role": "output", "aliases": "x"},
        "b": {"axes": ["row", "i"], "role": "output"},
        "s": {"axes": ["row"], "role": "output"},
        "low": {"axes": ["row"], "role": "output"},
        "at": {"axes": ["row"], "role": "output", "dtype": "int32"},
        "spread": {"axes": ["row"], "role": "output"},
        "log_total": {"axes": ["row"], "role": "output"},
    },
    "body": [
        {"reducer": {"name": "bins", "op": "sum", "shape": ["i"]}},
        {
            "loop": {
                "count": "trips",
                "index": "t",
                "body": [
                    {
                        "update": {
                            "reducer": "bins",
                            "over": ["j"],
                            "value": "x * cast(t + 1, float32)",
                            "index": ["max(min(h, ni - 1), 0)"],
                        }
                    }
                ],
            }
        },
        {"finalize": {"reducer": "bins", "into": "held"}},
        {"reducer": {"name": "strict", "op": "sum", "order": "strict", "seed": "0.5"}},
        {"update": {"reducer": "strict", "over": ["j"], "value": "x"}},
        {"finalize": {"reducer": "strict", "into": "total"}},
        {"reducer": {"name": "each", "op": "sum", "order": "strict", "shape": ["i"]}},
        {
            "update": {
                "reducer": "each",
                "over": ["i", "j"],
                "value": "x * cast(index(i), float32)",
                "index": ["index(i)"],
            }
        },
        {"finalize": {"reducer": "each", "into": "apart"}},
        {"reducer": {"name": "a", "op": "argmax"}},
        {"update": {"reducer": "a", "over": ["j"], "value": "-x", "where": "x > -0.5"}},
        {"update": {"reducer": "a", "over": ["j"], "value": "x - 1.0"}},
        {"finalize": {"reducer": "a", "into": ["a_value", "a_index"]}},
        {"reducer": {"name": "u", "op": "welford"}},
        {"update": {"reducer": "u", "over": ["j"], "value": "x", "where": "not x < 0.0"}},
        {"update": {"reducer": "u", "over": [], "value": "total"}},
        {"finalize": {"reducer": "u", "into": ["u_count", "u_mean", "u_squares"]}},
        {"reducer": {"name": "e", "op": "online_softmax"}},
        {
            "loop": {
                "count": "trips",
                "index": "k",
                "body": [{"update": {"reducer": "e", "over": ["j"], "value": "x + cast(k, float32)"}}],
            }
        },
        {"finalize": {"reducer": "e", "into": ["e_peak", "e_total"]}},
        {"store": {"tensor": "changed", "over": ["j"], "value": "x * 2.0"}},
        {"store": {"tensor": "b", "over": ["i"], "value": "held + apart"}},
        {"store": {"tensor": "s", "over": [], "value": "total"}},
        {"store": {"tensor": "low", "over": [], "value": "a_value"}},
        {"store": {"tensor": "at", "over": [], "value": "a_index"}},
        {"store": {"tensor": "spread", "over": [], "value": "u_mean + u_squares / u_count"}},
        {"store": {"tensor": "log_total", "over": [], "value": "e_peak + log(e_total)"}},
    ],
}
"""Loops, arrays, strict folds, an output in its input's place, and structured states of several sites and trips."""


@pytest.mark.parametrize(
    ("program", "name"),
    [
        pytest.param(STRUCTURED, "torch_eager", id="structured"),
        pytest.param(STRUCTURED, "torch_compile", id="structured compiled", marks=pytest.mark.full),
        pytest.param(SEVERAL_SITES, "torch_eager", id="several sites"),
    ],
)
def test_structured_ops_loops_arrays_and_shared_buffers_have_a_baseline(program, name, shared) -> None:
    """Checked by the oracle on every input set: ties, NaN and infinities included."""
    case = resolve_case({"program": program, "dims": {"rows": 9, "ni": 3, "nj": 37}})
    samples = shared.baseline(case, name, protocol="search")
    assert samples.error is None
    assert samples.checks.passed
    assert [one.name for one in samples.checks.inputs] == ["normal", "large_offset", "edge_rows"]
    assert samples.implementation.endswith(f"program {program['name']} statement by statement with torch operations")


@pytest.mark.parametrize("name", ["torch_compile", "inductor_core"])
def test_long_loops_are_not_compiled_and_the_baseline_says_so(name, shared) -> None:
    dims = {"rows": 2, "ni": 3, "nj": 4}
    case = resolve_case({"program": SEVERAL_SITES, "dims": dims, "params": {"trips": 101}})
    samples = shared.baseline(case, name, protocol="search")
    assert samples.error.startswith("NotExpressible: torch.compile unrolls loops; theirs are 202 statements here")
    assert samples.timing == {}


def test_calls_that_follow_each_other_are_one_baseline(shared) -> None:
    case = resolve_case({"kernel": "add_rms_norm", "dims": {"rows": 9, "cols": 40}})
    samples = shared.baseline(case, "torch_eager")
    assert samples.error is None
    assert samples.checks.passed
    assert samples.implementation.startswith(
        "h = torch.add(input=$x, other=$residual, out=$h); y = torch.nn.functional"
    )
    assert samples.allocation == "preallocated: h; the rest is allocated inside the timed call"


def test_rows_for_which_torch_is_known_to_be_wrong_are_not_compared(shared) -> None:
    case = resolve_case({"kernel": "gelu_residual", "dims": {"rows": 18, "cols": 33}})
    samples = shared.baseline(case, "torch_eager")
    assert samples.error is None
    # of the 18 rows of the edge set, one of each tensor holds +inf
    assert [one.elements_checked for one in samples.checks.inputs] == [18 * 33, 18 * 33, 16 * 33]


@pytest.mark.parametrize(
    ("name", "implementation", "asked"),
    [
        pytest.param(
            "torch_compile",
            "torch.compile of program rms_norm statement by statement",
            {"program": dump_program(kernels()["rms_norm"].program)},
            marks=pytest.mark.full,
        ),
        (
            "inductor_core",
            "the compiled function below torch.compile of torch.nn.functional.rms_norm(",
            {"kernel": "rms_norm"},
        ),
        pytest.param(
            "torch_compile",
            "torch.compile of torch.nn.functional.rms_norm(",
            {"kernel": "rms_norm"},
            marks=pytest.mark.full,
        ),
    ],
)
def test_what_torch_compiles_answers_or_says_why(name, implementation, asked, shared) -> None:
    case = resolve_case({**asked, "dims": {"rows": 8, "cols": 64}})
    samples = shared.baseline(case, name)
    assert samples.implementation.startswith(implementation) or samples.error
    if samples.error is None:
        assert samples.checks.passed
        assert len(samples.timing["device_batch"].samples_seconds) == ROUNDS
    else:
        assert samples.timing == {}


def test_a_kernel_that_crashes_beside_the_baseline_is_an_error_in_the_answer(shared, build, case) -> None:
    samples = shared.baseline(case, "torch_eager", against=build("bad", "abort();"))
    assert "SIGABRT" in samples.error
    assert samples.timing == {}
    assert shared.baseline(case, "torch_eager", against=build("good")).error is None


def test_an_unknown_baseline_is_refused(shared, case) -> None:
    with pytest.raises(InvalidInput, match="unknown baseline") as caught:
        shared.baseline(case, "numpy")
    assert caught.value.problems[0].allowed == ["torch_eager", "torch_compile", "inductor_core"]


def test_calls_that_round_between_them_beyond_tolerance_give_way_to_the_program(shared) -> None:
    dtypes = {"x": "bfloat16", "y": "bfloat16"}
    case = resolve_case({"kernel": "masked_softmax", "dims": {"rows": 4, "cols": 64}, "dtypes": dtypes})
    samples = shared.baseline(case, "torch_eager", protocol="search")
    assert samples.error is None
    assert samples.checks.passed
    assert "statement by statement" in samples.implementation
    assert "2 calls round to 16 bits between them" in samples.implementation
