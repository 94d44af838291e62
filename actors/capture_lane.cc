#include "actors/capture_lane.h"

#include <memory>
#include <utility>

namespace percheron {

struct CaptureLane::Flight {
  Piece piece;
  std::unique_ptr<FeaturesUnderWay> features;
};

CaptureLane::CaptureLane(DeviceWorker& worker, FeatureMaker& maker, const Clock& clock, Next next,
                         Ended ended)
    : worker_(worker),
      maker_(maker),
      next_(std::move(next)),
      ended_(std::move(ended)),
      finisher_("features", clock) {
  worker_.post([this](Context& context) {
    if (context.device.info().immediate) return;
    finisher_.post([device = &context.device] { device->bind_thread(); });
  });
}

void CaptureLane::go_on() {
  {
    const std::lock_guard lock(mutex_);
    if (!exhausted_ && flow_.ask()) {
      flow_.given();
      (void)flow_.begin();
      worker_.post([this](Context& context) { begin(context); });
      return;
    }
    if (!exhausted_ || flow_.in_flight() > 0 || std::exchange(over_, true)) return;
  }
  ended_(failed_);
}

void CaptureLane::end_with(const Status& status) {
  const std::lock_guard lock(mutex_);
  exhausted_ = true;
  if (failed_.ok()) failed_ = status;
}

void CaptureLane::begin(Context& context) {
  std::optional<Piece> piece = next_();
  Result<std::unique_ptr<FeaturesUnderWay>> features = std::unique_ptr<FeaturesUnderWay>();
  if (piece) features = maker_.begin(context, piece->batch);
  const bool begun = piece && features.ok();
  if (!begun) end_with(features.status());
  if (begun) {
    const auto flight =
        std::make_shared<Flight>(Flight{*std::move(piece), std::move(features).value()});
    finisher_.post([this, flight] { finish(flight); });
  }
  {
    const std::lock_guard lock(mutex_);
    flow_.begun();
    if (!begun) flow_.ended();
  }
  go_on();
}

void CaptureLane::finish(const FlightPtr& flight) {
  Result<std::optional<MadeFeatures>> made = flight->features->finish();
  if (made.ok() && !*made) {
    worker_.post([this, flight](Context& context) { again(context, flight); });
  } else {
    take(flight, made.ok() ? Result<MadeFeatures>(std::move(**made)) : made.status());
  }
}

void CaptureLane::again(Context& context, const FlightPtr& flight) {
  const auto made = std::make_shared<Result<MadeFeatures>>(flight->features->again(context));
  finisher_.post([this, flight, made] { take(flight, std::move(*made)); });
}

void CaptureLane::take(const FlightPtr& flight, Result<MadeFeatures> made) {
  flight->features.reset();  // Its buffers are the next one's.
  const Status status = made.ok() ? flight->piece.take(std::move(made).value()) : made.status();
  if (!status.ok()) end_with(status);
  {
    const std::lock_guard lock(mutex_);
    flow_.ended();
  }
  go_on();
}

}  // namespace percheron
