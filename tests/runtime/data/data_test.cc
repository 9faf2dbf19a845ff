#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "base/error.h"
#include "runtime/data/data_format.h"
#include "runtime/data/dataset.h"
#include "runtime/data/sample_order.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <typename T>
std::string llmc_file(std::int32_t magic, std::int32_t version, const std::vector<T>& tokens) {
  std::vector<std::int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = static_cast<std::int32_t>(tokens.size());
  return bytes_of(header) + bytes_of(tokens);
}

std::vector<std::int32_t> read_all(const TokenSource& source) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(source.count()));
  source.read(0, tokens);
  return tokens;
}

std::unique_ptr<TokenSource> open_token_source(const std::vector<std::string>& paths,
                                               DataFormat format, std::int64_t vocabulary) {
  return open_data({paths, format, vocabulary}).tokens;
}

class NumberSource final : public TokenSource {
 public:
  explicit NumberSource(std::int64_t count) : count_(count) {}
  std::int64_t count() const override { return count_; }
  void read(std::int64_t offset, std::span<std::int32_t> out) const override {
    std::iota(out.begin(), out.end(), static_cast<std::int32_t>(offset));
  }

 private:
  std::int64_t count_;
};

TEST(TokenSource, TextIsTheBytesOfAllFilesInPathOrder) {
  const TemporaryDirectory temporary;
  temporary.write("d/b.txt", "second");
  temporary.write("d/a/z.txt", "first");
  temporary.write("d/c", "");
  temporary.write("d/d.txt", "\xff\x80");
  temporary.write("d/.hidden", "no");
  temporary.write("d/.git/object", "no");
  const std::string extra = temporary.write("0", "|last");
  const auto source = open_token_source({temporary.path("d"), extra}, DataFormat::kText, 256);
  const std::string wanted = "firstsecond\xff\x80|last";
  ASSERT_EQ(source->count(), static_cast<std::int64_t>(wanted.size()));
  for (std::size_t begin = 0; begin <= wanted.size(); ++begin) {
    std::vector<std::int32_t> got(wanted.size() - begin);
    source->read(static_cast<std::int64_t>(begin), got);
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i], static_cast<unsigned char>(wanted[begin + i]));
    }
  }
}

TEST(TokenSource, LongReadsGoThroughManyBuffers) {
  const TemporaryDirectory temporary;
  std::vector<std::uint16_t> tokens(100'000);
  std::iota(tokens.begin(), tokens.end(), std::uint16_t{0});
  const std::string path = temporary.write("a.bin", bytes_of(tokens));
  const auto source = open_token_source({path}, DataFormat::kRawU16, 65536);
  const std::vector<std::int32_t> got = read_all(*source);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), tokens.begin(), tokens.end()));
}

TEST(TokenSource, LlmcShardsAreDetected) {
  const TemporaryDirectory temporary;
  const std::vector<std::uint16_t> narrow = {1, 50256, 3};
  const std::vector<std::uint32_t> wide = {1, 128000, 3};
  for (const char* name : {"a/1.bin", "a/2.bin"}) {
    temporary.write(name, llmc_file(20240520, 1, narrow));
  }
  temporary.write("b/1.bin", llmc_file(20240801, 7, wide));
  const auto gpt2 = open_token_source({temporary.path("a")}, DataFormat::kAuto, 128256);
  EXPECT_EQ(read_all(*gpt2), (std::vector<std::int32_t>{1, 50256, 3, 1, 50256, 3}));
  const auto llama3 = open_token_source({temporary.path("b")}, DataFormat::kAuto, 128256);
  EXPECT_EQ(read_all(*llama3), (std::vector<std::int32_t>{1, 128000, 3}));
}

TEST(TokenSource, RawIdsAreReadWhenNamed) {
  const TemporaryDirectory temporary;
  const std::vector<std::uint32_t> tokens = {7, 70000};
  const std::string path = temporary.write("x.bin", bytes_of(tokens));
  EXPECT_EQ(read_all(*open_token_source({path}, DataFormat::kRawU32, 70001)),
            (std::vector<std::int32_t>{7, 70000}));
  EXPECT_EQ(open_token_source({path}, DataFormat::kRawU16, 70001)->count(), 4);
}

TEST(TokenSource, AnIdOutsideTheVocabularyIsNamedWhenRead) {
  const TemporaryDirectory temporary;
  const std::vector<std::uint32_t> tokens = {1, 2, 300, 4'000'000'000U};
  const std::string path = temporary.write("x.bin", bytes_of(tokens));
  const auto source = open_token_source({path}, DataFormat::kRawU32, 300);
  std::vector<std::int32_t> two(2);
  source->read(0, two);
  TERRACE_EXPECT_THROW_WITH(source->read(1, two), ConfigError, "x.bin: token 2 has id 300");
  std::vector<std::int32_t> one(1);
  TERRACE_EXPECT_THROW_WITH(source->read(3, one), ConfigError, "id 4000000000");
}

TEST(TokenSource, AFileThatShrinksIsAnError) {
  const TemporaryDirectory temporary;
  const std::string path = temporary.write("a", std::string(100, 'x'));
  const auto source = open_token_source({path}, DataFormat::kText, 256);
  temporary.write("a", "x");
  std::vector<std::int32_t> out(10);
  TERRACE_EXPECT_THROW_WITH(source->read(50, out), IoError, path);
  std::filesystem::remove(path);
  TERRACE_EXPECT_THROW_WITH(source->read(50, out), IoError, path);
}

TEST(DataFormat, Names) {
  for (const DataFormat format :
       {DataFormat::kAuto, DataFormat::kText, DataFormat::kLlmc, DataFormat::kRawU16,
        DataFormat::kRawU32, DataFormat::kJsonl, DataFormat::kMegatron}) {
    EXPECT_EQ(parse_data_format(name_of(format)), format);
  }
  TERRACE_EXPECT_THROW_WITH(parse_data_format("csv"), ConfigError, "csv");
}

struct Undetected {
  const char* what;
  std::string file;
  std::string content;
  const char* named;
};

class AutoRefuses : public testing::TestWithParam<Undetected> {};

TEST_P(AutoRefuses, NamingTheFile) {
  const TemporaryDirectory temporary;
  const std::string path = temporary.write(GetParam().file, GetParam().content);
  TERRACE_EXPECT_THROW_WITH(open_token_source({path}, DataFormat::kAuto, 256), ConfigError, path);
  TERRACE_EXPECT_THROW_WITH(open_token_source({path}, DataFormat::kAuto, 256), ConfigError,
                            GetParam().named);
}

INSTANTIATE_TEST_SUITE_P(
    Each, AutoRefuses,
    testing::Values(Undetected{"raw", "train.bin", "abcd", "does not say how wide they are"},
                    Undetected{"zero", "a.txt", std::string("a\0b", 3), "zero bytes"},
                    Undetected{"megatron", "a.idx", "MMIDIDX", "Megatron"},
                    Undetected{"llmc_model", "gpt2.bin",
                               llmc_file(20240326, 3, std::vector<std::uint16_t>{}), "a model"}),
    [](const auto& each) { return std::string(each.param.what); });

TEST(DataFormat, MixedFilesAreRefused) {
  const TemporaryDirectory temporary;
  temporary.write("a.txt", "text");
  temporary.write("b.bin", llmc_file(20240520, 1, std::vector<std::uint16_t>{1}));
  TERRACE_EXPECT_THROW_WITH(open_token_source({temporary.path()}, DataFormat::kAuto, 256),
                            ConfigError, "mixes formats");
}

TEST(DataFormat, WrongLlmcFiles) {
  const TemporaryDirectory temporary;
  const std::vector<std::uint16_t> tokens = {1, 2, 3};
  const std::string good = llmc_file(20240520, 1, tokens);
  const auto open = [&](const std::string& content) {
    return open_token_source({temporary.write("a.bin", content)}, DataFormat::kLlmc, 256);
  };
  EXPECT_EQ(open(good)->count(), 3);
  TERRACE_EXPECT_THROW_WITH(open(good.substr(0, good.size() - 1)), CorruptData, "3 tokens");
  TERRACE_EXPECT_THROW_WITH(open(good + "x"), CorruptData, "3 tokens");
  TERRACE_EXPECT_THROW_WITH(open(good.substr(0, 1000)), CorruptData, "header");
  TERRACE_EXPECT_THROW_WITH(open(llmc_file(20240520, 2, tokens)), ConfigError, "version 2");
  TERRACE_EXPECT_THROW_WITH(open("plain text"), ConfigError, "magic");
  TERRACE_EXPECT_THROW_WITH(open(""), ConfigError, "magic");
  std::string negative = good;
  negative[11] = '\xff';
  TERRACE_EXPECT_THROW_WITH(open(negative), CorruptData, "a.bin");
}

TEST(DataFormat, WrongRawFilesAndPaths) {
  const TemporaryDirectory temporary;
  const std::string odd = temporary.write("a", "abc");
  TERRACE_EXPECT_THROW_WITH(open_token_source({odd}, DataFormat::kRawU16, 256), CorruptData, odd);
  const std::string llmc =
      temporary.write("b", llmc_file(20240520, 1, std::vector<std::uint16_t>{1}));
  TERRACE_EXPECT_THROW_WITH(open_token_source({llmc}, DataFormat::kRawU16, 256), ConfigError, llmc);
  TERRACE_EXPECT_THROW_WITH(open_token_source({odd}, DataFormat::kText, 255), ConfigError, "255");
  TERRACE_EXPECT_THROW_WITH(list_data_files({temporary.path("no")}), ConfigError, "no");
  TERRACE_EXPECT_THROW_WITH(list_data_files({}), ConfigError, "--data");
  std::filesystem::create_directory(temporary.path("empty"));
  TERRACE_EXPECT_THROW_WITH(list_data_files({temporary.path("empty")}), ConfigError, "empty");
  TERRACE_EXPECT_THROW_WITH(list_data_files({"/dev/null"}), ConfigError, "/dev/null");
}

TEST(DataDirectory, FollowsLinksAndRefusesThoseThatLeadNowhere) {
  namespace fs = std::filesystem;
  const TemporaryDirectory temporary;
  const std::string own = temporary.write("data/b.txt", "own");
  temporary.write("store/part/a.txt", "linked");
  fs::create_directory_symlink("../store/part", temporary.path("data/part"));
  fs::create_symlink("../store/part/a.txt", temporary.path("data/c.txt"));
  const std::vector<std::string> files = {own, temporary.path("data/c.txt"),
                                          temporary.path("data/part/a.txt")};
  EXPECT_EQ(list_data_files({temporary.path("data")}), files);
  fs::create_directory(temporary.path("only"));
  fs::create_directory_symlink("../store", temporary.path("only/all"));
  EXPECT_EQ(list_data_files({temporary.path("only")}),
            (std::vector<std::string>{temporary.path("only/all/part/a.txt")}));
  fs::create_symlink("../gone.txt", temporary.path("data/d.txt"));
  TERRACE_EXPECT_THROW_WITH(list_data_files({temporary.path("data")}), ConfigError,
                            "data/d.txt: this link leads to ../gone.txt");
  fs::remove(temporary.path("data/d.txt"));
  fs::create_directory_symlink("../../data", temporary.path("store/part/back"));
  TERRACE_EXPECT_THROW_WITH(list_data_files({temporary.path("data")}), ConfigError,
                            "data/part/back: this link leads to a directory that it lies in");
  fs::remove(temporary.path("store/part/back"));
  ASSERT_EQ(::mkfifo(temporary.path("data/pipe").c_str(), 0600), 0);
  TERRACE_EXPECT_THROW_WITH(list_data_files({temporary.path("data")}), ConfigError,
                            "data/pipe: neither a file nor a directory");
}

// llm.c's two formats belong to two tokenizers, and text without a tokenizer has ids of its own.
TEST(DataFormat, RefusesIdsOfTwoTokenizers) {
  const TemporaryDirectory temporary;
  const std::string gpt2 =
      temporary.write("gpt2.bin", llmc_file(20240520, 1, std::vector<std::uint16_t>(40, 1)));
  const std::string llama3 =
      temporary.write("llama3.bin", llmc_file(20240801, 7, std::vector<std::uint32_t>(40, 1)));
  const std::string text = temporary.write("text.txt", std::string(40, 'a'));
  DatasetOptions options;
  options.sequence_length = 4;
  options.vocabulary = 256;
  options.validation_fraction = 0;
  const auto refuse = [&](const std::string& first, const std::string& second) {
    TERRACE_EXPECT_THROW_WITH(Dataset{options}, ConfigError, first);
    TERRACE_EXPECT_THROW_WITH(Dataset{options}, ConfigError, second);
  };
  options.data = {gpt2, llama3};
  refuse("gpt2.bin has GPT-2 tokens", "llama3.bin has Llama 3 tokens");
  options.weights = {1, 1};
  refuse("gpt2.bin has GPT-2 tokens", "llama3.bin has Llama 3 tokens");
  options.data = {gpt2, text};
  refuse("gpt2.bin has GPT-2 tokens", "text.txt has bytes of text");
  options.weights = {};
  options.data = {gpt2};
  for (const std::string& other : {llama3, text}) {
    options.validation_data = {{.name = "", .paths = {other}}};
    refuse("gpt2.bin has GPT-2 tokens", other);
  }
  options.validation_data = {{.name = "", .paths = {gpt2}}};
  EXPECT_EQ(Dataset(options).validation_tokens(), 40);
}

TEST(SampleOrder, EachEpochVisitsEveryWindowOnce) {
  for (const std::int64_t tokens : {5, 9, 12, 1000, 4099, 4100}) {
    const std::int64_t length = 4;
    const std::int64_t windows = windows_per_epoch(tokens, length);
    ASSERT_EQ(windows, (tokens - 1) / length);
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<std::int64_t> starts;
      for (std::int64_t i = 0; i < windows; ++i) {
        starts.insert(window_start(9, epoch * windows + i, tokens, length));
      }
      ASSERT_EQ(static_cast<std::int64_t>(starts.size()), windows);
      EXPECT_GE(*starts.begin(), 0);
      EXPECT_LE(*starts.rbegin() + length + 1, tokens);
      for (const std::int64_t start : starts) EXPECT_EQ((start - *starts.begin()) % length, 0);
    }
  }
}

TEST(SampleOrder, DependsOnSeedAndSampleAndIsShuffled) {
  const std::int64_t tokens = 100'003;
  std::int64_t same_as_other_seed = 0;
  std::int64_t same_as_next_epoch = 0;
  std::int64_t ascending = 0;
  const std::int64_t windows = windows_per_epoch(tokens, 10);
  for (std::int64_t i = 0; i < 1000; ++i) {
    const std::int64_t start = window_start(1, i, tokens, 10);
    EXPECT_EQ(start, window_start(1, i, tokens, 10));
    same_as_other_seed += start / 10 == window_start(2, i, tokens, 10) / 10 ? 1 : 0;
    same_as_next_epoch += start / 10 == window_start(1, i + windows, tokens, 10) / 10 ? 1 : 0;
    ascending += start < window_start(1, i + 1, tokens, 10) ? 1 : 0;
  }
  EXPECT_LT(same_as_other_seed, 5);
  EXPECT_LT(same_as_next_epoch, 5);
  EXPECT_NEAR(static_cast<double>(ascending), 500.0, 80.0);
}

TEST(SampleOrder, EpochsShiftTheGrid) {
  const std::int64_t tokens = 10 * 8 + 8;  // 7 left over
  std::set<std::int64_t> shifts;
  for (std::int64_t epoch = 0; epoch < 200; ++epoch) {
    shifts.insert(window_start(3, epoch * 10, tokens, 8) % 8);
  }
  EXPECT_EQ(shifts.size(), 8U);
}

TEST(SampleOrder, HugeDataTakesNoLonger) {
  const std::int64_t tokens = std::int64_t{1} << 50;
  for (std::int64_t i = 0; i < 100; ++i) {
    const std::int64_t start = window_start(1, i, tokens, 4096);
    EXPECT_GE(start, 0);
    EXPECT_LT(start + 4096, tokens);
  }
}

DatasetOptions options_of(std::int64_t length, double fraction = 0.0) {
  DatasetOptions options;
  options.sequence_length = length;
  options.validation_fraction = fraction;
  options.vocabulary = 1 << 30;
  options.seed = 5;
  return options;
}

TEST(Dataset, MicroBatchesAreSamplesInOrderWhateverTheirSize) {
  const Dataset dataset(options_of(8), std::make_unique<NumberSource>(1000), nullptr);
  EXPECT_EQ(dataset.samples_per_epoch(), 124);
  std::vector<std::int32_t> tokens(6 * 8);
  std::vector<std::int32_t> targets(6 * 8);
  dataset.fill_micro_batch(120, {tokens, targets});  // into the second epoch
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::int64_t sample = 120 + static_cast<std::int64_t>(i / 8);
    const std::int64_t at = window_start(5, sample, 1000, 8) + static_cast<std::int64_t>(i % 8);
    EXPECT_EQ(tokens[i], at);
    EXPECT_EQ(targets[i], at + 1);
  }
  for (std::int64_t row = 0; row < 6; ++row) {
    std::vector<std::int32_t> one(8);
    std::vector<std::int32_t> next(8);
    dataset.fill_micro_batch(120 + row, {one, next});
    EXPECT_TRUE(std::equal(one.begin(), one.end(), tokens.begin() + 8 * row));
  }
}

TEST(Dataset, ValidationIsTheTailAndTrainingNeverSeesIt) {
  const Dataset dataset(options_of(16, 0.1), std::make_unique<NumberSource>(1000), nullptr);
  EXPECT_EQ(dataset.training_tokens(), 900);
  EXPECT_EQ(dataset.validation_tokens(), 100);
  for (std::int64_t sample = 0; sample < 300; ++sample) {
    std::vector<std::int32_t> tokens(16);
    std::vector<std::int32_t> targets(16);
    dataset.fill_micro_batch(sample, {tokens, targets});
    EXPECT_LT(targets.back(), 900);
  }
}

TEST(Dataset, ValidationCoversEachTargetOnceAndPadsTheRest) {
  for (const std::int64_t held : {2, 16, 17, 18, 33, 100}) {
    const Dataset dataset(options_of(16), std::make_unique<NumberSource>(100),
                          std::make_unique<NumberSource>(held));
    EXPECT_EQ(dataset.training_tokens(), 100);
    EXPECT_EQ(dataset.validation_samples(), (held - 1 + 15) / 16);
    std::vector<std::int32_t> seen;
    std::int64_t counted = 0;
    for (std::int64_t window = 0; window < dataset.validation_samples(); window += 3) {
      std::vector<std::int32_t> tokens(3 * 16, -7);
      std::vector<std::int32_t> targets(3 * 16, -7);
      counted += dataset.fill_validation_batch(window, {tokens, targets});
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        EXPECT_GE(tokens[i], 0);
        if (targets[i] < 0) {
          EXPECT_EQ(targets[i], -1);
          continue;
        }
        EXPECT_EQ(targets[i], tokens[i] + 1);
        seen.push_back(targets[i]);
      }
    }
    std::vector<std::int32_t> wanted(static_cast<std::size_t>(held - 1));
    std::iota(wanted.begin(), wanted.end(), 1);
    EXPECT_EQ(seen, wanted);
    EXPECT_EQ(counted, held - 1);
  }
}

// A source of numbers in which those from `first` to `last` are replaced by others.
class ChangedSource final : public TokenSource {
 public:
  ChangedSource(std::int64_t count, std::int64_t first, std::int64_t last)
      : numbers_(count), first_(first), last_(last) {}
  std::int64_t count() const override { return numbers_.count(); }
  void read(std::int64_t offset, std::span<std::int32_t> out) const override {
    numbers_.read(offset, out);
    for (std::int32_t& token : out) token += first_ <= token && token <= last_ ? 1 : 0;
    if (last_ < first_) throw ConfigError("an id that is none", "");
  }

 private:
  NumberSource numbers_;
  std::int64_t first_;
  std::int64_t last_;
};

TEST(Dataset, HashesTellOtherDataOfTheSameLength) {
  constexpr std::int64_t kCount = 100'000;
  const auto dataset_of = [](std::unique_ptr<TokenSource> source) {
    return Dataset(options_of(16, 0.1), std::move(source), nullptr);
  };
  const Dataset numbers = dataset_of(std::make_unique<NumberSource>(kCount));
  ASSERT_TRUE(numbers.training_hash().has_value());
  EXPECT_NE(numbers.training_hash(), numbers.validation_hash());
  EXPECT_EQ(dataset_of(std::make_unique<NumberSource>(kCount)).training_hash(),
            numbers.training_hash());
  const Dataset training = dataset_of(std::make_unique<ChangedSource>(kCount, 40'000, 42'000));
  EXPECT_NE(training.training_hash(), numbers.training_hash());
  EXPECT_EQ(training.validation_hash(), numbers.validation_hash());
  const Dataset held = dataset_of(std::make_unique<ChangedSource>(kCount, 99'999, 99'999));
  EXPECT_EQ(held.training_hash(), numbers.training_hash());
  EXPECT_NE(held.validation_hash(), numbers.validation_hash());
  const Dataset wrong = dataset_of(std::make_unique<ChangedSource>(kCount, 1, 0));
  EXPECT_FALSE(wrong.training_hash().has_value());
}

TEST(Dataset, NoValidation) {
  const Dataset dataset(options_of(16, 0.0), std::make_unique<NumberSource>(100), nullptr);
  EXPECT_EQ(dataset.validation_tokens(), 0);
  EXPECT_EQ(dataset.validation_samples(), 0);
  EXPECT_EQ(dataset.training_tokens(), 100);
}

TEST(Dataset, RefusesWhatIsTooShortOrImpossible) {
  const auto make = [](const DatasetOptions& options, std::int64_t tokens) {
    return Dataset(options, std::make_unique<NumberSource>(tokens), nullptr);
  };
  EXPECT_EQ(make(options_of(16), 17).samples_per_epoch(), 1);
  TERRACE_EXPECT_THROW_WITH(make(options_of(16), 16), ConfigError, "16 tokens");
  TERRACE_EXPECT_THROW_WITH(make(options_of(16), 0), ConfigError, "0 tokens");
  TERRACE_EXPECT_THROW_WITH(make(options_of(16, 0.01), 18), ConfigError, "16 tokens");
  TERRACE_EXPECT_THROW_WITH(make(options_of(16, 1.0), 1000), ConfigError, "fraction");
  TERRACE_EXPECT_THROW_WITH(make(options_of(16, -0.1), 1000), ConfigError, "fraction");
}

TEST(Dataset, ReadsFiles) {
  const TemporaryDirectory temporary;
  DatasetOptions options = options_of(4);
  options.vocabulary = 256;
  options.data = {temporary.write("train.txt", "aaaaaaaaaaaa")};
  options.validation_data = {{"", {temporary.write("validation.txt", "bcde")}}};
  const Dataset dataset(options);
  std::vector<std::int32_t> tokens(4);
  std::vector<std::int32_t> targets(4);
  dataset.fill_micro_batch(0, {tokens, targets});
  EXPECT_EQ(tokens, std::vector<std::int32_t>(4, 'a'));
  EXPECT_EQ(dataset.fill_validation_batch(0, {tokens, targets}), 3);
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{'b', 'c', 'd', 'e'}));
  EXPECT_EQ(targets, (std::vector<std::int32_t>{'c', 'd', 'e', -1}));
}

}  // namespace
}  // namespace terrace
