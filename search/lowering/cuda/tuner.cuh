// Functions that lowered CUDA kernels call. Everything inlines. TileLang's simplifier cannot see into them, which it must
// not: it is not IEEE for float32, and its minimum and maximum drop NaN.
//
// No fast-math: NaN, infinities, denormals and overflow behave as in IEEE 754. expf, logf, tanhf, erff and rsqrtf are
// those of CUDA, with the errors that its programming guide states; products and sums may be contracted to fma, except
// where tuner_mul is called. int32 arithmetic wraps.
#pragma once
#include <tl_templates/cuda/reduce.h>

#define TUNER_INLINE static __device__ __forceinline__

// ---- bits
TUNER_INLINE float tuner_f32(unsigned bits) {
  union { unsigned u; float f; } c;
  c.u = bits;
  return c.f;
}

// ---- what TileLang's simplifier must not see into
TUNER_INLINE float tuner_named(float a) { return a; }
TUNER_INLINE int tuner_named_i32(int a) { return a; }
TUNER_INLINE float tuner_sub(float a, float b) { return a - b; }
TUNER_INLINE float tuner_neg(float a) { return -a; }
TUNER_INLINE float tuner_select(int c, float a, float b) { return c ? a : b; }
TUNER_INLINE int tuner_select_i32(int c, int a, int b) { return c ? a : b; }
// Out of range and NaN, where C promises nothing: the smallest int32.
TUNER_INLINE int tuner_truncate(float a) { return a >= -2147483648.0f && a < 2147483648.0f ? (int)a : -2147483647 - 1; }
TUNER_INLINE int tuner_lt(float a, float b) { return a < b; }
TUNER_INLINE int tuner_le(float a, float b) { return a <= b; }
TUNER_INLINE int tuner_gt(float a, float b) { return a > b; }
TUNER_INLINE int tuner_ge(float a, float b) { return a >= b; }
TUNER_INLINE int tuner_eq(float a, float b) { return a == b; }
TUNER_INLINE int tuner_ne(float a, float b) { return a != b; }
TUNER_INLINE int tuner_lt(int a, int b) { return a < b; }
TUNER_INLINE int tuner_le(int a, int b) { return a <= b; }
TUNER_INLINE int tuner_gt(int a, int b) { return a > b; }
TUNER_INLINE int tuner_ge(int a, int b) { return a >= b; }
TUNER_INLINE int tuner_eq(int a, int b) { return a == b; }
TUNER_INLINE int tuner_ne(int a, int b) { return a != b; }
TUNER_INLINE int tuner_logical_and(int a, int b) { return a & b; }
TUNER_INLINE int tuner_logical_or(int a, int b) { return a | b; }
TUNER_INLINE int tuner_logical_not(int a) { return 1 ^ a; }
TUNER_INLINE int tuner_bit_and(int a, int b) { return a & b; }
TUNER_INLINE int tuner_bit_or(int a, int b) { return a | b; }
TUNER_INLINE int tuner_bit_xor(int a, int b) { return a ^ b; }
TUNER_INLINE int tuner_live_row(int row, int rows) { return row < rows; }
TUNER_INLINE int tuner_add_i32(int a, int b) { return (int)((unsigned)a + (unsigned)b); }
TUNER_INLINE int tuner_sub_i32(int a, int b) { return (int)((unsigned)a - (unsigned)b); }
TUNER_INLINE int tuner_mul_i32(int a, int b) { return (int)((unsigned)a * (unsigned)b); }
TUNER_INLINE int tuner_neg_i32(int a) { return (int)(0u - (unsigned)a); }

// ---- a product that is never part of an fma: strict folds
TUNER_INLINE float tuner_mul(float a, float b) { return __fmul_rn(a, b); }

// ---- minimum and maximum: NaN in, NaN out
TUNER_INLINE float tuner_maximum(float a, float b) { return a > b || a != a ? a : b; }
TUNER_INLINE float tuner_minimum(float a, float b) { return a < b || a != a ? a : b; }
TUNER_INLINE int tuner_maximum_i32(int a, int b) { return a > b ? a : b; }
TUNER_INLINE int tuner_minimum_i32(int a, int b) { return a < b ? a : b; }
TUNER_INLINE int tuner_absolute_i32(int a) { return a < 0 ? tuner_neg_i32(a) : a; }

// ---- functions
TUNER_INLINE float tuner_absolute(float a) { return fabsf(a); }
TUNER_INLINE float tuner_sqrt(float a) { return sqrtf(a); }
TUNER_INLINE float tuner_rsqrt(float a) { return rsqrtf(a); }
TUNER_INLINE float tuner_exp(float a) { return expf(a); }
TUNER_INLINE float tuner_log(float a) { return logf(a); }
TUNER_INLINE float tuner_tanh(float a) { return tanhf(a); }
TUNER_INLINE float tuner_erf(float a) { return erff(a); }
TUNER_INLINE float tuner_sigmoid(float a) { return 1.0f / (1.0f + expf(-a)); }
TUNER_INLINE float tuner_round_float16(float a) { return (float)half_t(a); }
TUNER_INLINE float tuner_round_bfloat16(float a) { return (float)bfloat16_t(a); }

// ---- collectives: TileLang's own template with operations of ours, over groups of `lanes` consecutive threads
namespace tuner {
struct Sum { template <class T> __device__ __forceinline__ T operator()(T const &a, T const &b) { return a + b; } };
struct Product { template <class T> __device__ __forceinline__ T operator()(T const &a, T const &b) { return a * b; } };
struct Max { __device__ __forceinline__ float operator()(float a, float b) { return tuner_maximum(a, b); } };
struct Min { __device__ __forceinline__ float operator()(float a, float b) { return tuner_minimum(a, b); } };
struct SumI32 { __device__ __forceinline__ int operator()(int a, int b) { return tuner_add_i32(a, b); } };
struct ProductI32 { __device__ __forceinline__ int operator()(int a, int b) { return tuner_mul_i32(a, b); } };
struct MaxI32 { __device__ __forceinline__ int operator()(int a, int b) { return tuner_maximum_i32(a, b); } };
struct MinI32 { __device__ __forceinline__ int operator()(int a, int b) { return tuner_minimum_i32(a, b); } };
struct AndI32 { __device__ __forceinline__ int operator()(int a, int b) { return a & b; } };
struct OrI32 { __device__ __forceinline__ int operator()(int a, int b) { return a | b; } };
struct XorI32 { __device__ __forceinline__ int operator()(int a, int b) { return a ^ b; } };

// Every thread of the block calls it; `threads` is how many there are, for lanes of several warps.
template <class Op, int lanes, int threads, class T> static __device__ __forceinline__ T all_reduce(T value) {
  if constexpr (lanes > 32) {
    __shared__ T workspace[threads];
    return tl::AllReduce<Op, lanes, 1>::run(value, workspace);
  } else {
    return tl::AllReduce<Op, lanes, 1>::run(value);
  }
}
}  // namespace tuner
