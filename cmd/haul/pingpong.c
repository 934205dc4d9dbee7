/* SPDX-License-Identifier: MIT
 * haul pingpong: a session of two sides that verify the bytes of every step. */
#include <errno.h>
#include <stdarg.h>

#include "command.h"
#include "common/fail.h"
#include "common/options.h"
#include "common/output.h"
#include "common/process.h"
#include "common/session.h"
#include "common/text.h"
#include "pingpong.h"

#define PORT            "20000"
#define LISTEN_DEFAULT  "tcp://127.0.0.1:" PORT
#define SIZE_DEFAULT    (UINT64_C(4) << 20)
#define TIMEOUT_DEFAULT INT64_C(30000000000)

struct values {
  const char *listen, *place, *only;
  uint64_t size;
  unsigned iterations;
  int64_t timeout;
  int server, insecure, json;
};

static struct values given = {.listen = LISTEN_DEFAULT,
                              .place = "sim:0",
                              .size = SIZE_DEFAULT,
                              .iterations = 3,
                              .timeout = TIMEOUT_DEFAULT};

static const struct option_spec options[] = {
    {"server", OPTION_FLAG, offsetof(struct values, server), NULL,
     "wait for a client; a client names ADDRESS instead"},
    {"listen", OPTION_TEXT, offsetof(struct values, listen), "ADDRESS",
     "server: listen on this address (default: " LISTEN_DEFAULT ")"},
    {"place", OPTION_TEXT, offsetof(struct values, place), "PLACE",
     "allocate memory of this side at PLACE (default: sim:0, or host without it)"},
    {"size", OPTION_SIZE, offsetof(struct values, size), "SIZE",
     "client: size of the memory on both sides, a multiple of 4 (default: 4M)"},
    {"iterations", OPTION_COUNT, offsetof(struct values, iterations), "N",
     "client: number of two-sided exchanges (default: 3)"},
    {"only", OPTION_PATH, offsetof(struct values, only), "PATH",
     "use only this path (map, rdma, tcp), except for messages, and fail if it is closed"},
    {"timeout", OPTION_SECONDS, offsetof(struct values, timeout), "SECONDS",
     "limit the silence of the other side (default: 30)"},
    {"insecure", OPTION_FLAG, offsetof(struct values, insecure), NULL,
     "server: listen on network addresses without a key"},
    {"json", OPTION_FLAG, offsetof(struct values, json), NULL, "print only the summary, as JSON"},
    {0},
};

void narrate(const struct side *side, const char *format, ...) {
  va_list list;
  if (side->quiet)
    return;
  va_start(list, format);
  vprintf(format, list);
  va_end(list);
  putchar('\n');
  fflush(stdout);
}

static const char *role_text(const struct side *side) {
  return side->role == ROLE_SERVER ? "server" : "client";
}

static void print_summary(const struct side *side) {
  printf("\n%s: %s at %s%s, %s\n", role_text(side), size_text(side->size).text,
         place_text(haul_region_place(side->memory)).text,
         side->fell_back ? " (instead of the requested place)" : "", side->exported);
  struct table table = table_begin("lllll", "STEP", "PATH", "COPIES", "HERE", "THERE");
  for (size_t i = 0; i < side->result_count; i++) {
    const struct pingpong_result *result = &side->results[i];
    table_row(&table, result->step, result->path, result->copies, result->mine ? "right" : "WRONG",
              result->theirs ? "right" : "WRONG");
  }
  table_end(&table);
  printf("pingpong: %s\n", steps_passed(side) ? "verified" : "FAILED");
}

static void results_to_json(const struct side *side, struct json *json) {
  json_array(json, "steps");
  for (size_t i = 0; i < side->result_count; i++) {
    json_object(json, NULL);
    json_text(json, "step", side->results[i].step);
    json_text(json, "path", side->results[i].path);
    json_text(json, "copies", side->results[i].copies);
    json_bool(json, "here", side->results[i].mine);
    json_bool(json, "there", side->results[i].theirs);
    json_end_object(json);
  }
  json_end_array(json);
}

static void print_pingpong_json(const struct side *side) {
  struct json json = json_open();
  json_text(&json, "role", role_text(side));
  json_number(&json, "bytes", side->size);
  json_text(&json, "place", place_text(haul_region_place(side->memory)).text);
  json_bool(&json, "fell_back_to_host", side->fell_back);
  json_text(&json, "exported", side->exported);
  results_to_json(side, &json);
  json_bool(&json, "verified", steps_passed(side));
  json_end_object(&json);
}

static int open_node(struct side *side, int insecure) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.insecure = insecure;
  config.peer_events = 1; /* reports the end of the other side at once */
  if (haul_node_open(&config, &side->node))
    return fail_library("cannot open a node");
  return EXIT_DONE;
}

static int find_remote(struct side *side, const char *name) {
  if (haul_peer_lookup(side->peer, name, haul_deadline_in(side->timeout), &side->remote))
    return fail_library("cannot find the memory of the other side");
  if (haul_remote_length(side->remote) != side->size)
    return fail_because(NULL, "the memory of the other side does not have the agreed size");
  narrate(side, "other side: %s, memory '%s' at %s", haul_peer_name(side->peer), name,
          place_text(haul_remote_place(side->remote)).text);
  return EXIT_DONE;
}

static int meet_as_server(struct side *side, const char *address, struct haul_place place) {
  char listening[ADDRESS_MAX], region[256];
  if (haul_node_listen(side->node, address))
    return fail_library("cannot listen on %s", address);
  if (haul_node_address(side->node, 0, listening, sizeof(listening)) == 0)
    narrate(side, "listening on %s", listening);
  int status = side_await_hello(side, region);
  if (status == EXIT_DONE)
    status = memory_make(side, place);
  if (status == EXIT_DONE)
    status = find_remote(side, region);
  return status ? status : side_send_welcome(side);
}

static int meet_as_client(struct side *side, const char *address, struct haul_place place) {
  char region[256];
  if (haul_peer_connect(side->node, address, haul_deadline_in(side->timeout), &side->peer)) {
    const struct haul_error *error = haul_error_last();
    if (error->system != ECONNREFUSED && error->system != ENOENT)
      return fail_library("cannot connect to %s", address);
    return fail_because("start the server there: haul pingpong --server --listen ADDRESS",
                        "cannot connect to %s: %s", address, error->text);
  }
  int status = memory_make(side, place);
  if (status == EXIT_DONE)
    status = side_send_hello(side, region);
  return status ? status : find_remote(side, region);
}

static int play(struct side *side, const char *address, struct haul_place place) {
  int status = side->role == ROLE_SERVER ? meet_as_server(side, address, place)
                                         : meet_as_client(side, address, place);
  if (status)
    return status;
  status = steps_run(side);
  if (status == EXIT_DONE)
    side_end_session(side);
  if (side->quiet)
    print_pingpong_json(side);
  else
    print_summary(side);
  if (status == EXIT_DONE && !steps_passed(side))
    status = fail_because(NULL, "at least one step found wrong bytes");
  return status;
}

static int check_values(const struct command *self, char **operands) {
  if (given.server && operands[0])
    return options_wrong(self, "--server takes --listen ADDRESS instead of an operand");
  if (!given.server && !operands[0])
    return options_wrong(self, "missing operand: the address of the server, or --server");
  if (given.size % sizeof(uint32_t) || given.size == 0 || given.size > PINGPONG_SIZE_MAX)
    return options_wrong(self, "invalid --size %llu: expected a multiple of 4, at most 1G",
                         (unsigned long long)given.size);
  if (given.iterations > PINGPONG_ITERATIONS_MAX)
    return options_wrong(self, "invalid --iterations %u: expected at most %d", given.iterations,
                         PINGPONG_ITERATIONS_MAX);
  return EXIT_DONE;
}

static int run_pingpong(const struct command *self, char **operands) {
  static struct side side;
  struct haul_place place;
  char address[ADDRESS_MAX];
  int status = check_values(self, operands);
  if (status)
    return status;
  const char *text = given.server ? given.listen : operands[0];
  if (!options_address(self, text, PORT, address) || !options_place(self, given.place, &place))
    return EXIT_USAGE;
  interrupt_catch();
  side = (struct side){.role = given.server ? ROLE_SERVER : ROLE_CLIENT,
                       .quiet = given.json != 0,
                       .size = given.size,
                       .iterations = given.iterations,
                       .timeout = given.timeout,
                       .only = given.only};
  status = open_node(&side, given.insecure);
  if (status == EXIT_DONE)
    status = play(&side, address, place);
  haul_remote_release(side.remote);
  memory_release(&side);
  haul_peer_close(side.peer);
  haul_node_close(side.node);
  return status;
}

const struct command pingpong_command = {
    .name = "pingpong",
    .summary = "Exchange patterns with another haul and verify every byte on both sides",
    .usage = "--server [OPTIONS] | ADDRESS [OPTIONS]",
    .about =
        "Two-sided: the client sends 100*i+k in element k of iteration i; the server verifies it\n"
        "and replies 200*i+k, as messages, or as offers if the memory of a side is on a device.\n"
        "One-sided: the server writes into the client's memory, then the client reads that of the\n"
        "server. Both sides verify each step, exchange the results and print a summary. The exit\n"
        "status is 0 if all bytes were right on both sides.",
    .options = options,
    .examples = "  haul pingpong --server &\n"
                "  haul pingpong 127.0.0.1:20000\n"
                "  haul pingpong --server --listen unix:///tmp/pp.sock --place host\n"
                "  haul pingpong unix:///tmp/pp.sock --size 64M --iterations 10 --json\n"
                "  haul pingpong 10.0.0.2 --place host --only rdma\n",
    .values = &given,
    .most = 1,
    .run = run_pingpong,
};
