#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/e2e/tiny_training.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

// The whole document, which describes a machine in any state.
class Report {
 public:
  explicit Report(const Outcome& outcome)
      : results_(nlohmann::json::parse(outcome.output, nullptr, false)
                     .value("results", nlohmann::json::array())) {}

  // Returns the check of that name; if a directory is named, the check of that directory.
  nlohmann::json of(const std::string& name, const std::string& directory = "") const {
    for (const auto& result : results_) {
      if (result.value("name", "") != name) continue;
      if (directory.empty() || result.value("directory", "") == directory) return result;
    }
    ADD_FAILURE() << "no check " << name << " " << directory;
    return {{"status", ""}, {"value", ""}, {"remedy", ""}};
  }
  void expect(const std::string& name, const std::string& status, const std::string& said) const {
    const nlohmann::json check = of(name);
    EXPECT_EQ(check.value("status", ""), status) << check;
    EXPECT_THAT(check.value("value", ""), HasSubstr(said));
    EXPECT_EQ(check.value("remedy", "").empty(), status == "ok") << check;
  }
  // Expects that whatever was found did not keep doctor from checking the rest.
  void expect_every_part() const {
    for (const char* name :
         {"cpu", "cpu_features", "cores", "threads", "memory", "huge_pages", "memlock", "numa",
          "io_uring", "peer_memory", "network", "libraries", "gpu", "directory", "drive_speed"}) {
      EXPECT_NE(of(name).value("value", ""), "") << name;
    }
  }

 private:
  const nlohmann::json results_;
};

Arguments doctor(const Arguments& more = {}) { return Arguments{"doctor", "--json"} + more; }

Outcome run_by(const std::vector<std::string>& launcher, const Arguments& arguments,
               const Denied& denied = {}) {
  return ProgramRun(arguments, denied, launcher).wait();
}

bool starts_by(const std::vector<std::string>& launcher) {
  return run_by(launcher, {"--version"}).code == 0;
}

const Denied kRootObeysModes = {.file_bytes_above = {}, .write_permission_of_root = true};

// Nothing was asked for, so nothing is refused.
TEST(Doctor, ADirectoryThatIsNotWritableIsOneLineOfTheReport) {
  const TemporaryDirectory directory;
  std::filesystem::permissions(directory.path(), std::filesystem::perms(0500));
  const Outcome outcome = run_by({"env", "-C", directory.path()}, doctor(), kRootObeysModes);
  EXPECT_EQ(outcome.code, 0) << outcome;
  const Report report(outcome);
  report.expect_every_part();
  report.expect("directory", "warn", "Permission denied");
  report.expect("direct_io", "warn", "unknown");
  EXPECT_NE(report.of("free_space").value("value", ""), "");
}

TEST(Doctor, ANamedDirectoryThatIsNotWritableIs2AfterTheReport) {
  const TemporaryDirectory directory;
  std::filesystem::permissions(directory.path(), std::filesystem::perms(0500));
  const Outcome outcome =
      run_program(doctor(Arguments{"--nvme", directory.path()}), kRootObeysModes);
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("--nvme " + directory.path()));
  const Report report(outcome);
  report.expect_every_part();
  report.expect("directory", "fail", "Permission denied");
}

TEST(Doctor, ANamedDirectoryThatIsNotThereIs2AfterTheReport) {
  const TemporaryDirectory directory;
  const std::string none = directory.path("none");
  const Outcome outcome = run_program(doctor({"--nvme", none, "--nvme", directory.path()}));
  EXPECT_EQ(outcome.code, 2) << outcome;
  EXPECT_THAT(outcome.errors, HasSubstr("--nvme " + none + ": No such file or directory"));
  const Report report(outcome);
  report.expect_every_part();
  report.expect("directory", "fail", "No such file or directory");
  EXPECT_EQ(report.of("directory", directory.path()).value("status", ""), "ok");
  const Outcome file = run_program(doctor({"--nvme", directory.write("file", "")}));
  EXPECT_EQ(file.code, 2) << file;
  EXPECT_THAT(file.errors, HasSubstr("not a directory"));
}

TEST(Doctor, ALimitOnThreadsIsOneLineOfTheReport) {
  // The search for leaks takes a thread.
  const std::vector<std::string> limited = {"env", "ASAN_OPTIONS=detect_leaks=0", "prlimit",
                                            "--nproc=1"};
  const std::vector<std::string> nobody = {"setpriv", "--reuid=65534", "--regid=65534",
                                           "--clear-groups"};
  // Root may have any number of threads.
  const std::vector<std::string> launcher = ::geteuid() == 0 ? nobody + limited : limited;
  if (!starts_by(launcher)) GTEST_SKIP() << "no other user can start the program";
  const TemporaryDirectory directory;
  std::filesystem::permissions(directory.path(), std::filesystem::perms(0777));
  const Outcome outcome = run_by(launcher, doctor({"--nvme", directory.path()}));
  EXPECT_EQ(outcome.code, 0) << outcome;
  const Report report(outcome);
  report.expect_every_part();
  report.expect("threads", "fail", "0 of the ");
  report.expect("peer_memory", "warn", "no child process");
  report.expect("direct_io", is_ok_here("direct_io") ? "ok" : "warn", directory.path());
}

TEST(Doctor, DirectoriesAndSizesAreReadAsThoseOfTrain) {
  const TemporaryDirectory directory;
  const std::string small = directory.path("small");
  const std::string large = directory.path("large");
  std::filesystem::create_directory(small);
  std::filesystem::create_directory(large);
  const Outcome fits = run_program(doctor({"--nvme", small + ":1KiB", "--nvme", large + ":2KiB"}));
  EXPECT_EQ(fits.code, 0) << fits;
  for (const std::string& one : {small, large}) {
    // Both are on one file system.
    EXPECT_THAT(Report(fits).of("free_space", one).value("value", ""),
                HasSubstr("sum to 3.00 KiB"));
    EXPECT_EQ(Report(fits).of("directory", one).value("status", ""), "ok");
    EXPECT_TRUE(std::filesystem::is_empty(one));
  }
  const Outcome does_not = run_program(doctor({"--nvme", small + ":100000TiB"}));
  EXPECT_EQ(does_not.code, 0) << does_not;
  Report(does_not).expect("free_space", "warn", "sum to");
  const Outcome twice = run_program(doctor({"--nvme", small, "--nvme", small + "/."}));
  EXPECT_EQ(twice.code, 2) << twice;
  EXPECT_THAT(twice.errors, HasSubstr("names a directory twice"));
}

// Returns a shell with mounts of its own, which are gone when it ends. In `mounts`, DIR stands for
// the directory.
std::vector<std::string> mounted(const std::string& directory, const std::string& mounts) {
  return {
      "unshare", "-m", "env", "DIR=" + directory, "sh", "-euc", mounts + "; exec \"$0\" \"$@\""};
}

TEST(Doctor, MemoryIsNotTakenForADrive) {
  const TemporaryDirectory directory;
  const std::string memory = "mount -t tmpfs none $DIR";
  const std::vector<std::string> tmpfs = mounted(directory.path(), memory);
  if (!starts_by(tmpfs)) GTEST_SKIP() << "no file system can be mounted";
  const Outcome outcome = run_by(tmpfs, doctor({"--nvme", directory.path()}));
  EXPECT_EQ(outcome.code, 0) << outcome;
  Report(outcome).expect("file_system", "warn", "tmpfs, which is memory");
  EXPECT_THAT(Report(outcome).of("file_system").value("remedy", ""), HasSubstr("local NVMe drive"));

  const std::vector<std::string> read_only =
      mounted(directory.path(), memory + "; mount -o remount,ro $DIR");
  const Outcome refused = run_by(read_only, doctor({"--nvme", directory.path()}));
  EXPECT_EQ(refused.code, 2) << refused;
  Report(refused).expect("directory", "fail", "Read-only file system");
  Report(refused).expect_every_part();
}

TEST(Doctor, AnOverlayIsNotTakenForADrive) {
  const TemporaryDirectory directory;
  const std::vector<std::string> overlay =
      mounted(directory.path(),
              "mount -t tmpfs none $DIR; mkdir $DIR/low $DIR/up $DIR/work $DIR/all; mount -t "
              "overlay none -o lowerdir=$DIR/low,upperdir=$DIR/up,workdir=$DIR/work $DIR/all");
  if (!starts_by(overlay)) GTEST_SKIP() << "no overlay can be mounted";
  const Outcome outcome = run_by(overlay, doctor({"--nvme", directory.path("all")}));
  EXPECT_EQ(outcome.code, 0) << outcome;
  Report(outcome).expect("file_system", "warn", "overlay");
}

TEST(Doctor, WithoutProcTheRestIsToldAllTheSame) {
  const TemporaryDirectory directory;
  const std::vector<std::string> launcher = mounted("/proc", "mount -t tmpfs none $DIR");
  if (!starts_by(launcher)) GTEST_SKIP() << "no file system can be mounted";
  const Outcome outcome = run_by(launcher, doctor({"--nvme", directory.path()}));
  EXPECT_EQ(outcome.code, 0) << outcome;
  Report(outcome).expect_every_part();
  Report(outcome).expect("memory", "warn", "/proc/meminfo");
}

// Runs with a limit on locked memory that is smaller than the arena.
class DoctorMemlock : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!is_ok_here("io_uring")) GTEST_SKIP() << "io_uring cannot be used here";
  }

  // Returns whether a training could register its buffers.
  bool registers(const std::vector<std::string>& launcher) {
    const Arguments on_drive = training_.nvme() + Arguments{"--place-optimizer", "nvme"};
    const std::string run = "run-" + std::to_string(runs_++);
    const Outcome outcome =
        run_by(launcher, training_.command(run, Arguments{"--max-steps", "1"} + on_drive));
    EXPECT_EQ(outcome.code, 0) << outcome;
    return outcome.output.find("registered buffers") != std::string::npos;
  }
  void expect_as_training(const std::vector<std::string>& launcher) {
    const Outcome outcome = run_by(launcher, doctor({"--nvme", training_.path("nvme")}));
    const auto check = Report(outcome).of("memlock");
    EXPECT_EQ(check.value("status", "") == "ok", registers(launcher)) << check;
    EXPECT_THAT(check.value("value", ""), HasSubstr("64.0 KiB"));
  }

  TinyTraining training_;
  int runs_ = 0;
};

const std::vector<std::string> kWithoutIpcLock = {"setpriv", "--inh-caps=-ipc_lock",
                                                  "--bounding-set=-ipc_lock"};

TEST_F(DoctorMemlock, SaysWhatTrainingFinds) {
  const std::vector<std::string> small = {"prlimit", "--memlock=65536"};
  expect_as_training(small);
  if (!starts_by(kWithoutIpcLock)) return;  // such a user has no right to take away
  expect_as_training(kWithoutIpcLock + small);
}

// Some kernels also count the ring itself, others only the memory that it registers.
TEST_F(DoctorMemlock, NoneAtAllIsToldWithItsRemedy) {
  const std::vector<std::string> none = {"prlimit", "--memlock=0"};
  const std::vector<std::string> launcher = ::geteuid() == 0 ? kWithoutIpcLock + none : none;
  if (!starts_by(launcher)) GTEST_SKIP() << "no right can be taken away";
  const Report report(run_by(launcher, doctor({"--nvme", training_.path("nvme")})));
  report.expect_every_part();
  const bool has_ring = report.of("io_uring").value("status", "") == "ok";
  const auto refused = report.of(has_ring ? "memlock" : "io_uring");
  EXPECT_EQ(refused.value("status", ""), "warn") << refused;
  EXPECT_THAT(refused.value("value", ""), HasSubstr("Cannot allocate memory"));
  EXPECT_THAT(refused.value("remedy", ""), HasSubstr("ulimit -l"));
}

}  // namespace
}  // namespace terrace
