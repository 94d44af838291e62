#include "tools/train_source.h"

#include <google/protobuf/util/json_util.h>

#include <chrono>

#include "tools/http_get.h"

namespace percheron {
namespace {

constexpr auto kLookTimeout = std::chrono::seconds(3);

}  // namespace

Result<NodeAddress> TrainSource::parse_address(const std::string& text) {
  return NodeAddress::parse(text.find(':') == std::string::npos ? "127.0.0.1:" + text : text);
}

Result<proto::ControlReply> TrainSource::look() {
  PERCHERON_ASSIGN_OR_RETURN(const std::string json,
                             http_get(address_, "/run", Deadline::after(kLookTimeout)));
  proto::ControlReply reply;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  if (!google::protobuf::util::JsonStringToMessage(json, &reply, options).ok()) {
    return data_loss(address_.text() + " serves no run of `percheron train`");
  }
  return reply;
}

Result<std::string> TrainSource::order(const TopOrder&) {
  return failed_precondition(
      "`percheron train` takes no orders: Ctrl-C there ends it after a checkpoint, and the same "
      "command goes on");
}

}  // namespace percheron
