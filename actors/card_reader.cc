#include "actors/card_reader.h"

#include <cstdlib>
#include <string_view>
#include <utility>

namespace percheron {
namespace {

constexpr std::string_view kCuda = "cuda:";

std::vector<std::string> words_of(const char* list) {
  std::vector<std::string> words(1);
  for (; *list != 0; ++list) {
    if (*list == ',') {
      words.emplace_back();
    } else {
      words.back() += *list;
    }
  }
  return words;
}

}  // namespace

std::optional<size_t> card_of(int number, const std::vector<Card>& cards, const CudaOrder& order) {
  const auto index = static_cast<size_t>(number);
  std::string wanted = std::to_string(number);
  if (order.visible != nullptr) {
    const std::vector<std::string> words = words_of(order.visible);
    if (index >= words.size() || words[index].empty()) return std::nullopt;
    wanted = words[index];
    if (wanted.starts_with("GPU-")) {
      for (size_t i = 0; i < cards.size(); ++i) {
        if (cards[i].uuid.starts_with(wanted)) return i;
      }
      return std::nullopt;
    }
  }
  const bool by_bus = order.order != nullptr && std::string_view(order.order) == "PCI_BUS_ID";
  for (const Card& card : cards) {
    if (!by_bus && card.name != cards.front().name) return std::nullopt;
  }
  if (wanted.find_first_not_of("0123456789") != std::string::npos || wanted.size() > 4) {
    return std::nullopt;
  }
  const auto card = static_cast<size_t>(std::atoi(wanted.c_str()));
  return card < cards.size() ? std::optional(card) : std::nullopt;
}

Result<std::unique_ptr<CardReader>> CardReader::open() {
  PERCHERON_ASSIGN_OR_RETURN(std::unique_ptr<HealthMonitor> monitor, open_nvml_monitor());
  return std::make_unique<CardReader>(
      std::move(monitor),
      CudaOrder{std::getenv("CUDA_VISIBLE_DEVICES"), std::getenv("CUDA_DEVICE_ORDER")});
}

std::optional<CardHealth> CardReader::read(const std::string& device) {
  if (!device.starts_with(kCuda)) return std::nullopt;
  const std::optional<size_t> card =
      card_of(std::atoi(device.c_str() + kCuda.size()), monitor_->cards(), order_);
  if (!card) return std::nullopt;
  const Result<CardHealth> health = monitor_->read(*card);
  return health.ok() ? std::optional(*health) : std::nullopt;
}

}  // namespace percheron
