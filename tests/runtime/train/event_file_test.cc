#include "runtime/train/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <stdexcept>

#include "runtime/train/metrics_file.h"
#include "tests/runtime/temporary_directory.h"
#include "tests/runtime/train/event_records.h"

namespace terrace {
namespace {

// Returns the names of the event files, sorted.
std::vector<std::string> event_files(const TemporaryDirectory& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("events.out.tfevents.")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(EventFile, ItsChecksumsAreCrc32c) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU) << "RFC 3720, B.4";
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(EventFile, HasVersionSessionAndScalars) {
  const TemporaryDirectory directory;
  const std::vector<Scalar> scalars = {{"loss", 2.5}, {"busy_s/compute", -1e-3}, {"big", 1e30}};
  {
    EventFile file(directory.path(), 1, 1.5e9);
    file.add(1, 1.5e9 + 0.25, scalars);
    file.add(std::int64_t{1} << 40, 1.6e9,
             std::vector<Scalar>{{"loss", std::numeric_limits<double>::infinity()}});
  }
  const std::vector<std::string> names = event_files(directory);
  ASSERT_EQ(names.size(), 1U);
  EXPECT_TRUE(names.front().starts_with("events.out.tfevents.1500000000.")) << names.front();
  const std::vector<ReadEvent> events = read_events(directory.read(names.front()));
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_EQ(events[1].session_status, 1);
  EXPECT_EQ(events[1].step, 1);
  EXPECT_EQ(events[2].step, 1);
  EXPECT_EQ(events[2].time_s, 1.5e9 + 0.25);
  EXPECT_EQ(events[2].scalars, (std::map<std::string, float>{
                                   {"loss", 2.5F}, {"busy_s/compute", -1e-3F}, {"big", 1e30F}}));
  EXPECT_EQ(events[3].step, std::int64_t{1} << 40);
  EXPECT_EQ(events[3].scalars.at("loss"), std::numeric_limits<float>::infinity());
}

// If the reader of the tests missed damage, the other tests would prove nothing.
TEST(EventFile, ADamagedByteIsNoticedByItsReader) {
  const TemporaryDirectory directory;
  EventFile(directory.path(), 1, 1.5e9).add(1, 1.5e9, std::vector<Scalar>{{"loss", 2.5}});
  const std::string whole = directory.read(event_files(directory).front());
  for (std::size_t byte = 0; byte < whole.size(); ++byte) {
    std::string damaged = whole;
    damaged[byte] = static_cast<char>(damaged[byte] ^ 1);
    EXPECT_THROW(read_events(damaged), std::runtime_error) << byte;
  }
}

TEST(EventFile, ANewOneComesBehindThoseThatAreThere) {
  const TemporaryDirectory directory;
  directory.write("events.out.tfevents.1500000009.elsewhere", "");
  directory.write("events.out.tfevents.strange", "");
  const EventFile first(directory.path(), 1, 1.5e9);
  const EventFile second(directory.path(), 7, 1.5e9);
  const std::vector<std::string> names = event_files(directory);
  ASSERT_EQ(names.size(), 4U);
  EXPECT_TRUE(names[1].starts_with("events.out.tfevents.1500000010.")) << names[1];
  EXPECT_TRUE(names[2].starts_with("events.out.tfevents.1500000011.")) << names[2];
  EXPECT_EQ(read_events(directory.read(names[2])).at(1).step, 7);
}

TEST(EventFile, HasTheNumbersOfTheRows) {
  const TemporaryDirectory directory;
  {
    MetricsFile file(directory.path(), 4, Ledger());
    StepMetrics metrics;
    metrics.step = 5;
    metrics.loss = 2.5;
    metrics.time_s = 1.5e9;
    metrics.totals.busy_s[static_cast<std::size_t>(Lane::kCompute)] = 0.5;
    file.write(metrics);
    file.add_to_last_row({{"", 3.0}, {"french", 4.0}});
  }
  const std::vector<ReadEvent> events = read_events(directory.read(event_files(directory).at(0)));
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[1].step, 5) << "later events of earlier files are superseded";
  EXPECT_EQ(events[2].step, 5);
  EXPECT_EQ(events[2].time_s, 1.5e9);
  EXPECT_EQ(events[2].scalars.at("loss"), 2.5F);
  EXPECT_EQ(events[2].scalars.at("busy_s/compute"), 0.5F);
  EXPECT_EQ(events[2].scalars.count("step") + events[2].scalars.count("time"), 0U);
  EXPECT_EQ(events[3].scalars, (std::map<std::string, float>{{"validation_loss", 3.0F},
                                                             {"validation_loss/french", 4.0F}}));
}

}  // namespace
}  // namespace terrace
