"""rms_norm with cols=100; any number of rows.

Candidate: {"fusion": "fused", "input": "cache", "mapping": {"local_lanes": 4, "nontemporal": false, "row_block": 2, "simd_scope": "all"}, "materialize": "private", "partials": 2, "unroll": 4, "vector": 2, "width": 16}
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


def live_row(row, rows):
    """Whether a row is there: the last packet may hang over."""
    return T.call_pure_extern(I32, "tuner_live_row", row, rows) != 0


def simd():
    """Asks the C compiler to vectorise the next loop (a pragma in the C text)."""
    return T.call_extern(I32, "TUNER_SIMD")


def sqrt(a):
    return T.call_extern(F32, "tuner_sqrt", a)


def unroll(factor):
    """Asks the C compiler to unroll the next loop (a pragma in the C text)."""
    return T.call_extern(I32, "TUNER_UNROLL", factor)


d_rows = T.dynamic("d_rows")


@T.prim_func
def kernel(g_x: T.Tensor((d_rows, 100), F32), g_weight: T.Tensor((100,), F32), g_y: T.Tensor((d_rows, 100), F32)):
    with T.Kernel(T.ceildiv(d_rows, 8)) as bx:
        a_squares_reducer = T.alloc_local((4, 16), F32)
        s_squares = T.alloc_local((8,), F32)
        s_rstd = T.alloc_local((8,), F32)
        p_x_snapshot = T.alloc_local((2, 416), F32)
        row = T.alloc_local((8,), I32)
        for g in T.serial(8):
            row[g] = T.min(bx * 8 + g, d_rows - 1)
        # squares_reducer: every partial starts from the identity
        for b in T.unroll(4, explicit=True):
            simd()
            for w in T.serial(16):
                a_squares_reducer[b, w] = f32(0.0)
        # over col
        unroll(4)
        for p in T.serial(6):
            for k in T.unroll(2, explicit=True):
                for r in T.unroll(2, explicit=True):
                    for s in T.serial(4):
                        simd()
                        for l in T.serial(4):
                            for v in T.unroll(2, explicit=True):
                                e = (p * 2 + k) * 8 + l * 2 + v
                                v_x_0 = g_x[row[r * 4 + s], e]
                                p_x_snapshot[r, (p * 2 + k) * 32 + s * 8 + l * 2 + v] = v_x_0
                                a_squares_reducer[r * 2 + k, s * 4 + l] = a_squares_reducer[r * 2 + k, s * 4 + l] + (v_x_0 * v_x_0)
        for r in T.unroll(2, explicit=True):
            for s in T.serial(4):
                simd()
                for l in T.serial(2):
                    for v in T.unroll(2, explicit=True):
                        e = l * 2 + v + 96
                        v_x_0 = g_x[row[r * 4 + s], e]
                        p_x_snapshot[r, s * 8 + l * 2 + v + 384] = v_x_0
                        a_squares_reducer[r * 2, s * 4 + l] = a_squares_reducer[r * 2, s * 4 + l] + (v_x_0 * v_x_0)
        # squares_reducer: partials and lanes combine into squares
        for r in T.unroll(2, explicit=True):
            simd()
            for w in T.serial(16):
                a_squares_reducer[r * 2, w] = a_squares_reducer[r * 2, w] + a_squares_reducer[r * 2 + 1, w]
            for s in T.serial(4):
                for h in T.unroll(2, explicit=True):
                    simd()
                    for l in T.serial(2 >> h):
                        a_squares_reducer[r * 2, s * 4 + l] = a_squares_reducer[r * 2, s * 4 + l] + a_squares_reducer[r * 2, s * 4 + l + (2 >> h)]
                s_squares[r * 4 + s] = a_squares_reducer[r * 2, s * 4]
        # row scalar rstd
        for r in T.unroll(2, explicit=True):
            simd()
            for s in T.serial(4):
                s_rstd[r * 4 + s] = f32(1.0) / sqrt((s_squares[r * 4 + s] / f32(100.0)) + f32(9.999999974752427e-07))
        # over col
        unroll(4)
        for p in T.serial(12):
            for r in T.unroll(2, explicit=True):
                for s in T.serial(4):
                    if live_row(bx * 8 + r * 4 + s, d_rows):
                        simd()
                        for q in T.serial(8):
                            e = p * 8 + q
                            v_x_1 = p_x_snapshot[r, p * 32 + s * 8 + q]
                            v_weight_0 = g_weight[e]
                            g_y[row[r * 4 + s], e] = (v_x_1 * s_rstd[r * 4 + s]) * v_weight_0
        for r in T.unroll(2, explicit=True):
            for s in T.serial(4):
                if live_row(bx * 8 + r * 4 + s, d_rows):
                    simd()
                    for q in T.serial(4):
                        e = q + 96
                        v_x_1 = p_x_snapshot[r, s * 8 + q + 384]
                        v_weight_0 = g_weight[e]
                        g_y[row[r * 4 + s], e] = (v_x_1 * s_rstd[r * 4 + s]) * v_weight_0


if __name__ == "__main__":
    from tilelang import tvm
    from tilelang.engine import lower

    target = tvm.target.Target("c")
    config = {"tl.disable_safe_memory_legalize": True, "tirx.disable_vectorize": True}
    with tvm.transform.PassContext(opt_level=3, config=config), target:
        print(lower(kernel, target=target).kernel_source)
