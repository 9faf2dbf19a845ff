#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "kernels/kernel_table.h"

// The choice of the code that computes attention on a GPU, and of the parts it works in. The choice
// depends on shapes alone, so that equal calls have equal bits.
namespace terrace {

enum class AttentionChoice : std::uint8_t {
  kOwn,    // the kernels of kernels/shared
  kCudnn,  // cuDNN where it has a plan, else kOwn
};

// Returns the choice that the value of TERRACE_ATTENTION, "own" or "cudnn", stands for; null or
// empty is kCudnn. Throws ConfigError.
AttentionChoice attention_choice(const char* value);

// Returns the reason why cuDNN is not used for such attention, or an empty string where it is used.
// cuDNN takes bf16 and fp16, heads of a multiple of 8 elements up to 128, as many queries as keys
// and rows on boundaries of 16 bytes, with or without a window. Our own kernels handle score caps
// and documents. The answer depends on the views' types and strides, and on whether first_keys is
// empty.
std::string cudnn_refusal(const AttentionForward& op);
std::string cudnn_refusal(const AttentionBackward& op);

// cuDNN's backward gives the same bits each time only with the gradients of the scores in memory, a
// square for each head. So it is called for as large a part of a batch at a time as memory allows:
// some sequences with all their heads, or some groups of the query heads of one sequence. All parts
// of a batch have the same size.
struct AttentionPart {
  std::int64_t sequences = 0;
  std::int64_t groups = 0;

  bool operator==(const AttentionPart&) const = default;
};

inline constexpr std::size_t kCudnnScoreBytes = 256 * kMiB;

// Returns the largest part whose squares take at most `score_bytes`. Returns none if the squares of
// one group take more, or if cuDNN's arrays would not lie on boundaries of 16 bytes.
std::optional<AttentionPart> attention_part(const AttentionShape& shape, std::size_t score_bytes);

// Returns a workspace size that is enough for cuDNN's backward of such a part: the squares, sums of
// queries' gradients in fp32, two values for each row, gradients of keys and values for each query
// head where heads share these, and 1 MiB.
std::size_t cudnn_part_bytes(const AttentionShape& shape, const AttentionPart& part);

}  // namespace terrace
