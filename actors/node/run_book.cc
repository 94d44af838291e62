#include "actors/node/run_book.h"

#include <fmt/format.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include "base/log.h"

namespace percheron {
namespace {

constexpr const char* kSuffix = ".run";
constexpr size_t kNameMax = 60;

Status check_name(const std::string& name) {
  const bool sound = !name.empty() && name.size() <= kNameMax && name.front() != '.' &&
                     std::all_of(name.begin(), name.end(), [](unsigned char c) {
                       return std::isalnum(c) || c == '-' || c == '_' || c == '.';
                     });
  if (sound) return ok_status();
  return invalid_argument(fmt::format(
      "'{}' can't name a run: use at most {} letters, digits, '-', '_' and '.'", name, kNameMax));
}

}  // namespace

bool run_is_over(proto::RunReport::State state) {
  return state == proto::RunReport::DONE || state == proto::RunReport::STOPPED ||
         state == proto::RunReport::FAILED;
}

std::string state_name(proto::RunReport::State state) {
  std::string name = proto::RunReport::State_Name(state);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

std::string RunBook::path_of(const std::string& id) const {
  return join_path(directory_, id + kSuffix);
}

Result<RunBook> RunBook::open(FileSystem& files, const Clock& clock, const std::string& directory) {
  PERCHERON_RETURN_IF_ERROR(files.create_directories(directory));
  RunBook book(files, clock, directory);
  PERCHERON_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.list(directory));
  for (const std::string& name : names) {
    if (!name.ends_with(kSuffix)) continue;
    const std::string path = join_path(directory, name);
    const Result<std::string> text = files.read_text(path);
    proto::RunRecord record;
    if (!text.ok() || !google::protobuf::TextFormat::ParseFromString(*text, &record) ||
        record.id() + kSuffix != name) {
      log_warning("{} is no record of a run and is left alone", path);
      continue;
    }
    book.records_[record.id()] = record;
  }
  return book;
}

std::string RunBook::free_id(const std::string& name,
                             const std::set<std::string>& elsewhere) const {
  std::string id = name;
  for (int number = 2; records_.count(id) != 0 || elsewhere.count(id) != 0; ++number) {
    id = fmt::format("{}-{}", name, number);
  }
  return id;
}

Result<proto::RunRecord*> RunBook::add(const std::string& name, const std::string& node,
                                       const proto::Run& config,
                                       const std::set<std::string>& elsewhere) {
  PERCHERON_RETURN_IF_ERROR(check_name(name));
  const std::string id = free_id(name, elsewhere);
  proto::RunRecord record;
  record.set_id(id);
  record.set_node(node);
  *record.mutable_config() = config;
  // Runs wait in this order, also where the clock of the day was set back.
  record.set_submitted(clock_->unix_seconds());
  for (const auto& [other, before] : records_) {
    if (before.submitted() < record.submitted()) continue;
    record.set_submitted(std::nextafter(before.submitted(), HUGE_VAL));
  }
  record.mutable_report()->set_state(proto::RunReport::QUEUED);
  PERCHERON_RETURN_IF_ERROR(save(record));
  return &(records_[id] = record);
}

Status RunBook::put(const proto::RunRecord& record) {
  PERCHERON_RETURN_IF_ERROR(check_name(record.id()));
  PERCHERON_RETURN_IF_ERROR(save(record));
  records_[record.id()] = record;
  return ok_status();
}

proto::RunRecord* RunBook::find(const std::string& id) {
  const auto record = records_.find(id);
  return record == records_.end() ? nullptr : &record->second;
}

std::vector<proto::RunRecord*> RunBook::all() {
  std::vector<proto::RunRecord*> all;
  for (auto& [id, record] : records_) all.push_back(&record);
  std::stable_sort(all.begin(), all.end(),
                   [](const auto* a, const auto* b) { return a->submitted() < b->submitted(); });
  return all;
}

Status RunBook::save(const proto::RunRecord& record) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(record, &text);
  return write_text_atomically(*files_, path_of(record.id()), text);
}

Status RunBook::remove(const std::string& id) {
  PERCHERON_RETURN_IF_ERROR(files_->remove_all(path_of(id)));
  records_.erase(id);
  return ok_status();
}

}  // namespace percheron
