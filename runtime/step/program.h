#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "memory/tier.h"
#include "runtime/model/op_role.h"
#include "runtime/step/lane.h"
#include "runtime/step/parts.h"

// A compiled training step: which bytes are where, and which operation does what after which other.
// Plain data: it prints as text and compares with ==. docs/step-program.md explains it.
namespace terrace {

using BufferId = std::int32_t;
using OpId = std::int32_t;
inline constexpr BufferId kNoBuffer = -1;

enum class OpKind : std::uint8_t {
  kInput,              // this step's tokens and targets enter the compute tier
  kForward,            // a unit's forward of one micro-batch
  kRecompute,          // the forward again, for what the backward needs
  kHead,               // head, loss, and their backward, of one micro-batch
  kBackward,           // a block's backward of one micro-batch
  kEmbeddingBackward,  // of all micro-batches
  kUpload,
  kDownload,
  kRead,
  kWrite,
  kAllReduce,      // the ranks' gradients of a chunk are added, all have the sum
  kReduceScatter,  // likewise, each has its part of the sum
  kAllGather,      // the ranks' parts of a chunk come together
  kGatherSums,     // norm partials and losses of all ranks come together
  kSend,           // to a neighbour: what, says the op's message
  kReceive,        // from a neighbour
  kAccumulate,     // a micro-batch's gradient joins a sum that is kept elsewhere
  kRoundGradient,  // a chunk's local sum to the type that ranks exchange and homes have
  kNormPartials,   // sums of squares of a finished gradient
  kStepScalars,    // the scalars of this step's updates, where those do not wait for the norm
  kNormFinish,     // norm; where updates wait for it, clip coefficient, their scalars, loss scale
  kUpdate,         // optimizer, one chunk
};
std::string_view name_of(OpKind kind);

// What passes between pipeline stages.
enum class Message : std::uint8_t {
  kNone,
  kHidden,          // the hidden states behind a stage's last unit
  kHiddenGradient,  // their gradient
  kTiedGradient,    // of a tied embedding: its gradient from the head
  kUpdated,         // of a tied embedding: its parameters, when the first stage has updated them
};
std::string_view name_of(Message message);
// Where an op of kind kSend or kReceive waits for its message.
Lane lane_of(OpKind kind, Message message);

enum class Life : std::uint8_t {
  kPersistent,  // keeps its place and content always: homes, constants
  kCarried,     // written in a step, used up by the next step's deferred ops
  kTransient,   // shares space with others
};

// What a buffer is for, where somebody looks for it: between the steps, or in a program that shares
// its memory.
enum class BufferKind : std::uint8_t {
  kOther,  // nobody looks for it
  // Homes: of a unit's states in memory, of a chunk's on NVMe.
  kParameters,
  kState,
  kGradients,
  // Of the whole step.
  kTokens,
  kConstants,
  kWorkspace,
  kLosses,
  kLossesOnHost,  // a copy, where the compute tier is another
  kNormPartials,
  kNormPartialsOnDevice,
  kSumsOfRanks,
  kStepScalars,
  kStepScalarsOnDevice,
  kLossScale,
  // From another pipeline stage; by slot.
  kReceivedHidden,
  kReceivedHiddenGradient,
  // Of a micro-batch, between a unit's forward and its backward.
  kHiddenAway,
  kSavedAway,
};

// Names a buffer for code, as its name does for people. No two buffers of a program have one key
// that is not kOther; persistent buffers have such a key.
struct BufferKey {
  BufferKind kind = BufferKind::kOther;
  std::int32_t unit = -1;
  std::int64_t number = -1;  // of the chunk, the slot or the micro-batch

  friend auto operator<=>(const BufferKey&, const BufferKey&) = default;
};

struct Buffer {
  std::string name = "";  // for people
  BufferKey key = {};
  std::size_t size_bytes = 0;
  Tier tier = Tier::kHost;
  Account account = Account::kWorkspace;
  Life life = Life::kTransient;
  std::size_t offset = 0;  // in the tier's arena; of an NVMe buffer: its extent's number

  friend bool operator==(const Buffer&, const Buffer&) = default;
};

// A range of a buffer that an op touches.
struct Access {
  Role role = Role::kSource;
  BufferId buffer = kNoBuffer;
  std::size_t offset = 0;  // bytes from the buffer's start
  std::size_t size_bytes = 0;
  std::int32_t number = 0;  // of kBetween: which of its unit's

  friend bool operator==(const Access&, const Access&) = default;
};

// An op to wait for: of the same iteration (distance 0, an earlier op) or of the one before (1).
struct Dependency {
  OpId op = 0;
  int distance = 0;

  friend bool operator==(const Dependency&, const Dependency&) = default;
};

struct OpCost {
  double flops = 0;
  double bytes = 0;  // what the lane moves

  friend bool operator==(const OpCost&, const OpCost&) = default;
};

struct Op {
  OpKind kind = OpKind::kInput;
  Message message = Message::kNone;
  Lane lane = Lane::kCompute;
  std::int32_t step = 0;        // of a unit's pass: which of its steps
  std::string_view phase = "";  // what that step is called, where there are several
  std::int32_t unit = -1;
  std::int32_t micro_batch = -1;
  std::int32_t chunk = -1;
  std::int32_t use = 0;  // of compute: which of the unit's uses in the micro-batch
  Parts parts = kOfThisStep;
  Account account = Account::kStaging;  // of copies: what kind of bytes they carry
  std::vector<Access> reads = {};
  std::vector<Access> writes = {};
  std::vector<Dependency> after = {};
  OpCost cost = {};

  // The access with this role, reads first; null if there is none.
  const Access* find(Role role) const;
  // Whether the op reads what has this role: a gradient that is read is added to, else assigned.
  bool reads_role(Role role) const;
  bool is_deferred() const { return parts == kOfStepBefore; }

  friend bool operator==(const Op&, const Op&) = default;
};

struct TierUse {
  std::size_t packed_bytes = 0;                       // the arena
  std::size_t live_bytes = 0;                         // the most that is live at once
  std::array<std::size_t, kAccountCount> accounts{};  // live bytes by account, at that moment

  friend bool operator==(const TierUse&, const TierUse&) = default;
};

struct Program {
  Tier compute_tier = Tier::kDevice;  // kHost in unified mode
  std::int32_t units = 0;
  std::int32_t micro_batches = 1;
  std::vector<Buffer> buffers;
  std::vector<Op>
      ops;  // in an order that would be right if each op completed before the next began
  std::array<TierUse, kTierCount> use{};

  const TierUse& use_of(Tier tier) const { return use.at(static_cast<std::size_t>(tier)); }
  friend bool operator==(const Program&, const Program&) = default;
};

// Returns the buffer with this key, which is not kOther; kNoBuffer if there is none.
BufferId find_buffer(const Program& program, const BufferKey& key);

// Returns the bytes of each NVMe buffer, by extent number. For a program without a base.
std::vector<std::size_t> extent_sizes(const Program& program);

// Bytes the lane carries in one body.
double lane_bytes(const Program& program, Lane lane);
// Likewise, of one kind of bytes.
double lane_bytes(const Program& program, Lane lane, Account account);

// "backward 3 mb 0", "read param[3].1".
std::string describe(const Program& program, const Op& op);
// One line per op, with its lane, accesses and edges.
std::string to_text(const Program& program);

}  // namespace terrace
