#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/file_system.h"
#include "tests/tidy/tidy_rules.h"

namespace percheron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::array<std::string_view, 9> kFolders = {"base",   "proto", "kernels", "data", "model",
                                                      "actors", "tools", "tests",   "bench"};
constexpr std::array<std::string_view, 6> kExtensions = {".h",   ".cc", ".cu",
                                                         ".cuh", ".py", ".proto"};

// The project's sources; the test runs at the repository's root.
std::vector<SourceFile> source_files() {
  std::vector<SourceFile> files;
  for (const std::string_view folder : kFolders) {
    if (!std::filesystem::exists(folder)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      const std::string extension = entry.path().extension();
      if (std::ranges::find(kExtensions, extension) == kExtensions.end()) continue;
      const std::string path = entry.path().generic_string();
      files.push_back({path, system_files().read_text(path).value()});
    }
  }
  return files;
}

std::string many_lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "  call();\n";
  return text;
}

std::vector<std::string> problems_of(const std::string& path, const std::string& text) {
  std::vector<std::string> problems = include_problems({path, text});
  for (std::string& problem : shape_problems({path, text})) problems.push_back(std::move(problem));
  return problems;
}

TEST(Tidy, TheTreeFollowsEveryRule) {
  const std::vector<SourceFile> files = source_files();
  ASSERT_GT(files.size(), 20u) << "run this from the repository's root";
  for (const SourceFile& file : files) {
    for (const std::string& problem : problems_of(file.path, file.text)) ADD_FAILURE() << problem;
  }
}

TEST(Tidy, AnUpwardIncludeIsFound) {
  EXPECT_THAT(problems_of("base/a.cc", "#include \"model/b.h\"\n"),
              ElementsAre("base/a.cc:1: includes model/b.h, which lies above it"));
  EXPECT_THAT(problems_of("tests/data/a_test.cc", "\n#include \"model/b.h\"\n"),
              ElementsAre(HasSubstr(":2: includes model/b.h")));
  EXPECT_THAT(problems_of("tests/e2e/a_test.cc", "#include \"tools/b.h\"\n"), IsEmpty());
  EXPECT_THAT(problems_of("model/a.cc", "#include \"model/b.h\"\n#include \"base/c.h\"\n"),
              IsEmpty());
}

TEST(Tidy, AForeignHeaderOutsideItsFolderIsFound) {
  for (const char* header :
       {"<caf/all.hpp>", "<oneapi/dnnl/dnnl.hpp>", "<omp.h>", "<google/protobuf/message.h>",
        "\"proto/run.pb.h\"", "<CLI/CLI.hpp>", "<yaml-cpp/yaml.h>", "<cuda_runtime.h>",
        "\"tests/base/fault_file_system.h\""}) {
    EXPECT_THAT(problems_of("model/a.cc", "#include " + std::string(header) + "\n"),
                ElementsAre(HasSubstr("may not include")))
        << header;
  }
  EXPECT_THAT(problems_of("actors/a.cc", "#include \"kernels/ops.h\"\n"),
              ElementsAre("actors/a.cc:1: may not include kernels/ops.h"));
  EXPECT_THAT(problems_of("actors/a.cc", "#include <caf/all.hpp>\n#include \"proto/run.pb.h\"\n"),
              IsEmpty());
  EXPECT_THAT(problems_of("kernels/a.cc", "  #pragma omp parallel\n"),
              ElementsAre(HasSubstr("OpenMP")));
  EXPECT_THAT(problems_of("base/a.cc", "#include \"status.h\"\n"), ElementsAre(HasSubstr("root")));
}

TEST(Tidy, AFileThatIsTooLongOrUnguardedIsFound) {
  std::string lines(501, '\n');
  EXPECT_THAT(problems_of("tools/a.py", lines),
              ElementsAre("tools/a.py: 501 lines, the limit is 500"));
  lines.pop_back();
  EXPECT_THAT(problems_of("tools/a.py", lines), IsEmpty());
  EXPECT_THAT(problems_of("base/a.h", "int a;\n"), ElementsAre("base/a.h: lacks #pragma once"));
  EXPECT_THAT(problems_of("tools/utils/a.py", ""), ElementsAre(HasSubstr("utils")));
}

TEST(Tidy, UnfinishedWorkIsFound) {
  const std::string mark = std::string("TO") + "DO";
  EXPECT_THAT(problems_of("base/a.cc", "\n// " + mark + ": later\n"),
              ElementsAre("base/a.cc:2: unfinished: " + mark));
  EXPECT_THAT(problems_of("base/a.cc", "mkstemp(\"percheron_XXXXXX\");\n"), IsEmpty());
}

TEST(Tidy, ALongFunctionIsFoundWhateverItsForm) {
  for (const char* opening :
       {"void f() {\n", "namespace a {\nclass B final : public C {\n  int f() const override {\n",
        "template <class T, class U = std::vector<T>>\nstd::vector<T> f(int a = 3) noexcept {\n",
        "A::A() : a_(1), b_{2} {\n", "B& B::operator=(const B& b) {\n", "TEST(A, B) {\n",
        "extern \"C\" {\nvoid f() {\n"}) {
    EXPECT_THAT(problems_of("base/a.cc", opening + many_lines(69) + "}\n"),
                ElementsAre(HasSubstr("function of 71 lines")))
        << opening;
    EXPECT_THAT(problems_of("base/a.cc", opening + many_lines(68) + "}\n"), IsEmpty()) << opening;
  }
}

TEST(Tidy, WhatOnlyLooksLikeALongFunctionIsNot) {
  for (const char* opening :
       {"class A {\n", "struct alignas(64) A {\n", "enum class A : int {\n", "namespace a::b {\n",
        "const std::vector<int> kTable = {\n", "const auto kTable = make(1, {\n",
        "template <class T>\nclass A : public B<T> {\n", "// void f() {\n", "#define F() {\n",
        "/* void f() {\n*/ ", "const char* kText = R\"(void f() {\n)\";", "char c = '{';\n",
        "const char* kText = \"{\";\n", "constexpr int kMany = 1'000'000;\n"}) {
    EXPECT_THAT(problems_of("base/a.cc", opening + many_lines(80) + "}\n"), IsEmpty()) << opening;
  }
}

}  // namespace
}  // namespace percheron
