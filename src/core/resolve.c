/* SPDX-License-Identifier: MIT */
#include "core/resolve.h"

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

#define LOOKUPS_MAX 64 /* names that are looked up at a time, also those that nobody waits for */

struct answer {
  int code, system; /* getaddrinfo's, and errno for EAI_SYSTEM */
  struct sockaddr_storage storage;
  socklen_t length;
};

/* Shared by who asks and the thread; the last one frees it. */
struct lookup {
  _Atomic uint32_t done; /* futex word */
  _Atomic unsigned refs;
  struct answer answer; /* before `done` */
  char host[256], port[8];
};

static _Atomic unsigned lookups;

static void ask(const char *host, const char *port, int flags, struct answer *answer) {
  struct addrinfo wanted = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags};
  struct addrinfo *found = NULL;
  answer->code = sys_ops.getaddrinfo(host, port, &wanted, &found);
  answer->system = answer->code == EAI_SYSTEM ? errno : 0;
  if (answer->code != 0)
    return;
  memcpy(&answer->storage, found->ai_addr, found->ai_addrlen);
  answer->length = found->ai_addrlen;
  freeaddrinfo(found);
}

static void put(struct lookup *lookup) {
  if (atomic_fetch_sub(&lookup->refs, 1) == 1)
    alloc_free(lookup);
}

static void *run(void *argument) {
  struct lookup *lookup = argument;
  ask(lookup->host, lookup->port, 0, &lookup->answer);
  atomic_fetch_sub(&lookups, 1);
  atomic_store(&lookup->done, 1);
  futex_wake(&lookup->done);
  put(lookup);
  return NULL;
}

static int start(struct lookup *lookup, const char *object) {
  pthread_t thread;
  int failed = EAGAIN;
  if (atomic_fetch_add(&lookups, 1) < LOOKUPS_MAX)
    failed = thread_start(&thread, run, lookup);
  if (failed) {
    atomic_fetch_sub(&lookups, 1);
    return error_set(HAUL_ELIMIT, failed, object, "try the number, or again later",
                     "the host's name cannot be looked up now: too many threads, or %d names that "
                     "the resolver has not answered",
                     LOOKUPS_MAX);
  }
  pthread_detach(thread);
  return 0;
}

/* A lookup that is done, or given up at the deadline. */
static int look_up(const char *host, const char *port, const char *object, int64_t until,
                   struct answer *answer) {
  struct lookup *lookup = alloc_zero(1, sizeof *lookup);
  if (!lookup)
    return error_memory("lookup of a host");
  snprintf(lookup->host, sizeof lookup->host, "%s", host);
  snprintf(lookup->port, sizeof lookup->port, "%s", port);
  atomic_store(&lookup->refs, 2);
  int code = start(lookup, object);
  if (code) {
    alloc_free(lookup);
    return code;
  }
  while (!atomic_load(&lookup->done) && clock_now() < until)
    futex_wait(&lookup->done, 0, until);
  if (atomic_load(&lookup->done))
    *answer = lookup->answer;
  else
    code = error_set(HAUL_ETIMEDOUT, 0, object,
                     "try the number, or look at the resolver (/etc/resolv.conf)",
                     "the resolver did not find the host in time");
  put(lookup);
  return code;
}

int resolve(const char *host, const char *port, const char *object, int64_t until,
            struct sockaddr_storage *storage, socklen_t *length) {
  struct answer answer = {0};
  ask(host, port, AI_NUMERICHOST, &answer);
  int code = answer.code == EAI_NONAME ? look_up(host, port, object, until, &answer) : 0;
  if (code)
    return code;
  if (answer.code != 0)
    return error_set(HAUL_EADDRESS, answer.system, object,
                     "try the number, or look at /etc/hosts and the resolver",
                     "the host is not found: %s", gai_strerror(answer.code));
  *storage = answer.storage;
  *length = answer.length;
  return 0;
}
