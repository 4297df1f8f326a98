// The header that a translated kernel is compiled with. The excerpts are TileLang's own text, cut from the installed
// package when the header is precompiled (see excerpts.py): the collective that is simulated is the real one.
#pragma once
#include "cuda.h"

#include "excerpts_global.inc"
namespace tl {
template <class T> static T shfl_xor_sync(unsigned mask, T value, int bits) {
  return simt::exchange(mask, value, simt::source_xor(bits, 32), 0);
}
template <class T> static T shfl_down_sync(unsigned mask, T value, int delta) {
  return simt::exchange(mask, value, simt::source_down(delta, 32), 0);
}
template <class T> static T shfl_up_sync(unsigned mask, T value, int delta) {
  return simt::exchange(mask, value, simt::source_up(delta, 32), 0);
}
template <class T> static T shfl_sync(unsigned mask, T value, int lane) {
  return simt::exchange(mask, value, simt::source_direct(lane, 32), 0);
}
// TileLang's is inline PTX: bar.sync with an id and a number of threads.
template <int count> struct NamedBarrier {
  template <int phase = 1> static void sync() { simt::wait_at_barrier(phase, count, __LINE__); }
};
#include "excerpts_tl.inc"
static inline void __sync_thread_partial(int barrier = 0, int count = 0) {
  simt::wait_at_barrier(barrier, count, __LINE__);
}
}  // namespace tl

#define SIMT_KERNEL(symbol, ...)                                                                        \
  extern "C" __attribute__((visibility("default"))) int simt_run_##symbol(const simt::Request *request,  \
                                                                          simt::Report *report) {        \
    return simt::launch([](void **a) { symbol(__VA_ARGS__); }, request, report);                         \
  }
