/* SPDX-License-Identifier: MIT
 * A path that was open and broke is connected again, over the same channel. The initiator begins,
 * with a HELLO, when both sides have destroyed their queue pairs. The pause before it doubles,
 * unless the path had lasted. Regions stay attached: their keys belong to NICs, not to queue pairs.
 *
 * A queue pair is ready to send without a packet from its peer, which shows nothing of the wire. So
 * each rail sends a message, and the path opens when the peer's NICs have acknowledged all of
 * them.
 *
 * Routers may drop what rails send that are paired by order. Beside other rails such a rail is used
 * once its message is acknowledged, also on a path that opens for the first time. The path waits
 * for it for about a second. If the message fails, the rail stays unused until the path is
 * connected again. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/sys.h"
#include "fabric/rdma/channel.h"
#include "fabric/rdma/endpoint.h"

#define PAUSE_NS      INT64_C(100000000)
#define PAUSE_MOST_NS INT64_C(30000000000)

/* With the endpoint's lock. Other threads read `endpoint` and `device` without it: both stay. */
static int renew_rail(struct rdma_rail *rail) {
  const struct rdma_end end = rail->end;
  uint32_t inlined = rail->inlined;
  uint8_t atomics = rail->peer_atomics;
  rdma_close_rail(rail);
  rdma_rail_set_usable(rail, false);
  memset(&rail->events, 0, sizeof *rail - offsetof(struct rdma_rail, events));
  rail->end = end;
  rail->inlined = inlined;
  rail->peer_atomics = atomics;
  rail->broken = true;
  int code = rdma_rail_look(rail);
  if (code == 0)
    code = rdma_open_rail(rail);
  rail->broken = code != 0;
  return code;
}

/* All jobs have ended, and no response to them comes any more. */
static int renew_rails(struct rdma_endpoint *endpoint) {
  int code = 0;
  combiner_lock(&endpoint->combiner);
  memset(endpoint->slots, 0, sizeof endpoint->slots);
  for (unsigned i = 0; i < endpoint->rail_count && code == 0; i++)
    code = renew_rail(endpoint->rails[i]);
  endpoint->broken = code != 0;
  combiner_unlock(&endpoint->combiner);
  endpoint->outstanding = 0;
  endpoint->hello_received = endpoint->ready_sent = endpoint->ready_received = false;
  endpoint->restore.quiet = code != 0;
  return code;
}

/* Doubles the pause, unless the path had lasted. */
static void set_pause(struct rdma_restore *restore, int64_t now) {
  bool lasted = restore->opened_at && now - restore->opened_at >= PAUSE_MOST_NS;
  int64_t longer = restore->pause && !lasted ? 2 * restore->pause : PAUSE_NS;
  restore->pause = longer < PAUSE_MOST_NS ? longer : PAUSE_MOST_NS;
  restore->opened_at = 0;
}

static void pause_first(struct rdma_endpoint *endpoint) {
  struct rdma_restore *restore = &endpoint->restore;
  int64_t now = clock_now();
  set_pause(restore, now);
  loop_timer_start(endpoint->base.link->fabric->loop, &restore->timer,
                   clock_after(now, restore->pause));
}

static void on_timer(struct timer *timer) {
  struct rdma_endpoint *endpoint = list_entry(timer, struct rdma_endpoint, restore.timer);
  if (renew_rails(endpoint) == 0)
    rdma_send_hello(endpoint, 0);
  else
    pause_first(endpoint);
}

void rdma_restore_init(struct rdma_endpoint *endpoint) {
  timer_init(&endpoint->restore.timer, on_timer);
}

void rdma_restore_later(struct rdma_endpoint *endpoint) {
  struct rdma_restore *restore = &endpoint->restore;
  if (!restore->peer_does || !endpoint->broken || restore->quiet)
    return;
  restore->quiet = true;
  if (endpoint->base.link->initiator && restore->possible)
    pause_first(endpoint);
}

/* As an initiator that keeps its pauses: half of them, as clocks and messages vary. */
static bool comes_early(struct rdma_restore *restore) {
  int64_t now = clock_now();
  if (now < restore->answer_at)
    return true;
  set_pause(restore, now);
  restore->answer_at = clock_after(now, restore->pause / 2);
  return false;
}

bool rdma_restore_answer(struct rdma_endpoint *endpoint) {
  if (!endpoint->restore.possible) { /* it never opened here */
    rdma_send_refusal(endpoint, endpoint_reason(&endpoint->base));
    return false;
  }
  if (comes_early(&endpoint->restore) || renew_rails(endpoint) != 0) {
    endpoint->restore.quiet = false; /* until the peer has acknowledged again */
    rdma_send_record(endpoint, &(struct rdma_record){.type = RDMA_BROKEN});
    return false;
  }
  rdma_send_hello(endpoint, 0);
  return true;
}

/* The peer ignores a response without a request; its NIC acknowledges it. */
static void probe(struct rdma_endpoint *endpoint) {
  endpoint->restore.probing = true;
  endpoint->restore.late = false;
  for (unsigned i = 0; i < endpoint->rail_count; i++)
    rdma_send_record(endpoint, &(struct rdma_record){.type = RDMA_RESPONSE, .rails = (uint8_t)i});
}

static void open_path(struct rdma_endpoint *endpoint) {
  endpoint->restore.probing = false;
  endpoint->restore.opened_at = clock_now();
  endpoint_resume(&endpoint->base);
}

void rdma_connected(struct rdma_endpoint *endpoint) {
  struct rdma_restore *restore = &endpoint->restore;
  bool proves = restore->peer_does && endpoint->rail_count > 1, probes = restore->possible;
  if (probes && endpoint->broken)
    return;
  for (unsigned i = 0; i < endpoint->rail_count; i++) {
    bool unproved = proves && endpoint->rails[i]->by_order;
    rdma_rail_set_usable(endpoint->rails[i], !unproved);
    probes |= unproved;
  }
  restore->possible = restore->peer_does;
  if (probes)
    probe(endpoint);
  else
    open_path(endpoint);
}

void rdma_restore_poll(struct rdma_endpoint *endpoint) {
  bool any = false, all = true, pending = false;
  combiner_lock(&endpoint->combiner);
  for (unsigned i = 0; i < endpoint->rail_count; i++) {
    const struct rdma_rail *rail = endpoint->rails[i];
    bool usable = rdma_rail_is_usable(rail);
    any |= usable;
    all &= !usable || (rail->messages.completed > 0 && !rail->broken);
    pending |= !usable && rdma_rail_is_busy(rail);
  }
  combiner_unlock(&endpoint->combiner);
  if (!all || (pending && !endpoint->restore.late))
    return;
  if (any)
    open_path(endpoint);
  else
    rdma_break(endpoint, RDMA_SILENT);
}
