#include <algorithm>
#include <limits>

#include "tests/capi/trained_session.h"

// Compares gradients that a session reads in their owner's memory with copies of the same
// gradients.
namespace terrace::test {
namespace {

constexpr std::size_t kBorrowed = 3;  // the tensor whose gradient gets special treatment

class CapiBorrowedGradient : public testing::Test {
 protected:
  using Gradients = std::vector<std::vector<float>>;

  static Gradients gradients(int step, int micro_batch) {
    Gradients all;
    for (std::size_t i = 0; i < test_tensors().size(); ++i) {
      all.push_back(gradient_of(i, step, micro_batch));
    }
    return all;
  }

  static terrace_buffer buffer(std::vector<float>& values) {
    return buffer_of(values.data(), static_cast<std::int64_t>(values.size()), TERRACE_DTYPE_FP32);
  }

  // Returns whether it was borrowed.
  static bool borrow(TrainedSession& session, std::size_t tensor, std::vector<float>& values) {
    const terrace_buffer of = buffer(values);
    std::int32_t is_borrowed = -1;
    EXPECT_DONE(terrace_gradient_borrow(session.get(), static_cast<std::int32_t>(tensor), &of,
                                        &is_borrowed));
    EXPECT_TRUE(is_borrowed == 0 || is_borrowed == 1);
    return is_borrowed == 1;
  }

  static void add(TrainedSession& session, std::size_t tensor, std::vector<float>& values) {
    const terrace_buffer of = buffer(values);
    EXPECT_DONE(terrace_gradient_add(session.get(), static_cast<std::int32_t>(tensor), &of));
  }

  static void borrow_all(TrainedSession& session, Gradients& all) {
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(borrow(session, i, all[i])) << i;
  }

  static void add_all(TrainedSession& session, Gradients& all) {
    for (std::size_t i = 0; i < all.size(); ++i) add(session, i, all[i]);
  }

  static void step(TrainedSession& session) {
    const terrace_step_options options = TrainedSession::step_options();
    EXPECT_DONE(terrace_step(session.get(), &options, nullptr));
  }

  static const void* address_of_gradient(TrainedSession& session, std::size_t tensor) {
    terrace_buffer view = {};
    EXPECT_DONE(terrace_gradient_view(session.get(), static_cast<std::int32_t>(tensor), &view));
    return view.data;
  }

  void expect_same_step() {
    step(borrower_);
    step(copier_);
    EXPECT_EQ(borrower_.parameters(), copier_.parameters());
  }

  static void overwrite(std::vector<float>& values) {
    std::ranges::fill(values, std::numeric_limits<float>::quiet_NaN());
  }

  TrainedSession borrower_;
  TrainedSession copier_;
  Gradients first_ = gradients(1, 0);
  Gradients second_ = gradients(1, 1);
};

TEST_F(CapiBorrowedGradient, IsReadWhereItIs) {
  for (int number = 1; number <= 3; ++number) {
    Gradients lent = gradients(number, 0);
    const Gradients before = lent;
    borrow_all(borrower_, lent);
    EXPECT_EQ(address_of_gradient(borrower_, kBorrowed), lent[kBorrowed].data());
    add_all(copier_, lent);
    expect_same_step();
    EXPECT_EQ(lent, before);
  }
  EXPECT_EQ(address_of_gradient(borrower_, kBorrowed), nullptr);
}

TEST_F(CapiBorrowedGradient, IsFreeOnceMoreIsAdded) {
  const std::vector<float> before = first_[kBorrowed];
  borrow_all(borrower_, first_);
  add_all(copier_, first_);
  for (const std::size_t i : {kBorrowed, std::size_t{0}}) {
    add(borrower_, i, second_[i]);
    add(copier_, i, second_[i]);
  }
  EXPECT_EQ(first_[kBorrowed], before);
  overwrite(first_[kBorrowed]);
  expect_same_step();
}

TEST_F(CapiBorrowedGradient, IsAddedWhereThereIsOneOrItIsOfAnotherType) {
  add_all(borrower_, first_);
  add_all(copier_, first_);
  EXPECT_FALSE(borrow(borrower_, kBorrowed, second_[kBorrowed]));
  add(copier_, kBorrowed, second_[kBorrowed]);
  overwrite(second_[kBorrowed]);
  expect_same_step();

  TestGradient& halves = test_gradient(kBorrowed, 1, 0);
  const terrace_buffer of =
      buffer_of(halves.halves.data(), test_tensors()[kBorrowed].elements, TERRACE_DTYPE_BF16);
  std::int32_t is_borrowed = 1;
  EXPECT_DONE(terrace_gradient_borrow(borrower_.get(), kBorrowed, &of, &is_borrowed));
  EXPECT_EQ(is_borrowed, 0);
  EXPECT_NE(address_of_gradient(borrower_, kBorrowed), nullptr);
  EXPECT_NE(address_of_gradient(borrower_, kBorrowed), halves.halves.data());
}

TEST_F(CapiBorrowedGradient, IsNotWrittenOnceForgotten) {
  const Gradients before = first_;
  borrow_all(borrower_, first_);
  EXPECT_DONE(terrace_gradients_discard(borrower_.get()));
  add_all(borrower_, second_);
  add_all(copier_, second_);
  EXPECT_EQ(first_, before);
  overwrite(first_[kBorrowed]);
  expect_same_step();
}

TEST_F(CapiBorrowedGradient, IsForgottenWhereItIsNotFinite) {
  overwrite(first_[kBorrowed]);
  borrow_all(borrower_, first_);
  const terrace_step_options options = TrainedSession::step_options();
  expect_error(terrace_step(borrower_.get(), &options, nullptr), TERRACE_ERROR_NOT_FINITE, "");
  EXPECT_EQ(address_of_gradient(borrower_, kBorrowed), nullptr);
  borrow_all(borrower_, second_);
  add_all(copier_, second_);
  expect_same_step();
}

TEST_F(CapiBorrowedGradient, IsFreeOnceTheSessionIsPaused) {
  const TemporaryDirectory drive;
  borrow_all(borrower_, first_);
  add_all(copier_, first_);
  ASSERT_DONE(terrace_pause(borrower_.get(), drive.path().c_str()));
  for (std::vector<float>& values : first_) overwrite(values);
  ASSERT_DONE(terrace_resume(borrower_.get()));
  expect_same_step();
}

TEST_F(CapiBorrowedGradient, OfAStepUnderWay) {
  terrace_step_options options = TrainedSession::step_options(0);
  options.flags = TERRACE_STEP_GRADIENTS_ARRIVE;
  EXPECT_TRUE(borrow(borrower_, 0, first_[0]));
  ASSERT_DONE(terrace_step_begin(borrower_.get(), &options));
  add(borrower_, 0, second_[0]);
  EXPECT_DONE(terrace_gradient_complete(borrower_.get(), 0));
  for (std::size_t i = 1; i < first_.size(); ++i) {
    EXPECT_TRUE(borrow(borrower_, i, first_[i]));
    EXPECT_DONE(terrace_gradient_complete(borrower_.get(), static_cast<std::int32_t>(i)));
  }
  EXPECT_DONE(terrace_step_end(borrower_.get(), nullptr));

  add_all(copier_, first_);
  add(copier_, 0, second_[0]);
  options.flags = 0;
  EXPECT_DONE(terrace_step(copier_.get(), &options, nullptr));
  EXPECT_EQ(borrower_.parameters(), copier_.parameters());
}

TEST_F(CapiBorrowedGradient, RefusesWhatAnAdditionRefuses) {
  std::int32_t is_borrowed = 0;
  std::vector<float> short_one(1);
  const terrace_buffer of = buffer(short_one);
  terrace_session* const own = borrower_.get();
  expect_error(terrace_gradient_borrow(own, 0, nullptr, &is_borrowed), TERRACE_ERROR_ARGUMENT,
               "gradient");
  expect_error(terrace_gradient_borrow(own, 0, &of, nullptr), TERRACE_ERROR_ARGUMENT,
               "is_borrowed");
  expect_error(terrace_gradient_borrow(own, 99, &of, &is_borrowed), TERRACE_ERROR_ARGUMENT, "99");
  expect_error(terrace_gradient_borrow(own, kBorrowed, &of, &is_borrowed), TERRACE_ERROR_ARGUMENT,
               "elements");
  EXPECT_EQ(address_of_gradient(borrower_, kBorrowed), nullptr);
}

}  // namespace
}  // namespace terrace::test
