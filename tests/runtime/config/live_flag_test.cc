#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/config/train_config.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace {
namespace {

TrainOptions options_with(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"--model", "nano", "--data", "x", "--max-steps", "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return parse_train_options(arguments);
}

std::optional<int> port_of(const std::vector<std::string>& more) {
  return options_with(more).run.live_port;
}

TEST(LiveFlag, ItsPortMayBeLeftOut) {
  EXPECT_EQ(port_of({}), std::nullopt);
  EXPECT_EQ(port_of({"--live"}), 0);
  EXPECT_EQ(port_of({"--live", "--record-hashes"}), 0);
  EXPECT_EQ(port_of({"--live=80"}), 80);
  EXPECT_EQ(port_of({"--live", "81", "--record-hashes"}), 81);
  EXPECT_EQ(port_of({"--live", "0"}), 0);
}

TEST(LiveFlag, AConfigurationKeepsIt) {
  for (const std::optional<int> port :
       {std::optional<int>(), std::optional(0), std::optional(81)}) {
    TrainOptions options = options_with({});
    options.run.live_port = port;
    const TemporaryDirectory directory;
    EXPECT_EQ(parse_train_options({"--config", directory.write("run.toml", to_toml(options))})
                  .run.live_port,
              port);
  }
}

TEST(LiveFlag, RefusesWhatIsNoPort) {
  TERRACE_EXPECT_THROW_WITH(port_of({"--live", "65536"}), ConfigError, "--live 65536");
  TERRACE_EXPECT_THROW_WITH(port_of({"--live", "here"}), ConfigError, "--live here");
  TERRACE_EXPECT_THROW_WITH(port_of({"--live", "1", "--live", "2"}), ConfigError,
                            "--live is given more than once");
  TERRACE_EXPECT_THROW_WITH(port_of({"--live", "--live"}), ConfigError,
                            "--live is given more than once");
}

}  // namespace
}  // namespace terrace
