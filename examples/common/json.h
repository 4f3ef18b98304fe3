// A small reader of JSON, for config.json and the headers of safetensors files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace examples {

struct Json {
  enum class Type { kNull, kBool, kNumber, kString, kArray, kObject };

  Type type = Type::kNull;
  bool boolean = false;
  double number = 0.0;
  std::string text;
  std::vector<Json> items;
  std::vector<std::pair<std::string, Json>> members;

  // The member of that name, null where there is none.
  const Json* find(std::string_view name) const;
  // This value as a whole number of that range; throws std::runtime_error naming `what`.
  std::int64_t integer(const std::string& what, std::int64_t low, std::int64_t high) const;
};

// Throws std::runtime_error, with the byte, for text that is not JSON or more than 32 levels deep.
// The text is untrusted.
Json parse_json(std::string_view text);

}  // namespace examples
