/* SPDX-License-Identifier: MIT */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/thread.h"
#include "memory/dpdk/dpdk.h"
#include "memory/pages.h"
#include "memory/settings.h"

#define MIB ((uint64_t)1 << 20)

const char *dpdk_sys = "/sys";

/* ---- the library ---- */

static struct dpdk_eal table;

#define SYMBOL(slot, symbol, result, arguments) {#symbol, offsetof(struct dpdk_eal, slot)},
static const struct library_symbol required[] = {DPDK_EAL_REQUIRED(SYMBOL)};
#undef SYMBOL

struct library dpdk_library = {
    .title = "DPDK's librte_eal",
    .names = {"librte_eal.so.23"},
    .since = "DPDK 22.11",
    .packages = "librte-gpudev23 librte-mempool-ring23",
    .required = required,
    .required_count = LIBRARY_COUNT(required),
    .table = &table,
    .lock = PTHREAD_MUTEX_INITIALIZER,
};

const struct dpdk_eal *dpdk_eal_open(void) {
  return library_open(&dpdk_library);
}

const struct dpdk_eal *dpdk_eal_loaded(void) {
  struct haul_error before;
  if (!library_is_loaded(&dpdk_library))
    return NULL;
  error_save(&before);
  const struct dpdk_eal *eal = dpdk_eal_open();
  if (!eal)
    error_restore(&before);
  return eal;
}

/* A variable of each thread (rte_errno.h, RTE_DECLARE_PER_LCORE), so it is looked up in this one.
 */
int dpdk_eal_errno(void) {
  const int *number = dlsym(dpdk_library.handle, "per_lcore__rte_errno");
  return number ? *number : 0;
}

/* ---- what the host has ---- */

static uint64_t read_number(const char *path) {
  char text[32] = "";
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return 0;
  ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  return got > 0 ? strtoull(text, NULL, 10) : 0;
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

/* Has the kernel reserve pages until `bytes` are free. It gives as many as it finds, and tells
 * nothing of the rest; who is not root may not ask. */
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
    /* Then there are no more of them than before, which is what is looked at next. */
  }
  close(fd);
}

/* What this process may still take without pushing others out: of the machine's and, where it is in
 * a control group with a bound, of the group's. */
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

/* ---- the log ---- */

/* The last two lines that EAL wrote: the last one tells what failed, the one before why. */
static struct {
  pthread_mutex_t lock; /* guards the rest */
  char lines[2][128];
  size_t used;
} said = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void take_byte(char byte) {
  char *line = said.lines[1];
  if (byte == '\n') {
    said.used = 0;
    return;
  }
  if (said.used == 0) {
    memcpy(said.lines[0], line, sizeof said.lines[0]);
    line[0] = '\0';
  }
  if (said.used + 1 < sizeof said.lines[1]) {
    line[said.used++] = byte;
    line[said.used] = '\0';
  }
}

static ssize_t take_log(void *user, const char *bytes, size_t length) {
  (void)user;
  pthread_mutex_lock(&said.lock);
  for (size_t i = 0; i < length; i++)
    take_byte(bytes[i]);
  pthread_mutex_unlock(&said.lock);
  return (ssize_t)length;
}

static const char *bare(const char *line) {
  return strncmp(line, "EAL: ", 5) == 0 ? line + 5 : line;
}

/* What it found at its start explains no refusal. */
static bool explains(const char *line) {
  return line[0] && strncmp(bare(line), "Detected ", 9) != 0;
}

static void last_words(char *text, size_t size) {
  pthread_mutex_lock(&said.lock);
  if (explains(said.lines[0]))
    snprintf(text, size, "%.100s; %.60s", bare(said.lines[0]), bare(said.lines[1]));
  else
    snprintf(text, size, "%.160s", said.lines[1][0] ? bare(said.lines[1]) : "it says nothing");
  pthread_mutex_unlock(&said.lock);
}

/* From before the start on, and for good: EAL writes to it whenever it likes. */
static void divert_log(void) {
  static const cookie_io_functions_t calls = {.write = take_log};
  FILE *stream = fopencookie(NULL, "w", calls);
  if (!stream)
    return;
  setvbuf(stream, NULL, _IONBF, 0);
  table.open_log(stream);
}

/* ---- the start ---- */

static struct {
  pthread_mutex_t lock;          /* held while it is started */
  _Atomic enum dpdk_state state; /* the last thing that is set */
  struct haul_error why;
  uint64_t asked, got; /* bytes of huge pages: of the setting, and free after it was obeyed */
  unsigned nodes;      /* when it was started */
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
  char text[1024]; /* the arguments' bytes; EAL keeps pointers to some */
  char *arguments[ARGUMENTS + 1];
  int count;
  bool huge;
  int result, system;
};

/* The first processor that this thread may be on: EAL binds its own to it. */
static unsigned first_processor(void) {
  cpu_set_t allowed;
  unsigned i = 0;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
    return 0;
  while (i < CPU_SETSIZE && !CPU_ISSET(i, &allowed))
    i++;
  return i < CPU_SETSIZE ? i : 0;
}

/* What the pool takes at a node, and a third more for what has another size and for alignment. */
static uint64_t wanted_bytes(const struct memory_settings *settings) {
  uint64_t bytes = 0;
  for (unsigned i = 0; i < DPDK_CLASSES; i++)
    bytes += (uint64_t)settings->dpdk_pool[i] * (UINT64_C(65536) << (4 * i));
  return bytes + bytes / 3 + 64 * MIB;
}

/* "-m" of memory in small pages: a quarter of what is there, as each page takes EAL 48 bytes of its
 * own at once, and other processes do the same. */
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

/* All of it at once, and no more later: an allocation then never waits for the kernel to clear a
 * page. A limit of 0 would be none at all; one of 1 MiB has room for no page. Half of the pages
 * that others have reserved, at each node; all that were asked for. */
static void plan_huge(const struct memory_settings *settings, uint64_t asked, struct start *start) {
  char memory[256] = "", limits[256] = "";
  size_t used = 0, limited = 0;
  uint64_t wanted = wanted_bytes(settings);
  unsigned nodes = dpdk_nodes();
  for (unsigned i = 0; i < nodes; i++) { /* at most DPDK_NODES, of 15 bytes */
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
  /* EAL opens the system's log under the first one: the name that it has anyway. */
  start->arguments[start->count++] = program_invocation_short_name;
  char *rest = start->text;
  for (char *word; start->count < ARGUMENTS && (word = strsep(&rest, " "));)
    if (*word)
      start->arguments[start->count++] = word;
}

/* In a thread of its own: EAL binds the one that starts it to a processor, and keeps threads that
 * inherit what it blocks. */
static void *start_thread(void *argument) {
  struct start *start = argument;
  start->result = table.init(start->count, start->arguments);
  start->system = start->result < 0 ? dpdk_eal_errno() : 0;
  return NULL;
}

/* What was free when the arguments were made may be gone. EAL then keeps some of them for good, so
 * that it cannot be started without huge pages in this process any more ("--legacy-mem is not
 * compatible with --in-memory"). */
static int failed_with_huge(const struct start *start, const char *words) {
  return error_set(HAUL_ENOTSUP, start->system, "rte_eal_init",
                   "EAL is started once in a process; start the program anew: it does without huge "
                   "pages where fewer than 64 MiB are free (or set dpdk_eal in haul.conf)",
                   "EAL does not start with the huge pages that were free just before: %s", words);
}

/* About the arguments, where somebody chose them: EAL names on stderr alone the one that it does
 * not know. */
static int failed(const struct start *start) {
  char words[176];
  struct memory_settings settings;
  memory_settings_get(&settings);
  last_words(words, sizeof words);
  if (start->huge && !settings.dpdk_eal[0])
    return failed_with_huge(start, words);
  return error_set(HAUL_ENOTSUP, start->system,
                   settings.dpdk_eal[0] ? settings.dpdk_eal : "rte_eal_init",
                   "EAL is started once in a process; mend it (haul doctor dpdk, dpdk_eal in "
                   "haul.conf) and start the program anew",
                   "EAL does not start: %s", words);
}

/* With the lock. */
static enum dpdk_state start_now(struct start *start) {
  pthread_t thread;
  int system = thread_start(&thread, start_thread, start);
  if (system != 0) {
    error_system(system, NULL, "a thread for EAL");
    return DPDK_IDLE;
  }
  pthread_join(thread, NULL);
  if (start->result >= 0)
    return start->huge ? DPDK_OURS : DPDK_SMALL;
  if (start->system == EALREADY) { /* between the look and the start */
    table.open_log(NULL);
    return DPDK_FOREIGN;
  }
  failed(start);
  error_save(&eal.why);
  return DPDK_FAILED;
}

/* With the lock. EAL counts nodes first of all when it starts, so an application's that runs has
 * some. */
static enum dpdk_state start_once(void) {
  static struct start start;
  if (table.socket_count() > 0)
    return DPDK_FOREIGN;
  start = (struct start){.count = 0};
  eal.nodes = dpdk_nodes();
  plan(&start);
  divert_log();
  return start_now(&start);
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
