#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace terrace {

// A token that the files beside a tokenizer name, by its text or by its id.
struct NamedToken {
  bool is_named = false;  // a file says which it is, or that there is none
  std::optional<std::string> text;
  std::optional<std::int32_t> id;
  std::string where;  // the file that says it
};

struct SpecialNames {
  NamedToken begin;
  NamedToken end;
  // Whether a text begins with `begin`; nothing where no file says so.
  std::optional<bool> adds_begin;
};

// Reads tokenizer_config.json, special_tokens_map.json and generation_config.json, as far as they
// are there. The first that names a token counts. Throws CorruptData, IoError.
SpecialNames read_special_names(const std::string& directory);

// The ids at which a text that a model makes ends.
struct EndIds {
  std::vector<std::int32_t> ids;
  bool is_from_config = false;  // config.json names them, which may be older than the tokenizer
};

// Reads the ids of the model in the directory, as generate() of transformers takes them:
// eos_token_id of generation_config.json, one or several; without that file, of config.json. Throws
// CorruptData, IoError.
EndIds read_end_ids(const std::string& directory);

}  // namespace terrace
