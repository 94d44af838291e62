// Bounded fuzzing of what comes over a connection, by the rules of data_fuzz_test.cc.

#include <gtest/gtest.h>

#include <algorithm>

#include "data/transport/frame_channel.h"
#include "data/transport/frame_length.h"
#include "data/transport/hello.h"
#include "tests/fuzz/mutate.h"

namespace percheron {
namespace {

constexpr size_t kMagicBytes = 8;

// Gives out `input`, then ends; swallows what is written.
class InputStream final : public ByteStream {
 public:
  explicit InputStream(std::string input) : input_(std::move(input)) {}

  Result<std::optional<size_t>> read_some(std::span<std::byte> into, Deadline) override {
    // In small steps, as a network may.
    const size_t count = std::min({into.size(), input_.size() - at_, size_t{7}});
    std::copy_n(reinterpret_cast<const std::byte*>(input_.data()) + at_, count, into.begin());
    at_ += count;
    return std::optional<size_t>(count);
  }
  Status write(std::span<const std::byte> bytes, Deadline) override {
    written.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return ok_status();
  }
  void close() override {}
  void finish() override {}
  std::string peer() const override { return "the fuzzer"; }

  std::string written;

 private:
  const std::string input_;
  size_t at_ = 0;
};

// The same bytes each time, so that what is recorded once is valid again.
class FixedBytes final : public RandomBytes {
 public:
  void fill(std::span<std::byte> bytes) override { std::ranges::fill(bytes, std::byte{42}); }
};

Credentials credentials(const std::string& name) {
  FixedBytes random;
  return {{name, make_uuid(random), make_uuid(random), "0.1.0"},
          ClusterSecret::parse(std::string(64, 's'), "the fuzzer").value(),
          nullptr};
}

// What a connector and an acceptor say to each other, each in one piece.
struct Conversation {
  std::string connector, acceptor;
};

Conversation record() {
  // Each side's next words are known once the other's were seen: four short runs.
  FixedBytes random;
  Conversation talk;
  for (int turn = 0; turn < 2; ++turn) {
    InputStream connector(talk.acceptor);
    (void)say_hello(connector, credentials("node1"), Purpose::kControl, random, Deadline::never());
    talk.connector = connector.written;
    InputStream acceptor(talk.connector);
    (void)answer_hello(acceptor, credentials("node2"), random, Deadline::never());
    talk.acceptor = acceptor.written;
  }
  return talk;
}

// The magic and the first message: both proofs are over their bytes.
std::string introduction(const std::string& words) {
  const std::span<const char, kLengthBytes> length(words.data() + kMagicBytes, kLengthBytes);
  return words.substr(0, kMagicBytes + kLengthBytes + decode_length(length));
}

TEST(TransportFuzz, TheRecordedHelloIsValid) {
  FixedBytes random;
  const Conversation talk = record();
  InputStream connector(talk.acceptor), acceptor(talk.connector);
  EXPECT_TRUE(
      say_hello(connector, credentials("node1"), Purpose::kControl, random, Deadline::never())
          .ok());
  EXPECT_TRUE(answer_hello(acceptor, credentials("node2"), random, Deadline::never()).ok());
}

TEST(TransportFuzz, AMutatedHelloIsRefused) {
  FixedBytes random;
  const Conversation talk = record();
  fuzz_bytes(talk.connector, [&](const std::string& bytes) {
    InputStream stream(bytes);
    const auto answer = answer_hello(stream, credentials("node2"), random, Deadline::never());
    if (answer.ok()) {
      ASSERT_TRUE(bytes.starts_with(introduction(talk.connector)));
    }
    ASSERT_LT(stream.written.size(), 2000u);
  });
}

TEST(TransportFuzz, AMutatedAnswerIsRefused) {
  FixedBytes random;
  const Conversation talk = record();
  fuzz_bytes(talk.acceptor, [&](const std::string& bytes) {
    InputStream stream(bytes);
    const auto peer =
        say_hello(stream, credentials("node1"), Purpose::kControl, random, Deadline::never());
    if (peer.ok()) {
      ASSERT_TRUE(bytes.starts_with(introduction(talk.acceptor)));
    }
  });
}

TEST(TransportFuzz, MutatedFramesAreReadOrRefused) {
  constexpr size_t kMax = 100;
  std::string frames;
  for (const std::string text : {"", "a frame", "another one that is longer than the first"}) {
    frames += std::string({static_cast<char>(text.size()), 0, 0, 0}) + text;
  }
  fuzz_bytes(frames, [&](const std::string& bytes) {
    const auto channel = stream_channel(std::make_unique<InputStream>(bytes), kMax);
    for (size_t total = 0;;) {
      const auto frame = channel->receive(Deadline::never());
      if (!frame.ok()) break;
      ASSERT_TRUE(frame->has_value());
      ASSERT_LE((*frame)->bytes.size(), kMax);
      total += 4 + (*frame)->bytes.size();
      ASSERT_LE(total, bytes.size());
    }
  });
}

TEST(TransportFuzz, MutatedFramesOfAUnixSocketAreReadOrRefused) {
  constexpr size_t kMax = 100;
  std::string frames;
  for (const std::string text : {"", "a frame", "another one that is longer than the first"}) {
    frames += std::string({static_cast<char>(text.size()), 0, 0, 0, 0}) + text;
  }
  fuzz_bytes(frames, [&](const std::string& bytes) {
    auto sockets = unix_socket_pair().value();
    const auto channel = unix_channel(std::move(sockets.first), "the fuzzer", kMax).value();
    {
      const auto writer = socket_stream(std::move(sockets.second), "the channel").value();
      ASSERT_TRUE(writer->write(std::as_bytes(std::span(bytes)), Deadline::never()).ok());
    }
    for (;;) {
      const auto frame = channel->receive(Deadline::never());
      if (!frame.ok()) break;
      ASSERT_TRUE(frame->has_value());
      ASSERT_LE((*frame)->bytes.size(), kMax);
    }
  });
}

}  // namespace
}  // namespace percheron
