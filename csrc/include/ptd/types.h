// Basic types of the core. Framework-free: C++17 standard library only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace ptd {

using TokenId = std::int32_t;
using NodeId = std::int32_t;  // index into a tree's arena, or row of a step's tree

inline constexpr NodeId kNoNode = -1;
inline constexpr TokenId kNoToken = -1;  // "no prediction": the row was absent or not finite

// Largest tree of one step, root included: four 64-bit words of ancestor mask a row.
inline constexpr int kMaxTreeNodes = 256;
inline constexpr int kMaxMaskWords = kMaxTreeNodes / 64;

// A view of contiguous values that somebody else owns.
template <class T>
class Span {
 public:
  constexpr Span() = default;
  constexpr Span(T* data, std::size_t size) : data_(data), size_(size) {}
  template <class U>
  Span(const std::vector<U>& values) : data_(values.data()), size_(values.size()) {}

  constexpr T* data() const { return data_; }
  constexpr std::size_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr T& operator[](std::size_t i) const { return data_[i]; }
  constexpr T* begin() const { return data_; }
  constexpr T* end() const { return data_ + size_; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// A parameter is out of range; the message names field, value and what is allowed.
class InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
  template <class Integer>
  static InvalidArgument for_field(const std::string& field, Integer value,
                                   const std::string& allowed) {
    return InvalidArgument(field + "=" + std::to_string(value) + " is not valid: allowed is " +
                           allowed + ".");
  }
};

// A row on the accepted path had no finite maximum logit (NaN or infinity in the model's output).
class NonFiniteLogits : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace ptd
