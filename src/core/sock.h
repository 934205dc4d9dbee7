/* SPDX-License-Identifier: MIT
 * Addresses and sockets. */
#ifndef HAUL_CORE_SOCK_H
#define HAUL_CORE_SOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* A parsed "tcp://host:port", "unix:///path" or "unix://@name"; or "fd://3", a listening socket
 * that the process was started with. */
struct address {
  struct sockaddr_storage storage;
  socklen_t length;
  bool local;     /* a Unix socket */
  bool loopback;  /* reachable from this host alone: a Unix socket or a loopback address */
  int inherited;  /* that socket; 0: it is to be made */
  char path[108]; /* a Unix socket's file, which goes when it is closed; empty for others */
};

/* Host names are resolved, by `until`. HAUL_EADDRESS, HAUL_ETIMEDOUT, HAUL_ELIMIT with the detail.
 */
int address_parse(const char *text, int64_t until, struct address *address);
/* The text of an address as address_parse takes it. */
void address_format(const struct address *address, char *text, size_t size);
/* The abstract Unix address of a name of at most 64 bytes. */
void address_abstract(const char *name, struct address *address);

/* A non-blocking listening descriptor. A Unix socket file that nobody listens on any more is
 * replaced. Sets *address to what was bound. HAUL_EADDRINUSE, HAUL_EADDRESS. */
int sock_listen(struct address *address, int *descriptor);
/* A connected, non-blocking descriptor, by `until`. HAUL_ECONNECT, HAUL_ETIMEDOUT. `object` names
 * the address in errors. */
int sock_connect(const struct address *address, const char *object, int64_t until, int *descriptor);
/* The next connection, non-blocking; -1 when there is none now, with errno. */
int sock_accept(int listener);

/* The address that a connection came from, without its port; "" of a Unix socket. */
void sock_origin(int descriptor, char *text, size_t size);
/* The same with its port, for people; "unix" of a Unix socket, "" once it is gone. */
void sock_other(int descriptor, char *text, size_t size);

/* What every data socket gets: no delay of small segments, and urgent bytes among the others. */
void sock_tune(int descriptor);

/* Nobody may send descriptors to a Unix socket of ours, where the kernel can forbid it
 * (Linux 6.16): what is not taken is closed by whoever reads, and that may take long. For those
 * that carry them:
 */
void sock_take_descriptors(int descriptor);
/* What has come, as recvmsg with `message` would read it, without blocking: bytes, 0 at the end, a
 * negative errno. A descriptor among it is an error (-EPROTO), and put aside. */
ssize_t sock_receive(int descriptor, struct msghdr *message);
/* Ends a connection and closes it; the other side sees the end now. */
void sock_close(int descriptor);

/* Waits for poll(2)'s events: 0 or an errno; ETIMEDOUT at the deadline. */
int sock_wait(int descriptor, short events, int64_t until);

#define SOCK_DESCRIPTORS_MAX 4

/* A record with descriptors over a Unix stream socket, in one sendmsg. 0 or a negative errno. */
int sock_send_record(int descriptor, const void *bytes, size_t length, const int *descriptors,
                     size_t count);
/* Up to `length` bytes and the descriptors that came with them, which are the caller's, for
 * close_foreign. Returns the bytes, 0 at the end, a negative errno (-EAGAIN: none now; -EMFILE: no
 * room for the descriptors). More than SOCK_DESCRIPTORS_MAX descriptors are an error (-EPROTO). */
ssize_t sock_receive_record(int descriptor, void *bytes, size_t length, int *descriptors,
                            size_t *count);

#endif
