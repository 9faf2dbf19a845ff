#include "tests/programs/program_case.h"

#include <fmt/format.h>

#include <algorithm>

namespace terrace {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014), which gives the same numbers with every standard library.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed * 0xD1342543DE82EF95U + 1) {}

  // Returns a number from 0 to count - 1.
  int below(int count) { return static_cast<int>(next() % static_cast<std::uint64_t>(count)); }
  int between(int low, int high) { return low + below(high - low + 1); }
  bool one_in(int count) { return below(count) == 0; }
  CaseTier tier() { return static_cast<CaseTier>(below(3)); }

 private:
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15U);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }

  std::uint64_t state_;
};

// Every mesh and ZeRO stage occurs equally often, as they follow from the number.
CaseRanks draw_ranks(int number, Dice& dice) {
  CaseRanks ranks;
  ranks.zero = number % 4;
  ranks.data = 1 + number / 4 % 4;
  ranks.stages = 1 + number / 16 % 4;
  ranks.tensor = 1 + number / 64 % 2;
  ranks.shares_rows = ranks.tensor > 1 && !dice.one_in(3);
  if (ranks.stages > 1) ranks.schedule = static_cast<CaseSchedule>(dice.below(3));
  if (ranks.schedule == CaseSchedule::kInterleaved) ranks.pieces = dice.between(1, 3);
  ranks.data_rank = dice.below(ranks.data);
  ranks.tensor_rank = dice.below(ranks.tensor);
  ranks.stage = dice.below(ranks.stages);
  return ranks;
}

CaseModel draw_model(const CaseRanks& ranks, Dice& dice) {
  CaseModel model;
  model.is_gpt2 = dice.one_in(2);
  model.tied = model.is_gpt2 ? !dice.one_in(4) : dice.one_in(2);
  model.has_biases = !model.is_gpt2 && dice.one_in(3);
  model.blocks = std::max(dice.between(1, 5), ranks.stages * ranks.pieces - 2);
  const bool is_odd = ranks.tensor == 1 && dice.one_in(4);
  model.heads = is_odd ? 3 : 4;
  model.width = model.heads * (is_odd ? 10 : 16);
  model.key_value_heads = model.is_gpt2 ? model.heads : is_odd ? 1 : 2;
  model.intermediate = model.is_gpt2 ? 4 * model.width : is_odd ? 71 : 176;
  model.vocabulary = dice.one_in(3) ? 131 : 256;
  model.sequences = dice.between(1, 2);
  model.positions = 8 * dice.between(1, 6);
  return model;
}

CaseHomes draw_homes(Dice& dice) {
  CaseHomes homes;
  homes.parameters = dice.tier();
  homes.gradients = dice.tier();
  homes.optimizer = dice.tier();
  homes.activations = dice.tier();
  homes.recompute = dice.one_in(2);
  homes.names_activations = dice.one_in(3);
  homes.streams_update = dice.one_in(3);
  return homes;
}

// Draws homes that are alike for all units, as a user asks for them, or different for each unit, as
// a plan may have them.
void draw_all_homes(ProgramCase& drawn, Dice& dice) {
  drawn.homes.assign(static_cast<std::size_t>(drawn.model.blocks) + 2, draw_homes(dice));
  if (dice.one_in(2)) return;
  for (CaseHomes& homes : drawn.homes) homes = draw_homes(dice);
}

void draw_formats(ProgramCase& drawn, Dice& dice) {
  constexpr std::array kTypes = {CaseType::kBf16, CaseType::kBf16, CaseType::kFp32,
                                 CaseType::kFp16};
  drawn.type = kTypes.at(static_cast<std::size_t>(dice.below(4)));
  drawn.moments = static_cast<CaseMoments>(dice.below(3));
  drawn.splits_masters = drawn.type == CaseType::kBf16 && dice.one_in(2);
  drawn.has_bf16_gradients = dice.one_in(3);
}

void draw_order(ProgramCase& drawn, Dice& dice) {
  const CaseRanks& ranks = drawn.ranks;
  drawn.micro_batches = dice.between(1, 4);
  if (ranks.schedule == CaseSchedule::kInterleaved) {
    drawn.micro_batches = ranks.stages * dice.between(1, 2);
  }
  drawn.layer_major = ranks.stages == 1 && dice.one_in(2);
  drawn.reduces_micro_batches = ranks.data > 1 && ranks.zero >= 2 && !drawn.layer_major &&
                                !drawn.has_bf16_gradients && dice.one_in(2);
  drawn.unified = dice.one_in(3);
  drawn.waits_for_norm = drawn.type == CaseType::kFp16 || dice.one_in(2);
  drawn.first_units = dice.between(1, 4);
  drawn.keeps_first_gradient = dice.one_in(3);
  drawn.lookahead = dice.below(5);
  drawn.chunk_blocks = std::max(dice.between(1, 6), ranks.data);
  drawn.updates_meet_on_host = dice.one_in(3);
}

void draw_budgets(ProgramCase& drawn, Dice& dice) {
  if (dice.one_in(2)) return;
  for (const std::size_t tier : {0, 1}) {
    if (!dice.one_in(4)) drawn.budget_percent.at(tier) = dice.between(40, 160);
  }
}

std::string name_of_case(int number, const ProgramCase& drawn) {
  constexpr std::array kTypes = {"fp32", "bf16", "fp16"};
  constexpr std::array kSchedules = {"1f1b", "gpipe", "interleaved"};
  const CaseRanks& ranks = drawn.ranks;
  std::string name = fmt::format("{:03}-{}-{}", number, drawn.model.is_gpt2 ? "gpt2" : "llama",
                                 kTypes.at(static_cast<std::size_t>(drawn.type)));
  if (drawn.model.tied) name += "-tied";
  if (ranks.data > 1) name += fmt::format("-dp{}-zero{}", ranks.data, ranks.zero);
  if (ranks.tensor > 1) name += fmt::format("-tp{}{}", ranks.tensor, ranks.shares_rows ? "s" : "");
  if (ranks.stages > 1) {
    name += fmt::format("-pp{}of{}-{}", ranks.stage, ranks.stages,
                        kSchedules.at(static_cast<std::size_t>(ranks.schedule)));
  }
  if (drawn.budget_percent[0] || drawn.budget_percent[1]) name += "-budget";
  if (drawn.is_evaluation) name += "-evaluation";
  return name;
}

// Returns the units that a micro-batch goes through: the embedding, all blocks in a drawn order,
// with some of them a second time, and the head.
std::vector<int> draw_chain(int blocks, Dice& dice) {
  std::vector<int> inner;
  for (int block = 1; block <= blocks; ++block) {
    inner.insert(inner.begin() + dice.below(block), block);
  }
  for (int more = dice.below(3); more > 0; --more) {
    const int block = dice.between(1, blocks);
    inner.insert(inner.begin() + dice.below(static_cast<int>(inner.size()) + 1), block);
  }
  inner.insert(inner.begin(), 0);
  inner.push_back(blocks + 1);
  return inner;
}

// Returns the tasks of one micro-batch. The head's forward has its backward in it, and the
// embedding's backward comes by itself at the end of a step.
std::vector<CaseTask> tasks_of_chain(const std::vector<int>& chain, int micro_batch) {
  std::vector<CaseTask> tasks;
  for (const int unit : chain) tasks.push_back({false, unit, micro_batch});
  for (std::size_t place = chain.size() - 1; place-- > 1;) {
    tasks.push_back({true, chain[place], micro_batch});
  }
  return tasks;
}

// Draws the order in which the micro-batches take turns, from one behind the other to task by task.
std::vector<CaseTask> draw_tasks(int blocks, int micro_batches, Dice& dice) {
  std::vector<std::vector<CaseTask>> left;
  for (int m = 0; m < micro_batches; ++m) {
    left.push_back(tasks_of_chain(draw_chain(blocks, dice), m));
  }
  const int longest_turn = dice.one_in(3) ? 1 : dice.one_in(2) ? 3 : 1000;
  std::vector<CaseTask> tasks;
  while (!left.empty()) {
    const int turn = longest_turn == 1000 ? 0 : dice.below(static_cast<int>(left.size()));
    std::vector<CaseTask>& chain = left[static_cast<std::size_t>(turn)];
    const int count = std::min(dice.between(1, longest_turn), static_cast<int>(chain.size()));
    tasks.insert(tasks.end(), chain.begin(), chain.begin() + count);
    chain.erase(chain.begin(), chain.begin() + count);
    if (chain.empty()) left.erase(left.begin() + turn);
  }
  return tasks;
}

}  // namespace

ProgramCase program_case(int number) {
  Dice dice(static_cast<std::uint64_t>(number));
  ProgramCase drawn;
  drawn.ranks = draw_ranks(number, dice);
  drawn.model = draw_model(drawn.ranks, dice);
  draw_formats(drawn, dice);
  draw_order(drawn, dice);
  draw_all_homes(drawn, dice);
  draw_budgets(drawn, dice);
  drawn.is_evaluation = dice.one_in(6);
  drawn.name = name_of_case(number, drawn);
  return drawn;
}

ProgramCase frozen_case(int number) {
  ProgramCase drawn = program_case(3 * number);
  Dice dice(static_cast<std::uint64_t>(10'000 + number));
  const bool is_gpt2 = drawn.model.is_gpt2;
  const std::string block = is_gpt2 ? "h" : "model.layers";
  const auto layer = [&] { return fmt::format("{}.{}", block, dice.below(drawn.model.blocks)); };
  // The choices go from whole layers to single tensors, low and high.
  const std::vector<std::vector<std::string>> choices = {
      {layer() + ".*", layer() + ".*"},
      {fmt::format("{}.{}.*", block, drawn.model.blocks - 1)},
      {is_gpt2 ? "*.attn.*" : "*.self_attn.*"},
      {layer() + (is_gpt2 ? ".mlp.c_proj.*" : ".mlp.down_proj.*")},
      {is_gpt2 ? "*ln_*" : "*norm*"},
      {is_gpt2 ? "wpe.weight" : "model.embed_tokens.weight", layer() + ".*"},
      {is_gpt2 ? "ln_f.bias" : "model.norm.weight"},
      {"*.bias", is_gpt2 ? "wte.weight" : "*embed_tokens*"},
      {is_gpt2 ? "*c_fc*" : "*q_proj*", "*v_proj*"},
      {layer() + ".*norm*", layer() + ".*ln_1*", layer() + ".*"},
  };
  drawn.trainable =
      choices.at(static_cast<std::size_t>(dice.below(static_cast<int>(choices.size()))));
  drawn.name = "frozen-" + fmt::format("{:03}-", number) + drawn.name.substr(4);
  return drawn;
}

ProgramCase island_case(int number) {
  ProgramCase drawn = program_case(4 * number + 3);
  Dice dice(static_cast<std::uint64_t>(number) + 3'000'000);
  CaseRanks& ranks = drawn.ranks;
  ranks.islands = dice.between(2, 3);
  ranks.data = ranks.islands * dice.between(2, 3);
  ranks.data_rank = dice.below(ranks.data);
  ranks.is_hsdp = number % 4 >= 2;
  drawn.chunk_blocks = std::max(drawn.chunk_blocks, ranks.data);
  drawn.measures_noise = number % 2 == 1 && !drawn.is_evaluation;
  if (ranks.is_hsdp || drawn.measures_noise) drawn.reduces_micro_batches = false;
  drawn.name = fmt::format("i{}-{}of{}{}", name_of_case(number, drawn), ranks.islands,
                           ranks.is_hsdp ? "hsdp" : "hpz", drawn.measures_noise ? "-noise" : "");
  return drawn;
}

ProgramCase noise_case(int number) {
  ProgramCase drawn = program_case(4 * number);
  drawn.ranks = CaseRanks();
  drawn.is_evaluation = false;
  drawn.measures_noise = true;
  drawn.micro_batches = std::max(drawn.micro_batches, 2);
  drawn.reduces_micro_batches = false;
  drawn.name = fmt::format("n{}", name_of_case(number, drawn));
  return drawn;
}

ProgramCase coded_case(int number) {
  ProgramCase drawn = program_case(3 * number);
  Dice dice(static_cast<std::uint64_t>(number) + 4'000'000);
  CaseRanks& ranks = drawn.ranks;
  ranks.zero = 1 + number % 3;
  ranks.data = std::max(ranks.data, 2);
  drawn.chunk_blocks = std::max(drawn.chunk_blocks, ranks.data);
  drawn.reduces_micro_batches = false;
  drawn.measures_noise = dice.one_in(4) && !drawn.is_evaluation;
  const bool codes_parameters = ranks.zero == 3 && !dice.one_in(4);
  if (codes_parameters) drawn.parameter_wire = CaseWire::kInt8;
  const bool codes_gradients = !codes_parameters || !dice.one_in(3);
  if (codes_gradients) {
    drawn.gradient_wire = dice.one_in(2) ? CaseWire::kInt8 : CaseWire::kInt4;
    drawn.keeps_errors = drawn.type != CaseType::kFp16 && !dice.one_in(3);
    if (drawn.gradient_wire == CaseWire::kInt4) drawn.measures_noise = false;
  }
  for (CaseHomes& homes : drawn.homes) homes.errors = dice.tier();
  constexpr std::array kWires = {"", "-int8", "-int4"};
  drawn.name =
      fmt::format("c{}{}{}{}", name_of_case(number, drawn),
                  kWires.at(static_cast<std::size_t>(drawn.gradient_wire)),
                  drawn.keeps_errors ? "-errors" : "", codes_parameters ? "-parameters" : "");
  return drawn;
}

ProgramCase recorded_case(int number) {
  // The first sixteen of every 64 cases have one pipeline stage (draw_ranks()).
  ProgramCase drawn = program_case(number / 16 * 64 + number % 16);
  Dice dice(static_cast<std::uint64_t>(20'000 + number));
  drawn.tasks = draw_tasks(drawn.model.blocks, drawn.micro_batches, dice);
  drawn.name = "recorded-" + fmt::format("{:03}-", number) + drawn.name.substr(4);
  return drawn;
}

std::vector<ProgramCase> periodic_cases(int micro_batches) {
  std::vector<ProgramCase> cases;
  const auto add = [&](ProgramCase drawn) {
    if (drawn.ranks.stages > 1 || drawn.ranks.shares_rows) return;
    drawn.layer_major = false;
    drawn.micro_batches = micro_batches;
    drawn.name = "periodic-" + drawn.name;
    cases.push_back(std::move(drawn));
  };
  for (int number = 0; number < kProgramCases; ++number) add(program_case(number));
  for (int number = 0; number < kFrozenCases; ++number) add(frozen_case(number));
  return cases;
}

std::vector<PlanCase> plan_cases() {
  using Budgets = std::array<std::optional<int>, 3>;
  std::vector<PlanCase> cases;
  const auto add = [&cases](PlanCase one, const Budgets& budget_mib) {
    one.budget_mib = budget_mib;
    one.name = "plan-" + one.preset + "-" + one.name;
    cases.push_back(std::move(one));
  };
  add({.name = "memory", .preset = "nano", .micro_batches = 2}, {});
  add({.name = "fp32", .preset = "nano", .micro_batches = 2, .is_fp32 = true}, {{{}, 24, {}}});
  add({.name = "host", .preset = "nano", .has_drive = true}, {{{}, 10, {}}});
  add({.name = "device", .preset = "nano", .micro_batches = 4, .unified = false}, {{10, {}, {}}});
  add({.name = "drive", .preset = "nano", .unified = false, .has_drive = true}, {{10, 12, {}}});
  add({.name = "zero", .preset = "nano", .has_drive = true, .data = 4, .zero = 3}, {{{}, 10, {}}});
  add({.name = "stages", .preset = "nano", .micro_batches = 4, .stages = 2}, {{{}, 24, {}}});
  add({.name = "memory", .preset = "gpt2-124m", .micro_batches = 4}, {});
  add({.name = "host", .preset = "gpt2-124m", .micro_batches = 4, .has_drive = true},
      {{{}, 1200, {}}});
  add({.name = "unclipped", .preset = "gpt2-124m", .has_drive = true, .clips = false},
      {{{}, 900, {}}});
  add({.name = "drive", .preset = "gpt2-124m", .unified = false, .has_drive = true},
      {{800, 900, {}}});
  add({.name = "gpu", .preset = "gpt2-124m", .unified = false, .has_gpu = true}, {{1500, {}, {}}});
  add({.name = "zero", .preset = "gpt2-124m", .micro_batches = 2, .data = 2, .zero = 2}, {});
  add({.name = "memory", .preset = "llama-1b"}, {});
  add({.name = "host", .preset = "llama-1b", .has_drive = true}, {{{}, 6000, {}}});
  add({.name = "drive", .preset = "llama-1b", .unified = false, .has_drive = true},
      {{4000, 5000, {}}});
  add({.name = "gpu", .preset = "llama-1b", .unified = false, .has_drive = true, .has_gpu = true},
      {{6000, 12000, {}}});
  add({.name = "stages", .preset = "llama-1b", .micro_batches = 4, .has_drive = true, .stages = 2},
      {{{}, 6000, {}}});
  return cases;
}

}  // namespace terrace
