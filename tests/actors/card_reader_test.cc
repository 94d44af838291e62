// Which card a device is, and what is told of it to those who watch a run.

#include "actors/card_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "actors/health_watch.h"
#include "base/clock.h"

namespace percheron {
namespace {

const std::vector<Card> kEqual = {{"H200", "GPU-aa1"}, {"H200", "GPU-bb2"}, {"H200", "GPU-cc3"}};
const std::vector<Card> kMixed = {{"T4", "GPU-aa1"}, {"H200", "GPU-bb2"}};

TEST(CardOf, EqualCardsHaveTheDriversOrder) {
  EXPECT_EQ(card_of(2, kEqual, {}), 2u);
  EXPECT_EQ(card_of(3, kEqual, {}), std::nullopt);
  EXPECT_EQ(card_of(0, {}, {}), std::nullopt);
}

TEST(CardOf, VisibleDevicesAreFollowed) {
  EXPECT_EQ(card_of(0, kEqual, {"2,0", nullptr}), 2u);
  EXPECT_EQ(card_of(1, kEqual, {"2,0", nullptr}), 0u);
  EXPECT_EQ(card_of(2, kEqual, {"2,0", nullptr}), std::nullopt);
  EXPECT_EQ(card_of(0, kEqual, {"", nullptr}), std::nullopt);
  EXPECT_EQ(card_of(0, kEqual, {"MIG-1", nullptr}), std::nullopt);
  EXPECT_EQ(card_of(0, kMixed, {"GPU-bb", nullptr}), 1u);
  EXPECT_EQ(card_of(0, kMixed, {"GPU-zz", nullptr}), std::nullopt);
}

// CUDA puts the fastest first, unless it is told otherwise.
TEST(CardOf, DifferentCardsAreNotGuessed) {
  EXPECT_EQ(card_of(0, kMixed, {}), std::nullopt);
  EXPECT_EQ(card_of(0, kMixed, {nullptr, "PCI_BUS_ID"}), 0u);
  EXPECT_EQ(card_of(0, kMixed, {"1", "PCI_BUS_ID"}), 1u);
}

class TwoCards final : public HealthMonitor {
 public:
  const std::vector<Card>& cards() const override { return kMixed; }
  Result<CardHealth> read(size_t card) override {
    if (card == 0) return unavailable("the driver has lost card 0");
    CardHealth health;
    health.utilization = 0.5;
    health.power_watts = 640;
    return health;
  }
};

std::unique_ptr<CardReader> reader() {
  return std::make_unique<CardReader>(std::make_unique<TwoCards>(),
                                      CudaOrder{"GPU-bb2,GPU-aa1", nullptr});
}

TEST(CardReader, ReadsTheCardOfADevice) {
  const auto cards = reader();
  EXPECT_EQ(cards->read("cuda:0")->power_watts, 640);
  EXPECT_EQ(cards->read("cuda:1"), std::nullopt);  // lost
  EXPECT_EQ(cards->read("cuda:2"), std::nullopt);
  EXPECT_EQ(cards->read("cpu:0"), std::nullopt);
}

TEST(HealthWatch, TellsARunOfItsDevicesThatTell) {
  const auto activity = std::make_shared<RunActivity>(system_clock());
  const HealthWatch watch(activity, reader(), {"cuda:0", "cuda:1"});
  std::map<std::string, DeviceHealth> devices;
  for (int i = 0; i < 600 && devices.empty(); ++i) {  // a minute
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    devices = activity->snapshot().devices;
  }
  ASSERT_EQ(devices.size(), 1u);
  EXPECT_EQ(devices["cuda:0"].power_watts, 640);
  EXPECT_EQ(devices["cuda:0"].utilization, 0.5);
}

}  // namespace
}  // namespace percheron
