// What can be asked without a handle: versions, drafters and their options.
#include <cstring>
#include <string>

#include "arguments.h"
#include "drafter_options.h"
#include "handle.h"

#define PTD_TEXT_OF(x) #x
#define PTD_TEXT(x) PTD_TEXT_OF(x)

namespace capi = ptd::capi;
using ptd::InvalidArgument;

const char* ptd_version(void) {
  return PTD_TEXT(PTD_VERSION_MAJOR) "." PTD_TEXT(PTD_VERSION_MINOR) "." PTD_TEXT(
      PTD_VERSION_PATCH);
}

int32_t ptd_abi_version(void) { return PTD_ABI_VERSION; }

const char* ptd_drafter_names(void) { return capi::kDrafterNames; }

ptd_status ptd_drafter_options(const char* name, size_t name_size, char* buffer, size_t buffer_size,
                               size_t* n_needed) {
  return capi::call([&] {
    if (n_needed != nullptr) {
      capi::check_pointer("n_needed", n_needed);
      *n_needed = 0;
    }
    const std::string text = capi::drafter_defaults(capi::checked_text("name", name, name_size));
    if (n_needed != nullptr) *n_needed = text.size() + 1;
    if (buffer == nullptr || buffer_size < text.size() + 1) {
      throw InvalidArgument::for_field(
          "buffer_size", buffer_size,
          "at least " + std::to_string(text.size() + 1) + " bytes, and no null buffer");
    }
    std::memcpy(buffer, text.c_str(), text.size() + 1);
  });
}
