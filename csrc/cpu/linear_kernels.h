// The linear op and the head: panels of 16 outputs times rows of inputs.
//
// Every output is one chain of multiply-adds over the inputs in ascending order, whichever rows and
// panels are computed beside it; that is what makes a row independent of the others. A piece of
// work is a unit of 32 outputs for all rows, so a weight is read from memory once.
#pragma once

#include "linear_layout.h"
#include "linear_tiles.h"
#include "linear_vectors.h"

namespace ptd::cpu::PTD_ISA_NAMESPACE {

// What a kernel hands on: the fp32 products of `rows` rows from `row`, 32 outputs from `column`, at
// block[i * kUnit + j].
struct StoreRows {
  const LinearArgs& args;

  template <typename T>
  void store(int row, int rows, std::int64_t column, const float* block) const {
    const std::int64_t width = args.weight.out_features;
    const int n = static_cast<int>(min_of<std::int64_t>(kUnit, width - column));
    const float* bias = args.weight.bias;
    T* out = static_cast<T*>(args.out) + row * width + column;
    for (int i = 0; i < rows; ++i, out += width, block += kUnit) {
      F32x16 lo = load16(block), hi = load16(block + kPanel);
      if (bias != nullptr) {
        lo = add(lo, load16(bias + column));
        hi = add(hi, load16(bias + column + kPanel));
      }
      if (n == kUnit) {
        store32(out, lo, hi);
      } else {
        store16(out, lo, min_of(n, kPanel));
        if (n > kPanel) store16(out + kPanel, hi, n - kPanel);
      }
    }
  }
  void operator()(int row, int rows, std::int64_t column, const float* block) const {
    if (args.out_f32 || args.dtype == DType::kF32) {
      store<float>(row, rows, column, block);
    } else {
      store<bf16>(row, rows, column, block);
    }
  }
};

// Products of all rows with the units of this share, handed to `done`.
template <typename Done>
inline void for_units(int rows, const void* x, const LinearWeight& w, unsigned char* scratch,
                      Share share, const Done& done) {
  const Range units = share_of(w.out_padded / kUnit, share.index, share.count);
  if (units.begin == units.end) return;
  const LinearScratch at = linear_scratch(w, rows, share.count);
  const auto* panels = static_cast<const unsigned char*>(w.panels);
  const std::int64_t unit_bytes = 2 * panel_bytes(w.format, w.in_padded);
  const auto* padded = reinterpret_cast<const bf16*>(scratch + at.inputs);
  const bf16* in = w.in_padded == w.in_features ? static_cast<const bf16*>(x) : padded;
  switch (w.format) {
    case WeightFormat::kF32:
      vector_units_f32(static_cast<const float*>(x), rows, w, units, done);
      return;
    case WeightFormat::kBF16:
      bf16_units(in, rows, w.in_padded, reinterpret_cast<const bf16*>(panels), units, done);
      return;
    case WeightFormat::kInt8:
      int8_units(scratch + at.inputs, reinterpret_cast<const float*>(scratch + at.scales), rows, w,
                 units, done);
      return;
    case WeightFormat::kInt4: {
      auto* unit = reinterpret_cast<bf16*>(scratch + at.unit) + share.index * kUnit * w.in_padded;
      for (std::int64_t u = units.begin; u < units.end; ++u) {
        widen_int4_unit(panels + u * unit_bytes, w.in_padded, unit);
        const auto shifted = [&](int row, int n, std::int64_t column, const float* block) {
          done(row, n, column + u * kUnit, block);
        };
        bf16_units(in, rows, w.in_padded, unit, Range{0, 1}, shifted);
      }
      return;
    }
  }
}

// x as the kernels read it: quantised (kInt8), or padded with zeros where a bf16 row has no whole
// number of 32 inputs.
inline void prepare_inputs(DType dtype, int rows, const void* x, const LinearWeight& w,
                           unsigned char* scratch, Share share) {
  const LinearScratch at = linear_scratch(w, rows, share.count);
  const Range own = share_of(rows, share.index, share.count);
  const std::int64_t in = w.in_features, padded = w.in_padded;
  if (w.format == WeightFormat::kInt8) {
    auto* scales = reinterpret_cast<float*>(scratch + at.scales);
    for (std::int64_t i = own.begin; i < own.end; ++i) {
      unsigned char* to = scratch + at.inputs + i * padded * kInt8InputBytes;
      float* own_scales = scales + i * (padded / kInt8Group);
      if (dtype == DType::kF32) {
        quantize_row(static_cast<const float*>(x) + i * in, in, padded, to, own_scales);
      } else {
        quantize_row(static_cast<const bf16*>(x) + i * in, in, padded, to, own_scales);
      }
    }
  } else if (w.format != WeightFormat::kF32 && in != padded) {
    auto* to = reinterpret_cast<bf16*>(scratch + at.inputs);
    for (std::int64_t i = own.begin; i < own.end; ++i) {
      std::memcpy(to + i * padded, static_cast<const bf16*>(x) + i * in, 2 * in);
      std::memset(to + i * padded + in, 0, 2 * (padded - in));
    }
  }
}

inline void linear_prepare(const LinearArgs& a, Share share) {
  prepare_inputs(a.dtype, a.rows, a.x, a.weight, a.scratch, share);
}

inline void linear(const LinearArgs& a, Share share) {
  for_units(a.rows, a.x, a.weight, a.scratch, share, StoreRows{a});
}

// Keeps the best of the outputs seen so far; outputs come in ascending order.
struct KeepBest {
  const HeadArgs& args;
  float* best;       // [rows]; NaN once a NaN was seen
  std::int32_t* id;  // [rows]

  void operator()(int row, int rows, std::int64_t column, const float* block) const {
    const std::int64_t width = args.weight.out_features;
    const int n = static_cast<int>(min_of<std::int64_t>(kUnit, width - column));
    const std::int64_t left = args.limit - column;  // outputs that may be the best
    const int m = static_cast<int>(min_of<std::int64_t>(n, left < 0 ? 0 : left));
    const std::uint32_t valid = m == kUnit ? 0xffffffffu : (1u << m) - 1u;
    for (int i = 0; i < rows; ++i, block += kUnit) {
      const int r = row + i;
      F32x16 lo = load16(block), hi = load16(block + kPanel);
      if (args.weight.bias != nullptr) {
        lo = add(lo, load16(args.weight.bias + column));
        hi = add(hi, load16(args.weight.bias + column + kPanel));
      }
      if (r < args.logit_rows) {
        float* out = args.logits + r * width + column;
        store16(out, lo, min_of(n, kPanel));
        if (n > kPanel) store16(out + kPanel, hi, n - kPanel);
      }
      if ((nan_mask(lo) | nan_mask(hi) << 16) & valid) {
        best[r] = bits_to_float(0x7fc00000u);
        continue;
      }
      const F32x16 top = splat16(best[r]);
      const std::uint32_t better = (less_mask(top, lo) | less_mask(top, hi) << 16) & valid;
      if (better == 0) continue;
      float values[kUnit];
      store16(values, lo);
      store16(values + kPanel, hi);
      for (int j = 0; j < m; ++j) {
        if (values[j] > best[r]) {
          best[r] = values[j];
          id[r] = static_cast<std::int32_t>(column + j);
        }
      }
    }
  }
};

inline void head_prepare(const HeadArgs& a, Share share) {
  prepare_inputs(a.dtype, a.rows, a.x, a.weight, a.scratch, share);
}

inline void head(const HeadArgs& a, Share share) {
  float* best = a.best_value + static_cast<std::int64_t>(share.index) * a.rows;
  std::int32_t* id = a.best_id + static_cast<std::int64_t>(share.index) * a.rows;
  for (int i = 0; i < a.rows; ++i) {
    best[i] = bits_to_float(0xff800000u);  // minus infinity
    id[i] = -1;
  }
  for_units(a.rows, a.x, a.weight, a.scratch, share, KeepBest{a, best, id});
}

inline void head_finish(const HeadArgs& a, Share share) {
  if (share.index != 0) return;
  const float infinity = bits_to_float(0x7f800000u);
  for (int i = 0; i < a.rows; ++i) {
    float best = -infinity;
    std::int32_t id = -1;
    bool finite = true;
    for (int t = 0; t < share.count; ++t) {  // shares are in the order of the outputs
      const float value = a.best_value[static_cast<std::int64_t>(t) * a.rows + i];
      finite = finite && value == value && value < infinity;
      if (value > best) {
        best = value;
        id = a.best_id[static_cast<std::int64_t>(t) * a.rows + i];
      }
    }
    a.next[i * a.next_stride] = finite ? id : -1;
  }
}

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
