#include "data/transport/ucx_stream.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace percheron {
namespace {

constexpr size_t kPartsMax = 4;
// How often a stream that waits looks whether its connection has ended: UCX does not notice the
// end of a peer over every transport.
constexpr auto kLookAtConnection = std::chrono::milliseconds(250);
// Likewise whether an endpoint is closed, should UCX say nothing of it.
constexpr auto kLookAtClosing = std::chrono::milliseconds(10);
constexpr auto kDriveBeside = std::chrono::milliseconds(5);
constexpr auto kAbandonTime = std::chrono::milliseconds(1000);

std::string text_of(ucs_status_t status) { return ucs_status_string(status); }

ucp_request_param_t iov_parameters() {
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE;
  parameters.datatype = ucp_dt_make_iov();
  return parameters;
}

}  // namespace

Result<std::unique_ptr<UcxStream>> UcxStream::make(ucp_context_h context) {
  std::unique_ptr<UcxStream> stream(new UcxStream());
  ucp_worker_params_t parameters{};
  parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  parameters.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t status = ucp_worker_create(context, &parameters, &stream->worker_);
  if (status != UCS_OK) return failed_precondition("make a worker: " + text_of(status));
  status = ucp_worker_get_efd(stream->worker_, &stream->events_);
  if (status != UCS_OK) return failed_precondition("wait for events: " + text_of(status));
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  status = ucp_worker_get_address(stream->worker_, &address, &bytes);
  if (status != UCS_OK) return failed_precondition("ask its address: " + text_of(status));
  stream->address_.assign(reinterpret_cast<const char*>(address), bytes);
  ucp_worker_release_address(stream->worker_, address);
  stream->wake_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stream->wake_.valid()) return os_error("make a stream", errno);
  return stream;
}

UcxStream::~UcxStream() {
  // First, so that the other end knows why the endpoint is gone.
  if (owned_ != nullptr) owned_->close();
  abandon(cancelled("the stream is gone"));
}

Status UcxStream::connect(const std::string& address, ByteStream& connection) {
  connection_ = &connection;
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.address = reinterpret_cast<const ucp_address_t*>(address.data());
  parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler.arg = this;
  parameters.err_handler.cb = [](void* self, ucp_ep_h, ucs_status_t status) {
    static_cast<UcxStream*>(self)->failure_ = status;
  };
  const ucs_status_t status = ucp_ep_create(worker_, &parameters, &endpoint_);
  return status == UCS_OK ? ok_status() : failed_precondition("connect: " + text_of(status));
}

Status UcxStream::usable() const {
  if (closed_) return cancelled("the connection to " + peer() + " was closed here");
  if (ended_) return unavailable(peer() + " closed the connection");
  if (endpoint_ == nullptr) {
    return unavailable("the connection to " + peer() + " was given up: " + abandoned_.message());
  }
  if (failure_ != UCS_OK) {
    return unavailable("UCX lost the connection to " + peer() + ": " + text_of(failure_));
  }
  return ok_status();
}

Result<bool> UcxStream::sleep(Wake wake, Deadline deadline) {
  const ucs_status_t armed = ucp_worker_arm(worker_);
  if (armed == UCS_ERR_BUSY) return true;  // Something came meanwhile.
  if (armed != UCS_OK) return internal_error("UCX can't wait for events: " + text_of(armed));
  std::array<pollfd, 2> polled = {{{events_, POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
  const nfds_t used = wake == Wake::kByEvents ? 1 : 2;
  const int count = ::poll(polled.data(), used, deadline.poll_ms());
  if (count < 0 && errno != EINTR) return os_error("wait for UCX", errno);
  return count != 0;
}

Result<bool> UcxStream::wait(Deadline deadline) {
  PERCHERON_ASSIGN_OR_RETURN(
      const bool woken,
      sleep(Wake::kByEventsAndClose, Deadline::after(kLookAtConnection).earlier(deadline)));
  if (woken) return true;
  if (has_ended(Deadline::now())) return true;
  return !deadline.passed();
}

// Nothing is said on the connection any more, so that whatever can be read is its end.
bool UcxStream::has_ended(Deadline deadline) {
  if (owned_ == nullptr || ended_) return ended_;
  std::byte ignored;
  const Result<std::optional<size_t>> read = owned_->read_some(std::span(&ignored, 1), deadline);
  return ended_ = !read.ok() || read->has_value();
}

Result<std::optional<size_t>> UcxStream::read_some(std::span<std::byte> into, Deadline deadline) {
  PERCHERON_CHECK(!into.empty(), "a read of no bytes");
  while (true) {
    if (!rest_.empty()) {
      const size_t count = std::min(into.size(), rest_.size());
      std::memcpy(into.data(), rest_.data(), count);
      rest_ = rest_.subspan(count);
      if (rest_.empty()) ucp_stream_data_release(endpoint_, std::exchange(received_, nullptr));
      return std::optional<size_t>(count);
    }
    if (closed_ || endpoint_ == nullptr) return usable();
    size_t bytes = 0;
    ucs_status_ptr_t data = ucp_stream_recv_data_nb(endpoint_, &bytes);
    if (UCS_PTR_IS_ERR(data)) {
      return unavailable("UCX reads nothing from " + peer() + ": " + text_of(UCS_PTR_STATUS(data)));
    }
    if (data != nullptr) {
      received_ = data;
      rest_ = {static_cast<const std::byte*>(data), bytes};
      continue;
    }
    if (ucp_worker_progress(worker_) != 0) continue;
    // UCX may notice the end before the connection does.
    const bool failed = failure_ != UCS_OK;
    if (!closed_ && (ended_ || (failed && has_ended(Deadline::after(kLookAtConnection))))) {
      return std::optional<size_t>(0);
    }
    PERCHERON_RETURN_IF_ERROR(usable());
    PERCHERON_ASSIGN_OR_RETURN(const bool goes_on, wait(deadline));
    if (!goes_on) return std::optional<size_t>();
  }
}

Status UcxStream::complete(void* request, Deadline deadline) {
  if (request == nullptr) return ok_status();
  if (UCS_PTR_IS_ERR(request)) {
    return unavailable("UCX can't write to " + peer() + ": " + text_of(UCS_PTR_STATUS(request)));
  }
  Status status;
  while (ucp_request_check_status(request) == UCS_INPROGRESS) {
    if (ucp_worker_progress(worker_) != 0) continue;
    status = usable();
    if (status.ok()) {
      const Result<bool> goes_on = wait(deadline);
      status = goes_on.status();
      if (goes_on.ok() && !*goes_on) status = unavailable(peer() + " took no bytes in time");
    }
    if (!status.ok()) break;
  }
  if (!status.ok()) {
    // The bytes are the caller's: nothing may read them once it has heard of the error.
    ucp_request_free(request);
    abandon(status);
    return status;
  }
  const ucs_status_t done = ucp_request_check_status(request);
  ucp_request_free(request);
  if (done == UCS_OK) return ok_status();
  return unavailable("UCX can't write to " + peer() + ": " + text_of(done));
}

Status UcxStream::write(std::span<const std::byte> bytes, Deadline deadline) {
  return write_parts({bytes}, deadline);
}

Status UcxStream::write_parts(std::initializer_list<std::span<const std::byte>> parts,
                              Deadline deadline) {
  PERCHERON_RETURN_IF_ERROR(usable());
  PERCHERON_CHECK(parts.size() <= kPartsMax, "a write of too many parts");
  std::array<ucp_dt_iov_t, kPartsMax> iov;
  size_t count = 0;
  for (const std::span<const std::byte> part : parts) {
    if (!part.empty()) iov[count++] = {const_cast<std::byte*>(part.data()), part.size()};
  }
  if (count == 0) return ok_status();
  const ucp_request_param_t parameters = iov_parameters();
  return complete(ucp_stream_send_nbx(endpoint_, iov.data(), count, &parameters), deadline);
}

Status UcxStream::flush(Deadline deadline) {
  PERCHERON_RETURN_IF_ERROR(usable());
  const ucp_request_param_t parameters{};
  return complete(ucp_ep_flush_nbx(endpoint_, &parameters), deadline);
}

Result<std::byte> UcxStream::read_beside(ByteStream& connection, Deadline deadline) {
  while (true) {
    while (worker_ != nullptr && ucp_worker_progress(worker_) != 0) {
    }
    std::byte byte{0};
    PERCHERON_ASSIGN_OR_RETURN(
        const std::optional<size_t> count,
        connection.read_some(std::span(&byte, 1), Deadline::after(kDriveBeside).earlier(deadline)));
    if (count == 1u) return byte;
    if (count.has_value()) return unavailable(connection.peer() + " closed the connection");
    if (deadline.passed()) return unavailable(connection.peer() + " did not answer in time");
  }
}

void UcxStream::close() {
  if (closed_.exchange(true)) return;
  const uint64_t one = 1;
  // It can't be full, and whoever waits sees closed_ at the latest when he looks at the connection.
  (void)!::write(wake_.get(), &one, sizeof one);
  if (owned_ != nullptr) owned_->close();
}

void UcxStream::finish() {
  if (connection_ != nullptr) connection_->finish();
}

void UcxStream::abandon(const Status& why) {
  if (worker_ == nullptr) return;
  abandoned_ = why;
  if (endpoint_ != nullptr) {
    if (received_ != nullptr) ucp_stream_data_release(endpoint_, std::exchange(received_, nullptr));
    rest_ = {};
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
    ucs_status_ptr_t closing = ucp_ep_close_nbx(std::exchange(endpoint_, nullptr), &parameters);
    if (UCS_PTR_IS_PTR(closing)) {
      const Deadline deadline = Deadline::after(kAbandonTime);
      while (ucp_request_check_status(closing) == UCS_INPROGRESS && !deadline.passed()) {
        if (ucp_worker_progress(worker_) != 0) continue;
        // Not for close(), which may have come long ago and would wake it up for ever.
        if (!sleep(Wake::kByEvents, Deadline::after(kLookAtClosing).earlier(deadline)).ok()) break;
      }
      ucp_request_free(closing);
    }
  }
  // Whatever was still under way ends with it.
  ucp_worker_destroy(std::exchange(worker_, nullptr));
}

}  // namespace percheron
