/* SPDX-License-Identifier: MIT */
#include "serve_regions.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/fail.h"
#include "common/session.h"
#include "common/text.h"
#include "common/units.h"

/* NAME, what follows the '=', and the rights: what both forms have. */
static int parse_common(const struct command *command, const char *text, struct offer *offer) {
  const char *equals = strchr(text, '=');
  size_t length = equals ? (size_t)(equals - text) : 0;
  if (length == 0 || !equals[1])
    return options_wrong(command, "'%s' is not NAME=…", text);
  if (length >= sizeof(offer->name) || strlen(equals + 1) >= sizeof(offer->rest))
    return options_wrong(command, "'%s' is too long", text);
  memcpy(offer->name, text, length);
  if (strchr(offer->name, '/'))
    return options_wrong(command, "'%s': a region's name has no '/' here", offer->name);
  strcpy(offer->rest, equals + 1);
  offer->rights = text_cut_end(offer->rest, ":ro") ? HAUL_READ : HAUL_READ | HAUL_WRITE;
  return EXIT_DONE;
}

static int parse_region(const struct command *command, const char *text, struct offer *offer) {
  int status = parse_common(command, text, offer);
  if (status)
    return status;
  char *colon = strrchr(offer->rest, ':');
  if (!colon)
    return options_wrong(command, "'%s' is not NAME=PLACE:SIZE", text);
  *colon = '\0';
  if (!size_parse(colon + 1, &offer->size) || offer->size == 0)
    return options_wrong(command, "'%s' is no size", colon + 1);
  if (haul_place_parse(offer->rest, &offer->place))
    return options_wrong(command, "'%s' is no place; `haul info` lists the places", offer->rest);
  return EXIT_DONE;
}

static int parse_file(const struct command *command, const char *text, struct offer *offer) {
  int status = parse_common(command, text, offer);
  offer->path = offer->rest;
  return status;
}

int offers_parse(const struct command *command, struct offers *offers,
                 const struct text_list *regions, const struct text_list *files) {
  int status = EXIT_DONE;
  for (size_t i = 0; i < regions->count && status == EXIT_DONE; i++)
    status = parse_region(command, regions->items[i], &offers->list[offers->count++]);
  for (size_t i = 0; i < files->count && status == EXIT_DONE; i++)
    status = parse_file(command, files->items[i], &offers->list[offers->count++]);
  return status;
}

struct offer *offers_find(struct offers *offers, const char *name) {
  for (size_t i = 0; i < offers->count; i++)
    if (strcmp(offers->list[i].name, name) == 0)
      return &offers->list[i];
  return NULL;
}

static int fill_from(haul_region *region, int descriptor, const char *path) {
  char *at = haul_region_address(region);
  size_t left = haul_region_length(region);
  while (left > 0) {
    ssize_t got = read(descriptor, at, left);
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return fail_system(errno, "cannot read %s", path);
    if (got == 0)
      return fail_because(NULL, "cannot read %s: it became shorter meanwhile", path);
    at += got;
    left -= (size_t)got;
  }
  return EXIT_DONE;
}

static int load(const struct offer *offer, int descriptor, haul_node *node, haul_region **region) {
  const struct haul_place host = {HAUL_HOST, 0};
  struct stat status;
  if (fstat(descriptor, &status))
    return fail_system(errno, "cannot read %s", offer->path);
  if (!S_ISREG(status.st_mode) || status.st_size == 0)
    return fail_because(NULL, "cannot publish %s: it is %s", offer->path,
                        S_ISREG(status.st_mode) ? "empty" : "no regular file");
  if (haul_region_alloc(node, host, (size_t)status.st_size, 0, region))
    return fail_library("cannot allocate memory for %s", offer->path);
  return fill_from(*region, descriptor, offer->path);
}

static int make_from_file(const struct offer *offer, haul_node *node, haul_region **region) {
  int descriptor = open(offer->path, O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    return fail_system(errno, "cannot open %s", offer->path);
  int status = load(offer, descriptor, node, region);
  close(descriptor);
  return status;
}

static int make_empty(const struct offer *offer, haul_node *node, haul_region **region) {
  if (haul_region_alloc(node, offer->place, (size_t)offer->size, 0, region))
    return fail_library("cannot allocate %s at %s", size_text(offer->size).text,
                        place_text(offer->place).text);
  return EXIT_DONE;
}

int offers_publish(struct offers *offers, haul_node *node) {
  for (size_t i = 0; i < offers->count; i++) {
    const struct offer *offer = &offers->list[i];
    haul_region **region = &offers->regions[i];
    int status =
        offer->path ? make_from_file(offer, node, region) : make_empty(offer, node, region);
    if (status)
      return status;
    const struct haul_grant everybody = {"*", offer->rights};
    size_t count = offer->grant_count ? offer->grant_count : 1;
    if (haul_region_publish_to(*region, offer->name,
                               offer->grant_count ? offer->grants : &everybody, count))
      return fail_library("cannot publish '%s'", offer->name);
  }
  return EXIT_DONE;
}

void offers_release(struct offers *offers) {
  for (size_t i = 0; i < offers->count; i++)
    haul_region_release(offers->regions[i]);
}
