#include "kernels/cuda/plugin/nccl_library.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace percheron::cuda {
namespace {

// The real library, which gives ids and texts without a GPU. Where it is missing, one line says so.
TEST(NcclLibrary, OpensAndGivesIdsOrSaysWhatIsMissing) {
  const auto nccl = open_nccl();
  if (!nccl.ok()) {
    EXPECT_EQ(nccl.status().code(), StatusCode::kNotFound);
    EXPECT_THAT(nccl.status().message(), testing::HasSubstr("libnccl.so.2"));
    EXPECT_EQ(nccl.status().message().find('\n'), std::string::npos);
    GTEST_SKIP() << nccl.status().message();
  }
  NcclId first{}, second{};
  ASSERT_EQ((*nccl)->get_unique_id(&first), NcclCode::kSuccess);
  ASSERT_EQ((*nccl)->get_unique_id(&second), NcclCode::kSuccess);
  EXPECT_NE(first, second);
  EXPECT_THAT((*nccl)->error_text(NcclCode{2}, nullptr), testing::HasSubstr("unhandled system"));
  EXPECT_EQ((*nccl)->group_start(), NcclCode::kSuccess);
  EXPECT_EQ((*nccl)->group_end(), NcclCode::kSuccess);
  // A GPU that is not there is an error of the call, and no crash.
  NcclComm comm = nullptr;
  EXPECT_THAT((*nccl)->comm_init_rank_config(&comm, {DeviceKind::kCuda, 77}, 1, first, 0),
              testing::AllOf(testing::Ne(NcclCode::kSuccess), testing::Ne(NcclCode::kInProgress)));
}

}  // namespace
}  // namespace percheron::cuda
