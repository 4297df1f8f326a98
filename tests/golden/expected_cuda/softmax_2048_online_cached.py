"""softmax with cols=2048; any number of rows.

Candidate: {"algorithm": "online", "fusion": "separate", "input": "cache", "mapping": {"min_blocks": 0, "rows_per_block": 1}, "materialize": "private", "partials": 1, "unroll": 1, "vector": 4, "width": 128}
Functions called tuner_* and the namespace tuner belong to the header tuner.cuh beside this file.
"""

import struct
from math import inf

import tilelang
import tilelang.cuda.language as T

F32 = "float32"
I32 = "int32"
ROWS_PER_BLOCK = 1


def absolute(a):
    return T.call_extern(F32, "tuner_absolute", a)


def across_parts(function, *parts):
    """The same for a state of several values, in place."""
    return T.call_extern(I32, f"tuner::{function}<128, 128>", *parts)


def eq(a, b):
    return T.call_extern(I32, "tuner_eq", a, b)


def exp(a):
    return T.call_extern(F32, "tuner_exp", a)


def f32(value):
    """A constant, exact to the bit (TileLang prints seven digits)."""
    return T.call_pure_extern(F32, "tuner_f32", T.uint32(struct.unpack("<I", struct.pack("<f", value))[0]))


def gt(a, b):
    return T.call_extern(I32, "tuner_gt", a, b)


def maximum(a, b):
    return T.call_extern(F32, "tuner_maximum", a, b)


def named(a):
    return T.call_extern(F32, "tuner_named", a)


def neg(a):
    return T.call_extern(F32, "tuner_neg", a)


def select(c, a, b):
    return T.call_extern(F32, "tuner_select", c, a, b)


def sub(a, b):
    return T.call_extern(F32, "tuner_sub", a, b)


def owners(chunks):
    """Which thread owns which element of a row: 4 contiguous scalars of every chunk each."""
    return T.Fragment(
        (1, 512, chunks), forward_fn=lambda r, k, c: (r * 128 + k // 4, c * 4 + k % 4)
    )


PASS = T.Fragment((1, 512), forward_fn=lambda r, k: (r * 128 + k // 4, k % 4))


d_rows = T.dynamic("d_rows")


@T.prim_func
def kernel(g_x: T.Tensor((d_rows, 2048), F32), g_y: T.Tensor((d_rows, 2048), F32)):
    with T.Kernel(d_rows, threads=128) as bx:
        T.import_source('#include "tuner.cuh"\n')
        c_peak_peak_reducer = T.alloc_local((1,), F32)
        c_total_peak_reducer = T.alloc_local((1,), F32)
        s_peak = T.alloc_local((1,), F32)
        s_total = T.alloc_local((1,), F32)
        s_inv = T.alloc_local((1,), F32)
        p_x_snapshot = T.alloc_fragment((1, 512, 4), F32)
        p_e = T.alloc_fragment((1, 512, 4), F32)
        q_y = T.alloc_fragment((1, 512), F32)
        T.annotate_layout({p_x_snapshot: owners(4), p_e: owners(4), q_y: PASS})
        # peak_reducer: every partial starts from the identity
        c_peak_peak_reducer[0] = f32(-inf)
        c_total_peak_reducer[0] = f32(0.0)
        # over col: snapshot
        for p in T.unroll(4):
            for r, k in T.Parallel(1, 512):
                p_x_snapshot[r, k, p] = g_x[bx, p * 512 + k]
        # over col
        for p in T.unroll(4):
            for r, k in T.Parallel(1, 512):
                v_x_1 = p_x_snapshot[r, k, p]
                t_apeak_peak_reducer = c_peak_peak_reducer[0]
                t_atotal_peak_reducer = c_total_peak_reducer[0]
                t_x_peak_reducer = named(v_x_1)
                t_near_peak_reducer = exp(neg(absolute(sub(t_x_peak_reducer, t_apeak_peak_reducer))))
                t_kept_peak_reducer = select(eq(t_apeak_peak_reducer, f32(-inf)), f32(0.0), t_atotal_peak_reducer * t_near_peak_reducer)
                t_total_peak_reducer = select(gt(t_x_peak_reducer, t_apeak_peak_reducer), t_kept_peak_reducer + (sub(t_x_peak_reducer, t_x_peak_reducer) + f32(1.0)), t_atotal_peak_reducer + t_near_peak_reducer)
                t_peak_peak_reducer = maximum(t_apeak_peak_reducer, t_x_peak_reducer)
                c_peak_peak_reducer[0] = t_peak_peak_reducer
                c_total_peak_reducer[0] = t_total_peak_reducer
        # peak_reducer: partials and lanes combine into peak, total
        across_parts("reduce_online_softmax", T.address_of(c_peak_peak_reducer[0]), T.address_of(c_total_peak_reducer[0]))
        s_peak[0] = c_peak_peak_reducer[0]
        s_total[0] = c_total_peak_reducer[0]
        # row scalar inv
        s_inv[0] = f32(1.0) / s_total[0]
        # over col
        for p in T.unroll(4):
            for r, k in T.Parallel(1, 512):
                v_x_2 = p_x_snapshot[r, k, p]
                v_e_0 = exp(sub(v_x_2, s_peak[0]))
                p_e[r, k, p] = v_e_0
                q_y[r, k] = v_e_0 * s_inv[0]
            for r, k in T.Parallel(1, 512):
                g_y[bx, p * 512 + k] = q_y[r, k]


if __name__ == "__main__":
    import sys

    from tilelang import tvm
    from tilelang.engine import lower

    architecture = sys.argv[1] if len(sys.argv) > 1 else "sm_90"
    target = tvm.target.Target({"kind": "cuda", "arch": architecture})
    config = {"tl.disable_safe_memory_legalize": True, "tl.disable_warp_specialized": True}
    with tvm.transform.PassContext(opt_level=3, config=config), target:
        print(lower(kernel, target=target).kernel_source)
