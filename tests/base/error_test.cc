#include "base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <string>

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(ErrorTest, SaysWhatHappenedAndWhatToDo) {
  const ConfigError error("'7x' is not a size", "write 7GiB");
  EXPECT_STREQ(error.what(), "'7x' is not a size; write 7GiB");
  EXPECT_EQ(error.remedy(), "write 7GiB");
}

TEST(ErrorTest, RemedyMayBeEmpty) {
  const OutOfMemory error("no memory", "");
  EXPECT_STREQ(error.what(), "no memory");
}

TEST(ErrorTest, EveryKindIsCaughtAsError) {
  EXPECT_THROW(throw ConfigError("a", ""), Error);
  EXPECT_THROW(throw OutOfMemory("a", ""), Error);
  EXPECT_THROW(throw EnvironmentError("a", ""), Error);
  EXPECT_THROW(throw IoError({"read", "/a"}), Error);
  EXPECT_THROW(throw CorruptData("a", ""), Error);
  EXPECT_THROW(throw CommError("a", ""), Error);
  EXPECT_THROW(throw DeviceError("a", ""), Error);
  EXPECT_THROW(throw NotFinite("a", ""), Error);
}

TEST(IoErrorTest, NamesOperationFileExtentAndCause) {
  const IoError error({"write", "/data/block", 4096, 8192, ENOSPC}, "free space");
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("write of /data/block failed"), HasSubstr("4096"), HasSubstr("8192"),
                    HasSubstr("No space left on device"), HasSubstr("; free space")));
  EXPECT_EQ(error.where().offset, 4096U);
  EXPECT_EQ(error.where().error_number, ENOSPC);
}

TEST(IoErrorTest, ShortTransferIsNotAnErrno) {
  const IoError error({"read", "/data/block", 0, 512, 0});
  EXPECT_THAT(error.what(), HasSubstr("fewer bytes were transferred than requested"));
}

TEST(IoErrorTest, WithoutExtentDoesNotNameOne) {
  const IoError error({"open", "/data/block", 0, 0, ENOENT});
  EXPECT_THAT(std::string(error.what()), testing::Not(HasSubstr("offset")));
}

}  // namespace
}  // namespace terrace
