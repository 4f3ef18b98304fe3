// Reads one flat JSON object: keys with numbers, booleans and strings, nothing nested, no null.
// Source: RFC 8259, of which everything else is refused. The text is untrusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ptd::capi {

struct JsonValue {
  enum class Kind { kInteger, kNumber, kBool, kString };
  Kind kind = Kind::kBool;
  bool boolean = false;
  bool negative = false;        // of an integer
  std::uint64_t magnitude = 0;  // of an integer: its absolute value
  double number = 0.0;          // of numbers, integers too
  std::string text;             // of a string; else the value as written
};

struct JsonField {
  std::string key;
  JsonValue value;
};

inline constexpr std::size_t kMostJsonBytes = 65536;

// Throws InvalidArgument, which says at which byte, for anything but such an object, for a key that
// stands twice, numbers beyond double (integers beyond 64 bits) and more than kMostJsonBytes.
std::vector<JsonField> parse_flat_json(const char* text, std::size_t size);

}  // namespace ptd::capi
