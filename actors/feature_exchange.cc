#include "actors/feature_exchange.h"

#include <fmt/format.h>

#include <utility>

#include "actors/batch_source.h"

namespace percheron {

Status LocalFeatures::publish(FeaturesPtr features, Produced&) {
  if (features->batch.id.epoch == kHeldOutEpoch) return held_out_.add(std::move(features));
  const MicroBatchId id = features->batch.id;
  const Status published = store_.publish(std::move(features));
  // A target whose lease was taken away may have been first: the same features, from the same rows.
  if (published.code() == StatusCode::kFailedPrecondition && store_.get(id)) return ok_status();
  return published;
}

void LocalFeatures::fetch(const Ticket& ticket, Done done) {
  FeaturesPtr features = store_.get(ticket.id);
  if (features) return done(std::move(features));
  done(internal_error(fmt::format("the features of micro-batch ({}, {}) are not in the store",
                                  ticket.id.epoch, ticket.id.index)));
}

}  // namespace percheron
