// Reads that wait for many bytes at once, and writes of several parts, over TCP and TLS.

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <thread>

#include "base/random.h"
#include "data/transport/socket_wait.h"
#include "data/transport/tcp_socket.h"
#include "tests/data/transport/cluster_fixture.h"

namespace percheron {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(size_t size, uint64_t seed = 1) {
  Bytes bytes(size);
  Random random(seed);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
  return bytes;
}

struct Sockets {
  FileDescriptor writer, reader;
};

Sockets tcp_pair() {
  const FileDescriptor listener = listen_tcp({"127.0.0.1", 0}, 1).value();
  const uint16_t port = local_port(listener).value();
  Sockets sockets;
  sockets.writer = connect_tcp({"127.0.0.1", port}, soon()).value();
  EXPECT_TRUE(wait_ready(listener.get(), Readiness::kRead, soon()).value());
  sockets.reader = accept_tcp(listener).value().socket;
  return sockets;
}

int low_water_mark(int socket) {
  int mark = 0;
  socklen_t size = sizeof mark;
  EXPECT_EQ(::getsockopt(socket, SOL_SOCKET, SO_RCVLOWAT, &mark, &size), 0);
  return mark;
}

class StreamBatchTest : public testing::Test {
 protected:
  StreamBatchTest() {
    Sockets sockets = tcp_pair();
    reader_socket_ = sockets.reader.get();
    reader_ = socket_stream(std::move(sockets.reader), "the writer").value();
    writer_ = socket_stream(std::move(sockets.writer), "the reader").value();
  }

  // Returns once the reader waits for `bytes`.
  void await_mark(int bytes) const {
    const Deadline deadline = soon();
    while (low_water_mark(reader_socket_) != bytes && !deadline.passed()) std::this_thread::yield();
    EXPECT_EQ(low_water_mark(reader_socket_), bytes);
  }
  void write(const Bytes& bytes) const { EXPECT_TRUE(writer_->write(bytes, soon()).ok()); }

  int reader_socket_ = -1;
  std::unique_ptr<ByteStream> reader_, writer_;
};

TEST_F(StreamBatchTest, AReaderOfManyBytesIsNotWokenByAFew) {
  std::optional<size_t> count;
  Bytes into(100'000);
  std::thread reads([&] { count = reader_->read_batch(into, soon()).value(); });
  await_mark(100'000);
  const Bytes bytes = random_bytes(into.size());
  write({bytes.begin(), bytes.begin() + 1000});
  write({bytes.begin() + 1000, bytes.end()});
  reads.join();
  EXPECT_EQ(count, 100'000u);
  EXPECT_EQ(into, bytes);
}

TEST_F(StreamBatchTest, AFewBytesAreTakenAtTheDeadline) {
  std::optional<size_t> count, none = 1;
  Bytes into(100'000);
  std::thread reads([&] {
    count = reader_->read_batch(into, Deadline::after(milliseconds(300))).value();
    none = reader_->read_batch(into, Deadline::now()).value();
  });
  await_mark(100'000);
  write(random_bytes(1000));
  reads.join();
  EXPECT_EQ(count, 1000u);
  EXPECT_EQ(none, std::nullopt);
}

TEST_F(StreamBatchTest, TheEndOfTheStreamEndsABatch) {
  std::optional<size_t> count, end;
  Bytes into(100'000);
  std::thread reads([&] {
    count = reader_->read_batch(into, soon()).value();
    end = reader_->read_batch(into, soon()).value();
  });
  await_mark(100'000);
  write(random_bytes(10));
  writer_->close();
  reads.join();
  EXPECT_EQ(count, 10u);
  EXPECT_EQ(end, 0u);
}

TEST_F(StreamBatchTest, CloseEndsABatch) {
  Status status;
  Bytes into(100'000);
  std::thread reads([&] { status = reader_->read_batch(into, soon()).status(); });
  await_mark(100'000);
  reader_->close();
  reads.join();
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
}

TEST_F(StreamBatchTest, AfterABatchOneByteIsEnough) {
  Bytes into(100'000);
  std::optional<size_t> count;
  std::thread reads([&] {
    EXPECT_TRUE(reader_->read_batch(into, soon()).ok());
    count = reader_->read_some(into, soon()).value();
  });
  await_mark(100'000);
  write(random_bytes(into.size()));
  await_mark(1);
  write(random_bytes(1));
  reads.join();
  EXPECT_EQ(count, 1u);
}

// The socket takes a little at a time, and signals interrupt both ends.
TEST_F(StreamBatchTest, PartsArriveInOrderWhateverInterrupts) {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  Sockets sockets = tcp_pair();
  const int small = 4096;
  ASSERT_EQ(::setsockopt(sockets.writer.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
  ASSERT_EQ(::setsockopt(sockets.reader.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small), 0);
  const auto reader = socket_stream(std::move(sockets.reader), "the writer").value();
  const auto writer = socket_stream(std::move(sockets.writer), "the reader").value();
  const Bytes bytes = random_bytes(1'000'012);
  const std::span<const std::byte> all = bytes;
  std::atomic<bool> done{false};
  std::thread writes([&] {
    const Status status = writer->write_parts(
        {all.first(8), {}, all.subspan(8, 1'000'000), all.subspan(1'000'008)}, soon());
    EXPECT_TRUE(status.ok()) << status.message();
  });
  std::thread interrupts([&, writes = writes.native_handle(), reads = ::pthread_self()] {
    while (!done) {
      ::pthread_kill(reads, SIGUSR1);
      ::pthread_kill(writes, SIGUSR1);
      std::this_thread::yield();
    }
  });
  Bytes arrived(bytes.size());
  for (size_t at = 0; at < arrived.size();) {
    const size_t room = std::min<size_t>(70'001, arrived.size() - at);
    const auto count = reader->read_batch(std::span(arrived).subspan(at, room), soon());
    ASSERT_TRUE(count.ok()) << count.status().message();
    ASSERT_GT(count->value_or(0), 0u);
    at += **count;
  }
  done = true;
  interrupts.join();
  writes.join();
  ::sigaction(SIGUSR1, &before, nullptr);
  EXPECT_EQ(arrived, bytes);
}

// OpenSSL holds parts of records: a reader must not wait at the socket for what it has already.
TEST(TlsBatch, EveryByteArrivesWithoutWaitingForMore) {
  const TestCluster cluster;
  cluster.issue("node1");
  cluster.issue("node2");
  Sockets sockets = tcp_pair();
  std::unique_ptr<ByteStream> writer;
  std::thread accepts([&] {
    writer = cluster.tls("node2")->accept(std::move(sockets.writer), "node1", soon()).value();
  });
  const auto reader =
      cluster.tls("node1")->connect(std::move(sockets.reader), "node2", "node2", soon()).value();
  accepts.join();
  Random random(7);
  for (const size_t size : {1, 5'000, 65'537, 200'000, 262'144, 300'001, 1'000'003}) {
    const Bytes bytes = random_bytes(size, size);
    std::thread writes([&] {
      for (size_t at = 0; at < size;) {
        const size_t piece = std::min<size_t>(1 + random.next() % 20'000, size - at);
        ASSERT_TRUE(writer->write(std::span(bytes).subspan(at, piece), soon()).ok());
        at += piece;
      }
    });
    Bytes arrived(size);
    for (size_t at = 0; at < size;) {
      const auto room = std::span(arrived).subspan(at).first(std::min<size_t>(262'144, size - at));
      const Deadline deadline = Deadline::after(seconds(20));
      const auto count = reader->read_batch(room, deadline);
      ASSERT_TRUE(count.ok()) << count.status().message();
      ASSERT_TRUE(count->has_value());
      ASSERT_FALSE(deadline.passed()) << "waited for bytes that do not come, at " << at;
      at += **count;
    }
    writes.join();
    EXPECT_EQ(arrived, bytes);
  }
}

}  // namespace
}  // namespace percheron
