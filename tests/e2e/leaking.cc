// What service_soak.py must find: preloaded into a daemon, every process that it starts leaves a
// descriptor, a thread and a MiB of memory behind in it.

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>

namespace {

constexpr size_t kLeakedBytes = size_t{1} << 20;

}  // namespace

extern "C" int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                           const posix_spawnattr_t* attributes, char* const argv[],
                           char* const envp[]) {
  static const auto real =
      reinterpret_cast<decltype(&posix_spawn)>(dlsym(RTLD_NEXT, "posix_spawn"));
  static_cast<void>(open("/dev/null", O_RDONLY | O_CLOEXEC));
  static char* volatile last = nullptr;
  last = new char[kLeakedBytes];
  std::memset(last, 1, kLeakedBytes);  // Memory counts once it is touched.
  std::thread([] { std::this_thread::sleep_for(std::chrono::hours(1)); }).detach();
  return real(pid, path, actions, attributes, argv, envp);
}
