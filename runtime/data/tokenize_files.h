#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/function_ref.h"
#include "runtime/chat/conversation_encoder.h"
#include "runtime/tokenizer/tokenizer.h"

namespace terrace {

// The work that terrace tokenize is to do.
struct TokenizeRequest {
  std::vector<std::string> files;  // texts, each one document; or JSON lines
  bool is_jsonl = false;
  std::string output;
  bool append_end = true;  // the end token after each document, where the tokenizer has one
  int threads = 1;
  ChatTemplateChoice chat_template;  // of conversations
  // A hash of the tokenizer's file. Files that another tokenizer has left are not continued.
  std::uint64_t tokenizer_hash = 0;
  // An interrupted process loses no more text than this, in bytes.
  std::uint64_t bytes_between_saves = 64 * kMiB;
};

struct TokenizeProgress {
  std::uint64_t bytes = 0;  // of the files that were read
  std::uint64_t bytes_of_all = 0;
  std::uint64_t tokens = 0;
  std::uint64_t documents = 0;
};

struct TokenizeResult {
  TokenizeProgress done;
  std::int64_t width = 2;           // bytes of an id in the output
  std::uint64_t resumed_bytes = 0;  // of the files that an earlier process had done
  // The number of tokens that are trained on; only of data that says what is trained on.
  std::optional<std::uint64_t> trained_tokens;
};

// Returns the bytes of an id in a file: 2, or 4 where the vocabulary has 65,536 ids or more.
std::int64_t token_width(const Tokenizer& tokenizer);

// Writes the ids of the files to request.output, raw and without a header, and the ends of
// documents to request.output + ".idx". For JSON lines with prompts or masks it also writes a mask
// to request.output + ".mask". Continues the output that an interrupted process has left there for
// the same files and tokenizer (token_file_writer.h). Calls `tell` after each block with the
// progress so far. Throws IoError, and as DocumentEncoder::next().
TokenizeResult tokenize_files(const Tokenizer& tokenizer, const TokenizeRequest& request,
                              FunctionRef<void(const TokenizeProgress&)> tell);

// Returns the hash of a file's content. Throws IoError.
std::uint64_t hash_of_file(const std::string& path);

}  // namespace terrace
