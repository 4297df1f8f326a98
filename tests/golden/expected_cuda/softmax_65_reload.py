"""softmax with cols=65; any number of rows.

Candidate: {"fusion": "separate", "input": "reload", "mapping": {"min_blocks": 0, "rows_per_block": 1}, "materialize": "recompute", "partials": 1, "unroll": 1, "vector": 1, "width": 32}
Functions called tuner_* and the namespace tuner belong to the header tuner.cuh beside this file.
"""

import struct
from math import inf

import tilelang
import tilelang.cuda.language as T

F32 = "float32"
ROWS_PER_BLOCK = 1


def across(operation, dtype, value):
    """The value combined over the row's 32 lanes: TileLang's collective with an operation of ours."""
    return T.call_extern(dtype, f"tuner::all_reduce<tuner::{operation}, 32, 32>", value)


def exp(a):
    return T.call_extern(F32, "tuner_exp", a)


def f32(value):
    """A constant, exact to the bit (TileLang prints seven digits)."""
    return T.call_pure_extern(F32, "tuner_f32", T.uint32(struct.unpack("<I", struct.pack("<f", value))[0]))


def maximum(a, b):
    return T.call_extern(F32, "tuner_maximum", a, b)


def sub(a, b):
    return T.call_extern(F32, "tuner_sub", a, b)


def owners(chunks):
    """Which thread owns which element of a row: 1 contiguous scalar of every chunk each."""
    return T.Fragment(
        (1, 32, chunks), forward_fn=lambda r, k, c: (r * 32 + k // 1, c * 1 + k % 1)
    )


PASS = T.Fragment((1, 32), forward_fn=lambda r, k: (r * 32 + k // 1, k % 1))


d_rows = T.dynamic("d_rows")


@T.prim_func
def kernel(g_x: T.Tensor((d_rows, 65), F32), g_y: T.Tensor((d_rows, 65), F32)):
    with T.Kernel(d_rows, threads=32) as bx:
        T.import_source('#include "tuner.cuh"\n')
        a_peak_reducer = T.alloc_local((1,), F32)
        a_total_reducer = T.alloc_reducer((1,), F32, op="sum")
        f_total_reducer = T.alloc_fragment((1,), F32)
        s_peak = T.alloc_local((1,), F32)
        s_total = T.alloc_local((1,), F32)
        s_inv = T.alloc_local((1,), F32)
        q_x_0 = T.alloc_fragment((1, 32), F32)
        q_x_1 = T.alloc_fragment((1, 32), F32)
        q_x_2 = T.alloc_fragment((1, 32), F32)
        T.annotate_layout({q_x_0: PASS, q_x_1: PASS, q_x_2: PASS})
        # peak_reducer: every partial starts from the identity
        a_peak_reducer[0] = f32(-inf)
        # over col
        for p in T.unroll(2, unroll_factor=1):
            for r, k in T.Parallel(1, 32):
                q_x_0[r, k] = g_x[bx, p * 32 + k]
            for r, k in T.Parallel(1, 32):
                v_x_0 = q_x_0[r, k]
                a_peak_reducer[0] = maximum(a_peak_reducer[0], v_x_0)
        for r, k in T.Parallel(1, 32):
            q_x_0[r, k] = T.if_then_else(k + 64 < 65, g_x[bx, k + 64], T.float32(0))
        for r, k in T.Parallel(1, 32):
            e = k + 64
            if e < 65:
                v_x_0 = q_x_0[r, k]
                a_peak_reducer[0] = maximum(a_peak_reducer[0], v_x_0)
        # peak_reducer: partials and lanes combine into peak
        a_peak_reducer[0] = across("Max", F32, a_peak_reducer[0])
        s_peak[0] = a_peak_reducer[0]
        # total_reducer: every partial starts from the identity
        T.reducer_init(a_total_reducer)
        # over col
        for p in T.unroll(2, unroll_factor=1):
            for r, k in T.Parallel(1, 32):
                q_x_1[r, k] = g_x[bx, p * 32 + k]
            for r, k in T.Parallel(1, 32):
                v_x_1 = q_x_1[r, k]
                v_e_0 = exp(sub(v_x_1, s_peak[0]))
                T.reducer_update(a_total_reducer[r], v_e_0)
        for r, k in T.Parallel(1, 32):
            q_x_1[r, k] = T.if_then_else(k + 64 < 65, g_x[bx, k + 64], T.float32(0))
        for r, k in T.Parallel(1, 32):
            e = k + 64
            if e < 65:
                v_x_1 = q_x_1[r, k]
                v_e_0 = exp(sub(v_x_1, s_peak[0]))
                T.reducer_update(a_total_reducer[r], v_e_0)
        # total_reducer: partials and lanes combine into total
        T.finalize_reducer(a_total_reducer, f_total_reducer)
        for r in T.Parallel(1):
            s_total[0] = f_total_reducer[r]
        # row scalar inv
        s_inv[0] = f32(1.0) / s_total[0]
        # over col
        for p in T.unroll(2, unroll_factor=1):
            for r, k in T.Parallel(1, 32):
                q_x_2[r, k] = g_x[bx, p * 32 + k]
            for r, k in T.Parallel(1, 32):
                e = p * 32 + k
                v_x_2 = q_x_2[r, k]
                v_e_1 = exp(sub(v_x_2, s_peak[0]))
                g_y[bx, e] = v_e_1 * s_inv[0]
        for r, k in T.Parallel(1, 32):
            q_x_2[r, k] = T.if_then_else(k + 64 < 65, g_x[bx, k + 64], T.float32(0))
        for r, k in T.Parallel(1, 32):
            e = k + 64
            if e < 65:
                v_x_2 = q_x_2[r, k]
                v_e_1 = exp(sub(v_x_2, s_peak[0]))
                g_y[bx, e] = v_e_1 * s_inv[0]


if __name__ == "__main__":
    import sys

    from tilelang import tvm
    from tilelang.engine import lower

    architecture = sys.argv[1] if len(sys.argv) > 1 else "sm_90"
    target = tvm.target.Target({"kind": "cuda", "arch": architecture})
    config = {"tl.disable_safe_memory_legalize": True, "tl.disable_warp_specialized": True}
    with tvm.transform.PassContext(opt_level=3, config=config), target:
        print(lower(kernel, target=target).kernel_source)
