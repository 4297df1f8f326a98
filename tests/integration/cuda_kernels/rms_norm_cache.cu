// TileLang 0.1.15's text of a prototype kernel (a row reduction, 64 rows), as tilelang.lower printed it for sm_90.
#if defined(_MSC_VER) && !defined(__clang__) && _MSC_VER < 1940
#define _tl_orig_alignas alignas
#define alignas(N) _tl_orig_alignas((N) <= 64 ? (N) : 64)
#include <cuda.h>
#undef alignas
#define alignas _tl_orig_alignas
#endif
#include <tl_templates/cuda/reduce.h>
#include <tl_templates/cuda/scan.h>
#include <tl_templates/cuda/ldsm.h>
#include <tl_templates/cuda/threadblock_swizzle.h>
#include <tl_templates/cuda/debug.h>
#ifdef ENABLE_BF16
#include <tl_templates/cuda/cuda_bf16_fallbacks.cuh>
#endif

extern "C" __global__ void main_kernel(const float* __restrict__ G, const float* __restrict__ X, float* __restrict__ Y);
extern "C" __global__ void __launch_bounds__(128, 1) main_kernel(const float* __restrict__ G, const float* __restrict__ X, float* __restrict__ Y) {
  float acc[1];
  float x[8];
  extern __shared__ __align__(1024) float workspace[];
  float s[1];
  acc[0] = 0x0p+0f/*0.000000e+00*/;
  #pragma unroll
  for (int i = 0; i < 2; ++i) {
    *(float4*)(x + (i * 4)) = *(float4*)(X + (((((int)blockIdx.x) * 1024) + (i * 512)) + (((int)threadIdx.x) * 4)));
  }
  #pragma unroll
  for (int i_1 = 0; i_1 < 8; ++i_1) {
    acc[0] = (acc[0] + (x[i_1] * x[i_1]));
  }
  acc[0] = tl::AllReduce<tl::SumOp, 128, 1, 0, tl::NamedBarrier<128>>::run(acc[0], (&(workspace[0])));
  s[0] = acc[0];
  #pragma unroll
  for (int i_2 = 0; i_2 < 2; ++i_2) {
    float4 __1;
      float4 __2;
        float4 v_ = *(float4*)(x + (i_2 * 4));
        float4 v__1 = make_float4(rsqrtf(((s[0] * 0x1p-10f/*9.765625e-04*/) + 0x1.4f8b588e368f1p-17f/*1.000000e-05*/)), rsqrtf(((s[0] * 0x1p-10f/*9.765625e-04*/) + 0x1.4f8b588e368f1p-17f/*1.000000e-05*/)), rsqrtf(((s[0] * 0x1p-10f/*9.765625e-04*/) + 0x1.4f8b588e368f1p-17f/*1.000000e-05*/)), rsqrtf(((s[0] * 0x1p-10f/*9.765625e-04*/) + 0x1.4f8b588e368f1p-17f/*1.000000e-05*/)));
        __2.x = (v_.x*v__1.x);
        __2.y = (v_.y*v__1.y);
        __2.z = (v_.z*v__1.z);
        __2.w = (v_.w*v__1.w);
      float4 v__2 = *(float4*)(G + ((i_2 * 512) + (((int)threadIdx.x) * 4)));
      __1.x = (__2.x*v__2.x);
      __1.y = (__2.y*v__2.y);
      __1.z = (__2.z*v__2.z);
      __1.w = (__2.w*v__2.w);
    *(float4*)(Y + (((((int)blockIdx.x) * 1024) + (i_2 * 512)) + (((int)threadIdx.x) * 4))) = __1;
  }
}

