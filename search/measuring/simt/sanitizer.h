// What the compiler's bounds, object-size and alignment checks call: our own ends of -fsanitize, so that an index out of
// a local array or a misaligned vector access ends the launch with a report instead of a message on a terminal.
//
// The structures are those of the compiler's interface (libubsan is not linked).
#pragma once
#include "runtime.h"

namespace simt {

struct SourceLocation {
  const char *file;
  uint32_t line, column;
};

struct TypeDescriptor {
  uint16_t kind, information;
  char name[1];
};

struct OutOfBounds {
  SourceLocation location;
  const TypeDescriptor *array, *index;
};

struct TypeMismatch {
  SourceLocation location;
  const TypeDescriptor *type;
  unsigned char log_alignment, check;
};

[[noreturn]] static void out_of_bounds(const OutOfBounds *found, uintptr_t index) {
  fail(kIndexOutOfBounds, (int)found->location.line, 0, "index %lld of an array %s", (long long)(int32_t)index,
       found->array->name);
}

[[noreturn]] static void type_mismatch(const TypeMismatch *found, uintptr_t address) {
  uintptr_t alignment = (uintptr_t)1 << found->log_alignment;
  if (address == 0)
    fail(kMemoryFault, (int)found->location.line, 0, "a null pointer to %s", found->type->name);
  if (address & (alignment - 1))
    fail(kMisaligned, (int)found->location.line, address, "an access to %s is not aligned to %d bytes",
         found->type->name, (int)alignment);
  fail(kIndexOutOfBounds, (int)found->location.line, address, "an access to %s reaches past its array",
       found->type->name);
}

}  // namespace simt

extern "C" {
#define SIMT_HIDDEN __attribute__((visibility("hidden"), used))
SIMT_HIDDEN void __ubsan_handle_out_of_bounds(simt::OutOfBounds *found, uintptr_t index) {
  simt::out_of_bounds(found, index);
}
SIMT_HIDDEN void __ubsan_handle_out_of_bounds_abort(simt::OutOfBounds *found, uintptr_t index) {
  simt::out_of_bounds(found, index);
}
SIMT_HIDDEN void __ubsan_handle_type_mismatch_v1(simt::TypeMismatch *found, uintptr_t address) {
  simt::type_mismatch(found, address);
}
SIMT_HIDDEN void __ubsan_handle_type_mismatch_v1_abort(simt::TypeMismatch *found, uintptr_t address) {
  simt::type_mismatch(found, address);
}
#undef SIMT_HIDDEN
}
