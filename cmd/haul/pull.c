/* SPDX-License-Identifier: MIT
 * haul pull: a receiver of a broadcast. The bytes go to a mapped file beside the output, which gets
 * its name when all are right. A run that was interrupted leaves it, and the next one keeps its
 * chunks. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <haul/broadcast.h>
#include <haul/stats.h>

#include "command.h"
#include "common/fail.h"
#include "common/options.h"
#include "common/outfile.h"
#include "common/output.h"
#include "common/process.h"
#include "common/progress.h"
#include "common/session.h"
#include "common/text.h"

#define LISTEN_LOCAL "tcp://127.0.0.1:0"
#define LINGER_NS    INT64_C(1000000000)
#define COPY_SLICE   (UINT64_C(64) << 20)

struct values {
  const char *listen, *address, *member;
  int64_t timeout;
  int stay, follow, insecure, json, quiet;
};

static struct values given;

static const struct option_spec options[] = {
    {"stay", OPTION_FLAG, offsetof(struct values, stay), NULL,
     "pass the file on until a signal (default: until no other reads it for a second)"},
    {"follow", OPTION_FLAG, offsetof(struct values, follow), NULL,
     "stay, and receive each newer version, too"},
    {"listen", OPTION_TEXT, offsetof(struct values, listen), "ADDRESS",
     "listen here for other receivers (default: a free port of the address that reaches NODE)"},
    {"address", OPTION_TEXT, offsetof(struct values, address), "ADDRESS",
     "tell other receivers this address (default: that of --listen)"},
    {"member", OPTION_TEXT, offsetof(struct values, member), "NAME",
     "set the name in lists (default: HOST:PID)"},
    {"insecure", OPTION_FLAG, offsetof(struct values, insecure), NULL,
     "listen on a network address without a key"},
    {"timeout", OPTION_SECONDS, offsetof(struct values, timeout), "SECONDS",
     "limit the time until the file is complete (default: none)"},
    {"json", OPTION_FLAG, offsetof(struct values, json), NULL, "print the report as JSON"},
    {"quiet", OPTION_FLAG, offsetof(struct values, quiet), NULL,
     "print no report and no progress bar"},
    {0},
};

/* The file of a version. */
struct output {
  char path[PATH_MAX];  /* its name before it is complete */
  char final[PATH_MAX]; /* its name afterwards; links are resolved */
  mode_t mode;          /* afterwards */
  int descriptor;       /* holds the lock; -1: none */
  void *bytes;          /* mapped; NULL: none */
  uint64_t length;
  haul_region *region;
};

struct pull {
  const char *file;
  struct target target;
  haul_node *node;
  haul_broadcast *broadcast;
  haul_deadline until; /* HAUL_FOREVER once a version is complete */
  bool complete;
  struct output output;
  struct progress progress;
};

/* ---- The file ---- */

static void output_close(struct output *output) {
  haul_region_release(output->region);
  if (output->bytes)
    munmap(output->bytes, output->length);
  if (output->descriptor >= 0)
    close(output->descriptor);
  *output = (struct output){.descriptor = -1};
}

/* What the file has under its name may be right still, or again. */
static void copy_present(const struct output *output, haul_deadline until) {
  struct stat found;
  int from = open(output->final, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (from >= 0 && fstat(from, &found) == 0 && S_ISREG(found.st_mode))
    for (uint64_t left = output->length; left > 0 && !interrupted() && now_ns() < until;) {
      size_t slice = left < COPY_SLICE ? left : COPY_SLICE;
      ssize_t copied = copy_file_range(from, NULL, output->descriptor, NULL, slice, 0);
      if (copied <= 0)
        break; /* the rest is received */
      left -= (uint64_t)copied;
    }
  if (from >= 0)
    close(from);
}

static int output_map(struct output *output, haul_deadline until) {
  struct stat found;
  if (fstat(output->descriptor, &found) || ftruncate(output->descriptor, (off_t)output->length))
    return fail_system(errno, "cannot write %s", output->path);
  if (output->length == 0)
    return EXIT_DONE;
  int error = posix_fallocate(output->descriptor, 0, (off_t)output->length);
  if (error) /* a page without space would raise SIGBUS */
    return fail_system(error, "cannot reserve %s for %s", size_text(output->length).text,
                       output->path);
  if (found.st_size == 0)
    copy_present(output, until);
  void *bytes =
      mmap(NULL, output->length, PROT_READ | PROT_WRITE, MAP_SHARED, output->descriptor, 0);
  if (bytes == MAP_FAILED)
    return fail_system(errno, "cannot map %s", output->path);
  output->bytes = bytes;
  return EXIT_DONE;
}

/* Fills the names and the mode. */
static int output_resolve(struct output *output, const char *file) {
  int status = outfile_resolve(file, output->final, &output->mode);
  if (status)
    return status;
  if (!S_ISREG(output->mode))
    return fail_because("name a regular file", "cannot create %s: it is not a regular file", file);
  if (snprintf(output->path, PATH_MAX, "%s.part", output->final) >= PATH_MAX)
    return fail_system(ENAMETOOLONG, "cannot create %s", file);
  return EXIT_DONE;
}

/* Locks the file. It may have been renamed since it was opened. */
static int output_lock(const struct output *output, const struct stat *opened) {
  struct stat named;
  bool locked = flock(output->descriptor, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
  if (locked && lstat(output->path, &named) == 0 && named.st_dev == opened->st_dev &&
      named.st_ino == opened->st_ino)
    return EXIT_DONE;
  return fail_because("run it again when that one has ended, or name another file",
                      "cannot write %s: another pull writes it", output->path);
}

/* Opens the file that an earlier run left, or a new one. Another user of the folder may have put
 * something else there. */
static int output_claim(struct output *output) {
  struct stat found;
  int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  output->descriptor = open(output->path, flags, 0600);
  if (output->descriptor < 0 && errno != ELOOP)
    return fail_system(errno, "cannot create %s", output->path);
  if (output->descriptor < 0 || fstat(output->descriptor, &found) || !S_ISREG(found.st_mode) ||
      found.st_uid != geteuid() || found.st_nlink != 1)
    return fail_because(
        "remove it, or name another file",
        "cannot write %s: it is not a regular file of this user, with no other name", output->path);
  int status = output_lock(output, &found);
  if (!status && fchmod(output->descriptor, 0600))
    status = fail_system(errno, "cannot write %s", output->path);
  return status;
}

static int output_open(struct output *output, const struct pull *pull, uint64_t length) {
  output->length = length;
  int status = output_resolve(output, pull->file);
  if (!status)
    status = output_claim(output);
  if (!status)
    status = output_map(output, pull->until);
  if (!status && length && haul_region_wrap(pull->node, output->bytes, length, &output->region))
    status = fail_library("cannot use %s", output->path);
  return status;
}

/* The bytes are on the disk before the file has its name. */
static int output_commit(const struct output *output) {
  if (fchmod(output->descriptor, output->mode & 0777) || fdatasync(output->descriptor))
    return fail_system(errno, "cannot write %s", output->path);
  if (rename(output->path, output->final))
    return fail_system(errno, "cannot create %s", output->final);
  return EXIT_DONE;
}

/* ---- The report ---- */

static void print_text(const struct pull *pull, const struct haul_broadcast_report *report,
                       const struct haul_broadcast_feeder *feeders, size_t count) {
  printf("received %s: %s in %s", pull->file, size_text(report->bytes).text,
         time_text((double)report->duration_ns).text);
  if (report->kept)
    printf(", of which %s were there", size_text(report->kept).text);
  printf("\n");
  if (!count)
    return;
  struct table table = table_begin("llrrl", "FROM", "PATH", "BYTES", "RETRIES", "PASSED OVER");
  for (size_t i = 0; i < count; i++)
    table_row(&table, feeders[i].name, feeders[i].path[0] ? feeders[i].path : "-",
              size_text(feeders[i].bytes).text, number_text((long)feeders[i].retries).text,
              feeders[i].reason);
  table_end(&table);
}

static void print_json(const struct haul_broadcast_report *report,
                       const struct haul_broadcast_feeder *feeders, size_t count) {
  struct json json = json_open();
  json_number(&json, "version", report->version);
  json_number(&json, "bytes", report->bytes);
  json_number(&json, "kept", report->kept);
  json_number(&json, "retries", report->retries);
  json_number(&json, "corrupt", report->corrupt);
  json_micros(&json, "time_us", report->duration_ns);
  json_array(&json, "from");
  for (size_t i = 0; i < count; i++) {
    json_object(&json, NULL);
    json_text(&json, "name", feeders[i].name);
    json_bool(&json, "source", feeders[i].source);
    json_text(&json, "path", feeders[i].path);
    json_number(&json, "bytes", feeders[i].bytes);
    json_number(&json, "retries", feeders[i].retries);
    json_text(&json, "passed_over", feeders[i].reason);
    json_end_object(&json);
  }
  json_end_array(&json);
  json_end_object(&json);
}

static int list_feeders(void *context, void *list, size_t *count) {
  return haul_broadcast_feeders(context, list, count);
}

static int print_report(const struct pull *pull, const struct haul_broadcast_report *report) {
  size_t count;
  struct haul_broadcast_feeder *feeders =
      load_list(list_feeders, pull->broadcast, sizeof *feeders, &count);
  if (!feeders)
    return fail_library("cannot list the members");
  if (given.json)
    print_json(report, feeders, count);
  else
    print_text(pull, report, feeders, count);
  free(feeders);
  return fflush(stdout) ? fail_system(errno, "cannot write to standard output") : EXIT_DONE;
}

/* ---- The node ---- */

/* Splits "tcp://HOST:PORT"; false for another address. */
static bool split_host(const char *address, char host[ADDRESS_MAX], const char **port) {
  if (strncmp(address, "tcp://", strlen("tcp://")) != 0)
    return false;
  address += strlen("tcp://");
  bool bracket = *address == '[';
  size_t length = strcspn(address += bracket, bracket ? "]" : ":");
  *port = address + length + bracket;
  if (*(*port)++ != ':')
    return false;
  snprintf(host, ADDRESS_MAX, "%.*s", (int)length, address);
  return true;
}

/* The address of this host that packets to the node leave from, with a free port. */
static bool local_address(const char *node, char address[ADDRESS_MAX]) {
  char host[ADDRESS_MAX], own[NI_MAXHOST];
  const char *port;
  struct addrinfo hints = {.ai_socktype = SOCK_DGRAM}, *found = NULL;
  struct sockaddr_storage name;
  socklen_t size = sizeof name;
  if (!split_host(node, host, &port) || getaddrinfo(host, port, &hints, &found))
    return false;
  int test = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0); /* sends nothing */
  bool known =
      test >= 0 && connect(test, found->ai_addr, found->ai_addrlen) == 0 &&
      getsockname(test, (struct sockaddr *)&name, &size) == 0 &&
      getnameinfo((struct sockaddr *)&name, size, own, sizeof own, NULL, 0, NI_NUMERICHOST) == 0;
  if (known)
    snprintf(address, ADDRESS_MAX, strchr(own, ':') ? "tcp://[%.200s]:0" : "tcp://%.200s:0", own);
  if (test >= 0)
    close(test);
  freeaddrinfo(found);
  return known;
}

static int listen_for_others(const struct pull *pull) {
  char address[ADDRESS_MAX] = LISTEN_LOCAL;
  if (given.listen && !address_expand(given.listen, "0", address))
    return fail_because("write HOST:PORT or unix:///PATH, for example 127.0.0.1:7420",
                        "cannot listen on '%s': invalid address", given.listen);
  if (!given.listen)
    local_address(pull->target.address, address);
  if (haul_node_listen(pull->node, address))
    return fail_library("cannot listen on %s", address);
  return EXIT_DONE;
}

static int on_progress(void *user, uint64_t bytes) {
  struct pull *pull = user;
  progress_update(&pull->progress, bytes);
  return interrupted();
}

static int join(struct pull *pull) {
  struct haul_broadcast_options how = HAUL_BROADCAST_OPTIONS_INIT;
  how.address = given.address;
  how.member = given.member;
  how.progress = on_progress;
  how.user = pull;
  if (haul_broadcast_join(pull->node, pull->target.address, pull->target.name, &how,
                          connect_deadline(given.timeout), &pull->broadcast))
    return fail_library("cannot join the broadcast %s", pull->target.name);
  return EXIT_DONE;
}

/* ---- Versions ---- */

/* Fills *version with one newer than `after`; its number is 0 after an interruption. */
static int wait_for_version(const struct pull *pull, uint64_t after,
                            struct haul_broadcast_version *version) {
  *version = (struct haul_broadcast_version){0};
  while (!interrupted()) {
    int code =
        haul_broadcast_next(pull->broadcast, after, haul_deadline_in(INTERRUPT_SLICE_NS), version);
    if (code == 0)
      return EXIT_DONE;
    bool lost = code != HAUL_ETIMEDOUT && after == 0; /* later it may come back */
    if (lost || now_ns() >= pull->until)
      return fail_library("cannot wait for a version of %s", pull->target.name);
  }
  return EXIT_DONE;
}

static int receive(struct pull *pull, const struct haul_broadcast_version *version) {
  struct haul_broadcast_report report = HAUL_BROADCAST_REPORT_INIT;
  struct output *output = &pull->output;
  haul_broadcast_withdraw(pull->broadcast, 0); /* as the mapping ends */
  output_close(output);
  int status = output_open(output, pull, version->length);
  if (status)
    return status;
  progress_begin(&pull->progress, pull->target.name, version->length, given.quiet || given.json);
  int code = haul_broadcast_receive(pull->broadcast, version, output->region, HAUL_BROADCAST_KEEP,
                                    pull->until, &report);
  progress_hide();
  if (code == HAUL_ECANCELED)
    return fail_because("run it again: it goes on from there", "interrupted, with %s in %s",
                        size_text(report.bytes).text, output->path);
  if (code == HAUL_ESTALE && given.follow)
    return EXIT_DONE; /* the next version takes its place */
  if (code)
    return fail_library("cannot receive %s", pull->target.name);
  status = output_commit(output);
  pull->until = HAUL_FOREVER;
  pull->complete = !status;
  return status || given.quiet ? status : print_report(pull, &report);
}

/* Others read the version meanwhile, which needs no help of this thread. */
static int stay(struct pull *pull, uint64_t number) {
  int status = EXIT_DONE;
  while (!status && !interrupted()) {
    struct haul_broadcast_version version;
    status = wait_for_version(pull, given.follow ? number : UINT64_MAX, &version);
    if (status || !version.number)
      break;
    number = version.number;
    status = receive(pull, &version);
  }
  return status;
}

static uint64_t bytes_served(const struct pull *pull) {
  struct haul_node_stats stats;
  size_t count = 0;
  uint64_t served = 0;
  if (haul_node_stats(pull->node, &stats, NULL, &count))
    return 0;
  for (size_t i = 0; i < HAUL_STATS_PATHS && stats.paths[i].path[0]; i++)
    served += stats.paths[i].served_out;
  return served;
}

/* Stays while others read from this node, as they would have to find another one. */
static void linger(const struct pull *pull) {
  struct haul_broadcast_version none;
  uint64_t before = bytes_served(pull);
  for (int64_t until = now_ns() + LINGER_NS; now_ns() < until && !interrupted();) {
    haul_broadcast_next(pull->broadcast, UINT64_MAX, haul_deadline_in(INTERRUPT_SLICE_NS), &none);
    uint64_t served = bytes_served(pull);
    if (served != before)
      until = now_ns() + LINGER_NS;
    before = served;
  }
}

static int pull_all(struct pull *pull) {
  struct haul_broadcast_version version;
  int status = wait_for_version(pull, 0, &version);
  if (!status && version.number)
    status = receive(pull, &version);
  if (!status && (given.stay || given.follow))
    status = stay(pull, version.number);
  else if (!status)
    linger(pull);
  return status || pull->complete ? status : fail_because(NULL, "interrupted");
}

static int run_pull(const struct command *self, char **operands) {
  struct pull pull = {.file = operands[1], .output = {.descriptor = -1}};
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  if (!options_target(self, operands[0], &pull.target))
    return EXIT_USAGE;
  pull.until = given.timeout ? haul_deadline_in(given.timeout) : HAUL_FOREVER;
  config.insecure = given.insecure;
  interrupt_catch();
  signals_explain_fatal("pull");
  int status = output_resolve(&pull.output, pull.file); /* refused before a byte is moved */
  if (status)
    return status;
  if (haul_node_open(&config, &pull.node))
    return fail_library("cannot open a node");
  status = listen_for_others(&pull);
  if (!status)
    status = join(&pull);
  if (!status)
    status = pull_all(&pull);
  haul_broadcast_close(pull.broadcast);
  output_close(&pull.output);
  haul_node_close(pull.node);
  return status;
}

const struct command pull_command = {
    .name = "pull",
    .summary = "Receive a file of `haul push` and pass it on",
    .usage = "NODE/NAME FILE [OPTIONS]",
    .about =
        "Receives the file from the members that have it, and passes on what it has meanwhile.\n"
        "The bytes go to FILE.part, which is renamed when all are right. A run that ends before\n"
        "leaves it, and the next one goes on from there.",
    .options = options,
    .examples = "  haul pull 10.0.0.2/weights.bin weights.bin\n"
                "  haul pull 10.0.0.2/weights.bin /dev/shm/weights --follow\n",
    .values = &given,
    .least = 2,
    .most = 2,
    .run = run_pull,
};
