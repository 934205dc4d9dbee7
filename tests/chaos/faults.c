/* SPDX-License-Identifier: MIT */
#include <dirent.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/sys.h"
#include "node.h"
#include "support/seams.h"

static pthread_t thread;
static atomic_bool ends;
static uint64_t fault_random;
static struct rlimit limit_before;
static pthread_mutex_t refusing = PTHREAD_MUTEX_INITIALIZER;

/* The clock: linear since its last change of speed */

#define SPEEDS 256 /* normal speed */

static int64_t (*clock_before)(void);
static pthread_mutex_t clock_lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t changed_at, shown_then, speed = SPEEDS;

static int64_t shown(int64_t real) {
  return shown_then + (real - changed_at) / SPEEDS * speed;
}

static int64_t skewed(void) {
  pthread_mutex_lock(&clock_lock);
  int64_t now = shown(clock_before());
  pthread_mutex_unlock(&clock_lock);
  return now;
}

static void set_speed(int64_t to) {
  pthread_mutex_lock(&clock_lock);
  int64_t real = clock_before();
  shown_then = shown(real);
  changed_at = real;
  speed = to;
  pthread_mutex_unlock(&clock_lock);
}

/* Before there are threads, and for the life of the process. */
static __attribute__((constructor)) void install(void) {
  clock_before = sys_ops.monotonic;
  changed_at = shown_then = clock_before();
  sys_ops.monotonic = skewed;
}

int64_t skewed_now(void) {
  return skewed();
}

static uint64_t draw(uint64_t below) {
  return next_random(&fault_random) % below;
}

static bool is_connection(int descriptor) {
  int listens = 1, type = 0;
  socklen_t size = sizeof listens;
  if (getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens)
    return false;
  size = sizeof type;
  return getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
}

/* Shuts down one of this process's connections, at any byte of its frames. */
static void cut_connection(void) {
  int found[512];
  unsigned count = 0;
  DIR *folder = opendir("/proc/self/fd");
  if (!folder)
    return;
  for (struct dirent *entry; (entry = readdir(folder)) && count < 512;) {
    int descriptor = atoi(entry->d_name);
    if (descriptor > 3 && is_connection(descriptor))
      found[count++] = descriptor;
  }
  closedir(folder);
  if (count == 0)
    return;
  shutdown(found[draw(count)], (int)draw(3)); /* SHUT_RD, SHUT_WR, SHUT_RDWR */
  atomic_fetch_add(&self.process->counts.cuts, 1);
}

static void fail_allocations(void) {
  pthread_mutex_lock(&refusing);
  if (draw(2))
    seams_refuse((unsigned)draw(50) + 1);
  else
    seams_refuse_from((unsigned)draw(50) + 1);
  rest((int64_t)draw(50) * MS);
  seams_restore();
  pthread_mutex_unlock(&refusing);
  atomic_fetch_add(&self.process->counts.refusals, 1);
}

/* Leaves at most three descriptors. */
static void exhaust_descriptors(void) {
  int next = dup(0);
  if (next < 0)
    return;
  close(next);
  pthread_mutex_lock(&refusing);
  struct rlimit few = {(rlim_t)next + draw(4), limit_before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &few);
  rest((int64_t)draw(100) * MS);
  setrlimit(RLIMIT_NOFILE, &limit_before);
  pthread_mutex_unlock(&refusing);
  atomic_fetch_add(&self.process->counts.shortages, 1);
}

static void *inject_faults(void *unused) {
  while (!atomic_load(&ends)) {
    rest((int64_t)(20 + draw(200)) * MS);
    switch (draw(6)) {
    case 0:
    case 1:
      cut_connection();
      break;
    case 2:
      fail_allocations();
      break;
    case 3:
      exhaust_descriptors();
      break;
    default: /* half as fast to twice as fast */
      set_speed(SPEEDS / 2 + (int64_t)draw(SPEEDS * 3 / 2));
    }
  }
  return unused;
}

void faults_start(void) {
  fault_random = self.random ^ 0x5851f42d4c957f2du;
  atomic_store(&ends, false);
  if (getrlimit(RLIMIT_NOFILE, &limit_before) != 0 ||
      pthread_create(&thread, NULL, inject_faults, NULL))
    abort();
}

void faults_pause(void) {
  pthread_mutex_lock(&refusing);
}

void faults_resume(void) {
  pthread_mutex_unlock(&refusing);
}

void faults_stop(void) {
  atomic_store(&ends, true);
  pthread_join(thread, NULL);
  set_speed(SPEEDS);
}
