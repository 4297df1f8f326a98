/* Functions that lowered kernels call. Plain C with GNU extensions (gcc, clang); everything inlines and vectorises.
 *
 * Not IEEE-strict by choice, and named in `numerics`: exp flushes results below e^-87.33 (about the smallest normal
 * number) to zero; log treats denormal arguments as they are; products and sums may be contracted to fma.
 * NaN, infinities and overflow behave as in IEEE 754 everywhere. No fast-math: the polynomials rely on exact order. */
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

/* ---- minimum and maximum: NaN in, NaN out. The inner select is one vmaxps, the outer keeps a NaN on the left --- */
TUNER_INLINE float tuner_maximum(float a, float b) { float m = a > b ? a : b; return a != a ? a : m; }
TUNER_INLINE float tuner_minimum(float a, float b) { float m = a < b ? a : b; return a != a ? a : m; }
TUNER_INLINE int32_t tuner_maximum_i32(int32_t a, int32_t b) { return a > b ? a : b; }
TUNER_INLINE int32_t tuner_minimum_i32(int32_t a, int32_t b) { return a < b ? a : b; }
TUNER_INLINE int32_t tuner_absolute_i32(int32_t a) { return a < 0 ? -a : a; }
#define tuner_absolute(a) __builtin_fabsf(a)

/* ---- roots -------------------------------------------------------------------------------------------------- */
#define tuner_sqrt(a) __builtin_sqrtf(a)
#define tuner_rsqrt(a) (1.0f / __builtin_sqrtf(a))

/* ---- exp: n = round(x / ln 2) by the magic number 1.5 * 2^23, degree-6 polynomial on the rest (Cephes expf) ----
 * The exponent is added to the polynomial's bits, which is exact for every n from -126 to 128. */
TUNER_INLINE float tuner_exp(float x) {
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
  float y = tuner_f32(tuner_u32(p) + (tuner_u32(t) << 23));
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
  float far = t > 4.0f ? 1.0f : 1.0f - tuner_exp(r);
  float q = -5.96761703e-4f;
  q = q * s + 4.99119423e-3f;
  q = q * s - 2.67681349e-2f;
  q = q * s + 1.12819925e-1f;
  q = q * s - 3.76125336e-1f;
  q = q * s + 1.28379166e-1f;
  float near = q * x + x;
  return t > 0.927734375f ? __builtin_copysignf(far, x) : near; /* NaN goes near and stays NaN */
}

/* ---- non-temporal copy of a packet; `count` is a multiple of 16 ------------------------------------------------ */
typedef float tuner_v16 __attribute__((vector_size(64)));
typedef float tuner_v8 __attribute__((vector_size(32)));
typedef float tuner_v4 __attribute__((vector_size(16)));
typedef float tuner_u16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef float tuner_u8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float tuner_u4 __attribute__((vector_size(16), aligned(4), may_alias));
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
#if defined(__SSE__)
#define tuner_stream_fence() __builtin_ia32_sfence() /* streamed packets are visible before the kernel returns */
#else
#define tuner_stream_fence() ((void)0)
#endif
#endif
