/* SPDX-License-Identifier: MIT */
#include "core/sock.h"

#include <errno.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/futex.h"
#include "core/sys.h"
#include "core/thread.h"

#define LOOKUPS_MAX 64 /* lookups at a time, abandoned ones included */

struct result {
  int code, system; /* getaddrinfo's, and errno for EAI_SYSTEM */
  struct sockaddr_storage storage;
  socklen_t length;
};

/* Shared by the caller and the thread; the last one frees it. */
struct lookup {
  _Atomic uint32_t done; /* futex word */
  _Atomic unsigned refs;
  struct result result; /* before `done` */
  char host[256], port[8];
};

static _Atomic unsigned lookups;

static void query(const char *host, const char *port, int flags, struct result *result) {
  struct addrinfo wanted = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags};
  struct addrinfo *found = NULL;
  result->code = sys_ops.getaddrinfo(host, port, &wanted, &found);
  result->system = result->code == EAI_SYSTEM ? errno : 0;
  if (result->code != 0)
    return;
  memcpy(&result->storage, found->ai_addr, found->ai_addrlen);
  result->length = found->ai_addrlen;
  freeaddrinfo(found);
}

static void lookup_put(struct lookup *lookup) {
  if (atomic_fetch_sub(&lookup->refs, 1) == 1)
    alloc_free(lookup);
}

static void *lookup_main(void *argument) {
  struct lookup *lookup = argument;
  query(lookup->host, lookup->port, 0, &lookup->result);
  atomic_fetch_sub(&lookups, 1);
  atomic_store(&lookup->done, 1);
  futex_wake(&lookup->done);
  lookup_put(lookup);
  return NULL;
}

static int lookup_start(struct lookup *lookup, const char *object) {
  pthread_t thread;
  int failed = EAGAIN;
  if (atomic_fetch_add(&lookups, 1) < LOOKUPS_MAX)
    failed = thread_start(&thread, lookup_main, lookup);
  if (failed) {
    atomic_fetch_sub(&lookups, 1);
    return error_set(HAUL_ELIMIT, failed, object, "use an IP address, or try again later",
                     "the host name cannot be resolved now: no thread, or %d lookups are "
                     "pending",
                     LOOKUPS_MAX);
  }
  pthread_detach(thread);
  return 0;
}

/* Waits for a lookup, and abandons it at the deadline. */
static int lookup_wait(const char *host, const char *port, const char *object, int64_t until,
                       struct result *result) {
  struct lookup *lookup = alloc_zero(1, sizeof *lookup);
  if (!lookup)
    return error_memory("lookup of a host");
  snprintf(lookup->host, sizeof lookup->host, "%s", host);
  snprintf(lookup->port, sizeof lookup->port, "%s", port);
  atomic_store(&lookup->refs, 2);
  int code = lookup_start(lookup, object);
  if (code) {
    alloc_free(lookup);
    return code;
  }
  while (!atomic_load(&lookup->done) && clock_now() < until)
    futex_wait(&lookup->done, 0, until);
  if (atomic_load(&lookup->done))
    *result = lookup->result;
  else
    code = error_set(HAUL_ETIMEDOUT, 0, object, "use an IP address, or check /etc/resolv.conf",
                     "the resolver did not find the host in time");
  lookup_put(lookup);
  return code;
}

int resolve(const char *host, const char *port, const char *object, int64_t until,
            struct sockaddr_storage *storage, socklen_t *length) {
  struct result result = {0};
  query(host, port, AI_NUMERICHOST, &result);
  int code = result.code == EAI_NONAME ? lookup_wait(host, port, object, until, &result) : 0;
  if (code)
    return code;
  if (result.code != 0)
    return error_set(HAUL_EADDRESS, result.system, object,
                     "use an IP address, or check /etc/hosts and /etc/resolv.conf",
                     "the host is not found: %s", gai_strerror(result.code));
  *storage = result.storage;
  *length = result.length;
  return 0;
}
