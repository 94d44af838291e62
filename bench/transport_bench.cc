// transport_bench [MEGABYTES] [ROUNDS] [CASES]: what the transport between processes costs beside
// the bare system calls, over this machine's loopback. All cases take turns, so that noise slows
// all alike; the best of the rounds counts, and each is given beside its own baseline. CASES runs
// only those whose name, or whose baseline's name, contains it.
// transport_bench large [MEGABYTES]: one pull of so much (default: 5 GiB, the features of 64K
// tokens of a large target), plain and by TLS, and how much memory it takes besides the region it
// fills. Both regions lie in this machine's memory.
//
// Both sides of a comparison have the same: the bytes come from a region of shared memory that was
// written before and go to one whose pages were touched before (huge ones where the system grants
// them), except where the name says "a new region"; sockets have TCP_NODELAY and the kernel's own
// buffer sizes; sender and receiver are threads of this process. CPU seconds are those of both.

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/crc32c.h"
#include "bench/process_memory.h"
#include "bench/transport_baselines.h"
#include "data/transport/bulk_client.h"
#include "data/transport/bulk_server.h"
#include "data/transport/certificates.h"
#include "data/transport/frame_channel.h"
#include "data/transport/listener.h"

namespace percheron {
namespace {

constexpr int kStreams = 4;
constexpr int kTransfersPerRound = 4;

SharedRegion new_region(size_t bytes) {
  return SharedRegion::create("bench", bytes, SharedRegion::Backing::kReserved).value();
}

/// A daemon's port and who pulls from it.
class Bulk {
 public:
  Bulk(const std::optional<std::string>& certificates, SharedRegion source, int streams)
      : credits_(source.size()), request_{1, 1, source.size(), crc32c(source.bytes())} {
    const auto region = std::make_shared<const SharedRegion>(std::move(source));
    const Status added = regions_.add(1, 1, region, region->size());
    PERCHERON_CHECK(added.ok(), added.message());
    listener_ = Listener::start({}, credentials("node2", certificates), system_random_bytes(),
                                [this](Connection connection) {
                                  (void)serve_bulk(*connection.stream, regions_);
                                })
                    .value();
    const Credentials self = credentials("node1", certificates);
    const auto connect = [this, self](Deadline deadline) -> Result<std::unique_ptr<ByteStream>> {
      PERCHERON_ASSIGN_OR_RETURN(Connection connection,
                                 connect_node(listener_->advertised(), "", self, Purpose::kBulk,
                                              system_random_bytes(), deadline));
      return std::move(connection.stream);
    };
    BulkClientOptions options;
    options.streams_per_pull = streams;
    client_ = std::make_unique<BulkClient>("node2", connect, credits_, options);
  }

  /// Into the region of the last time.
  Status reuse() {
    if (!used_) used_ = new_region(request_.bytes);
    PERCHERON_ASSIGN_OR_RETURN(PulledRegion pulled,
                               client_->pull_into(std::move(*used_), request_,
                                                  Deadline::after(std::chrono::seconds(100))));
    used_ = std::move(pulled.region);
    return ok_status();
  }
  /// Into a new region; calls `arrived` while it is there.
  Status pull_new(const std::function<void()>& arrived = [] {}) {
    PERCHERON_ASSIGN_OR_RETURN(const PulledRegion pulled,
                               client_->pull(request_, Deadline::after(std::chrono::seconds(100))));
    arrived();
    return ok_status();
  }

 private:
  static Credentials credentials(const std::string& name,
                                 const std::optional<std::string>& certificates) {
    Credentials credentials{
        {name, make_uuid(system_random_bytes()), make_uuid(system_random_bytes()), "bench"},
        ClusterSecret::parse(std::string(64, 's'), "the benchmark").value(),
        nullptr};
    if (certificates) {
      credentials.tls = TlsContext::load(system_files(),
                                         {CertificateFiles::ca(*certificates),
                                          CertificateFiles::certificate(*certificates, name),
                                          CertificateFiles::key(*certificates, name)},
                                         system_clock())
                            .value();
    }
    return credentials;
  }

  ByteCredits credits_;
  const BulkRequest request_;
  BulkRegions regions_;
  std::unique_ptr<Listener> listener_;
  std::optional<SharedRegion> used_;
  std::unique_ptr<BulkClient> client_;  // last: it ends before what it uses
};

/// A producer that copies its bytes into a region and passes it to a consumer of its own thread.
class HandOver {
 public:
  explicit HandOver(std::span<const std::byte> source)
      : source_(source), region_(new_region(source.size())) {
    auto sockets = unix_socket_pair().value();
    here_ = unix_channel(std::move(sockets.first), "the consumer").value();
    there_ = unix_channel(std::move(sockets.second), "the producer").value();
    consumer_ = std::thread([this] { consume(); });
  }
  ~HandOver() {
    here_->close();
    consumer_.join();
  }

  /// Into the region of the last time; its descriptor has been passed before.
  Status reuse() {
    std::memcpy(region_.writable_bytes().data(), source_.data(), source_.size());
    PERCHERON_RETURN_IF_ERROR(
        here_->send("slot 1", Deadline::never(), passed_ ? nullptr : &region_.fd()));
    passed_ = true;
    return here_->receive(Deadline::never()).status();
  }
  /// Into a new region, which the consumer maps.
  Status pass_new() {
    SharedRegion region = new_region(source_.size());
    std::memcpy(region.writable_bytes().data(), source_.data(), source_.size());
    PERCHERON_RETURN_IF_ERROR(here_->send("new", Deadline::never(), &region.fd()));
    return here_->receive(Deadline::never()).status();
  }

 private:
  void consume() {
    std::optional<SharedRegion> kept;
    for (;;) {
      auto frame = there_->receive(Deadline::never());
      if (!frame.ok() || !frame->has_value()) return;
      if ((*frame)->fd.valid()) {
        kept =
            SharedRegion::map(std::move((*frame)->fd), source_.size(), SharedRegion::Access::kRead)
                .value();
      }
      // The bytes are there: the first and the last.
      if (kept->bytes().front() != source_.front() || kept->bytes().back() != source_.back())
        return;
      if (!there_->send("done", Deadline::never()).ok()) return;
    }
  }

  const std::span<const std::byte> source_;
  SharedRegion region_;
  bool passed_ = false;
  std::unique_ptr<FrameChannel> here_, there_;
  std::thread consumer_;
};

struct Case {
  std::string name;
  std::function<Status()> transfer;
  std::string baseline;  // the case it is compared with; empty for one that is a baseline
  double bar = 0;        // the ratio that it should reach
  double best_seconds = 1e30;
  double best_cpu_seconds = 1e30;
};

// Of all threads of this process, in the kernel too.
double cpu_seconds() {
  rusage usage{};
  PERCHERON_CHECK(::getrusage(RUSAGE_SELF, &usage) == 0, "getrusage() of oneself");
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void keep_those_with(const std::string& part, std::vector<Case>& cases) {
  const std::vector<Case> all = cases;
  std::erase_if(cases, [&](const Case& it) {
    const bool is_baseline = std::ranges::any_of(all, [&](const Case& other) {
      return other.baseline == it.name && other.name.find(part) != other.name.npos;
    });
    return !is_baseline && it.name.find(part) == it.name.npos;
  });
}

Status run_rounds(std::vector<Case>& cases, int rounds) {
  for (int round = -1; round < rounds; ++round) {  // the first one only warms up
    for (Case& it : cases) {
      const double cpu_begin = cpu_seconds();
      const int64_t begin = system_clock().monotonic_ns();
      for (int i = 0; i < kTransfersPerRound; ++i) PERCHERON_RETURN_IF_ERROR(it.transfer());
      const double seconds = static_cast<double>(system_clock().monotonic_ns() - begin) * 1e-9;
      const double cpu = cpu_seconds() - cpu_begin;
      if (round < 0) continue;
      it.best_seconds = std::min(it.best_seconds, seconds / kTransfersPerRound);
      it.best_cpu_seconds = std::min(it.best_cpu_seconds, cpu / kTransfersPerRound);
    }
  }
  return ok_status();
}

void report(const std::vector<Case>& cases, size_t bytes) {
  for (const Case& it : cases) {
    fmt::print("{:<34} {:>6.2f} GB/s  {:>5.2f} CPU s/GB", it.name,
               static_cast<double>(bytes) / it.best_seconds * 1e-9,
               it.best_cpu_seconds / static_cast<double>(bytes) * 1e9);
    const auto baseline = std::ranges::find(cases, it.baseline, &Case::name);
    if (baseline != cases.end()) {
      fmt::print("  {:>5.1f} % of {}", 100 * baseline->best_seconds / it.best_seconds, it.baseline);
      if (it.bar > 0) fmt::print(" (bar {:.0f} %)", 100 * it.bar);
    }
    fmt::print("\n");
  }
}

void measure_checksums(std::span<const std::byte> bytes) {
  for (const auto& [method, name] : {std::pair(Crc32cMethod::kInstruction, "instruction"),
                                     std::pair(Crc32cMethod::kFold128, "fold 128"),
                                     std::pair(Crc32cMethod::kFold512, "fold 512")}) {
    if (!has_crc32c_method(method)) continue;
    const auto piece = bytes.first(std::min<size_t>(bytes.size(), size_t{256} << 10));
    double best = 1e30;
    uint32_t crc = 0;
    for (int i = 0; i < 50; ++i) {
      const int64_t begin = system_clock().monotonic_ns();
      for (int k = 0; k < 20; ++k) crc = crc32c_by(method, piece, crc);
      best = std::min(best, static_cast<double>(system_clock().monotonic_ns() - begin) * 1e-9 / 20);
    }
    fmt::print("CRC-32C, {:<33} {:>6.2f} GB/s  ({:08x})\n", name,
               static_cast<double>(piece.size()) / best * 1e-9, crc);
  }
}

Status make_certificates(const std::string& directory) {
  PERCHERON_RETURN_IF_ERROR(
      init_certificates(system_files(), directory, 10, system_clock(), system_random_bytes()));
  for (const char* name : {"node1", "node2"}) {
    PERCHERON_RETURN_IF_ERROR(
        issue_certificate(system_files(), directory, {name, {"127.0.0.1"}, 10}, system_clock()));
  }
  return ok_status();
}

SharedRegion make_source(size_t bytes) {
  SharedRegion region = new_region(bytes);
  uint32_t value = 1;
  for (std::byte& byte : region.writable_bytes()) {
    value = value * 1664525 + 1013904223;
    byte = static_cast<std::byte>(value >> 24);
  }
  return region;
}

Status measure(size_t bytes, int rounds, const std::string& names,
               const std::string& certificates) {
  PERCHERON_RETURN_IF_ERROR(make_certificates(certificates));
  const SharedRegion source = make_source(bytes);
  SharedRegion used = new_region(bytes);  // with huge pages, as every region
  const std::span<std::byte> into = used.writable_bytes();
  PERCHERON_ASSIGN_OR_RETURN(const auto tcp, tcp_baseline(source.bytes(), 1));
  PERCHERON_ASSIGN_OR_RETURN(const auto tcp4, tcp_baseline(source.bytes(), kStreams));
  PERCHERON_ASSIGN_OR_RETURN(
      const auto tls,
      tls_baseline(source.bytes(), CertificateFiles::certificate(certificates, "node1"),
                   CertificateFiles::key(certificates, "node1")));
  Bulk plain(std::nullopt, make_source(bytes), 1),
      plain4(std::nullopt, make_source(bytes), kStreams),
      secure(certificates, make_source(bytes), 1),
      secure4(certificates, make_source(bytes), kStreams);
  HandOver hand_over(source.bytes());
  const auto into_new = [bytes](Baseline& baseline) {
    SharedRegion region = new_region(bytes);
    return baseline.transfer(region.writable_bytes());
  };
  std::vector<Case> cases = {
      {"TCP x1", [&] { return tcp->transfer(into); }, ""},
      {"bulk pull x1", [&] { return plain.reuse(); }, "TCP x1", 0.9},
      {"TCP x4", [&] { return tcp4->transfer(into); }, ""},
      {"bulk pull x4", [&] { return plain4.reuse(); }, "TCP x4", 0.9},
      {"bare TLS x1", [&] { return tls->transfer(into); }, ""},
      {"bulk pull by TLS x1", [&] { return secure.reuse(); }, "bare TLS x1", 0.8},
      {"bulk pull by TLS x4", [&] { return secure4.reuse(); }, "bare TLS x1"},
      {"TCP x4 into a new region", [&] { return into_new(*tcp4); }, ""},
      {"bulk pull x4 into a new region", [&] { return plain4.pull_new(); },
       "TCP x4 into a new region"},
      {"memcpy",
       [&] {
         std::memcpy(into.data(), source.bytes().data(), bytes);
         return ok_status();
       },
       ""},
      {"hand-over in shared memory", [&] { return hand_over.reuse(); }, "memcpy", 0.7},
      {"hand-over in a new region", [&] { return hand_over.pass_new(); }, "memcpy"},
  };
  keep_those_with(names, cases);
  PERCHERON_RETURN_IF_ERROR(run_rounds(cases, rounds));
  report(cases, bytes);
  if (names.empty()) measure_checksums(source.bytes());
  return ok_status();
}

Status measure_large(size_t bytes, const std::string& certificates) {
  PERCHERON_RETURN_IF_ERROR(make_certificates(certificates));
  for (const bool by_tls : {false, true}) {
    Bulk bulk(by_tls ? std::optional(certificates) : std::nullopt, make_source(bytes), kStreams);
    const uint64_t source_bytes = memory_bytes("RssShmem:");
    PrivateMemoryWatch watch;
    const int64_t begin = system_clock().monotonic_ns();
    uint64_t shared_bytes = 0;
    PERCHERON_RETURN_IF_ERROR(
        bulk.pull_new([&] { shared_bytes = memory_bytes("RssShmem:") - source_bytes; }));
    const double seconds = static_cast<double>(system_clock().monotonic_ns() - begin) * 1e-9;
    fmt::print(
        "{} MiB {}: {:.2f} s, {:.2f} GB/s; shared memory {} MiB more, private at most {:.1f} MiB "
        "more\n",
        bytes >> 20, by_tls ? "by TLS" : "plain", seconds,
        static_cast<double>(bytes) / seconds * 1e-9, shared_bytes >> 20,
        static_cast<double>(watch.stop()) / (1 << 20));
  }
  return ok_status();
}

int run(int argc, char** argv) {
  const bool large = argc > 1 && std::string_view(argv[1]) == "large";
  if (large) {
    --argc;
    ++argv;
  }
  const size_t megabytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : large ? 5120 : 64;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 10;
  const std::string names = argc > 3 ? argv[3] : "";
  if (megabytes == 0 || rounds <= 0) {
    fmt::print(stderr,
               "error: transport_bench [MEGABYTES] [ROUNDS] [CASES] takes numbers above 0\n");
    return 2;
  }
  std::string directory = std::filesystem::temp_directory_path() / "percheron_bench_XXXXXX";
  if (::mkdtemp(directory.data()) == nullptr) {
    fmt::print(stderr, "error: no directory for certificates can be made in the temporary one\n");
    return 1;
  }
  const Status status = large ? measure_large(megabytes << 20, directory)
                              : measure(megabytes << 20, rounds, names, directory);
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
  if (status.ok()) return 0;
  fmt::print(stderr, "error: {}\n", status.message());
  return 1;
}

}  // namespace
}  // namespace percheron

int main(int argc, char** argv) { return percheron::run(argc, argv); }
