"""softmax with cols=65; any number of rows.

Candidate: {"fusion": "separate", "input": "reload", "mapping": {"local_lanes": 32, "nontemporal": false, "row_block": 1, "simd_scope": "none"}, "materialize": "output", "partials": 1, "unroll": 1, "vector": 1, "width": 32}
Functions called tuner_* and the marks TUNER_* belong to the header tuner.h beside this file.
"""

import struct
from math import inf

import tilelang
import tilelang.cpu.language as T

F32 = "float32"
I32 = "int32"


def exp(a):
    return T.call_extern(F32, "tuner_exp", a)


def f32(value):
    """A constant, exact to the bit (TileLang prints seven digits)."""
    return T.call_pure_extern(F32, "tuner_f32", T.uint32(struct.unpack("<I", struct.pack("<f", value))[0]))


def maximum(a, b):
    return T.call_extern(F32, "tuner_maximum", a, b)


def sub(a, b):
    return T.call_extern(F32, "tuner_sub", a, b)


d_rows = T.dynamic("d_rows")


@T.prim_func
def kernel(g_x: T.Tensor((d_rows, 65), F32), g_y: T.Tensor((d_rows, 65), F32)):
    with T.Kernel(d_rows) as bx:
        a_peak_reducer = T.alloc_local((1, 32), F32)
        a_total_reducer = T.alloc_local((1, 32), F32)
        s_peak = T.alloc_local((1,), F32)
        s_total = T.alloc_local((1,), F32)
        s_inv = T.alloc_local((1,), F32)
        # peak_reducer: every partial starts from the identity
        for w in T.serial(32):
            a_peak_reducer[0, w] = f32(-inf)
        # over col
        for p in T.serial(2):
            for q in T.serial(32):
                e = p * 32 + q
                v_x_0 = g_x[bx, e]
                a_peak_reducer[0, q] = maximum(a_peak_reducer[0, q], v_x_0)
        e = 64
        v_x_0 = g_x[bx, e]
        a_peak_reducer[0, 0] = maximum(a_peak_reducer[0, 0], v_x_0)
        # peak_reducer: partials and lanes combine into peak
        for h in T.unroll(5, explicit=True):
            for l in T.serial(16 >> h):
                a_peak_reducer[0, l] = maximum(a_peak_reducer[0, l], a_peak_reducer[0, l + (16 >> h)])
        s_peak[0] = a_peak_reducer[0, 0]
        # total_reducer: every partial starts from the identity
        for w in T.serial(32):
            a_total_reducer[0, w] = f32(0.0)
        # over col
        for p in T.serial(2):
            for q in T.serial(32):
                e = p * 32 + q
                v_x_1 = g_x[bx, e]
                v_e_0 = exp(sub(v_x_1, s_peak[0]))
                g_y[bx, e] = v_e_0
                a_total_reducer[0, q] = a_total_reducer[0, q] + v_e_0
        e = 64
        v_x_1 = g_x[bx, e]
        v_e_0 = exp(sub(v_x_1, s_peak[0]))
        g_y[bx, e] = v_e_0
        a_total_reducer[0, 0] = a_total_reducer[0, 0] + v_e_0
        # total_reducer: partials and lanes combine into total
        for h in T.unroll(5, explicit=True):
            for l in T.serial(16 >> h):
                a_total_reducer[0, l] = a_total_reducer[0, l] + a_total_reducer[0, l + (16 >> h)]
        s_total[0] = a_total_reducer[0, 0]
        # row scalar inv
        s_inv[0] = f32(1.0) / s_total[0]
        # over col
        for p in T.serial(2):
            for q in T.serial(32):
                e = p * 32 + q
                v_e_1 = g_y[bx, e]
                g_y[bx, e] = v_e_1 * s_inv[0]
        e = 64
        v_e_1 = g_y[bx, e]
        g_y[bx, e] = v_e_1 * s_inv[0]


if __name__ == "__main__":
    from tilelang import tvm
    from tilelang.engine import lower

    target = tvm.target.Target("c")
    config = {"tl.disable_safe_memory_legalize": True, "tirx.disable_vectorize": True}
    with tvm.transform.PassContext(opt_level=3, config=config), target:
        print(lower(kernel, target=target).kernel_source)
