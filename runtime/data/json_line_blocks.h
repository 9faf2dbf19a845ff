#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/data/document_ids.h"
#include "runtime/data/text_blocks.h"
#include "runtime/data/text_lines.h"

namespace terrace {

// Reads files of JSON lines, which may be compressed, in blocks of about 256 KiB of whole lines. A
// position's offset counts lines. For one thread.
class JsonLineBlocks final : public BlockSource {
 public:
  // Borrows the files. Reads and drops the lines before `begin`. Throws as next().
  explicit JsonLineBlocks(const std::vector<std::string>& files, TextPosition begin = {});

  // Throws as TextLines.
  bool next(TextBlock& block) override;
  std::uint64_t begin_bytes() const override { return begin_bytes_; }

 private:
  void open();
  void close();

  const std::vector<std::string>& files_;
  TextPosition position_;
  std::unique_ptr<TextLines> lines_;  // of the file that is read
  std::uint64_t passed_bytes_ = 0;    // of files that are done
  std::uint64_t begin_bytes_ = 0;
  std::uint64_t told_bytes_ = 0;  // reported by blocks so far, with begin_bytes_
};

// Adds the documents of a block's lines. Throws as parse_json_document(), with the place of the
// line.
void add_json_lines(const TextBlock& block, const std::string& path, const TextTokens& text,
                    std::int64_t vocabulary, DocumentIds& to);

}  // namespace terrace
