// One CUDA block at a time on one CPU thread: every CUDA thread is a fiber that runs until it waits for another.
//
// What a fiber may wait for is a barrier of the block or an operation of its warp. Which waiting fiber runs next is one
// of three orders, so code that is right only for one of them does not get through. Whatever goes wrong ends the launch
// with a report; its fibers are abandoned where they are, and start anew in the next launch.
#pragma once
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

namespace simt {

constexpr int kMaxThreads = 1024;
constexpr int kLanes = 32;
constexpr int kBarriers = 16;
constexpr size_t kStackBytes = 256 << 10;

enum Order : int32_t { kAscending = 0, kDescending = 1, kShuffled = 2 };

enum Kind : int32_t {
  kNone = 0,
  kDeadlock = 1,
  kDivergentBarrier = 2,
  kBadBarrier = 3,
  kBadWarpMask = 4,
  kMemoryFault = 5,
  kIndexOutOfBounds = 6,
  kMisaligned = 7,
  kTrap = 8,
  kNotSimulated = 9,
};

// What the caller wants; mirrored by search/measuring/simt/native.py.
struct Request {
  void **arguments;
  int32_t blocks;
  int32_t threads;
  int64_t dynamic_shared_bytes;
  int32_t order;
  uint32_t poison_byte;
  uint64_t seed;
};

// What came of it; mirrored by search/measuring/simt/native.py.
struct Report {
  int32_t kind;
  int32_t block;
  int32_t thread;
  int32_t line;
  uint64_t address;
  int64_t barriers;
  int64_t switches;
  char text[256];
};

enum Waiting : int8_t { kRunning, kAtBarrier, kInWarp, kFinished };

struct Fiber {
  ucontext_t context;
  jmp_buf jump;
  bool entered;
  Waiting waiting;
  int barrier;
  int line;
};

struct Barrier {
  int arrived, expected, line;
};

enum WarpOperation : int8_t { kExchange, kBallot, kWarpBarrier };

// One lane's part in an operation of its warp. The values of all lanes are exchanged when the last one arrives.
struct Lane {
  uint32_t mask;
  WarpOperation operation;
  int source;
  unsigned char given[16], taken[16];
};

// A __shared__ array of fixed size.
struct Region {
  void *memory;
  size_t bytes;
  Region *next;
};

static Fiber fibers[kMaxThreads];
static Lane lanes[kMaxThreads];
static Barrier barriers[kBarriers];
static int current_thread, current_block, threads, blocks, finished, made;
static int ready[kMaxThreads], ready_head, ready_count;
static jmp_buf scheduler;
static void (*kernel)(void **);
static const Request *request;
static Report *report;
static uint64_t random_state;
static char *dynamic_memory, *dynamic_pages;
static size_t dynamic_page_bytes;
static Region *regions;
static bool abandoned;

// Ends the launch. Never returns to the fiber.
[[noreturn]] [[gnu::format(printf, 4, 5)]] [[gnu::noinline]] static void fail(Kind kind, int line, uint64_t address,
                                                                              const char *format, ...) {
  report->kind = kind;
  report->block = current_block;
  report->thread = current_thread;
  report->line = line;
  report->address = address;
  va_list words;
  va_start(words, format);
  vsnprintf(report->text, sizeof report->text, format, words);
  va_end(words);
  _longjmp(scheduler, 2);
}

static uint64_t draw(uint64_t below) {
  random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
  return (random_state >> 33) % below;
}

static void enqueue(int thread, bool first) {
  if (first) {
    ready_head = (ready_head + kMaxThreads - 1) % kMaxThreads;
    ready[ready_head] = thread;
  } else {
    ready[(ready_head + ready_count) % kMaxThreads] = thread;
  }
  ready_count++;
}

// Make fibers ready in the order of this launch. `among` holds thread indices, ascending. A warp that was let go runs
// ahead of the others when ascending, in step with them when descending, and by chance when shuffled.
static void release(int *among, int count, bool warp) {
  if (request->order == kShuffled)
    for (int i = count; i > 1; --i) {
      int other = (int)draw(i), kept = among[i - 1];
      among[i - 1] = among[other];
      among[other] = kept;
    }
  bool first = warp && (request->order == kAscending || (request->order == kShuffled && draw(2)));
  for (int i = 0; i < count; ++i) {
    // In front of the queue the last one enqueued runs first.
    bool backwards = (request->order == kDescending) != first;
    int thread = among[backwards ? count - 1 - i : i];
    fibers[thread].waiting = kRunning;
    enqueue(thread, first);
  }
}

[[gnu::noinline]] static void yield() {
  report->switches++;
  if (_setjmp(fibers[current_thread].jump) == 0) _longjmp(scheduler, 1);
}

}  // namespace simt
