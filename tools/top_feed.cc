#include "tools/top_feed.h"

#include <utility>

namespace percheron {

TopFeed::TopFeed(TopSource& source, std::chrono::milliseconds interval)
    : source_(source),
      interval_(interval),
      looker_([this] { look(); }),
      orderer_([this] { pass_orders(); }) {}

TopFeed::~TopFeed() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  source_.close();
  looker_.join();
  orderer_.join();
}

TopFeed::News TopFeed::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(news_, {});
}

void TopFeed::order(const TopOrder& order) {
  {
    const std::lock_guard lock(mutex_);
    order_ = order;
  }
  changed_.notify_all();
}

void TopFeed::look() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    lock.unlock();
    Result<proto::ControlReply> reply = source_.look();
    lock.lock();
    if (reply.ok()) {
      news_.reply = std::move(reply).value();
      news_.lost.clear();
    } else {
      news_.lost = reply.status().message();
    }
    changed_.wait_for(lock, interval_, [this] { return ending_; });
  }
}

void TopFeed::pass_orders() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || order_; });
    if (ending_) return;
    const TopOrder order = *std::exchange(order_, std::nullopt);
    lock.unlock();
    Result<std::string> answer = source_.order(order);
    lock.lock();
    news_.answer = std::move(answer);
  }
}

}  // namespace percheron
