/* SPDX-License-Identifier: MIT
 *
 * haul serve: a node that publishes regions until it is told to stop. One thread does everything:
 * it sleeps in poll on the node's descriptor and on the signals, and costs nothing while idle.
 * Where trees of files are exported a thread of their module drives the node, and this one waits
 * for signals alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <haul/directory.h>
#include <haul/metrics.h>
#include <haul/storage.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "command.h"
#include "common/fail.h"
#include "common/log.h"
#include "common/module.h"
#include "common/options.h"
#include "common/process.h"
#include "common/session.h"
#include "common/text.h"
#include "serve_offers.h"

#define LISTEN_DEFAULT    "tcp://127.0.0.1:" DEFAULT_PORT
#define ECHO_WAIT_NS      INT64_C(1000000000)
#define REGISTER_WAIT_NS  INT64_C(30000000000)
#define REGISTER_SLICE_NS INT64_C(2000000000) /* between two looks at the signals */
#define LEASE_LEAST_NS    INT64_C(2000000000) /* haul/directory.h */
#define LEASE_MOST_NS     INT64_C(3600000000000)
#define MESSAGES_A_TURN   256  /* then the signals get a look, however many messages come */
#define ROUNDS_A_TURN     1024 /* of polling, likewise */

struct values {
  struct text_list listen, region, file, allow, export;
  const char *name;
  const char *directory, *advertise;
  int64_t lease;
  unsigned ready_fd, metrics;
  int poll, echo, insecure;
  struct log_values log;
};

static const struct option_spec options[] = {
    {"listen", OPTION_LIST, offsetof(struct values, listen), "ADDRESS",
     "listen here; several times for several (default: " LISTEN_DEFAULT ")"},
    {"region", OPTION_LIST, offsetof(struct values, region), "NAME=PLACE:SIZE[:ro]",
     "publish memory of this size at this place; ro: peers may only read"},
    {"file", OPTION_LIST, offsetof(struct values, file), "NAME=PATH[:ro]",
     "publish host memory filled from a file"},
    {"allow", OPTION_LIST, offsetof(struct values, allow), "NAME=WHO[:ro]",
     "publish this region, or export this tree, for these alone: WHO is the name of a key (haul "
     "key) or certificate, or "
     "uid:N over a Unix socket; ro: to be read"},
    {"export", OPTION_LIST, offsetof(struct values, export), "[NAME=]DIR[:rw]",
     "export the files under a folder; rw: peers may change them, too"},
    {"name", OPTION_TEXT, offsetof(struct values, name), "NAME",
     "what peers see as this node's name"},
    {"register", OPTION_TEXT, offsetof(struct values, directory), "DIRECTORY",
     "enter this node and its regions into etcd://HOST[:PORT]/PREFIX, where others find them by "
     "name"},
    {"advertise", OPTION_TEXT, offsetof(struct values, advertise), "ADDRESS[,...]",
     "what the directory says of where this node is reached (default: its listeners)"},
    {"lease", OPTION_SECONDS, offsetof(struct values, lease), "SECONDS",
     "so long after its end this node is gone from the directory (default: 10)"},
    {"metrics", OPTION_COUNT, offsetof(struct values, metrics), "PORT",
     "tell Prometheus what is counted, at http://127.0.0.1:PORT/metrics"},
    {"poll", OPTION_FLAG, offsetof(struct values, poll), NULL,
     "never sleep: lower latency, one processor kept busy"},
    {"echo", OPTION_FLAG, offsetof(struct values, echo), NULL,
     "send each message back (default: messages are taken and dropped)"},
    {"insecure", OPTION_FLAG, offsetof(struct values, insecure), NULL,
     "allow listening beyond this host also without a key"},
    {"log", OPTION_TEXT, offsetof(struct values, log.level), "LEVEL", LOG_LEVEL_HELP},
    {"log-format", OPTION_TEXT, offsetof(struct values, log.format), "FORMAT", LOG_FORMAT_HELP},
    {"ready-fd", OPTION_COUNT, offsetof(struct values, ready_fd), "N",
     "write the addresses to this descriptor once all is ready, and close it"},
    {0},
};

struct server {
  const struct values *values;
  haul_node *node;
  int signals; /* descriptor */
  struct offers offers;
  struct exports exports;
  const struct haul_metrics *metrics_calls;
  struct metrics *metrics; /* NULL: not asked for */
};

/* Before the node is opened: its threads inherit the mask, so that no signal ends the process. Nor
 * does it end when who read what it logs is gone. */
static int catch_signals(struct server *server) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigprocmask(SIG_BLOCK, &set, NULL);
  signal(SIGPIPE, SIG_IGN);
  server->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  return server->signals < 0 ? fail_system(errno, "cannot watch for signals") : EXIT_DONE;
}

static int open_node(struct server *server) {
  const struct values *values = server->values;
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.name = values->name;
  config.progress = HAUL_PROGRESS_CALLER;
  config.insecure = values->insecure;
  config.spin_ns = values->poll ? HAUL_SPIN_ALWAYS : 0;
  if (server->exports.count > 0)
    haul_storage_node_config(&config);
  if (haul_node_open(&config, &server->node))
    return fail_library("cannot open a node");
  return EXIT_DONE;
}

/* Those that the service manager made, where nothing else is asked for. */
static int listen_inherited(struct server *server, unsigned count) {
  for (unsigned i = 0; i < count; i++) {
    char address[ADDRESS_MAX];
    snprintf(address, sizeof(address), "fd://%u", 3 + i);
    if (haul_node_listen(server->node, address))
      return fail_library("cannot listen on the socket that was passed");
  }
  return EXIT_DONE;
}

static int listen_all(struct server *server) {
  const struct text_list *list = &server->values->listen;
  const struct text_list fallback = {1, {LISTEN_DEFAULT}};
  unsigned inherited = service_sockets();
  if (list->count == 0 && inherited > 0)
    return listen_inherited(server, inherited);
  if (list->count == 0)
    list = &fallback;
  for (size_t i = 0; i < list->count; i++) {
    char address[ADDRESS_MAX];
    if (!address_expand(list->items[i], DEFAULT_PORT, address))
      return fail_because("write HOST:PORT or unix:///PATH, for example 127.0.0.1:7420",
                          "cannot listen on '%s': invalid address", list->items[i]);
    if (haul_node_listen(server->node, address))
      return fail_library("cannot listen on %s", address);
  }
  return EXIT_DONE;
}

static int open_metrics(struct server *server) {
  unsigned short port = (unsigned short)server->values->metrics;
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
  const struct values *values = server->values;
  struct haul_register_options how = HAUL_REGISTER_OPTIONS_INIT;
  if (!values->directory)
    return EXIT_DONE;
  how.advertise = values->advertise;
  how.lease_seconds = (unsigned)((values->lease + 999999999) / 1000000000);
  haul_deadline until = haul_deadline_in(REGISTER_WAIT_NS);
  struct pollfd signals = {server->signals, POLLIN, 0};
  for (bool told = false;; told = true) {
    int code = haul_node_register(server->node, values->directory, &how,
                                  haul_deadline_in(REGISTER_SLICE_NS));
    if (code == 0)
      return EXIT_DONE;
    bool waits = code == HAUL_EEXIST && haul_deadline_in(0) < until;
    if (!waits || poll(&signals, 1, 0) > 0)
      return fail_library("cannot enter %s", values->directory);
    if (!told)
      fail_note("waits for the name: another node has it in %s, which may be dead",
                values->directory);
  }
}

static int announce(const struct server *server) {
  char address[ADDRESS_MAX];
  unsigned descriptor = server->values->ready_fd;
  for (size_t i = 0; haul_node_address(server->node, i, address, sizeof(address)) == 0; i++) {
    printf("listening on %s\n", address);
    if (descriptor && dprintf((int)descriptor, "%s\n", address) < 0)
      return fail_system(errno, "cannot write to descriptor %u", descriptor);
  }
  if (descriptor)
    close((int)descriptor);
  if (fflush(stdout))
    return fail_system(errno, "cannot write to standard output");
  return EXIT_DONE;
}

static void echo(const struct haul_message *message) {
  static bool warned;
  int result = haul_message_send(message->peer, message->tag, message->bytes, message->length,
                                 haul_deadline_in(ECHO_WAIT_NS));
  if (!result || result == HAUL_EPEER || warned)
    return;
  warned = true;
  fail_library("cannot echo a message to %s; later ones are dropped without a word",
               haul_peer_name(message->peer));
}

/* Returns whether there may be more. */
static bool take_messages(const struct server *server) {
  for (int i = 0; i < MESSAGES_A_TURN; i++) {
    struct haul_message message;
    if (haul_message_receive(server->node, &message, HAUL_NO_WAIT))
      return false;
    if (server->values->echo && message.kind == HAUL_MESSAGE)
      echo(&message);
    haul_message_release(&message);
  }
  return true;
}

/* One turn of the loop; negative when the node failed, else whether there may be more to do. */
static int turn(const struct server *server) {
  int rounds = server->values->poll ? ROUNDS_A_TURN : 1;
  bool more = true; /* the turn before may have left some */
  for (int i = 0; i < rounds; i++) {
    int events = haul_node_progress(server->node, HAUL_NO_WAIT);
    if (events < 0)
      return events;
    if (events > 0 || more)
      more = take_messages(server);
  }
  return more;
}

/* What the module has no use for. */
static void take_other(void *user, const struct haul_message *message) {
  const struct server *server = user;
  if (server->values->echo)
    echo(message);
}

static int wait_for_signal(const struct server *server) {
  struct pollfd entry = {server->signals, POLLIN, 0};
  while (poll(&entry, 1, -1) < 0)
    if (errno != EINTR)
      return fail_system(errno, "cannot wait");
  return EXIT_DONE;
}

static int loop(const struct server *server) {
  struct pollfd entries[] = {{server->signals, POLLIN, 0}, {haul_node_fd(server->node), POLLIN, 0}};
  for (int more = 0;;) {
    int wait = more || server->values->poll ? 0 : -1;
    if (poll(entries, 2, wait) < 0 && errno != EINTR)
      return fail_system(errno, "cannot wait");
    if (entries[0].revents)
      return EXIT_DONE;
    more = turn(server);
    if (more < 0)
      return fail_library("cannot go on");
  }
}

static int serve(struct server *server) {
  int status = catch_signals(server);
  if (status == EXIT_DONE)
    status = open_node(server);
  /* Published before anybody can connect: whoever saw the address finds the names. */
  if (status == EXIT_DONE)
    status = offers_publish(&server->offers, server->node);
  if (status == EXIT_DONE)
    status = exports_open(&server->exports, server->node, take_other, server);
  if (status == EXIT_DONE)
    status = listen_all(server);
  if (status == EXIT_DONE)
    status = open_metrics(server);
  if (status == EXIT_DONE)
    status = enter_directory(server);
  if (status == EXIT_DONE)
    status = announce(server);
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

/* Reads "NAME=WHO[:ro]", NAME being a region's or an export's, or both; the text is kept, and cut.
 */
static int allow(const struct command *command, struct server *server, char *text) {
  char *who = strchr(text, '=');
  if (!who || who == text || !who[1])
    return options_wrong(command, "'%s' is not NAME=WHO[:ro]", text);
  *who++ = '\0';
  bool reads_only = text_cut_end(who, ":ro");
  if (!*who)
    return options_wrong(command, "'%s' is allowed to nobody", text);
  struct offer *offer = offers_find(&server->offers, text);
  if (offer) /* the rights are those of the region, or fewer */
    offer->grants[offer->grant_count++] =
        (struct haul_grant){who, reads_only ? HAUL_READ : offer->rights};
  if (!exports_allow(&server->exports, text, who, reads_only) && !offer)
    return options_wrong(command,
                         "'%s': no region is published, and nothing exported, by that name", text);
  return EXIT_DONE;
}

static int run(const struct command *self, int argc, char **argv) {
  struct values values = {0};
  static struct server server;
  char **operands;
  int status;
  if (!options_parse(self, argc, argv, &values, (struct operand_range){0, 0}, &operands, &status))
    return status;
  if (values.ready_fd && fcntl((int)values.ready_fd, F_GETFD) < 0)
    return options_wrong(self, "--ready-fd %u: no such descriptor is open", values.ready_fd);
  server = (struct server){.values = &values, .signals = -1};
  if ((values.advertise || values.lease) && !values.directory)
    return options_wrong(self, "--advertise and --lease go with --register");
  if (values.lease && (values.lease < LEASE_LEAST_NS || values.lease > LEASE_MOST_NS))
    return options_wrong(self, "--lease is 2 to 3600 seconds");
  if (values.metrics > UINT16_MAX)
    return options_wrong(self, "--metrics %u is no port", values.metrics);
  status = log_begin(self, &values.log);
  if (status)
    return status;
  status = offers_parse(self, &server.offers, &values.region, &values.file);
  if (status == EXIT_DONE)
    status = exports_parse(self, &server.exports, &values.export);
  for (size_t i = 0; i < values.allow.count && status == EXIT_DONE; i++)
    status = allow(self, &server, (char *)(uintptr_t)values.allow.items[i]); /* argv: ours to cut */
  return status ? status : serve(&server);
}

const struct command serve_command = {
    .name = "serve",
    .summary = "Run a node that publishes regions and exports files",
    .usage = "[OPTIONS]",
    .about =
        "Publishes the regions and exports the files, prints `listening on ADDRESS` for each "
        "listener once peers may\n"
        "come, and runs until SIGINT or SIGTERM. An ADDRESS is tcp://HOST:PORT (port 0: any free\n"
        "one), unix:///PATH or unix://@NAME. Names have no '/', so that NODE/NAME can be told\n"
        "apart.",
    .options = options,
    .examples = "  haul serve --name a --region kv=host:1G --register etcd://10.0.0.9/cluster\n"
                "  haul serve --region scratch=host:1G --region kv=sim:0:256M\n"
                "  haul serve --listen unix:///run/haul.sock --file weights=weights.bin:ro\n"
                "  haul serve --export /data/weights --export scratch=/data/scratch:rw\n"
                "  haul serve --listen tcp://127.0.0.1:0 --region r=host:64M --echo --poll\n",
    .run = run,
};
