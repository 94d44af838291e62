#include "data/transport/tls_socket.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstdint>

#include "base/check.h"

namespace percheron {
namespace {

int fd_of(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

// What a socket's call returned, as BIO_METHOD reports it.
int outcome(BIO* bio, ssize_t count, size_t* done) {
  BIO_clear_retry_flags(bio);
  *done = count > 0 ? static_cast<size_t>(count) : 0;
  return count > 0 ? 1 : 0;
}

int write_socket(BIO* bio, const char* bytes, size_t size, size_t* written) {
  const ssize_t count = ::send(fd_of(bio), bytes, size, MSG_NOSIGNAL);
  const int result = outcome(bio, count, written);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return result;
}

int read_socket(BIO* bio, char* bytes, size_t size, size_t* read) {
  const ssize_t count = ::recv(fd_of(bio), bytes, size, 0);
  const int result = outcome(bio, count, read);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  if (count == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  return result;
}

long control_socket(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_FLUSH) return 1;
  if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
  return 0;
}

BIO_METHOD* make_method() {
  BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "percheron socket");
  PERCHERON_CHECK(method != nullptr, "OpenSSL has no memory");
  BIO_meth_set_write_ex(method, write_socket);
  BIO_meth_set_read_ex(method, read_socket);
  BIO_meth_set_ctrl(method, control_socket);
  return method;
}

}  // namespace

BioPtr make_socket_bio(int fd) {
  static const BioMethodPtr method(make_method());
  BioPtr bio(BIO_new(method.get()));
  PERCHERON_CHECK(bio != nullptr, "OpenSSL has no memory");
  BIO_set_data(bio.get(), reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  BIO_set_init(bio.get(), 1);
  return bio;
}

}  // namespace percheron
