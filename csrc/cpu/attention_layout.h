// How the attention kernels cut their work, and where they keep what in their working memory.
// Independent of the instruction set.
//
// Rows are grouped in tiles of up to 16 heads: whole nodes (rows of the step), each with the query
// heads that share a key/value head. What is known of a head after some chunks of keys is a record:
// the sum of weighted values [head_dim], then the largest score and the sum of weights.
#pragma once

#include <cstdint>

#include "ptd/cpu/kernels.h"

namespace ptd::cpu {

inline constexpr int kChunkKeys = 256;  // keys are cut at multiples of it, counted from position 0
inline constexpr int kTileHeads = 16;
// Elements between the rows of scores and of weights: a power of two would put all rows of a tile
// into a few sets of the cache.
inline constexpr int kScoreStride = kChunkKeys + 16;
inline constexpr int kWeightStride = kChunkKeys + 32;
inline constexpr int kBlockTiles = 16;  // at most so many tiles share one packing of the keys
inline constexpr int kStagedTiles = 8;  // of values that one node sees, ready at once
// Up to so many heads a key/value head, the chunks are spread over the threads and joined
// afterwards. Above it the tiles are spread, and whoever has a tile goes through all its chunks.
inline constexpr int kSplitHeads = 48;

// Floats after the values of a record: the largest score, the sum; the rest keeps the alignment.
inline constexpr int kRecordTail = 16;

struct AttentionLayout {
  int group;       // query heads that share a key/value head
  int tile_nodes;  // nodes of a full tile
  int padded_dim;  // head_dim in multiples of 32
  int record;      // floats of a record
  bool split;      // whether chunks are spread over the threads
  int chunks;      // chunks of max_keys

  // Bytes from the beginning of the working memory.
  std::int64_t own_keys;   // int32 [rows]: keys of the step that a node sees, itself included
  std::int64_t ancestors;  // uint16 [rows, rows]: those, ascending
  std::int64_t partials;   // records [chunks, kv_heads, rows * group], if split
  std::int64_t threads;    // then the working memory of each thread

  // Bytes from the beginning of a thread's working memory.
  std::int64_t keys;         // the chunk's keys, packed
  std::int64_t values;       // the chunk's values, packed
  std::int64_t step_keys;    // the step's keys, packed
  std::int64_t queries;      // of a block
  std::int64_t scores;       // float [2, 16, kScoreStride]
  std::int64_t weights;      // bf16 [2, 16, kWeightStride]
  std::int64_t step_scores;  // float [16, rows in multiples of 16]
  std::int64_t staging;      // kStagedTiles of values, or a block of keys
  std::int64_t sums;         // float [2, 16, head_dim]
  std::int64_t records;      // of two tiles in one chunk
  std::int64_t states;       // of a block's heads over the chunks so far
  std::int64_t thread_bytes;
};

// Static: this header is compiled for several instruction sets, and the linker would keep one copy.
static inline AttentionLayout attention_layout(const AttentionArgs& args) {
  AttentionLayout at{};
  at.group = args.q_heads / args.kv_heads;
  at.tile_nodes = at.group < kTileHeads ? kTileHeads / at.group : 1;
  at.padded_dim = (args.head_dim + 31) / 32 * 32;
  at.record = args.head_dim + kRecordTail;
  at.split = args.rows * at.group <= kSplitHeads;
  at.chunks = (args.max_keys + kChunkKeys - 1) / kChunkKeys;

  std::int64_t end = 0;
  const auto place = [&end](std::int64_t bytes) {
    const std::int64_t begin = end;
    end += (bytes + 63) / 64 * 64;
    return begin;
  };
  const std::int64_t rows = args.rows, padded_rows = (rows + 15) / 16 * 16;
  const std::int64_t split_heads = rows * at.group < kSplitHeads ? rows * at.group : kSplitHeads;
  at.own_keys = place(rows * 4);
  at.ancestors = place(rows * rows * 2);
  at.partials = place(4 * at.chunks * args.kv_heads * split_heads * at.record);
  at.threads = end;

  end = 0;
  const std::int64_t dim = at.padded_dim;
  at.keys = place(4 * kChunkKeys * dim);
  at.values = place(2 * kChunkKeys * dim);
  at.step_keys = place(4 * padded_rows * dim);
  at.queries = place(2 * kBlockTiles * kTileHeads * dim);
  at.scores = place(4 * 2 * kTileHeads * kScoreStride);
  at.weights = place(2 * 2 * kTileHeads * kWeightStride);
  at.step_scores = place(4 * kTileHeads * padded_rows);
  at.staging = place(2 * kStagedTiles * 32 * dim);
  at.sums = place(4 * 2 * kTileHeads * dim);
  at.records = place(4 * 2 * kTileHeads * at.record);
  at.states = place(4 * kBlockTiles * kTileHeads * at.record);
  at.thread_bytes = end;
  return at;
}

}  // namespace ptd::cpu
