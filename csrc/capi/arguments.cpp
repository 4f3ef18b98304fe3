#include "arguments.h"

#include <charconv>

namespace ptd::capi {
namespace {

std::string element(const char* name, std::size_t index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

std::string to_text(double number) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, number).ptr};
}

std::string range(long long low, long long high) {
  return "an integer from " + std::to_string(low) + " to " + std::to_string(high);
}

}  // namespace

void check_integer(const char* name, long long value, long long low, long long high) {
  if (value < low || value > high) {
    throw InvalidArgument::for_field(name, value, range(low, high));
  }
}

void check_number(const char* name, double value, double low, double high) {
  if (!(value >= low && value <= high)) {
    throw InvalidArgument(std::string(name) + "=" + to_text(value) +
                          " is not valid: allowed is a number from " + to_text(low) + " to " +
                          to_text(high) + ".");
  }
}

void check_reserved(const char* name, std::int32_t value) { check_integer(name, value, 0, 0); }

std::vector<std::int32_t> checked_list(const char* name, const std::int32_t* values,
                                       std::size_t count, std::size_t most, std::int32_t low,
                                       std::int32_t high) {
  if (count == 0) return {};
  check_pointer(name, values);
  if (count > most) {
    throw InvalidArgument::for_field(std::string("n_") + name, count,
                                     "at most " + std::to_string(most));
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (values[i] < low || values[i] > high) {
      throw InvalidArgument::for_field(element(name, i), values[i], range(low, high));
    }
  }
  return {values, values + count};
}

void check_ids(const char* name, const std::int32_t* ids, std::size_t count,
               std::int32_t vocab_size, bool may_be_missing) {
  for (std::size_t i = 0; i < count; ++i) {
    if ((ids[i] >= 0 && ids[i] < vocab_size) || (may_be_missing && ids[i] == kNoToken)) continue;
    throw InvalidArgument::for_field(element(name, i), ids[i],
                                     "a token id from 0 to " + std::to_string(vocab_size - 1) +
                                         (may_be_missing ? ", or -1 for none" : ""));
  }
}

}  // namespace ptd::capi
