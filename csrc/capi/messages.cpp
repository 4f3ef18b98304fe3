#include "messages.h"

namespace ptd::capi {
namespace {

constexpr std::size_t kQuotedBytes = 40;

bool printable(char c) { return c >= ' ' && c <= '~'; }

}  // namespace

std::string quoted(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "'";
  for (const char c : text.substr(0, kQuotedBytes)) {
    if (printable(c)) {
      out.push_back(c);
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    out += "\\x";
    out.push_back(kHex[byte >> 4]);
    out.push_back(kHex[byte & 15]);
  }
  return out + (text.size() > kQuotedBytes ? "...'" : "'");
}

void Message::set(const char* text) noexcept {
  std::size_t n = 0;
  for (; text[n] != '\0' && n + 1 < bytes_.size(); ++n)
    bytes_[n] = printable(text[n]) ? text[n] : '?';
  bytes_[n] = '\0';
}

}  // namespace ptd::capi
