#include "parallel/tcp_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <exception>
#include <functional>

#include "base/error.h"
#include "tests/parallel/rendezvous_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

TcpAddress address_of(const std::string& text) {
  const TcpResolved resolved = resolve_tcp(text);
  EXPECT_FALSE(resolved.addresses.empty()) << text;
  return resolved.addresses.front();
}

// Returns the error of a call that may open no descriptors.
std::string error_without_descriptors(const std::function<void()>& call) {
  rlimit usual = {};
  EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  const rlimit none = {0, usual.rlim_max};
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  std::exception_ptr failure;  // examined only later: a sanitizer needs descriptors for that
  try {
    call();
  } catch (...) {
    failure = std::current_exception();
  }
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const EnvironmentError& error) {
    return error.what();
  }
  return "none";
}

TEST(RendezvousSocketTest, OwnAddressesAreThoseOfItsInterfaces) {
  for (const std::string own : {"127.0.0.1", "127.0.1.1", "::1", "[::1]", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(is_own_address(address_of(own))) << own;
  }
  for (const std::string other : {"192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1", "0.0.0.0"}) {
    EXPECT_FALSE(is_own_address(address_of(other))) << other;
  }
}

// The system may connect a socket to itself when it looks for a port of its own machine where no
// process listens.
TEST(RendezvousSocketTest, ASocketConnectedToItselfIsNotConnected) {
  TcpAddress own = address_of("127.0.0.1");
  auto* as_sockaddr = reinterpret_cast<sockaddr*>(&own.storage);
  const TcpSocket socket(::socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(::bind(socket.descriptor(), as_sockaddr, own.size), 0);
  ASSERT_EQ(::getsockname(socket.descriptor(), as_sockaddr, &own.size), 0);
  ASSERT_EQ(::connect(socket.descriptor(), as_sockaddr, own.size), 0);
  EXPECT_FALSE(socket.has_connected());
}

TEST(RendezvousSocketTest, APortInUseIsNone) {
  const int port = rendezvous_of(2).port;
  const std::vector<TcpSocket> first = listen_on(port);
  EXPECT_FALSE(first.empty());
  EXPECT_TRUE(listen_on(port).empty());
  EXPECT_TRUE(connect_to(port).has_connected());
}

TEST(RendezvousSocketTest, WhatTheProcessLacksIsAnError) {
  const int port = rendezvous_of(2).port;
  const std::vector<TcpSocket> listeners = listen_on(port);
  ASSERT_FALSE(listeners.empty());
  const TcpAddress local = at_port(address_of("127.0.0.1"), port);
  const TcpSocket guest = connect_to(port);
  EXPECT_THAT(error_without_descriptors([&] { listen_on(port + 1); }),
              HasSubstr("Too many open files"));
  EXPECT_THAT(error_without_descriptors([&] { TcpSocket::start_connecting(local); }),
              HasSubstr("Too many open files"));
  EXPECT_THAT(error_without_descriptors([&] {
                for (const TcpSocket& listener : listeners) listener.accept();
              }),
              HasSubstr("cannot accept a connection: Too many open files"));
  std::vector<TcpWait> waits(2, {guest.descriptor()});
  EXPECT_THAT(error_without_descriptors([&] { wait_for_any(waits, in_a_while()); }),
              HasSubstr("cannot wait for 2 connections: Invalid argument"));
}

}  // namespace
}  // namespace terrace
