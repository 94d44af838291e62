#include "data/transport/bulk_server.h"

#include <algorithm>
#include <string>

#include "base/hash.h"
#include "data/transport/bulk_wire.h"

namespace percheron {
namespace {

// Read twice, by the checksum and by the socket: the second time from the processor's cache.
constexpr size_t kPieceBytes = size_t{256} << 10;

// False when the peer left before it asked again.
Result<bool> read_request(ByteStream& stream, Deadline deadline, ChunkRequest& request) {
  std::array<std::byte, kBulkRequestBytes> bytes;
  PERCHERON_ASSIGN_OR_RETURN(const std::optional<size_t> count, stream.read_some(bytes, deadline));
  if (!count) return unavailable(stream.peer() + " asked for nothing for too long");
  if (*count == 0) return false;
  PERCHERON_RETURN_IF_ERROR(read_exactly(stream, std::span(bytes).subspan(*count), deadline));
  if (!decode(std::span<const std::byte, kBulkRequestBytes>(bytes), request)) {
    return data_loss(stream.peer() + " sends what is no request for bytes");
  }
  return true;
}

Status send_chunk(ByteStream& stream, std::span<const std::byte> chunk, Deadline deadline) {
  const ChunkAnswer answer{BulkAnswer::kChunkFollows, static_cast<uint32_t>(chunk.size())};
  const std::array<std::byte, kBulkAnswerBytes> header = encode(answer);
  std::span<const std::byte> before = header;
  std::array<std::byte, kBulkCrcBytes> end;
  uint32_t crc = 0;
  while (!chunk.empty()) {
    const std::span<const std::byte> piece = chunk.first(std::min(kPieceBytes, chunk.size()));
    chunk = chunk.subspan(piece.size());
    crc = crc32c(piece, crc);
    std::span<const std::byte> behind;
    if (chunk.empty()) {
      put_number(std::span<std::byte>(end), crc);
      behind = end;
    }
    PERCHERON_RETURN_IF_ERROR(stream.write_parts({before, piece, behind}, deadline));
    before = {};
  }
  return ok_status();
}

Status answer_request(ByteStream& stream, const BulkRegions& regions, const ChunkRequest& request,
                      Deadline deadline) {
  const BulkRegions::Offer offer = regions.find(request.slot, request.generation);
  if (offer.region == nullptr) return stream.write(encode({BulkAnswer::kGone, 0}), deadline);
  const bool within = request.length > 0 && request.length <= kBulkChunkBytesMax &&
                      request.offset <= offer.bytes &&
                      request.length <= offer.bytes - request.offset;
  if (!within) return stream.write(encode({BulkAnswer::kOutOfRange, 0}), deadline);
  return send_chunk(stream, offer.region->bytes().subspan(request.offset, request.length),
                    deadline);
}

}  // namespace

Status BulkRegions::add(uint64_t slot, uint64_t generation, Region region, uint64_t bytes) {
  if (region == nullptr || bytes == 0 || bytes > region->size()) {
    return invalid_argument("slot " + std::to_string(slot) + " cannot offer " +
                            std::to_string(bytes) + " bytes: its region has " +
                            std::to_string(region == nullptr ? 0 : region->size()));
  }
  const std::lock_guard lock(mutex_);
  const auto [at, is_new] = entries_.try_emplace(slot);
  Entry& entry = at->second;
  if (!is_new && generation <= entry.generation) {
    return failed_precondition("slot " + std::to_string(slot) + " is at generation " +
                               std::to_string(entry.generation) + " already; " +
                               std::to_string(generation) + " would go back");
  }
  entry = {generation, {std::move(region), bytes}};
  return ok_status();
}

void BulkRegions::remove(uint64_t slot, uint64_t generation) {
  Region dropped;  // let go after the lock
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(slot);
  if (found == entries_.end() || found->second.generation != generation) return;
  dropped = std::move(found->second.offer.region);
  found->second.offer = {};
}

void BulkRegions::forget(uint64_t slot) {
  const std::lock_guard lock(mutex_);
  entries_.erase(slot);
}

BulkRegions::Offer BulkRegions::find(uint64_t slot, uint64_t generation) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(slot);
  if (found == entries_.end() || found->second.generation != generation) return {};
  return found->second.offer;
}

Status serve_bulk(ByteStream& stream, const BulkRegions& regions,
                  const BulkServerOptions& options) {
  for (;;) {
    ChunkRequest request;
    PERCHERON_ASSIGN_OR_RETURN(
        const bool asked, read_request(stream, Deadline::after(options.idle_timeout), request));
    if (!asked) return ok_status();
    PERCHERON_RETURN_IF_ERROR(
        answer_request(stream, regions, request, Deadline::after(options.send_timeout)));
  }
}

}  // namespace percheron
