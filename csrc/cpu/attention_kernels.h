// Attention: out = softmax(q K^T * scale) V over the keys that a node sees.
//
// With c running over the chunks of kChunkKeys positions,
//   m_c = max s,  w = exp(s - m_c),  l_c = sum of w,  a_c = sum of w v      (a record)
// and records are joined in the order of the chunks: the sums of the one with the smaller maximum
// are multiplied by exp(smaller - larger), then both are added. out = a / l.
//
// A path (vectors or tiles) computes the records of a tile in a chunk; what is here spreads that
// over the threads. Few heads: a piece of work is a chunk of a key/value head for all nodes, joined
// in the last stage. Many: it is a block of tiles for all chunks, joined on the way, so that the
// working memory does not grow with rows times keys. Both give the same bits.
#pragma once

#include "attention_layout.h"
#include "attention_rows.h"
#include "attention_vector_path.h"
#if PTD_ISA_LEVEL >= 4
#include "attention_amx.h"
#endif

namespace ptd::cpu::PTD_ISA_NAMESPACE {

inline float* partial_records(const AttentionStep& step, int chunk, int head) {
  const std::int64_t heads = static_cast<std::int64_t>(step.args.rows) * step.at.group;
  const std::int64_t piece = static_cast<std::int64_t>(chunk) * step.args.kv_heads + head;
  return reinterpret_cast<float*>(step.args.scratch + step.at.partials) +
         piece * heads * step.at.record;
}

template <typename Path>
inline void attend_chunks(const AttentionStep& step, Path& path, Share share) {
  const int rows = step.args.rows, kv_heads = step.args.kv_heads;
  const int chunks = (step.most_keys(0, rows) + kChunkKeys - 1) / kChunkKeys;
  const int nodes = Path::kTiles * step.at.tile_nodes;
  // Dealt out in turns: the last chunk, which is shorter, is then everybody's last.
  for (int piece = share.index; piece < chunks * kv_heads; piece += share.count) {
    const int chunk = piece / kv_heads, head = piece % kv_heads;
    float* records = partial_records(step, chunk, head);
    path.load(head, chunk, 0, rows);
    for (int node = 0; node < rows; node += nodes) {
      path.attend(node, min_of(node + nodes, rows),
                  records + static_cast<std::int64_t>(node) * step.at.group * step.at.record);
    }
  }
}

// Tiles of a block: few enough for its records, and such that the blocks come out even.
inline int block_tiles(int tiles, int kv_heads, int threads) {
  int blocks = (tiles + kBlockTiles - 1) / kBlockTiles;
  while (blocks < tiles && blocks * kv_heads % threads != 0 && blocks * kv_heads < 4 * threads) {
    ++blocks;
  }
  return (tiles + blocks - 1) / blocks;
}

// The outputs of the nodes [first, end) of a key/value head.
template <typename T, typename Path>
inline void attend_block(const AttentionStep& step, Path& path, unsigned char* memory, int head,
                         int first, int end) {
  const int group = step.at.group, dim = step.args.head_dim;
  const std::int64_t record = step.at.record;
  auto* states = reinterpret_cast<float*>(memory + step.at.states);
  auto* records = reinterpret_cast<float*>(memory + step.at.records);
  const int seen = step.most_keys(first, end), nodes = Path::kTiles * step.at.tile_nodes;
  for (int chunk = 0; chunk * kChunkKeys < seen; ++chunk) {
    path.load(head, chunk, first, end);
    for (int node = first; node < end; node += nodes) {
      const int last = min_of(node + nodes, end);
      float* state = states + (node - first) * group * record;
      path.attend(node, last, chunk == 0 ? state : records);
      if (chunk == 0) continue;
      join_records(step, node, (last - node) * group, chunk * kChunkKeys, state, records);
    }
  }
  for (int h = 0; h < (end - first) * group; ++h) {
    write_row(states + h * record, dim, step.out<T>(first + h / group, head * group + h % group));
  }
}

template <typename T, typename Path>
inline void attend_share(const AttentionArgs& args, Share share) {
  const AttentionStep step(args);
  unsigned char* memory = args.scratch + step.at.threads + share.index * step.at.thread_bytes;
  Path path(step, memory);
  if (step.at.split) {
    attend_chunks(step, path, share);
    return;
  }
  const int tiles = (args.rows + step.at.tile_nodes - 1) / step.at.tile_nodes;
  const int nodes = block_tiles(tiles, args.kv_heads, share.count) * step.at.tile_nodes;
  const int blocks = (args.rows + nodes - 1) / nodes;
  for (int piece = share.index; piece < blocks * args.kv_heads; piece += share.count) {
    const int first = piece / args.kv_heads * nodes;
    attend_block<T>(step, path, memory, piece % args.kv_heads, first,
                    min_of(first + nodes, args.rows));
  }
}

template <typename T>
inline void join_chunks(const AttentionArgs& args, Share share) {
  const AttentionStep step(args);
  if (!step.at.split) return;
  const int group = step.at.group, nodes = step.at.tile_nodes;
  const int tiles = (args.rows + nodes - 1) / nodes;
  const Range pieces =
      share_of(static_cast<std::int64_t>(tiles) * args.kv_heads, share.index, share.count);
  for (std::int64_t piece = pieces.begin; piece < pieces.end; ++piece) {
    const int head = static_cast<int>(piece % args.kv_heads);
    const int first = static_cast<int>(piece / args.kv_heads) * nodes;
    const int heads = (min_of(first + nodes, args.rows) - first) * group;
    const auto records = [&](int chunk) {
      return partial_records(step, chunk, head) +
             static_cast<std::int64_t>(first) * group * step.at.record;
    };
    const int keys = step.most_keys(first, first + heads / group);
    float* states = records(0);
    for (int chunk = 1; chunk * kChunkKeys < keys; ++chunk) {
      join_records(step, first, heads, chunk * kChunkKeys, states, records(chunk));
    }
    for (int h = 0; h < heads; ++h) {
      write_row(states + static_cast<std::int64_t>(h) * step.at.record, args.head_dim,
                step.out<T>(first + h / group, head * group + h % group));
    }
  }
}

inline void attention_prepare(const AttentionArgs& args, Share share) {
  if (args.mask != nullptr) list_ancestors(args, share);
}

inline void attention(const AttentionArgs& args, Share share) {
  if (args.dtype == DType::kF32) {
    attend_share<float, VectorAttention<float>>(args, share);
    return;
  }
#if PTD_ISA_LEVEL >= 4
  attend_share<bf16, TileAttention>(args, share);
#else
  attend_share<bf16, VectorAttention<bf16>>(args, share);
#endif
}

inline void attention_finish(const AttentionArgs& args, Share share) {
  if (args.dtype == DType::kF32) {
    join_chunks<float>(args, share);
  } else {
    join_chunks<bf16>(args, share);
  }
}

}  // namespace ptd::cpu::PTD_ISA_NAMESPACE
