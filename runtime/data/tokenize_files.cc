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
#include "runtime/data/block_encoder.h"
#include "runtime/data/text_blocks.h"
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

// The id behind each document.
std::optional<std::int32_t> end_of_documents(const Tokenizer& tokenizer,
                                             const TokenizeRequest& request) {
  return request.append_end ? tokenizer.end_token() : std::nullopt;
}

// Of what decides about the ids: the texts by their names, sizes and times, the tokenizer, and the
// end token, which another file than the tokenizer's may name.
std::uint64_t fingerprint_of(const TokenizeRequest& request, const std::vector<SourceFile>& sources,
                             std::optional<std::int32_t> end) {
  std::string text =
      fmt::format("{} {} {}\n", request.tokenizer_hash, end.value_or(-1), request.files.size());
  for (std::size_t i = 0; i < sources.size(); ++i) {
    text += fmt::format("{} {} {}\n", sources[i].size_bytes, sources[i].modified, request.files[i]);
  }
  return hash_bytes(std::as_bytes(std::span(text)));
}

// Takes encoded blocks to the files.
class TokenizeRun {
 public:
  TokenizeRun(const Tokenizer& tokenizer, const TokenizeRequest& request,
              FunctionRef<void(const TokenizeProgress&)> tell)
      : tokenizer_(tokenizer),
        request_(request),
        tell_(tell),
        sources_(look_at_all(request.files)),
        end_(end_of_documents(tokenizer, request)),
        writer_({.path = request.output,
                 .width = token_width(tokenizer),
                 .fingerprint = fingerprint_of(request, sources_, end_)}) {
    for (const SourceFile& source : sources_) progress_.bytes_of_all += source.size_bytes;
    const TokenFileState& state = writer_.state();
    for (std::size_t i = 0; i < state.source.file; ++i) progress_.bytes += sources_[i].size_bytes;
    progress_.bytes += state.source.offset;
    resumed_bytes_ = progress_.bytes;
  }

  TokenizeResult run() {
    TextBlocks blocks(request_.files, tokenizer_, writer_.state().source);
    BlockEncoder encoder(tokenizer_, request_.threads);
    bool is_more = true;
    while (is_more || !encoder.is_empty()) {
      while (is_more && !encoder.is_full()) {
        TextBlock block;
        is_more = blocks.next(block);
        if (is_more) encoder.put(std::move(block));
      }
      if (!encoder.is_empty()) write(encoder.take());
    }
    writer_.finish();
    return {progress_, token_width(tokenizer_), resumed_bytes_};
  }

 private:
  static std::vector<SourceFile> look_at_all(const std::vector<std::string>& files) {
    std::vector<SourceFile> sources;
    sources.reserve(files.size());
    for (const std::string& file : files) sources.push_back(look_at(file));
    return sources;
  }

  void write(BlockEncoder::Encoded encoded) {
    if (encoded.block.ends_document && end_) encoded.ids.push_back(*end_);
    writer_.append(encoded.ids);
    if (encoded.block.ends_document) writer_.end_document();
    progress_.bytes += encoded.text_bytes;
    progress_.tokens = writer_.state().tokens;
    progress_.documents = writer_.state().documents;
    unsaved_bytes_ += encoded.text_bytes;
    if (unsaved_bytes_ >= request_.bytes_between_saves) {
      writer_.save(encoded.block.end);
      unsaved_bytes_ = 0;
    }
    tell_(progress_);
  }

  const Tokenizer& tokenizer_;
  const TokenizeRequest& request_;
  FunctionRef<void(const TokenizeProgress&)> tell_;
  std::vector<SourceFile> sources_;
  std::optional<std::int32_t> end_;
  TokenFileWriter writer_;
  TokenizeProgress progress_;
  std::uint64_t resumed_bytes_ = 0;
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
