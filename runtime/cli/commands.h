#pragma once

// One function per command of the program. argc and argv are the program's own: argv[1] is the
// command's name, and its arguments follow. Each function returns the exit code and lets typed
// errors through to main, which prints them and maps them to exit codes.
namespace terrace {

int run_train(int argc, const char* const* argv);
int run_tokenize(int argc, const char* const* argv);
int run_sample(int argc, const char* const* argv);
int run_chat(int argc, const char* const* argv);
int run_export(int argc, const char* const* argv);
int run_inspect(int argc, const char* const* argv);
int run_report(int argc, const char* const* argv);
int run_diff(int argc, const char* const* argv);
int run_merge(int argc, const char* const* argv);
int run_plan(int argc, const char* const* argv);
int run_profile(int argc, const char* const* argv);
int run_doctor(int argc, const char* const* argv);
int run_bench(int argc, const char* const* argv);

}  // namespace terrace
