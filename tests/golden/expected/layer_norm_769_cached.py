"""layer_norm with cols=769; any number of rows.

Candidate: {"fusion": "separate", "input": "cache", "mapping": {"local_lanes": 16, "nontemporal": false, "row_block": 1, "simd_scope": "all"}, "materialize": "private", "partials": 1, "unroll": 1, "vector": 1, "width": 16}
Functions called tuner_* and the marks TUNER_* belong to the header tuner.h beside this file.
"""

import struct
from math import inf

import tilelang
import tilelang.cpu.language as T

F32 = "float32"
I32 = "int32"


def f32(value):
    """A constant, exact to the bit (TileLang prints seven digits)."""
    return T.call_pure_extern(F32, "tuner_f32", T.uint32(struct.unpack("<I", struct.pack("<f", value))[0]))


def simd():
    """Asks the C compiler to vectorise the next loop (a pragma in the C text)."""
    return T.call_extern(I32, "TUNER_SIMD")


def sqrt(a):
    return T.call_extern(F32, "tuner_sqrt", a)


def sub(a, b):
    return T.call_extern(F32, "tuner_sub", a, b)


d_rows = T.dynamic("d_rows")


@T.prim_func
def kernel(g_x: T.Tensor((d_rows, 769), F32), g_weight: T.Tensor((769,), F32), g_bias: T.Tensor((769,), F32), g_y: T.Tensor((d_rows, 769), F32)):
    with T.Kernel(d_rows) as bx:
        a_total_reducer = T.alloc_local((1, 16), F32)
        a_squares_reducer = T.alloc_local((1, 16), F32)
        s_total = T.alloc_local((1,), F32)
        s_mean = T.alloc_local((1,), F32)
        s_squares = T.alloc_local((1,), F32)
        s_rstd = T.alloc_local((1,), F32)
        p_x_snapshot = T.alloc_local((1, 784), F32)
        p_centered = T.alloc_local((1, 784), F32)
        # total_reducer: every partial starts from the identity
        simd()
        for w in T.serial(16):
            a_total_reducer[0, w] = f32(0.0)
        # over col: snapshot
        for p in T.serial(48):
            simd()
            for q in T.serial(16):
                e = p * 16 + q
                v_x_0 = g_x[bx, e]
                p_x_snapshot[0, p * 16 + q] = v_x_0
        e = 768
        v_x_0 = g_x[bx, e]
        p_x_snapshot[0, 768] = v_x_0
        # over col
        for p in T.serial(48):
            simd()
            for q in T.serial(16):
                e = p * 16 + q
                v_x_1 = p_x_snapshot[0, p * 16 + q]
                a_total_reducer[0, q] = a_total_reducer[0, q] + v_x_1
        e = 768
        v_x_1 = p_x_snapshot[0, 768]
        a_total_reducer[0, 0] = a_total_reducer[0, 0] + v_x_1
        # total_reducer: partials and lanes combine into total
        for h in T.unroll(4, explicit=True):
            simd()
            for l in T.serial(8 >> h):
                a_total_reducer[0, l] = a_total_reducer[0, l] + a_total_reducer[0, l + (8 >> h)]
        s_total[0] = a_total_reducer[0, 0]
        # row scalar mean
        s_mean[0] = s_total[0] / f32(769.0)
        # squares_reducer: every partial starts from the identity
        simd()
        for w in T.serial(16):
            a_squares_reducer[0, w] = f32(0.0)
        # over col
        for p in T.serial(48):
            simd()
            for q in T.serial(16):
                e = p * 16 + q
                v_x_2 = p_x_snapshot[0, p * 16 + q]
                v_centered_0 = sub(v_x_2, s_mean[0])
                p_centered[0, p * 16 + q] = v_centered_0
                a_squares_reducer[0, q] = a_squares_reducer[0, q] + (v_centered_0 * v_centered_0)
        e = 768
        v_x_2 = p_x_snapshot[0, 768]
        v_centered_0 = sub(v_x_2, s_mean[0])
        p_centered[0, 768] = v_centered_0
        a_squares_reducer[0, 0] = a_squares_reducer[0, 0] + (v_centered_0 * v_centered_0)
        # squares_reducer: partials and lanes combine into squares
        for h in T.unroll(4, explicit=True):
            simd()
            for l in T.serial(8 >> h):
                a_squares_reducer[0, l] = a_squares_reducer[0, l] + a_squares_reducer[0, l + (8 >> h)]
        s_squares[0] = a_squares_reducer[0, 0]
        # row scalar rstd
        s_rstd[0] = f32(1.0) / sqrt((s_squares[0] / f32(769.0)) + f32(9.999999747378752e-06))
        # over col
        for p in T.serial(48):
            simd()
            for q in T.serial(16):
                e = p * 16 + q
                v_weight_0 = g_weight[e]
                v_bias_0 = g_bias[e]
                v_centered_1 = p_centered[0, p * 16 + q]
                g_y[bx, e] = ((v_centered_1 * s_rstd[0]) * v_weight_0) + v_bias_0
        e = 768
        v_weight_0 = g_weight[e]
        v_bias_0 = g_bias[e]
        v_centered_1 = p_centered[0, 768]
        g_y[bx, e] = ((v_centered_1 * s_rstd[0]) * v_weight_0) + v_bias_0


if __name__ == "__main__":
    from tilelang import tvm
    from tilelang.engine import lower

    target = tvm.target.Target("c")
    config = {"tl.disable_safe_memory_legalize": True, "tirx.disable_vectorize": True}
    with tvm.transform.PassContext(opt_level=3, config=config), target:
        print(lower(kernel, target=target).kernel_source)
