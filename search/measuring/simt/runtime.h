// What fibers wait for, and the launch: barriers, warp operations, stacks, signals, blocks one after the other.
#pragma once
#include "fibers.h"

namespace simt {

[[gnu::noinline]] static void wait_at_barrier(int id, int expected, int line) {
  if (id < 0 || id >= kBarriers) fail(kBadBarrier, line, 0, "there is no barrier %d: a block has %d", id, kBarriers);
  if (expected != threads && (expected <= 0 || expected > threads || expected % kLanes))
    fail(kBadBarrier, line, 0, "barrier %d for %d threads of %d: whole warps only", id, expected, threads);
  Barrier &barrier = barriers[id];
  if (barrier.arrived == 0) {
    barrier.expected = expected;
    barrier.line = line;
  } else if (barrier.expected != expected) {
    fail(kBadBarrier, line, 0, "barrier %d is waited at by %d threads, and by %d", id, barrier.expected, expected);
  } else if (barrier.line != line) {
    fail(kDivergentBarrier, line, 0, "threads of one block wait at the barriers of lines %d and %d", barrier.line, line);
  }
  fibers[current_thread].waiting = kAtBarrier;
  fibers[current_thread].barrier = id;
  fibers[current_thread].line = line;
  if (++barrier.arrived == barrier.expected) {
    static int waiters[kMaxThreads];
    int count = 0;
    for (int t = 0; t < threads; ++t)
      if (fibers[t].waiting == kAtBarrier && fibers[t].barrier == id) waiters[count++] = t;
    barrier.arrived = 0;
    report->barriers++;
    release(waiters, count, false);
  }
  yield();
}

static uint32_t existing_lanes(int warp) {
  int count = threads - warp * kLanes;
  return count >= kLanes ? ~0u : (1u << count) - 1;
}

// Exchange values when every lane of the mask has come with the same mask and operation.
static void complete_warp(int warp, uint32_t mask, WarpOperation operation) {
  int first = warp * kLanes;
  static int waiters[kLanes];
  int count = 0;
  uint32_t votes = 0;
  for (int l = 0; l < kLanes; ++l)
    if (mask >> l & 1) {
      waiters[count++] = first + l;
      votes |= uint32_t(lanes[first + l].given[0] & 1) << l;
    }
  for (int i = 0; i < count; ++i) {
    Lane &lane = lanes[waiters[i]];
    if (operation == kBallot) {
      memcpy(lane.taken, &votes, sizeof votes);
    } else if (lane.source >= 0 && lane.source < kLanes && (mask >> lane.source & 1)) {
      memcpy(lane.taken, lanes[first + lane.source].given, sizeof lane.taken);
    } else {  // the value of a lane that takes no part is undefined
      memset(lane.taken, (int)request->poison_byte, sizeof lane.taken);
    }
  }
  release(waiters, count, true);
}

[[gnu::noinline]] static void wait_for_warp(uint32_t mask, WarpOperation operation, int line) {
  int warp = current_thread / kLanes, own = current_thread % kLanes;
  mask &= existing_lanes(warp);
  if (!(mask >> own & 1)) fail(kBadWarpMask, line, 0, "lane %d is not in the mask %08x that it gives", own, mask);
  Lane &lane = lanes[current_thread];
  lane.mask = mask;
  lane.operation = operation;
  fibers[current_thread].waiting = kInWarp;
  fibers[current_thread].line = line;
  bool complete = true;
  for (int l = 0; l < kLanes && complete; ++l)
    if (mask >> l & 1) {
      int other = warp * kLanes + l;
      complete = fibers[other].waiting == kInWarp && lanes[other].mask == mask && lanes[other].operation == operation;
    }
  if (complete) complete_warp(warp, mask, operation);
  yield();
}

static void fiber_main() {
  for (;;) {
    kernel(request->arguments);
    fibers[current_thread].waiting = kFinished;
    finished++;
    yield();
  }
}

[[noreturn]] static void broken(const char *what) {
  fprintf(stderr, "simt: %s failed\n", what);
  abort();
}

static char *map_pages(size_t bytes) {
  void *pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) broken("mmap");
  return (char *)pages;
}

static void forbid(char *page) {
  if (mprotect(page, getpagesize(), PROT_NONE) != 0) broken("mprotect");
}

static void begin_fiber(Fiber &fiber, void *stack) {
  if (getcontext(&fiber.context) != 0) broken("getcontext");
  fiber.context.uc_stack.ss_sp = stack;
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, fiber_main, 0);
  fiber.entered = false;
}

static void make_fibers() {
  for (int t = 0; abandoned && t < made; ++t) begin_fiber(fibers[t], fibers[t].context.uc_stack.ss_sp);
  for (; made < threads; ++made) {
    char *stack = map_pages(kStackBytes);
    forbid(stack);  // a stack that is too small faults, and harms nobody
    begin_fiber(fibers[made], stack);
  }
}

// Dynamic shared memory ends at a page that must not be touched.
static void make_dynamic_shared() {
  size_t page = getpagesize(), bytes = ((size_t)request->dynamic_shared_bytes + 15) & ~(size_t)15;
  if (dynamic_pages) munmap(dynamic_pages, dynamic_page_bytes + page);
  dynamic_page_bytes = (bytes + page - 1) / page * page;
  dynamic_pages = map_pages(dynamic_page_bytes + page);
  forbid(dynamic_pages + dynamic_page_bytes);
  dynamic_memory = dynamic_pages + dynamic_page_bytes - bytes;
}

static bool in_dynamic_guard(uint64_t address) {
  uint64_t end = (uint64_t)dynamic_pages + dynamic_page_bytes;
  return dynamic_pages && address >= end && address < end + (uint64_t)getpagesize();
}

static bool in_stack_guard(uint64_t address) {
  for (int t = 0; t < made; ++t) {
    uint64_t stack = (uint64_t)fibers[t].context.uc_stack.ss_sp;
    if (address >= stack && address < stack + (uint64_t)getpagesize()) return true;
  }
  return false;
}

static void on_signal(int number, siginfo_t *info, void *) {
  uint64_t address = (uint64_t)info->si_addr;
  if (number == SIGSEGV || number == SIGBUS) {
    const char *where = in_dynamic_guard(address) ? "past the end of dynamic shared memory"
                        : in_stack_guard(address) ? "past the end of a thread's stack"
                                                  : "memory that no tensor has";
    fail(kMemoryFault, 0, address, "%s at %#llx: %s", number == SIGSEGV ? "SIGSEGV" : "SIGBUS",
         (unsigned long long)address, where);
  }
  fail(kTrap, 0, address, "%s", number == SIGFPE ? "SIGFPE: an integer division by zero" : "SIGILL or SIGTRAP: a trap");
}

static stack_t signal_stack;
constexpr int kCaught[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE};

static void catch_signals() {
  if (signal_stack.ss_sp) return;
  signal_stack.ss_size = 64 << 10;
  signal_stack.ss_sp = map_pages(signal_stack.ss_size);
  if (sigaltstack(&signal_stack, nullptr) != 0) broken("sigaltstack");
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (int number : kCaught)
    if (sigaction(number, &action, nullptr) != 0) broken("sigaction");
}

// Runs when the library is closed: a process simulates many.
[[gnu::destructor]] static void leave_nothing() {
  if (signal_stack.ss_sp) {
    for (int number : kCaught) signal(number, SIG_DFL);
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
    munmap(signal_stack.ss_sp, signal_stack.ss_size);
  }
  for (int t = 0; t < made; ++t) munmap(fibers[t].context.uc_stack.ss_sp, kStackBytes);
  if (dynamic_pages) munmap(dynamic_pages, dynamic_page_bytes + getpagesize());
}

static void report_deadlock() {
  int at_barrier = 0, in_warp = 0, line = 0, shown = -1;
  for (int t = 0; t < threads; ++t) {
    at_barrier += fibers[t].waiting == kAtBarrier;
    in_warp += fibers[t].waiting == kInWarp;
    if (shown < 0 && fibers[t].waiting != kFinished) shown = t, line = fibers[t].line;
  }
  report->kind = kDeadlock;
  report->block = current_block;
  report->thread = shown;
  report->line = line;
  snprintf(report->text, sizeof report->text,
           "of %d threads %d wait at a barrier, %d in an operation of their warp, and %d have finished", threads,
           at_barrier, in_warp, finished);
}

static void begin_block(int block) {
  current_block = block;
  finished = ready_head = ready_count = 0;
  memset(barriers, 0, sizeof barriers);
  memset(dynamic_memory, (int)request->poison_byte, dynamic_pages + dynamic_page_bytes - dynamic_memory);
  for (Region *region = regions; region; region = region->next)
    memset(region->memory, (int)request->poison_byte, region->bytes);
  static int all[kMaxThreads];
  for (int t = 0; t < threads; ++t) all[t] = t;
  release(all, threads, false);
}

[[gnu::noinline]] static void resume(int thread) {
  Fiber &fiber = fibers[thread];
  current_thread = thread;
  if (fiber.entered) _longjmp(fiber.jump, 1);
  fiber.entered = true;
  setcontext(&fiber.context);
  broken("setcontext");
}

// Every statement after a jump back reads nothing but static variables.
[[gnu::noinline]] static void run_ready() {
  int how = _setjmp(scheduler);
  if (how == 2) return;  // a report is written
  if (ready_count == 0) return;
  int thread = ready[ready_head];
  ready_head = (ready_head + 1) % kMaxThreads;
  ready_count--;
  resume(thread);
}

static int launch(void (*entry)(void **), const Request *wanted, Report *answer) {
  request = wanted;
  report = answer;
  memset(report, 0, sizeof *report);
  kernel = entry;
  threads = wanted->threads;
  blocks = wanted->blocks;
  random_state = wanted->seed * 2 + 1;
  if (threads < 1 || threads > kMaxThreads) {
    report->kind = kNotSimulated;
    snprintf(report->text, sizeof report->text, "%d threads in a block: 1 to %d", threads, kMaxThreads);
    return report->kind;
  }
  catch_signals();
  make_fibers();
  make_dynamic_shared();
  for (int b = 0; b < blocks; ++b) {
    begin_block(wanted->order == kDescending ? blocks - 1 - b : b);
    run_ready();
    if (report->kind == kNone && finished != threads) report_deadlock();
    abandoned = report->kind != kNone;
    if (abandoned) return report->kind;
  }
  return kNone;
}

}  // namespace simt
