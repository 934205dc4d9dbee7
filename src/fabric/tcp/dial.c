/* SPDX-License-Identifier: MIT
 * Opening the rails: one after the other, then the express rail. The initiator opens them when a
 * work waits and none is open, or when the peer asks for them because one waits there. A link with
 * TLS opens them when it connects, as only they show what protects the data.
 *
 * A first rail that fails is tried again while works wait, for as long as the liveness timeout.
 * Then the path closes, on both sides. For lack of memory or descriptors only the works that wait
 * end, at once. An initiator that does neither within twice the acceptor's liveness timeout fails
 * the link. */
#include "core/error.h"
#include "core/sys.h"
#include "fabric/tcp/rails.h"

#define PAUSE_NS      10000000LL /* before the first attempt after a failed one; it doubles */
#define PAUSE_MOST_NS 1000000000LL
#define CHECKS        8 /* of the acceptor, one every quarter of the liveness timeout */

static bool is_shortage(int code) {
  return code == HAUL_ENOMEM || code == HAUL_ELIMIT;
}

/* No rail could be opened, for the reason in the thread's detail: ends the works that wait, and,
 * unless for a shortage, the path. */
static void give_up(struct tcp_endpoint *endpoint, int code) {
  struct endpoint *base = &endpoint->base;
  struct list works = LIST_INIT(works);
  struct haul_error error;
  error_save(&error);
  endpoint->dial.active = endpoint->dial.asked = false;
  combiner_lock(&endpoint->combiner);
  backlog_empty(&endpoint->pending, &works);
  if (!is_shortage(code)) {
    atomic_store(&base->open, false);
    if (endpoint->had_rails) /* first, as in close_path (rails.c) */
      atomic_store(&base->link->failing, HAUL_EPEER);
    endpoint_failed(base, "no data connection: %.150s", error.text);
  }
  combiner_unlock(&endpoint->combiner);
  if (!is_shortage(code) && endpoint->had_rails)
    base->link->last_path_lost(base->link);
  if (is_shortage(code))
    error_restore(&error);
  else
    code = error_set(HAUL_EPATH, 0, base->link->name, NULL, "%s", endpoint_reason(base));
  tcp_end_works(endpoint, &works, code);
}

int tcp_refused(struct endpoint *base, int code, const char *reason) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  if (code != HAUL_EPATH && !is_shortage(code))
    return HAUL_EPROTO;
  error_set(code, 0, base->link->name, NULL, "the peer opens none: %s", error_quote(reason));
  if (atomic_load(&endpoint->open_rails) == 0) /* else its end closes the path */
    give_up(endpoint, code);
  return 0;
}

static bool is_wanted(struct tcp_endpoint *endpoint) {
  combiner_lock(&endpoint->combiner);
  bool wanted = endpoint->dial.asked || backlog_first(&endpoint->pending);
  combiner_unlock(&endpoint->combiner);
  return wanted;
}

/* Failures that another attempt does not change. */
static bool is_final(int code) {
  return code == HAUL_EAUTH || code == HAUL_EINSECURE || code == HAUL_EPROTO ||
         code == HAUL_EVERSION || code == HAUL_EADDRESS;
}

/* The path goes on with the rails that are open. */
static void do_without(struct tcp_endpoint *endpoint, unsigned open) {
  combiner_lock(&endpoint->combiner);
  each_rail(rail, endpoint) {
    if (rail->stream.fd < 0)
      rail->parking = RAIL_IN_USE;
  }
  endpoint->retired = 0;
  atomic_store(&endpoint->rails_expected, open);
  combiner_unlock(&endpoint->combiner);
}

/* With the failure's detail. */
static void dial_failed(struct tcp_endpoint *endpoint, int code) {
  struct link *link = endpoint->base.link;
  struct tcp_dial *dial = &endpoint->dial;
  int64_t next = clock_now() + dial->pause;
  unsigned open = atomic_load(&endpoint->open_rails);
  bool ended = atomic_load(&link->ended) || !atomic_load(&endpoint->base.open);
  if (open > 0)
    do_without(endpoint, open);
  if (ended || open > 0 || !is_wanted(endpoint)) {
    dial->active = false;
  } else if (is_shortage(code) || is_final(code) || next >= dial->until) {
    struct haul_error error;
    error_save(&error);
    link->refuse_channels(link, &tcp_transport, is_shortage(code) ? code : HAUL_EPATH, error.text);
    error_restore(&error);
    give_up(endpoint, code);
  } else {
    dial->pause = 2 * dial->pause < PAUSE_MOST_NS ? 2 * dial->pause : PAUSE_MOST_NS;
    loop_timer_start(link->fabric->loop, &dial->timer, next);
  }
}

static unsigned index_of(unsigned next, unsigned wanted) {
  return next < wanted ? next : TCP_EXPRESS;
}

/* Never opened, parked, or lost. A lost one stays closed until all are, as the peer then may have
 * freed all and expects them in order. */
static bool is_missing(const struct tcp_endpoint *endpoint, unsigned index) {
  const struct tcp_rail *rail = endpoint->rails[index];
  return !rail || rail->parking == RAIL_PARKED || (endpoint->dial.all && rail->stream.fd < 0);
}

static void dial_next(struct tcp_endpoint *endpoint) {
  struct link *link = endpoint->base.link;
  struct tcp_dial *dial = &endpoint->dial;
  unsigned wanted = link->fabric->config->tcp_rails;
  while (dial->next <= wanted && !is_missing(endpoint, index_of(dial->next, wanted)))
    dial->next++;
  if (dial->next > wanted) {
    dial->active = false;
    return;
  }
  unsigned index = index_of(dial->next, wanted);
  int code = link->dial_channel(link, &tcp_transport, link->local, index, dial->until);
  if (code)
    dial_failed(endpoint, code);
}

static void dial_start(struct tcp_endpoint *endpoint) {
  int64_t bound = endpoint->base.link->fabric->config->liveness_ns;
  endpoint->dial.until = clock_after(clock_now(), bound);
  endpoint->dial.pause = PAUSE_NS;
  dial_next(endpoint);
}

void tcp_dialed(struct endpoint *base, unsigned index, int code, struct stream stream) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  struct tcp_dial *dial = &endpoint->dial;
  if (code == 0)
    code = rail_open(endpoint, index, stream);
  if (code) {
    dial_failed(endpoint, code);
    return;
  }
  dial->asked = false;
  dial->next++;
  dial_start(endpoint);
}

static void start_check(struct tcp_endpoint *endpoint) {
  const struct fabric *fabric = endpoint->base.link->fabric;
  int64_t bound = fabric->config->liveness_ns;
  loop_timer_start(fabric->loop, &endpoint->dial.timer, clock_after(clock_now(), bound / 4));
}

/* Acceptor. A late check does not count: this process was stopped, and first reads the input that
 * has arrived. */
static void check_peer(struct tcp_endpoint *endpoint) {
  struct link *link = endpoint->base.link;
  struct tcp_dial *dial = &endpoint->dial;
  if (!dial->active)
    return; /* a rail came, or the reason why there is none */
  dial->checks += clock_now() - dial->timer.at <= link->fabric->config->liveness_ns / 8;
  if (dial->checks < CHECKS)
    start_check(endpoint);
  else
    link->fail(link, HAUL_EPEER, "it opens no data connection, and does not say why");
}

void tcp_dial(struct tcp_endpoint *endpoint) {
  struct endpoint *base = &endpoint->base;
  struct link *link = base->link;
  struct tcp_dial *dial = &endpoint->dial;
  atomic_store(&dial->due, false);
  bool missing = atomic_load(&endpoint->open_rails) == 0 || (link->initiator && endpoint->retired);
  if (dial->active || endpoint->asking > 0)
    return; /* which looks again at its end */
  if (!missing || !atomic_load(&base->open)) {
    dial->asked = false;
    return;
  }
  dial->active = true;
  dial->all = atomic_load(&endpoint->open_rails) == 0;
  dial->next = 0;
  if (link->initiator) {
    dial_start(endpoint);
    return;
  }
  int code = link->request_channels(link, &tcp_transport);
  dial->checks = 0;
  if (is_shortage(code))
    give_up(endpoint, code);
  else
    start_check(endpoint);
}

/* Initiator: the pause after a failure is over. */
static void on_timer(struct timer *timer) {
  struct tcp_endpoint *endpoint = list_entry(timer, struct tcp_endpoint, dial.timer);
  if (!endpoint->base.link->initiator)
    check_peer(endpoint);
  else if (is_wanted(endpoint))
    dial_next(endpoint);
  else
    endpoint->dial.active = false;
}

void tcp_dial_init(struct tcp_endpoint *endpoint) {
  timer_init(&endpoint->dial.timer, on_timer);
}

void tcp_want_rails(struct tcp_endpoint *endpoint) {
  if (!atomic_exchange(&endpoint->dial.due, true))
    loop_poll(endpoint->base.link->fabric->loop, &endpoint->poller);
}

void tcp_requested(struct endpoint *base) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  struct link *link = base->link;
  if (!atomic_load(&base->open)) {
    link->refuse_channels(link, &tcp_transport, HAUL_EPATH, endpoint_reason(base));
  } else if (atomic_load(&endpoint->open_rails) == 0 || endpoint->asking > 0) {
    endpoint->dial.asked = true;
    tcp_dial(endpoint);
  }
}

/* With the lock: works may be posted, and rails are opened for the first. */
static void open_dormant(struct tcp_endpoint *endpoint, unsigned rails) {
  combiner_lock(&endpoint->combiner);
  if (!atomic_load(&endpoint->base.link->ended) && !endpoint_is_closed(&endpoint->base)) {
    if (atomic_load(&endpoint->rails_expected) < rails)
      atomic_store(&endpoint->rails_expected, rails);
    endpoint->base.channels = rails;
    atomic_store(&endpoint->base.open, true);
  }
  combiner_unlock(&endpoint->combiner);
}

int tcp_expect(struct endpoint *base, unsigned channels) {
  if (channels == 0 || channels > TCP_RAILS_MAX)
    return HAUL_EPROTO;
  open_dormant((struct tcp_endpoint *)base, channels);
  return 0;
}

static int connect_rail(struct tcp_endpoint *endpoint, unsigned index, haul_deadline until) {
  struct link *link = endpoint->base.link;
  struct stream stream;
  int code = link->open_channel(link, &tcp_transport, link->local, index, until, &stream);
  if (code)
    return code;
  loop_lock(link->fabric->loop);
  code = rail_open(endpoint, index, stream);
  loop_unlock(link->fabric->loop);
  return code;
}

/* While a dial is active, idle rails are not parked. */
static void set_active(struct tcp_endpoint *endpoint, bool active) {
  loop_lock(endpoint->base.link->fabric->loop);
  endpoint->dial.active = active;
  loop_unlock(endpoint->base.link->fabric->loop);
}

/* Without the express rail, works of the best rank take the others. */
static void connect_rails(struct tcp_endpoint *endpoint, unsigned wanted, haul_deadline until) {
  struct link *link = endpoint->base.link;
  int code = 0;
  set_active(endpoint, true);
  for (unsigned i = 0; i < wanted && code == 0; i++)
    code = connect_rail(endpoint, i, until);
  if (atomic_load(&endpoint->open_rails) == 0) {
    loop_lock(link->fabric->loop);
    endpoint_failed(&endpoint->base, "no data connection: %.150s", haul_error_last()->text);
    loop_unlock(link->fabric->loop);
  } else if (code == 0) {
    connect_rail(endpoint, TCP_EXPRESS, until);
  }
  set_active(endpoint, false);
  tcp_want_rails(endpoint); /* the peer may have asked meanwhile */
}

void tcp_connect(struct endpoint *base, haul_deadline until) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  struct link *link = base->link;
  unsigned wanted = link->fabric->config->tcp_rails;
  if (link->tls) {
    connect_rails(endpoint, wanted, until);
    wanted = atomic_load(&endpoint->open_rails);
  }
  loop_lock(link->fabric->loop);
  if (wanted > 0)
    open_dormant(endpoint, wanted);
  loop_unlock(link->fabric->loop);
}
