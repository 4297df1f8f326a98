"""softmax with cols=2048; any number of rows.

Candidate: {"fusion": "separate", "input": "reload", "mapping": {"local_lanes": 1, "nontemporal": false, "row_block": 1, "simd_scope": "main"}, "materialize": "recompute", "partials": 1, "unroll": 1, "vector": 1, "width": 8}
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


def live_row(row, rows):
    """Whether a row is there: the last packet may hang over."""
    return T.call_pure_extern(I32, "tuner_live_row", row, rows) != 0


def maximum(a, b):
    return T.call_extern(F32, "tuner_maximum", a, b)


def simd():
    """Asks the C compiler to vectorise the next loop (a pragma in the C text)."""
    return T.call_extern(I32, "TUNER_SIMD")


def sub(a, b):
    return T.call_extern(F32, "tuner_sub", a, b)


d_rows = T.dynamic("d_rows")


@T.prim_func
def kernel(g_x: T.Tensor((d_rows, 2048), F32), g_y: T.Tensor((d_rows, 2048), F32)):
    with T.Kernel(T.ceildiv(d_rows, 8)) as bx:
        a_peak_reducer = T.alloc_local((1, 8), F32)
        a_total_reducer = T.alloc_local((1, 8), F32)
        s_peak = T.alloc_local((8,), F32)
        s_total = T.alloc_local((8,), F32)
        s_inv = T.alloc_local((8,), F32)
        row = T.alloc_local((8,), I32)
        for g in T.serial(8):
            row[g] = T.min(bx * 8 + g, d_rows - 1)
        # peak_reducer: every partial starts from the identity
        for w in T.serial(8):
            a_peak_reducer[0, w] = f32(-inf)
        # over col
        for p in T.serial(2048):
            simd()
            for s in T.serial(8):
                e = p
                v_x_0 = g_x[row[s], e]
                a_peak_reducer[0, s] = maximum(a_peak_reducer[0, s], v_x_0)
        # peak_reducer: partials and lanes combine into peak
        for s in T.serial(8):
            s_peak[s] = a_peak_reducer[0, s]
        # total_reducer: every partial starts from the identity
        for w in T.serial(8):
            a_total_reducer[0, w] = f32(0.0)
        # over col
        for p in T.serial(2048):
            simd()
            for s in T.serial(8):
                e = p
                v_x_1 = g_x[row[s], e]
                v_e_0 = exp(sub(v_x_1, s_peak[s]))
                a_total_reducer[0, s] = a_total_reducer[0, s] + v_e_0
        # total_reducer: partials and lanes combine into total
        for s in T.serial(8):
            s_total[s] = a_total_reducer[0, s]
        # row scalar inv
        for s in T.serial(8):
            s_inv[s] = f32(1.0) / s_total[s]
        # over col
        for p in T.serial(2048):
            simd()
            for s in T.serial(8):
                e = p
                v_x_2 = g_x[row[s], e]
                v_e_1 = exp(sub(v_x_2, s_peak[s]))
                if live_row(bx * 8 + s, d_rows):
                    g_y[row[s], e] = v_e_1 * s_inv[s]


if __name__ == "__main__":
    from tilelang import tvm
    from tilelang.engine import lower

    target = tvm.target.Target("c")
    config = {"tl.disable_safe_memory_legalize": True, "tirx.disable_vectorize": True}
    with tvm.transform.PassContext(opt_level=3, config=config), target:
        print(lower(kernel, target=target).kernel_source)
