#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace percheron {

enum class StatusCode {
  kOk,
  kInvalidArgument,     // The caller's input is wrong; the same call can't succeed.
  kNotFound,            // A file, key or device does not exist.
  kFailedPrecondition,  // The world is not in the state that the call needs.
  kResourceExhausted,   // Memory, disk or a named limit is used up.
  kDataLoss,            // Bytes are truncated, corrupt or contradict their checksum.
  kUnavailable,         // A peer or service does not answer now; a retry may.
  kCancelled,           // Somebody asked to stop.
  kInternal,            // A library or the operating system failed in an unexpected way.
};

/// The name of `code` as printed in messages, such as "invalid argument".
std::string_view status_code_name(StatusCode code);

/// The outcome of an operation that may fail in an expected way. The message says what, which
/// value, where, and what to do; it is one line without a trailing period.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  /// The same status with "`context`: " before its message; ok stays ok.
  Status with_context(std::string_view context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status ok_status() { return Status(); }
Status invalid_argument(std::string message);
Status not_found(std::string message);
Status failed_precondition(std::string message);
Status resource_exhausted(std::string message);
Status data_loss(std::string message);
Status unavailable(std::string message);
Status cancelled(std::string message);
Status internal_error(std::string message);

/// A value, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : value_(std::move(value)) {}  // NOLINT: implicit, so that `return value;` reads well.
  Result(Status status) : status_(std::move(status)) {  // NOLINT
    PERCHERON_CHECK(!status_.ok(), "a Result without a value needs an error");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & {
    PERCHERON_CHECK(ok(), status_.message());
    return *value_;
  }
  const T& value() const& {
    PERCHERON_CHECK(ok(), status_.message());
    return *value_;
  }
  /// By value: a reference into a temporary would dangle in a range-for.
  T value() && {
    PERCHERON_CHECK(ok(), status_.message());
    return *std::move(value_);
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace percheron

#define PERCHERON_CONCAT_INNER(a, b) a##b
#define PERCHERON_CONCAT(a, b) PERCHERON_CONCAT_INNER(a, b)

/// Returns the Status of `expression` from the calling function unless it is ok.
#define PERCHERON_RETURN_IF_ERROR(expression)            \
  do {                                                   \
    ::percheron::Status percheron_status = (expression); \
    if (!percheron_status.ok()) return percheron_status; \
  } while (false)

/// Evaluates `expression`, a Result; declares or assigns `target` with its value, or returns its
/// Status.
#define PERCHERON_ASSIGN_OR_RETURN(target, expression)                                    \
  PERCHERON_ASSIGN_OR_RETURN_INNER(PERCHERON_CONCAT(percheron_result_, __LINE__), target, \
                                   expression)
#define PERCHERON_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                        \
  if (!result.ok()) return result.status();                          \
  target = std::move(result).value()
