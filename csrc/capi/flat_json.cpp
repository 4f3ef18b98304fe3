#include "flat_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include "messages.h"
#include "ptd/types.h"

namespace ptd::capi {
namespace {

class Parser {
 public:
  Parser(const char* text, std::size_t size) : begin_(text), at_(text), end_(text + size) {}

  std::vector<JsonField> object() {
    std::vector<JsonField> fields;
    skip_space();
    expect('{', "'{'");
    skip_space();
    if (!take('}')) {
      do {
        skip_space();
        const char* key_at = at_;
        JsonField field;
        field.key = string("a key in double quotes");
        for (const JsonField& other : fields) {
          if (other.key != field.key) continue;
          refuse_from(key_at, "the key " + quoted(field.key) + " stands twice");
        }
        skip_space();
        expect(':', "':'");
        skip_space();
        field.value = value();
        fields.push_back(std::move(field));
        skip_space();
      } while (take(','));
      expect('}', "',' or '}'");
    }
    skip_space();
    if (at_ != end_) refuse("text behind the object");
    return fields;
  }

 private:
  // At the beginning of what was read last.
  [[noreturn]] void refuse_from(const char* first, const std::string& what) {
    at_ = first;
    refuse(what);
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw InvalidArgument("options is not valid at byte " + std::to_string(at_ - begin_) + ": " +
                          what +
                          "; allowed is a flat JSON object of numbers, booleans and strings.");
  }

  bool more() const { return at_ != end_; }
  bool next_is(char c) const { return more() && *at_ == c; }
  bool take(char c) {
    if (!next_is(c)) return false;
    ++at_;
    return true;
  }
  void expect(char c, const char* name) {
    if (!take(c)) refuse(std::string(more() ? "" : "the text ends and ") + name + " is missing");
  }
  void skip_space() {
    while (more() && (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r')) ++at_;
  }
  bool digit() const { return more() && *at_ >= '0' && *at_ <= '9'; }

  bool take_word(const char* word) {
    const std::string_view wanted(word);
    const auto left = static_cast<std::size_t>(end_ - at_);
    if (left < wanted.size() || std::string_view(at_, wanted.size()) != wanted) return false;
    at_ += wanted.size();
    return true;
  }

  JsonValue value() {
    JsonValue value;
    if (next_is('"')) {
      value.kind = JsonValue::Kind::kString;
      value.text = string("a string");
    } else if (take_word("true")) {
      value.boolean = true;
      value.text = "true";
    } else if (take_word("false")) {
      value.text = "false";
    } else if (next_is('-') || digit()) {
      number(value);
    } else if (next_is('{') || next_is('[') || next_is('n')) {
      refuse("the value is an object, an array or null");
    } else {
      refuse("a value is missing");
    }
    return value;
  }

  void digits() {
    if (!digit()) refuse("a digit is missing");
    while (digit()) ++at_;
  }

  void number(JsonValue& value) {
    const char* first = at_;
    value.kind = JsonValue::Kind::kInteger;
    value.negative = take('-');
    const char* magnitude = at_;
    if (take('0')) {
      if (digit()) refuse("a number begins with 0");
    } else {
      digits();
    }
    if (next_is('.') || next_is('e') || next_is('E')) value.kind = JsonValue::Kind::kNumber;
    const char* whole_end = at_;
    if (take('.')) digits();
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      digits();
    }
    value.text.assign(first, at_);
    // No locale: "0.5" is a half wherever this runs.
    const auto [stop, error] = std::from_chars(first, at_, value.number);
    if (error != std::errc() || stop != at_ || !std::isfinite(value.number)) {
      refuse_from(first, "the number " + quoted(value.text) + " is too large or too small");
    }
    if (value.kind == JsonValue::Kind::kInteger &&
        std::from_chars(magnitude, whole_end, value.magnitude).ec != std::errc()) {
      refuse_from(first, "the number " + quoted(value.text) + " does not fit 64 bits");
    }
  }

  // Bytes from 128 on are taken as they are: a name with any of them is no name of ours.
  std::string string(const char* name) {
    if (!take('"')) refuse(std::string(name) + " is missing");
    std::string out;
    while (true) {
      if (!more()) refuse("a string does not end");
      const char c = *at_;
      if (static_cast<unsigned char>(c) < 0x20) refuse("a control character in a string");
      ++at_;
      if (c == '"') return out;
      if (c == '\\') {
        escape(out);
      } else {
        out.push_back(c);
      }
    }
  }

  void escape(std::string& out) {
    static constexpr std::string_view kNames = "\"\\/bfnrt";
    static constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    if (take('u')) {
      append_utf8(out, code_point());
      return;
    }
    const auto which = more() ? kNames.find(*at_) : std::string_view::npos;
    if (which == std::string_view::npos) refuse("an unknown escape in a string");
    ++at_;
    out.push_back(kMeanings[which]);
  }

  std::uint32_t code_point() {
    const std::uint32_t high = four_hex();
    if (high < 0xD800 || high > 0xDFFF) return high;
    if (high > 0xDBFF || !take('\\') || !take('u')) refuse("half a surrogate pair in a string");
    const std::uint32_t low = four_hex();
    if (low < 0xDC00 || low > 0xDFFF) refuse("half a surrogate pair in a string");
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
  }

  std::uint32_t four_hex() {
    std::uint32_t code = 0;
    const char* stop = at_ + std::min<std::ptrdiff_t>(4, end_ - at_);
    const auto result = std::from_chars(at_, stop, code, 16);
    if (stop - at_ != 4 || result.ptr != stop || result.ec != std::errc()) {
      refuse("four hexadecimal digits are missing in a string");
    }
    at_ = stop;
    return code;
  }

  static void append_utf8(std::string& out, std::uint32_t code) {
    const auto push = [&out](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
    if (code < 0x80) {
      push(code);
    } else if (code < 0x800) {
      push(0xC0 | code >> 6);
      push(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
      push(0xE0 | code >> 12);
      push(0x80 | (code >> 6 & 0x3F));
      push(0x80 | (code & 0x3F));
    } else {
      push(0xF0 | code >> 18);
      push(0x80 | (code >> 12 & 0x3F));
      push(0x80 | (code >> 6 & 0x3F));
      push(0x80 | (code & 0x3F));
    }
  }

  const char* begin_;
  const char* at_;
  const char* end_;
};

}  // namespace

std::vector<JsonField> parse_flat_json(const char* text, std::size_t size) {
  if (size > kMostJsonBytes) {
    throw InvalidArgument::for_field("options_size", size,
                                     "at most " + std::to_string(kMostJsonBytes) + " bytes");
  }
  return Parser(text, size).object();
}

}  // namespace ptd::capi
