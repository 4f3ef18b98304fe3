// Runs a fuzz target where there is no libFuzzer: replays a corpus, then mutates it. Any C++17
// compiler will do, the choice of inputs depends on the seed alone, and the flags are libFuzzer's:
//   fuzz_pool -runs=20000 -seed=1 -max_len=512 corpus/pool [more files or folders]
// There is no feedback from coverage: the corpus, which libFuzzer has found, stands in for it.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __sanitizer_set_death_callback(void (*callback)());
#endif

namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes current;

// Called when the program dies of what it found.
void keep_current() {
  const char* const name = "crash-input";
  if (std::FILE* file = std::fopen(name, "wb")) {
    std::fwrite(current.data(), 1, current.size(), file);
    std::fclose(file);
    std::fprintf(stderr, "driver: the input is in %s (%zu bytes)\n", name, current.size());
  }
}

void on_abort(int) {
  keep_current();
  std::_Exit(1);
}

void run(const Bytes& input) {
  current = input;
  // A copy of exactly that size: a sanitizer sees a read of one byte too many.
  const Bytes exact(input.begin(), input.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

void read_corpus(const std::filesystem::path& path, std::vector<Bytes>& corpus) {
  if (std::filesystem::is_directory(path)) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());  // the order of a folder is the file system's own
    for (const auto& file : files) read_corpus(file, corpus);
    return;
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "driver: cannot read %s\n", path.c_str());
    std::exit(2);
  }
  corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  Bytes mutate(const std::vector<Bytes>& corpus, std::size_t max_len) {
    Bytes bytes = corpus.empty() ? Bytes{} : corpus[below(corpus.size())];
    if (bytes.size() > max_len) bytes.resize(max_len);
    for (std::size_t n = 1 + below(8); n > 0; --n) change(bytes, corpus, max_len);
    return bytes;
  }

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }

  void change(Bytes& bytes, const std::vector<Bytes>& corpus, std::size_t max_len) {
    switch (below(bytes.empty() ? 1 : 6)) {
      case 0: {  // more of anything
        const std::size_t room = max_len - bytes.size();
        for (std::size_t n = room == 0 ? 0 : 1 + below(std::min<std::size_t>(room, 64)); n > 0;
             --n) {
          bytes.push_back(static_cast<std::uint8_t>(below(256)));
        }
        break;
      }
      case 1:
        bytes[below(bytes.size())] = static_cast<std::uint8_t>(below(256));
        break;
      case 2:
        bytes[below(bytes.size())] ^= static_cast<std::uint8_t>(1u << below(8));
        break;
      case 3: {  // a piece goes
        const std::size_t from = below(bytes.size());
        const std::size_t to = std::min(bytes.size(), from + 1 + below(16));
        bytes.erase(bytes.begin() + static_cast<long>(from), bytes.begin() + static_cast<long>(to));
        break;
      }
      case 4: {  // a piece of another input in its place
        if (corpus.empty()) break;
        const Bytes& other = corpus[below(corpus.size())];
        if (other.empty()) break;
        const std::size_t from = below(other.size());
        const std::size_t to = below(bytes.size());
        const std::size_t n = std::min(other.size() - from, bytes.size() - to);
        std::copy_n(other.begin() + static_cast<long>(from), n,
                    bytes.begin() + static_cast<long>(to));
        break;
      }
      default:  // cut
        bytes.resize(below(bytes.size()));
    }
  }

  std::mt19937_64 random_;
};

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t runs = 0;
  std::uint64_t seed = 1;
  std::size_t max_len = 4096;
  std::vector<Bytes> corpus;
  for (int i = 1; i < argc; ++i) {
    const char* const argument = argv[i];
    const char* const equals = std::strchr(argument, '=');
    if (argument[0] != '-') {
      read_corpus(argument, corpus);
    } else if (std::strncmp(argument, "-runs=", 6) == 0) {
      runs = std::strtoull(equals + 1, nullptr, 10);
    } else if (std::strncmp(argument, "-seed=", 6) == 0) {
      seed = std::strtoull(equals + 1, nullptr, 10);
    } else if (std::strncmp(argument, "-max_len=", 9) == 0) {
      max_len = std::max<std::size_t>(1, std::strtoull(equals + 1, nullptr, 10));
    } else {
      std::fprintf(stderr, "driver: unknown flag %s\n", argument);
      return 2;
    }
  }
  std::signal(SIGABRT, on_abort);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_set_death_callback(keep_current);
#endif
  for (const Bytes& input : corpus) run(input);
  Mutator mutator(seed);
  for (std::uint64_t i = 0; i < runs; ++i) run(mutator.mutate(corpus, max_len));
  std::printf("driver: %zu inputs of the corpus, %llu mutated\n", corpus.size(),
              static_cast<unsigned long long>(runs));
}
