// Checks of what comes through the C interface. Each throws InvalidArgument that names the
// argument and what is allowed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ptd/types.h"

namespace ptd::capi {

inline constexpr std::size_t kMostIds = 65536;  // of a list of stop or EOS ids

template <class T>
void check_pointer(const char* name, const T* pointer) {
  if (pointer == nullptr) {
    throw InvalidArgument(std::string(name) + "=null is not valid: allowed is a pointer to " +
                          "memory of the size that is given.");
  }
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignof(T) != 0) {
    throw InvalidArgument(std::string(name) + " is not valid: allowed is memory aligned to " +
                          std::to_string(alignof(T)) + " bytes.");
  }
}

// A structure of the caller's; `type` is its name in ptd.h.
template <class T>
void check_struct(const char* name, const T* pointer, const char* type) {
  check_pointer(name, pointer);
  if (pointer->struct_size != sizeof(T)) {
    throw InvalidArgument(
        std::string(name) + "->struct_size=" + std::to_string(pointer->struct_size) +
        " is not valid: allowed is " + std::to_string(sizeof(T)) + ", sizeof(" + type + ").");
  }
}

// A text of `size` bytes, null allowed where there are none.
inline std::string_view checked_text(const char* name, const char* text, std::size_t size) {
  if (size == 0) return {};
  check_pointer(name, text);
  return {text, size};
}

void check_integer(const char* name, long long value, long long low, long long high);
void check_number(const char* name, double value, double low, double high);  // NaN is refused
void check_reserved(const char* name, std::int32_t value);

// A list that the caller may leave out (null, 0), each from `low` to `high`.
std::vector<std::int32_t> checked_list(const char* name, const std::int32_t* values,
                                       std::size_t count, std::size_t most, std::int32_t low,
                                       std::int32_t high);

// Token ids, kNoToken among them if `may_be_missing`.
void check_ids(const char* name, const std::int32_t* ids, std::size_t count,
               std::int32_t vocab_size, bool may_be_missing);

}  // namespace ptd::capi
