#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "tests/tidy/include_rules.h"
#include "tests/tidy/source_tree.h"

namespace terrace::tidy {
namespace {

// Counts the violations of one line in a file of that path.
std::size_t count(std::string_view path, std::string_view line) {
  return check_includes(path, line).size();
}

TEST(IncludeOrder, DownwardIsAllowed) {
  EXPECT_EQ(count("runtime/step/place.cc", "#include \"offload/block_store.h\""), 0U);
  EXPECT_EQ(count("optim/adamw.cc", "#include \"kernels/kernel_context.h\""), 0U);
  EXPECT_EQ(count("memory/host/topology.cc", "#include \"memory/tier.h\""), 0U);
  EXPECT_EQ(count("bench/io.cc", "#include \"runtime/train/trainer.h\""), 0U);
  EXPECT_EQ(count("tests/bench/io_test.cc", "#include \"bench/io.h\""), 0U);
}

TEST(IncludeOrder, FoldersInTheRuntimeHaveAnOrderToo) {
  EXPECT_EQ(count("runtime/step/place.cc", "#include \"runtime/model/unit_phase.h\""), 0U);
  EXPECT_EQ(count("runtime/model/layout.cc", "#include \"runtime/step/program.h\""), 1U);
  EXPECT_EQ(
      count("runtime/engine/model_runtime.cc", "#include \"runtime/checkpoint/checkpoint.h\""), 1U);
  EXPECT_EQ(count("runtime/train/trainer.cc", "#include \"runtime/cli/commands.h\""), 1U);
  EXPECT_EQ(count("runtime/strange/a.cc", "#include \"runtime/strange/a.h\""), 1U);
}

TEST(IncludeOrder, OnlyTheCommandLineIncludesBenchmarks) {
  EXPECT_EQ(count("runtime/cli/bench_command.cc", "#include \"bench/bench.h\""), 0U);
  EXPECT_EQ(count("runtime/train/trainer.cc", "#include \"bench/bench.h\""), 1U);
  EXPECT_EQ(count("bench/io_bench.cc", "#include \"runtime/cli/commands.h\""), 1U);
}

TEST(IncludeOrder, InstalledHeadersOfTheCInterfaceNameEachOtherAlone) {
  EXPECT_EQ(count("runtime/capi/terrace.h", "#include \"terrace_units.h\""), 0U);
  EXPECT_EQ(count("runtime/capi/capi_call.h", "#include \"terrace_units.h\""), 1U);
  EXPECT_EQ(count("runtime/session/a.h", "#include \"terrace.h\""), 1U);
}

TEST(IncludeOrder, UpwardIsNot) {
  EXPECT_EQ(count("base/error.cc", "#include \"memory/tier.h\""), 1U);
  EXPECT_EQ(count("offload/nvme_store.h", "#include \"optim/adamw.h\""), 1U);
  EXPECT_EQ(count("optim/adamw.cc", "#include \"parallel/mesh.h\""), 1U);
  EXPECT_EQ(count("parallel/mesh.cc", "#include \"runtime/step/program.h\""), 1U);
}

TEST(IncludeOrder, SiblingsDoNotMeet) {
  EXPECT_EQ(count("kernels/cpu/copy.cc", "#include \"offload/block_store.h\""), 1U);
  EXPECT_EQ(count("offload/checksum.cc", "#include \"kernels/kernel_table.h\""), 1U);
  EXPECT_EQ(count("bench/io.cc", "#include \"tests/offload/fake.h\""), 1U);
}

TEST(IncludeOrder, NobodyIncludesTests) {
  EXPECT_EQ(count("memory/device.cc", "#include \"tests/memory/fake.h\""), 1U);
  EXPECT_EQ(count("runtime/cli/main.cc", "#include \"tests/memory/fake.h\""), 1U);
}

TEST(IncludeOrder, QuotedPathsStartAtTheRoot) {
  EXPECT_EQ(count("base/error.cc", "#include \"error.h\""), 1U);
  EXPECT_EQ(count("base/error.cc", "#include \"../base/error.h\""), 1U);
  EXPECT_EQ(count("base/error.cc", "#include <base/error.h>"), 1U);
}

TEST(IncludeOrder, VendorsStayInTheirPlace) {
  EXPECT_EQ(count("offload/uring/ring.cc", "#include <liburing.h>"), 0U);
  EXPECT_EQ(count("tests/offload/ring_test.cc", "#include <liburing.h>"), 0U);
  EXPECT_EQ(count("offload/nvme_store.cc", "#include <liburing.h>"), 1U);
  EXPECT_EQ(count("memory/host/worker_arena.cc", "#include <tbb/task_arena.h>"), 0U);
  EXPECT_EQ(count("kernels/cpu/matmul.cc", "#include <oneapi/tbb.h>"), 1U);
  EXPECT_EQ(count("kernels/cpu/matmul.cc", "#include <oneapi/dnnl/dnnl.hpp>"), 0U);
  EXPECT_EQ(count("optim/cpu/adamw.cc", "#include <oneapi/dnnl/dnnl.hpp>"), 1U);
  EXPECT_EQ(count("optim/cpu/adamw.cc", "#include \"hwy/foreach_target.h\""), 0U);
  EXPECT_EQ(count("optim/adamw.cc", "#include <hwy/highway.h>"), 1U);
  EXPECT_EQ(count("parallel/mesh.cc", "#include <mpi.h>"), 1U);
  EXPECT_EQ(count("base/hash.cc", "#include <xxhash.h>"), 0U);
  EXPECT_EQ(count("offload/hash.cc", "#include <xxhash.h>"), 1U);
  EXPECT_EQ(count("memory/device.cc", "#include <cuda_runtime.h>"), 1U);
  EXPECT_EQ(count("memory/cuda/cuda_device.cc", "#include <cuda_runtime.h>"), 0U);
  EXPECT_EQ(count("memory/device.cc", "#include <gtest/gtest.h>"), 1U);
}

TEST(IncludeOrder, ParsersOnlyInSources) {
  EXPECT_EQ(count("runtime/config/config.cc", "#include <toml++/toml.h>"), 0U);
  EXPECT_EQ(count("runtime/config/config.h", "#include <toml++/toml.h>"), 1U);
  EXPECT_EQ(count("optim/config.cc", "#include <nlohmann/json.hpp>"), 1U);
}

TEST(IncludeOrder, UnknownVendorsHaveNoPlace) {
  EXPECT_EQ(count("base/text.cc", "#include <boost/any.hpp>"), 1U);
  EXPECT_EQ(count("base/text.cc", "#include <fmt/format.h>"), 0U);
  EXPECT_EQ(count("base/text.cc", "#include <sys/mman.h>"), 0U);
  EXPECT_EQ(count("base/text.cc", "#include <vector>"), 0U);
}

TEST(IncludeOrder, SeesOddSpellingAndSkipsComments) {
  EXPECT_EQ(count("base/a.cc", "  #  include   \"memory/tier.h\"  // why"), 1U);
  EXPECT_EQ(count("base/a.cc", "// #include \"memory/tier.h\""), 0U);
  const Violations found = check_includes("base/a.cc", "\n\n#include <mpi.h>\n");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].line, 3);
}

TEST(IncludeOrder, TheTreeKeepsIt) {
  Violations found;
  for (const SourceFile& file : read_source_tree()) {
    if (!is_cpp(file.path)) continue;
    for (Violation& violation : check_includes(file.path, file.text)) {
      found.push_back(std::move(violation));
    }
  }
  EXPECT_TRUE(found.empty()) << describe(found);
}

}  // namespace
}  // namespace terrace::tidy
