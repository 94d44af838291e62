#include "tools/tensorboard_file.h"

#include <fmt/format.h>

#include <cstring>

#include "base/hash.h"
#include "base/log.h"

namespace percheron {
namespace {

// Field tags of event.proto and summary.proto: (number << 3) | wire type.
constexpr char kWallTime = (1 << 3) | 1, kStep = (2 << 3) | 0, kFileVersion = (3 << 3) | 2,
               kSummary = (5 << 3) | 2;
constexpr char kValue = (1 << 3) | 2, kTag = (1 << 3) | 2, kSimpleValue = (2 << 3) | 5;

template <class T>
void put_fixed(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 128; value >>= 7) out.push_back(static_cast<char>(value | 128));
  out.push_back(static_cast<char>(value));
}

void put_bytes(std::string& out, char tag, const std::string& bytes) {
  out.push_back(tag);
  put_varint(out, bytes.size());
  out += bytes;
}

uint32_t masked_crc(const std::string& bytes) {
  const uint32_t crc = crc32c(std::as_bytes(std::span<const char>(bytes)));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::string event_head(double wall_time) {
  std::string event(1, kWallTime);
  put_fixed(event, wall_time);
  return event;
}

}  // namespace

Result<std::unique_ptr<TensorboardFile>> TensorboardFile::create(FileSystem& files,
                                                                 const Clock& clock,
                                                                 const std::string& directory) {
  const std::string name =
      fmt::format("events.out.tfevents.{:.0f}.percheron", clock.unix_seconds());
  PERCHERON_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file,
                             files.create(join_path(directory, name)));
  std::unique_ptr<TensorboardFile> result(new TensorboardFile(std::move(file), clock));
  std::string event = event_head(clock.unix_seconds());
  put_bytes(event, kFileVersion, "brain.Event:2");
  result->write_record(event);
  return result;
}

void TensorboardFile::write_record(const std::string& record) {
  std::string framed;
  put_fixed(framed, static_cast<uint64_t>(record.size()));
  put_fixed(framed, masked_crc(framed));
  framed += record;
  put_fixed(framed, masked_crc(record));
  const Status status = file_->append(std::as_bytes(std::span<const char>(framed)));
  if (!status.ok() && !failed_) {
    failed_ = true;
    log_warning("the TensorBoard file is incomplete from here on: {}", status.message());
  }
}

void TensorboardFile::write_event(int64_t step, const Scalars& scalars) {
  std::string summary;
  for (const auto& [name, number] : scalars) {
    std::string value;
    put_bytes(value, kTag, name);
    value.push_back(kSimpleValue);
    put_fixed(value, static_cast<float>(number));
    put_bytes(summary, kValue, value);
  }
  std::string event = event_head(clock_.unix_seconds());
  event.push_back(kStep);
  put_varint(event, static_cast<uint64_t>(step));
  put_bytes(event, kSummary, summary);
  write_record(event);
}

void TensorboardFile::on_step(const StepReport& report) {
  write_event(report.step, step_scalars(report));
}
void TensorboardFile::on_evaluation(const EvaluationReport& report) {
  write_event(report.step, evaluation_scalars(report));
}

}  // namespace percheron
