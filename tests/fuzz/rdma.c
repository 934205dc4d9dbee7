/* SPDX-License-Identifier: MIT
 * The rdma channel, over the double of a NIC: records of a peer that asks for our regions, or one
 * that answers while works of ours wait for it. What this side says is held to its own parser.
 *
 * The first byte says which, and what else happens; records follow. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "fabric/devcopy.h"
#include "fabric/rdma/channel.h"
#include "fabric/rdma/endpoint.h"
#include "rig.h"

#define ASKS 1u /* works of ours; the peer answers */
#define SIM  2u /* their memory is a device's */
#define SUMS 4u /* they are compared */
#define LOOPED                                                                                     \
  8u /* we are the initiator, whose queue pair is connected to itself: works of ours               \
        arrive in our memory */
#define REVOKES 16u  /* our regions are withdrawn under way */
#define CANCELS 32u  /* the works are canceled */
#define STRAYS  64u  /* frames of rails arrive on the channel */
#define ADDS    128u /* one more work is an addition, if the peer offers atomics */

#define RECORDS_MAX 64u
#define WORKS       3u

struct posted {
  struct work work;
  struct haul_piece pieces[2];
  unsigned done;
};

struct session {
  unsigned kind;
  struct haul_peer *peer;
  struct rdma_endpoint *endpoint;
  int channel;
  struct remote_key key;
  void *binding;
  struct ibv_mr *target; /* what the peer says that it has, when looped */
  struct posted posted[WORKS];
  unsigned count;
};

static char fabric_file[] = "/tmp/haul-fuzz-XXXXXX";
static haul_region *device, *lent;

static void end(void) {
  haul_region_release(device);
  haul_region_release(lent);
  unlink(fabric_file);
}

static void begin(void) {
  static bool begun;
  if (begun)
    return;
  begun = true;
  int fd = mkstemp(fabric_file);
  RIG_ASSERT(fd >= 0 && close(fd) == 0);
  setenv("HAUL_DOUBLE_FABRIC", fabric_file, 1);
  setenv("HAUL_DOUBLE_NICS", "10.0.0.1,ib:2,fe80::1,ib:3", 1);
  verbs_library.names[0] = DOUBLE_LIBRARY;
  RIG_ASSERT(haul_region_alloc(rig_node(), (struct haul_place){HAUL_SIM, 0}, RIG_BYTES,
                               HAUL_REGION_PRIVATE, &device) == 0);
  RIG_ASSERT(haul_region_alloc(rig_node(), (struct haul_place){HAUL_HOST, 0},
                               WORKS * WORK_BYTES_MAX, HAUL_REGION_PRIVATE, &lent) == 0);
  atexit(end);
}

/* What it says can be read. */
static void listen_to(const struct session *session) {
  uint8_t bytes[RDMA_RECORD];
  struct rdma_record record;
  while (recv(session->channel, bytes, sizeof bytes, MSG_DONTWAIT) == (ssize_t)sizeof bytes)
    RIG_ASSERT(rdma_parse(bytes, &record) == 0);
}

/* A thread registers, an engine copies, the double moves: whether one of them is at it. */
static bool is_busy(const struct session *session) {
  struct rdma_endpoint *endpoint = session->endpoint;
  loop_lock(rig_node()->loop);
  bool busy = endpoint->attaching || !list_empty(&endpoint->staged_copies);
  combiner_lock(&endpoint->combiner);
  for (unsigned i = 0; i < endpoint->rail_count && session->kind & LOOPED; i++)
    busy |= endpoint->rails[i]->posted_count > 0;
  list_each(item, &endpoint->stepping) {
    const struct devcopy *copy = list_entry(item, struct rdma_job, link)->copy;
    busy |= copy && copy->in_flight;
  }
  combiner_unlock(&endpoint->combiner);
  loop_unlock(rig_node()->loop);
  return busy;
}

static void settle(const struct session *session) {
  rig_progress(4);
  for (unsigned i = 0; i < 100 && is_busy(session); i++) {
    nanosleep(&(struct timespec){0, 20000}, NULL);
    rig_progress(4);
  }
  rig_progress(2);
  listen_to(session);
}

/* The thread that registers holds the peer. */
static void await_thread(const struct session *session) {
  bool serving = true;
  for (unsigned i = 0; i < 100000 && serving; i++) {
    loop_lock(rig_node()->loop);
    serving = session->endpoint->attaching;
    loop_unlock(rig_node()->loop);
    if (serving)
      nanosleep(&(struct timespec){0, 20000}, NULL);
  }
  RIG_ASSERT(!serving);
}

/* The end that is no secret of the queue pair's, and the key of memory that there is: no input
 * could name them. */
static void complete(const struct session *session, uint8_t bytes[RDMA_RECORD]) {
  struct rdma_record record;
  if (!(session->kind & LOOPED) || session->endpoint->rail_count == 0 ||
      rdma_parse(bytes, &record) != 0)
    return;
  if (record.type == RDMA_HELLO) {
    record.ends[0] = session->endpoint->rails[0]->end;
  } else if (record.type == RDMA_ATTACHED && session->target && record.rails > 0) {
    record.keys[0] = session->target->rkey;
    record.address = (uintptr_t)session->target->addr;
  } else {
    return;
  }
  rdma_pack(&record, bytes);
}

/* As if a receive of the rail had brought it. */
static void hear(const struct session *session, const uint8_t bytes[RDMA_RECORD]) {
  struct rdma_endpoint *endpoint = session->endpoint;
  loop_lock(rig_node()->loop);
  int code = 0;
  if (endpoint->channel.fd >= 0 && endpoint->rail_count > 0)
    code = rdma_on_record(endpoint, bytes, endpoint->rails[0]);
  if (code)
    rdma_channel_fail(endpoint, code);
  loop_unlock(rig_node()->loop);
}

static bool is_for_rail(const struct session *session, const uint8_t bytes[RDMA_RECORD]) {
  return !(session->kind & STRAYS) && (bytes[4] | bytes[5] << 8) >= RDMA_CHECKSUM;
}

/* Sends up to one record; false when there is no more. */
static bool send_next(const struct session *session, const uint8_t **bytes, size_t *left) {
  uint8_t record[RDMA_RECORD];
  size_t length = *left < sizeof record ? *left : sizeof record;
  if (length == 0)
    return false;
  memcpy(record, *bytes, length);
  if (length == sizeof record)
    complete(session, record);
  if (length == sizeof record && is_for_rail(session, record))
    hear(session, record);
  else
    rig_send(session->channel, record, length);
  *bytes += length;
  *left -= length;
  return true;
}

static bool is_attached(const uint8_t *bytes, size_t left) {
  return left >= RDMA_RECORD && bytes[4] == RDMA_ATTACHED;
}

static void on_done(struct work *work, int code) {
  struct posted *posted = work->owner;
  RIG_ASSERT(code <= 0);
  posted->done++;
  RIG_ASSERT(posted->done == 1);
}

static struct posted *prepare(struct session *session, enum haul_operation operation) {
  struct posted *posted = &session->posted[session->count++];
  *posted = (struct posted){.pieces = {{0, 0, 100}, {200, 300, 28}}};
  posted->work = (struct work){.endpoint = &session->endpoint->base,
                               .key = &session->key,
                               .binding = session->binding,
                               .region = session->kind & SIM ? device : rig_local(),
                               .pieces = posted->pieces,
                               .count = 2,
                               .operation = operation,
                               .checksum = session->kind & SUMS,
                               .bytes = 128,
                               .whole = 128,
                               .done = on_done,
                               .owner = posted};
  return posted;
}

static void post(struct session *session, enum haul_operation operation) {
  rdma_transport.post(&session->endpoint->base, &prepare(session, operation)->work);
}

static void post_addition(struct session *session, const struct memory *local) {
  struct endpoint *endpoint = &session->endpoint->base;
  struct estimate estimate = {.refusal = 0};
  rdma_transport.estimate(endpoint, &session->key, session->binding, local, HAUL_OP_FETCH_ADD,
                          &estimate);
  if (!estimate.open)
    return;
  struct posted *posted = prepare(session, HAUL_OP_FETCH_ADD);
  posted->pieces[0].length = posted->work.bytes = posted->work.whole = 8;
  posted->work.count = 1;
  posted->work.checksum = false;
  rdma_transport.post(endpoint, &posted->work);
}

static void ask(struct session *session) {
  struct endpoint *endpoint = &session->endpoint->base;
  struct estimate estimate = {.refusal = 0};
  if (rdma_transport.bind(endpoint, &session->key, haul_deadline_in(2000000), &session->binding) ||
      !atomic_load(&endpoint->open))
    return;
  const struct memory *local = &(session->kind & SIM ? device : rig_local())->memory;
  rdma_transport.estimate(endpoint, &session->key, session->binding, local, HAUL_OP_WRITE,
                          &estimate);
  if (!estimate.open)
    return;
  post(session, HAUL_OP_WRITE);
  post(session, HAUL_OP_READ);
  if (session->kind & ADDS)
    post_addition(session, local);
}

static void cancel(struct session *session) {
  loop_lock(rig_node()->loop);
  for (unsigned i = 0; i < session->count; i++)
    if (session->posted[i].done == 0)
      rdma_transport.cancel(&session->endpoint->base, &session->posted[i].work, HAUL_ECANCELED);
  loop_unlock(rig_node()->loop);
}

static void withdraw(const struct session *session) {
  loop_lock(rig_node()->loop);
  for (unsigned slot = RIG_HOST; slot <= RIG_WRAPPED; slot++)
    rdma_transport.revoke(&session->endpoint->base, RIG_HANDLE(slot), NULL);
  loop_unlock(rig_node()->loop);
}

static void open_session(struct session *session, int *control) {
  session->peer = rig_peer(session->kind & LOOPED, control);
  peer_ref(session->peer);
  session->endpoint = (struct rdma_endpoint *)session->peer->base.endpoints[rdma_transport.index];
  rig_channel(session->peer, "rdma", &session->channel);
  RIG_ASSERT(session->endpoint->channel.fd >= 0);
  if ((session->kind & (ASKS | LOOPED)) == (ASKS | LOOPED))
    RIG_ASSERT(rdma_device_export(session->endpoint->node->devices, &lent->memory,
                                  HAUL_READ | HAUL_WRITE, &session->target) == 0);
}

static void close_session(struct session *session, int control) {
  struct rdma_device *nic = session->endpoint->node->devices;
  close(session->channel);
  rig_drop(session->peer, control);
  for (unsigned i = 0; i < session->count; i++)
    RIG_ASSERT(session->posted[i].done == 1);
  await_thread(session);
  rdma_transport.unbind(&session->endpoint->base, session->binding);
  rdma_device_unexport(nic, session->target);
  peer_unref(session->peer);
}

static void converse(struct session *session, const uint8_t *bytes, size_t left) {
  bool asked = false;
  for (size_t half = left / 2;;) {
    bool answered = is_attached(bytes, left);
    bool turns = left > half && left <= half + RDMA_RECORD;
    if (!send_next(session, &bytes, &left))
      return;
    if (session->kind & ASKS && answered && !asked) {
      asked = true;
      ask(session);
    }
    settle(session);
    if (turns && session->kind & REVOKES)
      withdraw(session);
    if (turns && session->kind & CANCELS)
      cancel(session);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
  struct session session = {.key = {.handle = RIG_HANDLE(RIG_HOST),
                                    .length = RIG_BYTES,
                                    .place = {HAUL_HOST, 0},
                                    .rights = HAUL_READ | HAUL_WRITE}};
  int control;
  if (length < 1 || length > 1 + RECORDS_MAX * RDMA_RECORD)
    return 0;
  begin();
  session.kind = bytes[0];
  open_session(&session, &control);
  converse(&session, bytes + 1, length - 1);
  shutdown(session.channel, SHUT_WR);
  settle(&session);
  close_session(&session, control);
  return 0;
}
