#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

// The report of a run while it goes on, served on loopback.
namespace terrace::report {

// The documents of a run. Each returns an empty text as long as there is nothing to show, and may
// throw. Called by several threads at once.
struct LivePages {
  std::function<std::string()> page;     // what `terrace report` writes
  std::function<std::string()> metrics;  // what `terrace report --format prometheus` prints
};

// A run whose directory becomes known later. Thread-safe.
class LiveRun {
 public:
  void set_directory(const std::string& run_dir);
  // Return documents of the files that are in the directory now. Empty before set_directory().
  std::string page() const;
  std::string metrics() const;

 private:
  std::string directory() const;

  mutable std::mutex mutex_;
  std::string run_dir_;  // guarded by mutex_
};

// A server of HTTP on 127.0.0.1, which other machines do not reach. It answers GET requests for "/"
// (the page, which the browser loads again every few seconds) and "/metrics". It refuses requests
// whose Host is not this machine: otherwise a page from elsewhere could read the report in the
// user's browser, by a name that leads to 127.0.0.1 (DNS rebinding). A document that throws is
// answered with status 500 and its message. Nothing is computed between requests.
class LiveReport {
 public:
  // Serves at once, on threads of its own. `port` 0: any that is free. Throws ConfigError if the
  // port cannot be had, and EnvironmentError if Terrace was built without cpp-httplib.
  LiveReport(int port, LivePages pages);
  // Ends the server. Waits for the requests that have come, a second or so for each client that
  // neither sends nor reads.
  ~LiveReport();
  LiveReport(const LiveReport&) = delete;
  LiveReport& operator=(const LiveReport&) = delete;

  int port() const;

 private:
  struct Server;
  std::unique_ptr<Server> server_;
};

}  // namespace terrace::report
