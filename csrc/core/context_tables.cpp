#include "ptd/context_tables.h"

#include <limits>

namespace ptd {

void TextTable::add(std::uint64_t key, TokenId token) {
  bool fresh = false;
  Entry& entry = table_.touch(key, fresh);
  if (fresh) {
    entry.tokens.fill(kNoToken);
    entry.counts.fill(0);
  }
  std::size_t at = 0;
  while (at + 1 < kSlots && entry.tokens[at] != token && entry.tokens[at] != kNoToken) ++at;
  const bool known = entry.tokens[at] == token;
  std::uint16_t count = known ? entry.counts[at] : std::uint16_t{0};
  if (count == std::numeric_limits<std::uint16_t>::max()) {
    for (auto& c : entry.counts) c = static_cast<std::uint16_t>((c + 1) / 2);
    count = entry.counts[at];
  }
  for (; at > 0; --at) {
    entry.tokens[at] = entry.tokens[at - 1];
    entry.counts[at] = entry.counts[at - 1];
  }
  entry.tokens[0] = token;
  entry.counts[0] = static_cast<std::uint16_t>(count + 1);
}

}  // namespace ptd
