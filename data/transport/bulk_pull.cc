#include "data/transport/bulk_pull.h"

#include <algorithm>
#include <optional>
#include <system_error>
#include <thread>

#include "base/crc32c.h"
#include "base/log.h"

namespace percheron {
namespace {

constexpr size_t kPieceBytes = size_t{256} << 10;  // read, then summed up from the cache
constexpr int kFailuresMax = 1;                    // of a chunk that is asked for again

// Another connection might do better.
bool is_worth_a_retry(const Status& status) {
  return status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kDataLoss ||
         status.code() == StatusCode::kInternal;
}

std::string slot_text(const BulkRequest& request) {
  return "slot " + std::to_string(request.slot) + ", generation " +
         std::to_string(request.generation);
}

}  // namespace

BulkPull::BulkPull(const BulkRequest& request, SharedRegion& into, BulkStreams& streams,
                   const BulkClientOptions& options, Deadline deadline)
    : request_(request),
      region_(into),
      into_(into.writable_bytes().first(request.bytes)),
      streams_(streams),
      options_(options),
      deadline_(deadline),
      chunk_count_((into_.size() + options.chunk_bytes - 1) / options.chunk_bytes),
      streams_max_(static_cast<int>(
          std::min<size_t>(static_cast<size_t>(options.streams_per_pull), chunk_count_))),
      // A second request hides the way there and back, but takes a chunk from a free stream.
      asked_max_(chunk_count_ > static_cast<size_t>(streams_max_) ? 2 : 1),
      crcs_(chunk_count_) {}

Status BulkPull::run() {
  Result<std::unique_ptr<ByteStream>> first =
      streams_.take(BulkStreams::Source::kAny, deadline_, [this] { return stopped(); });
  if (!first.ok()) {
    stop(first.status());
    return error_;
  }
  std::vector<std::thread> threads;
  for (int i = 1; i < streams_max_; ++i) {
    try {
      threads.emplace_back([this] {
        // One stream less is only slower: the first goes on, and says so if the peer is gone.
        Result<std::unique_ptr<ByteStream>> stream = streams_.try_take(deadline_);
        if (stream.ok() && *stream != nullptr) work(std::move(stream).value());
      });
    } catch (const std::system_error& error) {
      log_warning("a pull goes on with {} of {} streams: {}", i, streams_max_, error.what());
      break;
    }
  }
  work(std::move(first).value());
  for (std::thread& thread : threads) thread.join();
  const std::lock_guard lock(mutex_);
  return error_.ok() ? verify_whole() : error_;
}

void BulkPull::stop(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (error_.ok()) error_ = why;
    for (ByteStream* stream : active_) stream->close();
  }
  streams_.wake();
}

std::span<std::byte> BulkPull::bytes_of(const Chunk& chunk) const {
  const size_t begin = chunk.index * options_.chunk_bytes;
  return into_.subspan(begin, std::min<size_t>(options_.chunk_bytes, into_.size() - begin));
}

bool BulkPull::stopped() const {
  const std::lock_guard lock(mutex_);
  return !error_.ok();
}

bool BulkPull::next_chunk(Trust trust, Chunk& chunk) {
  const std::lock_guard lock(mutex_);
  if (!error_.ok()) return false;
  if (trust == Trust::kWorks && !waiting_.empty()) {
    chunk = waiting_.front();
    waiting_.pop_front();
    return true;
  }
  if (next_index_ == chunk_count_) return false;
  chunk = {next_index_++, 0};
  return true;
}

bool BulkPull::give_back(Asked& asked) {
  const std::lock_guard lock(mutex_);
  // The others were not reached: only the first has failed.
  if (!asked.empty() && ++asked.front().failures > kFailuresMax) return false;
  if (!asked.empty()) ++chunks_retried_;
  waiting_.insert(waiting_.end(), asked.begin(), asked.end());
  asked.clear();
  return true;
}

void BulkPull::work(std::unique_ptr<ByteStream> stream) {
  // Who has put chunks back fetches them by a new stream, so none is forgotten.
  for (Trust trust = Trust::kUntried;; trust = Trust::kWorks) {
    {
      const std::lock_guard lock(mutex_);
      active_.insert(stream.get());
      if (!error_.ok()) stream->close();
    }
    Asked asked;
    const Status status = fetch(*stream, trust, asked);
    {
      const std::lock_guard lock(mutex_);
      active_.erase(stream.get());
    }
    if (status.ok() && asked.empty()) {
      // A stream that stop() closed has nothing outstanding either, but is of no use.
      if (stopped()) {
        streams_.drop(std::move(stream));
      } else {
        streams_.keep(std::move(stream));
      }
      return;
    }
    streams_.drop(std::move(stream));
    if (!is_worth_a_retry(status) || deadline_.passed() || !give_back(asked)) {
      stop(status);
      return;
    }
    Result<std::unique_ptr<ByteStream>> next =
        streams_.take(BulkStreams::Source::kNew, deadline_, [this] { return stopped(); });
    if (!next.ok()) {
      stop(next.status());
      return;
    }
    stream = std::move(next).value();
  }
}

Status BulkPull::fetch(ByteStream& stream, Trust trust, Asked& asked) {
  for (;;) {
    Chunk chunk;
    while (asked.size() < asked_max_ && next_chunk(trust, chunk)) {
      asked.push_back(chunk);
      PERCHERON_RETURN_IF_ERROR(ask(stream, chunk));
    }
    if (asked.empty()) return ok_status();
    PERCHERON_RETURN_IF_ERROR(receive(stream, asked.front()));
    asked.pop_front();
    trust = Trust::kWorks;
  }
}

Status BulkPull::ask(ByteStream& stream, const Chunk& chunk) {
  const ChunkRequest request{request_.slot, request_.generation, chunk.index * options_.chunk_bytes,
                             static_cast<uint32_t>(bytes_of(chunk).size())};
  return stream.write(encode(request), io_deadline());
}

Status BulkPull::receive(ByteStream& stream, const Chunk& chunk) {
  const std::span<std::byte> into = bytes_of(chunk);
  std::array<std::byte, kBulkAnswerBytes> header;
  PERCHERON_RETURN_IF_ERROR(read_exactly(stream, header, io_deadline()));
  const ChunkAnswer answer = decode(std::span<const std::byte, kBulkAnswerBytes>(header));
  if (answer.status == BulkAnswer::kGone) {
    return not_found(stream.peer() + " no longer has " + slot_text(request_));
  }
  if (answer.status == BulkAnswer::kOutOfRange) {
    return failed_precondition(stream.peer() + " has fewer than " + std::to_string(request_.bytes) +
                               " bytes in " + slot_text(request_));
  }
  if (answer.status != BulkAnswer::kChunkFollows || answer.length != into.size()) {
    return data_loss(stream.peer() + " answers a request for bytes out of order");
  }
  // By each stream for itself, just before: fresh pages are cleared by several threads at once, and
  // are still in the cache when the bytes come.
  PERCHERON_RETURN_IF_ERROR(region_.reserve(chunk.index * options_.chunk_bytes, into.size()));
  uint32_t crc = 0;
  PERCHERON_RETURN_IF_ERROR(receive_bytes(stream, into, crc));
  std::array<std::byte, kBulkCrcBytes> end;
  PERCHERON_RETURN_IF_ERROR(read_exactly(stream, end, io_deadline()));
  uint32_t expected = 0;
  take_number(std::span<const std::byte>(end), expected);
  if (crc != expected) {
    return data_loss("bytes " + std::to_string(chunk.index * options_.chunk_bytes) + " and on of " +
                     slot_text(request_) + " from " + stream.peer() + " contradict their checksum");
  }
  crcs_[chunk.index] = crc;
  return ok_status();
}

Status BulkPull::receive_bytes(ByteStream& stream, std::span<std::byte> into, uint32_t& crc) {
  while (!into.empty()) {
    const std::span<std::byte> room = into.first(std::min(kPieceBytes, into.size()));
    PERCHERON_ASSIGN_OR_RETURN(const std::optional<size_t> count,
                               stream.read_batch(room, io_deadline()));
    if (!count) return unavailable(stream.peer() + " stopped sending");
    if (*count == 0) return unavailable(stream.peer() + " closed the connection");
    crc = crc32c(room.first(*count), crc);
    into = into.subspan(*count);
  }
  return ok_status();
}

Deadline BulkPull::io_deadline() const {
  return Deadline::after(options_.chunk_timeout).earlier(deadline_);
}

// Each chunk is what the peer has; is that what the ticket says?
Status BulkPull::verify_whole() const {
  uint32_t crc = 0;
  for (size_t i = 0; i < chunk_count_; ++i) {
    crc = crc32c_combine(crc, crcs_[i], bytes_of({i, 0}).size());
  }
  if (crc == request_.crc32c) return ok_status();
  return data_loss("the bytes of " + slot_text(request_) + " contradict the checksum of their " +
                   "ticket");
}

}  // namespace percheron
