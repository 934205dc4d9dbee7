/* SPDX-License-Identifier: MIT */
#include "serve_offers.h"

#include <errno.h>
#include <fcntl.h>
#include <haul/file.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/fail.h"
#include "common/module.h"
#include "common/session.h"
#include "common/text.h"

/* The forms of the options. */
#define REGION_FORM "NAME=PLACE:SIZE[:ro], for example kv=host:64M or weights=sim:0:2G:ro"
#define FILE_FORM   "NAME=PATH[:ro]"
#define EXPORT_FORM "[NAME=]DIR[:rw]"

/* Parses the common part of --region and --file: NAME=, and :ro at the end. */
static int parse_common(const struct command *command, const char *option, const char *form,
                        const char *text, struct offer *offer) {
  const char *equals = strchr(text, '=');
  size_t length = equals ? (size_t)(equals - text) : 0;
  if (length == 0 || !equals[1])
    return options_wrong(command, "invalid --%s '%s': expected %s", option, text, form);
  if (length >= sizeof(offer->name) || strlen(equals + 1) >= sizeof(offer->rest))
    return options_wrong(command, "'%s' is too long", text);
  memcpy(offer->name, text, length);
  if (strchr(offer->name, '/'))
    return options_wrong(command, "invalid region name '%s': it must not contain '/'", offer->name);
  strcpy(offer->rest, equals + 1);
  offer->rights = text_cut_end(offer->rest, ":ro") ? HAUL_READ : HAUL_READ | HAUL_WRITE;
  return EXIT_DONE;
}

static int parse_region(const struct command *command, const char *text, struct offer *offer) {
  int status = parse_common(command, "region", REGION_FORM, text, offer);
  if (status)
    return status;
  char *colon = strrchr(offer->rest, ':');
  if (!colon || !size_parse(colon + 1, &offer->size) || offer->size == 0)
    return options_wrong(command, "invalid --region '%s': expected " REGION_FORM, text);
  *colon = '\0';
  return options_place(command, offer->rest, &offer->place) ? EXIT_DONE : EXIT_USAGE;
}

static int parse_file(const struct command *command, const char *text, struct offer *offer) {
  offer->path = offer->rest;
  return parse_common(command, "file", FILE_FORM, text, offer);
}

struct offer *offers_find(struct offers *offers, const char *name) {
  for (size_t i = 0; i < offers->count; i++)
    if (strcmp(offers->list[i].name, name) == 0)
      return &offers->list[i];
  return NULL;
}

int offers_parse(const struct command *command, struct offers *offers,
                 const struct text_list *regions, const struct text_list *files) {
  int status = EXIT_DONE;
  for (size_t i = 0; i < regions->count + files->count && status == EXIT_DONE; i++) {
    struct offer *offer = &offers->list[offers->count++];
    status = i < regions->count ? parse_region(command, regions->items[i], offer)
                                : parse_file(command, files->items[i - regions->count], offer);
    if (status == EXIT_DONE && offers_find(offers, offer->name) != offer)
      status = options_wrong(command, "two regions have the name '%s'", offer->name);
  }
  return status;
}

int offers_parse_load(const struct command *command, struct offers *offers, char *text) {
  char *path = strchr(text, '=');
  if (!path || path == text || !path[1])
    return options_wrong(command, "invalid --load '%s': expected NAME=PATH", text);
  *path++ = '\0';
  struct offer *offer = offers_find(offers, text);
  if (!offer || offer->path)
    return options_wrong(command, "unknown name '%s': no --region has it", text);
  if (offer->load)
    return options_wrong(command, "two files for the region '%s'", text);
  offer->load = path;
  return EXIT_DONE;
}

static int fill_from(haul_region *region, int descriptor, const char *path) {
  char *at = haul_region_address(region);
  size_t remaining = haul_region_length(region);
  while (remaining > 0) {
    ssize_t got = TEMP_FAILURE_RETRY(read(descriptor, at, remaining));
    if (got < 0)
      return fail_system(errno, "cannot read %s", path);
    if (got == 0)
      return fail_because(NULL, "cannot read %s: it was cut short", path);
    at += got;
    remaining -= (size_t)got;
  }
  return EXIT_DONE;
}

/* A regular file that is not empty. Returns an exit status. */
static int open_regular(const char *path, int *descriptor, size_t *size) {
  struct stat status;
  /* O_NONBLOCK: the open of a FIFO would wait for a writer, with the signals blocked. */
  *descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (*descriptor < 0)
    return fail_system(errno, "cannot open %s", path);
  int failed = fstat(*descriptor, &status) ? errno : 0;
  *size = failed ? 0 : (size_t)status.st_size;
  if (!failed && S_ISREG(status.st_mode) && *size > 0)
    return EXIT_DONE;
  close(*descriptor);
  if (failed)
    return fail_system(failed, "cannot read %s", path);
  return fail_because(NULL, "cannot publish %s: it is %s", path,
                      S_ISREG(status.st_mode) ? "empty" : "not a regular file");
}

static int make_from_file(const struct offer *offer, haul_node *node, haul_region **region) {
  const struct haul_place host = {HAUL_HOST, 0};
  size_t size = 0;
  int descriptor = -1, status = open_regular(offer->path, &descriptor, &size);
  if (status)
    return status;
  status = haul_region_alloc(node, host, size, 0, region)
               ? fail_library("cannot allocate memory for %s", offer->path)
               : fill_from(*region, descriptor, offer->path);
  close(descriptor);
  return status;
}

static void print_load(const struct offer *offer, const struct haul_file_report *report) {
  uint64_t copied = report->bytes - report->direct;
  printf("loaded %s: %s of %s at %s: %s, %s", offer->name, size_text(report->bytes).text,
         offer->load, place_text(offer->place).text, report->path, report->detail);
  if (copied == 0)
    puts(", no copy in host memory");
  else
    printf("; %s copied in host memory: %s\n", size_text(copied).text, report->reason);
}

static int load_region(const struct offer *offer, haul_region *region) {
  struct haul_file_report report = HAUL_FILE_REPORT_INIT;
  haul_file *file = NULL;
  size_t size = 0;
  int descriptor = -1, status = open_regular(offer->load, &descriptor, &size);
  if (status)
    return status;
  if (size > offer->size)
    status = fail_because(NULL, "cannot load %s: the region '%s' has room for %s", offer->load,
                          offer->name, size_text(offer->size).text);
  else if (haul_file_open(descriptor, &file) ||
           haul_file_read(file, 0, region, 0, size, 0, &report))
    status = fail_library("cannot load %s", offer->load);
  else
    print_load(offer, &report);
  haul_file_close(file);
  close(descriptor);
  return status;
}

static int make_region(const struct offer *offer, haul_node *node, haul_region **region) {
  if (haul_region_alloc(node, offer->place, (size_t)offer->size, 0, region))
    return fail_library("cannot allocate %s at %s", size_text(offer->size).text,
                        place_text(offer->place).text);
  return offer->load ? load_region(offer, *region) : EXIT_DONE;
}

int offers_publish(struct offers *offers, haul_node *node) {
  for (size_t i = 0; i < offers->count; i++) {
    const struct offer *offer = &offers->list[i];
    haul_region **region = &offers->regions[i];
    int status =
        offer->path ? make_from_file(offer, node, region) : make_region(offer, node, region);
    if (status)
      return status;
    const struct haul_grant everyone = {"*", offer->rights};
    size_t count = offer->grant_count ? offer->grant_count : 1;
    if (haul_region_publish_to(*region, offer->name, offer->grant_count ? offer->grants : &everyone,
                               count))
      return fail_library("cannot publish '%s'", offer->name);
  }
  return EXIT_DONE;
}

void offers_release(struct offers *offers) {
  for (size_t i = 0; i < offers->count; i++)
    haul_region_release(offers->regions[i]);
}

static bool is_name(const char *text) {
  return text_is_name(text) && strlen(text) < sizeof((struct served_tree *)0)->name;
}

/* NAME= is present if the first '=' comes before the first '/'. */
static const char *name_end(const char *text) {
  const char *equals = strchr(text, '=');
  const char *slash = strchr(text, '/');
  return equals && (!slash || equals < slash) ? equals : NULL;
}

/* The default name: that of the folder. A missing folder is reported when it is opened. */
static void name_after(char *name, size_t size, const char *path) {
  char whole[PATH_MAX];
  const char *found = realpath(path, whole) ? whole : path;
  const char *slash = strrchr(found, '/');
  snprintf(name, size, "%.*s", (int)size - 1, slash ? slash + 1 : found);
}

static int parse_one(const struct command *command, const char *text, struct served_tree *tree,
                     struct haul_storage_export *export) {
  const char *equals = name_end(text);
  const char *path = equals ? equals + 1 : text;
  size_t length = strlen(path);
  export->writable = length > 3 && strcmp(path + length - 3, ":rw") == 0;
  if (export->writable)
    length -= 3;
  if (length >= sizeof tree->path)
    return options_wrong(command, "'%s' is too long", text);
  memcpy(tree->path, path, length);
  const char *slash = strrchr(tree->path, '/');
  bool suffixed = strchr(slash ? slash : tree->path, ':') && access(tree->path, F_OK) != 0;
  if (length == 0 || suffixed)
    return options_wrong(command, "invalid --export '%s': expected " EXPORT_FORM, text);
  if (equals)
    snprintf(tree->name, sizeof tree->name, "%.*s", equals - text < 64 ? (int)(equals - text) : 0,
             text);
  else
    name_after(tree->name, sizeof tree->name, tree->path);
  if (!is_name(tree->name))
    return options_wrong(
        command,
        "invalid --export '%s': NAME has 1 to 63 printable ASCII bytes without blanks and '/'",
        text);
  export->name = tree->name;
  export->path = tree->path;
  return EXIT_DONE;
}

int exports_parse(const struct command *command, struct exports *exports,
                  const struct text_list *list) {
  for (size_t i = 0; i < list->count; i++) {
    int status = parse_one(command, list->items[i], &exports->trees[i], &exports->list[i]);
    if (status)
      return status;
    for (size_t other = 0; other < i; other++)
      if (strcmp(exports->trees[i].name, exports->trees[other].name) == 0)
        return options_wrong(command, "two exports have the name '%s'", exports->trees[i].name);
    exports->count++;
  }
  return EXIT_DONE;
}

bool exports_allow(struct exports *exports, const char *name, const char *who, bool reads_only) {
  for (size_t i = 0; i < exports->count; i++) {
    struct served_tree *tree = &exports->trees[i];
    struct haul_storage_export *export = &exports->list[i];
    if (strcmp(tree->name, name) != 0)
      continue;
    tree->grants[export->grant_count++] =
        (struct haul_grant){who, reads_only ? HAUL_READ : HAUL_READ | HAUL_WRITE};
    export->grants = tree->grants;
    return true;
  }
  return false;
}

int exports_prepare(struct exports *exports) {
  void *symbol;
  if (exports->count == 0)
    return EXIT_DONE;
  int status = module_symbol(&module_storage, HAUL_STORAGE_SERVICE_SYMBOL, "export files", &symbol);
  if (status)
    return status;
  exports->calls = symbol;
  exports->calls->prepare();
  return EXIT_DONE;
}

int exports_open(struct exports *exports, haul_node *node,
                 void (*other)(void *none, const struct haul_message *message)) {
  struct haul_storage_error error;
  if (exports->count == 0)
    return EXIT_DONE;
  const struct haul_storage_serving serving = {
      .size = sizeof serving,
      .node = node,
      .exports = exports->list,
      .count = exports->count,
      .other = other,
  };
  if (exports->calls->open(&serving, &exports->service, &error))
    return fail_because(error.hint, "%s", error.text);
  return EXIT_DONE;
}

void exports_stop(struct exports *exports) {
  if (exports->service)
    exports->calls->stop(exports->service);
}

int exports_close(struct exports *exports) {
  if (exports->service && exports->calls->close(exports->service))
    return fail_because("check `dmesg` for errors of the disk",
                        "a disk did not respond while client requests were canceled");
  return EXIT_DONE;
}
