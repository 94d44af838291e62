#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "data/transport/byte_stream.h"
#include "data/transport/file_descriptor.h"

namespace percheron {

/// One end of a UCP stream, with a worker of its own, so that only the threads that use the stream
/// drive it: no thread waits for UCX in the background. As other streams it may move between
/// threads, but one at a time calls it, close() excepted.
class UcxStream final : public ByteStream {
 public:
  /// `connection` is what it was agreed on; `context` is borrowed. kFailedPrecondition, with what
  /// UCX says.
  static Result<std::unique_ptr<UcxStream>> make(ucp_context_h context);
  ~UcxStream() override;

  /// For the other end.
  const std::string& address() const { return address_; }
  /// Connects with the other end by its address. From now on the stream's peer is that of
  /// `connection`, which is borrowed.
  Status connect(const std::string& address, ByteStream& connection);
  /// Waits until the other end has what was written.
  Status flush(Deadline deadline);
  /// Reads a byte of `connection`, and drives UCX meanwhile: what the other end waits for may need
  /// it.
  Result<std::byte> read_beside(ByteStream& connection, Deadline deadline);
  /// The connection is this stream's from now on, and with its end this ends.
  void own(std::unique_ptr<ByteStream> connection) { owned_ = std::move(connection); }

  Result<std::optional<size_t>> read_some(std::span<std::byte> into, Deadline deadline) override;
  Status write(std::span<const std::byte> bytes, Deadline deadline) override;
  Status write_parts(std::initializer_list<std::span<const std::byte>> parts,
                     Deadline deadline) override;
  void close() override;
  void finish() override;
  std::string peer() const override { return connection_->peer(); }
  const TlsPeer* tls_peer() const override { return connection_->tls_peer(); }

 private:
  UcxStream() = default;
  Status usable() const;
  /// Waits for events of UCX, for close() or has_ended(); false at the deadline.
  Result<bool> wait(Deadline deadline);
  /// The other end closed the connection.
  bool has_ended(Deadline deadline);
  /// Drives UCX until `request` is done.
  Status complete(void* request, Deadline deadline);
  enum class Wake { kByEvents, kByEventsAndClose };
  /// Sleeps until something woke it up: false at the deadline.
  Result<bool> sleep(Wake wake, Deadline deadline);
  /// Ends what is under way, so that UCX touches no memory of ours any more.
  void abandon(const Status& why);

  std::string address_;
  ByteStream* connection_ = nullptr;
  std::unique_ptr<ByteStream> owned_;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  int events_ = -1;                  // the worker's
  FileDescriptor wake_;              // for close()
  void* received_ = nullptr;         // of UCX, to be given back
  std::span<const std::byte> rest_;  // of it, not read yet
  ucs_status_t failure_ = UCS_OK;    // of the endpoint
  bool ended_ = false;               // by the other end
  Status abandoned_;                 // why
  std::atomic<bool> closed_{false};
};

}  // namespace percheron
