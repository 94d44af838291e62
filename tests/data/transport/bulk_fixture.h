#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "base/random.h"
#include "data/transport/bulk_client.h"
#include "data/transport/bulk_server.h"
#include "data/transport/frame_channel.h"
#include "tests/data/transport/cluster_fixture.h"

namespace percheron {

/// A region with random bytes.
inline SharedRegion random_region(size_t bytes, uint64_t seed = 1) {
  auto region = SharedRegion::create("test", bytes, SharedRegion::Backing::kOnDemand).value();
  Random random(seed);
  for (std::byte& byte : region.writable_bytes()) byte = static_cast<std::byte>(random.next());
  return region;
}

/// What a server's connection does wrong; counted in bytes that it sends.
struct StreamFault {
  static constexpr size_t kNever = ~size_t{0};
  size_t close_after = kNever;  // as a process that is killed
  size_t stop_after = kNever;   // as a process that is stopped: silent, and connected
  size_t corrupt_at = kNever;   // one bit of this byte
};

/// A stream whose writes go wrong.
class FaultyStream final : public ByteStream {
 public:
  FaultyStream(std::unique_ptr<ByteStream> stream, StreamFault fault)
      : stream_(std::move(stream)), fault_(fault) {}

  Result<std::optional<size_t>> read_some(std::span<std::byte> into, Deadline deadline) override {
    return stream_->read_some(into, deadline);
  }
  Status write(std::span<const std::byte> bytes, Deadline deadline) override {
    std::vector<std::byte> copy(bytes.begin(), bytes.end());
    if (fault_.corrupt_at - written_ < copy.size()) {
      copy[fault_.corrupt_at - written_] ^= std::byte{1};
    }
    const size_t end = std::min(fault_.close_after, fault_.stop_after);
    if (end - written_ < copy.size()) copy.resize(end - written_);
    PERCHERON_RETURN_IF_ERROR(stream_->write(copy, deadline));
    written_ += copy.size();
    if (written_ == fault_.close_after) stream_->close();
    // Sends no more, and reads until the peer loses patience.
    while (written_ == fault_.stop_after) {
      std::array<std::byte, 64> ignored;
      const auto count = stream_->read_some(ignored, soon());
      if (!count.ok() || count->value_or(0) == 0) return unavailable("stopped");
    }
    return ok_status();
  }
  void close() override { stream_->close(); }
  void finish() override { stream_->finish(); }
  std::string peer() const override { return stream_->peer(); }

 private:
  const std::unique_ptr<ByteStream> stream_;
  const StreamFault fault_;
  size_t written_ = 0;
};

/// A bulk server over socket pairs, each served by a thread.
class BulkNode {
 public:
  ~BulkNode() { stop(); }

  /// The fault of the n-th connection, from 0.
  using FaultOf = std::function<StreamFault(size_t)>;
  FaultOf fault_of;
  BulkRegions regions;

  Result<std::unique_ptr<ByteStream>> connect(Deadline) {
    auto sockets = unix_socket_pair().value();
    const std::lock_guard lock(mutex_);
    if (refusing_) return unavailable("cannot connect to node2: it is gone");
    const StreamFault fault = fault_of ? fault_of(connections_.size()) : StreamFault();
    auto stream = std::make_shared<FaultyStream>(
        socket_stream(std::move(sockets.second), "node1").value(), fault);
    connections_.push_back({stream, std::thread([this, stream] {
                              statuses.add(serve_bulk(*stream, regions));
                              stream->close();
                            })});
    return socket_stream(std::move(sockets.first), "node2");
  }
  BulkClient::Connect connector() {
    return [this](Deadline deadline) { return connect(deadline); };
  }
  size_t connections() const {
    const std::lock_guard lock(mutex_);
    return connections_.size();
  }
  /// As a server that ends those that nobody used for long.
  void end_connections() {
    const std::lock_guard lock(mutex_);
    for (Served& served : connections_) served.stream->close();
  }
  /// As a process that dies: all connections end, and no new one is made.
  void kill() {
    {
      const std::lock_guard lock(mutex_);
      refusing_ = true;
    }
    end_connections();
  }
  void stop() {
    kill();
    for (Served& served : connections_) {
      if (served.thread.joinable()) served.thread.join();
    }
  }

  Collected<Status> statuses;

 private:
  struct Served {
    std::shared_ptr<ByteStream> stream;
    std::thread thread;
  };

  mutable std::mutex mutex_;
  bool refusing_ = false;
  std::vector<Served> connections_;
};

/// Small chunks, so that a small region has many.
inline BulkClientOptions small_chunks() {
  BulkClientOptions options;
  options.chunk_bytes = 10'000;
  return options;
}

/// So that the first connection gets the first chunk, and the next one is its replacement.
inline BulkClientOptions one_stream() {
  BulkClientOptions options = small_chunks();
  options.streams_per_pull = 1;
  return options;
}

/// A node that offers one region, and who pulls it.
class BulkTest : public testing::Test {
 protected:
  static constexpr size_t kBytes = 1'000'003;

  /// Offers a new region as (slot 3, generation 1); returns what a ticket says of it.
  BulkRequest offer(size_t bytes = kBytes) {
    region = std::make_shared<const SharedRegion>(random_region(bytes));
    EXPECT_TRUE(node.regions.add(3, 1, region, bytes).ok());
    return {3, 1, bytes, crc32c(region->bytes())};
  }
  void expect_arrived(const Result<PulledRegion>& pulled) const {
    ASSERT_TRUE(pulled.ok()) << pulled.status().message();
    EXPECT_TRUE(std::ranges::equal(pulled->region.bytes(), region->bytes()));
  }

  BulkNode node;
  std::shared_ptr<const SharedRegion> region;
  ByteCredits credits{100'000'000};
};

}  // namespace percheron
