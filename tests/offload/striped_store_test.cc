#include "offload/striped_store.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "offload/memory_file.h"
#include "offload/posix_engine.h"
#include "tests/offload/store_fixture.h"

namespace terrace {
namespace {

constexpr std::size_t kStripedBlock = 64 * kKiB;

// Stripes that lie in memory.
class MemoryStripes final : public StripeFiles {
 public:
  explicit MemoryStripes(std::size_t count, std::size_t spacing = MemoryFile::kAlignment)
      : files_(count), spacing_(spacing) {
    for (MemoryFile& file : files_) {
      engines_.push_back(std::make_unique<PosixEngine>(std::vector<RawFile*>{&file},
                                                       InFlight{.pieces_max = 4}, "memory"));
    }
  }

  std::size_t count() const override { return files_.size(); }
  void prepare(std::span<const std::uint64_t> sizes) override {
    for (std::size_t i = 0; i < files_.size(); ++i) files_[i].resize(sizes[i]);
    sizes_.assign(sizes.begin(), sizes.end());
  }
  IoEngine& engine(std::size_t stripe) override { return *engines_[stripe]; }
  const std::string& file_name(std::size_t /*stripe*/) const override { return name_; }
  std::size_t alignment() const override { return MemoryFile::kAlignment; }
  std::size_t spacing() const override { return spacing_; }
  std::vector<StorePath> paths() const override { return std::vector<StorePath>(count()); }

  const std::vector<std::uint64_t>& sizes() const { return sizes_; }

 private:
  const std::string name_ = "memory";
  std::deque<MemoryFile> files_;
  const std::size_t spacing_;
  std::vector<std::unique_ptr<IoEngine>> engines_;
  std::vector<std::uint64_t> sizes_;
};

// Stores with shares, which take checksums on separate threads (true) or not.
class StripedStoreTest : public ::testing::TestWithParam<bool> {};

TEST_P(StripedStoreTest, BytesComeBackWhateverTheSharesAre) {
  for (const StripeShares& shares : {StripeShares{1}, {16, 5, 9}, {1, 16}}) {
    auto files = std::make_unique<MemoryStripes>(shares.size());
    const MemoryStripes& stripes = *files;
    SilentLog log;
    StripedStore store(
        {.block_bytes = kStripedBlock, .checksums_apart = GetParam(), .shares = shares},
        std::move(files), log);
    const std::vector<std::size_t> blocks = {7, 1, 40, 3, 160};
    std::vector<ExtentId> extents;
    for (const std::size_t count : blocks)
      extents.push_back(store.create_extent(count * kStripedBlock));
    store.prepare();
    std::vector<AlignedMemory> written;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      written.emplace_back(blocks[i] * kStripedBlock, store.alignment()).fill(i);
      write_bytes(store, extents[i], 0, written[i].span()).throw_if_failed();
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      AlignedMemory back(blocks[i] * kStripedBlock, store.alignment());
      read_bytes(store, extents[i], 0, back.span()).throw_if_failed();
      EXPECT_TRUE(back == written[i]) << i;
    }
    const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const double part = static_cast<double>(store.used_bytes()) * shares[i] / sum;
      EXPECT_NEAR(static_cast<double>(stripes.sizes()[i]), part, 2 * kStripedBlock) << i;
      EXPECT_EQ(store.paths().at(i).used_bytes, stripes.sizes()[i]) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Checksums, StripedStoreTest, ::testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "apart" : "inline");
});

}  // namespace
}  // namespace terrace
