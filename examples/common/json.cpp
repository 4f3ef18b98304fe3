#include "common/json.h"

#include <charconv>
#include <cmath>
#include <stdexcept>

namespace examples {
namespace {

constexpr int kMostLevels = 32;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Json document() {
    Json value = parse(0);
    space();
    if (at_ != text_.size()) fail("text behind the value");
    return value;
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw std::runtime_error("not JSON at byte " + std::to_string(at_) + ": " + what);
  }
  bool take(char c) {
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool take_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  void space() {
    while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != text_.npos) ++at_;
  }

  Json parse(int level) {
    if (level == kMostLevels) fail("too many levels");
    space();
    Json value;
    if (take('{')) {
      value.type = Json::Type::kObject;
      for (space(); !take('}'); space()) {
        if (!value.members.empty() && !take(',')) fail("',' or '}' is missing");
        space();
        std::string name = string();
        space();
        if (!take(':')) fail("':' is missing");
        value.members.emplace_back(std::move(name), parse(level + 1));
      }
    } else if (take('[')) {
      value.type = Json::Type::kArray;
      for (space(); !take(']'); space()) {
        if (!value.items.empty() && !take(',')) fail("',' or ']' is missing");
        value.items.push_back(parse(level + 1));
      }
    } else if (at_ < text_.size() && text_[at_] == '"') {
      value.type = Json::Type::kString;
      value.text = string();
    } else if (take_word("true") || take_word("false")) {
      value.type = Json::Type::kBool;
      value.boolean = text_[at_ - 2] == 'u';  // tr-u-e, fal-s-e
    } else if (!take_word("null")) {
      value.type = Json::Type::kNumber;
      value.number = number();
    }
    return value;
  }

  double number() {
    double out = 0.0;
    const char* first = text_.data() + at_;
    const auto [stop, error] = std::from_chars(first, text_.data() + text_.size(), out);
    if (error != std::errc() || !std::isfinite(out)) fail("a value is missing");
    at_ += static_cast<std::size_t>(stop - first);
    return out;
  }

  // \u escapes become '?': no name or setting that is read here has one.
  std::string string() {
    if (!take('"')) fail("a string is missing");
    std::string out;
    while (!take('"')) {
      if (at_ == text_.size()) fail("a string does not end");
      char c = text_[at_++];
      if (c == '\\') {
        if (at_ == text_.size()) fail("a string does not end");
        c = text_[at_++];
        const auto which = std::string_view("\"\\/bfnrtu").find(c);
        if (which == std::string_view::npos) fail("an unknown escape");
        if (c == 'u') at_ = std::min(at_ + 4, text_.size());
        c = "\"\\/\b\f\n\r\t?"[which];
      }
      out.push_back(c);
    }
    return out;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

const Json* Json::find(std::string_view name) const {
  for (const auto& [key, value] : members) {
    if (key == name) return &value;
  }
  return nullptr;
}

std::int64_t Json::integer(const std::string& what, std::int64_t low, std::int64_t high) const {
  const bool whole = type == Type::kNumber && number == std::floor(number) &&
                     number >= static_cast<double>(low) && number <= static_cast<double>(high);
  if (!whole) {
    throw std::runtime_error(what + " is not an integer from " + std::to_string(low) + " to " +
                             std::to_string(high));
  }
  return static_cast<std::int64_t>(number);
}

Json parse_json(std::string_view text) { return Parser(text).document(); }

}  // namespace examples
