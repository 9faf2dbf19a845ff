#include "runtime/session/state_window.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "memory/host/host_memory.h"
#include "offload/nvme_store.h"

// The window over extents of a store: content, order, and the effects of a failing drive.
namespace terrace {
namespace {

constexpr std::size_t kExtentBytes = 64 * kKiB;
constexpr std::size_t kExtents = 13;

class WindowedStore {
 public:
  explicit WindowedStore(std::unique_ptr<BlockStore> store, std::size_t slots)
      : store_(std::move(store)), memory_(slots * kExtentBytes, {}) {
    for (std::size_t i = 0; i < kExtents; ++i) {
      extents_.push_back({store_->create_extent(kExtentBytes), kExtentBytes});
    }
    store_->prepare();
    window_ = std::make_unique<StateWindow>(*store_, memory_.bytes(), kExtentBytes);
  }

  // Calls body(extent, bytes) for all of them.
  template <typename Body>
  void pass(StateAccess access, Body body) {
    window_->start(extents_, access);
    for (std::size_t i = 0; i < kExtents; ++i) {
      body(i, window_->fetch());
      window_->release();
    }
    window_->finish();
  }

  const StateWindow::Traffic& traffic() const { return window_->traffic(); }

 private:
  std::unique_ptr<BlockStore> store_;
  HostMemory memory_;
  std::vector<StateWindow::Extent> extents_;
  std::unique_ptr<StateWindow> window_;
};

void write_numbers(WindowedStore& store, int base) {
  store.pass(StateAccess::kWrite, [&](std::size_t i, std::span<std::byte> bytes) {
    std::memset(bytes.data(), base + static_cast<int>(i), bytes.size());
  });
}

TEST(StateWindow, KeepsWhatWasWrittenWithAnyNumberOfSlots) {
  for (const std::size_t slots : {2, 3, 5, 8, 20}) {
    WindowedStore store(make_memory_store(), slots);
    write_numbers(store, 10);
    store.pass(StateAccess::kUpdate, [](std::size_t i, std::span<std::byte> bytes) {
      ASSERT_EQ(bytes.size(), kExtentBytes);
      for (std::byte& byte : bytes) {
        ASSERT_EQ(byte, std::byte(10 + i));
        byte = std::byte(100 + i);
      }
    });
    store.pass(StateAccess::kRead, [](std::size_t i, std::span<std::byte> bytes) {
      for (std::byte& byte : bytes) {
        ASSERT_EQ(byte, std::byte(100 + i));
        byte = std::byte{0};  // not written back
      }
    });
    store.pass(StateAccess::kRead, [](std::size_t i, std::span<std::byte> bytes) {
      EXPECT_EQ(bytes.front(), std::byte(100 + i));
    });
    EXPECT_EQ(store.traffic().read_bytes, 3 * kExtents * kExtentBytes);
    EXPECT_EQ(store.traffic().write_bytes, 2 * kExtents * kExtentBytes);
  }
}

// Every pass ends in an error or is right, and the next one starts anew.
TEST(StateWindow, AFailingDriveEndsPassesByErrors) {
  int failures = 0;
  int successes = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    WindowedStore store(
        make_faulty_store(
            {.seed = seed, .fail_rate = 0.02, .corrupt_rate = 0.01, .short_rate = 0.1}),
        4);
    for (int round = 0; round < 10; ++round) {
      try {
        write_numbers(store, round);
        store.pass(StateAccess::kRead, [&](std::size_t i, std::span<std::byte> bytes) {
          for (const std::byte byte : bytes) {
            ASSERT_EQ(byte, std::byte(round + i)) << "seed " << seed;
          }
        });
        ++successes;
      } catch (const Error&) {
        ++failures;
      }
    }
  }
  EXPECT_GT(failures, 0);
  EXPECT_GT(successes, 0);
}

TEST(StateWindow, APassThatIsGivenUpHarmsNoOther) {
  WindowedStore store(make_memory_store(), 4);
  write_numbers(store, 1);
  struct GivenUp {};
  EXPECT_THROW(store.pass(StateAccess::kUpdate,
                          [](std::size_t i, std::span<std::byte>) {
                            if (i == 5) throw GivenUp();
                          }),
               GivenUp);
  store.pass(StateAccess::kRead, [](std::size_t i, std::span<std::byte> bytes) {
    EXPECT_EQ(bytes.back(), std::byte(1 + i));
  });
}

}  // namespace
}  // namespace terrace
