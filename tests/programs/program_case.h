#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Steps whose compiled programs are compared between versions of Terrace. A case is described with
// words and numbers of its own, so that it stays the same however the product's types change. Only
// compile_case.cc turns it into these types.
namespace terrace {

enum class CaseTier : std::uint8_t { kDevice, kHost, kDrive };

// The tiers where the states of a unit live.
struct CaseHomes {
  CaseTier parameters = CaseTier::kHost;
  CaseTier gradients = CaseTier::kHost;
  CaseTier optimizer = CaseTier::kHost;
  CaseTier errors = CaseTier::kHost;  // of coded gradients
  CaseTier activations = CaseTier::kHost;
  bool recompute = false;
  bool names_activations = false;
  bool streams_update = false;
};

enum class CaseType : std::uint8_t { kFp32, kBf16, kFp16 };
enum class CaseMoments : std::uint8_t { kFp32, kBf16, kInt8 };
enum class CaseSchedule : std::uint8_t { k1F1B, kGpipe, kInterleaved };

// The form that numbers have between data-parallel ranks.
enum class CaseWire : std::uint8_t { kPlain, kInt8, kInt4 };

struct CaseModel {
  bool is_gpt2 = false;
  bool tied = false;
  bool has_biases = false;  // of llama: gpt2 always has
  int blocks = 2;
  int width = 64;
  int heads = 4;
  int key_value_heads = 4;
  int intermediate = 176;
  int vocabulary = 256;
  int sequences = 1;  // of a micro-batch
  int positions = 24;
};

// The place of one rank among all.
struct CaseRanks {
  int data = 1;
  int data_rank = 0;
  int tensor = 1;
  int tensor_rank = 0;
  bool shares_rows = false;
  int stages = 1;
  int stage = 0;
  int pieces = 1;  // of the model, that a stage has
  CaseSchedule schedule = CaseSchedule::k1F1B;
  int zero = 0;
  int islands = 1;
  bool is_hsdp = false;  // with islands; otherwise they are of hpZ
};

// A forward or backward in an order of compute that comes from outside.
struct CaseTask {
  bool is_backward = false;
  int unit = 0;
  int micro_batch = 0;
};

struct ProgramCase {
  std::string name;  // a number, and what is special
  CaseModel model;
  CaseRanks ranks;
  CaseType type = CaseType::kBf16;
  CaseMoments moments = CaseMoments::kFp32;
  bool splits_masters = false;
  bool has_bf16_gradients = false;
  bool reduces_micro_batches = false;
  int micro_batches = 1;
  bool layer_major = false;
  bool unified = true;
  bool waits_for_norm = true;
  int first_units = 3;
  bool keeps_first_gradient = false;
  int lookahead = 3;
  int chunk_blocks = 2;  // blocks of 4096 elements in a chunk
  bool updates_meet_on_host = false;
  std::vector<CaseHomes> homes;  // of each unit
  // Budgets, in percent of the live bytes without budgets. Unset: no budget.
  std::array<std::optional<int>, 3> budget_percent;  // by CaseTier
  bool is_evaluation = false;                        // on the training's program as its base
  bool measures_noise = false;
  CaseWire gradient_wire = CaseWire::kPlain;
  CaseWire parameter_wire = CaseWire::kPlain;
  bool keeps_errors = false;
  // Patterns of the tensors that train; empty: all.
  std::vector<std::string> trainable;
  // The order of the compute, if it comes from outside; empty: the schedule's own.
  std::vector<CaseTask> tasks;
};

inline constexpr int kProgramCases = 720;

// Returns case `number`, from 0 to kProgramCases - 1. It is drawn, and always the same.
ProgramCase program_case(int number);

inline constexpr int kFrozenCases = 240;

// Returns a drawn step, also always the same, in which only some tensors train. Otherwise it is the
// step of case 3 * number.
ProgramCase frozen_case(int number);

inline constexpr int kIslandCases = 160;

// Returns a drawn step, also always the same, of ranks in islands at ZeRO stage 3. Every second one
// measures the gradient noise. Otherwise it is the step of case 4 * number + 3.
ProgramCase island_case(int number);

inline constexpr int kNoiseCases = 160;

// Returns a drawn step, also always the same, of one rank that measures the gradient noise.
// Otherwise it is the step of case 4 * number.
ProgramCase noise_case(int number);

inline constexpr int kCodedCases = 360;

// Returns a drawn step, also always the same, of data-parallel ranks that exchange codes. Otherwise
// it is the step of a case whose ranks have ZeRO stage 1, 2 or 3.
ProgramCase coded_case(int number);

inline constexpr int kRecordedCases = 128;

// Returns a drawn step, also always the same, whose order of compute comes from outside: its
// micro-batches are interleaved, and each goes through the blocks in an order of its own, through
// some of them twice. Otherwise it is a step of one pipeline stage among the first cases.
ProgramCase recorded_case(int number);

// Returns the cases above that may be compiled by a period, but with this many micro-batches, one
// after the other. With 64 or more, their programs have repeated ops.
std::vector<ProgramCase> periodic_cases(int micro_batches);

// A preset whose places are planned, with budgets in MiB.
struct PlanCase {
  std::string name;
  std::string preset;
  int positions = 128;
  int micro_batches = 1;
  bool unified = true;
  bool has_drive = false;
  bool has_gpu = false;
  bool clips = true;
  bool is_fp32 = false;
  std::array<std::optional<int>, 3> budget_mib = {};  // by CaseTier
  int data = 1;
  int stages = 1;
  int zero = 0;
};

std::vector<PlanCase> plan_cases();

}  // namespace terrace
