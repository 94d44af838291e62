#include <thread>

#include "gtest/gtest.h"
#include "kernels/rendezvous.h"

namespace percheron {
namespace {

using std::chrono_literals::operator""ms;

class DirectoryRendezvous : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(system_files().remove_all(directory_).ok()); }
  void TearDown() override { EXPECT_TRUE(system_files().remove_all(directory_).ok()); }

  std::shared_ptr<RendezvousStore> open() {
    return make_directory_rendezvous(system_files(), directory_);
  }

  const std::string directory_ = testing::TempDir() + "percheron_rendezvous/below";
};

TEST_F(DirectoryRendezvous, GivesAnotherStoreTheBytes) {
  const std::string value("a\0\n\xff", 4);
  ASSERT_TRUE(open()->set("membership-1.rank-0", value).ok());
  const auto got = open()->get("membership-1.rank-0", 0ms);
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(*got, value);
}

TEST_F(DirectoryRendezvous, WaitsForAValueThatComes) {
  Result<std::string> got = std::string();
  std::thread waiting([&] { got = open()->get("key", 60'000ms); });
  EXPECT_TRUE(open()->set("key", "value").ok());
  waiting.join();
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(*got, "value");
}

TEST_F(DirectoryRendezvous, NamesTheKeyThatDoesNotCome) {
  const auto got = open()->get("key", 20ms);
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(got.status().message().find("nobody set rendezvous key 'key' within 20 ms in "),
            std::string::npos)
      << got.status().message();
}

TEST_F(DirectoryRendezvous, KeepsTheFirstValue) {
  const auto store = open();
  ASSERT_TRUE(store->set("key", "first").ok());
  EXPECT_EQ(store->set("key", "second").code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(*store->get("key", 0ms), "first");
}

TEST_F(DirectoryRendezvous, RefusesKeysThatLeaveTheDirectory) {
  const auto store = open();
  for (const std::string key : {"", ".", "..", "../key", "a/b", "a b"}) {
    EXPECT_EQ(store->set(key, "value").code(), StatusCode::kInvalidArgument) << key;
    EXPECT_EQ(store->get(key, 0ms).status().code(), StatusCode::kInvalidArgument) << key;
  }
}

}  // namespace
}  // namespace percheron
