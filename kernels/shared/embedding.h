#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>

#include "kernels/kernel_table.h"
#include "kernels/shared/elementwise.h"
#include "kernels/shared/map.h"
#include "kernels/shared/token_sort.h"

// The embedding. Its backward sorts the positions of all micro-batches by token and keeps the order
// of equal tokens. Then one block takes each token's positions and adds their rows in that order.
namespace terrace::shared {

// A thread has one pack from each of several neighbouring rows, so that their loads wait together.
inline constexpr int kRowsOfThread = 4;

// The positions of kRowsOfThread neighbouring rows.
struct RowPositions {
  const std::int32_t* given;  // of each row; null: the row's place in its sequence
  std::int64_t R;
  Divisor sequence;
  std::int64_t first_row;  // the place of row 0 among all rows

  // Calls body(j, position) for the rows begin + j; past the last row the position is arbitrary.
  template <typename Body>
  TERRACE_KERNEL void for_each(std::int64_t begin, const Body& body) const {
    if (given != nullptr) {
      TERRACE_UNROLL
      for (int j = 0; j < kRowsOfThread; ++j) {
        body(j, static_cast<std::int64_t>(given[begin + j < R ? begin + j : begin]));
      }
      return;
    }
    std::int64_t position = sequence.remainder(first_row + begin);
    TERRACE_UNROLL
    for (int j = 0; j < kRowsOfThread; ++j) {
      body(j, position);
      position = position + 1 == sequence.divisor() ? 0 : position + 1;
    }
  }
};

inline RowPositions row_positions(const TensorView& given, std::int64_t R, std::int64_t sequence,
                                  std::int64_t first_row) {
  TERRACE_CHECK(given.empty() || given.elements() == R);
  // Where positions are given, op.sequence may be 0.
  const std::int64_t length = given.empty() ? sequence : 1;
  return {given.empty() ? nullptr : given.as<std::int32_t>(), R,
          Divisor(length, first_row + R + kRowsOfThread), first_row};
}

template <typename T>
struct EmbeddingBody {
  const std::int32_t* tokens;
  const T* wte;
  const T* wpe;  // may be null
  T* h;
  std::int64_t R, V, C, first_token;
  RowPositions row_positions;
  float scale;
  bool aligned;

  TERRACE_KERNEL Words<T> scaled_sum(const Words<T>& row, const Words<T>& position) const {
    Floats<kPackOf<T>> sum = scaled_words<T>(scale, row);
    if (wpe != nullptr) {
      TERRACE_UNROLL
      for (int i = 0; i < kPackOf<T>; ++i) sum.at[i] += position.value(i);
    }
    return round_words<T>(sum);
  }

  TERRACE_KERNEL void operator()(std::int64_t group, std::int64_t first, int count) const {
    const std::int64_t begin = group * kRowsOfThread;
    std::int64_t token[kRowsOfThread];
    TERRACE_UNROLL
    for (int j = 0; j < kRowsOfThread; ++j) {
      token[j] = begin + j < R ? tokens[begin + j] - first_token : -1;
    }
    with_whole_packs<kPackOf<T>>(count, aligned, [&](int n, bool is_aligned) {
      Words<T> positions[kRowsOfThread];
      if (wpe != nullptr) {
        row_positions.for_each(begin, [&](int j, std::int64_t position) {
          positions[j] = load_words(wpe + position * C + first, n, is_aligned);
        });
      }
      Words<T> rows[kRowsOfThread];
      TERRACE_UNROLL
      for (int j = 0; j < kRowsOfThread; ++j) {
        rows[j] = {};
        if (token[j] < 0 || token[j] >= V) continue;
        rows[j] = load_words(wte + token[j] * C + first, n, is_aligned);
      }
      TERRACE_UNROLL
      for (int j = 0; j < kRowsOfThread; ++j) {
        if (begin + j >= R) continue;
        Words<T> row = rows[j];
        if (scale != 1.0F) {
          row = scaled_sum(rows[j], positions[j]);
        } else if (wpe != nullptr) {
          row = sum_of_words<T>(rows[j], positions[j]);
        }
        store_words(h + (begin + j) * C + first, row, n, is_aligned);
      }
    });
  }
};

// Without a first_token all tokens are in [0, V): the code that reads data has checked them.
template <typename Launcher>
void embedding_forward(Launcher& launcher, const EmbeddingForward& op) {
  const std::int64_t C = op.wte.shape[1];
  const std::int64_t R = op.tokens.elements();
  TERRACE_CHECK_EQ(op.h.elements(), R * C);
  with_compute_type(op.wte.dtype, [&]<typename T>(std::type_identity<T>) {
    const bool aligned = may_load_packs({op.wte.data, op.wpe.data, op.h.data}, C * sizeof(T));
    const EmbeddingBody<T> body{op.tokens.as<std::int32_t>(),
                                op.wte.as<T>(),
                                op.wpe.empty() ? nullptr : op.wpe.as<T>(),
                                op.h.as<T>(),
                                R,
                                op.wte.shape[0],
                                C,
                                op.first_token.value_or(0),
                                row_positions(op.positions, R, op.wpe.empty() ? 1 : op.sequence, 0),
                                op.scale,
                                aligned};
    launch_map<kPackOf<T>>(launcher, "embedding_forward", divide_up(R, kRowsOfThread), C, body);
  });
}

template <typename T>
struct AddPositionsBody {
  T* h;
  const T* wpe;
  std::int64_t R, C;
  RowPositions row_positions;
  bool aligned;

  TERRACE_KERNEL void operator()(std::int64_t group, std::int64_t first, int count) const {
    const std::int64_t begin = group * kRowsOfThread;
    with_whole_packs<kPackOf<T>>(count, aligned, [&](int n, bool is_aligned) {
      Words<T> rows[kRowsOfThread];
      Words<T> added[kRowsOfThread];
      row_positions.for_each(begin, [&](int j, std::int64_t position) {
        const std::int64_t row = begin + j < R ? begin + j : begin;
        rows[j] = load_words(h + row * C + first, n, is_aligned);
        added[j] = load_words(wpe + position * C + first, n, is_aligned);
      });
      TERRACE_UNROLL
      for (int j = 0; j < kRowsOfThread; ++j) {
        if (begin + j >= R) continue;
        store_words(h + (begin + j) * C + first, sum_of_words<T>(rows[j], added[j]), n, is_aligned);
      }
    });
  }
};

template <typename Launcher>
void add_positions(Launcher& launcher, const AddPositions& op) {
  const std::int64_t C = op.wpe.shape[1];
  const std::int64_t R = op.h.elements() / C;
  TERRACE_CHECK_EQ(op.h.elements(), R * C);
  with_compute_type(op.h.dtype, [&]<typename T>(std::type_identity<T>) {
    const bool aligned = may_load_packs({op.h.data, op.wpe.data}, C * sizeof(T));
    const RowPositions positions = row_positions(op.positions, R, op.sequence, op.first_row);
    const AddPositionsBody<T> body{op.h.as<T>(), op.wpe.as<T>(), R, C, positions, aligned};
    launch_map<kPackOf<T>>(launcher, "add_positions", divide_up(R, kRowsOfThread), C, body);
  });
}

// The body that numbers the tokens from the part's first token. Tokens of other parts and the token
// that is left out become V, so that they come last. Positions are numbered in the same way where
// they are the names.
struct NumberBody {
  const std::int32_t* tokens;
  SortedTokens to;
  std::int64_t offset;  // of the micro-batch
  std::int64_t first_token, V;
  std::int64_t left_out;  // a token as it is in `tokens`; negative: none

  TERRACE_KERNEL void operator()(std::int64_t, std::int64_t first, std::int64_t) const {
    const std::int64_t token = tokens[first] - first_token;
    const bool is_here = token >= 0 && token < V && tokens[first] != left_out;
    to.tokens[offset + first] = static_cast<std::int32_t>(is_here ? token : V);
    to.positions[offset + first] = static_cast<std::int32_t>(offset + first);
  }
};

// The pointers to every micro-batch's dh are stored in device memory, because a kernel's arguments
// have a fixed size.
inline constexpr int kPointersAtOnce = 32;
struct StorePointersKernel {
  std::array<const void*, kPointersAtOnce> pointers;
  const void** to;
  int count;

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    block.for_each_thread([&](int t) {
      if (t < count) to[t] = pointers[static_cast<std::size_t>(t)];
    });
  }
};

template <typename T>
TERRACE_KERNEL void add_words(Floats<kPackOf<T>>& sum, const Words<T>& words) {
  TERRACE_UNROLL
  for (int i = 0; i < kPackOf<T>; ++i) sum.at[i] += words.value(i);
}

// A block has some of the part's tokens, and assigns or adds to the gradient of each. This includes
// tokens that the batch does not have, so that no gradient is written twice. The tokens of a block
// lie far apart, because frequent tokens are neighbours in many vocabularies.
template <typename T>
struct EmbeddingRowsKernel {
  static constexpr int kThreads = 128;
  static constexpr int kPack = kPackOf<T>;
  static constexpr int kTokensOfBlock = 16;
  static constexpr int kTokensAtOnce = 4;  // of one row, whose loads wait together
  static constexpr int kRowsAtOnce = 8;    // of one token, whose loads wait together
  static_assert(kTokensOfBlock % kTokensAtOnce == 0);

  // A token's sorted positions [begin, end) and the row of the first one, in shared memory.
  struct Place {
    const T* first_row;
    std::int32_t begin, end;

    TERRACE_KERNEL std::int32_t rows() const { return end - begin; }
  };
  static constexpr std::size_t kBytes = kTokensOfBlock * sizeof(Place);

  SortedTokens sorted;
  const T* const* dh;  // of each micro-batch
  float* dwte;
  std::int64_t elements, V, C, blocks;
  Divisor rows;
  GradientMode mode;
  float scale;  // of each token's sum
  bool aligned;

  // Returns the first sorted position whose token is not below this one.
  TERRACE_KERNEL std::int32_t first_of(std::int64_t token) const {
    std::int64_t begin = 0;
    std::int64_t end = elements;
    while (begin < end) {
      const std::int64_t middle = (begin + end) / 2;
      if (sorted.tokens[middle] < token) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return static_cast<std::int32_t>(begin);
  }

  // Loads the first kRowsAtOnce of the sorted positions [begin, end); those past the end are 0.
  TERRACE_KERNEL void load_positions(std::int32_t begin, std::int32_t end,
                                     std::int32_t* positions) const {
    TERRACE_UNROLL
    for (int i = 0; i < kRowsAtOnce; ++i) {
      positions[i] = begin + i < end ? sorted.positions[begin + i] : 0;
    }
  }

  // The micro-batch that a position belongs to, and where its row is; positions count over all
  // micro-batches.
  struct Row {
    std::int32_t micro_batch;
    const T* data;
  };
  TERRACE_KERNEL Row row_of(std::int32_t position) const {
    const std::int32_t own = rows.short_quotient(position);
    const auto in_batch = position - own * static_cast<std::int32_t>(rows.divisor());
    return {own, dh[own] + in_batch * C};
  }

  // Returns the sum over the sorted positions [begin, end); each micro-batch is summed by itself
  // first.
  TERRACE_KERNEL Floats<kPack> token_sum(std::int32_t begin, std::int32_t end, std::int64_t c,
                                         int count, bool is_aligned) const {
    Floats<kPack> total = {};
    Floats<kPack> sum = {};  // of the micro-batch
    std::int32_t micro_batch = 0;
    std::int32_t position[kRowsAtOnce];
    load_positions(begin, end, position);
    for (std::int32_t next = begin; next < end; next += kRowsAtOnce) {
      const int there = end - next < kRowsAtOnce ? end - next : kRowsAtOnce;
      Row row[kRowsAtOnce];
      Words<T> words[kRowsAtOnce];
      TERRACE_UNROLL
      for (int i = 0; i < kRowsAtOnce; ++i) row[i] = row_of(position[i]);
      TERRACE_UNROLL
      for (int i = 0; i < kRowsAtOnce; ++i) {
        words[i] = {};
        if (i < there) words[i] = load_words(row[i].data + c, count, is_aligned);
      }
      load_positions(next + kRowsAtOnce, end, position);  // they are loaded along with the rows
      TERRACE_UNROLL
      for (int i = 0; i < kRowsAtOnce; ++i) {
        if (i >= there) continue;
        if (row[i].micro_batch != micro_batch) {
          total = total + sum;
          sum = {};
          micro_batch = row[i].micro_batch;
        }
        add_words(sum, words[i]);
      }
    }
    return total + sum;
  }

  TERRACE_KERNEL void write(std::int64_t token, const Floats<kPack>& sum, std::int64_t c, int count,
                            bool is_aligned) const {
    float* const to = dwte + token * C + c;
    Pack<float, kPack> joined = {};
    if (mode != GradientMode::kAssign) joined = load_pack<float, kPack>(to, count, is_aligned);
    TERRACE_UNROLL
    for (int i = 0; i < kPack; ++i) joined.at[i] += scale * sum.at[i];
    store_pack(to, joined, count, is_aligned);
  }

  // Writes elements [c, c + count) of kTokensAtOnce tokens that are `blocks` apart. The loads for
  // tokens with at most one row wait together.
  TERRACE_KERNEL void write_tokens(const Place* places, std::int64_t token, std::int64_t c,
                                   int count, bool is_aligned) const {
    Words<T> row[kTokensAtOnce];
    TERRACE_UNROLL
    for (int k = 0; k < kTokensAtOnce; ++k) {
      row[k] = {};
      if (places[k].rows() == 1) row[k] = load_words(places[k].first_row + c, count, is_aligned);
    }
    TERRACE_UNROLL
    for (int k = 0; k < kTokensAtOnce; ++k) {
      if (token + k * blocks >= V || places[k].rows() > 1) continue;
      if (places[k].rows() == 0 && mode != GradientMode::kAssign) continue;
      Floats<kPack> sum = {};
      add_words(sum, row[k]);
      write(token + k * blocks, sum, c, count, is_aligned);
    }
    for (int k = 0; k < kTokensAtOnce; ++k) {
      if (token + k * blocks >= V || places[k].rows() <= 1) continue;
      write(token + k * blocks, token_sum(places[k].begin, places[k].end, c, count, is_aligned), c,
            count, is_aligned);
    }
  }

  template <typename Block>
  TERRACE_KERNEL void operator()(Block& block) const {
    auto* const places = reinterpret_cast<Place*>(block.shared_memory());
    block.for_each_thread([&](int t) {
      if (t >= 2 * kTokensOfBlock) return;  // two searches for a token, at the same time
      Place& place = places[t / 2];
      (t % 2 == 0 ? place.begin : place.end) = first_of(block.index() + t / 2 * blocks + t % 2);
    });
    block.sync();
    block.for_each_thread([&](int t) {
      if (t >= kTokensOfBlock || places[t].rows() == 0) return;
      places[t].first_row = row_of(sorted.positions[places[t].begin]).data;
    });
    block.sync();
    block.for_each_thread([&](int t) {
      for (int k = 0; k < kTokensOfBlock; k += kTokensAtOnce) {
        const std::int64_t token = block.index() + k * blocks;
        if (token >= V) return;
        for (std::int64_t c = t * kPack; c < C; c += Block::kThreads * kPack) {
          const int count = C - c < kPack ? static_cast<int>(C - c) : kPack;
          with_whole_packs<kPack>(count, aligned, [&](int n, bool is_aligned) {
            write_tokens(places + k, token, c, n, is_aligned);
          });
        }
      }
    });
  }
};

template <typename T>
struct PositionRowsBody {
  static constexpr int kPack = kPackOf<T>;
  static constexpr int kRowsAtOnce = 8;  // loads that wait together

  const T* const* dh;
  float* dwpe;
  std::int64_t micro_batches, rows, C, sequence;
  bool aligned;

  // Returns the sum of one micro-batch's rows that have position p.
  TERRACE_KERNEL Floats<kPack> sum_of(const T* from, std::int64_t p, int count,
                                      bool is_aligned) const {
    Floats<kPack> sum = {};
    const std::int64_t end = p < sequence ? rows : 0;
    for (std::int64_t r = p; r < end; r += kRowsAtOnce * sequence) {
      Words<T> words[kRowsAtOnce];
      TERRACE_UNROLL
      for (int i = 0; i < kRowsAtOnce; ++i) {
        const std::int64_t row = r + i * sequence;
        words[i] = {};
        if (row < end) words[i] = load_words(from + row * C, count, is_aligned);
      }
      TERRACE_UNROLL
      for (int i = 0; i < kRowsAtOnce; ++i) add_words(sum, words[i]);
    }
    return sum;
  }

  TERRACE_KERNEL void operator()(std::int64_t p, std::int64_t first, int count) const {
    with_whole_packs<kPack>(count, aligned, [&](int n, bool is_aligned) {
      Floats<kPack> total = {};
      for (std::int64_t m = 0; m < micro_batches; ++m) {
        total = total + sum_of(dh[m] + first, p, n, is_aligned);
      }
      Pack<float, kPack> out;
      TERRACE_UNROLL
      for (int i = 0; i < kPack; ++i) out.at[i] = 0.0F + total.at[i];
      store_pack(dwpe + p * C + first, out, n, is_aligned);
    });
  }
};

struct EmbeddingWorkspace {
  SortedTokens tokens, other;
  std::int32_t* counts;
  const void** dh;
};

inline std::size_t embedding_backward_workspace(std::int64_t rows, std::int64_t micro_batches,
                                                std::int64_t, std::int64_t, int) {
  const auto elements = static_cast<std::size_t>(rows * micro_batches);
  const auto chunks = static_cast<std::size_t>(SortChunks(rows * micro_batches).count);
  return 4 * WorkspaceCutter::padded_bytes(elements * sizeof(std::int32_t)) +
         WorkspaceCutter::padded_bytes(chunks * kDigits * sizeof(std::int32_t)) +
         WorkspaceCutter::padded_bytes(static_cast<std::size_t>(micro_batches) * sizeof(void*));
}

template <typename Launcher>
void store_pointers(Launcher& launcher, std::span<const TensorView> views, const void** to) {
  for (std::size_t first = 0; first < views.size(); first += kPointersAtOnce) {
    StorePointersKernel kernel{{}, to + first, 0};
    for (; kernel.count < kPointersAtOnce && first + kernel.count < views.size(); ++kernel.count) {
      kernel.pointers[kernel.count] = views[first + kernel.count].data;
    }
    launcher.template launch<kPointersAtOnce>("embedding_backward", kernel, 1);
  }
}

// Rows of dh that are summed by name; names are tokens or positions.
struct NamedRows {
  std::span<const TensorView> names;  // an i32 [R] per micro-batch
  TensorView target;                  // row n belongs to the name first + n
  std::int64_t first, left_out;
  bool has_others;  // some names have no row
  GradientMode mode;
  float scale;
};

inline bool embedding_is_aligned(const EmbeddingBackward& op, std::size_t row_bytes) {
  bool aligned = may_load_packs({op.dwte.data, op.dwpe.data}, row_bytes);
  for (const TensorView& of_micro_batch : op.dh) {
    aligned = aligned && may_load_packs({of_micro_batch.data}, 0);
  }
  return aligned;
}

template <typename T, typename Launcher>
void sum_named_rows(Launcher& launcher, const NamedRows& op, const EmbeddingWorkspace& space,
                    bool aligned) {
  const std::int64_t V = op.target.shape[0];
  const std::int64_t C = op.target.shape[1];
  const std::int64_t rows = op.names[0].elements();
  const auto micro_batches = static_cast<std::int64_t>(op.names.size());
  const std::int64_t elements = rows * micro_batches;
  const auto* const dh = reinterpret_cast<const T* const*>(space.dh);
  for (std::int64_t m = 0; m < micro_batches; ++m) {
    const NumberBody body{
        op.names[m].as<std::int32_t>(), space.tokens, m * rows, op.first, V, op.left_out};
    launch_map<1>(launcher, "embedding_backward", 1, rows, body);
  }
  const SortedTokens sorted = sort_tokens(launcher, {space.tokens, space.other, space.counts},
                                          elements, op.has_others ? V : V - 1);
  using RowsKernel = EmbeddingRowsKernel<T>;
  const std::int64_t blocks = divide_up(V, RowsKernel::kTokensOfBlock);
  const RowsKernel kernel{sorted, dh,     op.target.as<float>(),   elements, V,
                          C,      blocks, Divisor(rows, elements), op.mode,  op.scale,
                          aligned};
  launcher.template launch<RowsKernel::kThreads>("embedding_backward", kernel, blocks,
                                                 RowsKernel::kBytes);
}

template <typename T, typename Launcher>
void embedding_rows(Launcher& launcher, const EmbeddingBackward& op,
                    const EmbeddingWorkspace& space) {
  const std::int64_t C = op.dwte.shape[1];
  const bool aligned = embedding_is_aligned(op, C * sizeof(T));
  const bool has_others = op.first_token.has_value() || op.padding_token >= 0;
  if (!op.dwte.empty()) {
    sum_named_rows<T>(launcher,
                      {op.tokens, op.dwte, op.first_token.value_or(0), op.padding_token, has_others,
                       op.wte_mode, op.scale},
                      space, aligned);
  }
  if (op.dwpe.empty()) return;
  if (!op.positions.empty()) {
    return sum_named_rows<T>(launcher,
                             {op.positions, op.dwpe, 0, -1, false, GradientMode::kAssign, 1.0F},
                             space, aligned);
  }
  const auto micro_batches = static_cast<std::int64_t>(op.dh.size());
  const PositionRowsBody<T> body{reinterpret_cast<const T* const*>(space.dh),
                                 op.dwpe.as<float>(),
                                 micro_batches,
                                 op.tokens[0].elements(),
                                 C,
                                 op.sequence,
                                 aligned};
  launch_map<kPackOf<T>>(launcher, "embedding_backward", op.dwpe.shape[0], C, body);
}

template <typename Launcher>
void embedding_backward(Launcher& launcher, const EmbeddingBackward& op) {
  TERRACE_CHECK(!op.dh.empty());
  TERRACE_CHECK_EQ(op.tokens.size(), op.dh.size());
  const std::int64_t rows = op.tokens[0].elements();
  const std::int64_t elements = rows * static_cast<std::int64_t>(op.tokens.size());
  TERRACE_CHECK_LE(elements, std::numeric_limits<std::int32_t>::max() - 1);
  for (std::size_t m = 0; m < op.dh.size(); ++m) {
    TERRACE_CHECK_EQ(op.tokens[m].elements(), rows);
    TERRACE_CHECK_EQ(op.dh[m].elements(), rows * op.dwte.shape[1]);
    if (!op.positions.empty()) TERRACE_CHECK_EQ(op.positions[m].elements(), rows);
  }
  TERRACE_CHECK(op.positions.empty() || op.positions.size() == op.dh.size());
  WorkspaceCutter cutter(launcher.workspace());
  EmbeddingWorkspace space;
  for (SortedTokens* tokens : {&space.tokens, &space.other}) {
    tokens->tokens = cutter.take<std::int32_t>(elements);
    tokens->positions = cutter.take<std::int32_t>(elements);
  }
  space.counts = cutter.take<std::int32_t>(kDigits * SortChunks(elements).count);
  space.dh = cutter.take<const void*>(static_cast<std::int64_t>(op.dh.size()));
  store_pointers(launcher, op.dh, space.dh);
  with_compute_type(op.dh[0].dtype, [&]<typename T>(std::type_identity<T>) {
    embedding_rows<T>(launcher, op, space);
  });
}

}  // namespace terrace::shared
