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
#include "runtime/step/load_note.h"
#include "runtime/step/parts.h"

// A compiled training step: which bytes are where, what each operation does, and which others it
// waits for. Plain data: it prints as text and compares with ==. docs/step-program.md explains it.
namespace terrace {

using BufferId = std::int32_t;
using OpId = std::int32_t;
inline constexpr BufferId kNoBuffer = -1;

enum class OpKind : std::uint8_t {
  kInput,      // this step's tokens and targets enter the compute tier
  kForward,    // a unit's forward of one micro-batch
  kRecompute,  // the part of the forward that the backward needs, again
  kBackward,   // a unit's backward of one micro-batch; without a micro-batch: of all of them
  kUpload,
  kDownload,
  kRead,
  kWrite,
  kAllReduce,      // adds the ranks' gradients of a chunk; all get the sum
  kReduceScatter,  // does the same; each rank gets its part of the sum
  kAllGather,      // brings the ranks' parts of a chunk together
  kAllToAll,       // sends each rank its part of a coded chunk, and receives this rank's of all
  kGatherSums,     // brings norm partials and losses of all ranks together
  kSend,           // to a neighbour; the op's message says what
  kReceive,        // from a neighbour; the op's message says what
  kAccumulate,     // adds a micro-batch's gradient to a sum that is kept elsewhere
  kRoundGradient,  // rounds a chunk's local sum to the type of exchanges and homes
  kEncode,         // makes codes of a chunk, or of a part of it, for the way between ranks
  kDecode,         // makes parameters of the codes of all ranks
  kDecodeSum,      // adds up what the codes of all ranks stand for
  kNormPartials,   // sums of squares of a finished gradient
  // For the gradient noise scale (runtime/step/noise_movement.h):
  kKeepGradient,   // copies the first micro-batch's gradient, before others are added to it
  kFirstBackward,  // a backward that joins micro-batches, of the first micro-batch alone
  kNoisePartials,  // sums of squares of the gradient of a small batch
  kStepScalars,    // the scalars of this step's updates, if these do not wait for the norm
  kNormFinish,     // norm; if updates wait for it, clip coefficient, their scalars, loss scale
  kUpdate,         // optimizer, one chunk
};
std::string_view name_of(OpKind kind);

// The messages that pass between pipeline stages.
enum class Message : std::uint8_t {
  kNone,
  kHidden,          // the hidden states that a stage's last unit leaves
  kHiddenGradient,  // their gradient
  // For parameters that units of two pipeline stages use: their gradient, from the stage that has a
  // copy of them to the stage that updates them.
  kBorrowedGradient,
  kUpdated,  // the updated parameters, the other way
  // The sums of the routers of all units so far, and of all units behind them, the other way.
  kRouterSums,
  kLaterRouterSums,
};
std::string_view name_of(Message message);
// Returns the lane of an op of kind kSend or kReceive with this message.
Lane lane_of(OpKind kind, Message message);

enum class Life : std::uint8_t {
  kPersistent,  // always keeps its place and content: homes, constants
  kCarried,     // written in a step, used up by the next step's deferred ops
  kTransient,   // shares its space with others
};

// The purpose of a buffer that other code looks for, between the steps or in a program that shares
// the buffer's memory.
enum class BufferKind : std::uint8_t {
  kOther,  // no code looks for it
  // Homes. In memory a home has the state of a group, on NVMe the state of a chunk.
  kParameters,
  kState,
  kGradients,
  kErrors,
  // Buffers for the whole step.
  kTokens,
  kConstants,
  kWorkspace,
  kLosses,
  kLossesOnHost,  // a copy, if the compute tier is not the host
  kRouterSums,
  kRouterSumsOnHost,  // likewise
  kNormPartials,
  kNormPartialsOnDevice,
  kNoisePartials,
  kNoisePartialsOnDevice,
  kSumsOfRanks,
  kStepScalars,
  kStepScalarsOnDevice,
  kLossScale,
  // Receive from another pipeline stage; numbered by slot.
  kReceivedHidden,
  kReceivedHiddenGradient,
  // Activations of a micro-batch in their home, between a unit's forward and its backward.
  kHiddenAway,
  kSavedAway,
};

// Identifies a buffer for code, as its name does for people. No two buffers of a program have the
// same key, except keys of kind kOther. A persistent buffer always has a key of another kind.
struct BufferKey {
  BufferKind kind = BufferKind::kOther;
  std::int32_t owner = -1;   // the group whose home it is, or the unit whose activation it is
  std::int64_t number = -1;  // of the chunk, the slot, or the forward that made the activation

  friend auto operator<=>(const BufferKey&, const BufferKey&) = default;
};

struct Buffer {
  std::string name = "";  // for people
  BufferKey key = {};
  std::size_t size_bytes = 0;
  Tier tier = Tier::kHost;
  Account account = Account::kWorkspace;
  Life life = Life::kTransient;
  std::size_t offset = 0;  // in the tier's arena; for an NVMe buffer: its extent's number

  friend bool operator==(const Buffer&, const Buffer&) = default;
};

// A range of a buffer that an op touches.
struct Access {
  Role role = Role::kSource;
  BufferId buffer = kNoBuffer;
  std::size_t offset = 0;  // bytes from the buffer's start
  std::size_t size_bytes = 0;
  // In compute: for kBetween, which of the unit's buffers; for parameters and gradients, which of
  // the unit's groups.
  std::int32_t number = 0;

  friend bool operator==(const Access&, const Access&) = default;
};

// An op to wait for, in the same iteration (distance 0; an earlier op) or in the one before (1).
struct Dependency {
  OpId op = 0;
  int distance = 0;

  friend bool operator==(const Dependency&, const Dependency&) = default;
};

struct OpCost {
  double flops = 0;
  double bytes = 0;  // the bytes that the lane moves

  friend bool operator==(const OpCost&, const OpCost&) = default;
};

struct Op {
  OpKind kind = OpKind::kInput;
  Message message = Message::kNone;
  Lane lane = Lane::kCompute;
  std::int32_t step = 0;        // which step of a unit's pass it is
  std::string_view phase = "";  // the name of that step, if there are several
  std::int32_t unit = -1;
  std::int32_t group = -1;  // for updates and for movement of a group's states; else -1
  std::int32_t micro_batch = -1;
  std::int32_t chunk = -1;
  std::int32_t use = 0;  // for compute: which of the unit's uses in the micro-batch
  Parts parts = kOfThisStep;
  Account account = Account::kStaging;  // for copies: the kind of bytes that they carry
  std::vector<Access> reads = {};
  std::vector<Access> writes = {};
  std::vector<Dependency> after = {};
  OpCost cost = {};

  // Returns the access with this role, reads first; null if there is none.
  const Access* find(Role role) const;
  // Returns whether the op reads a buffer in this role. A gradient that it reads is added to; one
  // that it does not read is assigned.
  bool reads_role(Role role) const;
  bool is_deferred() const { return parts == kOfStepBefore; }

  friend bool operator==(const Op&, const Op&) = default;
};

struct TierUse {
  std::size_t packed_bytes = 0;                       // the size of the arena
  std::size_t live_bytes = 0;                         // the most bytes that are live at once
  std::array<std::size_t, kAccountCount> accounts{};  // live bytes by account, at that moment

  friend bool operator==(const TierUse&, const TierUse&) = default;
};

// The ops [begin, end) of a program, which are done `times` times in a row, for neighbouring
// micro-batches. The list has them once, for the first of these. Each time is one repetition. A
// program with repeated ops has no edges. It is planned, reported and compared; an UnrolledProgram
// of it is executed.
struct Repetition {
  // A buffer of which each repetition touches the next piece.
  struct Stride {
    BufferId buffer = kNoBuffer;
    std::size_t bytes = 0;
    // Whether the buffer has exactly one piece for each repetition. If so, an op behind the
    // repetitions that reads the first piece reads all pieces: UnrolledProgram adds the others.
    bool is_of_repetitions = false;

    friend bool operator==(const Stride&, const Stride&) = default;
  };
  // Bytes that each repetition leaves for the next. Every repetition leaves them in `own`. The next
  // one finds them there. The first repetition finds them in `before`, which earlier ops fill.
  struct Handover {
    BufferId before = kNoBuffer;
    BufferId own = kNoBuffer;

    friend bool operator==(const Handover&, const Handover&) = default;
  };

  OpId begin = 0;
  OpId end = 0;
  std::int32_t times = 1;
  std::vector<Stride> strides = {};
  // The buffers in memory that the repetitions fill. Every repetition fills them anew, at the same
  // place.
  std::vector<BufferId> filled = {};
  std::vector<Handover> handovers = {};

  friend bool operator==(const Repetition&, const Repetition&) = default;
};

struct Program {
  Tier compute_tier = Tier::kDevice;  // kHost in unified mode
  std::int32_t units = 0;
  std::int32_t groups = 0;
  std::int32_t micro_batches = 1;
  // By unit: the first unit that computes the same, with parameters of its own.
  std::vector<std::int32_t> like_units = {};
  std::vector<Buffer> buffers;
  std::vector<Op>
      ops;  // in an order that would be right if each op completed before the next began
  Repetition repetition = {};  // one time of no ops, if nothing is repeated
  std::array<TierUse, kTierCount> use{};
  std::vector<LoadNote> loads = {};  // of a program that is not a trial

  const TierUse& use_of(Tier tier) const { return use.at(static_cast<std::size_t>(tier)); }
  // Returns how many times in a row the op with this number is done.
  std::int32_t times_of(std::size_t op) const {
    const auto id = static_cast<OpId>(op);
    return repetition.begin <= id && id < repetition.end ? repetition.times : 1;
  }
  friend bool operator==(const Program&, const Program&) = default;
};

// Returns the buffer with this key, whose kind is not kOther; kNoBuffer if there is none.
BufferId find_buffer(const Program& program, const BufferKey& key);

// Returns the bytes of each NVMe buffer, by extent number. Only for a program without a base.
std::vector<std::size_t> extent_sizes(const Program& program);

// Returns the number of ops with every repetition counted.
std::size_t op_count(const Program& program);

// Returns the bytes that the lane carries in one body.
double lane_bytes(const Program& program, Lane lane);
// Returns the bytes of one account that the lane carries in one body.
double lane_bytes(const Program& program, Lane lane, Account account);

// Returns a text for people that names the op: "backward 3 mb 0", or for a copy "read <source> ->
// <target>".
std::string describe(const Program& program, const Op& op);
// Returns a text with one line per buffer, and one line per op with its lane, what describe() says,
// and its edges.
std::string to_text(const Program& program);

}  // namespace terrace
