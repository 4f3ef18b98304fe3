// Parts of the _core module. This folder is the only place where pybind11 appears.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "ptd/types.h"

namespace ptd {

void bind_trees(pybind11::module_& m);
void bind_session(pybind11::module_& m);
void bind_ptd_drafter(pybind11::module_& m);  // after bind_session, which has Drafter
void bind_lookup_drafters(pybind11::module_& m);
void bind_hybrid_drafter(pybind11::module_& m);
void bind_window_drafters(pybind11::module_& m);  // after bind_session
void bind_cpu(pybind11::module_& m);

// A contiguous, C-ordered buffer of T seen as a Span; throws InvalidArgument otherwise.
template <class T>
Span<T> as_span(const pybind11::buffer_info& info, const char* field) {
  pybind11::ssize_t stride = static_cast<pybind11::ssize_t>(sizeof(T));
  bool fits = info.itemsize == stride && info.item_type_is_equivalent_to<std::remove_const_t<T>>();
  for (auto axis = info.ndim - 1; fits && axis >= 0; --axis) {
    const auto i = static_cast<std::size_t>(axis);
    fits = info.shape[i] <= 1 || info.strides[i] == stride;
    stride *= info.shape[i];
  }
  if (!fits) {
    throw InvalidArgument(
        std::string(field) + " is not valid: allowed is a C-contiguous array of " +
        pybind11::format_descriptor<std::remove_const_t<T>>::format() + " (" +
        std::to_string(sizeof(T)) + " bytes an item), got format '" + info.format + "'.");
  }
  return {static_cast<T*>(info.ptr), static_cast<std::size_t>(info.size)};
}

}  // namespace ptd
