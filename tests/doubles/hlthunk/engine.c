/* SPDX-License-Identifier: MIT
 * Mock of libhl-thunk.so: submissions, executed in order by a thread. What would be a page fault of
 * a device, and so a reset, aborts the submission. */
#include "hlthunk.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int wrong(const char *what) {
  fprintf(stderr, "double of libhl-thunk: %s\n", what);
  return GAUDI_CS_ABORTED;
}

/* With the lock. Reads the packets at execution, like the device. */
static int decode(const struct context *context, const struct submission *one, uint32_t at,
                  char **to, char **from, uint32_t *size) {
  struct gaudi_lin_dma packet;
  const char *bytes = host_bytes(context, one->chunk.commands + at, sizeof packet);
  if (!bytes)
    return wrong("the packets lie in no mapped host memory");
  memcpy(&packet, bytes, sizeof packet);
  if (packet.control != GAUDI_LIN_DMA || packet.size == 0)
    return wrong("this is no linear-DMA packet with a message barrier");
  bool down = one->chunk.queue == GAUDI_QUEUE_DOWN, up = one->chunk.queue == GAUDI_QUEUE_UP;
  *size = packet.size;
  *from = down ? host_bytes(context, packet.source, packet.size)
               : device_bytes(context, packet.source, packet.size);
  *to = up ? host_bytes(context, packet.destination, packet.size)
           : device_bytes(context, packet.destination, packet.size);
  return *from && *to ? GAUDI_CS_DONE : wrong("a DMA leaves what is mapped");
}

static void take_time(void) {
  uint64_t slow = double_setting("SLOW_US", 0);
  struct timespec delay = {(time_t)(slow / 1000000), (long)(slow % 1000000) * 1000};
  if (slow)
    nanosleep(&delay, NULL);
}

/* With the lock, which is dropped during the copy. */
static int execute(struct context *context, const struct submission *one) {
  int end = double_fails("abort") ? GAUDI_CS_ABORTED : GAUDI_CS_DONE;
  end = double_fails("timeout") ? GAUDI_CS_TIMEOUT : end;
  if (end != GAUDI_CS_DONE) {
    pthread_mutex_unlock(&double_lock);
    take_time();
    pthread_mutex_lock(&double_lock);
    return end;
  }
  for (uint32_t at = 0; at < one->chunk.bytes; at += (uint32_t)sizeof(struct gaudi_lin_dma)) {
    char *to, *from;
    uint32_t size;
    int status = decode(context, one, at, &to, &from, &size);
    if (status != GAUDI_CS_DONE)
      return status;
    pthread_mutex_unlock(&double_lock);
    take_time();
    memcpy(to, from, size);
    pthread_mutex_lock(&double_lock);
    /* A change during the copy: the device does not notice, but it is an error of the owner. */
    char *to_now, *from_now;
    if (decode(context, one, at, &to_now, &from_now, &size) != GAUDI_CS_DONE || to_now != to ||
        from_now != from) {
      wrong("memory or packet was given away while the device used it");
      abort();
    }
  }
  return GAUDI_CS_DONE;
}

static void *engine_main(void *argument) {
  struct context *context = argument;
  pthread_mutex_lock(&double_lock);
  while (!context->stopping) {
    struct submission *one = context->first;
    if (!one) {
      pthread_cond_wait(&double_changed, &double_lock);
      continue;
    }
    int status = context->reset ? GAUDI_CS_ABORTED : execute(context, one);
    context->first = one->next;
    if (!context->first)
      context->last = &context->first;
    context->results[one->seq % REMEMBERED] = (uint8_t)status;
    context->reset |= status != GAUDI_CS_DONE;
    free(one);
    pthread_cond_broadcast(&double_changed);
  }
  pthread_mutex_unlock(&double_lock);
  return NULL;
}

int context_start(struct context *context) {
  sigset_t all, before;
  context->last = &context->first;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  int code = pthread_create(&context->engine, NULL, engine_main, context);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return code;
}

void context_stop(struct context *context) {
  context->stopping = true;
  pthread_cond_broadcast(&double_changed);
  pthread_mutex_unlock(&double_lock);
  pthread_join(context->engine, NULL);
  pthread_mutex_lock(&double_lock);
  while (context->first) {
    struct submission *one = context->first;
    context->first = one->next;
    free(one);
  }
}

/* The driver enables the engines of its mask; firmware may have disabled some. */
static bool is_enabled(uint32_t queue) {
  uint64_t mask = double_setting("EDMA", 0xff);
  for (uint32_t i = 0; i < 2; i++)
    if (queue == GAUDI_QUEUE_INSIDE(i))
      return mask >> i & 1 && !double_fails("edma");
  return queue == GAUDI_QUEUE_DOWN || queue == GAUDI_QUEUE_UP;
}

static int check_chunk(const struct gaudi_cs_in *in) {
  const struct gaudi_chunk *chunk = in ? in->execute : NULL;
  if (!chunk || in->execute_count != 1 || in->restore_count || in->flags)
    return wrong("this double takes one chunk, without restore and flags"), -EINVAL;
  if (chunk->flags != GAUDI_CHUNK_USER)
    return wrong("a chunk of another kind"), -EINVAL;
  if (!is_enabled(chunk->queue))
    return -EINVAL;
  if (chunk->bytes == 0 || chunk->bytes % sizeof(struct gaudi_lin_dma))
    return wrong("a chunk that does not end with a packet"), -EINVAL;
  return 0;
}

int hlthunk_command_submission(int fd, struct gaudi_cs_in *in, struct gaudi_cs_out *out) {
  int code = check_chunk(in);
  if (code)
    return code;
  if (double_fails("submit"))
    return -errno;
  struct submission *one = calloc(1, sizeof *one);
  if (!one)
    abort();
  memcpy(&one->chunk, in->execute, sizeof one->chunk);
  pthread_mutex_lock(&double_lock);
  struct context *context = double_context(fd);
  code = context ? 0 : -errno;
  if (context) {
    out->seq = one->seq = ++context->submitted;
    out->status = 0;
    context->results[one->seq % REMEMBERED] = GAUDI_CS_BUSY;
    *context->last = one;
    context->last = &one->next;
    pthread_cond_broadcast(&double_changed);
  } else {
    free(one);
  }
  pthread_mutex_unlock(&double_lock);
  return code;
}

/* Old submissions count as done, like in the kernel. */
static uint32_t result_of(const struct context *context, uint64_t seq) {
  return context->submitted - seq >= REMEMBERED ? GAUDI_CS_DONE
                                                : context->results[seq % REMEMBERED];
}

int hlthunk_wait_for_cs(int fd, uint64_t seq, uint64_t timeout_us, uint32_t *status) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  uint64_t nanoseconds = (uint64_t)until.tv_nsec + timeout_us * 1000;
  until.tv_sec += (time_t)(nanoseconds / 1000000000);
  until.tv_nsec = (long)(nanoseconds % 1000000000);
  int code = 0, late = 0;
  pthread_mutex_lock(&double_lock);
  struct context *context = double_open_context(fd);
  while (context && seq <= context->submitted && result_of(context, seq) == GAUDI_CS_BUSY &&
         late == 0)
    late = timeout_us ? pthread_cond_timedwait(&double_changed, &double_lock, &until) : ETIMEDOUT;
  if (!context || seq > context->submitted)
    code = -EINVAL;
  else
    *status = result_of(context, seq);
  pthread_mutex_unlock(&double_lock);
  if (code == 0 && *status == GAUDI_CS_TIMEOUT)
    code = -ETIMEDOUT;
  if (code == 0 && *status == GAUDI_CS_ABORTED)
    code = -EIO;
  return code;
}
