/* SPDX-License-Identifier: MIT */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/sys.h"
#include "core/thread.h"
#include "memory/dpdk/dpdk.h"
#include "memory/pages.h"
#include "memory/settings.h"

#define MIB ((uint64_t)1 << 20)

const char *dpdk_sys = "/sys";

static struct dpdk_eal table;

#define SYMBOL(slot, symbol, result, arguments) {#symbol, offsetof(struct dpdk_eal, slot)},
static const struct library_symbol required[] = {DPDK_EAL_REQUIRED(SYMBOL)};
#undef SYMBOL

struct library dpdk_library = {
    .title = "DPDK's librte_eal",
    .names = {"librte_eal.so.23"},
    .since = "DPDK 22.11",
    .packages = "librte-gpudev23 librte-mempool-ring23",
    LIBRARY_REQUIRED(required, table),
};

const struct dpdk_eal *dpdk_eal_open(void) {
  return library_open(&dpdk_library);
}

/* A thread-local variable (rte_errno.h, RTE_DECLARE_PER_LCORE), so it is looked up in the calling
 * thread. */
int dpdk_eal_errno(void) {
  const int *number = dlsym(dpdk_library.handle, "per_lcore__rte_errno");
  return number ? *number : 0;
}

static uint64_t read_number(const char *path) {
  char text[32];
  return file_read(path, text, sizeof text) > 0 ? strtoull(text, NULL, 10) : 0;
}

unsigned dpdk_nodes(void) {
  char path[128];
  unsigned nodes = 1;
  for (unsigned i = 1; i < DPDK_NODES; i++) {
    snprintf(path, sizeof path, "%s/devices/system/node/node%u", dpdk_sys, i);
    if (access(path, F_OK) == 0)
      nodes = i + 1;
  }
  return nodes;
}

uint64_t dpdk_huge_free(int node) {
  char path[160];
  if (node < 0)
    snprintf(path, sizeof path, "%s/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", dpdk_sys);
  else
    snprintf(path, sizeof path,
             "%s/devices/system/node/node%d/hugepages/hugepages-2048kB/free_hugepages", dpdk_sys,
             node);
  return read_number(path) * HUGE_PAGE;
}

static const char *huge_file(char *path, size_t size) {
  snprintf(path, size, "%s/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", dpdk_sys);
  return path;
}

uint64_t dpdk_huge_all(void) {
  char path[128];
  return read_number(huge_file(path, sizeof path)) * HUGE_PAGE;
}

/* Reserves huge pages until `bytes` are free, best effort: the kernel reserves what it finds, and
 * only root may request it. */
static void reserve_huge(uint64_t bytes) {
  char path[128], text[24];
  uint64_t unused = dpdk_huge_free(-1);
  if (unused >= bytes)
    return;
  int fd = open(huge_file(path, sizeof path), O_WRONLY | O_CLOEXEC);
  if (fd < 0)
    return;
  uint64_t pages = (dpdk_huge_all() + (bytes - unused) + HUGE_PAGE - 1) / HUGE_PAGE;
  int length = snprintf(text, sizeof text, "%llu", (unsigned long long)pages);
  if (write(fd, text, (size_t)length) != length) {
    /* The caller checks what is free. */
  }
  close(fd);
}

/* Memory that this process may take without reclaim: of the host and, if limited, of its control
 * group. */
static uint64_t available(void) {
  uint64_t bytes = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page_size(), group;
  char line[128];
  FILE *from = fopen("/proc/meminfo", "re");
  while (from && fgets(line, sizeof line, from))
    if (strncmp(line, "MemAvailable:", 13) == 0)
      bytes = strtoull(line + 13, NULL, 10) * 1024;
  if (from)
    fclose(from);
  group = read_number("/sys/fs/cgroup/memory.max");
  uint64_t used = read_number("/sys/fs/cgroup/memory.current");
  if (group > 0 && group < bytes + used)
    bytes = group > used ? group - used : 0;
  return bytes;
}

/* The last two lines of EAL's log: the last one says what failed, the one before says why. */
static struct {
  pthread_mutex_t lock; /* guards the rest */
  char lines[2][128];
  size_t used;
} log_tail = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void log_byte(char byte) {
  char *line = log_tail.lines[1];
  if (byte == '\n') {
    log_tail.used = 0;
    return;
  }
  if (log_tail.used == 0) {
    memcpy(log_tail.lines[0], line, sizeof log_tail.lines[0]);
    line[0] = '\0';
  }
  if (log_tail.used + 1 < sizeof log_tail.lines[1]) {
    line[log_tail.used++] = byte;
    line[log_tail.used] = '\0';
  }
}

static ssize_t log_write_hook(void *user, const char *bytes, size_t length) {
  (void)user;
  pthread_mutex_lock(&log_tail.lock);
  for (size_t i = 0; i < length; i++)
    log_byte(bytes[i]);
  pthread_mutex_unlock(&log_tail.lock);
  return (ssize_t)length;
}

static const char *without_prefix(const char *line) {
  return strncmp(line, "EAL: ", 5) == 0 ? line + 5 : line;
}

static void format_log_tail(char *text, size_t size) {
  pthread_mutex_lock(&log_tail.lock);
  /* EAL's messages about what it detected explain no failure. */
  if (log_tail.lines[0][0] && strncmp(without_prefix(log_tail.lines[0]), "Detected ", 9) != 0)
    snprintf(text, size, "%.100s; %.60s", without_prefix(log_tail.lines[0]),
             without_prefix(log_tail.lines[1]));
  else
    snprintf(text, size, "%.160s",
             log_tail.lines[1][0] ? without_prefix(log_tail.lines[1]) : "it says nothing");
  pthread_mutex_unlock(&log_tail.lock);
}

/* Installed before the start, for good, as EAL may log at any time. */
static void divert_log(void) {
  static const cookie_io_functions_t calls = {.write = log_write_hook};
  FILE *stream = fopencookie(NULL, "w", calls);
  if (!stream)
    return;
  setvbuf(stream, NULL, _IONBF, 0);
  table.open_log(stream);
}

static struct {
  pthread_mutex_t lock;          /* held during the start */
  _Atomic enum dpdk_state state; /* set last */
  struct haul_error why;
  uint64_t asked, got; /* bytes of huge pages: requested, and free afterwards */
  unsigned nodes;      /* at the start */
} eal = {.lock = PTHREAD_MUTEX_INITIALIZER};

enum dpdk_state dpdk_eal_state(void) {
  return atomic_load_explicit(&eal.state, memory_order_acquire);
}

bool dpdk_eal_has_all_at_0(void) {
  return dpdk_eal_state() == DPDK_SMALL && eal.nodes > 1;
}

int dpdk_eal_why(void) {
  return error_restore(&eal.why);
}

bool dpdk_eal_short(uint64_t *asked, uint64_t *got) {
  *asked = eal.asked;
  *got = eal.got;
  enum dpdk_state state = dpdk_eal_state();
  return (state == DPDK_OURS || state == DPDK_SMALL) && eal.got < eal.asked;
}

#define ARGUMENTS 160

struct start {
  char text[1024]; /* the arguments; EAL keeps pointers to some */
  char *arguments[ARGUMENTS + 1];
  int count;
  bool huge;
  int result, system;
};

/* The first CPU of this thread's affinity: EAL binds its thread to it. */
static unsigned first_processor(void) {
  cpu_set_t allowed;
  unsigned i = 0;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
    return 0;
  while (i < CPU_SETSIZE && !CPU_ISSET(i, &allowed))
    i++;
  return i < CPU_SETSIZE ? i : 0;
}

/* Bytes for the pool on a node, and a third more for other sizes and alignment. */
static uint64_t wanted_bytes(const struct memory_settings *settings) {
  uint64_t bytes = 0;
  for (unsigned i = 0; i < DPDK_CLASSES; i++)
    bytes += (uint64_t)settings->dpdk_pool[i] * (UINT64_C(65536) << (4 * i));
  return bytes + bytes / 3 + 64 * MIB;
}

/* EAL arguments for small pages: a quarter of the available memory, as EAL needs 48 bytes per page
 * at once, and other processes may do the same. */
static void plan_small(const struct memory_settings *settings, struct start *start) {
  uint64_t bytes = wanted_bytes(settings) * dpdk_nodes(), most = available() / 4;
  if (bytes > most)
    bytes = most;
  if (bytes < 64 * MIB)
    bytes = 64 * MIB;
  snprintf(start->text, sizeof start->text,
           "--no-huge --no-pci --no-shconf --no-telemetry -m %llu --lcores 0@%u",
           (unsigned long long)(bytes / MIB), first_processor());
}

/* EAL arguments for huge pages, all allocated at the start, so that no allocation waits while the
 * kernel clears a page. A limit of 0 means unlimited; 1 MiB has room for no page. Takes all pages
 * that were requested, or half of the free ones, on each node. */
static void plan_huge(const struct memory_settings *settings, uint64_t asked, struct start *start) {
  char memory[256] = "", limits[256] = "";
  size_t used = 0, limited = 0;
  uint64_t wanted = wanted_bytes(settings);
  unsigned nodes = dpdk_nodes();
  for (unsigned i = 0; i < nodes; i++) { /* at most DPDK_NODES numbers of 15 bytes */
    uint64_t unused = dpdk_huge_free(nodes == 1 ? -1 : (int)i);
    uint64_t bytes = asked ? asked / nodes : unused / 2;
    bytes = bytes < unused ? bytes : unused;
    bytes = (bytes < wanted ? bytes : wanted) / HUGE_PAGE * HUGE_PAGE;
    used += (size_t)snprintf(memory + used, sizeof memory - used, "%s%llu", i ? "," : "",
                             (unsigned long long)(bytes / MIB));
    limited += (size_t)snprintf(limits + limited, sizeof limits - limited, "%s%llu", i ? "," : "",
                                (unsigned long long)(bytes ? bytes / MIB : 1));
  }
  snprintf(start->text, sizeof start->text,
           "--in-memory --no-pci --no-telemetry --iova-mode=va --socket-mem=%s --socket-limit=%s "
           "--lcores 0@%u",
           memory, limits, first_processor());
}

static void plan(struct start *start) {
  struct memory_settings settings;
  memory_settings_get(&settings);
  uint64_t asked = settings.dpdk_hugepages == SIZE_MAX ? 0 : settings.dpdk_hugepages;
  if (settings.dpdk_eal[0]) {
    snprintf(start->text, sizeof start->text, "%s", settings.dpdk_eal);
    start->huge = !strstr(settings.dpdk_eal, "--no-huge");
  } else {
    if (asked)
      reserve_huge(asked);
    eal.asked = asked;
    eal.got = dpdk_huge_free(-1);
    start->huge = eal.got >= 64 * MIB;
    if (start->huge)
      plan_huge(&settings, asked, start);
    else
      plan_small(&settings, start);
  }
  /* EAL opens syslog under the first argument, so keep the program's name. */
  start->arguments[start->count++] = program_invocation_short_name;
  char *rest = start->text;
  for (char *word; start->count < ARGUMENTS && (word = strsep(&rest, " "));)
    if (*word)
      start->arguments[start->count++] = word;
}

/* Runs in a thread of its own: EAL binds it to a CPU, and its threads inherit the signal mask. */
static void *start_thread(void *argument) {
  struct start *start = argument;
  start->result = table.init(start->count, start->arguments);
  start->system = start->result < 0 ? dpdk_eal_errno() : 0;
  return NULL;
}

/* Names user-set arguments, as EAL prints an unknown one only to stderr. */
static int error_start(const struct start *start) {
  char words[176];
  struct memory_settings settings;
  memory_settings_get(&settings);
  format_log_tail(words, sizeof words);
  /* The free pages may have been taken meanwhile. EAL keeps some arguments for good, so it cannot
   * be started again without huge pages in this process ("--legacy-mem is not compatible with
   * --in-memory"). */
  if (start->huge && !settings.dpdk_eal[0])
    return error_set(
        HAUL_ENOTSUP, start->system, "rte_eal_init",
        "start the program anew: it does without huge pages where fewer than 64 MiB are free",
        "EAL does not start with the huge pages that were free just before: %s", words);
  return error_set(HAUL_ENOTSUP, start->system,
                   settings.dpdk_eal[0] ? settings.dpdk_eal : "rte_eal_init",
                   "fix it (haul doctor dpdk; dpdk_eal in haul.conf) and start the program anew",
                   "EAL does not start: %s", words);
}

/* With the lock. EAL counts nodes first when it starts, so a running EAL has some. */
static enum dpdk_state start_once(void) {
  static struct start start;
  if (table.socket_count() > 0)
    return DPDK_FOREIGN;
  start = (struct start){.count = 0};
  eal.nodes = dpdk_nodes();
  plan(&start);
  divert_log();
  pthread_t thread;
  int system = thread_start(&thread, start_thread, &start);
  if (system != 0) {
    error_system(system, NULL, "a thread for EAL");
    return DPDK_IDLE;
  }
  pthread_join(thread, NULL);
  if (start.result >= 0)
    return start.huge ? DPDK_OURS : DPDK_SMALL;
  if (start.system == EALREADY) { /* started since the check */
    table.open_log(NULL);
    return DPDK_FOREIGN;
  }
  error_start(&start);
  error_save(&eal.why);
  return DPDK_FAILED;
}

const struct dpdk_eal *dpdk_eal_start(void) {
  enum dpdk_state state = dpdk_eal_state();
  if (__builtin_expect(state != DPDK_IDLE && state != DPDK_FAILED, 1))
    return &table;
  if (!dpdk_eal_open())
    return NULL;
  pthread_mutex_lock(&eal.lock);
  state = dpdk_eal_state();
  if (state == DPDK_IDLE) {
    state = start_once();
    atomic_store_explicit(&eal.state, state, memory_order_release);
  }
  pthread_mutex_unlock(&eal.lock);
  if (state == DPDK_FAILED)
    dpdk_eal_why();
  return state == DPDK_IDLE || state == DPDK_FAILED ? NULL : &table;
}
