#include "runtime/data/document_encoder.h"

#include <utility>

#include "runtime/data/json_line_blocks.h"
#include "runtime/data/readable_file.h"
#include "runtime/tokenizer/document_tokens.h"

namespace terrace {
namespace {

std::unique_ptr<BlockSource> source_for(const DocumentEncoder::Request& request) {
  if (request.is_jsonl) return std::make_unique<JsonLineBlocks>(request.files, request.begin);
  return std::make_unique<TextBlocks>(request.files, request.text.tokenizer, request.begin);
}

}  // namespace

DocumentEncoder::DocumentEncoder(Request request)
    : request_(std::move(request)),
      source_(source_for(request_)),
      encoder_(encoding(), request_.threads) {
  for (const std::string& path : request_.files) total_bytes_ += size_of_file(path);
}

// Returns the function that each thread calls with a block. It uses nothing of this object but the
// request.
EncodeBlock DocumentEncoder::encoding() const {
  const Request& request = request_;
  if (request.is_jsonl) {
    return [&request](const TextBlock& block, DocumentIds& documents) {
      add_json_lines(block, request.files[block.begin.file], request.text, request.vocabulary,
                     documents);
    };
  }
  return [&request](const TextBlock& block, DocumentIds& documents) {
    documents.has_text = true;
    const std::size_t text_begin = documents.ids.size();
    request.text.tokenizer.encode(block.text, documents.ids);
    if (!block.ends_document) return;
    if (request.text.appends_end) {
      append_end(request.text.tokenizer, text_begin, documents.ids);
    }
    documents.ends.push_back(documents.ids.size());
  };
}

std::optional<BlockEncoder::Encoded> DocumentEncoder::next() {
  while (is_more_ && !encoder_.is_full()) {
    TextBlock block;
    is_more_ = source_->next(block);
    if (is_more_) encoder_.put(std::move(block));
  }
  if (encoder_.is_empty()) return std::nullopt;
  return encoder_.take();
}

}  // namespace terrace
