#include "runtime/compare/hash_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

HashTable table_of(const std::vector<std::string>& values) {
  HashTable table;
  table.model.units = {"the embedding", "block 0"};
  table.model.group_elements = {4096};
  table.model.group_units = {1};
  table.model.compute_type = "bf16";
  for (const std::string& value : values) {
    HashKey key;
    key.op = HashedOp::kUpdate;
    key.chunk = static_cast<std::int32_t>(table.keys.size());
    key.is_output = table.keys.size() % 2 == 0;
    key.value = value;
    table.keys.push_back(key);
  }
  return table;
}

class HashFiles : public testing::Test {
 protected:
  void write(const HashTable& table, std::int64_t first, std::int64_t last) {
    HashFile file(directory_.path(), 0);
    file.describe(table);
    for (std::int64_t step = first; step <= last; ++step) {
      std::vector<std::uint64_t> hashes;
      for (std::size_t k = 0; k < table.keys.size(); ++k) {
        hashes.push_back(static_cast<std::uint64_t>(step) * 100 + k);
      }
      file.add(step, hashes);
    }
  }
  RecordedHashes read() { return read_hash_file(hash_path(directory_.path(), 0)); }

  const TemporaryDirectory directory_;
};

TEST_F(HashFiles, ReadBackAsTheyWereWritten) {
  const HashTable table = table_of({"gradient", "parameters", "gradient"});
  write(table, 1, 3);
  const RecordedHashes found = read();
  ASSERT_EQ(found.tables.size(), 1U);
  EXPECT_EQ(found.tables[0].model, table.model);
  EXPECT_EQ(found.tables[0].keys, table.keys);
  ASSERT_EQ(found.rows.size(), 3U);
  EXPECT_EQ(found.rows.at(2).hashes, (std::vector<std::uint64_t>{200, 201, 202}));
  EXPECT_EQ(found.dropped_bytes, 0U);
}

TEST_F(HashFiles, HaveAnotherTableAfterAResume) {
  write(table_of({"a", "b"}), 1, 3);
  drop_hashes_after(directory_.path(), 2);
  write(table_of({"c"}), 3, 4);
  const RecordedHashes found = read();
  ASSERT_EQ(found.tables.size(), 2U);
  ASSERT_EQ(found.rows.size(), 4U);
  EXPECT_EQ(found.rows.at(2).table, 0U);
  EXPECT_EQ(found.rows.at(3).table, 1U);
  EXPECT_EQ(found.rows.at(3).hashes, (std::vector<std::uint64_t>{300}));
}

TEST_F(HashFiles, OfAnotherRunAreKeptBeside) {
  write(table_of({"a"}), 1, 3);
  drop_hashes_after(directory_.path(), 0);
  EXPECT_FALSE(directory_.has("hashes"));
  EXPECT_TRUE(directory_.has("hashes.before/rank-0.bin"));
  drop_hashes_after(directory_.path(), 0);
  EXPECT_TRUE(directory_.has("hashes.before/rank-0.bin"));
}

// A killed run may leave any part of its last block.
TEST_F(HashFiles, AreReadAsFarAsTheyAreWhole) {
  write(table_of({"a", "b"}), 1, 3);
  const std::string whole = directory_.read("hashes/rank-0.bin");
  const std::size_t row = 16 + 8 + 16 + 8;  // head, step, two hashes, checksum
  for (std::size_t cut = 1; cut <= row; ++cut) {
    directory_.write("hashes/rank-0.bin", whole.substr(0, whole.size() - cut));
    const RecordedHashes found = read();
    EXPECT_EQ(found.rows.size(), 2U) << cut;
    EXPECT_EQ(found.dropped_bytes, row - cut) << cut;
  }
  std::string damaged = whole;
  damaged[whole.size() - 12] ^= 1;
  directory_.write("hashes/rank-0.bin", damaged);
  EXPECT_EQ(read().rows.size(), 2U);
  drop_hashes_after(directory_.path(), 3);
  EXPECT_EQ(read().dropped_bytes, 0U) << "a resumed run drops a torn end";
}

TEST_F(HashFiles, OtherFilesAreRefusedOrEmpty) {
  directory_.write("hashes/rank-0.bin", "not hashes at all, but a text of some length");
  EXPECT_TRUE(read().rows.empty());
  EXPECT_GT(read().dropped_bytes, 0U);
  EXPECT_EQ(hash_paths(directory_.path()).size(), 1U);
  directory_.write("hashes/rank-x.bin", "");
  directory_.write("hashes/other", "");
  EXPECT_EQ(hash_paths(directory_.path()).size(), 1U);
  EXPECT_TRUE(hash_paths(directory_.path("none")).empty());
}

}  // namespace
}  // namespace terrace
