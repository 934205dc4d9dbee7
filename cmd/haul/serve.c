/* SPDX-License-Identifier: MIT
 * haul serve: a node that publishes regions until SIGINT, SIGTERM or SIGHUP. One thread polls the
 * node's descriptor and a signalfd, and uses no CPU while idle. With --export a thread of the
 * storage module drives the node, and this thread waits only for signals. */
#include <errno.h>
#include <fcntl.h>
#include <haul/directory.h>
#include <haul/metrics.h>
#include <haul/storage.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

#include "command.h"
#include "common/fail.h"
#include "common/listening.h"
#include "common/log.h"
#include "common/module.h"
#include "common/options.h"
#include "common/process.h"
#include "common/session.h"
#include "common/text.h"
#include "serve_offers.h"

#define ECHO_WAIT_NS    INT64_C(1000000000)
#define LEASE_LEAST_NS  INT64_C(2000000000) /* haul/directory.h */
#define LEASE_MOST_NS   INT64_C(3600000000000)
#define FILE_TAG        UINT64_C(0xf11e) /* upper 16 bits of the tag of a file request */
#define MESSAGES_A_TURN 256              /* before the next check for signals */
#define ROUNDS_A_TURN   1024             /* polls before the next check for signals */

struct values {
  struct text_list listen, region, load, file, allow, export;
  const char *name;
  const char *directory, *advertise;
  int64_t lease;
  unsigned ready_fd, metrics;
  int poll, echo, insecure;
  struct log_values log;
};

static struct values given;

static const struct option_spec options[] = {
    {"listen", OPTION_LIST, offsetof(struct values, listen), "ADDRESS",
     "listen on this address; repeatable (default: " LISTEN_DEFAULT ")"},
    {"region", OPTION_LIST, offsetof(struct values, region), "NAME=PLACE:SIZE[:ro]",
     "publish memory of this size at this place; ro: read-only"},
    {"load", OPTION_LIST, offsetof(struct values, load), "NAME=PATH",
     "read a file into this region first, past host memory where that is possible"},
    {"file", OPTION_LIST, offsetof(struct values, file), "NAME=PATH[:ro]",
     "publish host memory, filled from a file"},
    {"allow", OPTION_LIST, offsetof(struct values, allow), "NAME=IDENTITY[:ro]",
     "restrict this region or export to IDENTITY: the name of a key (haul key) or of a "
     "certificate, or uid:N over a Unix socket; ro: read-only"},
    {"export", OPTION_LIST, offsetof(struct values, export), "[NAME=]DIR[:rw]",
     "export the files in a folder; rw: peers may change them"},
    {"name", OPTION_TEXT, offsetof(struct values, name), "NAME",
     "set the name of this node for peers"},
    {"register", OPTION_TEXT, offsetof(struct values, directory), "DIRECTORY",
     "register this node and its regions in etcd://HOST[:PORT]/PREFIX, for lookups by name"},
    {"advertise", OPTION_TEXT, offsetof(struct values, advertise), "ADDRESS[,...]",
     "set the addresses in the directory (default: those of the listeners)"},
    {"lease", OPTION_SECONDS, offsetof(struct values, lease), "SECONDS",
     "set the lease TTL: seconds until the entry of a dead node expires (default: 10)"},
    {"metrics", OPTION_COUNT, offsetof(struct values, metrics), "PORT",
     "serve Prometheus metrics at http://127.0.0.1:PORT/metrics"},
    {"poll", OPTION_FLAG, offsetof(struct values, poll), NULL,
     "never sleep: lower latency, one busy processor"},
    {"echo", OPTION_FLAG, offsetof(struct values, echo), NULL,
     "send each message back (default: drop messages)"},
    {"insecure", OPTION_FLAG, offsetof(struct values, insecure), NULL,
     "listen on network addresses without a key"},
    {"log", OPTION_TEXT, offsetof(struct values, log.level), "LEVEL", LOG_LEVEL_HELP},
    {"log-format", OPTION_TEXT, offsetof(struct values, log.format), "FORMAT", LOG_FORMAT_HELP},
    {"ready-fd", OPTION_COUNT, offsetof(struct values, ready_fd), "N",
     "write the addresses to this descriptor once ready, and close it"},
    {0},
};

struct server {
  haul_node *node;
  int signals; /* descriptor */
  struct offers offers;
  struct exports exports;
  const struct haul_metrics *metrics_calls;
  struct metrics *metrics; /* NULL without --metrics */
};

static bool is_set(const struct haul_setting *settings, size_t count, const char *name) {
  for (size_t i = 0; i < count; i++)
    if (strcmp(settings[i].name, name) == 0)
      return strcmp(settings[i].value, "none") != 0;
  return false;
}

/* Peers prove the name of a key or a certificate only to a node that has one, too. */
static void warn_of_names(void) {
  struct haul_setting settings[64];
  size_t count = sizeof settings / sizeof settings[0];
  if (haul_setting_list(NULL, settings, &count) || is_set(settings, count, "key") ||
      is_set(settings, count, "certificate"))
    return;
  for (size_t i = 0; i < given.allow.count; i++) {
    const char *name = given.allow.items[i], *who = name + strlen(name) + 1; /* split by allow() */
    if (strcmp(who, "*") != 0 && strncmp(who, "uid:", 4) != 0)
      fail_note("warning: --allow %s=%s admits no peer, as this node has no key (HAUL_KEY) and no "
                "certificate",
                name, who);
  }
}

static int open_node(struct server *server) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  int status = exports_prepare(&server->exports);
  if (status)
    return status;
  warn_of_names();
  config.name = given.name;
  config.progress = HAUL_PROGRESS_CALLER;
  config.insecure = given.insecure;
  config.spin_ns = given.poll ? HAUL_SPIN_ALWAYS : 0;
  if (server->exports.count > 0)
    haul_storage_node_config(&config);
  if (haul_node_open(&config, &server->node))
    return fail_library("cannot open a node");
  return EXIT_DONE;
}

/* Listens on the sockets of the service manager. */
static int listen_inherited(struct server *server, unsigned count) {
  for (unsigned i = 0; i < count; i++) {
    char address[ADDRESS_MAX];
    snprintf(address, sizeof(address), "fd://%u", 3 + i);
    if (haul_node_listen(server->node, address))
      return fail_library("cannot listen on the inherited socket %u", 3 + i);
  }
  return EXIT_DONE;
}

static int start_listening(struct server *server) {
  unsigned inherited = service_sockets();
  if (given.listen.count == 0 && inherited > 0)
    return listen_inherited(server, inherited);
  return listen_all(server->node, &given.listen);
}

static int open_metrics(struct server *server) {
  unsigned short port = (unsigned short)given.metrics;
  void *symbol;
  if (!port)
    return EXIT_DONE;
  int status = module_symbol(&module_metrics, HAUL_METRICS_SYMBOL, "serve metrics", &symbol);
  if (status)
    return status;
  server->metrics_calls = symbol;
  int failed = server->metrics_calls->open(server->node, &port, &server->metrics);
  return failed ? fail_system(failed, "cannot serve metrics on 127.0.0.1:%u", port) : EXIT_DONE;
}

static int enter_directory(const struct server *server) {
  struct haul_register_options how = HAUL_REGISTER_OPTIONS_INIT;
  how.advertise = given.advertise;
  how.lease_seconds = (unsigned)((given.lease + 999999999) / 1000000000);
  return register_node(server->node, given.directory, &how, server->signals);
}

static void echo(const struct haul_message *message) {
  static bool warned;
  int result = haul_message_send(message->peer, message->tag, message->bytes, message->length,
                                 haul_deadline_in(ECHO_WAIT_NS));
  if (!result || result == HAUL_EPEER || warned)
    return;
  warned = true;
  fail_library("cannot echo a message to %s; later failures are not reported",
               haul_peer_name(message->peer));
}

/* Responds to a file request (docs/protocol.md) for lack of an export, so that the client need not
 * wait for its timeout. A client that reads no responses gets none. */
static void reject_file_request(const struct haul_message *message) {
  static const uint8_t response[4] = {EOPNOTSUPP}; /* little endian */
  haul_message_send(message->peer, message->tag, response, sizeof response, HAUL_NO_WAIT);
}

/* Receives messages; true: more may be queued. */
static bool receive_messages(const struct server *server) {
  for (int i = 0; i < MESSAGES_A_TURN; i++) {
    struct haul_message message;
    if (haul_message_receive(server->node, &message, HAUL_NO_WAIT))
      return false;
    if (message.kind == HAUL_MESSAGE && message.tag >> 48 == FILE_TAG)
      reject_file_request(&message);
    else if (message.kind == HAUL_MESSAGE && given.echo)
      echo(&message);
    haul_message_release(&message);
  }
  return true;
}

/* One turn of the loop; negative: the node failed, 1: more work may be queued. */
static int run_turn(const struct server *server) {
  int rounds = given.poll ? ROUNDS_A_TURN : 1;
  bool more = true; /* the last turn may have left messages */
  for (int i = 0; i < rounds; i++) {
    int events = haul_node_progress(server->node, HAUL_NO_WAIT);
    if (events < 0)
      return events;
    if (events > 0 || more)
      more = receive_messages(server);
  }
  return more;
}

/* Receives the messages that the storage module does not handle. */
static void receive_other(void *user, const struct haul_message *message) {
  (void)user;
  if (given.echo)
    echo(message);
}

static int explain_end(const struct server *server) {
  char text[160];
  int status = signals_describe(server->signals, text, sizeof(text));
  if (status == EXIT_DONE)
    log_line(LOG_INFO, "ended", text);
  return status;
}

static int wait_for_signal(const struct server *server) {
  struct pollfd entry = {server->signals, POLLIN, 0};
  if (TEMP_FAILURE_RETRY(poll(&entry, 1, -1)) < 0)
    return fail_system(errno, "cannot poll");
  return explain_end(server);
}

static int loop(const struct server *server) {
  struct pollfd entries[] = {{server->signals, POLLIN, 0}, {haul_node_fd(server->node), POLLIN, 0}};
  for (int more = 0;;) {
    int wait = more || given.poll ? 0 : -1;
    if (poll(entries, 2, wait) < 0 && errno != EINTR)
      return fail_system(errno, "cannot poll");
    if (entries[0].revents)
      return explain_end(server);
    more = run_turn(server);
    if (more < 0)
      return fail_library("the node failed");
  }
}

static int serve(struct server *server) {
  server->signals = signals_open(); /* before the node, whose threads inherit the mask */
  signals_explain_fatal("serve");
  int status = server->signals < 0 ? EXIT_FAILED : open_node(server);
  /* Regions come before listeners, so that each peer finds all of them. */
  if (status == EXIT_DONE)
    status = offers_publish(&server->offers, server->node);
  if (status == EXIT_DONE)
    status = exports_open(&server->exports, server->node, receive_other);
  if (status == EXIT_DONE)
    status = start_listening(server);
  if (status == EXIT_DONE)
    status = open_metrics(server);
  if (status == EXIT_DONE)
    status = enter_directory(server);
  if (status == EXIT_DONE)
    status = announce_node(server->node, given.ready_fd);
  if (status == EXIT_DONE) {
    service_notify("READY=1");
    status = server->exports.count ? wait_for_signal(server) : loop(server);
    service_notify("STOPPING=1");
  }
  if (server->metrics)
    server->metrics_calls->close(server->metrics);
  offers_release(&server->offers);
  exports_stop(&server->exports);
  haul_node_close(server->node);
  int ended = exports_close(&server->exports);
  if (status == EXIT_DONE)
    status = ended;
  if (server->signals >= 0)
    close(server->signals);
  return status;
}

/* Parses "NAME=IDENTITY[:ro]", where NAME is a region, an export or both. Keeps and changes it. */
static int allow(const struct command *command, struct server *server, char *text) {
  char *who = strchr(text, '=');
  if (!who || who == text || !who[1])
    return options_wrong(command, "invalid --allow '%s': expected NAME=IDENTITY[:ro]", text);
  *who++ = '\0';
  bool reads_only = text_cut_end(who, ":ro");
  if (!*who)
    return options_wrong(command, "invalid --allow '%s=': expected NAME=IDENTITY[:ro]", text);
  struct offer *offer = offers_find(&server->offers, text);
  if (offer) /* at most the rights of the region */
    offer->grants[offer->grant_count++] =
        (struct haul_grant){who, reads_only ? HAUL_READ : offer->rights};
  if (!exports_allow(&server->exports, text, who, reads_only) && !offer)
    return options_wrong(command, "unknown name '%s': no --region, --file or --export has it",
                         text);
  return EXIT_DONE;
}

static int run_serve(const struct command *self, char **operands) {
  (void)operands;
  static struct server server;
  if (given.ready_fd && fcntl((int)given.ready_fd, F_GETFD) < 0)
    return options_wrong(self, "invalid --ready-fd %u: the descriptor is not open", given.ready_fd);
  server = (struct server){.signals = -1};
  if ((given.advertise || given.lease) && !given.directory)
    return options_wrong(self, "--advertise and --lease require --register");
  if (given.lease && (given.lease < LEASE_LEAST_NS || given.lease > LEASE_MOST_NS))
    return options_wrong(self, "invalid --lease: expected 2 to 3600 seconds");
  if (given.metrics > UINT16_MAX)
    return options_wrong(self, "invalid --metrics %u: expected a port of at most 65535",
                         given.metrics);
  int status = log_begin(self, &given.log);
  if (status)
    return status;
  status = offers_parse(self, &server.offers, &given.region, &given.file);
  for (size_t i = 0; i < given.load.count && status == EXIT_DONE; i++) /* argv is writable */
    status = offers_parse_load(self, &server.offers, (char *)(uintptr_t)given.load.items[i]);
  if (status == EXIT_DONE)
    status = exports_parse(self, &server.exports, &given.export);
  for (size_t i = 0; i < given.allow.count && status == EXIT_DONE; i++)
    status = allow(self, &server, (char *)(uintptr_t)given.allow.items[i]);
  return status ? status : serve(&server);
}

const struct command serve_command = {
    .name = "serve",
    .summary = "Run a node that publishes regions and exports files",
    .usage = "[OPTIONS]",
    .about =
        "Publishes regions and exports files until SIGINT, SIGTERM or SIGHUP. Prints `listening on "
        "ADDRESS`\n"
        "for each listener once peers can connect. An ADDRESS is tcp://HOST:PORT (port 0: any "
        "free\n"
        "one), unix:///PATH or unix://@NAME. Names must not contain '/', which separates "
        "NODE/NAME.",
    .options = options,
    .examples = "  haul serve --name a --region kv=host:1G --register etcd://10.0.0.9/cluster\n"
                "  haul serve --region scratch=host:1G --region kv=sim:0:256M\n"
                "  haul serve --region weights=cuda:0:2G:ro --load weights=weights.bin\n"
                "  haul serve --listen unix:///run/haul.sock --file weights=weights.bin:ro\n"
                "  haul serve --export /data/weights --export scratch=/data/scratch:rw\n"
                "  haul serve --listen tcp://127.0.0.1:0 --region r=host:64M --echo --poll\n",
    .values = &given,
    .run = run_serve,
};
