#include "tools/device_lines.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace percheron {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const Card kCard{"NVIDIA H200", "GPU-1234"};

CardHealth whole() {
  return {.utilization = 0.37,
          .memory_used_bytes = 10ull << 30,
          .memory_bytes = 140ull << 30,
          .power_watts = 345.6,
          .power_limit_watts = 700,
          .temperature_celsius = 52,
          .ecc_corrected = 12,
          .ecc_uncorrected = 0,
          .last_xid = 0};
}

class TwoCards final : public HealthMonitor {
 public:
  const std::vector<Card>& cards() const override { return cards_; }
  Result<CardHealth> read(size_t card) override {
    if (card == 0) return whole();
    return unavailable("the driver has lost card 1");
  }

 private:
  std::vector<Card> cards_ = {kCard, {"NVIDIA Old", ""}};
};

TEST(DeviceLines, ACardsLineHasItsStateAndNamesWhatIsNotTold) {
  EXPECT_EQ(card_line(2, kCard, whole()),
            "card 2: NVIDIA H200 (GPU-1234), 37 % busy, 10.0 GiB of 140 GiB in use, 346 W, limit "
            "700 W, 52 °C, 12 corrected and 0 uncorrected ECC errors, no Xid");
  CardHealth little;
  little.temperature_celsius = 40;
  little.last_xid = 79;
  EXPECT_EQ(card_line(0, {"NVIDIA Old", ""}, little),
            "card 0: NVIDIA Old, 40 °C, Xid 79; not told: utilization, memory, power, power limit, "
            "ECC errors");
}

TEST(DeviceLines, ListDevicesThenCards) {
  const std::vector<std::string> lines =
      device_lines(std::unique_ptr<HealthMonitor>(std::make_unique<TwoCards>()));
  ASSERT_GE(lines.size(), 4u);
  EXPECT_THAT(lines[0], StartsWith("cpu:0: "));
  EXPECT_THAT(lines[1], HasSubstr("cuda:0: "));
  EXPECT_THAT(lines[lines.size() - 2], StartsWith("card 0: NVIDIA H200"));
  EXPECT_EQ(lines.back(), "card 1: NVIDIA Old: the driver has lost card 1");
}

TEST(DeviceLines, WithoutAMonitorTheyEndWithTheReason) {
  EXPECT_EQ(device_lines(not_found("no state of NVIDIA cards: none")).back(),
            "no state of NVIDIA cards: none");
}

}  // namespace
}  // namespace percheron
