#include "data/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/base/fault_file_system.h"

namespace percheron {
namespace {

using testing::HasSubstr;

// Puts a file together from a header's text and data bytes; `length` overrides the header's length.
void write_raw(FileSystem& files, const std::string& path, const std::string& header,
               const std::string& data, std::optional<uint64_t> length = std::nullopt) {
  const uint64_t size = length.value_or(header.size());
  std::string bytes(sizeof size, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  bytes += header + data;
  auto file = files.create(path);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->append(std::as_bytes(std::span(bytes))).ok());
}

struct BadFile {
  std::string header;
  size_t data_bytes;
  std::string complaint;
};

class SafetensorsRefuses : public testing::TestWithParam<BadFile> {};

TEST_P(SafetensorsRefuses, NamingTheFileAndTheFault) {
  FaultFileSystem files;
  write_raw(files, "bad.safetensors", GetParam().header, std::string(GetParam().data_bytes, 'x'));
  const auto file = SafetensorsFile::open(files, "bad.safetensors");
  ASSERT_FALSE(file.ok()) << GetParam().header;
  EXPECT_EQ(file.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(file.status().message(), HasSubstr("bad.safetensors"));
  EXPECT_THAT(file.status().message(), HasSubstr(GetParam().complaint));
}

INSTANTIATE_TEST_SUITE_P(
    All, SafetensorsRefuses,
    testing::Values(
        BadFile{"{", 0, "not JSON"}, BadFile{"[1]", 0, "not a JSON object"},
        BadFile{"{}", 4, "belong to none"}, BadFile{R"({"__metadata__":{"a":1}})", 0, "'a'"},
        BadFile{R"({"__metadata__":[]})", 0, "__metadata__"},
        BadFile{R"({"a":1})", 0, "needs dtype"}, BadFile{R"({"a":{"dtype":"F32"}})", 0, "needs"},
        BadFile{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "needs"},
        BadFile{R"({"a":{"dtype":"Q9","shape":[1],"data_offsets":[0,4]}})", 4, "'Q9'"},
        BadFile{R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "out of range"},
        BadFile{R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4, "out of range"},
        BadFile{R"({"a":{"dtype":"F32","shape":[1,1,1,1,1],"data_offsets":[0,4]}})", 4, "rank 5"},
        // The product is 2^64 elements, which wraps to 0.
        BadFile{R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
                "overflows"},
        BadFile{R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,0]}})", 0,
                "out of range"},
        BadFile{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "do not hold"},
        BadFile{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "do not hold"},
        BadFile{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", 4, "out of range"},
        BadFile{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4, "truncated"},
        BadFile{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "hole"},
        BadFile{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                    "b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                12, "inside the tensor before it"},
        BadFile{R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                    "a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                2, "'a' occurs twice"},
        BadFile{R"({"a":{"dtype":"U8","dtype":"F32","shape":[1],"data_offsets":[0,1]}})", 1,
                "occurs twice"},
        BadFile{R"({"a":{"b":{"c":{"d":{"e":1}}}}})", 0, "nested"}));

TEST(Safetensors, RefusesAHeaderLongerThanTheFile) {
  FaultFileSystem files;
  for (const uint64_t length : {uint64_t{3}, uint64_t{99'000'000}, uint64_t{100'000'001},
                                uint64_t{1} << 63, ~uint64_t{0}}) {
    write_raw(files, "bad.safetensors", "{}", "", length);
    const auto file = SafetensorsFile::open(files, "bad.safetensors");
    ASSERT_FALSE(file.ok()) << length;
    EXPECT_THAT(file.status().message(), HasSubstr(std::to_string(length)));
  }
}

TEST(Safetensors, RefusesFilesCutAnywhere) {
  FaultFileSystem files;
  const std::vector<float> values = {1, 2, 3, 4, 5};
  const NamedTensor tensors[] = {{"a", view_of(std::span<const float>(values))}};
  ASSERT_TRUE(write_safetensors(files, "whole", tensors, {{"k", "v"}}).ok());
  const std::string whole = files.read_text("whole").value();
  for (size_t size = 0; size < whole.size(); ++size) {
    auto cut = files.create("cut");
    ASSERT_TRUE((*cut)->append(std::as_bytes(std::span(whole.data(), size))).ok());
    EXPECT_FALSE(SafetensorsFile::open(files, "cut").ok()) << size;
  }
}

TEST(Safetensors, ReadsBackWhatItWrote) {
  FaultFileSystem files;
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::vector<uint8_t> bytes = {7, 8, 9};
  const std::vector<int64_t> longs = {-1, int64_t{1} << 40};
  const std::vector<int32_t> none;
  const NamedTensor tensors[] = {
      {"bytes", view_of(std::span<const uint8_t>(bytes))},
      {"values", ConstTensorView(values.data(), DType::kF32, {2, 3})},
      {"longs", view_of(std::span<const int64_t>(longs))},
      {"scalar", ConstTensorView(values.data(), DType::kF32, std::initializer_list<int64_t>{})},
      {"none", ConstTensorView(none.data(), DType::kI32, {0, 5})}};
  ASSERT_TRUE(write_safetensors(files, "t", tensors, {{"format", "pt"}, {"q", "\"\n"}}).ok());

  const auto file = SafetensorsFile::open(files, "t");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->metadata().at("q"), "\"\n");
  EXPECT_EQ(file->tensors().size(), 5u);
  const int64_t shape[] = {2, -1};
  const auto read = file->tensor("values", DType::kF32, shape);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->dim(1), 3);
  EXPECT_EQ(std::memcmp(read->data(), values.data(), 24), 0);
  EXPECT_EQ(file->tensor("longs")->as<int64_t>()[1], int64_t{1} << 40);
  EXPECT_EQ(file->tensor("bytes")->as<uint8_t>()[2], 9);
  EXPECT_EQ(file->tensor("scalar")->rank(), 0);
  EXPECT_EQ(file->tensor("none")->elements(), 0);
  for (const auto& [name, view] : file->tensors())
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data()) % dtype_bytes(view.dtype()), 0u) << name;
}

TEST(Safetensors, HeaderIsPaddedToEightBytes) {
  FaultFileSystem files;
  const std::vector<uint8_t> bytes = {7};
  for (int n = 0; n < 16; ++n) {
    const NamedTensor tensors[] = {{std::string(n, 'n'), view_of(std::span<const uint8_t>(bytes))}};
    ASSERT_TRUE(write_safetensors(files, "t", tensors, {}).ok());
    const std::string text = files.read_text("t").value();
    EXPECT_EQ(text.size() % 8, 1u);
    EXPECT_TRUE(SafetensorsFile::open(files, "t").ok());
  }
}

TEST(Safetensors, CopiesTensorsAtAddressesTheirTypeDoesNotAllow) {
  FaultFileSystem files;
  std::string data = "x";
  const float value = 2.5f;
  data.append(reinterpret_cast<const char*>(&value), sizeof value);
  write_raw(files, "t",
            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
            R"("b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})",
            data);
  const auto file = SafetensorsFile::open(files, "t");
  ASSERT_TRUE(file.ok()) << file.status().message();
  const auto copy = *file;  // The aligned copy lives as long as any SafetensorsFile of the file.
  EXPECT_EQ(reinterpret_cast<uintptr_t>(copy.tensor("b")->data()) % 4, 0u);
  EXPECT_EQ(copy.tensor("b")->as<float>()[0], 2.5f);
}

TEST(Safetensors, NamesTheTensorWhoseTypeOrShapeIsNotAsExpected) {
  FaultFileSystem files;
  const std::vector<float> values = {1, 2, 3};
  const NamedTensor tensors[] = {{"w", view_of(std::span<const float>(values))}};
  ASSERT_TRUE(write_safetensors(files, "t", tensors, {}).ok());
  const auto file = SafetensorsFile::open(files, "t");
  const int64_t four[] = {4}, three[] = {3}, matrix[] = {3, 1};
  EXPECT_THAT(file->tensor("w", DType::kF32, four).status().message(),
              testing::AllOf(HasSubstr("'w'"), HasSubstr("[3]"), HasSubstr("[4]")));
  EXPECT_FALSE(file->tensor("w", DType::kBf16, three).ok());
  EXPECT_FALSE(file->tensor("w", DType::kF32, matrix).ok());
  EXPECT_EQ(file->tensor("v").status().code(), StatusCode::kNotFound);
}

TEST(Safetensors, WriterRefusesNamesThatNoReaderTakes) {
  FaultFileSystem files;
  const std::vector<float> values = {1, 2, 3, 4};
  const ConstTensorView view(values.data(), DType::kF32, {2, 2});
  const NamedTensor twice[] = {{"w", view}, {"w", view}};
  const NamedTensor reserved[] = {{"__metadata__", view}};
  const NamedTensor strided[] = {{"w", view.columns(0, 1)}};
  const NamedTensor not_utf8[] = {{"\xff\xfe", view}};
  for (const auto& tensors :
       {std::span<const NamedTensor>(twice), {reserved}, {strided}, {not_utf8}})
    EXPECT_EQ(write_safetensors(files, "t", tensors, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(files.exists("t"));
}

TEST(Safetensors, AFullDiskLeavesNoFile) {
  FaultFileSystem files;
  const std::vector<float> values(100, 1.0f);
  const NamedTensor tensors[] = {{"w", view_of(std::span<const float>(values))}};
  files.fill_disk_after(200);
  EXPECT_EQ(write_safetensors(files, "t", tensors, {}).code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(files.exists("t"));
}

}  // namespace
}  // namespace percheron
