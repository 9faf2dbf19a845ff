#include "tests/e2e/mesh_combinations.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <random>

namespace terrace {
namespace {

// The number of threads of a run grows with its ranks, and so does its time.
constexpr int kMostRanks = 12;
constexpr int kMostProcesses = 6;
constexpr int kSequenceLength = 16;

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}

  int between(int least, int most) {
    const auto choices = static_cast<std::uint64_t>(most - least) + 1;
    return least + static_cast<int>(random_() % choices);
  }
  bool percent(int share) { return between(1, 100) <= share; }
  // A value that is listed twice is drawn twice as often.
  template <typename Value>
  Value of(std::initializer_list<Value> values) {
    return values.begin()[between(0, static_cast<int>(values.size()) - 1)];
  }
  std::string text(std::initializer_list<const char*> values) { return of(values); }

 private:
  std::mt19937_64 random_;
};

RankMesh draw_mesh(Draw& draw, int most_ranks) {
  RankMesh mesh;
  mesh.data = draw.of({1, 1, 2, 3});
  mesh.tensor = draw.of({1, 1, 2});
  while (mesh.ranks() > most_ranks) {
    int& larger = mesh.data > mesh.tensor ? mesh.data : mesh.tensor;
    --larger;
  }
  mesh.sequence_parallel = mesh.tensor > 1 && draw.percent(50);
  return mesh;
}

void draw_schedule(Draw& draw, MeshGroup& group) {
  group.steps = draw.between(4, 7);
  group.lr_scheduler = draw.text({"cosine", "linear", "constant"});
  // A constant rate differs from step to step only while it grows.
  const bool grows = group.lr_scheduler == "constant" || draw.percent(20);
  group.warmup_steps = grows ? group.steps : draw.between(1, 3);
}

void draw_places(Draw& draw, MeshVariant& variant) {
  variant.has_device = draw.percent(50);
  const auto place = [&] {
    const std::string drawn = draw.text({"auto", "auto", "device", "host", "nvme"});
    return drawn == "device" && !variant.has_device ? "host" : drawn;
  };
  variant.parameters = place();
  variant.gradients = place();
  variant.optimizer = place();
  variant.activations = place();
  const auto on_drive = [](const std::string& name) { return name == "nvme"; };
  const auto places = {variant.parameters, variant.gradients, variant.optimizer,
                       variant.activations};
  variant.has_drive = std::any_of(places.begin(), places.end(), on_drive) || draw.percent(60);
  const auto room = [&]() -> std::optional<double> {
    if (draw.percent(50)) return std::nullopt;
    return draw.of({1.0, 1.0, 1.1, 1.4});
  };
  if (variant.has_device) variant.device_room = room();
  variant.host_room = room();
}

void draw_stages(Draw& draw, const MeshGroup& group, bool head_alone, MeshVariant& variant) {
  const int units = group.layers + 2;
  const int most = std::min(units, kMostRanks / variant.mesh.ranks());
  variant.stages = head_alone || draw.percent(15) ? most : std::min(draw.of({1, 1, 2, 3}), most);
  variant.schedule = draw.text({"1f1b", "1f1b", "gpipe", "interleaved", "interleaved"});
  if (variant.schedule != "interleaved") return;
  const int most_pieces = units / variant.stages;
  if (variant.stages > 1 && most_pieces > 1 && group.micro_batches % variant.stages == 0) {
    variant.virtual_stages = draw.between(2, std::min(3, most_pieces));
  } else {
    variant.schedule = "1f1b";
  }
}

MeshVariant draw_variant(Draw& draw, const MeshGroup& group, const RankMesh& mesh,
                         bool head_alone) {
  static const bool kHasIoUring = is_ok_here("io_uring");
  MeshVariant variant;
  variant.mesh = mesh;
  draw_stages(draw, group, head_alone, variant);
  draw_places(draw, variant);
  variant.zero_stage = draw.between(0, 3);
  variant.lookahead = draw.text({"auto", "auto", "1", "2", "4", "9"});
  variant.recompute = draw.text({"auto", "none", "full"});
  variant.order = draw.text({"auto", "layer-major", "micro-batch-major"});
  if (variant.stages > 1 && variant.order == "layer-major") variant.order = "micro-batch-major";
  variant.threads = draw.text({"1", "2", "3"});
  // Both are drawn everywhere, so a seed has the same other choices on every machine.
  const std::string engine = draw.text({"posix", "io_uring"});
  variant.io_engine = kHasIoUring ? engine : "posix";
  const std::string masters = draw.text({"auto", "split", "fp32"});
  variant.master_weights = group.precision == "fp32" && masters == "split" ? "auto" : masters;
  variant.checkpoint_every = draw.percent(20) ? draw.between(1, 3) : 0;
  const bool can_be_processes = variant.ranks() > 1 && variant.ranks() <= kMostProcesses;
  variant.as_processes = draw.percent(15) && can_be_processes && has_mpirun();
  return variant;
}

MeshRun draw_run(Draw& draw, const MeshGroup& group, bool head_alone) {
  MeshRun run;
  run.first = draw_variant(draw, group, group.mesh, head_alone);
  const bool is_handed_over = group.handover_after_step > 0;
  if (!is_handed_over && !draw.percent(33)) return run;
  run.second = is_handed_over ? draw_variant(draw, group, group.mesh_after, false)
                              : draw_variant(draw, group, group.mesh, head_alone);
  run.stop_after_step =
      is_handed_over ? group.handover_after_step : draw.between(1, group.steps - 1);
  run.other_directory = draw.percent(50);
  return run;
}

}  // namespace

std::string MeshGroup::config() const {
  nlohmann::json config;
  if (family == "gpt2") {
    config = nlohmann::json::parse(gpt2_config());
    config["n_embd"] = width;
    config["n_layer"] = layers;
    config["tie_word_embeddings"] = tied;
  } else {
    config = nlohmann::json::parse(llama_config(layers, width, tied));
  }
  config["vocab_size"] = vocabulary;
  return config.dump();
}

Arguments MeshGroup::arguments() const {
  return {"--precision",
          precision,
          "--optimizer-state-dtype",
          moments,
          "--gradient-dtype",
          gradients,
          "--gradient-accumulation-steps",
          std::to_string(micro_batches),
          "--micro-batch-size",
          std::to_string(micro_batch_size),
          "--sequence-length",
          std::to_string(kSequenceLength),
          "--max-grad-norm",
          max_grad_norm,
          "--max-steps",
          std::to_string(steps),
          "--warmup-steps",
          std::to_string(warmup_steps),
          "--lr-scheduler-type",
          lr_scheduler,
          "--validation-fraction",
          "0",
          "--progress",
          "off"};
}

Arguments MeshVariant::arguments() const {
  Arguments arguments = {"--zero-stage",        std::to_string(zero_stage),
                         "--place-parameters",  parameters,
                         "--place-gradients",   gradients,
                         "--place-optimizer",   optimizer,
                         "--place-activations", activations,
                         "--recompute",         recompute,
                         "--micro-batch-order", order,
                         "--threads",           threads,
                         "--io-engine",         io_engine,
                         "--master-weights",    master_weights,
                         "--tensor-parallel",   std::to_string(mesh.tensor),
                         "--pipeline-parallel", std::to_string(stages)};
  const auto add = [&](const std::string& flag, const std::string& value) {
    arguments.push_back(flag);
    arguments.push_back(value);
  };
  if (lookahead != "auto") add("--lookahead", lookahead);
  if (mesh.tensor > 1) add("--sequence-parallel", mesh.sequence_parallel ? "on" : "off");
  if (stages > 1) add("--pipeline-schedule", schedule);
  if (virtual_stages > 1) add("--virtual-stages", std::to_string(virtual_stages));
  if (checkpoint_every > 0) add("--checkpoint-every", std::to_string(checkpoint_every));
  if (!as_processes) add("--local-ranks", std::to_string(ranks()));
  return arguments;
}

MeshVariant plain_variant(const RankMesh& mesh) {
  MeshVariant variant;
  variant.mesh = mesh;
  variant.parameters = variant.gradients = variant.optimizer = variant.activations = "host";
  variant.recompute = "none";
  variant.order = "micro-batch-major";
  variant.threads = "1";
  variant.io_engine = "posix";
  variant.master_weights = "fp32";
  variant.lookahead = "auto";
  return variant;
}

MeshGroup draw_group(std::uint64_t seed) {
  Draw draw(seed);
  MeshGroup group;
  group.seed = seed;
  // The last digit decides what must not be left to chance: every second group has no clipping,
  // every second one has one micro-batch, and three of ten are corner groups.
  const std::uint64_t digit = seed % 10;
  const bool alone = digit == 0 || digit == 3 || digit == 4 || digit == 7 || digit == 8;
  group.max_grad_norm = digit % 2 == 0 ? "0" : draw.text({"0.05", "0.05", "1.0"});
  group.micro_batches = alone ? 1 : draw.between(2, 4);
  group.mesh = draw_mesh(draw, group.is_corner() ? 4 : 6);
  // A corner group's model is small enough to give each unit a stage. With one layer the head's
  // update is always left to the next step. With more layers it is left where the planner wants so.
  const bool corner = group.is_corner();
  const int most_layers = corner ? kMostRanks / group.mesh.ranks() - 2 : 4;
  group.layers =
      std::min(corner ? draw.of({1, 1, 1, 2, 3}) : draw.of({1, 1, 2, 2, 3, 4}), most_layers);
  group.family = draw.text({"llama", "gpt2"});
  group.tied = draw.percent(50);
  group.width = draw.of({32, 32, 64});
  group.vocabulary = draw.of({256, 256, 300, 509, 640});
  group.precision = draw.text({"bf16", "fp32"});
  group.moments = draw.text({"fp32", "fp32", "bf16", "int8"});
  group.gradients = draw.text({"fp32", "fp32", "bf16"});
  group.micro_batch_size = draw.of({1, 1, 2});
  draw_schedule(draw, group);
  if (digit == 6 || draw.percent(5)) {
    group.handover_after_step = draw.between(1, group.steps - 1);
    group.mesh_after = draw_mesh(draw, 6);
  }
  return group;
}

std::vector<MeshRun> draw_runs(const MeshGroup& group, int count) {
  constexpr std::uint64_t kSalt = 0x9e3779b97f4a7c15;
  Draw draw(group.seed ^ kSalt);
  std::vector<MeshRun> runs;
  for (int i = 0; i < count; ++i) {
    const bool head_alone = group.is_corner() && (i == 0 || draw.percent(50));
    runs.push_back(draw_run(draw, group, head_alone));
  }
  return runs;
}

}  // namespace terrace
