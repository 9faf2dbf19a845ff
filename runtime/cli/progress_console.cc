#include "runtime/cli/progress_console.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <system_error>

namespace terrace {
namespace {

constexpr std::int64_t kBarCells = 24;
constexpr std::int64_t kProgressLines = 20;

std::string progress_text(std::int64_t step, std::int64_t last_step, double seconds_left) {
  return fmt::format("step {}/{}, {} left", step, last_step, duration_text(seconds_left));
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

ProgressConsole::ProgressConsole(std::FILE* out, bool is_terminal, ProgressChoice choice,
                                 PlanningPace pace)
    : out_(out),
      bar_(is_terminal && choice != ProgressChoice::kOff),
      lines_(!is_terminal && choice == ProgressChoice::kOn),
      tells_planning_(choice != ProgressChoice::kOff),
      pace_(pace) {}

ProgressConsole::~ProgressConsole() {
  end_planning();
  if (bar_ && !bar_text_.empty()) std::fputs("\n", out_);
  std::fflush(out_);
}

void ProgressConsole::erase_bar() {
  if (bar_ && !bar_text_.empty()) std::fputs("\r\x1b[K", out_);
}

void ProgressConsole::draw_bar() {
  if (bar_) std::fputs(bar_text_.c_str(), out_);
}

void ProgressConsole::print_line(const std::string& text) {
  if (text.empty()) return;
  std::fputs(text.c_str(), out_);
  if (text.back() != '\n') std::fputs("\n", out_);
}

void ProgressConsole::say(const std::string& text) {
  erase_bar();
  print_line(text);
  draw_bar();
  std::fflush(out_);
}

void ProgressConsole::begin_planning() {
  if (!tells_planning_) return;
  try {
    planning_ = std::jthread([this](const std::stop_token& ended) { tell_planning(ended); });
  } catch (const std::system_error&) {
    planning_ = std::jthread();  // the step is planned all the same
  }
}

void ProgressConsole::end_planning() {
  if (!planning_.joinable()) return;
  planning_.request_stop();
  planning_.join();
}

void ProgressConsole::tell_planning(const std::stop_token& ended) {
  std::mutex mutex;
  std::condition_variable_any wakes;
  std::unique_lock lock(mutex);
  const auto begin = std::chrono::steady_clock::now();
  // Returns whether the planning has ended before the time is over.
  const auto ends_within = [&](std::chrono::milliseconds time) {
    return wakes.wait_for(lock, ended, time, [&] { return ended.stop_requested(); });
  };
  if (ends_within(pace_.first)) return;
  if (!bar_) {
    print_line("planning the step ...");
    std::fflush(out_);
    return;
  }
  do {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    std::fputs(fmt::format("\r\x1b[Kplanning the step: {}", duration_text(passed.count())).c_str(),
               out_);
    std::fflush(out_);
  } while (!ends_within(pace_.tick));
  std::fputs("\r\x1b[K", out_);
  std::fflush(out_);
}

void ProgressConsole::step(const std::string& line, std::int64_t step, std::int64_t last_step,
                           double seconds_left) {
  erase_bar();
  print_line(line);
  if (lines_) say_progress(step, last_step, seconds_left);
  if (bar_) {
    const std::int64_t full =
        std::clamp<std::int64_t>(last_step > 0 ? step * kBarCells / last_step : 0, 0, kBarCells);
    bar_text_ = fmt::format("[{:=<{}}{: <{}}] {}", "", full, "", kBarCells - full,
                            progress_text(step, last_step, seconds_left));
    draw_bar();
  }
  std::fflush(out_);
}

void ProgressConsole::say_progress(std::int64_t step, std::int64_t last_step, double seconds_left) {
  const std::int64_t part = last_step > 0 ? step * kProgressLines / last_step : 0;
  if (part == last_part_) return;
  last_part_ = part;
  print_line("progress: " + progress_text(step, last_step, seconds_left));
}

}  // namespace terrace
