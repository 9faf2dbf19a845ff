#include <fcntl.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <thread>

#include "tests/capi/trained_session.h"

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::int64_t steps_of(TrainedSession& session) {
  std::int64_t steps = -1;
  EXPECT_DONE(terrace_step_count(session.get(), &steps));
  return steps;
}

// This holds wherever the state lives, before and after.
TEST(CapiSavedState, GoesOnWithTheSameBits) {
  const TemporaryDirectory drive;
  const TemporaryDirectory kept;
  const SessionChoice on_drive = {.tier = TERRACE_TIER_NVME, .nvme = drive.path()};
  const std::string state = kept.path("state");
  TrainedSession plain;
  TrainedSession first(on_drive);
  for (int step = 1; step <= 2; ++step) {
    plain.step(step);
    first.step(step);
  }
  ASSERT_DONE(terrace_save(first.get(), state.c_str()));
  plain.step(3);
  for (const SessionChoice& choice : {SessionChoice(), on_drive}) {
    TrainedSession second(choice);
    second.step(9);  // other state
    ASSERT_DONE(terrace_load(second.get(), state.c_str()));
    EXPECT_EQ(second.parameters(), first.parameters());
    ASSERT_DONE(terrace_load(second.get(), state.c_str()));
    EXPECT_EQ(steps_of(second), 2);
    EXPECT_EQ(second.step(3).step, 3);
    EXPECT_EQ(second.parameters(), plain.parameters());
    EXPECT_EQ(second.state(1, "exp_avg_sq"), plain.state(1, "exp_avg_sq"));
  }
}

// Each tensor counts its own updates. AdamW's correction of the moments depends on that count.
TEST(CapiSavedState, KeepsTheUpdatesOfEachTensor) {
  const TemporaryDirectory kept;
  TrainedSession plain;
  TrainedSession resumed;
  const auto skip_first = [](TrainedSession& session, int step) {
    session.add_gradients(step, 0);
    terrace_step_options options = TrainedSession::step_options();
    options.flags = TERRACE_STEP_SKIP_MISSING;
    EXPECT_DONE(terrace_step(session.get(), &options, nullptr));
  };
  skip_first(plain, 1);
  ASSERT_DONE(terrace_save(plain.get(), kept.path("state").c_str()));
  ASSERT_DONE(terrace_load(resumed.get(), kept.path("state").c_str()));
  plain.step(2);
  resumed.step(2);
  EXPECT_EQ(plain.parameters(), resumed.parameters());
}

TEST(CapiSavedState, TheDirectoryHasTheLastStateAlone) {
  const TemporaryDirectory kept;
  const std::string state = kept.path("state");
  TrainedSession session;
  ASSERT_DONE(terrace_save(session.get(), state.c_str()));
  const std::vector<std::string> first = names_in(state);
  session.step(1);
  ASSERT_DONE(terrace_save(session.get(), state.c_str()));
  ASSERT_DONE(terrace_save(session.get(), state.c_str()));
  EXPECT_EQ(names_in(state).size(), first.size());
  EXPECT_NE(names_in(state), first);
  EXPECT_TRUE(fs::exists(state + "/terrace_state.json"));
  TrainedSession other;
  ASSERT_DONE(terrace_load(other.get(), state.c_str()));
  EXPECT_EQ(other.parameters(), session.parameters());
}

// Saves while `limit` holds, expects that it fails with `expected`, and that the old state is
// whole.
template <typename Limit, typename Lift>
void expect_old_state(const std::string& state, terrace_error expected, Limit limit, Lift lift) {
  TrainedSession session;
  session.step(1);
  ASSERT_DONE(terrace_save(session.get(), state.c_str()));
  const std::vector<std::string> names = names_in(state);
  const auto parameters = session.parameters();
  session.step(2);

  limit();
  const terrace_error saved = terrace_save(session.get(), state.c_str());
  const std::string told = terrace_last_error();
  lift();

  EXPECT_EQ(saved, expected) << told;
  EXPECT_NE(told.find(state), std::string::npos) << told;
  EXPECT_EQ(names_in(state), names);
  session.step(3);  // goes on
  ASSERT_DONE(terrace_load(session.get(), state.c_str()));
  EXPECT_EQ(session.parameters(), parameters);
  EXPECT_EQ(steps_of(session), 1);
}

TEST(CapiSavedState, AFailedWriteLeavesTheOldState) {
  const TemporaryDirectory kept;
  rlimit old = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small = {.rlim_cur = 1 << 20, .rlim_max = old.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  expect_old_state(
      kept.path("state"), TERRACE_ERROR_IO, [&] { EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0); },
      [&] { EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0); });
  std::signal(SIGXFSZ, handler);
}

// Saves on a file system with room for one and a half states.
TEST(CapiSavedState, AFullDiskLeavesTheOldState) {
  const TemporaryDirectory kept;
  const std::string disk = kept.path("disk");
  fs::create_directory(disk);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=60m") != 0) {
    GTEST_SKIP() << "no file system can be mounted here: " << std::strerror(errno);
  }
  expect_old_state(disk + "/state", TERRACE_ERROR_FULL_DISK, [] {}, [] {});
  EXPECT_EQ(umount2(disk.c_str(), MNT_DETACH), 0);
}

TEST(CapiSavedState, DamageIsFoundAndAnotherStateHelps) {
  const TemporaryDirectory kept;
  const std::string good = kept.path("good");
  const std::string bad = kept.path("bad");
  TrainedSession session;
  session.step(1);
  ASSERT_DONE(terrace_save(session.get(), good.c_str()));
  for (const std::string& name : names_in(good)) {
    if (fs::file_size(good + "/" + name) == 0) continue;  // the lock
    fs::remove_all(bad);
    fs::copy(good, bad, fs::copy_options::recursive);
    std::fstream file(bad + "/" + name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(0, std::ios::end);
    const auto middle = file.tellg() / 2;
    file.seekg(middle);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(middle);
    file.put(byte);
    file.close();
    expect_error(terrace_load(session.get(), bad.c_str()), TERRACE_ERROR_CORRUPT, bad);
    if (name != "terrace_state.json") {
      const terrace_step_options options = TrainedSession::step_options();
      expect_error(terrace_step(session.get(), &options, nullptr), TERRACE_ERROR_FAILED,
                   "terrace_load");
    }
    ASSERT_DONE(terrace_load(session.get(), good.c_str()));
    session.step(2);
  }
  fs::remove_all(bad);
  fs::copy(good, bad, fs::copy_options::recursive);
  fs::resize_file(bad + "/" + names_in(bad).front(), 100);
  expect_error(terrace_load(session.get(), bad.c_str()), TERRACE_ERROR_CORRUPT, bad);
}

TEST(CapiSavedState, FilesOfOthersStay) {
  const TemporaryDirectory kept;
  const std::string state = kept.path("state");
  const char* const others[] = {"state/master-00000.safetensors", "state/exp_avg-7.safetensors",
                                "state/master-8.safetensors.tmp", "state/notes.txt"};
  for (const char* const name : others) kept.write(name, "theirs");
  TrainedSession session;
  for (int round = 0; round < 2; ++round) {
    ASSERT_DONE(terrace_save(session.get(), state.c_str()));
    for (const char* const name : others) EXPECT_EQ(fs::file_size(kept.path(name)), 6U) << name;
  }
  ASSERT_DONE(terrace_load(session.get(), state.c_str()));
}

TEST(CapiSavedState, ACheckpointIsRefused) {
  const TemporaryDirectory kept;
  kept.write("checkpoint/manifest.json", "{}");
  TrainedSession session;
  expect_error(terrace_save(session.get(), kept.path("checkpoint").c_str()), TERRACE_ERROR_ARGUMENT,
               "a separate directory");
  EXPECT_EQ(names_in(kept.path("checkpoint")), std::vector<std::string>{"manifest.json"});
}

// The killed save had listed the files that it was about to write.
TEST(CapiSavedState, WhatAKilledSaveHasLeftIsRemoved) {
  const TemporaryDirectory kept;
  const std::string state = kept.path("state");
  TrainedSession session;
  session.step(1);
  ASSERT_DONE(terrace_save(session.get(), state.c_str()));
  const std::vector<std::string> names = names_in(state);
  kept.write("outside.safetensors", "theirs");
  kept.write("state/master-9.safetensors", "left");
  kept.write("state/exp_avg-9.safetensors.tmp", "left");
  kept.write("state/terrace_state.changes",
             R"(["master-9.safetensors", "exp_avg-9.safetensors", "../outside.safetensors",)"
             R"( "terrace_state.json", "master-1.safetensors"])");
  TrainedSession other;
  ASSERT_DONE(terrace_load(other.get(), state.c_str()));
  ASSERT_DONE(terrace_save(session.get(), state.c_str()));
  EXPECT_EQ(names_in(state).size(), names.size());
  EXPECT_FALSE(fs::exists(state + "/master-9.safetensors"));
  EXPECT_TRUE(fs::exists(kept.path("outside.safetensors")));
  ASSERT_DONE(terrace_load(other.get(), state.c_str()));
  EXPECT_EQ(other.parameters(), session.parameters());
}

TEST(CapiSavedState, OneSessionSavesIntoADirectoryAtATime) {
  const TemporaryDirectory kept;
  const std::string state = kept.path("state");
  TrainedSession session;
  ASSERT_DONE(terrace_save(session.get(), state.c_str()));
  const std::vector<std::string> names = names_in(state);
  const int lock = open((state + "/terrace_state.lock").c_str(), O_WRONLY | O_CREAT, 0666);
  ASSERT_GE(lock, 0);
  ASSERT_EQ(flock(lock, LOCK_EX | LOCK_NB), 0);
  expect_error(terrace_save(session.get(), state.c_str()), TERRACE_ERROR_ARGUMENT, "one rank");
  EXPECT_EQ(names_in(state), names);
  EXPECT_EQ(close(lock), 0);
  EXPECT_DONE(terrace_save(session.get(), state.c_str()));
}

// All ranks may save at the same time. A rank that was told that it has saved, has saved.
TEST(CapiSavedState, SavesAtOnceLeaveAWholeState) {
  const TemporaryDirectory kept;
  TrainedSession first;
  TrainedSession second;
  for (int round = 1; round <= 3; ++round) {
    first.step(round);
    second.step(round);
    const std::string state = kept.path("state" + std::to_string(round % 2));
    terrace_error beside = TERRACE_ERROR_INTERNAL;
    std::thread rank([&] { beside = terrace_save(second.get(), state.c_str()); });
    const terrace_error saved = terrace_save(first.get(), state.c_str());
    rank.join();
    EXPECT_TRUE(saved == TERRACE_OK || beside == TERRACE_OK);
    for (const terrace_error error : {saved, beside}) {
      EXPECT_TRUE(error == TERRACE_OK || error == TERRACE_ERROR_ARGUMENT)
          << terrace_error_name(error);
    }
    TrainedSession loaded;
    ASSERT_DONE(terrace_load(loaded.get(), state.c_str()));
    EXPECT_EQ(loaded.parameters(), first.parameters());
  }
}

TEST(CapiSavedState, OtherTensorsAreNamedAndNothingChanges) {
  const TemporaryDirectory kept;
  const std::string state = kept.path("state");
  TrainedSession session;
  session.step(1);
  ASSERT_DONE(terrace_save(session.get(), state.c_str()));

  const auto load_into = [&](const char* name, std::int64_t elements, const char* rule) {
    terrace_session* other = nullptr;
    EXPECT_DONE(make_session({}, &other));
    EXPECT_DONE(add_group(other, rule, 0));
    std::vector<float> values(static_cast<std::size_t>(elements), 3.0F);
    const terrace_buffer parameter = buffer_of(values.data(), elements, TERRACE_DTYPE_FP32);
    terrace_tensor_options options = tensor_options(name, parameter);
    options.shape = &parameter.element_count;
    std::int32_t tensor = -1;
    EXPECT_DONE(terrace_tensor_add(other, 0, &options, &tensor));
    EXPECT_DONE(terrace_session_prepare(other));
    const terrace_error loaded = terrace_load(other, state.c_str());
    EXPECT_EQ(values, std::vector<float>(values.size(), 3.0F));
    const std::string told = terrace_last_error();
    EXPECT_DONE(terrace_session_destroy(other));
    EXPECT_EQ(loaded, TERRACE_ERROR_MISMATCH) << told;
    return told;
  };
  EXPECT_NE(load_into("another", 10, "sgd").find("no tensor another"), std::string::npos);
  EXPECT_NE(load_into("plain", 10, "sgd").find("[300]"), std::string::npos);
  EXPECT_NE(load_into("plain", 300, "lion").find("updated by sgd"), std::string::npos);
  EXPECT_NE(load_into("plain", 300, "sgd").find("6 tensors"), std::string::npos);
  expect_error(terrace_load(session.get(), kept.path("absent").c_str()), TERRACE_ERROR_IO,
               "absent");
  expect_error(terrace_save(session.get(), kept.path("a/b").c_str()), TERRACE_ERROR_IO, "parent");
  session.step(2);
}

}  // namespace
}  // namespace terrace::test
