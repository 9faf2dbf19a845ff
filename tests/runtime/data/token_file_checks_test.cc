#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/error.h"
#include "runtime/data/data_files.h"
#include "runtime/data/dataset.h"
#include "runtime/data/file_signature.h"
#include "tests/runtime/temporary_directory.h"

// Token files and directories that are not what --data-format says.
namespace terrace {
namespace {

template <typename T>
std::string dump_of(const std::vector<std::int64_t>& ids, bool big_endian = false) {
  std::string bytes;
  for (const std::int64_t id : ids) {
    const T value = static_cast<T>(id);
    std::string one(sizeof(T), '\0');
    std::memcpy(one.data(), &value, sizeof(T));
    bytes += big_endian ? std::string(one.rbegin(), one.rend()) : one;
  }
  return bytes;
}

std::vector<std::int64_t> some_ids(std::int64_t vocabulary, std::size_t count = 3000) {
  std::mt19937 random(5);
  std::vector<std::int64_t> ids;
  while (ids.size() < count) ids.push_back(random() % vocabulary);
  return ids;
}

OpenedData open_ids(const std::string& path, DataFormat format, std::int64_t vocabulary) {
  return open_data({{path}, format, vocabulary});
}

struct WithHeader {
  const char* what;
  std::string file;
  std::string content;
  const char* remedy;
};

class FilesWithAHeader : public testing::TestWithParam<WithHeader> {};

TEST_P(FilesWithAHeader, AreNotBareIds) {
  const TemporaryDirectory temporary;
  const std::string path = temporary.write(GetParam().file, GetParam().content);
  for (const DataFormat format : {DataFormat::kRawU16, DataFormat::kRawU32, DataFormat::kAuto}) {
    try {
      open_ids(path, format, 65536);
      ADD_FAILURE() << name_of(format);
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
      EXPECT_NE(error.remedy().find(GetParam().remedy), std::string::npos) << error.what();
    }
  }
}

TEST(JsonObjects, AreNotText) {
  const TemporaryDirectory temporary;
  const std::string object = temporary.write("a.json", " {\n\"data\": [{\"prompt\": \"a\"}]}\n");
  TERRACE_EXPECT_THROW_WITH(open_ids(object, DataFormat::kAuto, 65536), ConfigError,
                            "one JSON object on several lines");
  EXPECT_NO_THROW(open_ids(object, DataFormat::kText, 65536));
  const std::string text = temporary.write("b.json", "a text\n");
  EXPECT_NO_THROW(open_ids(text, DataFormat::kAuto, 65536));
}

const std::string kZeros(64, '\0');

INSTANTIATE_TEST_SUITE_P(
    Each, FilesWithAHeader,
    testing::Values(
        WithHeader{"npy", "a.npy", "\x93NUMPY\x01" + kZeros + "x", "np.load("},
        WithHeader{"npy_called_bin", "a.bin", "\x93NUMPY\x01" + kZeros + "x", "np.load("},
        WithHeader{"npz", "a.npz", std::string("PK\x03\x04\x14\0", 6) + kZeros, "unpack"},
        WithHeader{"parquet", "a.parquet", "PAR1" + kZeros + "PAR1", "terrace.data prepare"},
        WithHeader{"arrow", "a.arrow", std::string("\xff\xff\xff\xff\x18\0\0\0", 8) + kZeros,
                   "ids"},
        WithHeader{"gzip", "a.bin.gz", std::string("\x1f\x8b\x08\0", 4) + kZeros, "unpack"},
        WithHeader{"zstd", "a.bin.zst", "\x28\xb5\x2f\xfd" + kZeros, "unpack"},
        WithHeader{"pickle", "meta",
                   std::string("\x80\x04\x95\x08\0\0\0\0\0\0\0", 11) + "K\x01K\x02K\x03s.",
                   "load it with Python"},
        WithHeader{"old_pickle", "meta", "\x80\x02}q" + kZeros + ".", "load it with Python"},
        WithHeader{"megatron", "a_document.idx", std::string("MMIDIDX\0\0\x01", 10) + kZeros,
                   ".bin file beside it"},
        WithHeader{"safetensors", "a", std::string("\x10\0\0\0\0\0\0\0{\"a\":", 13) + kZeros,
                   "leave it out"}),
    [](const auto& each) { return std::string(each.param.what); });

// At most one in 50,257 sequences of drawn ids begins like the name of a header.
TEST(FilesWithAHeader, AreNotFoundAmongDrawnIds) {
  std::mt19937 random(11);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = dump_of<std::uint16_t>({static_cast<std::int64_t>(random() % 50257)});
    while (bytes.size() < 512)
      bytes += dump_of<std::uint16_t>({static_cast<std::int64_t>(random() % 50257)});
    EXPECT_FALSE(find_signature("a", bytes, bytes.back(), bytes.size()).has_value());
  }
}

TEST(IdWidth, OfWiderIntegersIsRefusedWithTheWayToConvert) {
  const TemporaryDirectory temporary;
  struct Dump {
    std::string bytes;
    DataFormat format;
    std::int64_t vocabulary;
    const char* remedy;
  };
  const std::vector<std::int64_t> few = some_ids(50257);
  const std::vector<std::int64_t> many = some_ids(128256);
  const std::vector<Dump> dumps = {
      {dump_of<std::int32_t>(few), DataFormat::kRawU16, 50257, "--data-format raw-u32"},
      {dump_of<std::int32_t>(many), DataFormat::kRawU16, 128256, "--data-format raw-u32"},
      {dump_of<std::int64_t>(few), DataFormat::kRawU16, 50257, "'<i8'"},
      {dump_of<std::int64_t>(many), DataFormat::kRawU16, 128256, "'<i8'"},
      {dump_of<std::int64_t>(many), DataFormat::kRawU32, 128256, "'<i8'"},
      {dump_of<std::int32_t>(few, true), DataFormat::kRawU16, 50257, "'>i4'"},
      {dump_of<std::int64_t>(few, true), DataFormat::kRawU16, 50257, "'>i8'"},
      {dump_of<std::int64_t>(few, true), DataFormat::kRawU32, 50257, "'>i8'"}};
  for (const Dump& each : dumps) {
    const std::string path = temporary.write("a.bin", each.bytes);
    try {
      open_ids(path, each.format, each.vocabulary);
      ADD_FAILURE() << each.remedy;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("every other id is 0"), std::string::npos);
      EXPECT_NE(error.remedy().find(each.remedy), std::string::npos) << error.what();
    }
  }
}

TEST(IdWidth, OfWhatWasWrittenIsAccepted) {
  const TemporaryDirectory temporary;
  const std::string u16 = temporary.write("a.u16", dump_of<std::uint16_t>(some_ids(50257)));
  EXPECT_EQ(open_ids(u16, DataFormat::kRawU16, 50257).tokens->count(), 3000);
  EXPECT_EQ(open_ids(u16, DataFormat::kRawU16, 128256).tokens->count(), 3000);
  const std::string u32 = temporary.write("a.u32", dump_of<std::uint32_t>(some_ids(128256)));
  EXPECT_EQ(open_ids(u32, DataFormat::kRawU32, 128256).tokens->count(), 3000);
  // Ids that are mostly 0 say nothing about a width.
  const std::string zeros = temporary.write("z.u16", std::string(6000, '\0'));
  EXPECT_EQ(open_ids(zeros, DataFormat::kRawU16, 50257).tokens->count(), 3000);
  const std::string one =
      temporary.write("o.u16", std::string(600, '\0') + "\x07" + std::string(5399, '\0'));
  EXPECT_EQ(open_ids(one, DataFormat::kRawU16, 50257).tokens->count(), 3000);
}

// A beginning that looks like wider integers is not enough: the middle and the end are checked as
// well.
TEST(IdWidth, IsToldByAllSamplesOfAFile) {
  const TemporaryDirectory temporary;
  const std::string wide = dump_of<std::int32_t>(some_ids(50257, 40'000));
  const std::string path = temporary.write("a.bin", wide);
  TERRACE_EXPECT_THROW_WITH(open_ids(path, DataFormat::kRawU16, 50257), ConfigError, "other id");
  temporary.write("a.bin", wide + dump_of<std::uint16_t>(some_ids(50257, 200'000)));
  EXPECT_NO_THROW(open_ids(path, DataFormat::kRawU16, 50257));
}

TEST(IdRange, OfAHundredthOfTheVocabularyIsDoubted) {
  const TemporaryDirectory temporary;
  const std::string path = temporary.write("a.bin", dump_of<std::uint16_t>(some_ids(256)));
  EXPECT_TRUE(open_ids(path, DataFormat::kRawU16, 256).doubts.empty());
  EXPECT_TRUE(open_ids(path, DataFormat::kRawU16, 25'000).doubts.empty());
  const OpenedData data = open_ids(path, DataFormat::kRawU16, 50257);
  ASSERT_EQ(data.doubts.size(), 1U);
  EXPECT_NE(data.doubts[0].find("none is above 255"), std::string::npos) << data.doubts[0];
  // Without a model nothing is known about the vocabulary.
  EXPECT_TRUE(open_ids(path, DataFormat::kRawU16, INT32_MAX).doubts.empty());
  // Text is bytes by its nature.
  const std::string text = temporary.write("a.txt", std::string(5000, 'x'));
  EXPECT_TRUE(open_ids(text, DataFormat::kText, 50257).doubts.empty());
}

TEST(MegatronData, TellsTheWidthOfItsIds) {
  const TemporaryDirectory temporary;
  const std::string ids = temporary.write("a.bin", dump_of<std::uint16_t>(some_ids(50257)));
  const auto write_index = [&](char type) {
    temporary.write("a.idx", std::string("MMIDIDX\0\0\x01\0\0\0\0\0\0\0", 17) + type + "more");
  };
  write_index('\x08');
  EXPECT_NO_THROW(open_ids(ids, DataFormat::kRawU16, 50257));
  write_index('\x04');
  TERRACE_EXPECT_THROW_WITH(open_ids(ids, DataFormat::kRawU16, 50257), ConfigError, "a.idx");
}

// A directory like the ones that nanoGPT makes.
class TokenDirectory : public testing::Test {
 protected:
  TokenDirectory() {
    const std::string ids = dump_of<std::uint16_t>(some_ids(300, 1000));
    temporary_.write("d/train.bin", ids);
    temporary_.write("d/val.bin", ids.substr(0, 200));
    temporary_.write("d/test.bin", ids.substr(0, 400));
    for (const char* name : {"input.txt", "prepare.py", "meta.pkl", "x.idx"}) {
      temporary_.write(std::string("d/") + name, "text");
    }
    options_.data = {temporary_.path("d")};
    options_.format = DataFormat::kRawU16;
    options_.vocabulary = 300;
    options_.sequence_length = 8;
  }

  const TemporaryDirectory temporary_;
  DatasetOptions options_;
};

TEST_F(TokenDirectory, TrainsOnTokenFilesAndValidatesOnThoseForIt) {
  const Dataset data(options_);
  EXPECT_EQ(data.training_tokens(), 1000);
  EXPECT_EQ(data.validation_tokens(), 100);
  ASSERT_EQ(data.notes().size(), 2U);
  for (const char* name : {"input.txt", "prepare.py", "meta.pkl", "test.bin", "5 files"}) {
    EXPECT_NE(data.notes()[0].find(name), std::string::npos) << data.notes()[0];
  }
  EXPECT_NE(data.notes()[1].find("validate, because of their names: val.bin"), std::string::npos)
      << data.notes()[1];
}

TEST_F(TokenDirectory, KeepsFilesForValidationOutOfTrainingInAnyCase) {
  options_.validation_fraction = 0;
  const Dataset none(options_);
  EXPECT_EQ(none.training_tokens(), 1000);
  EXPECT_EQ(none.validation_tokens(), 0);
  options_.validation_data = {{"", {temporary_.path("d/test.bin")}}};
  const Dataset other(options_);
  EXPECT_EQ(other.training_tokens(), 1000);
  EXPECT_EQ(other.validation_tokens(), 200);
}

TEST_F(TokenDirectory, OfValidationDataIsTheFilesForIt) {
  options_.validation_data = {{"", {temporary_.path("d")}}};
  EXPECT_EQ(Dataset(options_).validation_tokens(), 100);
}

TEST_F(TokenDirectory, TakesAFileThatIsNamedWhateverItsName) {
  options_.data = {temporary_.path("d/input.txt"), temporary_.path("d/val.bin")};
  options_.validation_fraction = 0;
  options_.vocabulary = 65536;
  EXPECT_EQ(Dataset(options_).training_tokens(), 102);
}

TEST_F(TokenDirectory, WithFoldersForTheSplitsIsTakenByThem) {
  const std::string ids = dump_of<std::uint16_t>(some_ids(300, 50));
  for (const char* name : {"e/train/0.bin", "e/train/1.bin", "e/val/0.bin"}) {
    temporary_.write(name, ids);
  }
  options_.data = {temporary_.path("e")};
  const Dataset data(options_);
  EXPECT_EQ(data.training_tokens(), 100);
  EXPECT_EQ(data.validation_tokens(), 50);
}

TEST_F(TokenDirectory, WithoutTokenFilesIsRefused) {
  temporary_.write("f/input.txt", "text");
  options_.data = {temporary_.path("f")};
  TERRACE_EXPECT_THROW_WITH(Dataset{options_}, ConfigError, "input.txt");
  temporary_.write("f/val.bin", "text");
  TERRACE_EXPECT_THROW_WITH(Dataset{options_}, ConfigError, "val.bin");
}

// The files are named as llm.c names them.
TEST_F(TokenDirectory, OfLlmcFilesIsSplitByTheirNamesToo) {
  std::vector<std::int64_t> header(256, 0);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 40;
  const std::string file =
      dump_of<std::int32_t>(header) + dump_of<std::uint16_t>(some_ids(300, 40));
  temporary_.write("l/fineweb_train_000001.bin", file);
  temporary_.write("l/fineweb_val_000000.bin", file);
  options_.data = {temporary_.path("l")};
  options_.format = DataFormat::kAuto;
  const Dataset data(options_);
  EXPECT_EQ(data.training_tokens(), 40);
  EXPECT_EQ(data.validation_tokens(), 40);
}

}  // namespace
}  // namespace terrace
