/* SPDX-License-Identifier: MIT
 * Addresses and sockets. */
#ifndef HAUL_CORE_SOCK_H
#define HAUL_CORE_SOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

/* A parsed "tcp://host:port", "unix:///path", "unix://@name", or "fd://3" for an inherited
 * listening socket. */
struct address {
  struct sockaddr_storage storage;
  socklen_t length;
  bool local;     /* a Unix socket */
  bool loopback;  /* only reachable from this host: a Unix socket or a loopback address */
  int inherited;  /* the inherited socket; 0: none */
  char path[108]; /* a Unix socket's file, removed on close; else empty */
};

/* The first address of a host, given as IP address or name, and a port. A thread resolves names and
 * is abandoned at `until`, as getaddrinfo has no deadline. HAUL_EADDRESS, HAUL_ETIMEDOUT,
 * HAUL_ELIMIT; `object` names the address in errors. */
int resolve(const char *host, const char *port, const char *object, int64_t until,
            struct sockaddr_storage *storage, socklen_t *length);

/* Resolves host names by `until`. HAUL_EADDRESS, HAUL_ETIMEDOUT, HAUL_ELIMIT with the detail. */
int address_parse(const char *text, int64_t until, struct address *address);
/* Formats an address for address_parse. */
void address_format(const struct address *address, char *text, size_t size);
/* The abstract Unix address of a name, at most 64 bytes. */
void address_abstract(const char *name, struct address *address);

/* A non-blocking listening descriptor. Replaces a stale Unix socket file. Sets *address to the
 * bound address. HAUL_EADDRINUSE, HAUL_EADDRESS. */
int sock_listen(struct address *address, int *descriptor);
/* A non-blocking socket for the address; 0 or a code with the detail. `object` names the address in
 * errors. */
int sock_open(const struct address *address, const char *object, int *descriptor);
/* Connects it: 0 or an errno. EINPROGRESS: call sock_connect_end when it becomes writable. EAGAIN:
 * a Unix listener's queue is full; call it again later. */
int sock_connect_start(int descriptor, const struct address *address);
int sock_connect_end(int descriptor); /* 0 or an errno */
/* The code for an errno of these, with the detail: HAUL_ECONNECT or HAUL_ETIMEDOUT. */
int sock_connect_error(int system, const char *object);
/* The next connection, non-blocking; -1 when there is none now, with errno. */
int sock_accept(int listener);

/* The peer's IP address without the port; "" for a Unix socket. */
void sock_origin(int descriptor, char *text, size_t size);
/* The peer's address and port as text; "unix" for a Unix socket, "" once disconnected. */
void sock_other(int descriptor, char *text, size_t size);

/* The user at the other end of a Unix socket; of a listener, its user when it began to listen.
 * True: root, or this process's own. */
bool sock_is_own_user(int descriptor, uid_t *user);

/* Sets TCP_NODELAY and SO_OOBINLINE. */
void sock_tune(int descriptor);

/* Permits passed descriptors (SO_PASSRIGHTS, Linux 6.16). By default sockets here refuse them, as
 * the reader closes untaken ones, which may block. */
void sock_take_descriptors(int descriptor);
/* A non-blocking recvmsg: bytes, 0 at the end, a negative errno. A passed descriptor is an error
 * (-EPROTO) and goes to close_foreign. */
ssize_t sock_receive(int descriptor, struct msghdr *message);
/* Shuts the connection down, so that the peer sees its end at once, and closes it. */
void sock_close(int descriptor);

#define SOCK_DESCRIPTORS_MAX 4

/* Sends a record with descriptors over a Unix stream socket, in one sendmsg. 0 or a negative errno.
 */
int sock_send_record(int descriptor, const void *bytes, size_t length, const int *descriptors,
                     size_t count);
/* Receives up to `length` bytes and their descriptors, which the caller closes by close_foreign.
 * Returns the bytes, 0 at the end, or a negative errno: -EAGAIN: none now; -EMFILE: no room for the
 * descriptors; -EPROTO: more than SOCK_DESCRIPTORS_MAX. */
ssize_t sock_receive_record(int descriptor, void *bytes, size_t length, int *descriptors,
                            size_t *count);

#endif
