// What keys do in `percheron top`, and what is on its screen.

#include "tools/top_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace percheron {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

proto::RunRecord& add_run(proto::ControlReply& reply, const std::string& id,
                          proto::RunReport::State state) {
  proto::RunRecord& run = *reply.add_runs();
  run.set_id(id);
  run.mutable_report()->set_state(state);
  run.mutable_report()->set_step(50);
  run.mutable_report()->set_steps_total(200);
  return run;
}

proto::ControlReply three_runs() {
  proto::ControlReply reply;
  reply.add_nodes()->set_name("alpha");
  add_run(reply, "old", proto::RunReport::DONE);
  add_run(reply, "first", proto::RunReport::RUNNING);
  add_run(reply, "second", proto::RunReport::QUEUED)
      .mutable_report()
      ->set_message("waits for alpha/cpu:0, which run first has");
  return reply;
}

std::string joined(const std::vector<ScreenLine>& lines) {
  std::string text;
  for (const ScreenLine& line : lines) text += line.text() + "\n";
  return text;
}

std::string screen(const TopView& view, int width = 80, int height = 24) {
  return joined(view.render(width, height, 0));
}

TopView view_of(const proto::ControlReply& reply) {
  TopView view;
  view.update(reply, 0);
  return view;
}

TEST(TopView, TheOldestRunThatIsNotOverIsShown) {
  const TopView view = view_of(three_runs());
  EXPECT_THAT(screen(view), AllOf(HasSubstr("> first "), HasSubstr("run      first  running"),
                                  HasSubstr("  second "), HasSubstr("3 runs  node alpha")));
}

TEST(TopView, KeysGoThroughTheRunsAndAround) {
  TopView view = view_of(three_runs());
  EXPECT_EQ(view.key(TopKey::kNext), std::nullopt);
  EXPECT_THAT(screen(view),
              AllOf(HasSubstr("run      second  queued"), HasSubstr("waits for alpha/cpu:0")));
  view.key(TopKey::kNext);
  EXPECT_THAT(screen(view), HasSubstr("run      old  done"));
  view.key(TopKey::kPrevious);
  EXPECT_THAT(screen(view), HasSubstr("run      second"));
}

// Runs come and go above it.
TEST(TopView, TheChosenRunStaysChosen) {
  TopView view = view_of(three_runs());
  view.key(TopKey::kNext);
  proto::ControlReply reply;
  add_run(reply, "second", proto::RunReport::RUNNING);
  add_run(reply, "another", proto::RunReport::RUNNING);
  view.update(reply, 1);
  EXPECT_THAT(screen(view), HasSubstr("run      second"));
  reply.mutable_runs()->DeleteSubrange(0, 1);
  view.update(reply, 2);
  EXPECT_THAT(screen(view), HasSubstr("run      another"));
}

TEST(TopView, PausingIsAskedForFirst) {
  TopView view = view_of(three_runs());
  EXPECT_EQ(view.key(TopKey::kPause), std::nullopt);
  EXPECT_THAT(screen(view), HasSubstr("pause first after its step? y: yes"));
  EXPECT_EQ(view.key(TopKey::kOther), std::nullopt);
  EXPECT_EQ(view.key(TopKey::kYes), std::nullopt);  // Nothing is asked any more.
  view.key(TopKey::kPause);
  EXPECT_EQ(view.key(TopKey::kYes), (TopOrder{"first", proto::RunOrder::PAUSE}));
  EXPECT_THAT(screen(view), HasSubstr("pause first ..."));
  view.answered(std::string("run first is paused (step 51)"));
  EXPECT_THAT(screen(view), HasSubstr("run first is paused (step 51)"));
  view.key(TopKey::kOther);
  EXPECT_THAT(screen(view), Not(HasSubstr("is paused (step 51)")));
}

// It may be gone from the list, and another one be shown, by the time of the answer.
TEST(TopView, TheRunThatIsPausedIsTheOneThatWasAskedAbout) {
  TopView view = view_of(three_runs());
  view.key(TopKey::kPause);
  proto::ControlReply reply;
  add_run(reply, "other", proto::RunReport::RUNNING);
  view.update(reply, 1);
  EXPECT_THAT(screen(view), HasSubstr("pause first after"));
  EXPECT_EQ(view.key(TopKey::kYes), (TopOrder{"first", proto::RunOrder::PAUSE}));
}

TEST(TopView, OtherOrdersAreGivenAtOnceButOneByOne) {
  TopView view = view_of(three_runs());
  EXPECT_EQ(view.key(TopKey::kSnapshot), (TopOrder{"first", proto::RunOrder::SNAPSHOT}));
  EXPECT_EQ(view.key(TopKey::kResume), std::nullopt);
  view.answered(failed_precondition("the disk is full"));
  EXPECT_THAT(screen(view), HasSubstr("the disk is full"));
  EXPECT_EQ(view.key(TopKey::kResume), (TopOrder{"first", proto::RunOrder::RESUME}));
}

TEST(TopView, WithoutRunsNoKeyOrdersAnything) {
  TopView view = view_of(proto::ControlReply());
  for (const TopKey key : {TopKey::kNext, TopKey::kPrevious, TopKey::kPause, TopKey::kYes,
                           TopKey::kResume, TopKey::kSnapshot}) {
    EXPECT_EQ(view.key(key), std::nullopt);
  }
  EXPECT_THAT(screen(view), HasSubstr("no runs: `percheron submit"));
}

TEST(TopView, QuitsFromEverywhere) {
  for (const TopKey first : {TopKey::kOther, TopKey::kHelp, TopKey::kPause}) {
    TopView view = view_of(three_runs());
    view.key(first);
    EXPECT_FALSE(view.quits());
    view.key(TopKey::kQuit);
    EXPECT_TRUE(view.quits());
  }
}

TEST(TopView, HelpNamesEveryKeyAndAnyKeyLeavesIt) {
  TopView view = view_of(three_runs());
  view.key(TopKey::kHelp);
  EXPECT_THAT(screen(view), AllOf(HasSubstr("asks first"), HasSubstr("checkpoint"),
                                  HasSubstr("quit; the runs go on")));
  EXPECT_EQ(view.key(TopKey::kSnapshot), std::nullopt);
  EXPECT_THAT(screen(view), HasSubstr("run      first"));
}

TEST(TopView, ANodeThatIsLostLeavesWhatItSaid) {
  TopView view = view_of(three_runs());
  view.lost("connection refused");
  EXPECT_THAT(joined(view.render(80, 24, 12)),
              AllOf(HasSubstr("no answer, trying again: connection refused"),
                    HasSubstr("as of 12.0 s ago"), HasSubstr("run      first")));
  view.update(three_runs(), 13);
  EXPECT_THAT(screen(view), Not(HasSubstr("no answer")));
}

TEST(TopView, NoScreenIsTooSmall) {
  proto::ControlReply reply = three_runs();
  for (int i = 0; i < 60; ++i) add_run(reply, "more" + std::to_string(i), proto::RunReport::DONE);
  TopView view = view_of(reply);
  for (const TopKey key : {TopKey::kOther, TopKey::kHelp, TopKey::kPause}) {
    view.key(key);
    for (int height = 0; height <= 40; ++height) {
      for (const int width : {0, 1, 5, 20, 59, 80, 200}) {
        const auto lines = view.render(width, height, 0);
        EXPECT_LE(lines.size(), static_cast<size_t>(height));
        for (const ScreenLine& line : lines) EXPECT_LE(line.width(), static_cast<size_t>(width));
      }
    }
    view.key(TopKey::kEscape);
  }
  // The keys are there as long as there is a line for them.
  EXPECT_EQ(view.render(80, 1, 0).back().text().substr(0, 6), "q quit");
}

TEST(TopView, TheChosenRunIsInTheListHoweverManyThereAre) {
  proto::ControlReply reply;
  for (int i = 0; i < 60; ++i) add_run(reply, "run" + std::to_string(i), proto::RunReport::DONE);
  TopView view = view_of(reply);
  for (int i = 0; i < 60; ++i) {
    EXPECT_THAT(screen(view), HasSubstr("> run" + std::to_string(59 - i) + " ")) << i;
    view.key(TopKey::kPrevious);
  }
}

TEST(TopView, TheListOfRunsIsATableWhateverTheirNamesAre) {
  proto::ControlReply reply;
  add_run(reply, "first", proto::RunReport::RUNNING);
  add_run(reply, std::string(200, 'n'), proto::RunReport::RUNNING);
  for (const int width : {60, 80, 160}) {
    std::vector<size_t> columns;
    for (const ScreenLine& line : view_of(reply).render(width, 24, 0)) {
      const size_t at = line.text().find(" running ");
      if (at != std::string::npos) columns.push_back(at);
    }
    ASSERT_EQ(columns.size(), 2u) << width;
    EXPECT_EQ(columns[0], columns[1]) << width;
  }
}

TEST(TopView, OneRunThatWasNamedNeedsNoList) {
  proto::ControlReply reply;
  add_run(reply, "first", proto::RunReport::RUNNING);
  TopView view("first");
  view.update(reply, 0);
  EXPECT_THAT(screen(view), AllOf(Not(HasSubstr("> first")), Not(HasSubstr("next run"))));
}

TEST(TopView, TextHasNoKeysAndEveryRun) {
  const std::string text = joined(view_of(three_runs()).text(120, 0));
  EXPECT_THAT(text, AllOf(HasSubstr("old"), HasSubstr("second"), HasSubstr("run      first"),
                          Not(HasSubstr("q quit"))));
}

}  // namespace
}  // namespace percheron
