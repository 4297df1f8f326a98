"""Lookup latency: ours beside the autotune caches of TileLang and Triton, read on this machine's CPU.

    python bench/lookup.py                 print the table
    python bench/lookup.py --json          the same as JSON
    python bench/lookup.py --entries 100,100000

Ours: `import catalogs` in a fresh process, opening a snapshot out of a store, a full lookup, a bound lookup, a first
lookup that parses its entry, and a miss. Beside it, what TileLang's and Triton's autotuners do to find what they tuned
before. A tool that cannot be imported or run on a CPU says so. Medians of repeated batches in CPU time, so that other
programs on the machine do not count; opening is in wall time. The exit status is 1 when one of our limits is exceeded.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "unit" / "catalogs")]

import catalog_factory as factory  # noqa: E402

import catalogs  # noqa: E402

BATCHES = 31
LIMITS_SECONDS = {"import": 30e-3, "open": 1.0, "lookup": 2e-6, "bound": 0.3e-6}
"""Issue 3's numbers."""


def median_seconds(call: Callable[[], Any], calls: int) -> float:
    """Median seconds of CPU time per call over batches of so many calls."""
    samples = []
    for _ in range(BATCHES):
        began = time.process_time()
        for _ in range(calls):
            call()
        samples.append((time.process_time() - began) / calls)
    return statistics.median(samples)


def import_seconds() -> dict[str, float]:
    """Median CPU time that ``import catalogs`` adds in a fresh process."""
    code = "import time; t = time.process_time(); import catalogs; print(time.process_time() - t)"
    samples = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout)
        for _ in range(11)
    ]
    return {"import": statistics.median(samples)}


def ours(entries: int) -> dict[str, float]:
    """Seconds of each of our operations with a catalog of so many entries."""
    with tempfile.TemporaryDirectory() as folder:
        store = catalogs.Store(folder)
        frozen = factory.large(entries)
        digest = store.put(frozen)
        target = catalogs.ManifestEntry(device=frozen.device, toolchain=frozen.toolchain, digest=digest)
        store.set_alias(catalogs.Manifest(alias="prod", entries=(target,)))
        opens = []
        for _ in range(3):
            began = time.perf_counter()
            opened = catalogs.open(store)
            opens.append(time.perf_counter() - began)
        size = (store.folder / "catalogs" / f"{digest}.json").stat().st_size
    device = catalogs.this_device()
    asked = {"kernel": "rms_norm", "params": {"eps": 1e-6}, "dtypes": {"x": "float32"}}
    where = {"device": device, "toolchain": catalogs.ANY_TOOLCHAIN}
    shape = frozen.entries[entries // 2].key.dims
    began = time.perf_counter()
    first = opened.lookup(dims=shape, **asked, **where)
    first_seconds = time.perf_counter() - began
    assert isinstance(first, catalogs.Hit)
    bound = opened.bind(**asked, **where)
    rows, cols = shape["rows"], shape["cols"]
    assert bound(rows, cols) is first
    params, dtypes = asked["params"], asked["dtypes"]
    anything = catalogs.ANY_TOOLCHAIN
    return {
        "file_bytes": size,
        "open": statistics.median(opens),
        "first_lookup": first_seconds,
        "lookup": median_seconds(
            lambda: opened.lookup(
                kernel="rms_norm", params=params, dims=shape, dtypes=dtypes, device=device, toolchain=anything
            ),
            2000,
        ),
        "bound": median_seconds(lambda: bound(rows, cols), 5000),
        "miss": median_seconds(lambda: bound(rows, 7), 2000),
    }


TIMED = """
import json, logging, statistics, time
logging.disable(logging.CRITICAL)
def timed(call, calls, batches=15):
    samples = []
    for _ in range(batches):
        began = time.process_time()
        for _ in range(calls):
            call()
        samples.append((time.process_time() - began) / calls)
    return statistics.median(samples)
"""

TILELANG = (
    TIMED
    + """
import tilelang, tilelang.language as T
from tilelang.autotuner import AutoTuner
from tilelang.autotuner.param import AutotuneResult
TARGET = {"target": "c", "execution_backend": "cython"}
def kernel(block=32):
    @T.prim_func
    def main(a: T.Tensor((1024,), "float32"), b: T.Tensor((1024,), "float32")):
        with T.Kernel(1) as bx:
            for i in T.serial(1024):
                b[i] = a[i] + 1.0
    return main
tuner = AutoTuner.from_kernel(kernel, configs=[{"block": 32}]).set_compile_args(out_idx=[1], **TARGET)
tuner.set_profile_args(skip_check=True)
import inspect
tuner.set_kernel_parameters(((), ()), inspect.signature(kernel).parameters)
parameters = inspect.signature(kernel).parameters
out = {"key": timed(lambda: tuner.generate_cache_key(parameters, {}), 20)}
key = tuner.generate_cache_key(parameters, {})
compiled = tilelang.compile(kernel(), out_idx=[1], **TARGET)
result = AutotuneResult(latency=1.0, ref_latency=None, config={"block": 32}, func=compiled.prim_func, kernel=compiled)
AutoTuner._memory_cache[key] = result
assert tuner.run() is result
out["memory"] = timed(tuner.run, 20)
try:
    tuner._save_result_to_disk(key, result)
    assert tuner._load_result_from_disk(key) is not None
    out["disk"] = timed(lambda: tuner._load_result_from_disk(key), 1)
except Exception as error:
    out["disk_not_available"] = repr(error)[:200]
print("RESULT " + json.dumps(out))
"""
)
"""A tuned call of TileLang's ``AutoTuner``: the key it makes, its memory (key included), its disk (without the key)."""

TRITON = (
    TIMED
    + """
import triton
from triton.runtime.cache import get_cache_manager
get_cache_manager("0" * 64).put(json.dumps({"configs_timings": []}), "bench.autotune.json", binary=False)
def read():
    with open(get_cache_manager("0" * 64).get_file("bench.autotune.json")) as file:
        return json.load(file)
read()
print("RESULT " + json.dumps({"disk": timed(read, 20)}))
"""
)
"""What Triton's autotuner does for a key that it has on disk (``Autotuner.check_disk_cache``), the key being made."""


def beside(code: str) -> dict[str, Any]:
    """What a script about another tool measured, or why it could not."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": folder,
            "TRITON_CACHE_DIR": folder,
            "TILELANG_CACHE_DIR": folder,
        }
        script = Path(folder, "beside.py")  # a file: TileLang reads the text of the kernel function
        script.write_text(code)
        try:
            run = subprocess.run(
                [sys.executable, script], capture_output=True, text=True, env=environment, timeout=180, check=False
            )
        except subprocess.TimeoutExpired:
            return {"not_available": "no answer in 180 seconds"}
    for line in run.stdout.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    return {"not_available": (run.stderr.strip().splitlines() or ["no output"])[-1]}


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--entries", default="100,100000")
    parser.add_argument("--only-ours", action="store_true")
    options = parser.parse_args()
    report: dict[str, Any] = {"import": import_seconds()["import"], "catalogs": {}, "beside": {}}
    for count in options.entries.split(","):
        report["catalogs"][count] = ours(int(count))
    if not options.only_ours:
        report["beside"] = {"tilelang": beside(TILELANG), "triton": beside(TRITON)}
    broken = [f"import: {report['import']:.4f} s"] if report["import"] > LIMITS_SECONDS["import"] else []
    for count, figures in report["catalogs"].items():
        for name in ("open", "lookup", "bound"):
            if figures[name] > LIMITS_SECONDS[name]:
                broken.append(f"{name} with {count} entries: {figures[name]:.3g} s, limit {LIMITS_SECONDS[name]:g} s")
    report["over_limit"] = broken
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        show(report)
    return 1 if broken else 0


def show(report: dict[str, Any]) -> None:
    """Print the report as text."""
    print(f"import catalogs        {report['import'] * 1e3:10.2f} ms")
    for count, figures in report["catalogs"].items():
        print(f"\n{count} entries, {figures['file_bytes'] / 1e6:.1f} MB on disk")
        print(f"  open                 {figures['open'] * 1e3:10.2f} ms")
        print(f"  first lookup         {figures['first_lookup'] * 1e6:10.2f} us  (parses its entry)")
        print(f"  lookup               {figures['lookup'] * 1e6:10.3f} us")
        print(f"  bound lookup         {figures['bound'] * 1e6:10.3f} us")
        print(f"  bound lookup, miss   {figures['miss'] * 1e6:10.3f} us")
    words = {
        "key": "its cache key, made before any cache is read",
        "memory": "a tuned call's result from its memory cache, key included",
        "disk": "one key's result from its disk cache",
    }
    for tool, figures in report["beside"].items():
        print(f"\n{tool}")
        for name, value in figures.items():
            if name not in words:
                print(f"  {name.replace('_', ' ')}: {value}")
            else:
                print(f"  {words[name]:<60} {value * 1e6:10.2f} us")
    for line in report["over_limit"]:
        print(f"OVER THE LIMIT: {line}")


if __name__ == "__main__":
    sys.exit(main())
