#include "data/transport/bulk_streams.h"

namespace percheron {

Result<std::unique_ptr<ByteStream>> BulkStreams::take(Source source, Deadline deadline,
                                                      const Stop& stop) {
  std::vector<std::unique_ptr<ByteStream>> old;  // closed after the lock
  {
    std::unique_lock lock(mutex_);
    if (source == Source::kNew) {
      open_ -= static_cast<int>(idle_.size());
      old = std::exchange(idle_, {});
      changed_.notify_all();
    }
    const auto ready = [&] { return closed_ || stop() || !idle_.empty() || open_ < streams_max_; };
    if (deadline.poll_ms() < 0) {
      changed_.wait(lock, ready);  // libstdc++ overflows on time_point::max()
    } else if (!changed_.wait_until(lock, deadline.time(), ready)) {
      return unavailable("all " + std::to_string(streams_max_) + " connections to " + peer_ +
                         " were in use until the deadline");
    }
    if (closed_) return closed_status();
    if (stop()) return cancelled("the pull was cancelled");
    if (source == Source::kAny && !idle_.empty()) {
      std::unique_ptr<ByteStream> stream = std::move(idle_.back());
      idle_.pop_back();
      return stream;
    }
    if (open_ < streams_max_) {
      ++open_;
    } else {
      // One that was given back meanwhile, to make room for a new one.
      old.push_back(std::move(idle_.back()));
      idle_.pop_back();
    }
  }
  return connect(deadline);
}

Result<std::unique_ptr<ByteStream>> BulkStreams::try_take(Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return closed_status();
    if (!idle_.empty()) {
      std::unique_ptr<ByteStream> stream = std::move(idle_.back());
      idle_.pop_back();
      return stream;
    }
    if (open_ >= streams_max_) return std::unique_ptr<ByteStream>();
    ++open_;
  }
  return connect(deadline);
}

// With open_ raised already.
Result<std::unique_ptr<ByteStream>> BulkStreams::connect(Deadline deadline) {
  Result<std::unique_ptr<ByteStream>> stream = connect_(deadline);
  const std::lock_guard lock(mutex_);
  if (stream.ok() && !closed_) return stream;
  --open_;
  changed_.notify_all();
  return closed_ ? closed_status() : stream.status();
}

void BulkStreams::keep(std::unique_ptr<ByteStream> stream) {
  const std::lock_guard lock(mutex_);
  if (closed_) {
    --open_;
  } else {
    idle_.push_back(std::move(stream));
  }
  changed_.notify_all();
}

void BulkStreams::drop(std::unique_ptr<ByteStream> stream) {
  stream.reset();
  const std::lock_guard lock(mutex_);
  --open_;
  changed_.notify_all();
}

void BulkStreams::wake() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void BulkStreams::close() {
  std::vector<std::unique_ptr<ByteStream>> idle;
  const std::lock_guard lock(mutex_);
  closed_ = true;
  open_ -= static_cast<int>(idle_.size());
  idle = std::exchange(idle_, {});
  changed_.notify_all();
}

bool BulkStreams::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

Status BulkStreams::closed_status() const {
  return cancelled("pulling from " + peer_ + " was ended");
}

}  // namespace percheron
