#include "http.h"

#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <string_view>

namespace embed_service {
namespace {

using Clock = std::chrono::steady_clock;

void set_timeouts(int socket) {
  const timeval limit{kSeconds, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

// Appends what has arrived; false at the end of the stream. A client that drips bytes is stopped by
// the deadline, which each of them cannot move.
bool receive(int socket, std::string& text, Clock::time_point deadline) {
  char buffer[4096];
  const ssize_t n = ::recv(socket, buffer, sizeof buffer, 0);
  if (n < 0 || Clock::now() > deadline) throw BadRequest(408, "the request took too long");
  text.append(buffer, static_cast<std::size_t>(n));
  return n > 0;
}

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

// The length that the header announces; 0 where it names none.
std::size_t body_length(std::string_view header) {
  std::size_t length = 0;
  bool found = false;
  while (!header.empty()) {
    const auto end = std::min(header.find("\r\n"), header.size());
    std::string_view line = header.substr(0, end);
    header.remove_prefix(std::min(end + 2, header.size()));
    const auto colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const std::string_view name = line.substr(0, colon);
    if (same_name(name, "transfer-encoding")) {
      throw BadRequest(501, "Transfer-Encoding is not supported: send a Content-Length");
    }
    if (!same_name(name, "content-length")) continue;
    if (found) throw BadRequest(400, "Content-Length stands twice");
    found = true;
    line.remove_prefix(colon + 1);
    while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
    while (!line.empty() && (line.back() == ' ' || line.back() == '\t')) line.remove_suffix(1);
    const auto [stop, error] = std::from_chars(line.data(), line.data() + line.size(), length);
    if (error != std::errc() || stop != line.data() + line.size()) {
      throw BadRequest(400, "Content-Length is not a number");
    }
    if (length > kMostBodyBytes) {
      throw BadRequest(413, "the body is longer than " + std::to_string(kMostBodyBytes) + " bytes");
    }
  }
  return length;
}

const char* reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    default:
      return "Bad Request";
  }
}

}  // namespace

Request read_request(int socket) {
  set_timeouts(socket);
  const auto deadline = Clock::now() + std::chrono::seconds(kSeconds);
  std::string text;
  std::size_t end;
  while ((end = text.find("\r\n\r\n")) == std::string::npos) {
    if (text.size() > kMostHeaderBytes) throw BadRequest(431, "the header is too long");
    if (!receive(socket, text, deadline)) {
      if (text.empty()) return {};
      throw BadRequest(400, "the request ends within its header");
    }
  }
  const std::string_view header(text.data(), end);
  const std::string_view first = header.substr(0, header.find("\r\n"));
  const auto space = first.find(' ');
  const auto second = first.find(' ', space == std::string_view::npos ? first.size() : space + 1);
  if (second == std::string_view::npos || first.substr(second + 1).rfind("HTTP/1.", 0) != 0) {
    throw BadRequest(400, "the first line is not 'METHOD PATH HTTP/1.1'");
  }
  Request request;
  request.method = first.substr(0, space);
  request.path = first.substr(space + 1, second - space - 1);
  const std::size_t length = body_length(header.substr(first.size()));
  text.erase(0, end + 4);
  while (text.size() < length) {
    if (!receive(socket, text, deadline)) throw BadRequest(400, "the body is too short");
  }
  request.body = text.substr(0, length);
  return request;
}

bool write_answer(int socket, int status, const std::string& json) {
  const std::string text = "HTTP/1.1 " + std::to_string(status) + " " + reason(status) +
                           "\r\nContent-Type: application/json\r\nConnection: close" +
                           "\r\nContent-Length: " + std::to_string(json.size()) + "\r\n\r\n" + json;
  std::size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t n = ::send(socket, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return false;
    sent += static_cast<std::size_t>(n);
  }
  return true;
}

void drain(int socket) {
  constexpr std::size_t kMostDrainedBytes = 16u << 20;
  ::shutdown(socket, SHUT_WR);
  const auto deadline = Clock::now() + std::chrono::seconds(kSeconds);
  char buffer[4096];
  for (std::size_t read = 0; read < kMostDrainedBytes && Clock::now() < deadline;) {
    const ssize_t n = ::recv(socket, buffer, sizeof buffer, 0);
    if (n <= 0) return;
    read += static_cast<std::size_t>(n);
  }
}

std::string error_json(const std::string& text) {
  std::string out = "{\"error\": \"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    out.push_back(c >= ' ' && c <= '~' ? c : '?');
  }
  return out + "\"}\n";
}

}  // namespace embed_service
