"""rms_norm with cols=4096; any number of rows.

Candidate: {"fusion": "separate", "input": "cache", "mapping": {"min_blocks": 0, "rows_per_block": 1}, "materialize": "private", "partials": 1, "unroll": 1, "vector": 1, "width": 256}
Functions called tuner_* and the namespace tuner belong to the header tuner.cuh beside this file.
"""

import struct

import tilelang
import tilelang.cuda.language as T

F32 = "float32"
ROWS_PER_BLOCK = 1


def f32(value):
    """A constant, exact to the bit (TileLang prints seven digits)."""
    return T.call_pure_extern(F32, "tuner_f32", T.uint32(struct.unpack("<I", struct.pack("<f", value))[0]))


def named(a):
    return T.call_extern(F32, "tuner_named", a)


def sqrt(a):
    return T.call_extern(F32, "tuner_sqrt", a)


def owners(chunks):
    """Which thread owns which element of a row: 1 contiguous scalar of every chunk each."""
    return T.Fragment(
        (1, 256, chunks), forward_fn=lambda r, k, c: (r * 256 + k // 1, c * 1 + k % 1)
    )


PASS = T.Fragment((1, 256), forward_fn=lambda r, k: (r * 256 + k // 1, k % 1))


d_rows = T.dynamic("d_rows")


@T.prim_func
def kernel(g_x: T.Tensor((d_rows, 4096), F32), g_weight: T.Tensor((4096,), F32), g_y: T.Tensor((d_rows, 4096), F32)):
    with T.Kernel(d_rows, threads=256) as bx:
        T.import_source('#include "tuner.cuh"\n')
        a_squares_reducer = T.alloc_reducer((1,), F32, op="sum")
        f_squares_reducer = T.alloc_fragment((1,), F32)
        s_squares = T.alloc_local((1,), F32)
        s_rstd = T.alloc_local((1,), F32)
        p_x_snapshot = T.alloc_fragment((1, 256, 16), F32)
        q_weight_0 = T.alloc_fragment((1, 256), F32)
        T.annotate_layout({p_x_snapshot: owners(16), q_weight_0: PASS})
        # squares_reducer: every partial starts from the identity
        T.reducer_init(a_squares_reducer)
        # over col: snapshot
        for p in T.unroll(16):
            for r, k in T.Parallel(1, 256):
                p_x_snapshot[r, k, p] = g_x[bx, p * 256 + k]
        # over col
        for p in T.unroll(16):
            for r, k in T.Parallel(1, 256):
                v_x_1 = p_x_snapshot[r, k, p]
                t_value_squares_reducer = named(v_x_1 * v_x_1)
                T.reducer_update(a_squares_reducer[r], t_value_squares_reducer)
        # squares_reducer: partials and lanes combine into squares
        T.finalize_reducer(a_squares_reducer, f_squares_reducer)
        for r in T.Parallel(1):
            s_squares[0] = f_squares_reducer[r]
        # row scalar rstd
        s_rstd[0] = f32(1.0) / sqrt((s_squares[0] / f32(4096.0)) + f32(9.999999974752427e-07))
        # over col
        for p in T.unroll(16):
            for r, k in T.Parallel(1, 256):
                q_weight_0[r, k] = g_weight[p * 256 + k]
            for r, k in T.Parallel(1, 256):
                e = p * 256 + k
                v_x_2 = p_x_snapshot[r, k, p]
                v_weight_0 = q_weight_0[r, k]
                g_y[bx, e] = (v_x_2 * s_rstd[0]) * v_weight_0


if __name__ == "__main__":
    import sys

    from tilelang import tvm
    from tilelang.engine import lower

    architecture = sys.argv[1] if len(sys.argv) > 1 else "sm_90"
    target = tvm.target.Target({"kind": "cuda", "arch": architecture})
    config = {"tl.disable_safe_memory_legalize": True, "tl.disable_warp_specialized": True}
    with tvm.transform.PassContext(opt_level=3, config=config), target:
        print(lower(kernel, target=target).kernel_source)
