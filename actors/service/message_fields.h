#pragma once

// A message's fields as protobuf encodes them: numbered from 1 in the order of the message's
// inspect(), so that a message is written down once, where it is declared. A reader skips numbers
// that it does not know and leaves at their defaults those that are absent.

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <bit>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/compat.h"
#include "actors/messages.h"

namespace percheron {

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};

// Wire types of the protobuf encoding.
enum class WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

/// An inspector that writes.
class FieldWriter {
 public:
  using result_type = void;

  template <class... Fields>
  void operator()(const caf::meta::type_name_t& type, Fields&... fields) {
    type_ = type.value;
    google::protobuf::io::StringOutputStream stream(&bytes_);
    google::protobuf::io::CodedOutputStream out(&stream);
    uint32_t number = 0;
    (write(out, ++number, fields), ...);
  }

  /// The name of what was written.
  const char* type() const { return type_; }
  std::string take() { return std::move(bytes_); }

  template <class T>
  static std::string encode(T& value) {
    FieldWriter writer;
    inspect(writer, value);
    return writer.take();
  }

 private:
  using Out = google::protobuf::io::CodedOutputStream;

  static void tag(Out& out, uint32_t number, WireType type) {
    out.WriteTag(number << 3 | static_cast<uint32_t>(type));
  }
  static void write_bytes(Out& out, uint32_t number, const std::string& bytes) {
    tag(out, number, WireType::kBytes);
    out.WriteVarint32(static_cast<uint32_t>(bytes.size()));
    out.WriteString(bytes);
  }
  template <class T>
  static void write(Out& out, uint32_t number, T& value) {
    if constexpr (std::is_enum_v<T>) {
      auto integer = static_cast<int64_t>(value);
      write(out, number, integer);
    } else if constexpr (std::is_integral_v<T>) {
      tag(out, number, WireType::kVarint);
      out.WriteVarint64(static_cast<uint64_t>(static_cast<int64_t>(value)));
    } else if constexpr (std::is_same_v<T, double>) {
      tag(out, number, WireType::kFixed64);
      out.WriteLittleEndian64(std::bit_cast<uint64_t>(value));
    } else if constexpr (std::is_same_v<T, std::string>) {
      write_bytes(out, number, value);
    } else if constexpr (IsVector<T>::value) {
      for (auto& element : value) write(out, number, element);  // repeated, not packed
    } else {
      write_bytes(out, number, encode(value));
    }
  }

  const char* type_ = "";
  std::string bytes_;
};

/// An inspector that reads. The result is false where the bytes are no such message.
class FieldReader {
 public:
  using result_type = bool;

  explicit FieldReader(const std::string& bytes) : bytes_(bytes) {}

  template <class... Fields>
  bool operator()(const caf::meta::type_name_t&, Fields&... fields) {
    In in(reinterpret_cast<const uint8_t*>(bytes_.data()), static_cast<int>(bytes_.size()));
    while (true) {
      const uint32_t tag = in.ReadTag();
      if (tag == 0) return in.ConsumedEntireMessage();
      const auto type = static_cast<WireType>(tag & 7);
      uint32_t number = 0;
      bool known = false, read_well = true;
      const auto take = [&](auto& field) {
        if (++number != tag >> 3) return;
        known = true;
        read_well = read(in, type, field);
      };
      (take(fields), ...);
      if (!known) read_well = skip(in, type);
      if (!read_well) return false;
    }
  }

  template <class T>
  static bool decode(const std::string& bytes, T& value) {
    FieldReader reader(bytes);
    return inspect(reader, value);
  }

 private:
  using In = google::protobuf::io::CodedInputStream;

  static bool read_bytes(In& in, WireType type, std::string& bytes) {
    uint32_t size = 0;
    return type == WireType::kBytes && in.ReadVarint32(&size) &&
           in.ReadString(&bytes, static_cast<int>(size));
  }
  static bool skip(In& in, WireType type) {
    uint64_t integer = 0;
    uint32_t half = 0;
    std::string bytes;
    switch (type) {
      case WireType::kVarint: return in.ReadVarint64(&integer);
      case WireType::kFixed64: return in.ReadLittleEndian64(&integer);
      case WireType::kBytes: return read_bytes(in, type, bytes);
      case WireType::kFixed32: return in.ReadLittleEndian32(&half);
    }
    return false;
  }
  template <class T>
  static bool read(In& in, WireType type, T& value) {
    if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
      uint64_t integer = 0;
      if (type != WireType::kVarint || !in.ReadVarint64(&integer)) return false;
      value = static_cast<T>(static_cast<int64_t>(integer));
      return true;
    } else if constexpr (std::is_same_v<T, double>) {
      uint64_t bits = 0;
      if (type != WireType::kFixed64 || !in.ReadLittleEndian64(&bits)) return false;
      value = std::bit_cast<double>(bits);
      return true;
    } else if constexpr (std::is_same_v<T, std::string>) {
      return read_bytes(in, type, value);
    } else if constexpr (IsVector<T>::value) {
      return read(in, type, value.emplace_back());
    } else {
      std::string bytes;
      return read_bytes(in, type, bytes) && decode(bytes, value);
    }
  }

  const std::string& bytes_;
};

}  // namespace percheron
