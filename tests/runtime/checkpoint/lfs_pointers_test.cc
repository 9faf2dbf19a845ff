#include <gtest/gtest.h>

#include <string>

#include "base/lfs_pointer.h"
#include "runtime/checkpoint/adapter_directory.h"
#include "runtime/data/data_format.h"
#include "runtime/data/text_lines.h"
#include "runtime/model/model_config.h"
#include "runtime/tokenizer/load_tokenizer.h"
#include "tests/runtime/temporary_directory.h"

// Pointers that `git clone` without git-lfs leaves in place of files.
namespace terrace {
namespace {

class LfsPointers : public testing::Test {
 protected:
  // Writes a pointer in place of the file, and returns the file's path.
  std::string write_pointer(const std::string& name) {
    return directory_.write(
        name, std::string(kLfsPointerBegin) + ".github.com/spec/v1\noid sha256:1f\nsize 9085657\n");
  }

  const TemporaryDirectory directory_;
  SilentLog log_;
};

TEST_F(LfsPointers, AreNamedInPlaceOfAConfig) {
  write_pointer("m/config.json");
  TERRACE_EXPECT_THROW_WITH(load_model_config(directory_.path("m")), ConfigError,
                            "m/config.json: a Git LFS pointer instead of the file; fetch the file "
                            "itself: git lfs pull");
  write_pointer("a/adapter_config.json");
  TERRACE_EXPECT_THROW_WITH(AdapterDirectory(directory_.path("a")), ConfigError, "git lfs pull");
}

TEST_F(LfsPointers, AreNamedInPlaceOfATokenizer) {
  for (const char* name : {"tokenizer.model", "tokenizer.json"}) {
    const std::string path = write_pointer(name);
    TERRACE_EXPECT_THROW_WITH(load_tokenizer(directory_.path(), log_), ConfigError,
                              path + ": a Git LFS pointer");
  }
}

TEST_F(LfsPointers, AreNamedInPlaceOfData) {
  const std::string lines = write_pointer("data.jsonl");
  TERRACE_EXPECT_THROW_WITH(TextLines{lines}, ConfigError, "git lfs pull");
  const std::string text = write_pointer("data.txt");
  for (const DataFormat format : {DataFormat::kAuto, DataFormat::kText, DataFormat::kLlmc}) {
    const auto open = [&] { open_data({.paths = {text}, .format = format, .vocabulary = 256}); };
    TERRACE_EXPECT_THROW_WITH(open(), ConfigError, "git lfs pull");
  }
}

}  // namespace
}  // namespace terrace
