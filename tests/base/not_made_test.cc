#include "base/not_made.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "base/error.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

template <typename Kind>
std::string thrown(int error_number) {
  try {
    throw_not_made({"the directory", "/tmp/x", "name another"}, error_number);
  } catch (const Kind& error) {
    return error.what();
  } catch (const Error& error) {
    ADD_FAILURE() << error_number << ": another kind of error: " << error.what();
  }
  return "";
}

TEST(NotMade, AWrongPathIsTheUsers) {
  for (const int error_number : {ENOENT, ENOTDIR, EACCES, EPERM, EROFS, ENAMETOOLONG}) {
    EXPECT_THAT(
        thrown<ConfigError>(error_number),
        AllOf(HasSubstr("the directory /tmp/x cannot be created: "), HasSubstr("name another")));
  }
}

TEST(NotMade, AFullFileSystemIsTooSmall) {
  for (const int error_number : {ENOSPC, EDQUOT, EMLINK}) {
    EXPECT_THAT(thrown<OutOfMemory>(error_number),
                AllOf(HasSubstr("/tmp/x"), HasSubstr("another drive")));
  }
  EXPECT_THAT(thrown<OutOfMemory>(EDQUOT), HasSubstr("quota"));
}

TEST(NotMade, LimitsOfTheProcessAreOfTheEnvironment) {
  EXPECT_THAT(thrown<EnvironmentError>(EMFILE), HasSubstr("ulimit -n"));
  EXPECT_THAT(thrown<EnvironmentError>(ENOSYS), HasSubstr("sandbox"));
}

TEST(NotMade, ADeviceThatFailsIsNoWrongPath) {
  EXPECT_THAT(thrown<IoError>(EIO), HasSubstr("/tmp/x"));
}

}  // namespace
}  // namespace terrace
