// One request and one answer over a connection: the little of HTTP/1.1 that the service needs.
// Everything that comes in is untrusted and bounded, in bytes and in time.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace embed_service {

inline constexpr std::size_t kMostHeaderBytes = 8192;
inline constexpr std::size_t kMostBodyBytes = 65536;
inline constexpr int kSeconds = 5;  // that a client may take to send, and to receive

struct Request {
  std::string method;
  std::string path;
  std::string body;
};

// What the client did wrong: the status that it is answered with.
struct BadRequest : std::runtime_error {
  BadRequest(int the_status, const std::string& what)
      : std::runtime_error(what), status(the_status) {}
  int status;
};

// Reads a request. Throws BadRequest where it is none, too large or too slow; a connection that was
// closed before the first byte is an empty method.
Request read_request(int socket);

// Writes an answer and asks for no other request; false where the client is gone.
bool write_answer(int socket, int status, const std::string& json);

// Ends the answer and reads what the client still sends, within bounds. A connection that is closed
// with bytes unread is reset, and a client that is still sending would never see its answer.
void drain(int socket);

// {"error": text}
std::string error_json(const std::string& text);

}  // namespace embed_service
