#include "data/transport/certificates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/data/transport/cluster_fixture.h"

namespace percheron {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

Status init(const std::string& directory, int days = 1000) {
  return init_certificates(system_files(), directory, days, TestCluster::clock(),
                           system_random_bytes());
}

Status issue(const std::string& directory, const CertificateRequest& request) {
  return issue_certificate(system_files(), directory, request, TestCluster::clock());
}

int mode_of(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return static_cast<int>(info.st_mode & 0777);
}

TEST(Certificates, KeysAndSecretAreForTheirOwnerAlone) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(init(directory.path()).ok());
  ASSERT_TRUE(issue(directory.path(), {"node1", {}, 30}).ok());
  for (const char* name : {"/ca.key", "/cluster.secret", "/node1.key"}) {
    EXPECT_EQ(mode_of(directory.path() + name), 0600) << name;
  }
  EXPECT_NE(mode_of(directory.path() + "/ca.crt") & 0444, 0);
}

TEST(Certificates, NothingIsOverwritten) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(init(directory.path()).ok());
  ASSERT_TRUE(issue(directory.path(), {"node1", {}, 30}).ok());
  const std::string key = *system_files().read_text(directory.path() + "/node1.key");
  for (const Status& status : {init(directory.path()), issue(directory.path(), {"node1", {}, 9})}) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("is there already"));
    EXPECT_THAT(status.message(), HasSubstr(directory.path()));
  }
  EXPECT_EQ(*system_files().read_text(directory.path() + "/node1.key"), key);
  // One file of the pair is enough.
  std::filesystem::remove(directory.path() + "/node1.key");
  EXPECT_THAT(issue(directory.path(), {"node1", {}, 9}).message(), HasSubstr("node1.crt is there"));
  EXPECT_FALSE(system_files().exists(directory.path() + "/node1.key"));
}

TEST(Certificates, NothingIsLeftWhereOneCannotBeWritten) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(init(directory.path()).ok());
  // Nothing lies there, and no new file can be made: a link that leads nowhere.
  std::filesystem::create_symlink("nowhere/x", directory.path() + "/node1.crt");
  EXPECT_FALSE(issue(directory.path(), {"node1", {}, 9}).ok());
  EXPECT_FALSE(system_files().exists(directory.path() + "/node1.key"));
}

TEST(Certificates, AreForTheNameAndEveryAddress) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(init(directory.path()).ok());
  ASSERT_TRUE(
      issue(directory.path(), {"node1", {"node1.lab.example", "10.0.0.3", "::1", "node1"}, 30})
          .ok());
  const auto tls = TlsContext::load(system_files(),
                                    {directory.path() + "/ca.crt", directory.path() + "/node1.crt",
                                     directory.path() + "/node1.key"},
                                    TestCluster::clock());
  ASSERT_TRUE(tls.ok()) << tls.status().message();
  EXPECT_THAT((*tls)->names(),
              testing::ElementsAre("node1", "node1.lab.example", "10.0.0.3", "::1"));
}

TEST(Certificates, WhatCannotStandInOneIsRefused) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(init(directory.path()).ok());
  const std::string long_part(64, 'a');
  const std::vector<std::string> names = {"",   "a b",  "../x", "a,IP:1.2.3.4",
                                          "-a", "a..b", "a\n",  long_part};
  for (const std::string& name : names) {
    const Status status = issue(directory.path(), {name, {}, 30});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
  }
  const Status address = issue(directory.path(), {"node1", {"10.0.0.3/24"}, 30});
  EXPECT_THAT(address.message(), HasSubstr("'10.0.0.3/24' is neither an IP address nor"));
  for (const int days : {0, -1, 36501}) {
    EXPECT_THAT(issue(directory.path(), {"node1", {}, days}).message(), HasSubstr("1 to 36500"));
    EXPECT_THAT(init(directory.path() + "/other", days).message(), HasSubstr("1 to 36500"));
  }
  EXPECT_FALSE(system_files().exists(directory.path() + "/other"));
}

TEST(Certificates, WithoutAnAuthorityNoneAreIssued) {
  const TemporaryDirectory directory;
  const Status status = issue(directory.path(), {"node1", {}, 30});
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("percheron certs init"));
}

TEST(Certificates, AnAuthorityThatExpiredIssuesNone) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(init(directory.path(), 10).ok());
  const FakeClock later(kToday + 11 * kDay);
  const Status status =
      issue_certificate(system_files(), directory.path(), {"node1", {}, 30}, later);
  EXPECT_THAT(status.message(), HasSubstr("expired on 2030-01-11"));
}

TEST(Certificates, AnAuthorityWithAnotherKeyIssuesNone) {
  const TemporaryDirectory directory, other;
  ASSERT_TRUE(init(directory.path()).ok());
  ASSERT_TRUE(init(other.path()).ok());
  std::filesystem::copy_file(other.path() + "/ca.key", directory.path() + "/ca.key",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(issue(directory.path(), {"node1", {}, 30}).message(),
              HasSubstr("ca.key does not belong to"));
}

// Peers would refuse it a day later, and nobody would know why.
TEST(Certificates, NoneOutlivesItsAuthority) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(init(directory.path(), 10).ok());
  ASSERT_TRUE(issue(directory.path(), {"node1", {}, 300}).ok());
  const TlsFiles files = {directory.path() + "/ca.crt", directory.path() + "/node1.crt",
                          directory.path() + "/node1.key"};
  const auto load = [&](double days) {
    const FakeClock clock(kToday + days * kDay);
    return TlsContext::load(system_files(), files, clock).status().message();
  };
  EXPECT_THAT(load(9.9), IsEmpty());
  EXPECT_THAT(load(10.1), HasSubstr("expired on 2030-01-11"));
}

TEST(ClusterSecret, IsMadeLongEnough) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(init(directory.path()).ok());
  EXPECT_TRUE(ClusterSecret::read(system_files(), directory.path() + "/cluster.secret").ok());
  EXPECT_EQ(system_files().read_text(directory.path() + "/cluster.secret")->size(), 65u);
}

TEST(ClusterSecret, IsRefusedWhenShortAndNeverShown) {
  const std::vector<std::string> texts = {"", "  hunter2hunter2\n", std::string(31, 'x')};
  for (const std::string& text : texts) {
    const auto secret = ClusterSecret::parse(text, "a.secret");
    EXPECT_EQ(secret.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(secret.status().message(), HasSubstr("a.secret"));
    EXPECT_THAT(secret.status().message(), testing::Not(HasSubstr("hunter2")));
  }
}

// RFC 4231, test case 2, has too short a key; this is case 6's, of 131 times 0xaa.
TEST(ClusterSecret, AuthenticatesAsRfc4231Says) {
  const auto secret = ClusterSecret::parse(std::string(131, '\xaa'), "RFC 4231").value();
  constexpr std::string_view kMessage = "Test Using Larger Than Block-Size Key - Hash Key First";
  const ClusterSecret::Digest digest = secret.authenticate(kMessage);
  EXPECT_EQ(static_cast<int>(digest[0]), 0x60);
  EXPECT_EQ(static_cast<int>(digest[1]), 0xe4);
  EXPECT_EQ(static_cast<int>(digest[31]), 0x54);
  const std::string_view text(reinterpret_cast<const char*>(digest.data()), digest.size());
  EXPECT_TRUE(secret.verify(kMessage, text));
  EXPECT_FALSE(secret.verify("another message", text));
  EXPECT_FALSE(secret.verify(kMessage, text.substr(0, 31)));
  EXPECT_FALSE(secret.verify(kMessage, ""));
}

TEST(Uuid, IsRandomAndOfVersion4) {
  const std::string first = make_uuid(system_random_bytes());
  const std::string second = make_uuid(system_random_bytes());
  EXPECT_TRUE(is_uuid(first)) << first;
  EXPECT_EQ(first[14], '4');
  EXPECT_NE(first, second);
  const std::vector<std::string> others = {"", first + "0", std::string(36, '-'),
                                           std::string(36, '0'), "A" + first.substr(1)};
  for (const std::string& text : others) {
    EXPECT_FALSE(is_uuid(text)) << text;
  }
}

}  // namespace
}  // namespace percheron
