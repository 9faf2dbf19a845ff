#include "runtime/train/run_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/host_name.h"
#include "memory/host/host_limits.h"
#include "runtime/tokenizer/choose_tokenizer.h"
#include "runtime/train/data_defaults.h"
#include "runtime/train/rank_agreement.h"
#include "runtime/train/run_companions.h"
#include "runtime/train/train_setup.h"

namespace terrace {
namespace {

// Ranks that wait for a rank that tokenizes hear from it this often, whatever --collective-timeout
// is.
constexpr auto kSlice = std::chrono::seconds(2);

constexpr std::int64_t kTextIds = 256;

// Returns a number that is equal for ranks that can open each other's files through /proc.
std::int64_t host_of_this_process() {
  // Machines may share a name, and the first namespace has the same number on every machine.
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::error_code ignored;
  const std::string identity =
      fmt::format("{} {} {}", host_name(), boot,
                  std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string());
  return static_cast<std::int64_t>(hash_bytes(std::as_bytes(std::span(identity))));
}

// Returns, for each rank, the first rank of its host.
std::vector<std::int64_t> writers_of(const RankGroup& ranks) {
  if (ranks.world() == nullptr) return {0};
  const std::vector<std::int64_t> hosts = of_all_ranks(*ranks.world(), host_of_this_process());
  std::vector<std::int64_t> writers;
  for (const std::int64_t host : hosts) {
    writers.push_back(std::ranges::find(hosts, host) - hosts.begin());
  }
  return writers;
}

// Returns what other ranks need to know about a token file as text, one field on each line.
std::string to_text(const TokenFile& file) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}", file.path, file.documents.path,
                     file.mask_path, file.width, file.tokens, file.is_text ? 1 : 0,
                     file.counts.documents, file.counts.conversations, file.counts.prompts,
                     file.counts.tokens);
}

TokenFile token_file_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  TERRACE_CHECK_EQ(lines.size(), 10U);
  TokenFile file;
  file.path = lines[0];
  file.documents = {.kind = DocumentIndex::Kind::kEnds, .path = lines[1]};
  file.mask_path = lines[2];
  file.width = std::stoll(lines[3]);
  file.tokens = std::stoll(lines[4]);
  file.is_text = lines[5] == "1";
  file.counts = {.documents = std::stoll(lines[6]),
                 .conversations = std::stoll(lines[7]),
                 .prompts = std::stoll(lines[8]),
                 .tokens = std::stoll(lines[9])};
  return file;
}

bool names_file(const DataOptions& data) {
  return data.tokenizer != "auto" && data.tokenizer != "bytes";
}

// Refuses a run directory that is a directory of the data: from the run's second start on, its own
// files would be read as data.
void check_apart_from_data(const TrainOptions& options) {
  const auto check = [&](const std::vector<std::string>& paths, const char* flag) {
    for (const std::string& path : paths) {
      std::error_code ignored;
      const bool is_directory = std::filesystem::is_directory(path, ignored);
      if (!is_directory || !std::filesystem::equivalent(path, options.run.run_dir, ignored)) {
        continue;
      }
      throw ConfigError(fmt::format("--run-dir {} is the directory {} of {}: the run would read "
                                    "its own files as data",
                                    options.run.run_dir, path, flag),
                        "give a separate --run-dir; a run directory below the data is not read as "
                        "data");
    }
  };
  check(options.data.data, "--data");
  for (const ValidationSet& set : options.data.validation_data) {
    check(set.paths, "--validation-data");
  }
}

}  // namespace

RunData::RunData(const Request& request, const RankGroup& ranks, TrainConsole& console, Log& log)
    : ranks_(ranks),
      console_(console),
      log_(log),
      tokenizer_path_(tokenizer_path(request.options.data.tokenizer, request.options.model.model)) {
  const TrainOptions& options = request.options;
  check_apart_from_data(options);
  check_steps_are_named(options);
  if (names_file(options.data)) load_tokenizer_of(options, request.model.vocabulary);
  DatasetOptions data = dataset_options_for(options, request.model, request.sequence_length);
  data.tokenizes_text = !tokenizer_path_.empty();
  data.tokenize = [&](const std::vector<std::string>& files, DataFormat format) {
    if (tokenizer_ == nullptr) load_tokenizer_of(options, request.model.vocabulary);
    const TokenFile file =
        tokenize({.files = files,
                  .is_jsonl = format == DataFormat::kJsonl,
                  .text = {.tokenizer = *tokenizer_,
                           .is_bytes = tokenizer_path_.empty(),
                           .conversations = conversations_.get()},
                  .vocabulary = request.model.vocabulary,
                  .threads = options.tiers.threads.value_or(read_host_limits().usable_cpus())});
    counts_ += file.counts;
    return file;
  };
  dataset_ = std::make_unique<Dataset>(data);
  // Files of ids are taken to hold more than bytes if the model has more ids than there are bytes.
  const bool has_ids = dataset_->has_other_than_text() && request.model.vocabulary > kTextIds;
  if (dataset_->has_text() && has_ids) {
    throw ConfigError(
        "some files of --data or --validation-data are text, which would be read as bytes, but "
        "others contain ids of a tokenizer",
        "name the tokenizer of those ids with --tokenizer FILE; then it tokenizes the text, too");
  }
  if (dataset_->is_text() && tokenizer_ == nullptr) {  // bytes, or the model's cannot be read
    tokenizer_ = choose_tokenizer(options.data.tokenizer, options.model.model, log_);
  }
  check_same_data(ranks_, *dataset_);
}

void RunData::load_tokenizer_of(const TrainOptions& options, std::int64_t vocabulary) {
  tokenizer_ = choose_tokenizer(options.data.tokenizer, options.model.model, log_);
  conversations_ = std::make_unique<ConversationEncoder>(
      ChatTemplateChoice{options.model.model, options.data.chat_template}, *tokenizer_,
      options.data.loss_on == "all");
  if (tokenizer_->vocabulary() <= vocabulary) return;
  throw ConfigError(fmt::format("--tokenizer {}: it has {} ids, but the model's vocabulary has "
                                "only {}",
                                options.data.tokenizer, tokenizer_->vocabulary(), vocabulary),
                    "give the tokenizer of this model");
}

std::vector<HfCompanion> RunData::companions(const TrainOptions& options, bool is_adapter) const {
  return companions_of_run({options, dataset_->is_text(), is_adapter, has_conversations()}, log_);
}

// Tokenizes the files. The first rank of each host writes the result; the others wait for it in
// short calls.
TokenFile RunData::tokenize(DocumentEncoder::Request request) {
  const std::vector<std::int64_t> writers = writers_of(ranks_);
  const bool writes = writers.at(static_cast<std::size_t>(ranks_.rank())) == ranks_.rank();
  std::optional<ScratchTokenizing> tokenizing;
  if (writes) tokenizing.emplace(std::move(request));
  ConsolePhase phase(console_, "tokenizing the data");
  const auto is_under_way = [&] {
    if (!tokenizing) return false;
    const bool goes_on = tokenizing->advance(std::chrono::steady_clock::now() + kSlice);
    phase.advance(static_cast<std::int64_t>(tokenizing->done_bytes()),
                  static_cast<std::int64_t>(std::max<std::uint64_t>(1, tokenizing->total_bytes())));
    return goes_on;
  };
  bool is_done = false;
  while (ranks_.any(!is_done)) is_done = is_done || !is_under_way();
  TokenFile own;
  if (writes) {
    written_.push_back(tokenizing->take());
    own = written_.back().token_file();
  }
  return ranks_.world() == nullptr ? own : share(own, writers);
}

// Tells the other ranks of the host about this rank's file, or opens the file that this rank is
// told about.
TokenFile RunData::share(const TokenFile& own, const std::vector<std::int64_t>& writers) {
  const std::int64_t writer = writers.at(static_cast<std::size_t>(ranks_.rank()));
  TokenFile found = own;
  for (std::int64_t rank = 0; rank < std::ssize(writers); ++rank) {
    if (writers[static_cast<std::size_t>(rank)] != rank) continue;
    const std::string text = text_of_rank(*ranks_.world(), static_cast<int>(rank), to_text(own));
    if (rank == writer && rank != ranks_.rank()) found = token_file_of(text);
  }
  if (writer != ranks_.rank()) {
    for (std::string* const path : {&found.path, &found.documents.path, &found.mask_path}) {
      if (path->empty()) continue;
      opened_.push_back(std::make_unique<ScratchFile>(*path));
      *path = opened_.back()->path();
    }
  }
  ranks_.wait_for_all();
  return found;
}

}  // namespace terrace
