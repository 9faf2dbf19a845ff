#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/e2e/tiny_training.h"

// Draws whole runs of the program from a seed. A group fixes every setting that may change the bits
// of a run. Its variants differ only in settings that must not change them.
namespace terrace {

// The ranks of each kind that may change bits. Pipeline stages multiply the ranks and change no
// bits.
struct RankMesh {
  int data = 1;
  int tensor = 1;
  bool sequence_parallel = false;

  int ranks() const { return data * tensor; }
};

struct MeshGroup {
  std::uint64_t seed = 0;
  std::string family;  // llama or gpt2
  bool tied = false;
  int layers = 1;
  int width = 32;
  int vocabulary = 256;
  std::string precision;
  std::string moments;    // --optimizer-state-dtype
  std::string gradients;  // --gradient-dtype
  RankMesh mesh;
  int micro_batches = 1;
  int micro_batch_size = 1;
  std::string max_grad_norm;
  int steps = 4;
  int warmup_steps = 1;
  std::string lr_scheduler;
  // All runs of the group stop after this step and go on with the other mesh; 0: they do not stop.
  int handover_after_step = 0;
  RankMesh mesh_after;

  bool clips() const { return max_grad_norm != "0"; }
  // Returns whether there is no clipping and only one micro-batch. Updates then run as soon as they
  // can, and nothing else separates the steps.
  bool is_corner() const { return !clips() && micro_batches == 1; }
  // Returns the model's config.json.
  std::string config() const;
  // Returns all flags that may change bits, except the ranks.
  Arguments arguments() const;
};

// One start of the program. Its budgets are chosen by the caller that runs it.
struct MeshVariant {
  RankMesh mesh;
  int stages = 1;
  std::string schedule;
  int virtual_stages = 1;
  int zero_stage = 0;
  std::string parameters;  // where they live
  std::string gradients;
  std::string optimizer;
  std::string activations;
  bool has_device = false;  // a budget of its own; else unified mode
  bool has_drive = false;
  // The budget is this times the smallest one that the program accepts; unset: much more than that.
  std::optional<double> device_room;
  std::optional<double> host_room;
  std::string lookahead;
  std::string recompute;
  std::string order;
  std::string threads;
  std::string io_engine;
  std::string master_weights;
  int checkpoint_every = 0;
  bool as_processes = false;

  int ranks() const { return mesh.ranks() * stages; }
  // Returns the flags without budgets, drive and run directory.
  Arguments arguments() const;
};

// A run from its first step to its last, in one piece or in two.
struct MeshRun {
  MeshVariant first;
  std::optional<MeshVariant> second;
  int stop_after_step = 0;       // where the first piece ends
  bool other_directory = false;  // the second piece writes to a run directory of its own
};

MeshGroup draw_group(std::uint64_t seed);
// Returns the runs of the group's seed. Corner groups begin with one whose last stage has only the
// head.
std::vector<MeshRun> draw_runs(const MeshGroup& group, int count);
// Returns a variant with these ranks as threads, no stages, everything in memory and ZeRO stage 0.
MeshVariant plain_variant(const RankMesh& mesh);

}  // namespace terrace
