#include "runtime/tokenizer/choose_tokenizer.h"

#include "runtime/tokenizer/load_tokenizer.h"
#include "runtime/tokenizer/unread_tokenizers.h"

namespace terrace {

std::string tokenizer_path(const std::string& choice, const std::string& model_directory) {
  if (choice == "bytes") return "";
  return choice == "auto" ? find_tokenizer_file(model_directory) : choice;
}

std::unique_ptr<Tokenizer> choose_tokenizer(const std::string& choice,
                                            const std::string& model_directory, Log& log) {
  const std::string path = tokenizer_path(choice, model_directory);
  if (path.empty() && choice == "auto") refuse_unread_tokenizer(model_directory);
  return path.empty() ? make_bytes_tokenizer() : load_tokenizer(path, log);
}

}  // namespace terrace
