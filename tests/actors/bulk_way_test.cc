#include "actors/node/bulk_way.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "data/transport/frame_channel.h"

namespace percheron {
namespace {

Connection connection_with(bool peer_takes_ucx) {
  Connection connection;
  connection.stream = socket_stream(unix_socket_pair().value().first, "tcp").value();
  connection.peer.name = "beta";
  connection.peer.ucx = peer_takes_ucx;
  connection.purpose = Purpose::kBulk;
  return connection;
}

/// Hands over a stream of its own, or, where it fails, what it was given.
class FakeCarrier final : public UcxCarrier {
 public:
  Result<Carried> take_over(std::unique_ptr<ByteStream> connection, RandomBytes&,
                            Deadline) override {
    ++asked;
    if (fails) return Carried{std::move(connection), unavailable("UCX reaches nobody")};
    return Carried{socket_stream(unix_socket_pair().value().first, "ucx").value(), ok_status()};
  }

  int asked = 0;
  bool fails = false;
};

std::string way(BulkWay& way, bool peer_takes_ucx) {
  const auto stream = way.stream_of(connection_with(peer_takes_ucx), Deadline::never());
  return stream.ok() ? (*stream)->peer() : stream.status().message();
}

TEST(BulkWay, IsUcxWhereBothTakeIt) {
  const auto carrier = std::make_shared<FakeCarrier>();
  BulkWay with(carrier, system_random_bytes());
  EXPECT_EQ(way(with, true), "ucx");
  EXPECT_EQ(way(with, false), "tcp");
  EXPECT_EQ(carrier->asked, 1);
  BulkWay without(nullptr, system_random_bytes());
  EXPECT_EQ(way(without, true), "tcp");
}

TEST(BulkWay, IsTheConnectionWhereUcxFails) {
  const auto carrier = std::make_shared<FakeCarrier>();
  carrier->fails = true;
  BulkWay failing(carrier, system_random_bytes());
  EXPECT_EQ(way(failing, true), "tcp");
  EXPECT_EQ(carrier->asked, 1);
}

}  // namespace
}  // namespace percheron
