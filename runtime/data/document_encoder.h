#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/block_encoder.h"
#include "runtime/data/document_ids.h"
#include "runtime/data/text_blocks.h"

namespace terrace {

// Turns the documents of files into ids, on threads of its own. They come out in the files' order.
// Memory does not grow with the files, except for a text that has no place where it may be cut. To
// be called by one thread.
class DocumentEncoder {
 public:
  struct Request {
    std::vector<std::string> files;  // texts, each a document; or JSON lines
    bool is_jsonl = false;
    TextTokens text;
    std::int64_t vocabulary = 0;  // ids of JSON lines are below it
    int threads = 1;
    TextPosition begin = {};  // the place that is read first
  };
  explicit DocumentEncoder(Request request);

  // Returns the next block of documents; none at the end. The end token stands after a text, as
  // after a document of JSON lines. Throws as TextBlocks, TextLines, parse_json_document() and the
  // tokenizer do.
  std::optional<BlockEncoder::Encoded> next();
  // Returns the bytes of the files before the beginning, and of all of them.
  std::uint64_t begin_bytes() const { return source_->begin_bytes(); }
  std::uint64_t total_bytes() const { return total_bytes_; }
  std::int64_t vocabulary() const { return request_.vocabulary; }

 private:
  EncodeBlock encoding() const;

  const Request request_;
  std::uint64_t total_bytes_ = 0;
  std::unique_ptr<BlockSource> source_;
  bool is_more_ = true;  // in the source
  BlockEncoder encoder_;
};

}  // namespace terrace
