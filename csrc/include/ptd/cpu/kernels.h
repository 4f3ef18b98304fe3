// The CPU kernels: plain functions over raw pointers, one table of them per instruction set.
//
// Every kernel is called by all threads of a team at once, each with its own Share, and computes
// its part of the result; the caller puts a barrier between two kernels. A kernel of several stages
// has a barrier between the stages too.
//
// Row invariance: what a row of the output holds depends on that row's inputs alone, bit for bit:
// not on the number of rows, on other rows, on the tree's layout, on the share or the team's size.
//
// "T" is the model's type: float, or bfloat16 held as its 16 bits. Strides count elements.
#pragma once

#include <cstdint>

#include "ptd/cpu/isa.h"

namespace ptd::cpu {

enum class DType : std::int32_t { kF32 = 0, kBF16 = 1 };

enum class WeightFormat : std::int32_t { kF32 = 0, kBF16 = 1, kInt8 = 2, kInt4 = 3 };

// This thread's part of the work: thread `index` of `count`.
struct Share {
  int index;
  int count;
};

// A weight matrix [out, in] in panels of 16 outputs, in which the inputs lie outermost:
//   kF32   [out/16][in][16]
//   kBF16  [out/16][in/2][16][2], in padded to 32
//   kInt8  [out/16][in/4][16][4], in padded to 64; value = q * scale[out]
//   kInt4  [out/16][in/32] blocks of 16 scales and 16 minima (bf16 each) and 256 bytes of nibbles;
//          value = q * scale + minimum, the q of inputs 2j (low) and 2j+1 (high) of output c in
//          byte j * 16 + c
// `out` is padded to 32. Padding is zero.
struct LinearWeight {
  WeightFormat format;
  std::int64_t in_features, out_features;  // as the model has them
  std::int64_t in_padded, out_padded;
  const void* panels;
  const float* scales;  // [out_padded], kInt8 only
  const float* bias;    // [out_padded] or null
};

struct EmbedArgs {                // out[i] = row token_ids[i] of the matrix, rounded to T
  const std::int32_t* token_ids;  // [rows]
  LinearWeight table;             // the packed matrix (also the head's, where they are tied)
  void* out;                      // T [rows, in_features]
  int rows;
};

struct AddRmsNormArgs {  // residual += x (rounded to T); out = rmsnorm(residual) (T) * weight (T)
  DType dtype;
  int rows, hidden;
  const void* x;  // T [rows, hidden] or null
  void* residual;
  const void* weight;  // T [hidden]
  float eps;
  void* out;
};

struct LinearArgs {  // out = x W^T + bias, accumulated in fp32, rounded once
  DType dtype;       // of x; and of out unless out_f32
  int rows;
  const void* x;  // T [rows, in_features], rows contiguous
  LinearWeight weight;
  void* out;  // [rows, out_features], rows contiguous
  bool out_f32;
  // Working memory of linear_scratch_bytes(); not read before it is written.
  unsigned char* scratch;
};

// The head fused with the argmax: logits of a row are formed in registers and, for the first
// `logit_rows` rows, written to `logits` as well.
struct HeadArgs {
  DType dtype;
  int rows;
  int logit_rows;
  const void* x;  // T [rows, in_features]
  LinearWeight weight;
  float* logits;          // [logit_rows, out_features], rows contiguous; may be null if none
  std::int64_t limit;     // 1..out_features: ids from here on are never the argmax, NaN or not
  float* best_value;      // [team, rows] working memory
  std::int32_t* best_id;  // [team, rows]
  std::int32_t* next;     // [rows] with stride next_stride: the argmax, ties to the lowest id, -1
                          // where the row holds NaN or its maximum is not finite
  std::int64_t next_stride;
  unsigned char* scratch;
};

struct RopeKvArgs {  // see the op rope_kv_write in ptd_engine/kernels/ops.py
  DType dtype;
  int rows, q_heads, kv_heads, head_dim;
  const void* qkv;     // T [rows, (q_heads + 2 kv_heads) * head_dim]
  const void* q_norm;  // T [head_dim] or null (then k_norm is null too)
  const void* k_norm;
  float eps;
  const float* cos_sin;            // [max_pos, head_dim]: head_dim/2 cosines, then the sines
  const std::int32_t* positions;   // [rows]
  const std::int32_t* prefix_len;  // [1]
  void* k_cache;                   // T [kv_heads, capacity, head_dim]
  void* v_cache;
  std::int64_t kv_head_stride;  // between heads of the cache; the rows of a head are contiguous
  void* q_out;                  // T [rows, q_heads, head_dim]
};

struct AttentionArgs {  // the ops tree_attention (mask) and causal_attention (mask null)
  DType dtype;
  int rows, q_heads, kv_heads, head_dim;
  const void* q;  // T [rows, q_heads, head_dim]
  const void* k_cache;
  const void* v_cache;
  std::int64_t kv_head_stride;
  const std::uint64_t* mask;  // [rows, (rows + 63) / 64] or null
  const std::int32_t* prefix_len;
  float scale;
  void* out;     // T [rows, q_heads * head_dim]
  int max_keys;  // prefix_len + rows never exceeds it; sizes the working memory
  unsigned char* scratch;
};

struct SiluMulArgs {  // out = T(silu(gate)) * up
  DType dtype;
  int rows, inner;
  const void* gate_up;  // T [rows, 2 * inner]
  void* out;            // T [rows, inner]
};

struct KvCommitArgs {  // see the op kv_commit
  DType dtype;
  int layers, kv_heads, head_dim;
  void* k_cache;  // T [layers, kv_heads, capacity, head_dim], contiguous
  void* v_cache;
  std::int64_t capacity;
  const std::int32_t* commit_src;  // [n_commit], rising: row i goes to prefix_len - n_commit + i
  const std::int32_t* prefix_len;
  int n_commit;
};

struct SelectArgs {  // draws from logits; see the op select
  int rows, vocab;
  const float* logits;  // [rows] of `vocab` logits, with stride logits_stride
  std::int64_t logits_stride;
  const float* temperature;
  const float* uniform;
  const float* sampling;  // [4]: top_k, top_p, min_p; then top_p of the successors, 0 for off
  bool filter;            // whether the first three apply
  std::int32_t* next;     // rows with temperature 0 keep what they hold, and so do rows with -1
  std::int64_t next_stride;
  int successors;  // K: ids of the K largest logits, to next[1..K] of every row; 0 for none. Those
                   // behind the smallest set with `sampling[3]` of the mass are -1
  unsigned char* scratch;
};

struct Kernels {
  void (*embed)(const EmbedArgs&, DType, Share);
  void (*add_rms_norm)(const AddRmsNormArgs&, Share);
  void (*linear_prepare)(const LinearArgs&, Share);  // stage 1: quantises or pads x into scratch
  void (*linear)(const LinearArgs&, Share);          // stage 2
  void (*head_prepare)(const HeadArgs&, Share);      // stage 1
  void (*head)(const HeadArgs&, Share);              // stage 2: each thread's own best
  void (*head_finish)(const HeadArgs&, Share);       // stage 3: the best of all threads
  void (*rope_kv_write)(const RopeKvArgs&, Share);
  void (*attention_prepare)(const AttentionArgs&, Share);  // stage 1
  void (*attention)(const AttentionArgs&, Share);          // stage 2: chunks of the keys
  void (*attention_finish)(const AttentionArgs&, Share);   // stage 3: joins the chunks
  void (*silu_mul)(const SiluMulArgs&, Share);
  void (*kv_commit)(const KvCommitArgs&, Share);
  void (*select)(const SelectArgs&, Share);
};

// Throws std::invalid_argument if isa_unavailable(isa) is not empty.
const Kernels& kernels(Isa isa);

// Bytes of working memory, for a team of up to `threads`; 64-byte alignment is the caller's part.
std::int64_t linear_scratch_bytes(const LinearWeight& weight, int rows, int threads);
std::int64_t attention_scratch_bytes(const AttentionArgs& args, int threads);
std::int64_t select_scratch_bytes(const SelectArgs& args, int threads);

}  // namespace ptd::cpu
