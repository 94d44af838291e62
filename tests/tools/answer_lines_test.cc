#include "tools/answer_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace percheron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(AnswerLines, ARequestIsReadWhole) {
  const auto request =
      parse_request(R"({"id": 7, "sample_key": 9223372036854775807, "prompt": [5, 0, 49151]})");
  ASSERT_TRUE(request.ok()) << request.status().message();
  EXPECT_EQ(request->id, 7u);
  EXPECT_EQ(request->sample_key, 9223372036854775807u);
  EXPECT_THAT(request->prompt, ElementsAre(5, 0, 49151));
}

TEST(AnswerLines, ALineThatIsNoRequestIsAnErrorThatSaysWhy) {
  const auto error = [](const std::string& line) {
    const auto request = parse_request(line);
    return request.ok() ? "" : request.status().message();
  };
  EXPECT_THAT(error("x"), HasSubstr("a prompt's line"));
  EXPECT_THAT(error("[]"), HasSubstr("id"));
  EXPECT_THAT(error(R"({"id": -1, "sample_key": 0, "prompt": []})"), HasSubstr("id is -1"));
  EXPECT_THAT(error(R"({"id": 1, "prompt": []})"), HasSubstr("sample_key"));
  EXPECT_THAT(error(R"({"id": 1, "sample_key": 0, "prompt": "x"})"), HasSubstr("prompt"));
  EXPECT_THAT(error(R"({"id": 1, "sample_key": 0, "prompt": [2147483648]})"),
              HasSubstr("token 2147483648"));
}

TEST(AnswerLines, AnswersAreOneLineEach) {
  EXPECT_EQ(ready_line("abc", 512, 64),
            "{\"ready\":true,\"weights_hash\":\"abc\",\"context_max\":512,\"capacity\":64}\n");
  EXPECT_EQ(answer_line(7, {{8, 2}, true}), "{\"id\":7,\"tokens\":[8,2],\"stopped\":true}\n");
  EXPECT_EQ(refusal_line(7, resource_exhausted("x")),
            "{\"id\":7,\"refused\":\"prompt_too_long\",\"detail\":\"x\"}\n");
  EXPECT_THAT(refusal_line(7, invalid_argument("x")), HasSubstr("prompt_not_answerable"));
  EXPECT_EQ(error_line(not_found("a\n\xff")), "{\"error\":\"a\\n\xEF\xBF\xBD\"}\n");
}

}  // namespace
}  // namespace percheron
