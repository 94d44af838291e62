// Groups of real processes, one of which is killed or stopped.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>

#include "base/file_system.h"
#include "tests/kernels/collective_values.h"
#include "tests/test_seed.h"

namespace percheron {
namespace {

using Clock = std::chrono::steady_clock;

int64_t ms_since(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin).count();
}

/// The program collective_member, killed at the end of its life here.
class MemberProcess {
 public:
  MemberProcess(const std::string& directory, int self, int64_t limit_ms) {
    std::array<int, 2> to{}, from{};
    PERCHERON_CHECK(pipe2(to.data(), O_CLOEXEC) == 0 && pipe2(from.data(), O_CLOEXEC) == 0, "pipe");
    const std::string number = std::to_string(self), limit = std::to_string(limit_ms);
    process_ = fork();
    if (process_ == 0) {
      dup2(to[0], STDIN_FILENO);
      dup2(from[1], STDOUT_FILENO);
      execl(PERCHERON_COLLECTIVE_MEMBER, "collective_member", directory.c_str(), number.c_str(),
            limit.c_str(), nullptr);
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    in_ = fdopen(from[0], "r");
    out_ = fdopen(to[1], "w");
  }
  ~MemberProcess() {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    std::fclose(in_);
    std::fclose(out_);
  }
  MemberProcess(const MemberProcess&) = delete;
  MemberProcess& operator=(const MemberProcess&) = delete;

  void tell(const std::string& line) {
    std::fputs((line + "\n").c_str(), out_);
    std::fflush(out_);
  }
  /// The next answer; empty when the process is gone.
  std::string answer() {
    std::string line;
    for (int c = std::fgetc(in_); c != EOF && c != '\n'; c = std::fgetc(in_)) {
      line += static_cast<char>(c);
    }
    return line;
  }
  void raise(int signal) { kill(process_, signal); }
  void wait_stopped() {
    int status = 0;
    ASSERT_EQ(waitpid(process_, &status, WUNTRACED), process_);
    ASSERT_TRUE(WIFSTOPPED(status));
  }

 private:
  pid_t process_ = 0;
  std::FILE* in_ = nullptr;
  std::FILE* out_ = nullptr;
};

class GlooProcesses : public testing::Test {
 protected:
  using Members = std::vector<std::unique_ptr<MemberProcess>>;

  void SetUp() override {
    std::signal(SIGPIPE, SIG_IGN);  // A line for a member that died.
    directory_ = testing::TempDir() + "percheron_gloo_" + std::to_string(getpid());
    ASSERT_TRUE(system_files().remove_all(directory_).ok());
  }
  void TearDown() override { EXPECT_TRUE(system_files().remove_all(directory_).ok()); }

  std::unique_ptr<MemberProcess> start(int self, int64_t limit_ms) {
    return std::make_unique<MemberProcess>(directory_, self, limit_ms);
  }
  /// Processes 0, 1, ... joined in the next membership.
  Members start_group(int size, int64_t limit_ms) {
    Members members;
    for (int self = 0; self < size; ++self) members.push_back(start(self, limit_ms));
    join(members);
    return members;
  }
  void join(Members& members) {
    std::string line = "join " + std::to_string(++membership_);
    for (size_t self = 0; self < members.size(); ++self) line += " " + std::to_string(self);
    for (const auto& member : members) member->tell(line);
    for (size_t self = 0; self < members.size(); ++self) {
      EXPECT_EQ(members[self]->answer(),
                "ok " + std::to_string(self) + " " + std::to_string(members.size()));
    }
  }
  template <class T>
  void expect_sum_as_in_one_process(Members& members, size_t count, uint64_t seed) {
    const char* const type = sizeof(T) == 4 ? "f32 " : "f64 ";
    for (const auto& member : members) {
      member->tell(type + std::to_string(count) + " " + std::to_string(seed));
    }
    const int size = static_cast<int>(members.size());
    const std::string expected = hash_of(sum_in_one_process<T>(size, count, seed));
    for (const auto& member : members) {
      EXPECT_EQ(member->answer(), "ok " + expected) << type << count;
    }
  }

  std::string directory_;
  int64_t membership_ = 0;
};

TEST_F(GlooProcesses, SumToTheBitsOfAGroupInOneProcessInEveryRun) {
  for (const int size : {1, 2, 3, 4}) {
    Members members = start_group(size, 60'000);
    for (int run = 0; run < 2; ++run) {
      for (const size_t count : {0, 1, 2, 7, 1001, 3'000'001}) {
        expect_sum_as_in_one_process<float>(members, count, count + 1);
        expect_sum_as_in_one_process<double>(members, count, count + 2);
      }
      join(members);
    }
  }
}

TEST_F(GlooProcesses, Sum64Megabytes) {
  Members members = start_group(3, 60'000);
  expect_sum_as_in_one_process<float>(members, size_t{16} << 20, 5);
}

TEST_F(GlooProcesses, BroadcastRankZero) {
  Members members = start_group(3, 60'000);
  for (const size_t count : {0, 1, 3'000'001}) {
    for (const auto& member : members) member->tell("broadcast " + std::to_string(count) + " 9");
    const std::string expected = hash_of(terms_of<float>(0, count, 9));
    for (const auto& member : members) EXPECT_EQ(member->answer(), "ok " + expected);
  }
}

// At moments all over a sum of one segment, so also while its one message is half sent.
TEST_F(GlooProcesses, AKilledMemberEndsTheOthersLongBeforeTheLimit) {
  const int64_t limit_ms = 60'000;
  const TestSeed seed(4);
  Random random(seed.value());
  Members members = start_group(3, limit_ms);
  int64_t longest_ms = 0, longest_join_ms = 0;
  for (int round = 0; round < 30; ++round) {
    const std::string work = "f32 1000000 1";
    for (const auto& member : members) member->tell(work);
    // No wait for anything: it only picks the moment.
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(40'000)));
    members[2]->raise(SIGKILL);
    const auto begin = Clock::now();
    members.pop_back();
    // What was left of the sum may have come through to both, or one; the next can't.
    for (const auto& member : members) member->answer();
    for (const auto& member : members) member->tell(work);
    for (const auto& member : members) {
      const std::string answer = member->answer();
      EXPECT_EQ(answer.substr(0, 18), "error unavailable:") << answer;
    }
    longest_ms = std::max(longest_ms, ms_since(begin));
    const auto begin_join = Clock::now();
    join(members);
    longest_join_ms = std::max(longest_join_ms, ms_since(begin_join));
    expect_sum_as_in_one_process<float>(members, 1001, 2);
    members.push_back(start(2, limit_ms));
    join(members);
  }
  EXPECT_LT(longest_ms, limit_ms / 4);
  std::printf("a death was seen within %lld ms, the others stood again within %lld ms\n",
              static_cast<long long>(longest_ms), static_cast<long long>(longest_join_ms));
}

TEST_F(GlooProcesses, AStoppedMemberEndsTheOthersAtTheLimitAndItselfWhenItGoesOn) {
  Members members = start_group(3, 1000);
  members[1]->raise(SIGSTOP);
  members[1]->wait_stopped();
  const auto begin = Clock::now();
  for (const auto& member : members) member->tell("f32 1000000 1");
  for (const size_t self : {0, 2}) {
    const std::string answer = members[self]->answer();
    EXPECT_EQ(answer.substr(0, 18), "error unavailable:") << answer;
  }
  EXPECT_GE(ms_since(begin), 900);
  EXPECT_LT(ms_since(begin), 20'000);
  members[1]->raise(SIGCONT);
  EXPECT_EQ(members[1]->answer().substr(0, 18), "error unavailable:");
  join(members);
  expect_sum_as_in_one_process<double>(members, 1001, 3);
}

}  // namespace
}  // namespace percheron
