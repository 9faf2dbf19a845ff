#include "runtime/data/json_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/error.h"
#include "runtime/data/json_document.h"
#include "runtime/data/readable_file.h"

namespace terrace {
namespace {

template <typename T>
void write_number(ScratchFile& file, T number) {
  file.write(std::as_bytes(std::span(&number, 1)));
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

TokenFile TokenizedData::token_file() const {
  TokenFile file;
  file.path = ids->path();
  file.width = width;
  file.tokens = tokens;
  file.is_text = is_text;
  if (has_mask) file.mask_path = mask->path();
  file.documents = {.kind = DocumentIndex::Kind::kEnds, .path = ends->path()};
  return file;
}

JsonTokenizing::JsonTokenizing(std::vector<std::string> files, const TextTokens& text,
                               std::int64_t vocabulary)
    : files_(std::move(files)), text_(text), vocabulary_(vocabulary) {
  if (text.tokenizer.vocabulary() > vocabulary) {
    throw ConfigError(fmt::format("the tokenizer has {} ids, and the model's vocabulary is {}",
                                  text.tokenizer.vocabulary(), vocabulary),
                      "give the model's own tokenizer, or a model with a larger vocabulary");
  }
  constexpr std::int64_t kIdsOf16Bits = 65536;
  data_.width = vocabulary > kIdsOf16Bits ? 4 : 2;
  for (std::unique_ptr<ScratchFile>* const file : {&data_.ids, &data_.ends, &data_.mask}) {
    *file = std::make_unique<ScratchFile>();
  }
  for (const std::string& path : files_) total_bytes_ += size_of_file(path);
}

bool JsonTokenizing::advance(std::chrono::steady_clock::time_point deadline) {
  do {
    if (!next_document()) return false;
  } while (std::chrono::steady_clock::now() < deadline);
  return true;
}

std::uint64_t JsonTokenizing::done_bytes() const {
  return passed_bytes_ + (lines_ == nullptr ? 0 : lines_->file_bytes());
}

// Adds the next document; false where there is none.
bool JsonTokenizing::next_document() {
  for (;;) {
    if (lines_ == nullptr) {
      if (next_file_ == files_.size()) return false;
      lines_ = std::make_unique<TextLines>(files_[next_file_++]);
    }
    const std::optional<std::string_view> line = lines_->next();
    if (!line) {
      passed_bytes_ += lines_->file_bytes();
      lines_.reset();
    } else if (!is_blank(*line)) {
      add(parse_json_document(*line, lines_->place(), vocabulary_));
      return true;
    }
  }
}

void JsonTokenizing::add(const JsonDocument& document) {
  ++documents_;
  if (document.kind == JsonDocument::Kind::kIds) {
    data_.has_mask = data_.has_mask || !document.mask.empty();
    for (std::size_t i = 0; i < document.ids.size(); ++i) {
      add_token(document.ids[i], document.mask.empty() || document.mask[i] != 0);
    }
  } else {
    data_.is_text = text_.is_bytes;
    const std::optional<std::int32_t> begin = text_.tokenizer.begin_token();
    if (begin) add_token(*begin, document.kind == JsonDocument::Kind::kText);
    if (document.kind == JsonDocument::Kind::kPrompt) {
      data_.has_mask = true;
      add_text(document.prompt, false);
    }
    add_text(document.text, true);
    const std::optional<std::int32_t> end = text_.tokenizer.end_token();
    if (end) add_token(*end, true);
  }
  const auto end = static_cast<std::uint64_t>(data_.tokens);
  write_number(*data_.ends, end);
}

void JsonTokenizing::add_text(const std::string& text, bool is_completion) {
  ids_.clear();
  text_.tokenizer.encode(text, ids_);
  for (const std::int32_t id : ids_) add_token(id, is_completion);
}

void JsonTokenizing::add_token(std::int32_t id, bool is_trained) {
  TERRACE_CHECK(id >= 0 && id < vocabulary_);
  if (data_.width == 2) {
    write_number(*data_.ids, static_cast<std::uint16_t>(id));
  } else {
    write_number(*data_.ids, static_cast<std::uint32_t>(id));
  }
  write_number(*data_.mask, static_cast<std::uint8_t>(is_trained ? 1 : 0));
  ++data_.tokens;
}

TokenizedData JsonTokenizing::take() {
  if (documents_ == 0) {
    throw ConfigError(fmt::format("{}: no line with a document", fmt::join(files_, ", ")),
                      "give files of JSON lines that have some");
  }
  for (const auto* const file : {&data_.ids, &data_.ends, &data_.mask}) (*file)->flush();
  return std::move(data_);
}

}  // namespace terrace
