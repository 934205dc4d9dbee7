/* SPDX-License-Identifier: MIT
 * haul pull: a receiver of a broadcast. The bytes go to a mapped file beside the output, which gets
 * its name when all are right. A run that was interrupted leaves it, and the next one keeps its
 * chunks. */
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <haul/broadcast.h>
#include <haul/stats.h>

#include "command.h"
#include "common/fail.h"
#include "common/options.h"
#include "common/output.h"
#include "common/process.h"
#include "common/progress.h"
#include "common/session.h"
#include "common/text.h"
#include "pull_file.h"

#define LISTEN_LOCAL "tcp://127.0.0.1:0"
#define LINGER_NS    INT64_C(1000000000)
#define SILENT_NS    INT64_C(10000000000) /* until the first note that nothing comes */
#define SILENT_MOST  INT64_C(60000000000)

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

/* A time in which no byte comes. */
struct silence {
  int64_t since; /* 0: none */
  int64_t wait;  /* until the next note */
  int64_t told;
  uint64_t bytes; /* at its begin */
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
  struct silence silence;
};

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

static void print_json(const struct haul_broadcast_report *report, bool complete,
                       const struct haul_broadcast_feeder *feeders, size_t count) {
  struct json json = json_open();
  json_bool(&json, "complete", complete);
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

static int print_report(const struct pull *pull, const struct haul_broadcast_report *report,
                        bool complete) {
  size_t count;
  struct haul_broadcast_feeder *feeders =
      load_list(list_feeders, pull->broadcast, sizeof *feeders, &count);
  if (!feeders)
    return fail_library("cannot list the members");
  if (given.json)
    print_json(report, complete, feeders, count);
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

/* Whether to say it now: after 10 s, then after twice the time. */
static bool silence_lasts(struct silence *silence) {
  int64_t now = now_ns();
  if (!silence->since)
    *silence = (struct silence){now, SILENT_NS, now, silence->bytes};
  if (now - silence->told < silence->wait)
    return false;
  silence->told = now;
  silence->wait = silence->wait * 2 < SILENT_MOST ? silence->wait * 2 : SILENT_MOST;
  return true;
}

static const char *silence_text(const struct silence *silence) {
  static char text[32];
  snprintf(text, sizeof text, "%.0f s", (double)(now_ns() - silence->since) / 1e9);
  return text;
}

static void tell_source(const struct pull *pull) {
  size_t count;
  struct haul_broadcast_feeder *feeders =
      load_list(list_feeders, pull->broadcast, sizeof *feeders, &count);
  for (size_t i = 0; feeders && i < count; i++)
    if (feeders[i].source && feeders[i].reason[0])
      fail_note("no byte has come for %s; the source was passed over: %s",
                silence_text(&pull->silence), feeders[i].reason);
  free(feeders);
}

static int on_progress(void *user, uint64_t bytes) {
  struct pull *pull = user;
  progress_update(&pull->progress, bytes);
  if (bytes != pull->silence.bytes)
    pull->silence = (struct silence){.bytes = bytes};
  if (silence_lasts(&pull->silence))
    tell_source(pull);
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
static int wait_for_version(struct pull *pull, uint64_t after,
                            struct haul_broadcast_version *version) {
  *version = (struct haul_broadcast_version){0};
  pull->silence = (struct silence){0};
  while (!interrupted()) {
    int code =
        haul_broadcast_next(pull->broadcast, after, haul_deadline_in(INTERRUPT_SLICE_NS), version);
    if (code == 0)
      return EXIT_DONE;
    bool lost = code != HAUL_ETIMEDOUT; /* later it may come back */
    if ((lost && after == 0) || now_ns() >= pull->until)
      return fail_library("cannot wait for a version of %s", pull->target.name);
    if (!lost)
      pull->silence = (struct silence){0};
    else if (given.follow && silence_lasts(&pull->silence))
      fail_note("the source has not answered for %s: %s", silence_text(&pull->silence),
                haul_error_last()->text);
  }
  return EXIT_DONE;
}

/* Says why a version was not received. With --follow the next one may take its place. */
static int explain(const struct pull *pull, int code, const struct haul_broadcast_report *report) {
  bool goes_on = given.follow && (code == HAUL_ESTALE || code == HAUL_ECHECKSUM);
  if (code == HAUL_ECANCELED)
    return fail_because("run it again: it goes on from there", "interrupted, with %s in %s",
                        size_text(report->bytes).text, pull->output.path);
  if (code != HAUL_ESTALE || !goes_on)
    fail_library("cannot receive %s", pull->target.name);
  return goes_on ? EXIT_DONE : EXIT_FAILED;
}

static int receive(struct pull *pull, const struct haul_broadcast_version *version) {
  struct haul_broadcast_report report = HAUL_BROADCAST_REPORT_INIT;
  struct output *output = &pull->output;
  haul_broadcast_withdraw(pull->broadcast, 0); /* as the mapping ends */
  output_close(output);
  int status = output_open(output, pull->file, version->length, pull->node, pull->until);
  if (status)
    return status;
  progress_begin(&pull->progress, pull->target.name, version->length, given.quiet || given.json);
  pull->silence = (struct silence){0};
  int code = haul_broadcast_receive(pull->broadcast, version, output->region, HAUL_BROADCAST_KEEP,
                                    pull->until, &report);
  progress_hide();
  status = code ? explain(pull, code, &report) : output_commit(output);
  bool complete = !code && !status;
  if (complete)
    pull->until = HAUL_FOREVER;
  pull->complete |= complete;
  if (given.quiet || (!complete && !given.json))
    return status;
  int printed = print_report(pull, &report, complete);
  return status ? status : printed;
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
  if (strcmp(pull.file, "-") == 0)
    return options_wrong(self, "name a file: chunks come in any order, which a pipe cannot take");
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
