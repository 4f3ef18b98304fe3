#include "fibers.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <new>
#include <vector>

// A switch leaves one stack for another, which AddressSanitizer would take for frames given up.
#define CUDA_SHIM_SWITCH __attribute__((noinline, no_sanitize("address")))

namespace cuda_shim {

namespace {

constexpr unsigned kMaxThreads = 1024;
constexpr std::size_t kStackBytes = 256 * 1024;
constexpr std::size_t kSharedDefault = 48 * 1024, kSharedLimit = 227 * 1024;

struct Copy {
  void* to;
  const void* source;
  int group;
};

struct Fiber {
  void* context[5];
  dim3 thread;
  bool started = false;
  unsigned operations = 0;  // of its warp, so far
  int group = 0;            // of copies, that is being filled
  std::vector<Copy> copies;
};

// Counts those who wait; the last one lets all go.
struct Barrier {
  unsigned arrived = 0;
  std::vector<unsigned> waiting;
};

struct Warp {
  Barrier barrier;
  Slot slots[2][32];
};

struct Block {
  dim3 index;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Barrier barrier;
  std::vector<std::uint64_t> runnable;  // bits
  unsigned running = 0;
  unsigned finished = 0;
  unsigned char* shared = nullptr;
  const std::function<void()>* body = nullptr;
};

Order g_order = Order::kForward;
std::uint64_t g_random = 1;
Block* g_block = nullptr;
void* g_launcher[5];
std::map<const void*, int> g_allowed;

unsigned random_below(unsigned n) {
  g_random = g_random * 6364136223846793005u + 1442695040888963407u;
  return static_cast<unsigned>((g_random >> 33) % n);
}

void set_runnable(unsigned fiber) {
  g_block->runnable[fiber / 64] |= std::uint64_t{1} << (fiber % 64);
}

// The next fiber to run, or -1.
int next_fiber() {
  const std::vector<std::uint64_t>& words = g_block->runnable;
  const int n = static_cast<int>(words.size());
  if (g_order == Order::kReverse) {
    for (int w = n - 1; w >= 0; --w) {
      if (words[w] != 0) return 64 * w + 63 - __builtin_clzll(words[w]);
    }
    return -1;
  }
  int first = 0;
  if (g_order == Order::kRandom) {
    const unsigned start = random_below(64 * static_cast<unsigned>(n));
    first = static_cast<int>(start / 64);
    const std::uint64_t rest = words[first] >> (start % 64) << (start % 64);
    if (rest != 0) return 64 * first + __builtin_ctzll(rest);
  }
  for (int k = g_order == Order::kRandom ? 1 : 0; k <= n; ++k) {
    const int w = (first + k) % n;
    if (words[w] != 0) return 64 * w + __builtin_ctzll(words[w]);
  }
  return -1;
}

CUDA_SHIM_SWITCH void jump(void** to) { __builtin_longjmp(to, 1); }

void begin_fiber();

CUDA_SHIM_SWITCH void start(Fiber& fiber, unsigned index) {
  static unsigned char* stacks = nullptr;
  if (stacks == nullptr) {
    void* memory = mmap(nullptr, kStackBytes * kMaxThreads, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail("no memory for stacks");
    stacks = static_cast<unsigned char*>(memory);
  }
  fiber.started = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = stacks + kStackBytes * index;
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, begin_fiber, 0);
  setcontext(&context);
}

CUDA_SHIM_SWITCH void go_to(unsigned index) {
  Fiber& fiber = g_block->fibers[index];
  g_block->running = index;
  if (fiber.started) jump(fiber.context);
  start(fiber, index);
}

// Leaves the running fiber, which somebody else has to make runnable.
CUDA_SHIM_SWITCH void suspend() {
  Block& block = *g_block;
  block.runnable[block.running / 64] &= ~(std::uint64_t{1} << (block.running % 64));
  const int next = next_fiber();
  if (next < 0) fail("threads wait for others that never come (a divergent barrier)");
  if (__builtin_setjmp(block.fibers[block.running].context) == 0) {
    go_to(static_cast<unsigned>(next));
  }
}

// The first and only frame of a fiber that does not return.
CUDA_SHIM_SWITCH void begin_fiber() {
  (*g_block->body)();
  Block& block = *g_block;
  if (!block.fibers[block.running].copies.empty()) fail("a thread ends before its copies");
  block.runnable[block.running / 64] &= ~(std::uint64_t{1} << (block.running % 64));
  ++block.finished;
  const int next = next_fiber();
  if (next >= 0) go_to(static_cast<unsigned>(next));
  if (block.finished < block.fibers.size()) fail("threads wait for others that have ended");
  jump(g_launcher);
  __builtin_unreachable();
}

CUDA_SHIM_SWITCH void run_fibers() {
  if (__builtin_setjmp(g_launcher) == 0) go_to(static_cast<unsigned>(next_fiber()));
}

void arrive(Barrier& barrier, unsigned expected) {
  if (++barrier.arrived < expected) {
    barrier.waiting.push_back(g_block->running);
    suspend();
    return;
  }
  barrier.arrived = 0;
  for (const unsigned fiber : barrier.waiting) set_runnable(fiber);
  barrier.waiting.clear();
}

void land(const Copy& copy) {
  if (copy.source == nullptr) {
    std::memset(copy.to, 0, 16);
  } else {
    std::memcpy(copy.to, copy.source, 16);
  }
}

Fiber& running_fiber() { return g_block->fibers[g_block->running]; }

void run_block(Block& block, dim3 index, std::size_t shared_bytes) {
  const auto threads = static_cast<unsigned>(block.fibers.size());
  block.index = index;
  block.finished = 0;
  for (Fiber& fiber : block.fibers) {
    fiber.started = false;
    fiber.operations = 0;
    fiber.group = 0;
  }
  const std::align_val_t alignment{128};
  block.shared = static_cast<unsigned char*>(::operator new(shared_bytes, alignment));
  std::memset(block.shared, 0xff, shared_bytes);  // NaN in every format
  for (unsigned i = 0; i < threads; ++i) set_runnable(i);
  run_fibers();
  ::operator delete(block.shared, alignment);
}

}  // namespace

void fail(const char* reason) {
  std::fprintf(stderr, "cuda_shim: %s\n", reason);
  std::abort();
}

void set_order(Order order, std::uint64_t seed) {
  g_order = order;
  g_random = seed * 2654435761u + 1;
}

cudaError_t allow_shared(const void* kernel, int bytes) {
  if (bytes < 0 || static_cast<std::size_t>(bytes) > kSharedLimit) return cudaErrorInvalidValue;
  g_allowed[kernel] = bytes;
  return cudaSuccess;
}

cudaError_t launch(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes,
                   const std::function<void()>& body) {
  const unsigned threads = block.x * block.y * block.z;
  const auto allowed = g_allowed.find(kernel);
  const std::size_t limit =
      allowed == g_allowed.end() ? kSharedDefault : static_cast<std::size_t>(allowed->second);
  if (threads == 0 || threads > kMaxThreads || threads % 32 != 0 || grid.x == 0 || grid.y == 0 ||
      grid.z == 0 || grid.y > 65535 || grid.z > 65535 || shared_bytes > limit) {
    return cudaErrorInvalidConfiguration;
  }
  Block state;
  state.fibers.resize(threads);
  state.warps.resize(threads / 32);
  state.runnable.assign((threads + 63) / 64, 0);
  state.body = &body;
  for (unsigned i = 0; i < threads; ++i) {
    state.fibers[i].thread = dim3(i % block.x, i / block.x % block.y, i / block.x / block.y);
  }
  const unsigned blocks = grid.x * grid.y * grid.z;
  std::vector<unsigned> order(blocks);
  for (unsigned i = 0; i < blocks; ++i) {
    order[i] = g_order == Order::kReverse ? blocks - 1 - i : i;
    if (g_order == Order::kRandom) {
      const unsigned other = random_below(i + 1);
      order[i] = order[other];
      order[other] = i;
    }
  }
  g_block = &state;
  for (const unsigned i : order) {
    run_block(state, dim3(i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y), shared_bytes);
  }
  g_block = nullptr;
  return cudaSuccess;
}

const dim3& current_thread() { return running_fiber().thread; }
const dim3& current_block() { return g_block->index; }
unsigned char* shared_memory() { return g_block->shared; }
int lane() { return static_cast<int>(g_block->running % 32); }

void sync_block() { arrive(g_block->barrier, static_cast<unsigned>(g_block->fibers.size())); }

void sync_warp() { exchange({kSync, {}}); }

const Slot* exchange(const Slot& mine) {
  Warp& warp = g_block->warps[g_block->running / 32];
  Slot* slots = warp.slots[running_fiber().operations++ % 2];
  slots[lane()] = mine;
  arrive(warp.barrier, 32);
  for (int i = 0; i < 32; ++i) {
    if (slots[i].kind != mine.kind) fail("lanes of a warp do different things together");
  }
  return slots;
}

unsigned ballot(unsigned mask, bool vote) {
  const Slot* slots = exchange({kBallot, {vote ? 1u : 0u}});
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i) bits |= slots[i].words[0] << i;
  return bits & mask;
}

void copy_async(void* to, const void* source) {
  if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0 ||
      reinterpret_cast<std::uintptr_t>(source) % 16 != 0) {
    fail("an asynchronous copy is not aligned");
  }
  Fiber& fiber = running_fiber();
  const Copy copy{to, source, fiber.group};
  std::memset(to, 0xff, 16);
  const bool at_once =
      g_order == Order::kReverse || (g_order == Order::kRandom && random_below(2) == 0);
  if (at_once) land(copy);
  fiber.copies.push_back(at_once ? Copy{nullptr, nullptr, fiber.group} : copy);
}

void commit_copies() { ++running_fiber().group; }

void wait_copies(int groups_left) {
  Fiber& fiber = running_fiber();
  std::vector<Copy> later;
  for (const Copy& copy : fiber.copies) {
    if (copy.group >= fiber.group - groups_left) {
      later.push_back(copy);
    } else if (copy.to != nullptr) {
      land(copy);
    }
  }
  fiber.copies.swap(later);
}

}  // namespace cuda_shim
