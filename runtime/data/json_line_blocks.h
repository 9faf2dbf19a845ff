#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/data/document_ids.h"
#include "runtime/data/json_texts.h"
#include "runtime/data/text_blocks.h"

namespace terrace {

// Reads files of JSON lines, or of one array each, which may be compressed, in blocks of about
// 256 KiB of whole lines or items. A position's offset counts these. For one thread.
class JsonLineBlocks final : public BlockSource {
 public:
  // Borrows the files. Reads and drops the documents before `begin`. Throws as next().
  explicit JsonLineBlocks(const std::vector<std::string>& files, TextPosition begin = {});

  // Throws as JsonTexts, and ConfigError for a file that is one object.
  bool next(TextBlock& block) override;
  std::uint64_t begin_bytes() const override { return begin_bytes_; }

 private:
  void open();
  void close();

  const std::vector<std::string>& files_;
  TextPosition position_;
  JsonLayout layout_ = JsonLayout::kLines;  // of the file that is read
  std::unique_ptr<JsonTexts> texts_;
  std::uint64_t passed_bytes_ = 0;  // of files that are done
  std::uint64_t begin_bytes_ = 0;
  std::uint64_t told_bytes_ = 0;  // reported by blocks so far, with begin_bytes_
};

// Adds the documents of a block's lines. Throws as parse_json_document(), with the place of the
// line.
void add_json_lines(const TextBlock& block, const std::string& path, const TextTokens& text,
                    std::int64_t vocabulary, DocumentIds& to);

}  // namespace terrace
