/* SPDX-License-Identifier: MIT
 *
 * haul pingpong: a session of two sides in which every step's bytes are checked on both.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "common/fail.h"
#include "common/options.h"
#include "common/output.h"
#include "common/process.h"
#include "common/session.h"
#include "common/text.h"
#include "pingpong.h"

#define PORT             "20000"
#define LISTEN_DEFAULT   "tcp://127.0.0.1:" PORT
#define SIZE_DEFAULT     (UINT64_C(4) << 20)
#define PATIENCE_DEFAULT INT64_C(30000000000)

struct values {
  const char *listen, *place, *only;
  uint64_t size;
  unsigned iterations;
  int64_t timeout;
  int server, insecure, json;
};

static const struct option_spec options[] = {
    {"server", OPTION_FLAG, offsetof(struct values, server), NULL,
     "wait for a client; without it, ADDRESS is the server's"},
    {"listen", OPTION_TEXT, offsetof(struct values, listen), "ADDRESS",
     "server: listen here (default: " LISTEN_DEFAULT ")"},
    {"place", OPTION_TEXT, offsetof(struct values, place), "PLACE",
     "where this side's memory is (default: sim:0, and host where there is none)"},
    {"size", OPTION_SIZE, offsetof(struct values, size), "SIZE",
     "client: bytes of memory on either side, a multiple of 4 (default: 4M)"},
    {"iterations", OPTION_COUNT, offsetof(struct values, iterations), "N",
     "client: two-sided exchanges (default: 3)"},
    {"only", OPTION_TEXT, offsetof(struct values, only), "PATH",
     "move one-sided by this path alone (map, rdma, tcp) and fail where it is closed"},
    {"timeout", OPTION_SECONDS, offsetof(struct values, timeout), "SECONDS",
     "how long the other side may be silent (default: 30)"},
    {"insecure", OPTION_FLAG, offsetof(struct values, insecure), NULL,
     "server: allow listening beyond this host also without a key"},
    {"json", OPTION_FLAG, offsetof(struct values, json), NULL, "print the summary alone, as JSON"},
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
  struct table table;
  printf("\n%s: %s at %s%s, %s\n", role_text(side), size_text(side->size).text,
         place_text(haul_region_place(side->memory)).text,
         side->fell_back ? " (in place of what was asked for)" : "", side->exported);
  table_init(&table, "llll");
  table_row(&table, "STEP", "PATH", "HERE", "THERE");
  for (size_t i = 0; i < side->result_count; i++) {
    const struct pingpong_result *result = &side->results[i];
    table_row(&table, result->step, result->path, result->mine ? "right" : "WRONG",
              result->theirs ? "right" : "WRONG");
  }
  table_print(&table, stdout);
  table_free(&table);
  printf("pingpong: %s\n", steps_held(side) ? "verified" : "FAILED");
}

static void results_to_json(const struct side *side, struct json *json) {
  json_array(json, "steps");
  for (size_t i = 0; i < side->result_count; i++) {
    json_object(json, NULL);
    json_text(json, "step", side->results[i].step);
    json_text(json, "path", side->results[i].path);
    json_bool(json, "here", side->results[i].mine);
    json_bool(json, "there", side->results[i].theirs);
    json_end_object(json);
  }
  json_end_array(json);
}

static void print_json(const struct side *side) {
  struct json json;
  json_begin(&json, stdout);
  json_object(&json, NULL);
  json_text(&json, "role", role_text(side));
  json_number(&json, "bytes", side->size);
  json_text(&json, "place", place_text(haul_region_place(side->memory)).text);
  json_bool(&json, "fell_back_to_host", side->fell_back);
  json_text(&json, "exported", side->exported);
  results_to_json(side, &json);
  json_bool(&json, "verified", steps_held(side));
  json_end_object(&json);
}

static int open_node(struct side *side, int insecure) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.insecure = insecure;
  config.peer_events = 1; /* the other side's end is news at once */
  if (haul_node_open(&config, &side->node))
    return fail_library("cannot open a node");
  return EXIT_DONE;
}

static int find_remote(struct side *side, const char *name) {
  if (haul_peer_lookup(side->peer, name, haul_deadline_in(side->patience), &side->remote))
    return fail_library("cannot find the other side's memory");
  if (haul_remote_length(side->remote) != side->size)
    return fail_because(NULL, "the other side's memory is not of the size agreed on");
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
  int status = talk_await_hello(side, region);
  if (status == EXIT_DONE)
    status = memory_make(side, place);
  if (status == EXIT_DONE)
    status = find_remote(side, region);
  return status ? status : talk_welcome(side);
}

static int meet_as_client(struct side *side, const char *address, struct haul_place place) {
  char region[256];
  if (haul_peer_connect(side->node, address, haul_deadline_in(side->patience), &side->peer)) {
    const struct haul_error *error = haul_error_last();
    if (error->system != ECONNREFUSED && error->system != ENOENT)
      return fail_library("cannot connect to %s", address);
    return fail_because("start the server there: haul pingpong --server --listen ADDRESS",
                        "cannot connect to %s: %s", address, error->text);
  }
  int status = memory_make(side, place);
  if (status == EXIT_DONE)
    status = talk_say_hello(side, region);
  return status ? status : find_remote(side, region);
}

static int play(struct side *side, const char *address, struct haul_place place) {
  int status = side->role == ROLE_SERVER ? meet_as_server(side, address, place)
                                         : meet_as_client(side, address, place);
  if (status)
    return status;
  status = steps_run(side);
  if (status == EXIT_DONE)
    talk_part(side);
  if (side->quiet)
    print_json(side);
  else
    print_summary(side);
  if (status == EXIT_DONE && !steps_held(side))
    status = fail_because(NULL, "not every step was right");
  return status;
}

static void close_side(struct side *side) {
  haul_remote_release(side->remote);
  memory_release(side);
  haul_peer_close(side->peer);
  haul_node_close(side->node);
}

static int check_values(const struct command *self, const struct values *values, char **operands) {
  if (values->server && operands[0])
    return options_wrong(self, "a server takes --listen ADDRESS, and no operand");
  if (!values->server && !operands[0])
    return options_wrong(self, "the server's address is missing");
  if (values->size % sizeof(uint32_t) || values->size == 0 || values->size > PINGPONG_SIZE_MAX)
    return options_wrong(self, "--size is a multiple of 4, at most 1G");
  if (values->iterations > PINGPONG_ITERATIONS_MAX)
    return options_wrong(self, "--iterations is at most %d", PINGPONG_ITERATIONS_MAX);
  return EXIT_DONE;
}

static int run(const struct command *self, int argc, char **argv) {
  struct values values = {.listen = LISTEN_DEFAULT,
                          .place = "sim:0",
                          .size = SIZE_DEFAULT,
                          .iterations = 3,
                          .timeout = PATIENCE_DEFAULT};
  static struct side side;
  struct haul_place place;
  char address[ADDRESS_MAX];
  char **operands;
  int status;
  if (!options_parse(self, argc, argv, &values, (struct operand_range){0, 1}, &operands, &status))
    return status;
  status = check_values(self, &values, operands);
  if (status)
    return status;
  const char *text = values.server ? values.listen : operands[0];
  if (!options_address(self, text, PORT, address) || !options_place(self, values.place, &place))
    return EXIT_USAGE;
  interrupt_catch();
  side = (struct side){.role = values.server ? ROLE_SERVER : ROLE_CLIENT,
                       .quiet = values.json != 0,
                       .size = values.size,
                       .iterations = values.iterations,
                       .patience = values.timeout,
                       .only = values.only};
  status = open_node(&side, values.insecure);
  if (status == EXIT_DONE)
    status = play(&side, address, place);
  close_side(&side);
  return status;
}

const struct command pingpong_command = {
    .name = "pingpong",
    .summary = "Exchange patterns with another haul and check every byte on both sides",
    .usage = "--server [OPTIONS] | ADDRESS [OPTIONS]",
    .about =
        "Two-sided: the client sends 100*i+k in element k of iteration i, the server checks it\n"
        "and answers 200*i+k. One-sided: the server writes into the client's memory, then the\n"
        "client reads the server's. Each side checks each step, tells the other, and ends with a\n"
        "summary; the exit status is 0 when all was right on both.",
    .options = options,
    .examples = "  haul pingpong --server &\n"
                "  haul pingpong 127.0.0.1:20000\n"
                "  haul pingpong --server --listen unix:///tmp/pp.sock --place host\n"
                "  haul pingpong unix:///tmp/pp.sock --size 64M --iterations 10 --json\n"
                "  haul pingpong 10.0.0.2 --place host --only rdma\n",
    .run = run,
};
