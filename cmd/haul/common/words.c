/* SPDX-License-Identifier: MIT */
#include "words.h"

#include <stdio.h>
#include <string.h>

/* What starts alike: the longer one first. */
static const struct {
  const char *library, *command;
} phrases[] = {
    {"set a later deadline in its options",
     "allow more time with --timeout, where the command has it"},
    {"haul_device_list shows", "haul info shows"},
    {"haul_check_list says", "haul doctor says"},
    {"check the call's arguments; its comment in haul.h says what it takes",
     "haul help COMMAND says what the command takes"},
    {"publish it with HAUL_WRITE there", "publish it writable there: haul serve, without ':ro'"},
    {"publish it with HAUL_READ | HAUL_WRITE there",
     "publish it readable and writable there: haul serve, without ':ro'"},
    {"publish it with HAUL_READ there", "publish it readable there"},
    {", or allocate with HAUL_REGION_PRIVATE what is not shared", ""},
    {"only = \"rdma\" takes it", "--only rdma takes it"},
};

#define PHRASE_COUNT (sizeof(phrases) / sizeof(phrases[0]))

static void replace(char *text, size_t size, const char *from, const char *to) {
  char rest[512];
  char *at = strstr(text, from);
  if (!at)
    return;
  size_t room = size - (size_t)(at - text);
  snprintf(rest, sizeof(rest), "%s", at + strlen(from));
  if ((size_t)snprintf(at, room, "%s", to) < room)
    snprintf(at + strlen(to), room - strlen(to), "%s", rest);
}

void words_of_command(char *text, size_t size) {
  for (size_t i = 0; i < PHRASE_COUNT; i++)
    replace(text, size, phrases[i].library, phrases[i].command);
}
