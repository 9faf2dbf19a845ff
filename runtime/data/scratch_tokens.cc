#include "runtime/data/scratch_tokens.h"

#include <fmt/format.h>

#include <optional>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "runtime/data/data_files.h"

namespace terrace {
namespace {

template <typename T>
void write_number(ScratchFile& file, T number) {
  file.write(std::as_bytes(std::span(&number, 1)));
}

// Returns the request, if its tokenizer fits the vocabulary.
DocumentEncoder::Request checked(DocumentEncoder::Request request) {
  const std::int64_t ids = request.text.tokenizer.vocabulary();
  if (ids <= request.vocabulary) return request;
  throw ConfigError(fmt::format("the tokenizer has {} ids, but the model's vocabulary has only {}",
                                ids, request.vocabulary),
                    "give the model's own tokenizer, or a model with a larger vocabulary");
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
  file.counts = counts;
  return file;
}

ScratchTokenizing::ScratchTokenizing(DocumentEncoder::Request request)
    : names_(some_names(request.files)),
      is_bytes_(request.text.is_bytes),
      encoder_(checked(std::move(request))) {
  constexpr std::int64_t kIdsOf16Bits = 65536;
  data_.width = encoder_.vocabulary() > kIdsOf16Bits ? 4 : 2;
  for (std::unique_ptr<ScratchFile>* const file : {&data_.ids, &data_.ends, &data_.mask}) {
    *file = std::make_unique<ScratchFile>();
  }
}

bool ScratchTokenizing::advance(std::chrono::steady_clock::time_point deadline) {
  do {
    const std::optional<BlockEncoder::Encoded> encoded = encoder_.next();
    if (!encoded) return false;
    add(encoded->documents);
    done_bytes_ += encoded->block.source_bytes;
  } while (std::chrono::steady_clock::now() < deadline);
  return true;
}

void ScratchTokenizing::add(const DocumentIds& documents) {
  data_.is_text = data_.is_text || (documents.has_text && is_bytes_);
  data_.has_mask = data_.has_mask || documents.has_mask;
  for (const std::size_t end : documents.ends) {
    write_number(*data_.ends, static_cast<std::uint64_t>(data_.tokens) + end);
  }
  for (std::size_t i = 0; i < documents.ids.size(); ++i) {
    const std::int32_t id = documents.ids[i];
    TERRACE_CHECK(id >= 0 && id < encoder_.vocabulary());
    if (data_.width == 2) {
      write_number(*data_.ids, static_cast<std::uint16_t>(id));
    } else {
      write_number(*data_.ids, static_cast<std::uint32_t>(id));
    }
    write_number(*data_.mask, documents.mask_of(i));
  }
  data_.tokens += std::ssize(documents.ids);
  data_.counts += {.documents = std::ssize(documents.ends),
                   .conversations = documents.conversations,
                   .prompts = documents.prompts,
                   .tokens = std::ssize(documents.ids)};
}

TokenizedData ScratchTokenizing::take() {
  if (data_.counts.documents == 0) {
    throw ConfigError(fmt::format("{}: no line has a document", names_),
                      "give files of JSON lines with documents");
  }
  for (const auto* const file : {&data_.ids, &data_.ends, &data_.mask}) (*file)->flush();
  return std::move(data_);
}

}  // namespace terrace
