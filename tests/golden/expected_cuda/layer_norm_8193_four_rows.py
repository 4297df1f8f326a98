"""layer_norm with cols=8193; any number of rows.

Candidate: {"fusion": "separate", "input": "reload", "mapping": {"min_blocks": 0, "rows_per_block": 4}, "materialize": "private", "partials": 1, "unroll": 4, "vector": 1, "width": 256}
Functions called tuner_* and the namespace tuner belong to the header tuner.cuh beside this file.
"""

import struct

import tilelang
import tilelang.cuda.language as T

F32 = "float32"
I32 = "int32"
ROWS_PER_BLOCK = 4


def f32(value):
    """A constant, exact to the bit (TileLang prints seven digits)."""
    return T.call_pure_extern(F32, "tuner_f32", T.uint32(struct.unpack("<I", struct.pack("<f", value))[0]))


def live_row(row, rows):
    """Whether a row is there: the last packet may hang over."""
    return T.call_pure_extern(I32, "tuner_live_row", row, rows) != 0


def named(a):
    return T.call_extern(F32, "tuner_named", a)


def sqrt(a):
    return T.call_extern(F32, "tuner_sqrt", a)


def sub(a, b):
    return T.call_extern(F32, "tuner_sub", a, b)


def owners(chunks):
    """Which thread owns which element of a row: 1 contiguous scalar of every chunk each."""
    return T.Fragment(
        (4, 256, chunks), forward_fn=lambda r, k, c: (r * 256 + k // 1, c * 1 + k % 1)
    )


PASS = T.Fragment((4, 256), forward_fn=lambda r, k: (r * 256 + k // 1, k % 1))


d_rows = T.dynamic("d_rows")


@T.prim_func
def kernel(g_x: T.Tensor((d_rows, 8193), F32), g_weight: T.Tensor((8193,), F32), g_bias: T.Tensor((8193,), F32), g_y: T.Tensor((d_rows, 8193), F32)):
    with T.Kernel(T.ceildiv(d_rows, 4), threads=1024) as bx:
        T.import_source('#include "tuner.cuh"\n')
        tx = T.get_thread_binding()
        row = T.alloc_local((1,), I32)
        row[0] = T.min(bx * 4 + tx // 256, d_rows - 1)
        a_total_reducer = T.alloc_reducer((4,), F32, op="sum")
        f_total_reducer = T.alloc_fragment((4,), F32)
        a_squares_reducer = T.alloc_reducer((4,), F32, op="sum")
        f_squares_reducer = T.alloc_fragment((4,), F32)
        s_total = T.alloc_local((1,), F32)
        s_mean = T.alloc_local((1,), F32)
        s_squares = T.alloc_local((1,), F32)
        s_rstd = T.alloc_local((1,), F32)
        p_centered = T.alloc_fragment((4, 256, 33), F32)
        q_x_0 = T.alloc_fragment((4, 256), F32)
        q_x_1 = T.alloc_fragment((4, 256), F32)
        q_weight_0 = T.alloc_fragment((4, 256), F32)
        q_bias_0 = T.alloc_fragment((4, 256), F32)
        T.annotate_layout({p_centered: owners(33), q_x_0: PASS, q_x_1: PASS, q_weight_0: PASS, q_bias_0: PASS})
        # total_reducer: every partial starts from the identity
        T.reducer_init(a_total_reducer)
        # over col
        for p in T.unroll(32, unroll_factor=4):
            for r, k in T.Parallel(4, 256):
                q_x_0[r, k] = g_x[row[0], p * 256 + k]
            for r, k in T.Parallel(4, 256):
                v_x_0 = q_x_0[r, k]
                T.reducer_update(a_total_reducer[r], v_x_0)
        for r, k in T.Parallel(4, 256):
            q_x_0[r, k] = T.if_then_else(k + 8192 < 8193, g_x[row[0], k + 8192], T.float32(0))
        for r, k in T.Parallel(4, 256):
            e = k + 8192
            if e < 8193:
                v_x_0 = q_x_0[r, k]
                T.reducer_update(a_total_reducer[r], v_x_0)
        # total_reducer: partials and lanes combine into total
        T.finalize_reducer(a_total_reducer, f_total_reducer)
        for r in T.Parallel(4):
            s_total[0] = f_total_reducer[r]
        # row scalar mean
        s_mean[0] = s_total[0] / f32(8193.0)
        # squares_reducer: every partial starts from the identity
        T.reducer_init(a_squares_reducer)
        # over col
        for p in T.unroll(32):
            for r, k in T.Parallel(4, 256):
                q_x_1[r, k] = g_x[row[0], p * 256 + k]
            for r, k in T.Parallel(4, 256):
                v_x_1 = q_x_1[r, k]
                v_centered_0 = sub(v_x_1, s_mean[0])
                p_centered[r, k, p] = v_centered_0
                t_value_squares_reducer = named(v_centered_0 * v_centered_0)
                T.reducer_update(a_squares_reducer[r], t_value_squares_reducer)
        for r, k in T.Parallel(4, 256):
            q_x_1[r, k] = T.if_then_else(k + 8192 < 8193, g_x[row[0], k + 8192], T.float32(0))
        for r, k in T.Parallel(4, 256):
            e = k + 8192
            if e < 8193:
                v_x_1 = q_x_1[r, k]
                v_centered_0 = sub(v_x_1, s_mean[0])
                p_centered[r, k, 32] = v_centered_0
                t_value_squares_reducer = named(v_centered_0 * v_centered_0)
                T.reducer_update(a_squares_reducer[r], t_value_squares_reducer)
        # squares_reducer: partials and lanes combine into squares
        T.finalize_reducer(a_squares_reducer, f_squares_reducer)
        for r in T.Parallel(4):
            s_squares[0] = f_squares_reducer[r]
        # row scalar rstd
        s_rstd[0] = f32(1.0) / sqrt((s_squares[0] / f32(8193.0)) + f32(9.999999747378752e-06))
        # over col
        for p in T.unroll(32):
            for r, k in T.Parallel(4, 256):
                q_weight_0[r, k] = g_weight[p * 256 + k]
            for r, k in T.Parallel(4, 256):
                q_bias_0[r, k] = g_bias[p * 256 + k]
            for r, k in T.Parallel(4, 256):
                e = p * 256 + k
                v_weight_0 = q_weight_0[r, k]
                v_bias_0 = q_bias_0[r, k]
                v_centered_1 = p_centered[r, k, p]
                if live_row(bx * 4 + r, d_rows):
                    g_y[row[0], e] = ((v_centered_1 * s_rstd[0]) * v_weight_0) + v_bias_0
        for r, k in T.Parallel(4, 256):
            q_weight_0[r, k] = T.if_then_else(k + 8192 < 8193, g_weight[k + 8192], T.float32(0))
        for r, k in T.Parallel(4, 256):
            q_bias_0[r, k] = T.if_then_else(k + 8192 < 8193, g_bias[k + 8192], T.float32(0))
        for r, k in T.Parallel(4, 256):
            e = k + 8192
            if e < 8193:
                v_weight_0 = q_weight_0[r, k]
                v_bias_0 = q_bias_0[r, k]
                v_centered_1 = p_centered[r, k, 32]
                if live_row(bx * 4 + r, d_rows):
                    g_y[row[0], e] = ((v_centered_1 * s_rstd[0]) * v_weight_0) + v_bias_0


if __name__ == "__main__":
    import sys

    from tilelang import tvm
    from tilelang.engine import lower

    architecture = sys.argv[1] if len(sys.argv) > 1 else "sm_90"
    target = tvm.target.Target({"kind": "cuda", "arch": architecture})
    config = {"tl.disable_safe_memory_legalize": True, "tl.disable_warp_specialized": True}
    with tvm.transform.PassContext(opt_level=3, config=config), target:
        print(lower(kernel, target=target).kernel_source)
