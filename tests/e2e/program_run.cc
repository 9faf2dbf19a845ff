#include "tests/e2e/program_run.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/e2e/checkout_paths.h"

namespace terrace {
namespace {

constexpr auto kPollEvery = std::chrono::milliseconds(1);

// Runs in the child. Takes away what is denied. Returns false if that is not possible.
bool apply(const Denied& denied) {
  if (denied.file_bytes_above.has_value()) {
    const rlimit limit = {*denied.file_bytes_above, *denied.file_bytes_above};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
  }
  if (denied.reader_of_output) {
    int ends[2];
    if (::pipe(ends) != 0 || ::close(ends[0]) != 0) return false;
    if (::dup2(ends[1], STDOUT_FILENO) != STDOUT_FILENO) return false;
  }
  if (denied.write_permission_of_root && ::geteuid() == 0) {
    return ::prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE) == 0 &&
           ::prctl(PR_CAPBSET_DROP, CAP_DAC_READ_SEARCH) == 0;
  }
  return true;
}

// Runs in the child. Replaces standard stream `number` by a file.
bool redirect(int number, const std::string& path, int flags) {
  const int file = ::open(path.c_str(), flags, 0600);
  return file >= 0 && ::dup2(file, number) == number;
}

Command terrace_command(const std::vector<std::string>& arguments,
                        const std::vector<std::string>& launcher) {
  Command command{launcher};
  command.words.push_back(program_path());
  command.words.insert(command.words.end(), arguments.begin(), arguments.end());
  return command;
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
  return out << "exit code " << outcome.code << ", signal " << outcome.signal << "\nerrors:\n"
             << outcome.errors << "output:\n"
             << outcome.output;
}

ProgramRun::ProgramRun(const std::vector<std::string>& arguments, const Denied& denied,
                       const std::vector<std::string>& launcher)
    : ProgramRun(terrace_command(arguments, launcher), denied) {}

ProgramRun::ProgramRun(const Command& command, const Denied& denied) {
  std::vector<std::string> words = command.words;
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const std::string out = directory_.write("out", "");
  const std::string err = directory_.write("err", "");
  child_ = ::fork();
  if (child_ == 0) {
    // A shell starts what it runs in the background with these ignored.
    for (const int number : {SIGINT, SIGHUP}) ::signal(number, SIG_DFL);
    if (!redirect(STDIN_FILENO, "/dev/null", O_RDONLY) ||
        !redirect(STDOUT_FILENO, out, O_WRONLY | O_APPEND) ||
        !redirect(STDERR_FILENO, err, O_WRONLY | O_APPEND) || !apply(denied)) {
      ::_exit(kNotStarted);
    }
    ::execvp(pointers.front(), pointers.data());
    ::_exit(kNotStarted);
  }
  EXPECT_GT(child_, 0) << "fork: errno " << errno;
}

ProgramRun::~ProgramRun() {
  if (child_ <= 0 || status_.has_value()) return;
  ::kill(child_, SIGKILL);
  ::waitpid(child_, nullptr, 0);
}

bool ProgramRun::kill_a_descendant(const std::string& word) const {
  const auto file_of = [](pid_t process, const char* name) {
    std::ifstream file("/proc/" + std::to_string(process) + "/" + name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  std::vector<pid_t> family = {child_};
  for (std::size_t i = 0; i < family.size(); ++i) {
    const std::string main_thread = "task/" + std::to_string(family[i]) + "/children";
    std::istringstream children(file_of(family[i], main_thread.c_str()));
    for (pid_t child = 0; children >> child;) family.push_back(child);
    if (i == 0 || file_of(family[i], "cmdline").find(word) == std::string::npos) continue;
    return ::kill(family[i], SIGKILL) == 0;
  }
  return false;
}

bool ProgramRun::handles(int signal) const {
  std::ifstream status("/proc/" + std::to_string(child_) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("SigCgt:")) continue;
    const std::uint64_t caught = std::stoull(line.substr(line.find('\t') + 1), nullptr, 16);
    return (caught >> (signal - 1) & 1U) != 0;
  }
  return false;
}

std::vector<std::string> ProgramRun::open_files(const std::string& word) const {
  std::vector<std::string> found;
  std::error_code gone;  // the run may be closing them
  const std::string directory = "/proc/" + std::to_string(child_) + "/fd";
  for (const auto& descriptor : std::filesystem::directory_iterator(directory, gone)) {
    const std::string target = std::filesystem::read_symlink(descriptor.path(), gone).string();
    if (target.find(word) != std::string::npos) found.push_back(descriptor.path().string());
  }
  return found;
}

bool ProgramRun::has_ended() {
  if (status_.has_value()) return true;
  int status = 0;
  if (::waitpid(child_, &status, WNOHANG) != child_) return false;
  status_ = status;
  return true;
}

bool ProgramRun::wait_for(const std::string& text, int times) {
  return wait_until([&] { return count_of(output(), text) >= times; });
}

bool ProgramRun::wait_until(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + kHangsAfter;
  while (!condition()) {
    if (has_ended()) return condition();
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(kPollEvery);
  }
  return true;
}

void ProgramRun::limit_file_size(std::uint64_t bytes) const {
  const rlimit limit = {bytes, bytes};
  EXPECT_EQ(::prlimit(child_, RLIMIT_FSIZE, &limit, nullptr), 0) << "errno " << errno;
}

void ProgramRun::send(int signal) const {
  // An ended child that was not reaped takes signals too, so this cannot hit another process.
  if (status_.has_value()) return;
  EXPECT_EQ(::kill(child_, signal), 0) << "errno " << errno;
}

Outcome ProgramRun::wait(std::chrono::seconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (!has_ended()) {
    if (std::chrono::steady_clock::now() > until) {
      ADD_FAILURE() << "the program hangs; it printed:\n" << output();
      send(SIGKILL);
    }
    std::this_thread::sleep_for(kPollEvery);
  }
  Outcome outcome;
  if (WIFEXITED(*status_)) outcome.code = WEXITSTATUS(*status_);
  if (WIFSIGNALED(*status_)) outcome.signal = WTERMSIG(*status_);
  outcome.output = directory_.read("out");
  outcome.errors = directory_.read("err");
  return outcome;
}

bool has_mpirun() { return !mpirun_path().empty(); }

// A rank that waits lets others run. Leaks are not looked for, as Open MPI has some.
std::vector<std::string> mpirun(int ranks) {
  return {"env",
          "ASAN_OPTIONS=detect_leaks=0",
          mpirun_path(),
          "--allow-run-as-root",
          "--oversubscribe",
          "--bind-to",
          "none",
          "--mca",
          "mpi_yield_when_idle",
          "1",
          "-n",
          std::to_string(ranks)};
}

Outcome run_program(const std::vector<std::string>& arguments, const Denied& denied) {
  return ProgramRun(arguments, denied).wait();
}

bool is_ok_here(const std::string& check) {
  const Outcome doctor =
      run_program({"doctor", "--json", "--nvme", std::filesystem::temp_directory_path().string()});
  const auto document = nlohmann::json::parse(doctor.output, nullptr, false);
  EXPECT_TRUE(document.is_object()) << doctor;
  if (!document.is_object()) return false;
  for (const auto& result : document.value("results", nlohmann::json::array())) {
    if (result.value("name", "") == check) return result.value("status", "") == "ok";
  }
  ADD_FAILURE() << "doctor has no check " << check << '\n' << doctor;
  return false;
}

}  // namespace terrace
