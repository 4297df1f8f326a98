"""rms_norm with cols=4096; any number of rows.

Candidate: {"fusion": "separate", "input": "reload", "mapping": {"local_lanes": 64, "nontemporal": true, "row_block": 2, "simd_scope": "main"}, "materialize": "private", "partials": 1, "unroll": 2, "vector": 1, "width": 64}
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


def live_slot(slot, first, rows):
    """Whether a slot of the packet that begins at row ``first`` has a row: the last packet may hang over."""
    return T.call_pure_extern(I32, "tuner_live_slot", slot, first, rows) != 0


def simd():
    """Asks the C compiler to vectorise the next loop (a pragma in the C text)."""
    return T.call_extern(I32, "TUNER_SIMD")


def sqrt(a):
    return T.call_extern(F32, "tuner_sqrt", a)


def stream(target, packet, count):
    """Non-temporal copy of a packet."""
    return T.call_extern(I32, "tuner_stream", target, packet, count)


def unroll(factor):
    """Asks the C compiler to unroll the next loop (a pragma in the C text)."""
    return T.call_extern(I32, "TUNER_UNROLL", factor)


d_rows = T.dynamic("d_rows")


@T.prim_func
def kernel(g_x: T.Tensor((d_rows, 4096), F32), g_weight: T.Tensor((4096,), F32), g_y: T.Tensor((d_rows, 4096), F32)):
    with T.Kernel(T.ceildiv(d_rows, 2)) as bx:
        a_squares_reducer = T.alloc_local((2, 64), F32)
        s_squares = T.alloc_local((2,), F32)
        s_rstd = T.alloc_local((2,), F32)
        b_y = T.alloc_local((64,), F32)
        row = T.alloc_local((2,), I32)
        for g in T.serial(2):
            row[g] = T.min(bx * 2 + g, d_rows - 1)
        # squares_reducer: every partial starts from the identity
        for b in T.unroll(2, explicit=True):
            for w in T.serial(64):
                a_squares_reducer[b, w] = f32(0.0)
        # over col
        unroll(2)
        for p in T.serial(64):
            for r in T.unroll(2, explicit=True):
                simd()
                for q in T.serial(64):
                    e = p * 64 + q
                    v_x_0 = g_x[row[r], e]
                    a_squares_reducer[r, q] = a_squares_reducer[r, q] + (v_x_0 * v_x_0)
        # squares_reducer: partials and lanes combine into squares
        for r in T.unroll(2, explicit=True):
            for h in T.unroll(6, explicit=True):
                for l in T.serial(32 >> h):
                    a_squares_reducer[r, l] = a_squares_reducer[r, l] + a_squares_reducer[r, l + (32 >> h)]
            s_squares[r] = a_squares_reducer[r, 0]
        # row scalar rstd
        for r in T.unroll(2, explicit=True):
            s_rstd[r] = f32(1.0) / sqrt((s_squares[r] / f32(4096.0)) + f32(9.999999974752427e-07))
        # over col
        unroll(2)
        for p in T.serial(64):
            for r in T.unroll(2, explicit=True):
                if live_slot(r, bx * 2, d_rows):
                    simd()
                    for q in T.serial(64):
                        e = p * 64 + q
                        v_x_1 = g_x[row[r], e]
                        v_weight_0 = g_weight[e]
                        b_y[q] = (v_x_1 * s_rstd[r]) * v_weight_0
                    stream(T.address_of(g_y[row[r], p * 64]), T.address_of(b_y[0]), 64)


if __name__ == "__main__":
    from tilelang import tvm
    from tilelang.engine import lower

    target = tvm.target.Target("c")
    config = {"tl.disable_safe_memory_legalize": True, "tirx.disable_vectorize": True}
    with tvm.transform.PassContext(opt_level=3, config=config), target:
        print(lower(kernel, target=target).kernel_source)
