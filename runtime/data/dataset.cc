#include "runtime/data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/hash.h"

namespace terrace {
namespace {

OpenedData open_paths(const DatasetOptions& options, const std::vector<std::string>& paths,
                      DataUse use) {
  DataRequest request;
  request.paths = paths;
  request.format = options.format;
  request.vocabulary = options.vocabulary;
  request.use = use;
  request.tokenize = options.tokenize;
  request.tokenizes_text = options.tokenizes_text;
  return open_data(request);
}

Packing packing_of(const DatasetOptions& options, const std::vector<OpenedData>& data) {
  if (options.packing) return *options.packing;
  const bool any_jsonl = std::ranges::any_of(
      data, [](const OpenedData& one) { return one.format == DataFormat::kJsonl; });
  return any_jsonl ? Packing::kDocuments : Packing::kWindows;
}

// Returns the length of sequences that 95 % of the documents fit, in steps of 64, at most
// `most`.
std::int64_t fitting_length(const std::vector<std::unique_ptr<TokenSource>>& sources,
                            std::int64_t most) {
  constexpr std::int64_t kStep = 64;
  std::vector<std::int64_t> lengths;
  for (const auto& source : sources) {
    std::int64_t before = 0;
    source->visit_documents([&](std::int64_t end) {
      lengths.push_back(end - before);
      before = end;
    });
  }
  if (lengths.empty()) return most;
  const std::size_t fitting = (lengths.size() * 95 + 99) / 100;
  const auto last = lengths.begin() + static_cast<std::ptrdiff_t>(fitting - 1);
  std::ranges::nth_element(lengths, last);
  const std::int64_t steps = (std::max<std::int64_t>(*last, 1) + kStep - 1) / kStep;
  return std::min(steps * kStep, most);
}

// Returns the number of tokens at the end of the data that are for validation: at least two, an
// input and its target.
std::int64_t tail_tokens(double fraction, std::int64_t tokens) {
  if (!(fraction >= 0.0 && fraction < 1.0)) {
    throw ConfigError(fmt::format("--validation-fraction {} is not in [0, 1)", fraction),
                      "0.01 keeps a hundredth of the data for validation, 0 keeps nothing");
  }
  if (fraction == 0.0) return 0;
  const auto part = static_cast<std::int64_t>(std::floor(fraction * static_cast<double>(tokens)));
  return std::clamp<std::int64_t>(part, std::min<std::int64_t>(2, tokens), tokens);
}

// Returns a hash of `count` tokens from `begin` on, made from the tokens at some places among them.
std::optional<std::uint64_t> hash_places(const TokenSource& source, std::int64_t begin,
                                         std::int64_t count) {
  constexpr std::int64_t kPlaces = 64;
  constexpr std::int64_t kTokens = 256;
  std::vector<std::int32_t> piece(static_cast<std::size_t>(std::min(kTokens, count)));
  const std::int64_t rest = count - std::ssize(piece);
  StreamingHash hash;
  for (std::int64_t place = 0; place < kPlaces; ++place) {
    try {
      source.read(begin + rest * place / (kPlaces - 1), piece);
    } catch (const Error&) {  // training reports it when it comes there
      return std::nullopt;
    }
    hash.add(std::as_bytes(std::span(piece)));
  }
  return hash.value();
}

// Returns a hash of all ranges. It includes how they become samples, unless these are windows of
// one range alone.
std::optional<std::uint64_t> hash_of(const std::vector<TokenRange>& ranges,
                                     const SampleSet& samples) {
  std::vector<std::uint64_t> parts;
  for (const TokenRange& range : ranges) {
    const auto tokens = hash_places(*range.source, range.begin, range.count);
    if (!tokens) return std::nullopt;
    parts.push_back(*tokens);
  }
  const std::uint64_t made = samples.hash();
  if (parts.size() == 1 && made == 0) return parts.front();
  parts.push_back(made);
  return hash_bytes(std::as_bytes(std::span(parts)));
}

// Returns how many tokens of [begin, end) are trained on by the source's mask; all without a mask.
std::int64_t count_unmasked(const TokenSource& source, std::int64_t begin, std::int64_t end) {
  if (!source.has_mask()) return end - begin;
  constexpr std::int64_t kPiece = 1 << 16;
  std::int64_t count = 0;
  std::vector<std::uint8_t> piece(kPiece);
  for (std::int64_t at = begin; at < end; at += kPiece) {
    const auto size = static_cast<std::size_t>(std::min(kPiece, end - at));
    source.read_mask(at, std::span(piece).first(size));
    count += std::ranges::count(std::span(piece).first(size), 1);
  }
  return count;
}

void check_mask(std::int64_t unmasked, std::int64_t tokens) {
  if (unmasked == 0) {
    throw ConfigError(
        "--loss-on completion: no token of the data is trained on, because all masks are 0 or all "
        "completions are empty",
        "correct the masks, or give --loss-on all");
  }
  if (unmasked == tokens) {
    throw ConfigError(
        "--loss-on completion: every token of the data is trained on, although it has prompts or "
        "masks: the prompts are empty or the masks are all 1",
        "correct them, or give --loss-on all");
  }
}

// Returns the end of the documents before the one that has token `tokens`.
std::int64_t documents_before(const TokenSource& source, std::int64_t tokens) {
  std::int64_t found = 0;
  source.visit_documents([&](std::int64_t end) {
    if (end <= tokens) found = end;
  });
  return found;
}

constexpr std::array<std::pair<std::string_view, Packing>, 3> kPackings = {
    {{"none", Packing::kNone}, {"documents", Packing::kDocuments}, {"windows", Packing::kWindows}}};

}  // namespace

Packing parse_packing(std::string_view text) {
  for (const auto& [name, packing] : kPackings) {
    if (name == text) return packing;
  }
  throw ConfigError(fmt::format("--packing {}: unknown", text),
                    "choose none, documents or windows");
}

std::string_view name_of(Packing packing) {
  for (const auto& [name, known] : kPackings) {
    if (known == packing) return name;
  }
  return "";
}

Dataset::Dataset(const DatasetOptions& options) : Dataset(options, open(options)) {}

Dataset::Opened Dataset::open(const DatasetOptions& options) {
  Opened opened;
  if (options.weights.empty()) {
    opened.data.push_back(open_paths(options, options.data, DataUse::kTraining));
  } else {
    TERRACE_CHECK_EQ(options.weights.size(), options.data.size());
    for (const std::string& path : options.data) {
      opened.data.push_back(open_paths(options, {path}, DataUse::kTraining));
    }
  }
  for (const ValidationSet& set : options.validation_data) {
    opened.validation.push_back(open_paths(options, set.paths, DataUse::kValidation));
  }
  check_ids_of_all(opened);
  return opened;
}

void Dataset::check_ids_of_all(const Opened& opened) {
  std::vector<KnownIds> known;
  for (const std::vector<OpenedData>* const list : {&opened.data, &opened.validation}) {
    for (const OpenedData& one : *list) {
      known.insert(known.end(), one.known_ids.begin(), one.known_ids.end());
    }
  }
  check_one_kind_of_ids(known);
}

// Moves the sources out of `opened`. For validation it takes the data that was given for it, or
// else files of the training data's directories.
Dataset::Sources Dataset::sources_of(const DatasetOptions& options, Opened& opened) {
  Sources sources;
  SourceList of_directories;
  for (OpenedData& data : opened.data) {
    sources.data.push_back(std::move(data.tokens));
    const bool validates = options.validation_data.empty() && options.validation_fraction > 0;
    if (data.validation == nullptr || !validates) continue;
    of_directories.push_back(std::move(data.validation));
  }
  if (!of_directories.empty()) sources.validation.push_back(std::move(of_directories));
  for (OpenedData& set : opened.validation) {
    sources.validation.emplace_back().push_back(std::move(set.tokens));
  }
  return sources;
}

Dataset::Dataset(const DatasetOptions& options, Opened opened)
    : Dataset(
          [&] {
            DatasetOptions packed = options;
            packed.packing = packing_of(options, opened.data);
            return packed;
          }(),
          sources_of(options, opened)) {
  add_notes(options, opened);
}

void Dataset::add_notes(const DatasetOptions& options, const Opened& opened) {
  std::vector<const OpenedData*> all;
  for (const OpenedData& data : opened.data) all.push_back(&data);
  for (const OpenedData& set : opened.validation) all.push_back(&set);
  for (const OpenedData* const one : all) {
    doubts_.insert(doubts_.end(), one->doubts.begin(), one->doubts.end());
    if (!one->run_directories.empty()) notes_.push_back(one->run_directories);
    if (one->left_out.empty()) continue;
    notes_.push_back(
        fmt::format("left out because their names are not those of token files, or because they "
                    "are test sets: {}",
                    some_names(one->left_out)));
  }
  for (const OpenedData& data : opened.data) {
    if (data.validation_files.empty()) continue;
    notes_.push_back(fmt::format("{} because of their names: {}",
                                 options.validation_data.empty() && options.validation_fraction > 0
                                     ? "validate,"
                                     : "left out as validation files",
                                 some_names(data.validation_files)));
  }
}

Dataset::Dataset(const DatasetOptions& options, std::unique_ptr<TokenSource> data,
                 std::unique_ptr<TokenSource> validation)
    : Dataset(options, [&] {
        Sources sources;
        sources.data.push_back(std::move(data));
        if (validation != nullptr) {
          sources.validation.emplace_back().push_back(std::move(validation));
        }
        return sources;
      }()) {}

Dataset::Dataset(const DatasetOptions& options, Sources sources)
    : sequence_length_(options.sequence_length),
      seed_(options.seed),
      packing_(options.packing.value_or(Packing::kWindows)),
      uses_mask_(options.uses_mask) {
  if (sequence_length_ == 0) choose_sequence_length(options, sources);
  TERRACE_CHECK_LT(0, sequence_length_);
  divide(options, sources);
  for (auto& source : sources.data) sources_.push_back(std::move(source));
  for (SourceList& set : sources.validation) {
    for (auto& source : set) sources_.push_back(std::move(source));
  }
  check_masks();
  make_samples(options);
}

void Dataset::choose_sequence_length(const DatasetOptions& options, const Sources& sources) {
  chose_sequence_length_ = packing_ != Packing::kWindows;
  sequence_length_ = chose_sequence_length_
                         ? fitting_length(sources.data, options.longest_chosen_length)
                         : options.longest_window_length;
}

bool Dataset::has_source(bool is_text) const {
  return std::ranges::any_of(sources_,
                             [&](const auto& source) { return source->is_text() == is_text; });
}

std::int64_t Dataset::tokens_in(const std::vector<TokenRange>& ranges) {
  std::int64_t tokens = 0;
  for (const TokenRange& range : ranges) tokens += range.count;
  return tokens;
}

// Divides the data into training and validation. The tail begins with a document, where documents
// are kept whole.
void Dataset::divide(const DatasetOptions& options, const Sources& sources) {
  ValidationSamples tails;
  for (const auto& source : sources.data) {
    const std::int64_t tokens = source->count();
    std::int64_t kept = tokens;
    if (sources.validation.empty()) kept -= tail_tokens(options.validation_fraction, tokens);
    if (kept < tokens && packing_ != Packing::kWindows) kept = documents_before(*source, kept);
    training_ranges_.push_back({source.get(), 0, kept});
    if (kept < tokens) tails.ranges.push_back({source.get(), kept, tokens - kept});
  }
  if (!tails.ranges.empty()) validation_.push_back(std::move(tails));
  add_validation(options, sources);
}

void Dataset::add_validation(const DatasetOptions& options, const Sources& sources) {
  for (std::size_t s = 0; s < sources.validation.size(); ++s) {
    ValidationSamples& set = validation_.emplace_back();
    if (s < options.validation_data.size()) set.name = options.validation_data[s].name;
    for (const auto& source : sources.validation[s]) {
      set.ranges.push_back({source.get(), 0, source->count()});
      if (source->count() >= 2) continue;
      throw ConfigError(fmt::format("the validation data{} has {} tokens",
                                    set.name.empty() ? "" : " " + set.name, source->count()),
                        "at least 2 are needed");
    }
  }
}

// Counts the tokens of the data that are trained on, and checks that documents and masks are as
// they must be.
void Dataset::check_masks() {
  for (const auto& source : sources_) {
    if (packing_ == Packing::kWindows || source->has_documents()) continue;
    throw ConfigError(
        fmt::format("--packing {}: nothing says where the documents of the data end",
                    name_of(packing_)),
        "put a file of document ends (FILE.idx) beside each file of ids, or give --packing "
        "windows");
  }
  for (const TokenRange& range : training_ranges_) {
    const TokenSource& source = *range.source;
    has_mask_ = has_mask_ || source.has_mask();
    all_tokens_ += source.count();
    unmasked_tokens_ += uses_mask_ ? count_unmasked(source, 0, source.count()) : source.count();
  }
  if (uses_mask()) check_mask(unmasked_tokens_, all_tokens_);
}

std::unique_ptr<SampleSet> Dataset::samples_of(const TokenRange& range) const {
  if (packing_ == Packing::kWindows) {
    return make_window_samples(range, sequence_length_, uses_mask_);
  }
  return make_packed_samples(range, {.sequence_length = sequence_length_,
                                     .joins_documents = packing_ == Packing::kDocuments,
                                     .uses_mask = uses_mask_});
}

void Dataset::make_samples(const DatasetOptions& options) {
  std::vector<std::unique_ptr<SampleSet>> training;
  for (const TokenRange& range : training_ranges_) {
    training.push_back(samples_of(range));
    if (training.back()->training_samples() > 0) continue;
    if (packing_ == Packing::kWindows) {
      throw ConfigError(fmt::format("--data has {} tokens for training, but one sample takes {}",
                                    range.count, sequence_length_ + 1),
                        "give more data, a smaller --sequence-length or --validation-fraction 0");
    }
    throw ConfigError(
        fmt::format("--data has {} tokens for training, but no document with a token to train on",
                    range.count),
        "give more documents, a larger --sequence-length if prompts fill it, or "
        "--validation-fraction 0");
  }
  training_ = join_samples(std::move(training), options.weights);
  for (ValidationSamples& set : validation_) {
    std::vector<std::unique_ptr<SampleSet>> validating;
    for (const TokenRange& range : set.ranges) validating.push_back(samples_of(range));
    set.samples = join_samples(std::move(validating), {});
    check_validation_targets(options, set);
  }
}

// Checks that a set has a target. Windows give samples even where a mask leaves them no target, and
// their loss would be 0 / 0.
void Dataset::check_validation_targets(const DatasetOptions& options,
                                       const ValidationSamples& set) const {
  const auto has_target = [](const TokenRange& range) {
    return count_unmasked(*range.source, range.begin + 1, range.begin + range.count) > 0;
  };
  const bool is_named = !options.validation_data.empty();
  const bool has_samples = set.samples->evaluation_samples() > 0;
  const bool is_masked = packing_ == Packing::kWindows && uses_mask_ && has_samples;
  const bool is_empty =
      is_masked ? std::ranges::none_of(set.ranges, has_target) : is_named && !has_samples;
  if (!is_empty) return;
  throw ConfigError(
      fmt::format("{} has no token to evaluate on: its documents are shorter than two tokens, or "
                  "masks or prompts exclude all tokens",
                  is_named
                      ? fmt::format("--validation-data{}{}", set.name.empty() ? "" : " ", set.name)
                      : "the validation part at the end of --data"),
      is_named ? "give documents with completions, a larger --sequence-length if prompts fill it, "
                 "or --loss-on all"
               : "give another --validation-fraction (0: none), --validation-data or --loss-on "
                 "all");
}

void Dataset::check_validation() const {
  constexpr std::int64_t kPiece = 1 << 16;
  std::vector<std::int32_t> piece(kPiece);
  for (const ValidationSamples& set : validation_) {
    for (const auto& [source, begin, count] : set.ranges) {
      for (std::int64_t at = 0; at < count; at += kPiece) {
        const auto size = static_cast<std::size_t>(std::min(kPiece, count - at));
        source->read(begin + at, std::span(piece).first(size));
      }
    }
  }
}

std::optional<std::uint64_t> Dataset::training_hash() const {
  return hash_of(training_ranges_, *training_);
}

std::optional<std::uint64_t> Dataset::validation_hash(std::size_t set) const {
  if (set >= validation_.size()) return hash_places(*sources_.front(), 0, 0);  // of no tokens
  return hash_of(validation_[set].ranges, *validation_[set].samples);
}

std::int64_t Dataset::validation_tokens(std::size_t set) const {
  return set < validation_.size() ? tokens_in(validation_[set].ranges) : 0;
}

std::int64_t Dataset::validation_samples(std::size_t set) const {
  return set < validation_.size() ? validation_[set].samples->evaluation_samples() : 0;
}

void Dataset::fill_micro_batch(std::int64_t first_sample, const SampleRows& rows) const {
  const auto length = static_cast<std::size_t>(sequence_length_);
  for (std::int64_t s = 0; s < sequences_in(rows); ++s) {
    training_->fill_training(seed_, first_sample + s,
                             rows.part(static_cast<std::size_t>(s) * length, length));
  }
}

std::int64_t Dataset::fill_validation_batch(std::int64_t first_sample, const SampleRows& rows,
                                            std::size_t set) const {
  TERRACE_CHECK_LT(set, validation_.size());
  const auto length = static_cast<std::size_t>(sequence_length_);
  std::int64_t counted = 0;
  for (std::int64_t s = 0; s < sequences_in(rows); ++s) {
    counted += validation_[set].samples->fill_evaluation(
        first_sample + s, rows.part(static_cast<std::size_t>(s) * length, length));
  }
  return counted;
}

std::int64_t Dataset::sequences_in(const SampleRows& rows) const {
  TERRACE_CHECK_EQ(rows.tokens.size(), rows.targets.size());
  TERRACE_CHECK_EQ(rows.tokens.size() % static_cast<std::size_t>(sequence_length_), 0U);
  TERRACE_CHECK_EQ(rows.positions.empty(), !has_documents());
  return std::ssize(rows.tokens) / sequence_length_;
}

}  // namespace terrace
