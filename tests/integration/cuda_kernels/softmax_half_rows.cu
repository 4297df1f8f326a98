// TileLang 0.1.15's text of a prototype kernel (a row reduction, 64 rows), as tilelang.lower printed it for sm_90.
#if defined(_MSC_VER) && !defined(__clang__) && _MSC_VER < 1940
#define _tl_orig_alignas alignas
#define alignas(N) _tl_orig_alignas((N) <= 64 ? (N) : 64)
#include <cuda.h>
#undef alignas
#define alignas _tl_orig_alignas
#endif
#include <math_constants.h>
#include <tl_templates/cuda/reduce.h>
#include <tl_templates/cuda/scan.h>
#include <tl_templates/cuda/ldsm.h>
#include <tl_templates/cuda/threadblock_swizzle.h>
#include <tl_templates/cuda/debug.h>
#ifdef ENABLE_BF16
#include <tl_templates/cuda/cuda_bf16_fallbacks.cuh>
#endif

extern "C" __global__ void main_kernel(const half_t* __restrict__ X, half_t* __restrict__ Y);
extern "C" __global__ void __launch_bounds__(128, 1) main_kernel(const half_t* __restrict__ X, half_t* __restrict__ Y) {
  float am[1];
  half_t x[8];
  float m[1];
  float asum[1];
  float s[1];
  am[0] = -CUDART_INF_F;
  #pragma unroll
  for (int i = 0; i < 4; ++i) {
    *(uint1*)(x + (i * 2)) = *(uint1*)(X + ((((((int)blockIdx.x) * 1024) + ((((int)threadIdx.x) >> 5) * 256)) + (i * 64)) + ((((int)threadIdx.x) & 31) * 2)));
  }
  #pragma unroll
  for (int i_1 = 0; i_1 < 8; ++i_1) {
    am[0] = max(am[0], ((float)x[i_1]));
  }
  am[0] = tl::AllReduce<tl::MaxOp, 32, 1, 0, tl::NamedBarrier<128>>::run(am[0]);
  m[0] = am[0];
  asum[0] = 0x0p+0f/*0.000000e+00*/;
  #pragma unroll
  for (int i_2 = 0; i_2 < 8; ++i_2) {
    asum[0] = (asum[0] + expf((((float)x[i_2]) - m[0])));
  }
  asum[0] = tl::AllReduce<tl::SumOp, 32, 1, 0, tl::NamedBarrier<128>>::run(asum[0]);
  s[0] = asum[0];
  #pragma unroll
  for (int i_3 = 0; i_3 < 4; ++i_3) {
    half_t Y_local_cast[2];
    uint1 __1;
    float2 __2;
      float2 __3;
      float2 __4;
        float2 __5;
        uint1 v_ = *(uint1*)(x + (i_3 * 2));
        ((float2*)(&__5))[0] = __half22float2(((half2*)(&v_))[0]);
        float2 v__1 = make_float2(m[0], m[0]);
        __4.x = (__5.x-v__1.x);
        __4.y = (__5.y-v__1.y);
      __3.x = expf(__4.x);
      __3.y = expf(__4.y);
      float2 v__2 = make_float2(s[0], s[0]);
      __2.x = (__3.x/v__2.x);
      __2.y = (__3.y/v__2.y);
    ((half2*)(&__1))[0] = __float22half2_rn(((float2*)(&__2))[0]);
    *(uint1*)(Y_local_cast + 0) = __1;
    *(uint1*)(Y + ((((((int)blockIdx.x) * 1024) + ((((int)threadIdx.x) >> 5) * 256)) + (i_3 * 64)) + ((((int)threadIdx.x) & 31) * 2))) = *(uint1*)(Y_local_cast + 0);
  }
}

