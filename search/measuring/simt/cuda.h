// CUDA's names for g++: qualifiers, thread indices, barriers, warp operations, mathematics.
//
// Vector types, __half and __nv_bfloat16 are CUDA's own headers; half_t and bfloat16_t are CUTLASS's, as TileLang's
// code has them. Only what a compiler for GPUs builds in is defined here. Anything else is an error of the build, so that
// nothing is simulated by guess.
#pragma once
#include "sanitizer.h"
#include <algorithm>
#include <limits>
#include <math.h>
#include <type_traits>

#include <vector_types.h>
#include <vector_functions.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cutlass/bfloat16.h>
#include <cutlass/half.h>

using cutlass::bfloat16_t;
using cutlass::half_t;
using int4_t = int4;

#undef __global__
#undef __device__
#undef __host__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __shared__
#undef __align__
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define TL_DEVICE inline
#define TL_PATCH
#define uint unsigned int
#define uchar unsigned char
#define ushort unsigned short

namespace simt {

static inline uint3 thread_index() { return make_uint3(current_thread, 0, 0); }
static inline uint3 block_index() { return make_uint3(current_block, 0, 0); }

// A __shared__ array of fixed size: poisoned for each block, and bounded like a local one.
template <class T> struct StaticShared {
  alignas(16) T memory;
  Region region;
  StaticShared() : region{&memory, sizeof memory, regions} {
    regions = &region;
    memset((void *)&memory, (int)request->poison_byte, sizeof memory);
  }
};

// Registers hold anything when a thread starts: each order of threads finds something else in them.
template <class T> static inline void poison(T &registers) {
  memset((void *)&registers, (int)request->poison_byte, sizeof registers);
  asm volatile("" : : "r"(&registers) : "memory");
}

template <class T> static T exchange(uint32_t mask, T value, int source, int line) {
  static_assert(sizeof(T) <= sizeof Lane::given && std::is_trivially_copyable_v<T>);
  Lane &lane = lanes[current_thread];
  memcpy(lane.given, &value, sizeof value);
  lane.source = source;
  wait_for_warp(mask, kExchange, line);
  T taken;
  memcpy(&taken, lanes[current_thread].taken, sizeof taken);
  return taken;
}

static inline uint32_t ballot(uint32_t mask, bool vote, int line) {
  lanes[current_thread].given[0] = vote;
  wait_for_warp(mask, kBallot, line);
  uint32_t votes;
  memcpy(&votes, lanes[current_thread].taken, sizeof votes);
  return votes;
}

static inline int own_lane() { return current_thread % kLanes; }

// The source lanes of CUDA's shuffles: `width` lanes are a group, and no lane takes from a later group than its own.
static inline int source_direct(int lane, int width) { return (own_lane() & -width) | (lane & (width - 1)); }
static inline int source_up(int delta, int width) {
  int source = own_lane() - delta;
  return source < (own_lane() & -width) ? own_lane() : source;
}
static inline int source_down(int delta, int width) {
  int source = own_lane() + delta;
  return source >= (own_lane() & -width) + width ? own_lane() : source;
}
static inline int source_xor(int bits, int width) {
  int source = own_lane() ^ bits;
  return source >= (own_lane() & -width) + width ? own_lane() : source;
}

[[noreturn]] static void trap(int line) { fail(kTrap, line, 0, "the kernel's own __trap()"); }

}  // namespace simt

#define threadIdx (simt::thread_index())
#define blockIdx (simt::block_index())
#define blockDim (make_uint3(simt::threads, 1, 1))
#define gridDim (make_uint3(simt::blocks, 1, 1))
#define warpSize 32

#define __syncthreads() simt::wait_at_barrier(0, simt::threads, __LINE__)
#define __trap() simt::trap(__LINE__)
static inline void simt_syncwarp(int line, uint32_t mask = ~0u) {
  simt::lanes[simt::current_thread].source = simt::own_lane();
  simt::wait_for_warp(mask, simt::kWarpBarrier, line);
}
#define __syncwarp(...) simt_syncwarp(__LINE__ __VA_OPT__(, ) __VA_ARGS__)
// Blocks run one after the other and a fiber runs until it waits: every write is seen at once.
#define __threadfence() ((void)0)
#define __threadfence_block() ((void)0)

template <class T> static T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  return simt::exchange(mask, value, simt::source_direct(lane, width), 0);
}
template <class T> static T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return simt::exchange(mask, value, simt::source_up((int)delta, width), 0);
}
template <class T> static T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return simt::exchange(mask, value, simt::source_down((int)delta, width), 0);
}
template <class T> static T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  return simt::exchange(mask, value, simt::source_xor(bits, width), 0);
}
static inline unsigned __ballot_sync(unsigned mask, int vote) { return simt::ballot(mask, vote != 0, 0); }
static inline int __any_sync(unsigned mask, int vote) { return simt::ballot(mask, vote != 0, 0) != 0; }
static inline int __all_sync(unsigned mask, int vote) { return simt::ballot(mask, vote == 0, 0) == 0; }

template <class T> static inline T __ldg(const T *from) { return *from; }
template <class To, class From> static inline To simt_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy((void *)&to, &from, sizeof to);
  return to;
}
static inline float __int_as_float(int x) { return simt_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return simt_bits<float>(x); }
static inline int __float_as_int(float x) { return simt_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return simt_bits<unsigned>(x); }
#include <math_constants.h>

// fmaxf and fminf give the number where one operand is NaN, as CUDA's do.
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
// The C library declares functions of these names for itself.
#define __expf expf
#define __exp10f exp10f
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __powf powf
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }

#define SIMT_EXTREMES(type)                                             \
  static inline type max(type x, type y) { return x < y ? y : x; }      \
  static inline type min(type x, type y) { return y < x ? y : x; }
SIMT_EXTREMES(int)
SIMT_EXTREMES(unsigned)
SIMT_EXTREMES(long)
SIMT_EXTREMES(unsigned long)
SIMT_EXTREMES(long long)
SIMT_EXTREMES(unsigned long long)
#undef SIMT_EXTREMES
static inline float max(float x, float y) { return fmaxf(x, y); }
static inline float min(float x, float y) { return fminf(x, y); }
static inline double max(double x, double y) { return fmax(x, y); }
static inline double min(double x, double y) { return fmin(x, y); }

// 16-bit functions, by way of float32 as TileLang's headers do where CUDA has none.
#define SIMT_16_BITS(name, expression)                                                              \
  static inline half_t name(half_t h) { float x = float(h); return half_t(expression); }            \
  static inline bfloat16_t name(bfloat16_t h) { float x = float(h); return bfloat16_t(expression); }
SIMT_16_BITS(__habs, fabsf(x))
SIMT_16_BITS(hexp, expf(x))
SIMT_16_BITS(hexp2, exp2f(x))
SIMT_16_BITS(hlog, logf(x))
SIMT_16_BITS(hlog2, log2f(x))
SIMT_16_BITS(hsqrt, sqrtf(x))
SIMT_16_BITS(hrsqrt, 1.0f / sqrtf(x))
SIMT_16_BITS(hrcp, 1.0f / x)
SIMT_16_BITS(htanh, tanhf(x))
SIMT_16_BITS(herf, erff(x))
#undef SIMT_16_BITS

// The C++ library's limits know neither of CUDA's 16-bit types: unspecialised, infinity() is 0 without a word.
namespace std {
template <> struct numeric_limits<__half> {
  static constexpr bool is_specialized = true, has_infinity = true, has_quiet_NaN = true;
  static __half infinity() { return CUDART_INF_FP16; }
  static __half quiet_NaN() { return CUDART_NAN_FP16; }
  static __half max() { return CUDART_MAX_NORMAL_FP16; }
  static __half lowest() { return __float2half_rn(-65504.0f); }
};
template <> struct numeric_limits<__nv_bfloat16> {
  static constexpr bool is_specialized = true, has_infinity = true, has_quiet_NaN = true;
  static __nv_bfloat16 infinity() { return CUDART_INF_BF16; }
  static __nv_bfloat16 quiet_NaN() { return CUDART_NAN_BF16; }
  static __nv_bfloat16 max() { return CUDART_MAX_NORMAL_BF16; }
  static __nv_bfloat16 lowest() { return __float2bfloat16_rn(-3.38953139e38f); }
};
}  // namespace std
