#include "data/training_state.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

namespace percheron {
namespace {

// Keeps the first complaint of protobuf's parser instead of printing it.
class FirstError final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (message_.empty())
      message_ = "line " + std::to_string(line + 1) + " column " + std::to_string(column + 1) +
                 ": " + message;
  }
  void AddWarning(int, int, const std::string&) override {}
  const std::string& message() const { return message_; }

 private:
  std::string message_;
};

Status check_state(const proto::TrainingState& state, const std::string& where) {
  const auto bad = [&](const std::string& what) { return data_loss(where + ": " + what); };
  if (!state.has_step() || !state.has_epoch() || !state.has_next_micro_batch() ||
      !state.has_micro_batches_per_step() || !state.has_seed())
    return bad("step, epoch, next_micro_batch, micro_batches_per_step or seed is missing");
  if (state.step() < 0 || state.epoch() < 0 || state.next_micro_batch() < 0 ||
      state.micro_batches_per_step() < 1)
    return bad("the cursor is step " + std::to_string(state.step()) + ", epoch " +
               std::to_string(state.epoch()) + ", micro-batch " +
               std::to_string(state.next_micro_batch()) + " of " +
               std::to_string(state.micro_batches_per_step()) + " a step, which no run can have");
  for (const proto::TrainingState::Field& field : state.fingerprint()) {
    if ((field.name() + field.value()).find('\n') != std::string::npos ||
        field.name().find(": ") != std::string::npos)
      return bad("the fingerprint's field '" + field.name() + "' is not one line");
  }
  return ok_status();
}

}  // namespace

std::string training_state_text(const proto::TrainingState& state) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(state, &text);
  return text;
}

Result<proto::TrainingState> parse_training_state(std::string_view text, std::string_view where) {
  proto::TrainingState state;
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(std::string(text), &state))
    return data_loss(std::string(where) + " " + error.message());
  PERCHERON_RETURN_IF_ERROR(check_state(state, std::string(where)));
  return state;
}

void set_fingerprint(const Fingerprint& fingerprint, proto::TrainingState& state) {
  state.clear_fingerprint();
  for (const auto& [name, value] : fingerprint.fields()) {
    proto::TrainingState::Field* field = state.add_fingerprint();
    field->set_name(name);
    field->set_value(value);
  }
}

Fingerprint fingerprint_of(const proto::TrainingState& state) {
  Fingerprint fingerprint;
  for (const proto::TrainingState::Field& field : state.fingerprint())
    fingerprint.set(field.name(), field.value());
  return fingerprint;
}

}  // namespace percheron
