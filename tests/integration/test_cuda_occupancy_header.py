"""Our occupancy against NVIDIA's own calculator, ``cuda_occupancy.h`` of the installed headers, over a grid."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import pytest

from search.lowering.cuda.architectures import ARCHITECTURES
from search.lowering.cuda.headers import cuda_folders
from search.lowering.cuda.occupancy import estimate_occupancy

pytestmark = pytest.mark.toolchain
PROGRAM = r"""
#include <cstdio>
#include <cstdlib>
#include "cuda_occupancy.h"
int main() {
  int major, minor, threads, registers, shared, barriers, per_sm, per_block, sm_threads;
  while (scanf("%d %d %d %d %d %d %d %d %d", &major, &minor, &threads, &registers, &shared, &barriers, &per_sm,
               &per_block, &sm_threads) == 9) {
    cudaOccDeviceProp device;
    device.computeMajor = major; device.computeMinor = minor;
    device.maxThreadsPerBlock = 1024; device.maxThreadsPerMultiprocessor = sm_threads;
    device.regsPerBlock = 65536; device.regsPerMultiprocessor = 65536; device.warpSize = 32;
    device.sharedMemPerBlock = 48 << 10; device.sharedMemPerMultiprocessor = per_sm; device.numSms = 1;
    device.sharedMemPerBlockOptin = per_block; device.reservedSharedMemPerBlock = 1024;
    cudaOccFuncAttributes function = {};
    function.maxThreadsPerBlock = 1024; function.numRegs = registers; function.sharedSizeBytes = 0;
    function.partitionedGCConfig = PARTITIONED_GC_OFF; function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    function.maxDynamicSharedSizeBytes = shared; function.numBlockBarriers = barriers;
    cudaOccDeviceState state; state.cacheConfig = CACHE_PREFER_SHARED; state.carveoutConfig = 100;
    cudaOccResult result;
    cudaOccError error =
        cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &function, &state, threads, shared);
    printf("%d\n", error == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : -1);
  }
}
"""


def test_as_nvidia_counts(tmp_path: Path) -> None:
    gxx = shutil.which("g++")
    assert gxx is not None
    include = next(folder for folder in cuda_folders() if (folder / "cuda_occupancy.h").is_file())
    (tmp_path / "grid.cc").write_text(PROGRAM)
    program = tmp_path / "grid"
    subprocess.run([gxx, "-O0", "-w", f"-I{include}", str(tmp_path / "grid.cc"), "-o", str(program)], check=True)
    grid = list(
        itertools.product(
            ARCHITECTURES,
            (32, 64, 96, 128, 256, 320, 512, 1024),
            (10, 32, 37, 64, 65, 128, 168, 255),
            (0, 512, 1025, 40000, 49152, 100000, 166912),
            (0, 1, 5),
        )
    )
    lines, ours = [], []
    for architecture, threads, registers, shared, barriers in grid:
        limits = ARCHITECTURES[architecture]
        major, minor = divmod(int(architecture.removeprefix("sm_")), 10)
        numbers = (threads, registers, shared, barriers)
        sizes = (limits.shared_bytes_per_sm, limits.shared_bytes_per_block, limits.threads_per_sm)
        lines.append(" ".join(map(str, (major, minor, *numbers, *sizes))))
        ours.append(
            estimate_occupancy(
                limits,
                threads_per_block=threads,
                registers_per_thread=registers,
                shared_bytes_per_block=shared,
                barriers_per_block=barriers,
            ).blocks_per_sm
        )
    done = subprocess.run([str(program)], input="\n".join(lines), capture_output=True, text=True, check=True)
    theirs = [int(line) for line in done.stdout.split()]
    assert [(at, a, b) for at, a, b in zip(grid, ours, theirs, strict=True) if a != b] == []
