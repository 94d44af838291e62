#include "actors/node/linked_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <future>
#include <string>

#include "base/file_system.h"
#include "data/transport/frame_channel.h"

namespace percheron {
namespace {

// Some libraries leave theirs open on exec.
TEST(LinkedProcess, HasNoDescriptorsOfItsParent) {
  const FileDescriptor leaked(::fcntl(STDERR_FILENO, F_DUPFD, 10));
  ASSERT_TRUE(leaked.valid());
  const std::string log = testing::TempDir() + "linked_process.log";
  ASSERT_TRUE(system_files().remove_all(log).ok());
  std::promise<bool> ended;
  // The shell itself expands the names, so that no descriptor of another program is among them.
  auto child = LinkedProcess::start({"/bin/sh", {"sh", "-c", "cd /proc/$$/fd && echo *"}, log},
                                    unix_socket_pair().value().first,
                                    [&](bool well, const std::string&) { ended.set_value(well); });
  ASSERT_TRUE(child.ok()) << child.status().message();
  EXPECT_TRUE(ended.get_future().get());
  const std::string open = system_files().read_text(log).value();
  // While it reads the directory, that is open as well, at the first free number.
  EXPECT_TRUE(open == "0 1 2 3\n" || open == "0 1 2 3 4\n") << open;
}

}  // namespace
}  // namespace percheron
