#include "data/transport/ucx_carrier.h"

#include <ucp/api/ucp.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

#include "data/transport/frame_length.h"
#include "data/transport/ucx_stream.h"

namespace percheron {
namespace {

constexpr size_t kTokenBytes = 32;
constexpr size_t kAddressBytesMax = 4096;

// What an end says of UCX on the connection: nothing, where it can't.
struct Offer {
  std::string address, token;
};

class Carrier final : public UcxCarrier {
 public:
  explicit Carrier(ucp_context_h context) : context_(context) {}
  ~Carrier() override { ucp_cleanup(context_); }

  Result<Carried> take_over(std::unique_ptr<ByteStream> connection, RandomBytes& random,
                            Deadline deadline) override {
    const Deadline in_time = Deadline::after(kMakeTime);
    Result<std::unique_ptr<UcxStream>> made = UcxStream::make(context_);
    Status status = made.status();
    // What is left of the deadline is the proof's.
    if (status.ok() && in_time.passed()) status = unavailable("UCX took too long to make a worker");
    Offer offer;
    if (status.ok()) {
      offer.address = (*made)->address();
      offer.token.resize(kTokenBytes);
      random.fill(std::as_writable_bytes(std::span(offer.token)));
    }
    PERCHERON_RETURN_IF_ERROR(send_offer(*connection, offer, deadline));
    PERCHERON_ASSIGN_OR_RETURN(const Offer other, receive_offer(*connection, deadline));
    if (!status.ok()) return Carried{std::move(connection), status};
    if (other.address.empty()) {
      return Carried{std::move(connection), unavailable("UCX fails at the other end"), true};
    }
    std::unique_ptr<UcxStream> stream = std::move(made).value();
    status = prove(*stream, *connection, offer, other, Deadline::after(kProveTime));
    // Both go one way: by UCX where it works at both ends.
    const std::byte works{static_cast<unsigned char>(status.ok() ? 1 : 0)};
    PERCHERON_RETURN_IF_ERROR(connection->write(std::span(&works, 1), deadline));
    // The other end's proof may need this one yet.
    PERCHERON_ASSIGN_OR_RETURN(const std::byte other_works,
                               stream->read_beside(*connection, deadline));
    if (status.ok() && other_works != std::byte{1}) {
      status = unavailable("UCX fails at the other end");
    }
    if (!status.ok()) return Carried{std::move(connection), status};
    stream->own(std::move(connection));
    return Carried{std::move(stream), ok_status()};
  }

  Status decline(ByteStream& connection, Deadline deadline) override {
    PERCHERON_RETURN_IF_ERROR(send_offer(connection, Offer{}, deadline));
    return receive_offer(connection, deadline).status();
  }

 private:
  static constexpr auto kMakeTime = std::chrono::milliseconds(1500);
  static constexpr auto kProveTime = std::chrono::milliseconds(2000);

  static Status send_offer(ByteStream& connection, const Offer& offer, Deadline deadline) {
    const auto length = encode_length(offer.address.size());
    return connection.write_parts(
        {std::as_bytes(std::span(length)), std::as_bytes(std::span(offer.address)),
         std::as_bytes(std::span(offer.token))},
        deadline);
  }

  static Result<Offer> receive_offer(ByteStream& connection, Deadline deadline) {
    std::array<char, kLengthBytes> length;
    PERCHERON_RETURN_IF_ERROR(
        read_exactly(connection, std::as_writable_bytes(std::span(length)), deadline));
    const size_t bytes = decode_length(length);
    if (bytes == 0) return Offer{};
    if (bytes > kAddressBytesMax) {
      return data_loss(connection.peer() + " has a UCX address of " + std::to_string(bytes) +
                       " bytes; " + std::to_string(kAddressBytesMax) + " are the limit");
    }
    Offer offer{std::string(bytes, '\0'), std::string(kTokenBytes, '\0')};
    for (std::string* part : {&offer.address, &offer.token}) {
      PERCHERON_RETURN_IF_ERROR(
          read_exactly(connection, std::as_writable_bytes(std::span(*part)), deadline));
    }
    return offer;
  }

  // Each end sends by UCX the token that the other gave it on the connection, so that both know
  // whom they reach.
  static Status prove(UcxStream& stream, ByteStream& connection, const Offer& offer,
                      const Offer& other, Deadline deadline) {
    PERCHERON_RETURN_IF_ERROR(stream.connect(other.address, connection));
    PERCHERON_RETURN_IF_ERROR(stream.write(std::as_bytes(std::span(other.token)), deadline));
    std::string token(kTokenBytes, '\0');
    PERCHERON_RETURN_IF_ERROR(
        read_exactly(stream, std::as_writable_bytes(std::span(token)), deadline));
    if (token != offer.token) return data_loss("what UCX reached is another than the connection");
    return stream.flush(deadline);
  }

  const ucp_context_h context_;
};

}  // namespace

Result<std::unique_ptr<UcxCarrier>> UcxCarrier::open(const std::string& devices) {
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status == UCS_OK) status = ucp_config_modify(config, "NET_DEVICES", devices.c_str());
  ucp_context_h context = nullptr;
  if (status == UCS_OK) {
    ucp_params_t parameters{};
    parameters.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
    parameters.features = UCP_FEATURE_STREAM | UCP_FEATURE_WAKEUP;
    parameters.mt_workers_shared = 1;
    status = ucp_init(&parameters, config, &context);
  }
  if (config != nullptr) ucp_config_release(config);
  if (status != UCS_OK) {
    return failed_precondition("UCX can't be used over " + devices + ": " +
                               ucs_status_string(status));
  }
  auto carrier = std::make_unique<Carrier>(context);
  const Result<std::unique_ptr<UcxStream>> trial = UcxStream::make(context);
  if (!trial.ok()) {
    return failed_precondition("UCX can't be used over " + devices + ": " +
                               trial.status().message());
  }
  return std::unique_ptr<UcxCarrier>(std::move(carrier));
}

bool UcxCarrier::is_built() { return true; }

}  // namespace percheron
