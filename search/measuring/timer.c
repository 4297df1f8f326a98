/* Native timing loop: calls a kernel through its pointer, no Python inside.
 *
 * Every argument is a pointer or an int32 and travels as a 64-bit integer. On x86-64 (System V) and AArch64 (AAPCS64
 * on Linux) integer arguments of any size take one 64-bit register or one 8-byte stack slot, and the callee ignores the
 * upper half of a 32-bit argument, so one prototype per argument count calls every kernel.
 */
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#if !(defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__)))
#error "the timing loop is written for Linux on x86-64 and AArch64"
#endif

typedef uint64_t a;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The loop stands inside the switch: nothing but the call and the counter is repeated. */
#define LOOP(TYPES, VALUES)                                                                                            \
    {                                                                                                                  \
        int32_t (*kernel) TYPES = (int32_t (*) TYPES)function;                                                         \
        for (int64_t i = 0; i < calls && code == 0; i++) code = kernel VALUES;                                         \
        break;                                                                                                         \
    }

static int32_t repeat(void *function, const a *v, int32_t count, int64_t calls) {
    int32_t code = 0;
    switch (count) {
    case 0: LOOP((void), ())
    case 1: LOOP((a), (v[0]))
    case 2: LOOP((a, a), (v[0], v[1]))
    case 3: LOOP((a, a, a), (v[0], v[1], v[2]))
    case 4: LOOP((a, a, a, a), (v[0], v[1], v[2], v[3]))
    case 5: LOOP((a, a, a, a, a), (v[0], v[1], v[2], v[3], v[4]))
    case 6: LOOP((a, a, a, a, a, a), (v[0], v[1], v[2], v[3], v[4], v[5]))
    case 7: LOOP((a, a, a, a, a, a, a), (v[0], v[1], v[2], v[3], v[4], v[5], v[6]))
    case 8: LOOP((a, a, a, a, a, a, a, a), (v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]))
    case 9: LOOP((a, a, a, a, a, a, a, a, a), (v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8]))
    case 10: LOOP((a, a, a, a, a, a, a, a, a, a), (v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9]))
    case 11:
        LOOP((a, a, a, a, a, a, a, a, a, a, a), (v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10]))
    case 12:
        LOOP((a, a, a, a, a, a, a, a, a, a, a, a),
             (v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11]))
    case 13:
        LOOP((a, a, a, a, a, a, a, a, a, a, a, a, a),
             (v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], v[12]))
    case 14:
        LOOP((a, a, a, a, a, a, a, a, a, a, a, a, a, a),
             (v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], v[12], v[13]))
    case 15:
        LOOP((a, a, a, a, a, a, a, a, a, a, a, a, a, a, a),
             (v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], v[12], v[13], v[14]))
    case 16:
        LOOP((a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a),
             (v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], v[12], v[13], v[14], v[15]))
    default: return INT32_MIN;
    }
    return code;
}

/* Time `calls` calls; stops at the first non-zero return code and returns it. The fence puts streaming stores that are
 * still on their way inside the measured time. */
int32_t tuner_batch(void *function, const a *values, int32_t count, int64_t calls, int64_t *elapsed_nanoseconds) {
    int64_t start = now();
    int32_t code = repeat(function, values, count, calls);
    atomic_thread_fence(memory_order_seq_cst);
    *elapsed_nanoseconds = now() - start;
    return code;
}

/* Call in growing batches until `nanoseconds` have passed; gives the number of calls and the time of the last batch. */
int32_t tuner_warm(void *function, const a *values, int32_t count, int64_t nanoseconds, int64_t *last_calls,
                   int64_t *last_nanoseconds) {
    int64_t end = now() + nanoseconds, calls = 1;
    for (;;) {
        int32_t code = tuner_batch(function, values, count, calls, last_nanoseconds);
        *last_calls = calls;
        if (code != 0 || now() >= end) return code;
        if (*last_nanoseconds < 1000000) calls *= 2;
    }
}

/* Rounding, exception masks and flush-to-zero, without the sticky exception flags. */
uint64_t tuner_float_mode(void) {
#if defined(__x86_64__)
    return __builtin_ia32_stmxcsr() & 0xFFC0u;
#else
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return control;
#endif
}

void tuner_set_float_mode(uint64_t mode) {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr((uint32_t)mode);
#else
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
#endif
}
