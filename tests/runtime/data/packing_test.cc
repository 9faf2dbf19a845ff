#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <set>

#include "base/error.h"
#include "kernels/expert_ops.h"
#include "runtime/data/dataset.h"
#include "runtime/data/document_packing.h"
#include "tests/runtime/temporary_directory.h"

// Documents as sequences: every target occurs once, whatever the packing.
namespace terrace {
namespace {

struct Document {
  std::int64_t tokens = 0;
  std::int64_t prompt = 0;  // its first tokens, which are not trained on
};

// A source in which token i is i.
class NumberedDocuments final : public TokenSource {
 public:
  explicit NumberedDocuments(std::vector<Document> documents) : documents_(std::move(documents)) {
    for (const Document& one : documents_) {
      for (std::int64_t i = 0; i < one.tokens; ++i) mask_.push_back(i < one.prompt ? 0 : 1);
    }
  }
  std::int64_t count() const override { return std::ssize(mask_); }
  void read(std::int64_t offset, std::span<std::int32_t> out) const override {
    ASSERT_LE(offset + std::ssize(out), count());
    std::iota(out.begin(), out.end(), static_cast<std::int32_t>(offset));
  }
  bool has_mask() const override { return std::ranges::find(mask_, 0) != mask_.end(); }
  void read_mask(std::int64_t offset, std::span<std::uint8_t> out) const override {
    std::copy_n(mask_.begin() + offset, out.size(), out.begin());
  }
  bool has_documents() const override { return true; }
  void visit_documents(FunctionRef<void(std::int64_t end)> visit) const override {
    std::int64_t end = 0;
    for (const Document& one : documents_) visit(end += one.tokens);
  }

 private:
  std::vector<Document> documents_;
  std::vector<std::uint8_t> mask_;
};

std::vector<Document> random_documents(std::size_t count, bool with_prompts, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Document> documents;
  for (std::size_t i = 0; i < count; ++i) {
    Document one{2 + static_cast<std::int64_t>(random() % 30), 0};
    if (with_prompts) one.prompt = static_cast<std::int64_t>(random() % one.tokens);
    documents.push_back(one);
  }
  return documents;
}

DatasetOptions packed(Packing packing, std::int64_t length) {
  DatasetOptions options;
  options.packing = packing;
  options.sequence_length = length;
  options.vocabulary = 1 << 30;
  options.validation_fraction = 0;
  options.seed = 11;
  return options;
}

struct Lists {
  explicit Lists(std::size_t rows, bool has_documents)
      : tokens(rows, -7),
        targets(rows, -7),
        positions(has_documents ? rows : 0, -7),
        first_keys(has_documents ? rows : 0, -7) {}
  SampleRows rows() { return {tokens, targets, positions, first_keys}; }
  std::vector<std::int32_t> tokens, targets, positions, first_keys;
};

// Counts how often each target of an epoch is trained on.
std::map<std::int32_t, int> targets_of_epoch(const Dataset& dataset, std::size_t length) {
  std::map<std::int32_t, int> found;
  for (std::int64_t sample = 0; sample < dataset.samples_per_epoch(); ++sample) {
    Lists lists(length, dataset.has_documents());
    dataset.fill_micro_batch(sample, lists.rows());
    for (std::size_t r = 0; r < length; ++r) {
      if (lists.targets[r] < 0) continue;
      EXPECT_EQ(lists.targets[r], lists.tokens[r] + 1);
      ++found[lists.targets[r]];
    }
  }
  return found;
}

class EveryPacking : public testing::TestWithParam<Packing> {};

TEST_P(EveryPacking, CountsEachTargetOnce) {
  for (const bool with_prompts : {false, true}) {
    const std::vector<Document> documents = random_documents(400, with_prompts, 3);
    const Dataset dataset(packed(GetParam(), 32), std::make_unique<NumberedDocuments>(documents),
                          nullptr);
    std::map<std::int32_t, int> wanted;
    std::int32_t begin = 0;
    for (const Document& one : documents) {
      for (std::int64_t i = std::max<std::int64_t>(1, one.prompt); i < one.tokens; ++i) {
        wanted[begin + static_cast<std::int32_t>(i)] = 1;
      }
      begin += static_cast<std::int32_t>(one.tokens);
    }
    EXPECT_EQ(targets_of_epoch(dataset, 32), wanted) << with_prompts;
    const PackingCounts& counts = *dataset.packing_counts();
    EXPECT_EQ(counts.documents, 400);
    EXPECT_EQ(counts.trained, std::ssize(wanted));
    EXPECT_EQ(counts.split + counts.truncated + counts.too_short + counts.untrained, 0);
    EXPECT_EQ(counts.sequences, dataset.samples_per_epoch());
  }
}

INSTANTIATE_TEST_SUITE_P(Packings, EveryPacking,
                         testing::Values(Packing::kDocuments, Packing::kNone),
                         [](const auto& packing) { return std::string(name_of(packing.param)); });

TEST(PackedDocuments, SayWhereTheyBegin) {
  const Dataset dataset(packed(Packing::kDocuments, 32),
                        std::make_unique<NumberedDocuments>(random_documents(5000, false, 9)),
                        nullptr);
  int several = 0;
  for (std::int64_t sample = 0; sample < dataset.samples_per_epoch(); ++sample) {
    Lists lists(32, true);
    dataset.fill_micro_batch(sample, lists.rows());
    std::set<std::int32_t> starts;
    for (std::int32_t r = 0; r < 32; ++r) {
      EXPECT_EQ(lists.first_keys[r] + lists.positions[r], r);
      const bool begins = lists.positions[r] == 0;
      EXPECT_EQ(r == 0 || lists.first_keys[r] != lists.first_keys[r - 1], begins);
      // Inside a document each token follows the one before; padding is token 0.
      const bool goes_on = !begins && lists.targets[r] >= 0;
      EXPECT_TRUE(!goes_on || lists.tokens[r] == lists.tokens[r - 1] + 1);
      starts.insert(lists.first_keys[r]);
    }
    several += starts.size() > 2 ? 1 : 0;
  }
  EXPECT_GT(several, 10);
  const PackingCounts& counts = *dataset.packing_counts();
  EXPECT_GT(counts.rows, counts.sequences * 32 * 95 / 100);  // little padding
}

TEST(PackedDocuments, LongOnesAreSplitOrTruncatedAndUselessOnesDropped) {
  const NumberedDocuments source({{100, 0}, {50, 10}, {1, 0}, {40, 38}, {40, 40}, {0, 0}, {17, 0}});
  const PackedSequences packed(source, 0, source.count(), {.sequence_length = 16});
  const PackingCounts& counts = packed.counts();
  EXPECT_EQ(counts.documents, 7);
  EXPECT_EQ(counts.split, 1);
  EXPECT_EQ(counts.truncated, 1);
  EXPECT_EQ(counts.truncated_tokens, 33);
  EXPECT_EQ(counts.too_short, 2);
  EXPECT_EQ(counts.untrained, 2);  // of one, the completion is behind the cut
  EXPECT_EQ(counts.rows, 99 + 16 + 16);
  EXPECT_EQ(counts.trained, 99 + 7 + 16);
  std::set<std::int64_t> begins;
  for (std::int64_t s = 0; s < packed.count(); ++s) {
    for (std::int64_t i = 0; i < packed.pieces(s); ++i) begins.insert(packed.piece(s, i).begin);
  }
  // A piece of a split document begins with the token that is the last target of the piece before.
  EXPECT_EQ(begins, (std::set<std::int64_t>{0, 16, 32, 48, 64, 80, 96, 100, 231}));
  const PackedSequences all(source, 0, source.count(), {.sequence_length = 16, .uses_mask = false});
  EXPECT_EQ(all.counts().split, 4);
  EXPECT_EQ(all.counts().truncated, 0);
  EXPECT_EQ(all.counts().untrained, 0);
  EXPECT_EQ(all.counts().rows, 99 + 49 + 39 + 39 + 16);
  EXPECT_EQ(all.counts().trained, all.counts().rows);
}

TEST(PackedDocuments, AMaskedFirstTokenTruncatesNothing) {
  const NumberedDocuments source({{100, 1}});  // as where a prompt is a begin token alone
  const PackedSequences packed(source, 0, source.count(), {.sequence_length = 16});
  EXPECT_EQ(packed.counts().split, 1);
  EXPECT_EQ(packed.counts().truncated, 0);
  EXPECT_EQ(packed.counts().trained, 99);
}

TEST(PackedDocuments, AreTheSameEachTimeAndOtherForOtherDocuments) {
  const NumberedDocuments source(random_documents(1000, true, 1));
  const PackingOptions options = {.sequence_length = 32};
  const auto hash = [&](const TokenSource& of, const PackingOptions& with) {
    return PackedSequences(of, 0, of.count(), with).hash();
  };
  EXPECT_EQ(hash(source, options), hash(source, options));
  EXPECT_NE(hash(NumberedDocuments(random_documents(1000, true, 2)), options),
            hash(source, options));
  EXPECT_NE(hash(source, {.sequence_length = 32, .joins_documents = false}), hash(source, options));
}

TEST(PackedDocuments, EpochsVisitAllInOrdersOfTheirOwn) {
  const Dataset dataset(packed(Packing::kDocuments, 32),
                        std::make_unique<NumberedDocuments>(random_documents(200, false, 4)),
                        nullptr);
  const std::int64_t samples = dataset.samples_per_epoch();
  std::vector<std::vector<std::int32_t>> epochs;
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    std::vector<std::int32_t> firsts;
    for (std::int64_t s = 0; s < samples; ++s) {
      Lists lists(32, true);
      dataset.fill_micro_batch(epoch * samples + s, lists.rows());
      firsts.push_back(lists.tokens[0]);
    }
    epochs.push_back(firsts);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_FALSE(std::ranges::is_sorted(epochs[0]));
  for (auto& epoch : epochs) std::ranges::sort(epoch);
  EXPECT_EQ(epochs[0], epochs[1]);
}

TEST(PackedDocuments, TheTailThatValidatesIsWholeDocuments) {
  DatasetOptions options = packed(Packing::kDocuments, 32);
  options.validation_fraction = 0.2;
  const std::vector<Document> documents = random_documents(100, true, 6);
  const Dataset dataset(options, std::make_unique<NumberedDocuments>(documents), nullptr);
  std::set<std::int64_t> ends;
  std::int64_t end = 0;
  for (const Document& one : documents) ends.insert(end += one.tokens);
  EXPECT_TRUE(ends.contains(dataset.training_tokens()));
  EXPECT_EQ(dataset.training_tokens() + dataset.validation_tokens(), end);
  EXPECT_LE(dataset.training_tokens(), end * 8 / 10);
  EXPECT_GT(dataset.training_tokens(), end * 8 / 10 - 32);
  std::int64_t counted = 0;
  for (std::int64_t s = 0; s < dataset.validation_samples(); ++s) {
    Lists lists(32, true);
    counted += dataset.fill_validation_batch(s, lists.rows());
    for (const std::int32_t target : lists.targets) {
      EXPECT_TRUE(target < 0 || target > dataset.training_tokens());
    }
  }
  EXPECT_GT(counted, 0);
  Lists behind(32, true);
  EXPECT_EQ(dataset.fill_validation_batch(dataset.validation_samples(), behind.rows()), 0);
  EXPECT_EQ(behind.positions[31], 31);
}

TEST(Masks, WindowsHaveThemToo) {
  const Dataset dataset(
      packed(Packing::kWindows, 8),
      std::make_unique<NumberedDocuments>(std::vector<Document>{{20, 10}, {20, 5}, {17, 0}}),
      nullptr);
  EXPECT_TRUE(dataset.has_uncounted());
  std::map<std::int32_t, int> wanted;  // seven windows have all targets, 1 to 56
  for (std::int32_t target = 10; target < 57; ++target) {
    if (target < 20 || target >= 25) wanted[target] = 1;
  }
  EXPECT_EQ(targets_of_epoch(dataset, 8), wanted);
  EXPECT_EQ(dataset.unmasked_tokens(), 42);
}

TEST(Masks, OfOneKindAloneAreRefused) {
  class OneKind final : public TokenSource {
   public:
    explicit OneKind(std::uint8_t kind) : kind_(kind) {}
    std::int64_t count() const override { return 100; }
    void read(std::int64_t, std::span<std::int32_t> out) const override {
      std::ranges::fill(out, 1);
    }
    bool has_mask() const override { return true; }
    void read_mask(std::int64_t, std::span<std::uint8_t> out) const override {
      std::ranges::fill(out, kind_);
    }

   private:
    std::uint8_t kind_;
  };
  for (const std::uint8_t kind : {std::uint8_t{0}, std::uint8_t{1}}) {
    DatasetOptions options = packed(Packing::kWindows, 8);
    EXPECT_THROW(Dataset(options, std::make_unique<OneKind>(kind), nullptr), ConfigError);
    options.uses_mask = false;
    const Dataset dataset(options, std::make_unique<OneKind>(kind), nullptr);
    EXPECT_FALSE(dataset.has_uncounted());
  }
}

// --- files --------------------------------------------------------------------------------------

template <typename T>
std::string raw_bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

DatasetOptions files(const TemporaryDirectory& directory, Packing packing) {
  DatasetOptions options = packed(packing, 4);
  options.data = {directory.path("train.u16")};
  return options;
}

TEST(TokenFilesWithDocuments, HaveTheirEndsAndMaskBesideThem) {
  const TemporaryDirectory directory;
  directory.write("train.u16", raw_bytes<std::uint16_t>({1, 2, 3, 4, 5, 6}));
  directory.write("train.u16.idx", raw_bytes<std::uint64_t>({2, 6}));
  directory.write("train.u16.mask", raw_bytes<std::uint8_t>({1, 1, 0, 0, 1, 1}));
  const Dataset dataset(files(directory, Packing::kDocuments));  // the ends tell the width
  ASSERT_EQ(dataset.samples_per_epoch(), 1);
  Lists lists(4, true);
  dataset.fill_micro_batch(0, lists.rows());
  EXPECT_EQ(lists.tokens, (std::vector<std::int32_t>{1, 3, 4, 5}));
  EXPECT_EQ(lists.targets, (std::vector<std::int32_t>{2, -1, 5, 6}));
  EXPECT_EQ(lists.first_keys, (std::vector<std::int32_t>{0, 1, 1, 1}));
  // In a directory these files lie beside the tokens, and no note is made of them.
  DatasetOptions options = files(directory, Packing::kDocuments);
  options.data = {directory.path()};
  EXPECT_TRUE(Dataset(options).notes().empty());
}

TEST(TokenFilesWithDocuments, WrongFilesBesideThemAreRefused) {
  const TemporaryDirectory directory;
  directory.write("train.u16", raw_bytes<std::uint16_t>({1, 2, 3, 4, 5, 6}));
  DatasetOptions options = files(directory, Packing::kDocuments);
  options.format = DataFormat::kRawU16;
  EXPECT_THROW(Dataset{options}, ConfigError);  // no ends at all
  directory.write("train.u16.idx", raw_bytes<std::uint64_t>({2, 5}));
  EXPECT_THROW(Dataset{options}, CorruptData);  // the last one
  directory.write("train.u16.idx", raw_bytes<std::uint64_t>({4, 2, 6}));
  EXPECT_THROW(Dataset{options}, CorruptData);  // their order
  directory.write("train.u16.idx", "12345");
  EXPECT_THROW(Dataset{options}, CorruptData);
  directory.write("train.u16.idx", raw_bytes<std::uint64_t>({2, 6}));
  directory.write("train.u16.mask", raw_bytes<std::uint8_t>({1, 1, 0}));
  EXPECT_THROW(Dataset{options}, CorruptData);
  directory.write("train.u16.mask", raw_bytes<std::uint8_t>({1, 1, 2, 0, 1, 1}));
  EXPECT_THROW(Dataset{options}, CorruptData);
}

TEST(TokenFilesWithDocuments, ValidateOnlyIfTheyHaveATarget) {
  const TemporaryDirectory directory;
  directory.write("train.u16", raw_bytes<std::uint16_t>({1, 2, 3, 4, 5, 6}));
  directory.write("train.u16.idx", raw_bytes<std::uint64_t>({2, 6}));
  directory.write("train.u16.mask", raw_bytes<std::uint8_t>({1, 1, 0, 0, 1, 1}));
  directory.write("held.u16", raw_bytes<std::uint16_t>({1, 2, 3, 4}));
  directory.write("held.u16.idx", raw_bytes<std::uint64_t>({2, 4}));
  for (const Packing packing : {Packing::kDocuments, Packing::kWindows}) {
    DatasetOptions options = files(directory, packing);
    options.format = DataFormat::kRawU16;
    options.validation_data = {{"", {directory.path("held.u16")}}};
    directory.write("held.u16.mask", raw_bytes<std::uint8_t>({0, 0, 0, 1}));
    EXPECT_EQ(Dataset(options).validation_samples(), 1);
    directory.write("held.u16.mask", raw_bytes<std::uint8_t>({1, 0, 0, 0}));  // is no target
    TERRACE_EXPECT_THROW_WITH(Dataset{options}, ConfigError, "--validation-data has no token");
    options.uses_mask = false;
    EXPECT_GT(Dataset(options).validation_samples(), 0);
  }
  // The same is true of the tail of the data, if its windows would be evaluated.
  DatasetOptions tail = files(directory, Packing::kWindows);
  tail.sequence_length = 2;
  tail.validation_fraction = 0.4;
  directory.write("train.u16.mask", raw_bytes<std::uint8_t>({1, 1, 1, 1, 0, 0}));
  TERRACE_EXPECT_THROW_WITH(Dataset{tail}, ConfigError, "the validation part at the end of --data");
}

// --- Megatron's ---------------------------------------------------------------------------------

// The documents [1, 2, 3] and [4, 5] in u16, as Megatron writes them.
constexpr char kMegatronIndex[] =
    "MMIDIDX\0\0\1\0\0\0\0\0\0\0\x08\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0"
    "\3\0\0\0\2\0\0\0"
    "\0\0\0\0\0\0\0\0\6\0\0\0\0\0\0\0"
    "\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0";

TEST(MegatronFiles, HaveTheDocumentsOfTheirIndex) {
  const TemporaryDirectory directory;
  directory.write("d/text.bin", raw_bytes<std::uint16_t>({1, 2, 3, 4, 5}));
  directory.write("d/text.idx", std::string_view(kMegatronIndex, 82));
  DatasetOptions options = packed(Packing::kDocuments, 4);
  for (const char* name : {"d/text", "d/text.bin", "d/text.idx", "d"}) {
    options.data = {directory.path(name)};
    options.format = DataFormat::kMegatron;
    const Dataset dataset(options);
    EXPECT_EQ(dataset.packing_counts()->documents, 2) << name;
    EXPECT_TRUE(dataset.notes().empty()) << name;
    Lists lists(4, true);
    dataset.fill_micro_batch(0, lists.rows());
    EXPECT_EQ(lists.tokens, (std::vector<std::int32_t>{1, 2, 4, 0}));
    EXPECT_EQ(lists.targets, (std::vector<std::int32_t>{2, 3, 5, kPaddingTarget}));
  }
  options.data = {directory.path("d")};
  options.format = DataFormat::kAuto;
  EXPECT_EQ(Dataset(options).packing_counts()->documents, 2);
  options.packing = Packing::kWindows;
  EXPECT_EQ(Dataset(options).training_tokens(), 5);
}

TEST(MegatronFiles, DamagedOnesAreRefused) {
  const TemporaryDirectory directory;
  const std::string index(kMegatronIndex, 82);
  DatasetOptions options = packed(Packing::kDocuments, 4);
  options.data = {directory.path("text.bin")};
  options.format = DataFormat::kMegatron;
  const auto opens = [&](const std::string& with) {
    directory.write("text.bin", raw_bytes<std::uint16_t>({1, 2, 3, 4, 5}));
    directory.write("text.idx", with);
    return Dataset(options).training_tokens();
  };
  const auto with_byte = [&](std::size_t at, char value) {
    std::string changed = index;
    changed[at] = value;
    return changed;
  };
  EXPECT_EQ(opens(index), 5);
  EXPECT_THROW(opens(index.substr(0, 20)), CorruptData);
  EXPECT_THROW(opens(index.substr(0, 80)), CorruptData);
  EXPECT_THROW(opens(with_byte(0, 'X')), CorruptData);
  EXPECT_THROW(opens(with_byte(9, 2)), ConfigError);            // version
  EXPECT_THROW(opens(with_byte(17, 5)), ConfigError);           // int64
  EXPECT_THROW(opens(with_byte(24, 0x7f)), CorruptData);        // sequences without end
  EXPECT_THROW(opens(with_byte(34, 2)), CorruptData);           // a gap between sequences
  EXPECT_THROW(opens(with_byte(66, 3)), CorruptData);           // documents out of order
  EXPECT_THROW(opens(index + std::string(2, 0)), ConfigError);  // modes
  directory.write("text.idx", index);
  directory.write("text.bin", "1234");
  EXPECT_THROW(Dataset{options}, CorruptData);
}

}  // namespace
}  // namespace terrace
