/* SPDX-License-Identifier: MIT */
#include "storage/service/wharf.h"

#include <errno.h>
#include <stdio.h>
#include <sys/random.h>

void wharf_open(struct wharf *wharf, struct dial *dial, haul_region *region, unsigned rights) {
  *wharf = (struct wharf){.dial = dial, .region = region, .rights = rights};
  pthread_mutex_init(&wharf->lock, NULL);
}

/* The lock. */
static void withdraw(struct wharf *wharf) {
  if (*wharf->name)
    haul_region_unpublish(wharf->region, wharf->name);
  wharf->name[0] = '\0';
  wharf->generation = 0;
}

void wharf_close(struct wharf *wharf) {
  struct protocol_request request = {.operation = PROTOCOL_UNREGION,
                                     .fields = {.region = wharf->number}};
  struct protocol_fields answer;
  uint64_t generation = wharf->generation;
  /* Where nobody is told, the end of the connection tells it. */
  if (generation)
    dial_ask(wharf->dial, &generation, &request, &answer);
  withdraw(wharf);
  pthread_mutex_destroy(&wharf->lock);
}

/* The lock. */
static int publish(struct wharf *wharf) {
  uint8_t random[16];
  int length = snprintf(wharf->name, sizeof wharf->name, "haul-files.");
  if (getrandom(random, sizeof random, 0) != sizeof random)
    return -EIO;
  for (size_t i = 0; i < sizeof random; i++)
    length +=
        snprintf(wharf->name + length, sizeof wharf->name - (size_t)length, "%02x", random[i]);
  int code = haul_region_publish(wharf->region, wharf->name, wharf->rights);
  if (code)
    wharf->name[0] = '\0';
  return protocol_errno(code);
}

/* The lock. */
static int introduce(struct wharf *wharf, uint64_t *generation) {
  struct protocol_request request = {.operation = PROTOCOL_REGION};
  struct protocol_fields answer;
  withdraw(wharf);
  int status = publish(wharf);
  if (status)
    return status;
  snprintf(request.fields.name, sizeof request.fields.name, "%s", wharf->name);
  status = dial_ask(wharf->dial, generation, &request, &answer);
  if (status)
    return status;
  wharf->number = answer.region;
  wharf->generation = *generation;
  return 0;
}

int wharf_number(struct wharf *wharf, uint64_t *generation, uint32_t *number) {
  int status = 0;
  pthread_mutex_lock(&wharf->lock);
  if (wharf->generation == 0 || wharf->generation != *generation)
    status = introduce(wharf, generation);
  *number = wharf->number;
  pthread_mutex_unlock(&wharf->lock);
  return status;
}

int wharf_start(struct wharf *wharf, const struct wharf_move *move, struct call **call) {
  uint64_t generation = move->generation;
  struct protocol_request request = {
      .operation = move->operation,
      .fields = {.file = move->file,
                 .offset = move->offset,
                 .length = move->length,
                 .at = move->at,
                 .flags = move->flags | (move->told ? PROTOCOL_TELL : 0)}};
  int status = wharf_number(wharf, &generation, &request.fields.region);
  return status ? status : dial_start(wharf->dial, &generation, &request, call);
}

/* A server that says it has moved more than it was asked for is not believed. */
ssize_t wharf_wait(struct wharf *wharf, const struct wharf_move *move, struct call *call,
                   void (*late)(void *user), void *user, bool *in_use) {
  struct protocol_fields answer;
  int status = dial_wait(wharf->dial, &call, &answer, late, user);
  *in_use = !call;
  if (!status && move->told)
    status = told_get(answer.bytes, answer.size, move->told);
  dial_end(call);
  if (status)
    return status;
  return answer.length > move->length ? -EPROTO : (ssize_t)answer.length;
}
