#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace terrace {

// A directory that belongs to the running test, and is removed at its end.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "terrace-test-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  std::string path(const std::string& name = "") const {
    return name.empty() ? path_.string() : (path_ / name).string();
  }

  // Makes the file and the directories above it, and returns the file's path.
  std::string write(const std::string& name, std::string_view content) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary)
        .write(content.data(), static_cast<std::streamsize>(content.size()));
    return file.string();
  }

  std::string read(const std::string& name) const {
    std::ifstream stream(path_ / name, std::ios::binary);
    EXPECT_TRUE(stream) << name;
    std::ostringstream text;
    text << stream.rdbuf();
    return text.str();
  }

  bool has(const std::string& name) const { return std::filesystem::exists(path_ / name); }

 private:
  std::filesystem::path path_;
};

// Expects `statement` to throw `Type` with a message that holds `text`.
#define TERRACE_EXPECT_THROW_WITH(statement, Type, text)                                \
  try {                                                                                 \
    statement;                                                                          \
    ADD_FAILURE() << "no error";                                                        \
  } catch (const Type& error) {                                                         \
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what(); \
  }

}  // namespace terrace
