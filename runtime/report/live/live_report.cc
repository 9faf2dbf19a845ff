#include "runtime/report/live_report.h"

#include <fmt/format.h>
#include <httplib.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"

namespace terrace::report {
namespace {

constexpr const char* kLoopback = "127.0.0.1";
constexpr const char* kPlainText = "text/plain; charset=utf-8";
// The waits for a client that sends or reads nothing. They bound how long the end of a run waits.
constexpr int kClientSeconds = 1;
constexpr int kThreads = 4;

constexpr int kForbidden = 403;
constexpr int kNotFound = 404;
constexpr int kMethodNotAllowed = 405;
constexpr int kFailed = 500;
constexpr int kNotYet = 503;

// Returns whether a request's Host is this machine, as the user's browser names it.
bool is_own_host(const httplib::Request& request, int port) {
  if (request.get_header_value_count("Host") != 1) return false;
  const std::string host = request.get_header_value("Host");
  constexpr int kUnnamedPort = 80;  // browsers leave it out
  for (const std::string name : {kLoopback, "localhost"}) {
    if (host == fmt::format("{}:{}", name, port)) return true;
    if (port == kUnnamedPort && host == name) return true;
  }
  return false;
}

void refuse(httplib::Response& response, int status, const std::string& why) {
  response.status = status;
  response.set_content(why + "\n", kPlainText);
}

// Answers with a document. The browser loads it again after ten seconds, or after twenty times as
// long as it took to make: so the page of a long run costs the training at most a twentieth of a
// core.
void answer(httplib::Response& response, const std::function<std::string()>& document,
            const char* type) {
  constexpr double kLeastSeconds = 10;
  constexpr double kPause = 20;
  const auto begin = std::chrono::steady_clock::now();
  const std::string text = document();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const double seconds = std::ceil(std::max(kLeastSeconds, kPause * took.count()));
  response.set_header("Refresh", fmt::format("{:.0f}", seconds));
  if (text.empty()) {
    refuse(response, kNotYet, "the run has not written its files yet; this page loads again soon");
    return;
  }
  response.set_content(text, type);
}

void route(const httplib::Request& request, httplib::Response& response, const LivePages& pages) {
  if (request.path == "/") {
    answer(response, pages.page, "text/html; charset=utf-8");
  } else if (request.path == "/metrics") {
    answer(response, pages.metrics, "text/plain; version=0.0.4; charset=utf-8");
  } else {
    refuse(response, kNotFound, "there are / and /metrics");
  }
}

void handle(const httplib::Request& request, httplib::Response& response, const LivePages& pages,
            int port) {
  response.set_header("Cache-Control", "no-store");
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_header("X-Frame-Options", "DENY");
  response.set_header("Cross-Origin-Resource-Policy", "same-origin");
  if (!is_own_host(request, port)) {
    refuse(
        response, kForbidden,
        fmt::format("open http://{}:{}/: other names of this server are refused", kLoopback, port));
  } else if (request.method != "GET") {
    response.set_header("Allow", "GET");
    refuse(response, kMethodNotAllowed, "this server only answers GET");
  } else {
    try {
      route(request, response, pages);
    } catch (const std::exception& failure) {
      refuse(response, kFailed, failure.what());
    }
  }
}

}  // namespace

struct LiveReport::Server {
  LivePages pages;
  httplib::Server http;
  int port = 0;
  std::atomic<bool> has_ended = false;
  std::string failure;  // written before has_ended
  std::jthread listener;

  explicit Server(LivePages shown) : pages(std::move(shown)) {
    // The library's default lets another process take the same port.
    http.set_socket_options([](int socket) {
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    http.set_keep_alive_max_count(1);
    http.set_keep_alive_timeout(kClientSeconds);
    http.set_read_timeout(kClientSeconds);
    http.set_write_timeout(kClientSeconds);
    http.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    http.set_pre_routing_handler(
        [this](const httplib::Request& request, httplib::Response& response) {
          handle(request, response, pages, port);
          return httplib::Server::HandlerResponse::Handled;
        });
  }

  void bind(int asked) {
    errno = 0;
    port = asked;
    if (asked == 0) port = http.bind_to_any_port(kLoopback);
    if (asked == 0 ? port > 0 : http.bind_to_port(kLoopback, asked)) return;
    throw ConfigError(
        fmt::format("--live {}: port {} of {} cannot be had: {}", asked, asked, kLoopback,
                    std::strerror(errno == 0 ? EADDRINUSE : errno)),
        "name another port, or give --live without one: then the system chooses a free one");
  }

  void listen() {
    listener = std::jthread([this] {
      try {
        http.listen_after_bind();
      } catch (const std::exception& error) {  // the system starts no more threads
        failure = error.what();
      }
      has_ended = true;
    });
    // Ending it before it runs would have no effect.
    while (!http.is_running() && !has_ended) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (!has_ended) return;
    throw EnvironmentError(
        fmt::format("--live: the server does not start{}{}", failure.empty() ? "" : ": ", failure),
        "train without --live");
  }
};

LiveReport::LiveReport(int port, LivePages pages)
    : server_(std::make_unique<Server>(std::move(pages))) {
  server_->bind(port);
  server_->listen();
}

LiveReport::~LiveReport() { server_->http.stop(); }

int LiveReport::port() const { return server_->port; }

}  // namespace terrace::report
