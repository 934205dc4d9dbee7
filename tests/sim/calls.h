/* SPDX-License-Identifier: MIT
 * Calls of the world that one of its sources makes in another. */
#ifndef HAUL_SIM_CALLS_H
#define HAUL_SIM_CALLS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#include "sim.h"

/* The world's time at the end of a span from now; NULL: never. */
int64_t world_span(const struct timespec *span);

ssize_t world_process_vm_writev(pid_t pid, const struct iovec *local, unsigned long locals,
                                const struct iovec *remote, unsigned long remotes,
                                unsigned long flags);
int world_pidfd_open(pid_t pid);
uid_t world_geteuid(void);
int world_pidfd_signal(int descriptor);

/* Calls of libc that models of libraries and servers make in a process. */
struct pollfd;
int world_socket(int domain, int type, int protocol);
int world_bind(int descriptor, const struct sockaddr *address, socklen_t length);
int world_listen(int descriptor, int backlog);
int world_accept4(int descriptor, struct sockaddr *address, socklen_t *length, int flags);
int world_connect(int descriptor, const struct sockaddr *address, socklen_t length);
ssize_t world_sendmsg(int descriptor, const struct msghdr *message, int flags);
ssize_t world_recv(int descriptor, void *bytes, size_t length, int flags);
int world_open(const char *path, int flags, ...);
int world_ftruncate(int descriptor, off_t length);
int world_setsockopt(int descriptor, int level, int option, const void *value, socklen_t size);
int world_getsockopt(int descriptor, int level, int option, void *value, socklen_t *size);
int world_getsockname(int descriptor, struct sockaddr *address, socklen_t *length);
int world_poll(struct pollfd *entries, unsigned long count, int ms);
void *world_malloc(size_t size);
void *world_calloc(size_t count, size_t size);
void *world_realloc(void *bytes, size_t size);
void world_free(void *bytes);
void *allocate_always(size_t size);

void threads_start(void);
void fibers_freeze(struct process *process);
void fibers_thaw(struct process *process);

/* Files of each kind (poll.c, sockets.c, files.c): what is ready, as EPOLL…; the last reference is
 * gone. */
uint32_t event_ready(struct file *file);
uint32_t timer_ready(struct file *file);
uint32_t socket_ready(struct file *file);
void epoll_free(struct file *file);
void timer_free(struct file *file);
void socket_free(struct file *file);
void memfile_free(struct file *file);
void pipe_free(struct file *file);
void watches_free(struct file *file);

ssize_t event_read(struct file *file, void *bytes, size_t length);
ssize_t event_write(struct file *file, const void *bytes, size_t length);
ssize_t timer_read(struct file *file, void *bytes, size_t length);
ssize_t socket_read(struct file *file, void *bytes, size_t length);
ssize_t socket_write(struct file *file, const void *bytes, size_t length);
ssize_t text_read(struct file *file, void *bytes, size_t length);
int memfile_real(const struct file *file); /* the real one; -1: no memory */
/* The real descriptor of a host's file; -1: there is none. */
int host_file(const struct host *host, const char *path);
void host_lose_file(struct host *host, const char *path);
int pipe_real(const struct file *file); /* the real one; -1: no pipe */
int world_close(int descriptor);

/* Sockets of a process that dies, or of a host that vanishes. */
void socket_process_died(struct file *file, bool silent);
/* The text of a key file of the load (load.c); false: the path is none. */
bool load_key_text(const char *path, char *text, size_t size);

/* OpenSSL, as the world has it (openssl.c). False: the machine has none, which is printed. */
bool openssl_start(void);
bool openssl_is(const char *name);
void *openssl_handle(void);
void *openssl_symbol(const char *name);
size_t openssl_objects(const struct process *process);
extern uint64_t openssl_shortages; /* of memory, within its calls */
void openssl_process_died(const struct process *process);

/* A name of a Unix socket in the host's file system. */
bool socket_name_exists(const struct host *host, const char *path);
bool socket_name_remove(const struct host *host, const char *path);

#endif
