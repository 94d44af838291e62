#include "kernels/cpu/gloo_collective.h"

#include <fmt/format.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/device.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <vector>

#include "kernels/cpu/gloo_network.h"

namespace percheron {
namespace {

using Buffer = gloo::transport::UnboundBuffer;

// Values are summed by segments of this many bytes, one being sent while another is added.
constexpr size_t kSegmentBytes = size_t{4} << 20;
// How long a member that leaves waits for its last words to be sent.
constexpr std::chrono::milliseconds kLeaveLimit{1'000};
constexpr size_t kBlock = 1024;  // Elements that are added at once, in the first-level cache.

/// What a message is; a part of its slot, by which Gloo matches a send with a receive.
enum class Message : uint64_t { kTerms, kSums, kTermsDone, kSumsDone };

/// A part of the values, in elements.
struct Range {
  size_t begin = 0;
  size_t end = 0;
  size_t size() const { return end - begin; }
};

Range share_of(const Range& segment, int rank, int size) {
  const auto bound = [&](int of) {
    return segment.begin + segment.size() * static_cast<size_t>(of) / static_cast<size_t>(size);
  };
  return {bound(rank), bound(rank + 1)};
}

/// A rank of a group that spans processes.
///
/// A message to another rank is posted and goes its way in Gloo's thread. Gloo tells a waiting
/// buffer of a lost connection only if a receive is pending that has not begun to arrive; so each
/// buffer has one for the whole call, `done`, which the other side sends when it has all it needs:
/// in a sum every rank's sums, which nobody sends before it expects those of the others.
/// `done` also says that what was sent to it has arrived, so that nobody waits for a send but that
/// of `done` itself: a message whose buffer is gone blocks its connection for good, so these have
/// one that outlives the calls.
class GlooCollective final : public Collective {
 public:
  GlooCollective(std::shared_ptr<gloo::Context> context, std::string name,
                 std::chrono::milliseconds limit)
      : context_(std::move(context)), name_(std::move(name)), limit_(limit) {
    if (context_->size > 1) done_ = context_->createUnboundBuffer(nullptr, 0);
  }

  /// Leaves once the others have its last word.
  ~GlooCollective() override {
    [[maybe_unused]] const Status status =
        guarded([&] { return last_done_left(std::min(limit_, kLeaveLimit)); });
  }

  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }
  Status all_reduce_sum(std::span<float> values) override { return reduce(values); }
  Status all_reduce_sum(std::span<double> values) override { return reduce(values); }

  Status broadcast(std::span<float> values) override {
    return guarded([&] {
      Peers peers = open(values.data(), values.size_bytes(), nullptr, 0);
      // Before `done`: a message leaves once both its send and its receive are known, and rank 0,
      // which waits for nothing, says `done` at once.
      for (Peer& peer : peers) {
        if (rank() == 0) send(peer, Message::kSums, 0, values.size_bytes());
        if (peer.rank == 0) peer.sums->recv(0, slot(Message::kSums), 0, values.size_bytes());
      }
      expect_done(peers);
      if (rank() != 0 && !received(*peers.front().sums)) return false;
      return finish(peers);
    });
  }

  void abort() override {
    const std::lock_guard lock(mutex_);
    close();
  }

 private:
  /// What a call has with another rank; the views end with the call.
  struct Peer {
    int rank = 0;
    Buffer* values = nullptr;  // To send from.
    Buffer* sums = nullptr;    // Over the values, to receive into.
    Buffer* terms = nullptr;   // Over the scratch memory, to receive into.
    size_t scratch = 0;        // Where its terms lie there, in elements.
  };
  using Peers = std::vector<Peer>;

  /// Runs `call`, whose false says that it was aborted, with what any of it needs before and after.
  template <class F>
  Status guarded(F&& call) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return left("it failed before or was aborted");
    }
    if (size() == 1) return ok_status();
    const NoBrokenPipeSignal no_signal;
    std::string why;
    try {
      if (!call()) why = "it was aborted";
    } catch (const std::exception& error) {
      why = gloo_message(error);
    }
    const std::lock_guard lock(mutex_);
    if (closed_) why = "it was aborted";
    // Closes before it returns: until then Gloo's thread may write into the caller's memory.
    if (!why.empty()) close();
    buffers_.clear();
    return why.empty() ? ok_status() : left(why);
  }

  Status left(std::string_view why) const {
    return unavailable(fmt::format("{}: {}; form a new group", name_, why));
  }

  /// With mutex_ held. Ends whoever waits here, and closes the connections, which ends the others.
  void close() {
    if (std::exchange(closed_, true)) return;
    for (const auto& buffer : buffers_) buffer->abortWaitRecv();
    if (done_) done_->abortWaitSend();
    if (size() > 1) context_->closeConnections();
  }

  /// The buffers of a call. `bytes` of values also make its messages' slots:
  /// ranks that differ in it never match, and end at the limit.
  Peers open(void* values, size_t bytes, void* scratch, size_t scratch_bytes) {
    const std::lock_guard lock(mutex_);
    ++call_;
    bytes_ = bytes;
    const auto make = [&](void* data, size_t size) {
      buffers_.push_back(context_->createUnboundBuffer(data, size));
      // An abort between two calls of Gloo's: seen at the first wait.
      if (closed_) buffers_.back()->abortWaitRecv();
      return buffers_.back().get();
    };
    Buffer* const source = make(values, bytes);
    Peers peers;
    for (int other = 0; other < size(); ++other) {
      if (other == rank()) continue;
      peers.push_back({other, source, make(values, bytes), make(scratch, scratch_bytes)});
    }
    return peers;
  }

  /// Makes the receives that are pending until the call's end.
  void expect_done(const Peers& peers) {
    for (const Peer& peer : peers) {
      peer.sums->recv(peer.rank, slot(Message::kSumsDone), 0, 0);
      peer.terms->recv(peer.rank, slot(Message::kTermsDone), 0, 0);
    }
  }

  uint64_t slot(Message message) const {
    return (call_ << 44) ^ (static_cast<uint64_t>(bytes_) << 2) ^ static_cast<uint64_t>(message);
  }

  void send(const Peer& peer, Message message, size_t offset, size_t bytes) {
    peer.values->send(peer.rank, slot(message), offset, bytes);
  }

  /// Waits for the next message into `buffer`: they come in the order in which they are sent, the
  /// segments' and then `done`. False after an abort.
  bool received(Buffer& buffer) { return buffer.waitRecv(nullptr, limit_); }

  /// Tells all that everything came from them, and waits for their word. The call before is over
  /// for all then, so its `done` left long ago.
  bool finish(const Peers& peers) {
    if (!last_done_left(limit_)) return false;
    for (const Peer& peer : peers) {
      for (const Message message : {Message::kSumsDone, Message::kTermsDone}) {
        done_->send(peer.rank, slot(message), 0, 0);
        ++done_sends_;
      }
    }
    return std::ranges::all_of(
        peers, [&](const Peer& peer) { return received(*peer.sums) && received(*peer.terms); });
  }

  bool last_done_left(std::chrono::milliseconds limit) {
    for (; done_sends_ > 0; --done_sends_) {
      if (!done_->waitSend(nullptr, limit)) return false;
    }
    return true;
  }

  template <class T>
  Status reduce(std::span<T> values) {
    return guarded([&] { return reduce_segments(values); });
  }

  /// Segment by segment: terms to the rank that adds them, sums back. The next segment's terms are
  /// under way while this one's are added.
  template <class T>
  bool reduce_segments(std::span<T> values) {
    const size_t length = std::min(kSegmentBytes / sizeof(T), values.size());
    const size_t segments = length == 0 ? 1 : (values.size() + length - 1) / length;
    const size_t share_max = length / static_cast<size_t>(size()) + 1;
    const size_t half = share_max * static_cast<size_t>(size() - 1);
    scratch_.resize(std::max(scratch_.size(), 2 * half * sizeof(T)));
    T* const scratch = reinterpret_cast<T*>(scratch_.data());
    Peers peers = open(values.data(), values.size_bytes(), scratch, 2 * half * sizeof(T));
    for (size_t i = 0; i < peers.size(); ++i) peers[i].scratch = i * share_max;
    expect_done(peers);

    const auto segment = [&](size_t number) {
      const size_t begin = number * length;
      return Range{begin, std::min(begin + length, values.size())};
    };
    const auto offset = [&](size_t number) { return number % 2 * half; };
    exchange_terms<T>(peers, segment(0), offset(0));
    for (size_t number = 0; number < segments; ++number) {
      if (number + 1 < segments) {
        exchange_terms<T>(peers, segment(number + 1), offset(number + 1));
      }
      for (const Peer& peer : peers) {
        if (!received(*peer.terms)) return false;
      }
      const Range own = share_of(segment(number), rank(), size());
      add_in_rank_order(values, own, peers, scratch + offset(number));
      exchange_sums<T>(peers, segment(number));
    }
    for (size_t number = 0; number < segments; ++number) {
      for (const Peer& peer : peers) {
        if (!received(*peer.sums)) return false;
      }
    }
    return finish(peers);
  }

  template <class T>
  void exchange_terms(const Peers& peers, const Range& segment, size_t scratch) {
    const Range own = share_of(segment, rank(), size());
    for (const Peer& peer : peers) {
      peer.terms->recv(peer.rank, slot(Message::kTerms), (scratch + peer.scratch) * sizeof(T),
                       own.size() * sizeof(T));
    }
    for (const Peer& peer : peers) {
      const Range theirs = share_of(segment, peer.rank, size());
      send(peer, Message::kTerms, theirs.begin * sizeof(T), theirs.size() * sizeof(T));
    }
  }

  template <class T>
  void exchange_sums(const Peers& peers, const Range& segment) {
    const Range own = share_of(segment, rank(), size());
    for (const Peer& peer : peers) {
      const Range theirs = share_of(segment, peer.rank, size());
      peer.sums->recv(peer.rank, slot(Message::kSums), theirs.begin * sizeof(T),
                      theirs.size() * sizeof(T));
    }
    for (const Peer& peer : peers) {
      send(peer, Message::kSums, own.begin * sizeof(T), own.size() * sizeof(T));
    }
  }

  /// Adds rank 0's terms, rank 1's and so on, as LocalCollective does.
  template <class T>
  void add_in_rank_order(std::span<T> values, const Range& own, const Peers& peers,
                         const T* scratch) const {
    std::vector<const T*> terms;
    for (const Peer& peer : peers) terms.push_back(scratch + peer.scratch);
    terms.insert(terms.begin() + rank(), values.data() + own.begin);
    T sums[kBlock];
    for (size_t begin = 0; begin < own.size(); begin += kBlock) {
      const size_t count = std::min(kBlock, own.size() - begin);
      std::copy_n(terms[0] + begin, count, sums);
      for (size_t rank = 1; rank < terms.size(); ++rank) {
        for (size_t i = 0; i < count; ++i) sums[i] += terms[rank][begin + i];
      }
      std::copy_n(sums, count, values.data() + own.begin + begin);
    }
  }

  const std::shared_ptr<gloo::Context> context_;
  const std::string name_;
  const std::chrono::milliseconds limit_;
  // Of the thread that reduces.
  std::vector<std::byte> scratch_;
  uint64_t call_ = 0;
  size_t bytes_ = 0;
  int done_sends_ = 0;  // Of the last call.
  // Of that thread and of those that abort.
  std::mutex mutex_;
  bool closed_ = false;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::unique_ptr<Buffer> done_;  // None when alone.
};

class GlooCollectiveFactory final : public CollectiveFactory {
 public:
  GlooCollectiveFactory(const GlooOptions& options, std::shared_ptr<gloo::transport::Device> device,
                        std::shared_ptr<RendezvousStore> store)
      : options_(options), device_(std::move(device)), store_(std::move(store)) {}

  Result<std::unique_ptr<Collective>> join(int64_t membership, std::span<const int> members,
                                           int self) override {
    const auto found = std::ranges::find(members, self);
    if (found == members.end()) {
      return invalid_argument(
          fmt::format("member {} is not among those of membership {}", self, membership));
    }
    const auto abandoned = [this, membership] { return membership <= abandoned_; };
    if (abandoned()) {
      return unavailable(fmt::format("membership {} was abandoned", membership));
    }
    const int rank = static_cast<int>(found - members.begin());
    const int size = static_cast<int>(members.size());
    const std::string name =
        fmt::format("group of membership {}, rank {} of {}", membership, rank, size);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    if (size > 1) {
      PERCHERON_RETURN_IF_ERROR(
          connect_all(*context, device_, *store_, membership, {options_.join_limit, abandoned})
              .with_context(name));
    }
    return std::unique_ptr<Collective>(
        std::make_unique<GlooCollective>(std::move(context), name, options_.operation_limit));
  }

  void abandon(int64_t membership) override {
    int64_t before = abandoned_;
    while (before < membership && !abandoned_.compare_exchange_weak(before, membership)) {
    }
  }

 private:
  const GlooOptions options_;
  const std::shared_ptr<gloo::transport::Device> device_;
  const std::shared_ptr<RendezvousStore> store_;
  std::atomic<int64_t> abandoned_ = std::numeric_limits<int64_t>::min();
};

}  // namespace

Result<std::unique_ptr<CollectiveFactory>> make_gloo_collective_factory(
    const GlooOptions& options, std::shared_ptr<RendezvousStore> store) {
  PERCHERON_ASSIGN_OR_RETURN(auto device, open_gloo_device(options.interface));
  return std::unique_ptr<CollectiveFactory>(
      std::make_unique<GlooCollectiveFactory>(options, std::move(device), std::move(store)));
}

}  // namespace percheron
