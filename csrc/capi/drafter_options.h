// Drafters by name, with their options from JSON: names, defaults and ranges are those of
// ptd_engine's configuration classes.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ptd/drafter.h"

namespace ptd::capi {

// Names, one a line.
inline constexpr char kDrafterNames[] =
    "none\nptd\nprompt-lookup\ntoken-recycling\nsuffix\nlookahead\nself-draft\nhybrid";

// The options of a drafter with their defaults, as a JSON object. Throws InvalidArgument for an
// unknown name.
std::string drafter_defaults(std::string_view name);

// Throws InvalidArgument for an unknown name or option, a value out of range and text that is not a
// flat JSON object; no text means the defaults.
std::shared_ptr<Drafter> make_drafter(std::string_view name, std::string_view json,
                                      std::vector<TokenId> eos_ids);

}  // namespace ptd::capi
