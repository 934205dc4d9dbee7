/* SPDX-License-Identifier: MIT
 * haul push: the source of a broadcast. The receivers do the work; this side only shows them. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <haul/broadcast.h>

#include "command.h"
#include "common/fail.h"
#include "common/listening.h"
#include "common/options.h"
#include "common/output.h"
#include "common/process.h"
#include "common/screen.h"
#include "common/session.h"
#include "common/text.h"

#define BAR_COLUMNS     24
#define MEMBERS_DEFAULT 1024
#define LOOK_NS         INT64_C(1000000000) /* between looks at the file */

struct values {
  struct text_list listen;
  const char *name;
  uint64_t chunk;
  unsigned receivers, members, await;
  int progress, insecure, json;
};

static struct values given;

static const struct option_spec options[] = {
    {"name", OPTION_TEXT, offsetof(struct values, name), "NAME",
     "set the name of the broadcast (default: the name of the file)"},
    {"listen", OPTION_LIST, offsetof(struct values, listen), "ADDRESS",
     "listen on this address; repeatable (default: " LISTEN_DEFAULT ")"},
    {"receivers", OPTION_COUNT, offsetof(struct values, receivers), "N",
     "end when N receivers are complete (default: at a signal)"},
    {"await", OPTION_COUNT, offsetof(struct values, await), "N",
     "begin when N receivers wait (default: at once)"},
    {"members", OPTION_COUNT, offsetof(struct values, members), "N",
     "limit the receivers at a time (default: 1024)"},
    {"chunk", OPTION_LENGTH, offsetof(struct values, chunk), "SIZE",
     "pass on chunks of this size, a power of two (default: by the length, 64K to 4M)"},
    {"progress", OPTION_FLAG, offsetof(struct values, progress), NULL,
     "show all receivers on the terminal"},
    {"insecure", OPTION_FLAG, offsetof(struct values, insecure), NULL,
     "listen on network addresses without a key"},
    {"json", OPTION_FLAG, offsetof(struct values, json), NULL,
     "print the receivers as JSON at the end"},
    {0},
};

struct push {
  const char *name, *file;
  uint64_t length;
  int descriptor;     /* of the file */
  struct stat served; /* the file when it was published */
  int64_t looked;     /* now_ns() */
  bool changed, replaced;
  const char *told; /* the last note on it */
  haul_node *node;
  haul_broadcast *broadcast;
  haul_region *region;                   /* the mapped file; NULL: it is empty */
  uint64_t version;                      /* 0: not published yet */
  int64_t published;                     /* now_ns() */
  struct haul_broadcast_member *members; /* as they are, or were when they ended */
  size_t count;
};

/* ---- The receivers ---- */

static int list_members(void *context, void *list, size_t *count) {
  return haul_broadcast_members(context, list, count);
}

static bool is_complete(const struct push *push, const struct haul_broadcast_member *member) {
  return member->version == push->version && member->bytes == push->length &&
         member->state >= HAUL_BROADCAST_COMPLETE; /* it may be silent, or have left */
}

static size_t count_complete(const struct push *push) {
  size_t complete = 0;
  for (size_t i = 0; i < push->count; i++)
    complete += is_complete(push, &push->members[i]);
  return complete;
}

static int load_members(struct push *push) {
  free(push->members);
  push->members = load_list(list_members, push->broadcast, sizeof *push->members, &push->count);
  return push->members ? EXIT_DONE : fail_library("cannot list the receivers");
}

static const char *state_text(int state) {
  static const char *const names[] = {"?", "waiting", "receiving", "complete", "silent", "left"};
  return names[state >= 0 && state <= HAUL_BROADCAST_LEFT ? state : 0];
}

static void print_table(const struct push *push) {
  printf("%zu of %zu receivers complete after %s\n", count_complete(push), push->count,
         time_text((double)(now_ns() - push->published)).text);
  struct table table =
      table_begin("llrrrll", "RECEIVER", "STATE", "BYTES", "TIME", "RETRIES", "FROM", "PATH");
  for (size_t i = 0; i < push->count; i++) {
    const struct haul_broadcast_member *member = &push->members[i];
    table_row(&table, member->name, state_text(member->state), size_text(member->bytes).text,
              time_text((double)member->duration_ns).text, number_text((long)member->retries).text,
              member->feeder[0] ? member->feeder : "-", member->path[0] ? member->path : "-");
  }
  table_end(&table);
}

static void print_json(const struct push *push) {
  struct json json = json_open();
  json_text(&json, "name", push->name);
  json_number(&json, "version", push->version);
  json_number(&json, "bytes", push->length);
  json_micros(&json, "time_us", push->published ? now_ns() - push->published : 0);
  json_array(&json, "receivers");
  for (size_t i = 0; i < push->count; i++) {
    const struct haul_broadcast_member *member = &push->members[i];
    json_object(&json, NULL);
    json_text(&json, "name", member->name);
    json_text(&json, "address", member->address);
    json_text(&json, "state", state_text(member->state));
    json_number(&json, "version", member->version);
    json_number(&json, "bytes", member->bytes);
    json_micros(&json, "time_us", member->duration_ns);
    json_number(&json, "retries", member->retries);
    json_text(&json, "from", member->feeder);
    json_text(&json, "path", member->path);
    json_end_object(&json);
  }
  json_end_array(&json);
  json_end_object(&json);
}

/* ---- The file ---- */

/* The checksums are those of the bytes when it was published. */
static bool has_changed(const struct push *push) {
  struct stat now;
  const struct stat *then = &push->served;
  return fstat(push->descriptor, &now) == 0 &&
         (now.st_size != then->st_size || now.st_mtim.tv_sec != then->st_mtim.tv_sec ||
          now.st_mtim.tv_nsec != then->st_mtim.tv_nsec);
}

static bool was_replaced(const struct push *push) {
  struct stat now;
  return stat(push->file, &now) == 0 &&
         (now.st_ino != push->served.st_ino || now.st_dev != push->served.st_dev);
}

static void look_at_file(struct push *push) {
  if (!push->version || now_ns() - push->looked < LOOK_NS)
    return;
  push->looked = now_ns();
  push->changed |= has_changed(push);
  push->replaced |= was_replaced(push);
}

/* NULL: nothing happened to it. */
static const char *file_note(const struct push *push) {
  if (push->changed)
    return "changed while it is sent: receivers reject its bytes; start this command again";
  return push->replaced ? "was replaced: this command still sends the file before" : NULL;
}

static void tell_of_file(struct push *push) {
  const char *note = file_note(push);
  if (note && note != push->told)
    fail_note("%s %s", push->file, note);
  push->told = note;
}

/* ---- The screen ---- */

static void draw_bar(struct drawing *drawing, uint64_t done, uint64_t total) {
  char bar[BAR_COLUMNS + 1];
  if (done > total) /* as a receiver reports it */
    done = total;
  uint64_t filled = total ? (uint64_t)((double)done / (double)total * BAR_COLUMNS) : BAR_COLUMNS;
  for (uint64_t i = 0; i < BAR_COLUMNS; i++)
    bar[i] = i < filled ? '#' : '.';
  bar[BAR_COLUMNS] = '\0';
  drawing_text(drawing, NULL, bar);
  drawing_text(drawing, NULL, " ");
}

static void draw_member(struct drawing *drawing, const struct push *push,
                        const struct haul_broadcast_member *member) {
  bool done = is_complete(push, member);
  const char *style = done ? "32" : member->state == HAUL_BROADCAST_SILENT ? "31" : NULL;
  drawing_cell(drawing, NULL, 20, false, member->name);
  drawing_text(drawing, NULL, " ");
  draw_bar(drawing, member->version == push->version ? member->bytes : 0, push->length);
  drawing_cell(drawing, style, 10, false, state_text(member->state));
  drawing_cell(drawing, NULL, 11, true, rate_text(member->bytes, member->duration_ns).text);
  drawing_cell(drawing, NULL, 5, true, number_text((long)member->retries).text);
  drawing_text(drawing, NULL, "  ");
  drawing_text(drawing, NULL, member->feeder);
  drawing_text(drawing, NULL, member->path[0] ? " by " : "");
  drawing_text(drawing, NULL, member->path);
  drawing_next_line(drawing);
}

static int draw(const struct push *push) {
  struct drawing drawing;
  char text[160];
  drawing_begin(&drawing, true);
  snprintf(text, sizeof text, "%.80s  %s  %zu of %zu complete", push->name,
           size_text(push->length).text, count_complete(push), push->count);
  drawing_text(&drawing, "1", text);
  drawing_next_line(&drawing);
  if (file_note(push)) {
    drawing_text(&drawing, "31", file_note(push));
    drawing_next_line(&drawing);
  }
  for (size_t i = 0; i < push->count && drawing.row < drawing.size.rows; i++)
    draw_member(&drawing, push, &push->members[i]);
  int error = drawing_end(&drawing);
  return error ? fail_system(error, "cannot write to the terminal") : EXIT_DONE;
}

/* ---- The command ---- */

static int map_file(struct push *push) {
  int code = 0;
  push->descriptor = open(push->file, O_RDONLY | O_CLOEXEC);
  if (push->descriptor < 0 || fstat(push->descriptor, &push->served))
    return fail_system(errno, "cannot open %s", push->file);
  if (!S_ISREG(push->served.st_mode))
    return fail_because("name a regular file", "cannot send %s: it is not a regular file",
                        push->file);
  push->length = (uint64_t)push->served.st_size;
  if (push->length)
    code = haul_region_wrap_file(push->node, push->descriptor, 0, push->length, &push->region);
  return code ? fail_library("cannot map %s", push->file) : EXIT_DONE;
}

static int open_broadcast(struct push *push) {
  struct haul_broadcast_options how = HAUL_BROADCAST_OPTIONS_INIT;
  how.chunk = given.chunk;
  how.members = given.members;
  if (haul_broadcast_open(push->node, push->name, &how, &push->broadcast))
    return fail_library("cannot open the broadcast '%s'", push->name);
  return EXIT_DONE;
}

static int publish(struct push *push) {
  if (fstat(push->descriptor, &push->served))
    return fail_system(errno, "cannot read %s", push->file);
  if ((uint64_t)push->served.st_size != push->length)
    return fail_because("run it again", "%s changed its length", push->file);
  if (haul_broadcast_publish(push->broadcast, push->region, HAUL_FOREVER, &push->version))
    return fail_library("cannot publish %s", push->file);
  push->published = now_ns();
  return EXIT_DONE;
}

static int announce(const struct push *push) {
  FILE *out = given.json ? stderr : stdout;
  char address[ADDRESS_MAX];
  for (size_t i = 0; haul_node_address(push->node, i, address, sizeof address) == 0; i++)
    fprintf(out, "listening on %s\n", address);
  if (haul_node_address(push->node, 0, address, sizeof address) == 0)
    fprintf(out, "receive it: haul pull %s/%s FILE\n", address, push->name);
  return fflush(out) ? fail_system(errno, "cannot write to standard output") : EXIT_DONE;
}

static int run_until_end(struct push *push) {
  bool screen = given.progress && screen_is_possible();
  int status = EXIT_DONE;
  if (given.progress && !screen)
    fail_note("--progress shows nothing, as standard output is no terminal");
  if (screen)
    screen_open();
  else
    interrupt_catch();
  while (!status && !interrupted()) {
    status = load_members(push);
    if (!status && !push->version && push->count >= given.await)
      status = publish(push);
    if (!status && given.receivers && push->version && count_complete(push) >= given.receivers)
      break;
    look_at_file(push);
    if (!screen)
      tell_of_file(push);
    if (!status && screen)
      status = draw(push);
    if (screen_wait(INTERRUPT_SLICE_NS) == 'q')
      break;
  }
  screen_close();
  push->looked = 0;
  look_at_file(push);
  tell_of_file(push);
  return status;
}

static int run_push(const struct command *self, char **operands) {
  struct push push = {.file = operands[0], .descriptor = -1};
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  const char *slash = strrchr(push.file, '/');
  unsigned most = given.members ? given.members : MEMBERS_DEFAULT;
  push.name = given.name ? given.name : slash ? slash + 1 : push.file;
  if (strchr(push.name, '/'))
    return options_wrong(self, "invalid --name '%s': '/' separates NODE/NAME", push.name);
  if (!given.name && !text_is_name(push.name))
    return options_wrong(self, "set a --name: '%s' has blanks or other bytes that no name has",
                         push.name);
  if (given.await > most)
    return options_wrong(self, "--await %u is more than the %u --members", given.await, most);
  signals_explain_fatal("push"); /* SIGBUS: the file was cut short */
  config.insecure = given.insecure;
  int status = EXIT_DONE;
  if (haul_node_open(&config, &push.node))
    status = fail_library("cannot open a node");
  if (!status) /* before it listens, so that each receiver finds it */
    status = map_file(&push);
  if (!status)
    status = open_broadcast(&push);
  if (!status && !given.await)
    status = publish(&push);
  if (!status)
    status = listen_all(push.node, &given.listen);
  if (!status)
    status = announce(&push);
  if (!status)
    status = run_until_end(&push);
  if (!status && given.json)
    print_json(&push);
  else if (!status && push.version)
    print_table(&push);
  free(push.members);
  haul_broadcast_close(push.broadcast);
  haul_region_release(push.region);
  haul_node_close(push.node);
  if (push.descriptor >= 0)
    close(push.descriptor);
  return status;
}

const struct command push_command = {
    .name = "push",
    .summary = "Send a file to many receivers, which pass it on",
    .usage = "FILE [OPTIONS]",
    .about =
        "Serves the file to `haul pull` until SIGINT, SIGTERM, or --receivers are complete. Each\n"
        "receiver passes on what it has while it receives the rest, so that this node sends the\n"
        "bytes about once. The file must not change meanwhile.",
    .options = options,
    .examples = "  haul push weights.bin --listen tcp://10.0.0.2:7420 --progress\n"
                "  haul push weights.bin --receivers 64 --json\n",
    .values = &given,
    .least = 1,
    .most = 1,
    .run = run_push,
};
