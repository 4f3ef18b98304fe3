// Runs CUDA kernels on one CPU thread: a fiber for every CUDA thread of a block, one block after
// the other.
//
// A fiber runs until it has to wait for others (a barrier, or anything a warp does together). Who
// runs next is the order's choice, and the orders are extreme on purpose: `kForward` lets the
// lowest thread run as far ahead as barriers allow, `kReverse` the highest, `kRandom` picks at
// random. The same for blocks, and for an asynchronous copy, which lands as late as its wait
// allows, at once, or either. A kernel that is right under all of them has its barriers.
//
// Ends the program, with the reason: a barrier that some threads do not reach, lanes of a warp that
// do different things together, a copy nobody waits for, more shared memory than was allowed.
// Shared memory begins as NaN and is allocated to the byte, for AddressSanitizer to watch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "cuda_runtime_api.h"

namespace cuda_shim {

enum class Order { kForward, kReverse, kRandom };

void set_order(Order order, std::uint64_t seed = 1);

cudaError_t allow_shared(const void* kernel, int bytes);
cudaError_t launch(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes,
                   const std::function<void()>& body);

// Of the thread that runs.
const dim3& current_thread();
const dim3& current_block();
unsigned char* shared_memory();
int lane();

void sync_block();
void sync_warp();

// What a lane shows to the others of its warp.
struct Slot {
  unsigned kind;  // of the operation; all lanes must mean the same one
  unsigned words[6];
};
enum Kind : unsigned { kSync = 1, kShuffle, kBallot, kMma, kLoadMatrix };

// Shows `mine`, waits for the warp, returns the slots of its 32 lanes; they stay until the lane's
// next operation but one.
const Slot* exchange(const Slot& mine);

template <typename T>
T read_lane(unsigned mask, T value, int from) {
  static_assert(sizeof(T) <= 8);
  Slot mine{kShuffle + mask * 0u, {}};
  std::memcpy(mine.words, &value, sizeof(T));
  const Slot* slots = exchange(mine);
  std::memcpy(&value, slots[from].words, sizeof(T));
  return value;
}
unsigned ballot(unsigned mask, bool vote);

// 16 bytes, zeros where `source` is null.
void copy_async(void* to, const void* source);
void commit_copies();
void wait_copies(int groups_left);

[[noreturn]] void fail(const char* reason);

}  // namespace cuda_shim
