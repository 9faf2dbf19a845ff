#include "tests/programs/program_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <span>

#include "base/check.h"
#include "base/hash.h"
#include "runtime/step/unrolled_program.h"
#include "tests/programs/compile_case.h"

namespace terrace {
namespace {

template <typename Key>
std::string word_of(const std::map<Key, std::string>& words, Key key) {
  const auto word = words.find(key);
  TERRACE_CHECK(word != words.end());
  return word->second;
}

std::string word_of(Tier tier) {
  static const std::map<Tier, std::string> kWords = {
      {Tier::kDevice, "device"}, {Tier::kHost, "host"}, {Tier::kNvme, "drive"}};
  return word_of(kWords, tier);
}

std::string word_of(Account account) {
  static const std::map<Account, std::string> kWords = {{Account::kParameters, "parameters"},
                                                        {Account::kGradients, "gradients"},
                                                        {Account::kOptimizerState, "optimizer"},
                                                        {Account::kActivations, "activations"},
                                                        {Account::kErrors, "errors"},
                                                        {Account::kStaging, "staging"},
                                                        {Account::kWorkspace, "workspace"},
                                                        {Account::kSlack, "slack"}};
  return word_of(kWords, account);
}

const std::map<Lane, std::string>& lane_words() {
  static const std::map<Lane, std::string> kWords = {{Lane::kCompute, "compute"},
                                                     {Lane::kUpload, "upload"},
                                                     {Lane::kDownload, "download"},
                                                     {Lane::kRead, "read"},
                                                     {Lane::kWrite, "write"},
                                                     {Lane::kCollective, "data ranks"},
                                                     {Lane::kIsland, "island ranks"},
                                                     {Lane::kInterIsland, "inter-island ranks"},
                                                     {Lane::kTensor, "tensor ranks"},
                                                     {Lane::kSend, "to next stage"},
                                                     {Lane::kReceive, "from previous"},
                                                     {Lane::kSendBack, "to previous stage"},
                                                     {Lane::kReceiveBack, "from next"},
                                                     {Lane::kUpdate, "update"},
                                                     {Lane::kCode, "code"}};
  return kWords;
}

const std::map<OpKind, std::string>& kind_words() {
  static const std::map<OpKind, std::string> kWords = {{OpKind::kInput, "take input"},
                                                       {OpKind::kForward, "forward"},
                                                       {OpKind::kRecompute, "forward again"},
                                                       {OpKind::kBackward, "backward"},
                                                       {OpKind::kUpload, "upload"},
                                                       {OpKind::kDownload, "download"},
                                                       {OpKind::kRead, "read"},
                                                       {OpKind::kWrite, "write"},
                                                       {OpKind::kAllReduce, "all-reduce"},
                                                       {OpKind::kReduceScatter, "reduce-scatter"},
                                                       {OpKind::kAllGather, "all-gather"},
                                                       {OpKind::kAllToAll, "all-to-all"},
                                                       {OpKind::kGatherSums, "gather sums"},
                                                       {OpKind::kSend, "send"},
                                                       {OpKind::kReceive, "receive"},
                                                       {OpKind::kAccumulate, "accumulate"},
                                                       {OpKind::kRoundGradient, "round gradient"},
                                                       {OpKind::kEncode, "encode"},
                                                       {OpKind::kDecode, "decode"},
                                                       {OpKind::kDecodeSum, "decode sum"},
                                                       {OpKind::kNormPartials, "norm partials"},
                                                       {OpKind::kKeepGradient, "keep gradient"},
                                                       {OpKind::kFirstBackward, "first backward"},
                                                       {OpKind::kNoisePartials, "noise partials"},
                                                       {OpKind::kStepScalars, "step scalars"},
                                                       {OpKind::kNormFinish, "norm finish"},
                                                       {OpKind::kUpdate, "update"}};
  return kWords;
}

const std::map<Message, std::string>& message_words() {
  static const std::map<Message, std::string> kWords = {
      {Message::kHidden, " hidden"},
      {Message::kHiddenGradient, " hidden gradient"},
      {Message::kBorrowedGradient, " tied gradient"},
      {Message::kUpdated, " updated"}};
  return kWords;
}

std::string parts_of(const Op& op) {
  static const std::map<Part, std::string> kWords = {
      {Part::kPrologue, "first"}, {Part::kBody, "middle"}, {Part::kDrain, "last"}};
  std::vector<std::string> parts;
  for (const auto& [part, word] : kWords) {
    if (op.parts.contains(part)) parts.push_back(word);
  }
  return fmt::format("{}", fmt::join(parts, "+"));
}

// Returns one access as text: "host 4096+128", or "drive #3 0+128" for an extent of the drive.
std::string place_text(const Program& program, const Access& access) {
  const Buffer& buffer = program.buffers.at(static_cast<std::size_t>(access.buffer));
  if (buffer.tier == Tier::kNvme) {
    return fmt::format("{} #{:06} {:012}+{}", word_of(buffer.tier), buffer.offset, access.offset,
                       access.size_bytes);
  }
  return fmt::format("{} {:012}+{}", word_of(buffer.tier), buffer.offset + access.offset,
                     access.size_bytes);
}

// Returns a line for each range, each range once, in order.
std::string accesses_text(const Program& program, const char* verb,
                          const std::vector<Access>& accesses) {
  std::vector<std::string> places;
  for (const Access& access : accesses) places.push_back(place_text(program, access));
  std::ranges::sort(places);
  places.erase(std::ranges::unique(places).begin(), places.end());
  std::string text;
  for (const std::string& place : places) text += fmt::format("    {} {}\n", verb, place);
  return text;
}

std::string edges_text(const Op& op, std::int64_t position) {
  std::vector<std::pair<int, std::int64_t>> edges;
  for (const Dependency& edge : op.after) edges.emplace_back(edge.distance, edge.op - position);
  std::ranges::sort(edges);
  std::string text;
  for (const auto& [distance, step] : edges) {
    text += fmt::format("    after {:+}{}\n", step, distance == 1 ? "'" : "");
    TERRACE_CHECK(distance == 0 || distance == 1);
  }
  return text;
}

std::string number_text(const char* word, std::int32_t number) {
  return number < 0 ? std::string() : fmt::format(" {} {}", word, number);
}

// Returns the word for what an op does. The last unit of every case computes the loss, in training
// together with its backward. The first unit's backward is one op for all micro-batches.
std::string word_of(const Program& program, const Op& op) {
  const bool computes = op.kind == OpKind::kForward || op.kind == OpKind::kBackward;
  if (computes && op.unit == program.units - 1) return "head";
  if (op.kind == OpKind::kBackward && op.unit == 0) return "embedding backward";
  return word_of(kind_words(), op.kind);
}

std::string op_text(const Program& program, std::int64_t position) {
  const Op& op = program.ops.at(static_cast<std::size_t>(position));
  return fmt::format("{}{} on {}:{}{}{} in {}, {:.9g} flops, {:.9g} bytes\n", word_of(program, op),
                     op.message == Message::kNone ? "" : word_of(message_words(), op.message),
                     word_of(lane_words(), op.lane), number_text("unit", op.unit),
                     number_text("micro-batch", op.micro_batch), number_text("chunk", op.chunk),
                     parts_of(op), op.cost.flops, op.cost.bytes) +
         accesses_text(program, "reads", op.reads) + accesses_text(program, "writes", op.writes) +
         edges_text(op, position);
}

std::string ledger_text(const Program& program) {
  std::string text;
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
    const TierUse& use = program.use_of(tier);
    text +=
        fmt::format("{}: {} packed, {} live\n", word_of(tier), use.packed_bytes, use.live_bytes);
    for (std::size_t a = 0; a < use.accounts.size(); ++a) {
      if (use.accounts.at(a) == 0) continue;
      text += fmt::format("    {} {}\n", word_of(static_cast<Account>(a)), use.accounts.at(a));
    }
  }
  return text;
}

}  // namespace

std::string program_text(const Program& program) {
  std::string text =
      fmt::format("computes on {}, {} units, {} micro-batches\n", word_of(program.compute_tier),
                  program.units, program.micro_batches) +
      ledger_text(program);
  for (std::int64_t i = 0; i < std::ssize(program.ops); ++i) text += op_text(program, i);
  return text;
}

// Returns the text of the program with a few repetitions of its repeated ops listed.
std::string unrolled_text(const Program& program) {
  constexpr std::int32_t kTimes = 3;
  const Repetition& repetition = program.repetition;
  if (repetition.times == 1) return program_text(program);
  return fmt::format("ops {} to {} are done {} times\n", repetition.begin, repetition.end - 1,
                     repetition.times) +
         program_text(UnrolledProgram(program, kTimes).program());
}

std::vector<std::string> all_words() {
  std::vector<std::string> words;
  for (const auto& [kind, word] : kind_words()) {
    if (kind == OpKind::kSend || kind == OpKind::kReceive) {
      for (const auto& [message, what] : message_words())
        words.push_back("\n" + word + what + " on ");
    } else {
      words.push_back("\n" + word + " on ");
    }
  }
  words.insert(words.end(), {"\nhead on ", "\nembedding backward on "});
  for (const auto& [lane, word] : lane_words()) words.push_back(" on " + word + ":");
  return words;
}

namespace {

std::vector<ProgramCase> drawn_cases() {
  std::vector<ProgramCase> cases;
  for (int number = 0; number < kProgramCases; ++number) cases.push_back(program_case(number));
  for (int number = 0; number < kFrozenCases; ++number) cases.push_back(frozen_case(number));
  for (int number = 0; number < kIslandCases; ++number) cases.push_back(island_case(number));
  for (int number = 0; number < kNoiseCases; ++number) cases.push_back(noise_case(number));
  for (int number = 0; number < kCodedCases; ++number) cases.push_back(coded_case(number));
  for (int number = 0; number < kRecordedCases; ++number) cases.push_back(recorded_case(number));
  constexpr int kMicroBatches = 70;
  for (ProgramCase& drawn : periodic_cases(kMicroBatches)) cases.push_back(std::move(drawn));
  return cases;
}

}  // namespace

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const ProgramCase& drawn : drawn_cases()) names.push_back(drawn.name);
  for (const PlanCase& plan : plan_cases()) names.push_back(plan.name);
  return names;
}

std::string case_text(const std::string& name) {
  static const std::map<std::string, ProgramCase> kCases = [] {
    std::map<std::string, ProgramCase> cases;
    for (const ProgramCase& drawn : drawn_cases()) cases.emplace(drawn.name, drawn);
    return cases;
  }();
  const auto drawn = kCases.find(name);
  if (drawn != kCases.end()) return unrolled_text(compile_case(drawn->second));
  for (const PlanCase& plan : plan_cases()) {
    if (plan.name == name) return unrolled_text(compile_plan(plan));
  }
  return {};
}

std::string fingerprint_line(const std::string& name, const std::string& text) {
  return fmt::format("{} {:016x}", name, hash_bytes(std::as_bytes(std::span(text))));
}

}  // namespace terrace
