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

extern "C" __global__ void main_kernel(const float* __restrict__ X, float* __restrict__ Y);
extern "C" __global__ void __launch_bounds__(64, 1) main_kernel(const float* __restrict__ X, float* __restrict__ Y) {
  extern __shared__ __align__(1024) uchar buf_dyn_shmem[];
  void* workspace = ((void*)((char*)buf_dyn_shmem + 0));
  void* workspace_1 = ((void*)((char*)buf_dyn_shmem + 0));
  float am[1];
  float x[1];
  float m[1];
  float asum[1];
  float s[1];
  am[0] = -CUDART_INF_F;
  for (int p = 0; p < 16; ++p) {
    float condval;
    if ((((p * 8) + (((int)threadIdx.x) >> 3)) < 125)) {
      condval = X[(((((int)blockIdx.x) * 1000) + (p * 64)) + ((int)threadIdx.x))];
    } else {
      condval = -CUDART_INF_F;
    }
    x[0] = condval;
    am[0] = max(am[0], x[0]);
  }
  am[0] = tl::AllReduce<tl::MaxOp, 64, 1, 0, tl::NamedBarrier<64>>::run(am[0], (&(((float*)workspace_1)[0])));
  m[0] = am[0];
  asum[0] = 0x0p+0f/*0.000000e+00*/;
  for (int p_1 = 0; p_1 < 16; ++p_1) {
    float condval_1;
    if ((((p_1 * 8) + (((int)threadIdx.x) >> 3)) < 125)) {
      condval_1 = X[(((((int)blockIdx.x) * 1000) + (p_1 * 64)) + ((int)threadIdx.x))];
    } else {
      condval_1 = -CUDART_INF_F;
    }
    x[0] = condval_1;
    asum[0] = (asum[0] + expf((x[0] - m[0])));
  }
  __syncthreads();
  asum[0] = tl::AllReduce<tl::SumOp, 64, 1, 0, tl::NamedBarrier<64>>::run(asum[0], (&(((float*)workspace)[0])));
  s[0] = asum[0];
  for (int p_2 = 0; p_2 < 16; ++p_2) {
    float condval_2;
    if ((((p_2 * 8) + (((int)threadIdx.x) >> 3)) < 125)) {
      condval_2 = X[(((((int)blockIdx.x) * 1000) + (p_2 * 64)) + ((int)threadIdx.x))];
    } else {
      condval_2 = -CUDART_INF_F;
    }
    x[0] = condval_2;
    if (((p_2 * 8) + (((int)threadIdx.x) >> 3)) < 125) {
      Y[(((((int)blockIdx.x) * 1000) + (p_2 * 64)) + ((int)threadIdx.x))] = (expf((x[0] - m[0])) / s[0]);
    }
  }
}

