#include "runtime/cli/progress_console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <initializer_list>
#include <system_error>
#include <utility>

namespace terrace {
namespace {

constexpr int kBarCells = 24;
constexpr int kBarCellsLeast = 6;
constexpr int kUsualColumns = 80;
constexpr std::int64_t kProgressLines = 20;

std::string progress_text(const StepProgress& progress) {
  return fmt::format("step {}/{}, {} left", progress.step, progress.last_step,
                     duration_text(progress.seconds_left));
}

std::string rate_text(double tokens_per_s) {
  if (tokens_per_s >= 1e6) return fmt::format("{:.2f}M tokens/s", tokens_per_s * 1e-6);
  if (tokens_per_s >= 1e4) return fmt::format("{:.1f}k tokens/s", tokens_per_s * 1e-3);
  return fmt::format("{:.{}f} tokens/s", tokens_per_s, tokens_per_s < 10 ? 2 : 0);
}

// Joins as many of the parts, in order, as fit into the width.
std::string fitting(std::initializer_list<std::string> parts, std::size_t width) {
  std::string text;
  for (const std::string& part : parts) {
    const std::string longer = text.empty() ? part : text + ", " + part;
    if (longer.size() > width) break;
    text = longer;
  }
  return text;
}

// Returns a bar with the most wanted numbers beside it. It is narrower than `columns`, because a
// line as wide as the terminal may wrap.
std::string bar_text(const StepProgress& progress, int columns, bool has_colours) {
  const int width = std::max(columns - 1, 1);
  const std::string text =
      fitting({fmt::format("step {}/{}", progress.step, progress.last_step),
               duration_text(progress.seconds_left) + " left",
               fmt::format("loss {:.4f}", progress.loss), rate_text(progress.tokens_per_s)},
              static_cast<std::size_t>(width));
  constexpr int kAround = 3;  // brackets and a blank
  const int cells = std::min(kBarCells, width - kAround - static_cast<int>(text.size()));
  if (cells < kBarCellsLeast) return text;
  const double share = progress.last_step > 0 ? static_cast<double>(progress.step) /
                                                    static_cast<double>(progress.last_step)
                                              : 0;
  const int full = std::clamp(static_cast<int>(share * cells), 0, cells);
  return fmt::format("[{}{:=<{}}{}{: <{}}] {}", has_colours ? "\x1b[32m" : "", "", full,
                     has_colours ? "\x1b[0m" : "", "", cells - full, text);
}

std::string phase_text(const std::string& what, double fraction, double seconds) {
  if (fraction < 0) return fmt::format("{}: {}", what, duration_text(seconds));
  const double left = fraction > 0 ? seconds * (1 - fraction) / fraction : INFINITY;
  return fmt::format("{}: {:.0f} %, {} left", what, std::floor(100 * fraction),
                     duration_text(left));
}

}  // namespace

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds)) return "unknown time";
  const auto whole = static_cast<std::int64_t>(std::clamp(std::round(seconds), 0.0, 1e15));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
  return fmt::format("{} d {:02} h", whole / 86400, whole / 3600 % 24);
}

ProgressConsole::ProgressConsole(std::FILE* out, const ConsoleOptions& options)
    : out_(out),
      options_(options),
      bar_(options.is_terminal && options.choice != ProgressChoice::kOff),
      lines_(!options.is_terminal && options.choice == ProgressChoice::kOn) {}

ProgressConsole::~ProgressConsole() {
  end_phase();
  erase();
  std::fflush(out_);
}

int ProgressConsole::columns() const {
  if (options_.columns > 0) return options_.columns;
  winsize size = {};
  const bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : kUsualColumns;
}

void ProgressConsole::erase() {
  if (!drawn_.empty()) std::fputs("\r\x1b[K", out_);
}

void ProgressConsole::draw() { std::fputs(drawn_.c_str(), out_); }

void ProgressConsole::show(std::string progress_line) {
  erase();
  drawn_ = std::move(progress_line);
  draw();
  std::fflush(out_);
}

void ProgressConsole::print_line(const std::string& text) {
  if (text.empty()) return;
  std::fputs(text.c_str(), out_);
  if (text.back() != '\n') std::fputs("\n", out_);
}

void ProgressConsole::above_progress(FunctionRef<void()> write) {
  const std::scoped_lock lock(mutex_);
  erase();
  std::fflush(out_);
  write();
  draw();
  std::fflush(out_);
}

void ProgressConsole::say(const std::string& text) {
  above_progress([&] { print_line(text); });
}

void ProgressConsole::step(const StepProgress& progress) {
  const std::scoped_lock lock(mutex_);
  erase();
  drawn_.clear();
  print_line(progress.line);
  if (lines_) say_progress(progress);
  if (bar_) drawn_ = bar_text(progress, columns(), options_.has_colours);
  draw();
  std::fflush(out_);
}

void ProgressConsole::say_progress(const StepProgress& progress) {
  const std::int64_t part =
      progress.last_step > 0 ? progress.step * kProgressLines / progress.last_step : 0;
  if (part == last_part_) return;
  last_part_ = part;
  print_line("progress: " + progress_text(progress));
}

void ProgressConsole::begin_phase(const std::string& what) {
  if (options_.choice == ProgressChoice::kOff) return;
  end_phase();
  fraction_ = -1;
  try {
    phase_ = std::jthread([this, what](const std::stop_token& ended) { tell_phase(ended, what); });
  } catch (const std::system_error&) {
    phase_ = std::jthread();  // the phase itself runs without the thread
  }
}

void ProgressConsole::advance_phase(double fraction) { fraction_ = fraction; }

void ProgressConsole::end_phase() {
  if (!phase_.joinable()) return;
  phase_.request_stop();
  phase_.join();
}

void ProgressConsole::tell_phase(const std::stop_token& ended, const std::string& what) {
  std::mutex mutex;
  std::condition_variable_any wakes;
  std::unique_lock waiting(mutex);
  const auto begin = std::chrono::steady_clock::now();
  // Returns whether the phase has ended before the time is over. Checks again after the wait,
  // because libstdc++ 12 returns false if the phase ends just as the wait begins.
  const auto ends_within = [&](std::chrono::milliseconds time) {
    const auto has_ended = [&] { return ended.stop_requested(); };
    return wakes.wait_for(waiting, ended, time, has_ended) || has_ended();
  };
  if (ends_within(options_.pace.first)) return;
  if (!bar_) {
    const std::scoped_lock lock(mutex_);
    print_line(what + " ...");
    std::fflush(out_);
    if (!lines_) return;
  }
  std::string before;  // the bar of the steps, shown again afterwards
  {
    const std::scoped_lock lock(mutex_);
    before = drawn_;
  }
  std::int64_t told_part = -1;
  do {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    const double fraction = fraction_;
    const std::scoped_lock lock(mutex_);
    say_phase(phase_text(what, fraction, passed.count()), fraction, told_part);
  } while (!ends_within(options_.pace.tick));
  const std::scoped_lock lock(mutex_);
  if (bar_) show(before);
}

void ProgressConsole::say_phase(const std::string& text, double fraction, std::int64_t& told_part) {
  if (bar_) {
    show(text.substr(0, static_cast<std::size_t>(std::max(columns() - 1, 1))));
    return;
  }
  const auto part = static_cast<std::int64_t>(fraction * kProgressLines);
  if (fraction < 0 || part == told_part) return;
  told_part = part;
  print_line("progress: " + text);
  std::fflush(out_);
}

}  // namespace terrace
