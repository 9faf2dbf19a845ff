#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace terrace {

// A connection to a port of 127.0.0.1. Reads give up after a minute.
class LoopbackConnection {
 public:
  explicit LoopbackConnection(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval limit = {.tv_sec = 60, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_open_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  ~LoopbackConnection() { ::close(socket_); }
  LoopbackConnection(const LoopbackConnection&) = delete;
  LoopbackConnection& operator=(const LoopbackConnection&) = delete;

  bool is_open() const { return is_open_; }
  void send(const std::string& text) const {
    EXPECT_EQ(::send(socket_, text.data(), text.size(), MSG_NOSIGNAL), std::ssize(text));
  }
  // Returns all that comes until the other side ends.
  std::string read() const {
    std::string text;
    std::array<char, 65536> part{};
    for (ssize_t size = 1; size > 0;) {
      size = ::recv(socket_, part.data(), part.size(), 0);
      if (size > 0) text.append(part.data(), static_cast<std::size_t>(size));
    }
    return text;
  }

 private:
  int socket_;
  bool is_open_ = false;
};

struct HttpAnswer {
  int status = 0;  // 0: no answer
  std::string head;
  std::string body;
};

// Sends a request, as it stands, and returns the answer.
inline HttpAnswer http_answer(int port, const std::string& request) {
  const LoopbackConnection connection(port);
  if (!connection.is_open()) return {};
  connection.send(request);
  const std::string text = connection.read();
  const std::size_t end = text.find("\r\n\r\n");
  if (!text.starts_with("HTTP/1.1 ") || end == std::string::npos) return {};
  return {std::atoi(text.c_str() + 9), text.substr(0, end + 2), text.substr(end + 4)};
}

// Gets a path as a browser does.
inline HttpAnswer http_get(int port, const std::string& path) {
  return http_answer(
      port, "GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(port) + "\r\n\r\n");
}

}  // namespace terrace
