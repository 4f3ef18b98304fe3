#include "bindings.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "C++ core of ptd_engine: trees, candidate pool, step plans, verification, sessions.";
  pybind11::register_exception<ptd::InvalidArgument>(m, "InvalidArgument", PyExc_ValueError);
  pybind11::register_exception<ptd::NonFiniteLogits>(m, "NonFiniteLogits", PyExc_RuntimeError);
  m.attr("MAX_TREE_NODES") = ptd::kMaxTreeNodes;
  ptd::bind_trees(m);
  ptd::bind_session(m);
  ptd::bind_ptd_drafter(m);
  ptd::bind_lookup_drafters(m);
  ptd::bind_hybrid_drafter(m);
  ptd::bind_window_drafters(m);
  ptd::bind_cpu(m);
}
