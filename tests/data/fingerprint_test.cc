#include "data/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace percheron {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

FingerprintParts parts() {
  return {{"tok", "tem", "src", "opt", 49152}, "weights", {2, 16, 29}, "theta 10000", 5, "vocab"};
}

TEST(Fingerprint, NamesTheFieldThatDiffersWithBothValues) {  // Model-Optimizer#2410
  const Fingerprint saved = make_fingerprint(parts());
  EXPECT_TRUE(compare_fingerprints(saved, "a", make_fingerprint(parts()), "b").ok());
  FingerprintParts other = parts();
  other.capture = {3, 17, 30};
  other.rope = "theta 1000000";
  const Status status =
      compare_fingerprints(saved, "the checkpoint c", make_fingerprint(other), "this run");
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("the checkpoint c has capture '2,16,29'"),
                    HasSubstr("this run has '3,17,30'"), HasSubstr("rope"), Not(HasSubstr("tok"))));
}

TEST(Fingerprint, EveryPartChangesTheDigest) {
  const std::string digest = make_fingerprint(parts()).digest();
  EXPECT_EQ(make_fingerprint(parts()).digest(), digest);
  std::vector<FingerprintParts> others(10, parts());
  others[0].passport.tokenizer_hash += "x";
  others[1].passport.template_hash += "x";
  others[2].passport.source_hash += "x";
  others[3].passport.options_hash += "x";
  others[4].passport.vocab_size += 1;
  others[5].target_hash += "x";
  others[6].capture.pop_back();
  others[7].rope += "x";
  others[8].mask_token = -1;
  others[9].draft_vocabulary_hash = "";
  for (size_t i = 0; i < others.size(); ++i)
    EXPECT_NE(make_fingerprint(others[i]).digest(), digest) << i;
}

TEST(Fingerprint, ReadsBackItsText) {
  Fingerprint fingerprint = make_fingerprint(parts());
  fingerprint.set("note", "a: b");
  const auto read = Fingerprint::parse(fingerprint.text(), "t");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, fingerprint);
  EXPECT_FALSE(Fingerprint::parse("a: b", "t").ok());  // no line end: cut off
  EXPECT_FALSE(Fingerprint::parse("a\n", "t").ok());
  EXPECT_FALSE(Fingerprint::parse("a: b\na: c\n", "t").ok());
}

TEST(Fingerprint, ReportsAFieldThatOnlyOneSideHas) {
  Fingerprint saved, current;
  current.set("new_field", "1");
  EXPECT_THAT(compare_fingerprints(saved, "a", current, "b").message(),
              HasSubstr("a has new_field nothing, but b has '1'"));
}

TEST(Fingerprint, NamesASettingBeforeTheHashesThatFollowFromIt) {
  Fingerprint saved, current;
  saved.set("source_hash", "1");
  saved.set("data.train", "2");
  current.set("source_hash", "3");
  current.set("data.train", "4");
  EXPECT_THAT(compare_fingerprints(saved, "a", current, "b").message(),
              HasSubstr("a has data.train '2', but b has '4'; these differ too: source_hash"));
}

TEST(Passport, ReadsBackItsJson) {
  const Passport passport = parts().passport;
  EXPECT_EQ(*parse_passport(passport_json(passport), "shard"), passport);
  EXPECT_FALSE(parse_passport("{", "shard").ok());
  EXPECT_FALSE(parse_passport("{}", "shard").ok());
}

}  // namespace
}  // namespace percheron
