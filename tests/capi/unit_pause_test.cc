#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "tests/capi/resident_memory.h"
#include "tests/capi/unit_training.h"

// Units that give their memory back for a while.
namespace terrace::test {
namespace {

TEST(CapiUnitPause, GivesMemoryBackAndGoesOnWithTheSameBits) {
  const TemporaryDirectory drive;
  for (const std::int32_t dtype : {TERRACE_DTYPE_FP32, TERRACE_DTYPE_BF16}) {
    for (const bool on_drive : {false, true}) {
      for (const std::uint32_t flags : {0U, TERRACE_UNITS_CAN_ABANDON}) {
        const UnitChoice choice = {.dtype = dtype,
                                   .tier = on_drive ? TERRACE_TIER_NVME : TERRACE_TIER_HOST,
                                   .nvme = on_drive ? drive.path() : std::string(),
                                   .flags = flags};
        UnitTraining undisturbed(choice);
        UnitTraining paused(choice);
        undisturbed.begin();
        paused.begin();
        for (std::int32_t step = 1; step <= kUnitSteps; ++step) {
          // Where updates are deferred, the last step's updates are still to come.
          ASSERT_DONE(terrace_units_pause(paused.get(), on_drive ? nullptr : drive.path().c_str()));
          ASSERT_DONE(terrace_units_resume(paused.get()));
          EXPECT_EQ(paused.step(step).gradient_norm, undisturbed.step(step).gradient_norm);
        }
        EXPECT_EQ(paused.state(), undisturbed.state());
      }
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(drive.path()));
}

// One unit that is large enough to be seen in the memory of a process.
class WideUnit {
 public:
  static constexpr std::int64_t kElements = std::int64_t{4} << 20;

  explicit WideUnit(std::uint64_t nvme_budget = 0, const std::string& nvme = "") {
    const terrace_nvme_directory directory = {nvme.c_str(), nvme_budget};
    UnitChoice choice = {.tier = nvme.empty() ? TERRACE_TIER_HOST : TERRACE_TIER_AUTO,
                         .nvme = nvme};
    terrace_units_options options = units_options(choice, directory);
    options.micro_batches = 1;
    EXPECT_DONE(terrace_units_create(&options, &units_));
    terrace_unit_options unit = {};
    unit.struct_size = sizeof unit;
    unit.name = "wide";
    unit.element_count = kElements;
    std::int32_t number = -1;
    EXPECT_DONE(terrace_unit_add(units_, &unit, &number));
    EXPECT_DONE(terrace_units_prepare(units_));
    const auto source = [](void*, const terrace_state_range* range) {
      std::fill_n(range->out, range->element_count, 0.5F);
      return 0;
    };
    EXPECT_DONE(terrace_units_fill(units_, 0, source, nullptr));
  }
  ~WideUnit() { EXPECT_DONE(terrace_units_destroy(units_)); }
  WideUnit(const WideUnit&) = delete;
  WideUnit& operator=(const WideUnit&) = delete;

  terrace_units* get() const { return units_; }
  std::vector<float> masters() {
    std::vector<float> values(kElements);
    const terrace_buffer out = buffer_of(values.data(), kElements, TERRACE_DTYPE_FP32);
    EXPECT_DONE(terrace_units_state_read(units_, 0, "master", 0, &out));
    return values;
  }

 private:
  terrace_units* units_ = nullptr;
};

TEST(CapiUnitPause, GivesAllOfALargeUnitBack) {
  const TemporaryDirectory drive;
  WideUnit unit;
  const std::int64_t held =
      host_bytes_of([&](char* text, std::uint64_t capacity, std::uint64_t* size) {
        return terrace_units_ledger_json(unit.get(), text, capacity, size);
      });
  EXPECT_GE(held, 12 * WideUnit::kElements);
  const std::int64_t before = resident_bytes();
  ASSERT_DONE(terrace_units_pause(unit.get(), drive.path().c_str()));
  expect_given_back(before, held);
  ASSERT_DONE(terrace_units_resume(unit.get()));
  EXPECT_EQ(unit.masters(), std::vector<float>(WideUnit::kElements, 0.5F));
}

TEST(CapiUnitPause, RefusesEveryOtherCall) {
  const TemporaryDirectory drive;
  UnitTraining training({.flags = TERRACE_UNITS_CAN_ABANDON});
  terrace_units* const own = training.get();
  expect_error(terrace_units_pause(own, drive.path().c_str()), TERRACE_ERROR_ORDER,
               "terrace_units_fill()");
  training.begin();
  expect_error(terrace_units_resume(own), TERRACE_ERROR_ORDER, "not paused");
  ASSERT_DONE(terrace_units_step_begin(own, 0.01));
  expect_error(terrace_units_pause(own, drive.path().c_str()), TERRACE_ERROR_ORDER,
               "terrace_units_step_end()");
  for (const UnitTask& task : training.order()) training.compute(task, 1);
  ASSERT_DONE(terrace_units_step_end(own, nullptr));
  ASSERT_DONE(terrace_units_pause(own, drive.path().c_str()));

  float value = 1;
  std::int32_t number = 0;
  std::uint64_t size = 0;
  const terrace_buffer buffer = buffer_of(&value, 1, TERRACE_DTYPE_FP32);
  terrace_unit_options unit = {};
  unit.struct_size = sizeof unit;
  unit.name = "late";
  unit.element_count = 1;
  terrace_unit_memory memory = {};
  memory.struct_size = sizeof memory;
  const auto source = [](void*, const terrace_state_range*) { return 0; };
  const auto sink = [](void*, std::int32_t, std::int64_t, std::int64_t, const float*) {};
  const std::vector<std::function<terrace_error()>> calls = {
      [&] { return terrace_unit_add(own, &unit, &number); },
      [&] { return terrace_units_record(own, 0, TERRACE_PASS_FORWARD, 0); },
      [&] { return terrace_units_prepare(own); },
      [&] { return terrace_units_fill(own, 1, source, nullptr); },
      [&] { return terrace_units_step_begin(own, 0.1); },
      [&] { return terrace_unit_acquire(own, 0, TERRACE_PASS_FORWARD, 0, &memory); },
      [&] { return terrace_unit_release(own, 0); },
      [&] { return terrace_units_step_abandon(own, sink, nullptr); },
      [&] { return terrace_units_step_end(own, nullptr); },
      [&] { return terrace_units_state_read(own, 0, "master", 0, &buffer); },
      [&] { return terrace_units_pause(own, drive.path().c_str()); },
      [&] { return terrace_units_ledger_json(own, nullptr, 0, &size); },
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    SCOPED_TRACE(i);
    expect_error(calls[i](), TERRACE_ERROR_ORDER, "terrace_units_resume()");
  }
  ASSERT_DONE(terrace_units_resume(own));
  EXPECT_EQ(training.step(2).step, 2);
}

TEST(CapiUnitPause, LosesNothingWhereThereIsNoRoom) {
  const TemporaryDirectory drive;
  UnitTraining training({});
  UnitTraining other({});
  training.begin();
  other.begin();
  training.step(1);
  other.step(1);
  expect_error(terrace_units_pause(training.get(), nullptr), TERRACE_ERROR_ARGUMENT,
               "name a directory");
  const std::string none = drive.path() + "/none";
  expect_error(terrace_units_pause(training.get(), none.c_str()), TERRACE_ERROR_ENVIRONMENT,
               "none");
  EXPECT_EQ(training.step(2).gradient_norm, other.step(2).gradient_norm);
  EXPECT_EQ(training.state(), other.state());

  // The whole unit is on the host, and the budget of the drive is smaller.
  WideUnit wide(8 << 20, drive.path());
  expect_error(terrace_units_pause(wide.get(), nullptr), TERRACE_ERROR_DOES_NOT_FIT, drive.path());
  EXPECT_EQ(wide.masters(), std::vector<float>(WideUnit::kElements, 0.5F));
}

// Finds the file without a name that a pause has in a directory.
std::string path_of_parked_file(const std::string& directory) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    const bool is_data = target.find(directory) == 0 && target.find(".lock") == std::string::npos;
    if (is_data && std::filesystem::file_size(entry.path(), gone) > 0) return entry.path();
  }
  ADD_FAILURE() << "no file is open in " << directory;
  return "";
}

TEST(CapiUnitPause, AFileThatIsCutLeavesTheUnitsPaused) {
  const TemporaryDirectory drive;
  UnitTraining training({});
  training.begin();
  training.step(1);
  const UnitState before = training.state();
  ASSERT_DONE(terrace_units_pause(training.get(), drive.path().c_str()));
  const std::string path = path_of_parked_file(drive.path());
  const int file = ::open(path.c_str(), O_RDWR);
  ASSERT_GE(file, 0);
  const auto size = static_cast<std::size_t>(std::filesystem::file_size(path));
  std::vector<char> bytes(size);
  ASSERT_EQ(::pread(file, bytes.data(), size, 0), static_cast<ssize_t>(size));
  ASSERT_EQ(::ftruncate(file, 4096), 0);
  for (int i = 0; i < 2; ++i) {
    const terrace_error error = terrace_units_resume(training.get());
    EXPECT_TRUE(error == TERRACE_ERROR_IO || error == TERRACE_ERROR_CORRUPT)
        << terrace_error_name(error);
    EXPECT_NE(std::string(terrace_last_error()).find(drive.path()), std::string::npos)
        << terrace_last_error();
    expect_error(terrace_units_step_begin(training.get(), 0.1), TERRACE_ERROR_ORDER,
                 "terrace_units_resume()");
  }
  ASSERT_EQ(::pwrite(file, bytes.data(), size, 0), static_cast<ssize_t>(size));
  ::close(file);
  ASSERT_DONE(terrace_units_resume(training.get()));
  EXPECT_EQ(training.state(), before);
}

TEST(CapiUnitPause, PausedUnitsAreDestroyed) {
  const TemporaryDirectory drive;
  UnitTraining training({});
  training.begin();
  training.step(1);
  ASSERT_DONE(terrace_units_pause(training.get(), drive.path().c_str()));
}

}  // namespace
}  // namespace terrace::test
