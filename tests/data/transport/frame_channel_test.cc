#include "data/transport/frame_channel.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <thread>

#include "data/transport/shared_region.h"
#include "tests/data/transport/cluster_fixture.h"

namespace percheron {
namespace {

using testing::HasSubstr;

constexpr size_t kMax = 1000;

struct Kind {
  std::string name;
  bool carries_descriptors;
  std::function<ChannelPair()> make;
};

ChannelPair unix_pair(size_t bytes_max) {
  auto sockets = unix_socket_pair().value();
  return {unix_channel(std::move(sockets.first), "the worker", bytes_max).value(),
          unix_channel(std::move(sockets.second), "the daemon", bytes_max).value()};
}

ChannelPair stream_pair(size_t bytes_max) {
  auto sockets = unix_socket_pair().value();
  return {stream_channel(socket_stream(std::move(sockets.first), "a peer").value(), bytes_max),
          stream_channel(socket_stream(std::move(sockets.second), "a peer").value(), bytes_max)};
}

class FrameChannelTest : public testing::TestWithParam<Kind> {
 protected:
  FrameChannelTest() : ends_(GetParam().make()) {}

  FrameChannel& here() { return *ends_.first; }
  FrameChannel& there() { return *ends_.second; }
  void drop_there() { ends_.second.reset(); }

 private:
  ChannelPair ends_;
};

std::string received(FrameChannel& channel) {
  auto frame = channel.receive(soon());
  if (!frame.ok()) return frame.status().message();
  return frame->has_value() ? (*frame)->bytes : "nothing";
}

TEST_P(FrameChannelTest, FramesArriveWholeAndInOrder) {
  const std::string longest(kMax, 'x');
  for (const std::string& text : {std::string("first"), std::string(), longest}) {
    ASSERT_TRUE(here().send(text, soon()).ok());
  }
  ASSERT_TRUE(there().send("back", soon()).ok());
  EXPECT_EQ(received(there()), "first");
  EXPECT_EQ(received(there()), "");
  EXPECT_EQ(received(there()), longest);
  EXPECT_EQ(received(here()), "back");
}

TEST_P(FrameChannelTest, NothingComesBeforeTheDeadline) {
  auto frame = here().receive(Deadline::now());
  ASSERT_TRUE(frame.ok());
  EXPECT_FALSE(frame->has_value());
  ASSERT_TRUE(there().send("late", soon()).ok());
  EXPECT_EQ(received(here()), "late");
}

TEST_P(FrameChannelTest, AFrameThatIsTooLongIsNotSent) {
  const Status status = here().send(std::string(kMax + 1, 'x'), soon());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("1001 bytes"));
  ASSERT_TRUE(here().send("next", soon()).ok());
  EXPECT_EQ(received(there()), "next");
}

TEST_P(FrameChannelTest, CloseWakesBothEnds) {
  std::thread waits_here([&] {
    EXPECT_EQ(here().receive(Deadline::never()).status().code(), StatusCode::kCancelled);
  });
  std::thread waits_there([&] {
    EXPECT_EQ(there().receive(Deadline::never()).status().code(), StatusCode::kUnavailable);
  });
  here().close();
  waits_here.join();
  waits_there.join();
  EXPECT_EQ(here().send("x", soon()).code(), StatusCode::kCancelled);
  EXPECT_FALSE(there().send("x", soon()).ok() && there().send("x", soon()).ok());
}

TEST_P(FrameChannelTest, WhatWasSentBeforeTheEndStillArrives) {
  ASSERT_TRUE(there().send("last words", soon()).ok());
  drop_there();
  EXPECT_EQ(received(here()), "last words");
  EXPECT_EQ(here().receive(soon()).status().code(), StatusCode::kUnavailable);
}

TEST_P(FrameChannelTest, APeerThatReadsNothingHoldsNobodyUp) {
  const std::string text(kMax, 'x');
  Status status;
  for (int i = 0; i < 1'000'000 && status.ok(); ++i) status = here().send(text, Deadline::now());
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("took no bytes in time"));
}

TEST_P(FrameChannelTest, ManySendersDoNotMixTheirFrames) {
  std::vector<std::thread> senders;
  for (char letter = 'a'; letter < 'e'; ++letter) {
    senders.emplace_back([&, letter] {
      for (size_t i = 0; i < 100; ++i)
        ASSERT_TRUE(here().send(std::string(1 + (i * 37) % kMax, letter), soon()).ok());
    });
  }
  for (int i = 0; i < 400; ++i) {
    const std::string text = received(there());
    ASSERT_FALSE(text.empty());
    ASSERT_EQ(text.find_first_not_of(text[0]), text.npos);
  }
  for (std::thread& sender : senders) sender.join();
}

TEST_P(FrameChannelTest, ADescriptorArrivesWithItsFrameOrIsRefused) {
  auto region = SharedRegion::create("test", 4096, SharedRegion::Backing::kOnDemand);
  region->writable_bytes()[9] = std::byte{9};
  const Status sent = here().send("with", soon(), &region->fd());
  if (!GetParam().carries_descriptors) {
    EXPECT_EQ(sent.code(), StatusCode::kInvalidArgument);
    return;
  }
  ASSERT_TRUE(sent.ok()) << sent.message();
  ASSERT_TRUE(here().send("without", soon()).ok());
  auto with = there().receive(soon());
  ASSERT_TRUE(with.ok() && with->has_value());
  ASSERT_TRUE((*with)->fd.valid());
  auto mapped = SharedRegion::map(std::move((*with)->fd), 4096, SharedRegion::Access::kRead);
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  EXPECT_EQ(mapped->bytes()[9], std::byte{9});
  auto without = there().receive(soon());
  ASSERT_TRUE(without.ok() && without->has_value());
  EXPECT_FALSE((*without)->fd.valid());
}

INSTANTIATE_TEST_SUITE_P(Every, FrameChannelTest,
                         testing::Values(Kind{"Unix", true, [] { return unix_pair(kMax); }},
                                         Kind{"Stream", false, [] { return stream_pair(kMax); }},
                                         Kind{"Memory", true,
                                              [] { return memory_channel_pair(kMax); }}),
                         [](const auto& info) { return info.param.name; });

// One end a channel, the other a bare socket.
struct HalfOpen {
  explicit HalfOpen(bool is_unix) {
    auto sockets = unix_socket_pair().value();
    bare = std::move(sockets.second);
    channel =
        is_unix ? unix_channel(std::move(sockets.first), "the peer", kMax).value()
                : stream_channel(socket_stream(std::move(sockets.first), "the peer").value(), kMax);
  }
  void write(std::string_view bytes) const {
    ASSERT_EQ(::write(bare.get(), bytes.data(), bytes.size()), ssize_t(bytes.size()));
  }
  std::unique_ptr<FrameChannel> channel;
  FileDescriptor bare;
};

TEST(FrameChannel, AnOversizedLengthIsAnErrorBeforeAnyByteOfItsFrame) {
  for (const bool is_unix : {false, true}) {
    const HalfOpen half(is_unix);
    half.write(is_unix ? std::string_view("\xff\xff\xff\xff\0", 5)
                       : std::string_view("\xff\xff\xff\xff", 4));
    const auto frame = half.channel->receive(soon());
    EXPECT_EQ(frame.status().code(), StatusCode::kDataLoss);
    EXPECT_THAT(frame.status().message(), HasSubstr("4294967295 bytes; the limit is 1000"));
  }
}

TEST(FrameChannel, AFrameMayComeByteByByteBetweenDeadlines) {
  for (const bool is_unix : {false, true}) {
    const HalfOpen half(is_unix);
    const std::string bytes =
        is_unix ? std::string("\x03\0\0\0\0abc", 8) : std::string("\x03\0\0\0abc", 7);
    for (size_t i = 0; i < bytes.size(); ++i) {
      auto none = half.channel->receive(Deadline::now());
      ASSERT_TRUE(none.ok() && !none->has_value());
      half.write(std::string_view(bytes).substr(i, 1));
    }
    EXPECT_EQ(received(*half.channel), "abc");
  }
}

TEST(FrameChannel, AFrameThatBreaksOffIsAnError) {
  for (const bool is_unix : {false, true}) {
    HalfOpen half(is_unix);
    half.write(std::string_view("\x09\0\0\0\0abc", 8));
    half.bare.reset();
    EXPECT_EQ(half.channel->receive(soon()).status().code(), StatusCode::kUnavailable);
  }
}

TEST(UnixChannel, ADescriptorThatIsAnnouncedAndMissingIsAnError) {
  const HalfOpen half(true);
  half.write(std::string_view("\x01\0\0\0\x01z", 6));
  const auto frame = half.channel->receive(soon());
  EXPECT_EQ(frame.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(frame.status().message(), HasSubstr("announces 1 file descriptors"));
}

// A sender that passes descriptors nobody asked for must not fill our table.
TEST(UnixChannel, TooManyDescriptorsAreAnErrorAndAreClosed) {
  const HalfOpen half(true);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  FileDescriptor reader(ends[0]), writer(ends[1]);
  char header[] = "\x01\0\0\0\x01z";
  iovec part = {header, 6};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(3 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(3 * sizeof(int));
  const int fds[3] = {writer.get(), writer.get(), writer.get()};
  std::memcpy(CMSG_DATA(rights), fds, sizeof fds);
  ASSERT_EQ(::sendmsg(half.bare.get(), &message, 0), 6);
  EXPECT_EQ(half.channel->receive(soon()).status().code(), StatusCode::kDataLoss);
  half.channel->close();
  const_cast<HalfOpen&>(half).channel.reset();
  writer.reset();
  // With every copy closed the pipe has ended.
  char byte;
  EXPECT_EQ(::read(reader.get(), &byte, 1), 0);
}

TEST(UnixSocketPair, IsClosedOnExec) {
  const auto sockets = unix_socket_pair();
  ASSERT_TRUE(sockets.ok());
  EXPECT_NE(::fcntl(sockets->first.get(), F_GETFD) & FD_CLOEXEC, 0);
}

}  // namespace
}  // namespace percheron
