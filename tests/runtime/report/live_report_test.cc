#include "runtime/report/live_report.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <stdexcept>

#include "base/error.h"
#include "runtime/report/report_page.h"
#include "runtime/report/report_run.h"
#include "tests/runtime/report/http_request.h"
#include "tests/runtime/temporary_directory.h"

namespace terrace::report {
namespace {

using testing::HasSubstr;

LivePages plain_pages() {
  return {.page = [] { return std::string("the page"); },
          .metrics = [] { return std::string("the metrics"); }};
}

#if TERRACE_LIVE

std::string request(const std::string& method, const std::string& host) {
  return fmt::format("{} / HTTP/1.1\r\nHost: {}\r\n\r\n", method, host);
}

TEST(LiveReport, ServesThePageAndTheMetrics) {
  const LiveReport live(0, plain_pages());
  ASSERT_GT(live.port(), 0);
  const HttpAnswer page = http_get(live.port(), "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.body, "the page");
  EXPECT_THAT(page.head, HasSubstr("Content-Type: text/html; charset=utf-8\r\n"));
  EXPECT_THAT(page.head, HasSubstr("Refresh: 10\r\n"));
  EXPECT_THAT(page.head, HasSubstr("Cache-Control: no-store\r\n"));
  EXPECT_THAT(page.head, HasSubstr("Connection: close\r\n"));
  const HttpAnswer metrics = http_get(live.port(), "/metrics");
  EXPECT_EQ(metrics.status, 200);
  EXPECT_EQ(metrics.body, "the metrics");
  EXPECT_THAT(metrics.head, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  for (const char* const path : {"/other", "/../etc/passwd", "//", "/metrics/"}) {
    EXPECT_EQ(http_get(live.port(), path).status, 404) << path;
  }
}

// Otherwise a page from elsewhere could read the report through the user's browser.
TEST(LiveReport, RefusesOtherHosts) {
  const LiveReport live(0, plain_pages());
  const int port = live.port();
  for (const std::string& host :
       {std::string("evil.example"), fmt::format("evil.example:{}", port),
        fmt::format("127.0.0.1.evil.example:{}", port), std::string("127.0.0.1"),
        fmt::format("127.0.0.1:{}", port == 1 ? 2 : 1), std::string()}) {
    const HttpAnswer answer = http_answer(port, request("GET", host));
    EXPECT_EQ(answer.status, 403) << host;
    EXPECT_THAT(answer.body, HasSubstr(fmt::format("open http://127.0.0.1:{}/", port))) << host;
  }
  EXPECT_EQ(http_answer(port, "GET / HTTP/1.1\r\n\r\n").status, 403);
  const std::string own = fmt::format("localhost:{}", port);
  EXPECT_EQ(
      http_answer(port, fmt::format("GET / HTTP/1.1\r\nHost: {0}\r\nHost: x\r\n\r\n", own)).status,
      403);
  EXPECT_EQ(http_answer(port, request("GET", own)).status, 200);
}

TEST(LiveReport, OnlyAnswersGet) {
  const LiveReport live(0, plain_pages());
  const std::string own = fmt::format("127.0.0.1:{}", live.port());
  for (const char* const method : {"POST", "PUT", "DELETE", "OPTIONS", "HEAD"}) {
    const HttpAnswer answer = http_answer(live.port(), request(method, own));
    EXPECT_EQ(answer.status, 405) << method;
    EXPECT_THAT(answer.head, HasSubstr("Allow: GET\r\n")) << method;
  }
}

TEST(LiveReport, ADocumentThatThrowsIsAFailureWithItsMessage) {
  LivePages pages = plain_pages();
  pages.page = []() -> std::string { throw std::runtime_error("trace.json is damaged"); };
  const LiveReport live(0, pages);
  const HttpAnswer failed = http_get(live.port(), "/");
  EXPECT_EQ(failed.status, 500);
  EXPECT_EQ(failed.body, "trace.json is damaged\n");
  EXPECT_EQ(http_get(live.port(), "/metrics").status, 200) << "the server goes on";
}

TEST(LiveReport, ARunThatHasNotBegunIsNotThereYet) {
  LivePages pages = plain_pages();
  pages.page = [] { return std::string(); };
  const LiveReport live(0, pages);
  const HttpAnswer early = http_get(live.port(), "/");
  EXPECT_EQ(early.status, 503);
  EXPECT_THAT(early.head, HasSubstr("Refresh: 10\r\n"));
}

TEST(LiveReport, APortInUseIsRefused) {
  const LiveReport first(0, plain_pages());
  TERRACE_EXPECT_THROW_WITH(LiveReport(first.port(), plain_pages()), ConfigError,
                            fmt::format("port {} of 127.0.0.1 cannot be had", first.port()));
  EXPECT_EQ(http_get(first.port(), "/").status, 200);
}

TEST(LiveReport, APortIsFreeAgainAfterTheEnd) {
  int port = 0;
  {
    const LiveReport live(0, plain_pages());
    port = live.port();
    EXPECT_EQ(http_get(port, "/").status, 200);
  }
  EXPECT_FALSE(LoopbackConnection(port).is_open());
  const LiveReport again(port, plain_pages());
  EXPECT_EQ(again.port(), port);
  EXPECT_EQ(http_get(port, "/").status, 200);
}

TEST(LiveReport, SilentClientsDoNotHoldUpItsEnd) {
  std::optional<LiveReport> live(std::in_place, 0, plain_pages());
  const LoopbackConnection silent(live->port());
  const LoopbackConnection half(live->port());
  ASSERT_TRUE(silent.is_open() && half.is_open());
  half.send("GET / HTTP/1.1\r\nHost: 127");
  EXPECT_EQ(http_get(live->port(), "/").status, 200) << "other clients are served meanwhile";
  const auto begin = std::chrono::steady_clock::now();
  live.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(LiveReport, ManyEndsAtOnceAfterTheBeginning) {
  for (int i = 0; i < 50; ++i) const LiveReport live(0, plain_pages());
}

#else

TEST(LiveReport, IsRefusedWithTheNameOfThePackage) {
  TERRACE_EXPECT_THROW_WITH(LiveReport(0, plain_pages()), EnvironmentError, "libcpp-httplib-dev");
}

#endif

TEST(LiveRun, ShowsTheFilesThatAreThereNow) {
  const TemporaryDirectory directory;
  LiveRun run;
  EXPECT_EQ(run.page(), "");
  EXPECT_EQ(run.metrics(), "");
  directory.write("run/metrics.jsonl", "{\"step\":1,\"loss\":3.5}\n");
  run.set_directory(directory.path("run"));
  EXPECT_EQ(run.page(), report_page(read_runs({directory.path("run")})));
  EXPECT_THAT(run.metrics(), HasSubstr("terrace_step{run=\"run\"} 1\n"));
  directory.write("run/metrics.jsonl",
                  "{\"step\":1,\"loss\":3.5}\n{\"step\":2,\"loss\":3.4}\n{\"step\":");
  EXPECT_THAT(run.metrics(), HasSubstr("terrace_step{run=\"run\"} 2\n"));
  EXPECT_THAT(run.page(), HasSubstr("<data value=\"3.4\">"));
}

}  // namespace
}  // namespace terrace::report
