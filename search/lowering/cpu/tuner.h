/* Functions that lowered kernels call. Plain C with GNU extensions (gcc, clang); everything inlines and vectorises.
 *
 * Not IEEE-strict by choice, and named in `numerics`: exp flushes results below e^-87.33 (about the smallest normal
 * number) to zero; log treats denormal arguments as they are; products and sums may be contracted to fma.
 * NaN, infinities and overflow behave as in IEEE 754 everywhere. No fast-math: the polynomials rely on exact order.
 * int32 arithmetic wraps. */
#ifndef TUNER_H
#define TUNER_H
#include <math.h>
#include <stdint.h>

#define TUNER_INLINE static inline __attribute__((always_inline))

/* ---- bits ------------------------------------------------------------------------------------------------- */
TUNER_INLINE float tuner_f32(uint32_t bits) { union { uint32_t u; float f; } c; c.u = bits; return c.f; }
TUNER_INLINE uint32_t tuner_u32(float value) { union { uint32_t u; float f; } c; c.f = value; return c.u; }
#define TUNER_INF tuner_f32(0x7f800000u)

/* ---- what TileLang's simplifier must not see into ---------------------------------------------------------- */
#define tuner_named(a) (a)
#define tuner_named_i32(a) (a)
#define tuner_sub(a, b) ((a) - (b))
#define tuner_neg(a) (-(a))
#define tuner_select(c, a, b) ((c) ? (a) : (b))
#define tuner_select_i32(c, a, b) ((c) ? (a) : (b))
/* Out of range and NaN, where C promises nothing: the smallest int32. */
TUNER_INLINE int32_t tuner_truncate(float a) {
  return a >= -2147483648.0f && a < 2147483648.0f ? (int32_t)a : INT32_MIN;
}
#define tuner_lt(a, b) ((int32_t)((a) < (b)))
#define tuner_le(a, b) ((int32_t)((a) <= (b)))
#define tuner_gt(a, b) ((int32_t)((a) > (b)))
#define tuner_ge(a, b) ((int32_t)((a) >= (b)))
#define tuner_eq(a, b) ((int32_t)((a) == (b)))
#define tuner_ne(a, b) ((int32_t)((a) != (b)))
#define tuner_logical_and(a, b) ((a) & (b))
#define tuner_logical_or(a, b) ((a) | (b))
#define tuner_logical_not(a) (1 ^ (a))
#define tuner_bit_and(a, b) ((a) & (b))
#define tuner_bit_or(a, b) ((a) | (b))
#define tuner_bit_xor(a, b) ((a) ^ (b))
#define tuner_live_row(row, rows) ((int32_t)((row) < (rows)))
/* Slot 0 of a packet always has a row, which no compiler sees by itself. */
#define tuner_live_slot(slot, first, rows) ((int32_t)((slot) == 0 || (first) + (slot) < (rows)))
#define tuner_add_i32(a, b) ((int32_t)((uint32_t)(a) + (uint32_t)(b)))
#define tuner_sub_i32(a, b) ((int32_t)((uint32_t)(a) - (uint32_t)(b)))
#define tuner_mul_i32(a, b) ((int32_t)((uint32_t)(a) * (uint32_t)(b)))
#define tuner_neg_i32(a) ((int32_t)(0u - (uint32_t)(a)))

/* ---- minimum and maximum: NaN in, NaN out. The inner select is one vmaxps, the outer keeps a NaN on the left --- */
TUNER_INLINE float tuner_maximum(float a, float b) { float m = a > b ? a : b; return a != a ? a : m; }
TUNER_INLINE float tuner_minimum(float a, float b) { float m = a < b ? a : b; return a != a ? a : m; }
TUNER_INLINE int32_t tuner_maximum_i32(int32_t a, int32_t b) { return a > b ? a : b; }
TUNER_INLINE int32_t tuner_minimum_i32(int32_t a, int32_t b) { return a < b ? a : b; }
TUNER_INLINE int32_t tuner_absolute_i32(int32_t a) { return a < 0 ? tuner_neg_i32(a) : a; }
#define tuner_absolute(a) __builtin_fabsf(a)

/* ---- roots -------------------------------------------------------------------------------------------------- */
#define tuner_sqrt(a) __builtin_sqrtf(a)
#define tuner_rsqrt(a) (1.0f / __builtin_sqrtf(a))

/* ---- exp: n = round(x / ln 2) by the magic number 1.5 * 2^23, degree-6 polynomial on the rest (Cephes expf) ----
 * The exponent is added to the polynomial's bits, which is exact for every n from -126 to 128. */
TUNER_INLINE float tuner_exp_inside(float x) { /* for -87.33 <= x <= 88.72 */
  float t = x * 1.44269504088896341f + 12582912.0f;
  float n = t - 12582912.0f;
  float r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  return tuner_f32(tuner_u32(p) + (tuner_u32(t) << 23));
}
TUNER_INLINE float tuner_exp(float x) {
  float y = tuner_exp_inside(x);
  y = x <= 88.7228317f ? y : x + TUNER_INF; /* overflow and NaN */
  return x < -87.33f ? 0.0f : y;
}

/* ---- log: x = m * 2^e with m in [sqrt(1/2), sqrt 2), degree-8 polynomial (Cephes logf) ------------------------ */
TUNER_INLINE float tuner_log(float x) {
  int32_t denormal = x < 1.17549435e-38f;
  float a = denormal ? x * 8388608.0f : x;
  uint32_t bits = tuner_u32(a) - 0x3f3504f3u;
  float e = (float)((int32_t)bits >> 23) - (denormal ? 23.0f : 0.0f);
  float f = tuner_f32((bits & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  float z = f * f;
  float p = 7.0376836292e-2f;
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  float y = p * f * z + e * -2.12194440e-4f;
  y = y - 0.5f * z;
  y = f + y;
  y = y + e * 0.693359375f;
  y = x < TUNER_INF ? y : x + x;               /* +inf and NaN */
  y = x < 0.0f ? tuner_f32(0x7fc00000u) : y;
  return x == 0.0f ? -TUNER_INF : y;
}

/* ---- tanh: odd polynomial near zero, 1 - 2 / (e^2|x| + 1) elsewhere (Cephes tanhf) ----------------------------- */
TUNER_INLINE float tuner_tanh(float x) {
  float a = __builtin_fabsf(x);
  float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  float near = p * z * x + x;
  float far = __builtin_copysignf(1.0f - 2.0f / (tuner_exp(a + a) + 1.0f), x);
  return a < 0.625f ? near : far; /* NaN goes far and stays NaN */
}

#define tuner_sigmoid(a) (1.0f / (1.0f + tuner_exp(-(a))))

/* ---- erf: two polynomials, below 1 ulp each (N. Juffa) ---------------------------------------------------------- */
TUNER_INLINE float tuner_erf(float x) {
  float t = __builtin_fabsf(x);
  float s = x * x;
  float u = -3.88396438e-3f * t + 2.42546219e-2f;
  float r = -1.72853470e-5f * t + 3.83197126e-4f;
  r = r * s + u;
  r = r * t - 1.06777877e-1f;
  r = r * t - 6.34846687e-1f;
  r = r * t - 1.28717512e-1f;
  r = r * t - t;
  float far = t > 4.0f ? 1.0f : 1.0f - tuner_exp_inside(r); /* up to 4, r is between -18 and 0 */
  float q = -5.96761703e-4f;
  q = q * s + 4.99119423e-3f;
  q = q * s - 2.67681349e-2f;
  q = q * s + 1.12819925e-1f;
  q = q * s - 3.76125336e-1f;
  q = q * s + 1.28379166e-1f;
  float near = q * x + x;
  return t > 0.927734375f ? __builtin_copysignf(far, x) : near; /* NaN goes near and stays NaN */
}

/* ---- 16-bit floats: stored as their bits, computed in float32. Narrowing rounds to nearest, ties to even; a NaN stays
 * one, whatever its payload; subnormals are kept, even where the process flushes those of float32. ---------------- */
TUNER_INLINE float tuner_from_bfloat16(uint16_t bits) { return tuner_f32((uint32_t)bits << 16); }
TUNER_INLINE uint16_t tuner_to_bfloat16(float value) {
  uint32_t bits = tuner_u32(value);
  uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return (uint16_t)((value != value ? bits | 0x00400000u : rounded) >> 16);
}
/* The exponent is rebased by a product (exact: powers of two), a subnormal by a difference (exact: Sterbenz). */
TUNER_INLINE float tuner_from_float16(uint16_t bits) {
  uint32_t twice = (uint32_t)bits << 17;
  float normal = tuner_f32((twice >> 4) + 0x70000000u) * 0x1p-112f; /* infinity and NaN are above the rest, and stay */
  float subnormal = tuner_f32((twice >> 17) | 0x3f000000u) - 0.5f;
  uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
  return tuner_f32(sign | (twice < 0x08000000u ? tuner_u32(subnormal) : tuner_u32(normal)));
}
/* The sum with a power of two whose ulp is the result's rounds the value as float32 does (M. Dukhan's FP16). */
TUNER_INLINE uint16_t tuner_to_float16(float value) {
  uint32_t bits = tuner_u32(value), twice = bits + bits;
  float scaled = __builtin_fabsf(value) * 0x1p112f * 0x1p-110f; /* what is too big becomes infinity */
  uint32_t exponent = twice & 0xff000000u;
  exponent = exponent < 0x71000000u ? 0x71000000u : exponent;
  uint32_t sum = tuner_u32(tuner_f32((exponent >> 1) + 0x07800000u) + scaled);
  uint32_t rounded = ((sum >> 13) & 0x7c00u) + (sum & 0x0fffu);
  return (uint16_t)(((bits >> 16) & 0x8000u) | (twice > 0xff000000u ? 0x7e00u : rounded));
}
#define tuner_round_bfloat16(a) tuner_from_bfloat16(tuner_to_bfloat16(a))
#define tuner_round_float16(a) tuner_from_float16(tuner_to_float16(a))

/* Blocks of float16: compilers keep the processor's own conversion out of vectorised loops, so it is asked for here. */
typedef float tuner_f16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef float tuner_f8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef short tuner_h16 __attribute__((vector_size(32), aligned(2), may_alias));
typedef short tuner_h8 __attribute__((vector_size(16), aligned(2), may_alias));
TUNER_INLINE int32_t tuner_load_float16(float *target, const uint16_t *source, int32_t count) {
  int32_t i = 0;
#if defined(__AVX512F__) && !defined(__clang__)
  for (; i + 16 <= count; i += 16)
    *(tuner_f16 *)(target + i) = __builtin_ia32_vcvtph2ps512_mask(*(const tuner_h16 *)(source + i), (tuner_f16){0}, 0xffff, 4);
#endif
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8) *(tuner_f8 *)(target + i) = __builtin_ia32_vcvtph2ps256(*(const tuner_h8 *)(source + i));
#endif
  for (; i < count; ++i) target[i] = tuner_from_float16(source[i]);
  return 0;
}
TUNER_INLINE int32_t tuner_store_float16(uint16_t *target, const float *source, int32_t count) {
  int32_t i = 0;
#if defined(__AVX512F__) && !defined(__clang__)
  for (; i + 16 <= count; i += 16)
    *(tuner_h16 *)(target + i) = __builtin_ia32_vcvtps2ph512_mask(*(const tuner_f16 *)(source + i), 0, (tuner_h16){0}, -1);
#endif
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8) *(tuner_h8 *)(target + i) = __builtin_ia32_vcvtps2ph256(*(const tuner_f8 *)(source + i), 0);
#endif
  for (; i < count; ++i) target[i] = tuner_to_float16(source[i]);
  return 0;
}

/* ---- non-temporal copy of a packet; `count` is a multiple of 16 ------------------------------------------------ */
typedef float tuner_v16 __attribute__((vector_size(64)));
typedef float tuner_v8 __attribute__((vector_size(32)));
typedef float tuner_v4 __attribute__((vector_size(16)));
typedef float tuner_u16 __attribute__((vector_size(64), aligned(2), may_alias)); /* packets of 2-byte elements too */
typedef float tuner_u8 __attribute__((vector_size(32), aligned(2), may_alias));
typedef float tuner_u4 __attribute__((vector_size(16), aligned(2), may_alias));
#if defined(__AVX512F__)
#define TUNER_LANES 16
typedef tuner_u16 tuner_packet;
#define TUNER_STREAM(d, v) __builtin_ia32_movntps512((d), (tuner_v16)(v))
#elif defined(__AVX__)
#define TUNER_LANES 8
typedef tuner_u8 tuner_packet;
#define TUNER_STREAM(d, v) __builtin_ia32_movntps256((d), (tuner_v8)(v))
#else
#define TUNER_LANES 4
typedef tuner_u4 tuner_packet;
#if defined(__SSE__)
#define TUNER_STREAM(d, v) __builtin_ia32_movntps((d), (tuner_v4)(v))
#else
#define TUNER_STREAM(d, v) (*(tuner_packet *)(d) = (v))
#endif
#endif
#if defined(__clang__) && defined(__x86_64__)
#undef TUNER_STREAM
#define TUNER_STREAM(d, v) __builtin_nontemporal_store((v), (tuner_packet *)(d))
#endif
TUNER_INLINE int32_t tuner_stream(float *target, const float *packet, int32_t count) {
  if (((uintptr_t)target & 63) == 0) {
    for (int32_t i = 0; i < count; i += TUNER_LANES) TUNER_STREAM(target + i, *(const tuner_packet *)(packet + i));
  } else {
    for (int32_t i = 0; i < count; i += TUNER_LANES) *(tuner_packet *)(target + i) = *(const tuner_packet *)(packet + i);
  }
  return 0;
}
#define tuner_stream_i32(target, packet, count) tuner_stream((float *)(target), (const float *)(packet), count)
#define tuner_stream_u16(target, packet, count) tuner_stream((float *)(target), (const float *)(packet), (count) / 2)
#if defined(__SSE__)
#define tuner_stream_fence() __builtin_ia32_sfence() /* streamed packets are visible before the kernel returns */
#else
#define tuner_stream_fence() ((void)0)
#endif
#endif
