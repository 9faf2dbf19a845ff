#include "memory/ledger.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace terrace {
namespace {

Ledger example() {
  Ledger ledger;
  TierLedger& device = ledger[Tier::kDevice];
  device.budget_bytes = 2 * kGiB;
  device.peak_bytes = 3 * kGiB;
  device.live_peak_bytes = 2900 * kMiB;
  device[Account::kParameters] = 800 * kMiB;
  device[Account::kActivations] = 1600 * kMiB;
  device[Account::kGradients] = 400 * kMiB;
  device[Account::kWorkspace] = 100 * kMiB;
  TierLedger& host = ledger[Tier::kHost];
  host.budget_bytes = 8 * kGiB;
  host.peak_bytes = 8 * kGiB;
  host[Account::kOptimizerState] = 8 * kGiB;
  ledger[Tier::kNvme].peak_bytes = 12 * kGiB;
  ledger[Tier::kNvme][Account::kOptimizerState] = 12 * kGiB;
  return ledger;
}

TEST(LedgerTest, TableIsAligned) {
  EXPECT_EQ(to_text(example()),
            "                     device      host      nvme\n"
            "budget             2.00 GiB  8.00 GiB      none\n"
            "peak               3.00 GiB  8.00 GiB  12.0 GiB\n"
            "  parameters        800 MiB         -         -\n"
            "  gradients         400 MiB         -         -\n"
            "  optimizer_state         -  8.00 GiB  12.0 GiB\n"
            "  activations      1.56 GiB         -         -\n"
            "  workspace         100 MiB         -         -\n");
}

TEST(LedgerTest, TableLeavesOutWhatIsNotUsed) {
  Ledger ledger;
  ledger[Tier::kHost].peak_bytes = kGiB;
  ledger[Tier::kHost][Account::kActivations] = kGiB;
  EXPECT_EQ(to_text(ledger),
            "                       host\n"
            "budget                 none\n"
            "peak               1.00 GiB\n"
            "  activations      1.00 GiB\n");
}

TEST(LedgerTest, FitsUpToTheBudgetItself) {
  Ledger ledger = example();
  EXPECT_FALSE(fits(ledger));
  EXPECT_EQ(ledger[Tier::kDevice].over_bytes(), kGiB);
  EXPECT_EQ(ledger[Tier::kHost].over_bytes(), 0U);
  EXPECT_EQ(ledger[Tier::kNvme].over_bytes(), 0U);
  ledger[Tier::kDevice].peak_bytes = 2 * kGiB;
  EXPECT_TRUE(fits(ledger));
  ledger[Tier::kHost].budget_bytes = 8 * kGiB - 1;
  EXPECT_FALSE(fits(ledger));
}

TEST(LedgerTest, ShortfallNamesTiersAndLargestAccounts) {
  Ledger ledger = example();
  EXPECT_EQ(
      describe_shortfall(ledger),
      "device needs 3.00 GiB but its budget is 2.00 GiB, 1.00 GiB too little (largest: activations "
      "1.56 GiB, parameters 800 MiB, gradients 400 MiB)");
  ledger[Tier::kNvme].budget_bytes = 11 * kGiB;
  EXPECT_EQ(
      describe_shortfall(ledger),
      "device needs 3.00 GiB but its budget is 2.00 GiB, 1.00 GiB too little (largest: activations "
      "1.56 GiB, parameters 800 MiB, gradients 400 MiB); nvme needs 12.0 GiB but its budget is "
      "11.0 GiB, 1.00 GiB too little (largest: optimizer_state 12.0 GiB)");
}

TEST(LedgerTest, EmptyFits) {
  EXPECT_TRUE(fits(Ledger{}));
  EXPECT_EQ(describe_shortfall(Ledger{}), "");
}

TEST(LedgerTest, ShortfallWithoutAccounts) {
  Ledger ledger;
  ledger[Tier::kDevice].budget_bytes = 0;
  ledger[Tier::kDevice].peak_bytes = 512;
  EXPECT_EQ(describe_shortfall(ledger),
            "device needs 512 B but its budget is 0 B, 512 B too little");
}

}  // namespace
}  // namespace terrace
