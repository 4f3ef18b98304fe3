// Text of callers inside messages, and the buffers that messages end in: no memory is asked for
// when an error is reported.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace ptd::capi {

// The first 40 bytes in single quotes; what is not printable ASCII as \xNN.
std::string quoted(std::string_view text);

// A message of at most 511 bytes of printable ASCII, null-terminated.
class Message {
 public:
  void set(const char* text) noexcept;
  const char* text() const noexcept { return bytes_.data(); }

 private:
  std::array<char, 512> bytes_{};
};

}  // namespace ptd::capi
