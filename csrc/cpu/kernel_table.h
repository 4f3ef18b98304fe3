// The body of every kernels_*.cpp: includes the kernels once more, for one instruction set, and
// puts them into a table.
#pragma once

#include "attention_kernels.h"
#include "linear_kernels.h"
#include "pointwise_kernels.h"
#include "ptd/cpu/kernels.h"
#include "select_kernels.h"

namespace ptd::cpu::PTD_ISA_NAMESPACE {

extern const Kernels kTable;
const Kernels kTable = {
    embed,       add_rms_norm,  linear_prepare,    linear,    head_prepare,     head,
    head_finish, rope_kv_write, attention_prepare, attention, attention_finish, silu_mul,
    kv_commit,   select};

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
