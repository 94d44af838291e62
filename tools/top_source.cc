#include "tools/top_source.h"

#include <chrono>
#include <utility>

namespace percheron {
namespace {

constexpr auto kLookTimeout = std::chrono::seconds(5);

}  // namespace

Result<NodeSource::ClientPtr> NodeSource::open(ClientPtr& place) {
  Result<NodeClient> client = at_.connect();
  PERCHERON_RETURN_IF_ERROR(client.status());
  const std::lock_guard lock(mutex_);
  if (closed_) return cancelled("nobody looks any more");
  place = std::make_shared<NodeClient>(std::move(client).value());
  return place;
}

Result<proto::ControlReply> NodeSource::look() {
  if (!client_) {
    PERCHERON_ASSIGN_OR_RETURN(client_, open(looking_));
  }
  proto::ControlRequest request;
  request.mutable_list()->set_run(run_);
  Result<proto::ControlReply> reply = client_->ask(std::move(request), kLookTimeout);
  if (!reply.ok()) client_ = nullptr;
  return reply;
}

Result<std::string> NodeSource::order(const TopOrder& order) {
  PERCHERON_ASSIGN_OR_RETURN(const ClientPtr client, open(ordering_));
  proto::ControlRequest request;
  request.mutable_order()->set_run(order.run);
  request.mutable_order()->mutable_order()->set_kind(order.kind);
  PERCHERON_ASSIGN_OR_RETURN(const proto::ControlReply reply, client->ask(std::move(request)));
  return "run " + order.run + " " + reply.text() + " (step " + std::to_string(reply.step()) + ")";
}

void NodeSource::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (const ClientPtr& client : {looking_, ordering_}) {
    if (client) client->close();
  }
}

}  // namespace percheron
