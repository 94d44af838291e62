#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "base/file_system.h"

namespace percheron {

/// Writes a shell script that a test runs in place of a Python interpreter.
inline std::string write_script(const std::string& name, const std::string& body) {
  const std::string path = testing::TempDir() + name;
  const Status status = write_text_atomically(system_files(), path, "#!/bin/sh\n" + body);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(chmod(path.c_str(), 0755), 0);
  return path;
}

}  // namespace percheron
