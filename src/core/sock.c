/* SPDX-License-Identifier: MIT */
#include "core/sock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/deferred_close.h"
#include "core/error.h"
#include "core/sys.h"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* asm-generic/socket.h, since 6.16 */
#endif

#define ADDRESS_FORMS "write tcp://host:port, unix:///path or unix://@name"

static void set_abstract(const char *name, size_t length, struct address *address) {
  memset(address, 0, sizeof *address);
  struct sockaddr_un *un = (struct sockaddr_un *)&address->storage;
  un->sun_family = AF_UNIX;
  memcpy(un->sun_path + 1, name, length);
  address->length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
  address->local = address->loopback = true;
}

void address_abstract(const char *name, struct address *address) {
  set_abstract(name, strnlen(name, 64), address);
}

static int parse_unix(const char *text, const char *name, struct address *address) {
  struct sockaddr_un *un = (struct sockaddr_un *)&address->storage;
  size_t length = strlen(name);
  if (length < 2 || (name[0] != '/' && name[0] != '@'))
    return error_set(HAUL_EADDRESS, 0, text, ADDRESS_FORMS, "not an absolute path or @name");
  if (length >= sizeof un->sun_path)
    return error_set(HAUL_EADDRESS, ENAMETOOLONG, text, "use a shorter path, or unix://@name",
                     "the path is longer than %zu bytes", sizeof un->sun_path - 1);
  if (name[0] == '@') {
    set_abstract(name + 1, length - 1, address);
    return 0;
  }
  address->local = address->loopback = true;
  un->sun_family = AF_UNIX;
  memcpy(un->sun_path, name, length + 1);
  memcpy(address->path, name, length + 1);
  address->length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + 1);
  return 0;
}

static bool is_loopback(const struct sockaddr_storage *storage) {
  if (storage->ss_family == AF_INET)
    return ntohl(((const struct sockaddr_in *)storage)->sin_addr.s_addr) >> 24 == 127;
  if (storage->ss_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)storage)->sin6_addr);
  return false;
}

/* Splits "host:port" or "[host]:port"; false for other texts. */
static bool split_host(const char *text, char *host, size_t host_size, const char **port) {
  const char *colon = strrchr(text, ':');
  if (!colon || colon == text || colon[1] == '\0')
    return false;
  size_t length = (size_t)(colon - text);
  const char *from = text;
  if (text[0] == '[') {
    if (length < 3 || text[length - 1] != ']')
      return false;
    from++;
    length -= 2;
  } else if (strchr(text, ':') != colon) {
    return false;
  }
  if (length >= host_size)
    return false;
  memcpy(host, from, length);
  host[length] = '\0';
  *port = colon + 1;
  return true;
}

static int parse_tcp(const char *text, const char *rest, int64_t until, struct address *address) {
  char host[256];
  const char *port;
  char *end;
  if (!split_host(rest, host, sizeof host, &port))
    return error_set(HAUL_EADDRESS, 0, text, ADDRESS_FORMS "; put IPv6 addresses in brackets",
                     "host and port are missing");
  errno = 0;
  long number = strtol(port, &end, 10);
  if (*end || errno || port[0] < '0' || port[0] > '9' || number > 65535)
    return error_set(HAUL_EADDRESS, 0, text, "write a port of 0 to 65535",
                     "\"%.32s\" is not a port", port);
  char digits[24]; /* without leading zeros */
  snprintf(digits, sizeof digits, "%ld", number);
  int code = resolve(host, digits, text, until, &address->storage, &address->length);
  if (code)
    return code;
  address->loopback = is_loopback(&address->storage);
  return 0;
}

static int parse_inherited(const char *text, const char *number, struct address *address) {
  char *end;
  int listens = 0, type = 0;
  socklen_t size = sizeof listens;
  errno = 0;
  long fd = strtol(number, &end, 10);
  if (number[0] < '0' || number[0] > '9' || *end || errno || fd < 3 || fd > INT_MAX)
    return error_set(HAUL_EADDRESS, 0, text, "use fd://3 or above", "this is no descriptor");
  address->length = sizeof address->storage;
  if (getsockopt((int)fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || !listens ||
      getsockopt((int)fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM ||
      getsockname((int)fd, (struct sockaddr *)&address->storage, &address->length) != 0)
    return error_set(HAUL_EADDRESS, errno, text,
                     "use fd://3 for the first socket of a systemd socket unit",
                     "this process has no listening socket there");
  address->inherited = (int)fd;
  address->local = address->storage.ss_family == AF_UNIX;
  address->loopback = address->local || is_loopback(&address->storage);
  if (address->local || address->storage.ss_family == AF_INET ||
      address->storage.ss_family == AF_INET6)
    return 0;
  return error_set(HAUL_EADDRESS, 0, text, NULL, "the socket is neither TCP nor a Unix stream");
}

int address_parse(const char *text, int64_t until, struct address *address) {
  memset(address, 0, sizeof *address);
  if (!text)
    return error_set(HAUL_EINVAL, 0, NULL, ADDRESS_FORMS, "no address");
  if (strncmp(text, "unix://", 7) == 0)
    return parse_unix(text, text + 7, address);
  if (strncmp(text, "fd://", 5) == 0)
    return parse_inherited(text, text + 5, address);
  if (strncmp(text, "tcp://", 6) == 0)
    return parse_tcp(text, text + 6, until, address);
  return error_set(HAUL_EADDRESS, 0, text, ADDRESS_FORMS, "unknown kind of address");
}

void address_format(const struct address *address, char *text, size_t size) {
  char host[INET6_ADDRSTRLEN] = "";
  const struct sockaddr_storage *storage = &address->storage;
  if (storage->ss_family == AF_UNIX) {
    const struct sockaddr_un *un = (const struct sockaddr_un *)storage;
    int length = (int)(address->length - offsetof(struct sockaddr_un, sun_path));
    if (un->sun_path[0])
      snprintf(text, size, "unix://%s", un->sun_path);
    else
      snprintf(text, size, "unix://@%.*s", length - 1, un->sun_path + 1);
  } else if (storage->ss_family == AF_INET6) {
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)storage;
    inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof host);
    snprintf(text, size, "tcp://[%s]:%u", host, ntohs(in6->sin6_port));
  } else {
    const struct sockaddr_in *in = (const struct sockaddr_in *)storage;
    inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
    snprintf(text, size, "tcp://%s:%u", host, ntohs(in->sin_port));
  }
}

static void pass_descriptors(int fd, int pass) {
  setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &pass, sizeof pass); /* ENOPROTOOPT before 6.16 */
}

/* A socket file is stale when connecting to it is refused. */
static bool is_stale(const struct address *address) {
  struct stat status;
  if (!address->path[0] || stat(address->path, &status) != 0 || !S_ISSOCK(status.st_mode))
    return false;
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return false;
  bool stale = connect(fd, (const struct sockaddr *)&address->storage, address->length) != 0 &&
               errno == ECONNREFUSED;
  close(fd);
  return stale;
}

static int bind_error(const struct address *address, int system, const char *object) {
  struct stat status;
  if (system == EADDRINUSE && address->path[0] && stat(address->path, &status) == 0 &&
      !S_ISSOCK(status.st_mode))
    return error_set(HAUL_EADDRINUSE, ENOTSOCK, object, "choose another path, or remove the file",
                     "the file exists and is no socket");
  if (system == EADDRINUSE)
    return error_set(HAUL_EADDRINUSE, system, object,
                     "choose another port or path (port 0 takes a free one), or find the listener "
                     "with: ss -lxtp",
                     "another process listens here already");
  if (system == EACCES && !address->path[0])
    return error_set(HAUL_EADDRESS, system, object,
                     "choose a port of 1024 or more, or grant CAP_NET_BIND_SERVICE",
                     "cannot be bound: %s", strerror(system));
  if (system == EADDRNOTAVAIL || system == ENOENT || system == ENOTDIR || system == EACCES ||
      system == EROFS)
    return error_set(HAUL_EADDRESS, system, object,
                     address->path[0] ? "choose a path in a folder that this user can write to"
                                      : "choose an address of this host: ip addr",
                     "cannot be bound: %s", strerror(system));
  return error_system(system, object, "bind");
}

/* Before the connection, as a system default of BBR sets pacing on the socket for good. Where many
 * sockets share a host's CPUs, the pacing timers take half of them (bench/run peers-64). */
static void choose_congestion(const struct address *address, int fd) {
  if (address->loopback && !address->local)
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

/* The parent process bound it and keeps its file. */
static int take_inherited(const struct address *address, int *descriptor) {
  int fd = fcntl(address->inherited, F_DUPFD_CLOEXEC, 3); /* other processes may share it */
  if (fd < 0 || fcntl(fd, F_SETFL, O_NONBLOCK) != 0) {
    int system = errno;
    if (fd >= 0)
      close(fd);
    return error_system(system, "fd://", "fcntl");
  }
  if (address->local)
    pass_descriptors(fd, 0);
  choose_congestion(address, fd);
  *descriptor = fd;
  return 0;
}

int sock_open(const struct address *address, const char *object, int *descriptor) {
  int fd =
      sys_ops.socket(address->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return error_system(errno, object, "socket");
  if (address->local)
    pass_descriptors(fd, 0);
  choose_congestion(address, fd);
  *descriptor = fd;
  return 0;
}

int sock_listen(struct address *address, int *descriptor) {
  char text[160];
  if (address->inherited)
    return take_inherited(address, descriptor);
  address_format(address, text, sizeof text);
  int fd = -1, code = sock_open(address, text, &fd); /* accepted sockets inherit its options */
  if (code)
    return code;
  int one = 1;
  if (!address->local)
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  const struct sockaddr *name = (const struct sockaddr *)&address->storage;
  int failed = bind(fd, name, address->length);
  if (failed && errno == EADDRINUSE && is_stale(address)) {
    unlink(address->path);
    failed = bind(fd, name, address->length);
  }
  if (failed || listen(fd, 128) != 0) {
    code = bind_error(address, errno, text);
    close(fd);
    return code;
  }
  address->length = sizeof address->storage;
  getsockname(fd, (struct sockaddr *)&address->storage, &address->length);
  *descriptor = fd;
  return 0;
}

int sock_connect_error(int system, const char *object) {
  if (system == ETIMEDOUT)
    return error_set(HAUL_ETIMEDOUT, system, object,
                     "check that the host is up and the port open: ping; ss -lt on the host",
                     "no answer in time");
  if (system == ECONNREFUSED || system == ENOENT)
    return error_set(HAUL_ECONNECT, system, object,
                     "start a node there: haul serve --listen ADDRESS", "nobody listens there");
  return error_set(HAUL_ECONNECT, system, object,
                   "check the address, the route and the permissions", "cannot connect: %s",
                   strerror(system));
}

int sock_connect_start(int fd, const struct address *address) {
  if (connect(fd, (const struct sockaddr *)&address->storage, address->length) == 0) {
    sock_tune(fd);
    return 0;
  }
  return errno == EINTR ? EINPROGRESS : errno;
}

int sock_connect_end(int fd) {
  int system = 0;
  socklen_t size = sizeof system;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &system, &size);
  if (system == 0)
    sock_tune(fd);
  return system;
}

int sock_accept(int listener) {
  int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0)
    sock_tune(fd);
  return fd;
}

void sock_origin(int descriptor, char *text, size_t size) {
  struct sockaddr_storage other = {.ss_family = AF_UNSPEC};
  socklen_t length = sizeof other;
  text[0] = '\0';
  if (getpeername(descriptor, (struct sockaddr *)&other, &length) != 0)
    return;
  if (other.ss_family == AF_INET)
    inet_ntop(AF_INET, &((struct sockaddr_in *)&other)->sin_addr, text, (socklen_t)size);
  else if (other.ss_family == AF_INET6)
    inet_ntop(AF_INET6, &((struct sockaddr_in6 *)&other)->sin6_addr, text, (socklen_t)size);
}

void sock_other(int descriptor, char *text, size_t size) {
  struct sockaddr_storage other = {.ss_family = AF_UNSPEC};
  socklen_t length = sizeof other;
  char host[48];
  text[0] = '\0';
  if (getpeername(descriptor, (struct sockaddr *)&other, &length) != 0)
    return;
  sock_origin(descriptor, host, sizeof host);
  if (other.ss_family == AF_INET)
    snprintf(text, size, "%s:%u", host, ntohs(((struct sockaddr_in *)&other)->sin_port));
  else if (other.ss_family == AF_INET6)
    snprintf(text, size, "[%s]:%u", host, ntohs(((struct sockaddr_in6 *)&other)->sin6_port));
  else if (other.ss_family == AF_UNIX)
    snprintf(text, size, "unix");
}

#define OVERFLOW_UID 65534 /* any user of another user namespace: kernel.overflowuid */

bool sock_is_own_user(int descriptor, uid_t *user) {
  struct ucred other = {.uid = OVERFLOW_UID};
  socklen_t size = sizeof other;
  getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &other, &size);
  *user = other.uid;
  return other.uid == 0 || (other.uid == geteuid() && other.uid != OVERFLOW_UID);
}

void sock_tune(int descriptor) {
  int one = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* ENOTSUP on Unix sockets */
  setsockopt(descriptor, SOL_SOCKET, SO_OOBINLINE, &one,
             sizeof one); /* else recvmsg stops before urgent data */
}

#define DESCRIPTORS_AT_ONCE 253 /* SCM_MAX_FD */

union control {
  struct cmsghdr align;
  char bytes[CMSG_SPACE(sizeof(int) * DESCRIPTORS_AT_ONCE)];
};

/* A socket that another program opened may ask for the sender's credentials: then MSG_CTRUNC would
 * say nothing about descriptors. */
void sock_take_descriptors(int descriptor) {
  setsockopt(descriptor, SOL_SOCKET, SO_PASSCRED, &(int){0}, sizeof(int));
  pass_descriptors(descriptor, 1);
}

/* recvmsg with room for SCM_MAX_FD descriptors, so that the kernel closes one only where this
 * process is out of descriptors (MSG_CTRUNC). */
static ssize_t receive_with_control(int fd, struct msghdr *message, union control *control,
                                    int flags) {
  message->msg_control = control->bytes;
  message->msg_controllen = sizeof control->bytes;
  ssize_t got = sys_ops.recvmsg(fd, message, flags | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  return got < 0 ? -errno : got;
}

/* Takes the descriptors of a message: the first `room` into `into`, the others go to close_foreign.
 * Returns their number. */
static size_t take_descriptors(struct msghdr *message, int *into, size_t room) {
  size_t count = 0;
  for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header;
       header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
      continue;
    size_t here = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < here; i++, count++) {
      int fd;
      memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      if (count < room)
        into[count] = fd;
      else
        close_foreign(fd);
    }
  }
  return count;
}

ssize_t sock_receive(int descriptor, struct msghdr *message) {
  union control control;
  ssize_t got = receive_with_control(descriptor, message, &control, 0);
  if (got >= 0 && message->msg_controllen > 0 && take_descriptors(message, NULL, 0) > 0)
    return -EPROTO;
  return got;
}

int sock_send_record(int descriptor, const void *bytes, size_t length, const int *descriptors,
                     size_t count) {
  struct iovec span = {(void *)(uintptr_t)bytes, length};
  union control control;
  struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  if (count > 0) {
    size_t room = CMSG_SPACE(sizeof(int) * count);
    memset(&control, 0, room);
    message.msg_control = control.bytes;
    message.msg_controllen = room;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * count);
    memcpy(CMSG_DATA(header), descriptors, sizeof(int) * count);
  }
  ssize_t put = sys_ops.sendmsg(descriptor, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (put < 0)
    return -errno;
  return (size_t)put == length ? 0 : -EPROTO;
}

/* Returns whether each was closed at once. */
static bool close_all(const int *descriptors, size_t count) {
  bool closed = true;
  for (size_t i = 0; i < count; i++)
    closed &= close_foreign(descriptors[i]);
  return closed;
}

/* Reads bytes that were peeked at. *with: descriptors were sent with them, which the kernel closes
 * for want of room, and says so. */
static ssize_t read_peeked(int descriptor, void *bytes, size_t length, bool *with) {
  struct iovec span = {bytes, length};
  struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  ssize_t got = recvmsg(descriptor, &message, MSG_DONTWAIT);
  *with = message.msg_flags & MSG_CTRUNC;
  return got;
}

/* Peeks first: this process then has duplicates while the message still holds the originals. So a
 * close by the kernel, for want of room or when the bytes are read, is never the last one. Where a
 * peek takes all bytes of a message without descriptors, it returns those of the message behind it,
 * too (Linux 6.18); the next read gets them again. */
ssize_t sock_receive_record(int descriptor, void *bytes, size_t length, int *descriptors,
                            size_t *count) {
  struct iovec span = {bytes, length};
  struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  union control control;
  *count = 0;
  ssize_t seen = receive_with_control(descriptor, &message, &control, MSG_PEEK);
  if (seen <= 0)
    return seen;
  size_t came = take_descriptors(&message, descriptors, SOCK_DESCRIPTORS_MAX);
  bool cut = message.msg_flags & MSG_CTRUNC;
  bool with = true;
  ssize_t got = cut ? -EMFILE : read_peeked(descriptor, bytes, (size_t)seen, &with);
  if (got > 0 && with && came > SOCK_DESCRIPTORS_MAX)
    got = -EPROTO;
  if (got > 0 && with)
    *count = came;
  else
    close_all(descriptors, came < SOCK_DESCRIPTORS_MAX ? came : SOCK_DESCRIPTORS_MAX);
  return got;
}

/* Reads the remaining data. False: closing may block. */
static bool drain_socket(int fd) {
  char bytes[4096];
  int descriptors[SOCK_DESCRIPTORS_MAX];
  size_t count;
  for (unsigned reads = 0; reads < 256; reads++) {
    ssize_t got = sock_receive_record(fd, bytes, sizeof bytes, descriptors, &count);
    if (got == -EPROTO || got == -EMFILE || !close_all(descriptors, count))
      return false;
    if (got <= 0)
      return true;
  }
  return false;
}

/* Unread descriptors would be closed with the socket. */
void sock_close(int descriptor) {
  int domain = 0;
  socklen_t size = sizeof domain;
  if (getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || domain != AF_UNIX) {
    close(descriptor);
    return;
  }
  shutdown(descriptor, SHUT_RDWR); /* no more input */
  if (drain_socket(descriptor))
    close(descriptor);
  else
    close_deferred(descriptor);
}
