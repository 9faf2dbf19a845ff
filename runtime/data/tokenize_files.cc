#include "runtime/data/tokenize_files.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/hash.h"
#include "runtime/data/data_files.h"
#include "runtime/data/document_encoder.h"
#include "runtime/data/token_file_writer.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kIdsOfTwoBytes = 65'536;

struct SourceFile {
  std::uint64_t size_bytes = 0;
  std::int64_t modified = 0;  // in the file system's own count
};

SourceFile look_at(const std::string& path) {
  std::error_code error;
  SourceFile file;
  file.size_bytes = fs::file_size(path, error);
  if (!error) file.modified = fs::last_write_time(path, error).time_since_epoch().count();
  if (error) throw IoError({.operation = "stat", .path = path, .error_number = error.value()});
  return file;
}

// Returns the id after each document.
std::optional<std::int32_t> end_of_documents(const Tokenizer& tokenizer,
                                             const TokenizeRequest& request) {
  return request.append_end ? tokenizer.end_token() : std::nullopt;
}

// Returns a hash of everything that decides the ids: the texts by their names, sizes and times, the
// tokenizer, the chat templates, and the end token, which another file than the tokenizer's may
// name.
std::uint64_t fingerprint_of(const TokenizeRequest& request, const std::vector<SourceFile>& sources,
                             std::optional<std::int32_t> end, const std::string& templates) {
  std::string text =
      fmt::format("{} {} {} {}\n", request.tokenizer_hash, end.value_or(-1), request.files.size(),
                  hash_bytes(std::as_bytes(std::span(templates))));
  for (std::size_t i = 0; i < sources.size(); ++i) {
    text += fmt::format("{} {} {}\n", sources[i].size_bytes, sources[i].modified, request.files[i]);
  }
  return hash_bytes(std::as_bytes(std::span(text)));
}

// Writes encoded blocks to the files.
class TokenizeRun {
 public:
  TokenizeRun(const Tokenizer& tokenizer, const TokenizeRequest& request,
              FunctionRef<void(const TokenizeProgress&)> tell)
      : request_(request),
        width_(token_width(tokenizer)),
        tell_(tell),
        conversations_(request.chat_template, tokenizer, false),
        sources_(look_at_all(request.files)),
        writer_({.path = request.output,
                 .width = width_,
                 .writes_mask = request.is_jsonl,
                 .fingerprint =
                     fingerprint_of(request, sources_, end_of_documents(tokenizer, request),
                                    request.is_jsonl ? conversations_.template_texts() : "")}),
        encoder_({.files = request.files,
                  .is_jsonl = request.is_jsonl,
                  .text = {.tokenizer = tokenizer,
                           .appends_end = request.append_end,
                           .conversations = &conversations_},
                  .vocabulary = tokenizer.vocabulary(),
                  .threads = request.threads,
                  .begin = writer_.state().source}) {
    progress_.bytes_of_all = encoder_.total_bytes();
    progress_.bytes = encoder_.begin_bytes();
  }

  TokenizeResult run() {
    while (const std::optional<BlockEncoder::Encoded> encoded = encoder_.next()) write(*encoded);
    if (writer_.state().documents == 0) {
      throw ConfigError(fmt::format("{}: no line has a document", some_names(request_.files)),
                        "give files of JSON lines with documents");
    }
    writer_.finish();
    return {.done = progress_,
            .width = width_,
            .resumed_bytes = encoder_.begin_bytes(),
            .trained_tokens = writer_.state().trained};
  }

 private:
  static std::vector<SourceFile> look_at_all(const std::vector<std::string>& files) {
    std::vector<SourceFile> sources;
    sources.reserve(files.size());
    for (const std::string& file : files) sources.push_back(look_at(file));
    return sources;
  }

  void write(const BlockEncoder::Encoded& encoded) {
    writer_.append(encoded.documents);
    progress_.bytes += encoded.block.source_bytes;
    progress_.tokens = writer_.state().tokens;
    progress_.documents = writer_.state().documents;
    unsaved_bytes_ += encoded.text_bytes;
    if (unsaved_bytes_ >= request_.bytes_between_saves) {
      writer_.save(encoded.block.end);
      unsaved_bytes_ = 0;
    }
    tell_(progress_);
  }

  const TokenizeRequest& request_;
  std::int64_t width_;
  FunctionRef<void(const TokenizeProgress&)> tell_;
  const ConversationEncoder conversations_;
  std::vector<SourceFile> sources_;
  TokenFileWriter writer_;
  DocumentEncoder encoder_;
  TokenizeProgress progress_;
  std::uint64_t unsaved_bytes_ = 0;
};

}  // namespace

std::int64_t token_width(const Tokenizer& tokenizer) {
  return tokenizer.vocabulary() < kIdsOfTwoBytes ? 2 : 4;
}

TokenizeResult tokenize_files(const Tokenizer& tokenizer, const TokenizeRequest& request,
                              FunctionRef<void(const TokenizeProgress&)> tell) {
  return TokenizeRun(tokenizer, request, tell).run();
}

std::uint64_t hash_of_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw IoError({.operation = "open", .path = path, .error_number = errno});
  StreamingHash hash;
  std::array<char, 64 * kKiB> bytes;
  while (stream.read(bytes.data(), bytes.size()) || stream.gcount() > 0) {
    hash.add(std::as_bytes(std::span(bytes).first(static_cast<std::size_t>(stream.gcount()))));
  }
  if (stream.bad()) throw IoError({.operation = "read", .path = path, .error_number = errno});
  return hash.value();
}

}  // namespace terrace
