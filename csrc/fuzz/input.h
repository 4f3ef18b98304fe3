// What every fuzz target reads its bytes with, and how it says that something is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

// Must hold for every input; ends the program, so that the fuzzer keeps the input.
#define EXPECT(condition)                                                                 \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)

namespace ptd_fuzz {

// The bytes of one input as a list of choices. Behind the end every choice is the lowest one, so
// that a cut input is still a whole run.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  bool empty() const { return at_ == size_; }

  std::uint8_t byte() { return empty() ? 0 : data_[at_++]; }

  std::uint32_t word() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value = value << 8 | byte();
    return value;
  }

  // From low to high, both included.
  int between(int low, int high) {
    const auto width = static_cast<std::uint32_t>(high - low) + 1u;
    const std::uint32_t drawn = width <= 256 ? byte() : word();
    return low + static_cast<int>(width == 0 ? drawn : drawn % width);
  }

  bool one_in(int n) { return between(0, n - 1) == n - 1; }

  // A value that careless arithmetic would trip over, in one of four; else one of the range.
  int wild(int low, int high) {
    static constexpr int kEdges[] = {-1, -2147483647 - 1, 2147483647, 0, 1, 255, 256, 65536};
    if (!one_in(4)) return between(low, high);
    return kEdges[between(0, 7)];
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

}  // namespace ptd_fuzz
