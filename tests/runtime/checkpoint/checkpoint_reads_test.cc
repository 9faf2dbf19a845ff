#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <string>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/hf_export.h"
#include "runtime/checkpoint/weight_state.h"
#include "tests/runtime/checkpoint/counting_files.h"
#include "tests/runtime/checkpoint/fused_names.h"
#include "tests/runtime/engine/ranks_fixture.h"

// The bytes that each rank of a mesh reads. In a checkpoint it reads the pieces that contain its
// part, each once. In Hugging Face's weights it reads only its part.
namespace terrace {
namespace {

constexpr std::int64_t kHeaderBytes = SafetensorsWriter::kDataAlignment;

// Returns a model with blocks of 29 MB a field, so that each rank has many pieces.
ModelConfig wide_model() {
  return parse_model_config(R"({"model_type": "llama", "hidden_size": 768,
      "intermediate_size": 2112, "num_hidden_layers": 2, "num_attention_heads": 12,
      "num_key_value_heads": 12, "vocab_size": 256, "max_position_embeddings": 64,
      "tie_word_embeddings": true})",
                            "the test");
}

struct Mesh {
  const char* name;
  MeshShape shape;
  std::int32_t zero_stage;
  // The largest share of the checkpoint that a rank has, and the number of runs that it has in each
  // file. The piece at each end of a run may belong to another rank except for one byte.
  double share;
  int runs;
};

// With ZeRO stage 1, a rank has whole parameters and a quarter of the moments. For a
// tensor-parallel rank, the weights that are cut by columns (31 % of a block) have elements of both
// ranks in every row. It reads all of those, and half of the others.
constexpr Mesh kMeshes[] = {
    {"one rank", {1, 1, 1}, 0, 1.0, 0},      {"dp 4, stage 3", {4, 1, 1}, 3, 0.25, 1},
    {"dp 4, stage 1", {4, 1, 1}, 1, 0.5, 1}, {"pp 2", {1, 1, 2}, 0, 0.52, 1},
    {"tp 2", {1, 2, 1}, 0, 0.66, 6},         {"dp 2, tp 2, pp 2, stage 3", {2, 2, 2}, 3, 0.2, 4},
};

// Adds the pieces that hold elements of the whole model's unit that a rank has at home, where
// `home` is a span of the rank's own sequence.
void add_elements(const UnitLayout& unit, ElementSpan home, std::set<std::int64_t>& pieces) {
  constexpr auto kPieceElements = static_cast<std::int64_t>(kHashPieceBytes / sizeof(float));
  for (const ParameterTensor& tensor : unit.tensors) {
    const std::int64_t begin = std::max(home.begin, tensor.offset) - tensor.offset;
    const std::int64_t end = std::min(home.end, tensor.offset + tensor.elements()) - tensor.offset;
    const TensorSlice& slice = tensor.slice;
    std::int64_t last = -1;
    for (std::int64_t i = begin; i < std::min(end, slice.elements_of(slice.rank)); ++i) {
      const std::int64_t element = slice.whole_offset + slice.whole_of(i, slice.rank);
      if (element / kPieceElements != last) pieces.insert(last = element / kPieceElements);
    }
  }
}

// Counts the bytes of all pieces that a rank needs. With fp32 compute the master is the parameter.
std::int64_t bytes_of_pieces(const StepModel& model, const UnitLayout& own,
                             const UnitLayout& whole) {
  const auto number = static_cast<std::int32_t>(own.index);
  std::set<std::int64_t> parameters;
  std::set<std::int64_t> state;
  for (std::int64_t chunk = 0; chunk < model.chunks(number); ++chunk) {
    const auto span = [&](const HomePart& part) {
      const std::int64_t begin = chunk * model.chunk_elements + part.begin;
      return ElementSpan{begin, begin + part.count};
    };
    if (model.has_parameters(number)) {
      add_elements(own, span(model.home_part(StateClass::kParameters, number, chunk)), parameters);
    }
    if (model.has_unit(number))
      add_elements(own, span(model.home_part(StateClass::kOptimizer, number, chunk)), state);
  }
  const auto bytes_of_file = static_cast<std::uint64_t>(whole.elements) * sizeof(float);
  const auto size_of_piece = [&](std::int64_t piece) {
    const std::uint64_t begin = static_cast<std::uint64_t>(piece) * kHashPieceBytes;
    return static_cast<std::int64_t>(std::min(kHashPieceBytes, bytes_of_file - begin));
  };
  std::int64_t bytes = 0;
  for (const std::int64_t piece : parameters) bytes += size_of_piece(piece);
  for (const std::int64_t piece : state) bytes += 2 * size_of_piece(piece);
  return bytes;
}

class CheckpointReads : public testing::Test {
 protected:
  CheckpointReads() {
    const ModelConfig model = wide_model();
    path_ = write_checkpoint(
        directory_.path(), {.step = 1}, {model, parameter_layout(model), *update_rules().front()},
        [](StateField, const UnitLayout&, std::int64_t begin, std::span<float> out) {
          for (std::size_t i = 0; i < out.size(); ++i) {
            out[i] = static_cast<float>(begin + static_cast<std::int64_t>(i));
          }
        });
  }

  std::int64_t size_of(const char* name) const {
    return static_cast<std::int64_t>(
        std::filesystem::file_size(std::filesystem::path(path_) / name));
  }

  // Loads the checkpoint as one rank, and compares the bytes that it has read with those that it
  // needed.
  void load(const ModelRuntimeOptions& options, const Mesh& mesh) const {
    const TierPlan plan = plan_model(options);
    SilentLog log;
    ModelRuntime engine(options, plan, log);
    CountingFiles files;
    Checkpoint checkpoint(path_, files);
    const std::vector<UnitLayout> whole = parameter_layout(options.model);
    checkpoint.open(whole);
    const std::int64_t files_count = 3 * static_cast<std::int64_t>(whole.size());
    // config.json is read twice: to be verified, and to be used.
    const std::int64_t front =
        size_of("manifest.json") + 2 * size_of("config.json") + files_count * kHeaderBytes;
    EXPECT_EQ(files.bytes_read(), front);
    engine.fill_state(checkpoint);
    std::int64_t expected = front;
    std::int64_t all = 0;
    for (std::size_t u = 0; u < whole.size(); ++u) {
      expected += bytes_of_pieces(plan.model, engine.state().layout()[u], whole[u]);
      all += 3 * whole[u].elements * static_cast<std::int64_t>(sizeof(float));
    }
    EXPECT_EQ(files.bytes_read(), expected);
    const auto rounding = static_cast<double>(files_count * mesh.runs * 2) * kHashPieceBytes;
    EXPECT_LE(static_cast<double>(expected - front),
              mesh.share * static_cast<double>(all) + rounding);
  }

  const TemporaryDirectory directory_;
  std::string path_;
};

// Calls `body` on one thread per rank of the mesh, with the rank's options.
void on_ranks_of(const Mesh& mesh, const std::function<void(const ModelRuntimeOptions&)>& body) {
  auto worlds = make_thread_communicators(mesh.shape.ranks(), "world");
  std::vector<std::jthread> threads;
  for (const std::unique_ptr<Communicator>& world : worlds) {
    threads.emplace_back([&] {
      SCOPED_TRACE(mesh.name);
      const StepCommunicators communicators(*world, mesh.shape);
      ModelRuntimeOptions options = tiny_options(wide_model(), DType::kF32);
      options.chunk_elements = kChunkElements;
      options.ranks = communicators.ranks();
      options.zero_stage = mesh.zero_stage;
      options.evaluates = false;
      body(options);
    });
  }
}

TEST_F(CheckpointReads, AreOfThePiecesThatHaveARanksPartOnce) {
  for (const Mesh& mesh : kMeshes) {
    on_ranks_of(mesh, [&](const ModelRuntimeOptions& options) { load(options, mesh); });
  }
}

// Returns the bytes of weights that a rank reads.
std::int64_t bytes_of_weights(ModelRuntimeOptions options, const ModelConfig& model,
                              const std::string& directory) {
  options.model = model;
  const TierPlan plan = plan_model(options);
  SilentLog log;
  ModelRuntime engine(options, plan, log);
  CountingFiles files;
  const HfDirectory weights(directory, model, parameter_layout(model), log, files);
  const std::int64_t headers = files.bytes_read();
  engine.fill_state(WeightState(weights));
  return files.bytes_read() - headers;
}

// A fused tensor is not read whole for each of the parameters in it.
TEST(WeightReads, OfFusedTensorsAreAsOfOneTensorAParameter) {
  const TemporaryDirectory directory;
  const ModelConfig split = wide_model();
  const ModelConfig fused = with_fused_names(split);
  const auto zeros = [](const UnitLayout&, const ParameterTensor&, std::int64_t,
                        std::span<float> out) { std::ranges::fill(out, 0.0F); };
  const auto save = [&](const std::string& name, const ModelConfig& model) {
    write_hf_directory({.directory = directory.path(name), .types = {.usual = DType::kF32}}, model,
                       parameter_layout(model), zeros);
  };
  save("split", split);
  save("fused", fused);
  const std::int64_t all =
      parameter_count(parameter_layout(split)) * static_cast<std::int64_t>(sizeof(float));
  for (const Mesh& mesh : kMeshes) {
    on_ranks_of(mesh, [&](const ModelRuntimeOptions& options) {
      const std::int64_t bytes = bytes_of_weights(options, fused, directory.path("fused"));
      EXPECT_EQ(bytes, bytes_of_weights(options, split, directory.path("split")));
      if (mesh.shape.ranks() == 1) {
        EXPECT_EQ(bytes, all);
      }
      EXPECT_LT(0, bytes);
      EXPECT_LE(bytes, all);
    });
  }
}

}  // namespace
}  // namespace terrace
