// FlatIndex: 64-bit keys -> values >= 0, in one array (open addressing, linear probing). It grows
// with its content and keeps its memory when cleared, so a steady state allocates nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace ptd {

class FlatIndex {
 public:
  static constexpr std::int32_t kAbsent = -1;

  // Two 32-bit numbers as one key.
  static std::uint64_t pair(std::int32_t high, std::int32_t low) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(high)) << 32 |
           static_cast<std::uint32_t>(low);
  }

  std::size_t size() const { return size_; }
  std::size_t capacity() const { return slots_.size(); }

  // The value, or kAbsent.
  std::int32_t find(std::uint64_t key) const {
    return slots_.empty() ? kAbsent : slots_[slot_of(key)].value;
  }

  // Sets the key's value.
  void put(std::uint64_t key, std::int32_t value) { *claim(key) = value; }

  // The key's value if it has one; else sets it.
  std::int32_t put_if_absent(std::uint64_t key, std::int32_t value) {
    std::int32_t* const held = claim(key);
    if (*held == kAbsent) *held = value;
    return *held;
  }

  void erase(std::uint64_t key) {
    if (slots_.empty()) return;
    std::size_t hole = slot_of(key);
    if (slots_[hole].value == kAbsent) return;
    // Entries behind the hole move up where their own place is not beyond it: no tombstones.
    for (std::size_t at = (hole + 1) & mask_; slots_[at].value != kAbsent; at = (at + 1) & mask_) {
      const std::size_t home = hash(slots_[at].key) & mask_;
      if (((at - home) & mask_) < ((at - hole) & mask_)) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole].value = kAbsent;
    --size_;
  }

  void clear() {
    if (size_ > 0) std::fill(slots_.begin(), slots_.end(), Slot{});
    size_ = 0;
  }

 private:
  struct Slot {
    std::uint64_t key = 0;
    std::int32_t value = kAbsent;
  };

  static std::size_t hash(std::uint64_t key) {
    key = (key ^ (key >> 32)) * 0x9E3779B97F4A7C15ULL;
    return static_cast<std::size_t>(key ^ (key >> 29));
  }

  // Where the key is, or the free slot where it would go.
  std::size_t slot_of(std::uint64_t key) const {
    std::size_t at = hash(key) & mask_;
    while (slots_[at].value != kAbsent && slots_[at].key != key) at = (at + 1) & mask_;
    return at;
  }

  // The place of the key's value, which is kAbsent for a new key: the caller sets it.
  std::int32_t* claim(std::uint64_t key) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    Slot& slot = slots_[slot_of(key)];
    if (slot.value == kAbsent) {
      slot.key = key;
      ++size_;
    }
    return &slot.value;
  }

  void grow() {
    const std::vector<Slot> old = std::move(slots_);
    slots_.assign(std::max<std::size_t>(64, 2 * old.size()), Slot{});
    mask_ = slots_.size() - 1;
    for (const Slot& slot : old) {
      if (slot.value != kAbsent) slots_[slot_of(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
  std::size_t size_ = 0;
};

}  // namespace ptd
