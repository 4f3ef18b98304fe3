// A service with ptd inside: HTTP on this machine alone, a thread a request, a session a request.
//
//   embed_service [PORT]          (0, the default: any; it is printed)
//   curl -d '{"prompt": [1, 2, 3], "max_new_tokens": 40, "drafter": "suffix"}' -H 'Expect:'
//       http://127.0.0.1:PORT/generate   (one line)
//
// Ends with the requests under way answered, on SIGINT and SIGTERM.
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include "common/json.h"
#include "http.h"
#include "ptd/lookahead_drafter.h"
#include "ptd/prompt_lookup_drafter.h"
#include "ptd/ptd_drafter.h"
#include "ptd/session.h"
#include "ptd/suffix_drafter.h"
#include "toy_model.h"

namespace {

using embed_service::BadRequest;
using embed_service::ToyModel;
using examples::Json;

constexpr int kMaxSeqLen = 4096;
constexpr int kMostConnections = 16;  // at once; further ones are told to come back

std::shared_ptr<ptd::Drafter> make_drafter(const std::string& name) {
  if (name == "none") return std::make_shared<ptd::AutoregressiveDrafter>();
  if (name == "ptd") return std::make_shared<ptd::PTDDrafter>(ptd::PTDOptions{});
  if (name == "suffix") return std::make_shared<ptd::SuffixDrafter>(ptd::SuffixOptions{});
  if (name == "lookahead") {
    return std::make_shared<ptd::LookaheadDrafter>(ptd::LookaheadOptions{});
  }
  if (name == "prompt-lookup") {
    return std::make_shared<ptd::PromptLookupDrafter>(ptd::PromptLookupOptions{});
  }
  throw BadRequest(400, "drafter='" + name.substr(0, 40) +
                            "' is not one of none, ptd, suffix, lookahead, prompt-lookup");
}

// The loop of a request: plan, the service's own forward, commit.
std::string generate(const Json& request) {
  for (const auto& [field, value] : request.members) {
    if (field != "prompt" && field != "max_new_tokens" && field != "drafter") {
      throw BadRequest(
          400, "'" + field.substr(0, 40) + "' is not one of prompt, max_new_tokens, drafter");
    }
  }
  const Json* prompt_json = request.find("prompt");
  if (prompt_json == nullptr || prompt_json->items.empty()) {
    throw BadRequest(400, "prompt is missing: an array of at least one token id");
  }
  std::vector<std::int32_t> prompt;
  for (const Json& id : prompt_json->items) {
    prompt.push_back(
        static_cast<std::int32_t>(id.integer("a token id of prompt", 0, ToyModel::kVocab - 1)));
  }
  ptd::SessionParams params;
  if (const Json* most = request.find("max_new_tokens")) {
    params.max_new_tokens = static_cast<int>(most->integer("max_new_tokens", 1, kMaxSeqLen));
  }
  const Json* name = request.find("drafter");
  const auto drafter = make_drafter(name != nullptr ? name->text : "ptd");
  ptd::SessionLimits limits;
  limits.max_seq_len = kMaxSeqLen;
  limits.vocab_size = ToyModel::kVocab;
  limits.max_nodes = 1 + drafter->needs().max_nodes;

  ptd::Session session(prompt, drafter, params, limits);
  ToyModel model(limits.max_seq_len, limits.max_nodes, limits.max_path);
  model.prefill(prompt);
  while (!session.finished()) {
    const int bucket = session.plan(model.block(), model.block_size());
    session.commit(model.forward(bucket));
  }

  const ptd::SessionStats& stats = session.stats();
  const double per_step = static_cast<double>(stats.tokens) / static_cast<double>(stats.steps);
  std::printf("%lld tokens in %lld steps: %.2f a step\n", static_cast<long long>(stats.tokens),
              static_cast<long long>(stats.steps), per_step);
  std::string json = "{\"tokens\": [";
  for (const std::int32_t id : session.output_tokens()) json += std::to_string(id) + ", ";
  json.replace(json.size() - 2, 2, "], \"steps\": " + std::to_string(stats.steps));
  return json + ", \"tokens_per_step\": " + std::to_string(per_step) + "}\n";
}

// Whatever goes wrong with a request is its client's answer.
void answer(int socket) {
  int status = 200;
  std::string json;
  try {
    const embed_service::Request request = embed_service::read_request(socket);
    if (request.method.empty()) return;
    if (request.path == "/health" && request.method == "GET") {
      json = "{\"status\": \"ok\"}\n";
    } else if (request.path != "/generate") {
      throw BadRequest(404, "the paths are /generate and /health");
    } else if (request.method != "POST") {
      throw BadRequest(405, "/generate takes POST");
    } else {
      json = generate(examples::parse_json(request.body));
    }
  } catch (const BadRequest& error) {
    status = error.status;
    json = embed_service::error_json(error.what());
  } catch (const std::bad_alloc&) {
    status = 503;
    json = embed_service::error_json("no memory is left for this request");
  } catch (const std::exception& error) {  // of the JSON, of a field, of the session's checks
    status = 400;
    json = embed_service::error_json(error.what());
  }
  if (embed_service::write_answer(socket, status, json)) embed_service::drain(socket);
}

// Threads that serve a connection each, counted so that the end can wait for them.
class Connections {
 public:
  ~Connections() {
    std::unique_lock<std::mutex> lock(mutex_);
    none_left_.wait(lock, [this] { return count_ == 0; });
  }
  void serve(int socket) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (count_ == kMostConnections) {
        refuse(socket);
        return;
      }
      ++count_;
    }
    try {
      std::thread([this, socket] {
        answer(socket);
        ::close(socket);
        leave();
      }).detach();
    } catch (const std::system_error&) {  // no thread is left: as with too many requests
      refuse(socket);
      leave();
    }
  }

 private:
  static void refuse(int socket) {
    embed_service::write_answer(socket, 503, embed_service::error_json("too many requests"));
    ::close(socket);
  }
  void leave() {
    const std::lock_guard<std::mutex> lock(mutex_);
    --count_;
    none_left_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable none_left_;
  int count_ = 0;
};

int stop_pipe[2];  // a signal writes, the loop reads

void on_signal(int) {
  const char byte = 0;
  (void)!::write(stop_pipe[1], &byte, 1);
}

int listen_on(int port) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);  // nobody else's business
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  socklen_t size = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener, any, size) != 0 || ::listen(listener, 64) != 0 ||
      ::getsockname(listener, any, &size) != 0) {
    throw std::runtime_error("port " + std::to_string(port) + ": " + std::strerror(errno));
  }
  std::printf("listening on 127.0.0.1:%d\n", ntohs(address.sin_port));
  return listener;
}

void serve(int port) {
  if (::pipe(stop_pipe) != 0) throw std::runtime_error("no pipe");
  const int listener = listen_on(port);
  struct sigaction action{};
  action.sa_handler = on_signal;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);

  Connections connections;
  pollfd waits[2] = {{listener, POLLIN, 0}, {stop_pipe[0], POLLIN, 0}};
  while (true) {
    if (::poll(waits, 2, -1) < 0) continue;  // a signal: the pipe says the rest
    if (waits[1].revents != 0) break;
    const int socket = ::accept(listener, nullptr, nullptr);
    if (socket >= 0) connections.serve(socket);
  }
  ::close(listener);
  std::printf("stopping\n");
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    int port = 0;
    if (argc > 1) {
      const char* end = argv[1] + std::strlen(argv[1]);
      const auto [stop, error] = std::from_chars(static_cast<const char*>(argv[1]), end, port);
      if (error != std::errc() || stop != end || port < 0 || port > 65535 || argc > 2) {
        throw std::runtime_error("usage: embed_service [PORT], a port of 0 to 65535");
      }
    }
    serve(port);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "embed_service: %s\n", error.what());
    return 2;
  }
}
