/* SPDX-License-Identifier: MIT */
#include "etcd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"
#include "net.h"

#define LEASE_CHECK (500 * MS) /* etcd looks for expired leases so often */
/* Requests of one client in a second: a defect, if it makes more. A registration repeats an update
 * that failed twice a second, each with some requests; the most seen was 12. */
#define CLIENT_MOST 30

struct etcd_plan etcd_plan;
int64_t etcd_trouble_at, etcd_back_at;
unsigned etcd_client_peak[PURPOSES], etcd_peak, etcd_peak_after_outage;
uint64_t etcd_requests, etcd_connects, etcd_refused;

const char *const etcd_fault_names[ETCD_FAULTS] = {
    "member kills", "member power losses", "member hangs", "isolated members", "lost leaders",
    "outages",      "cut streams",         "compactions"};

static struct member members[MEMBERS];
static unsigned leader;
static int64_t leader_from; /* NEVER: an election is under way */
static struct event election, lease_check;
static struct list working; /* fibers that wait for a working cluster */

void etcd_draw(void) {
  etcd_plan.members = sim_chance(600000) ? 3 : (unsigned)sim_between(1, 3);
  etcd_plan.service = sim_between(100 * US, sim_chance(800000) ? 5 * MS : 100 * MS);
  etcd_plan.slow = sim_chance(500000) ? 0 : (unsigned)sim_below(50000);
  etcd_plan.errors = sim_chance(500000) ? 0 : (unsigned)sim_below(100000);
  etcd_plan.broken = sim_chance(500000) ? 0 : (unsigned)sim_below(50000);
  etcd_plan.progress = sim_between(5 * S, 600 * S);
}

static bool is_up(const struct member *member) {
  return member->process && !member->process->frozen && !member->isolated;
}

static unsigned count_up(void) {
  unsigned up = 0;
  for (unsigned i = 0; i < etcd_plan.members; i++)
    up += is_up(&members[i]);
  return up;
}

static bool has_quorum(void) {
  return count_up() * 2 > etcd_plan.members;
}

bool member_works(const struct member *member) {
  return is_up(member) && has_quorum() && leader_from <= sim_now;
}

int64_t etcd_serves_since(void) {
  return has_quorum() && leader_from <= sim_now ? leader_from : NEVER;
}

bool member_await(const struct member *member, int64_t until) {
  while (!member_works(member))
    if (!fiber_wait_one(&working, until))
      return member_works(member);
  return true;
}

static void on_elected(struct event *event) {
  if (!has_quorum()) {
    event_schedule(event, sim_now + 500 * MS, on_elected);
    return;
  }
  do
    leader = (unsigned)sim_below(etcd_plan.members);
  while (!is_up(&members[leader]));
  sim_trace("etcd: member %u leads", leader);
  leader_from = sim_now;
  etcd_trouble_at = sim_now;
  store_extend_leases();
  queue_wake(&working, SIZE_MAX);
}

static void lose_leader(void) {
  leader_from = NEVER;
  event_schedule(&election, sim_now + sim_between(100 * MS, 3 * S), on_elected);
}

/* What a member's end, hang or return changes. */
static void members_changed(void) {
  etcd_trouble_at = sim_now;
  if (leader_from != NEVER && (!has_quorum() || !is_up(&members[leader])))
    lose_leader();
  queue_wake(&working, SIZE_MAX);
  queue_wake(&store.changed, SIZE_MAX);
}

static void on_lease_check(struct event *event) {
  if (has_quorum() && leader_from <= sim_now)
    store_expire();
  event_schedule(event, sim_now + LEASE_CHECK, on_lease_check);
}

static void start_member(struct member *member) {
  sim_trace("etcd: member %u starts", member->number);
  member->process = process_start(member->host, PROGRAMS + member->number, 1, gateway_main, member);
  free(member->process->image); /* it has nothing of the library */
  member->process->image = NULL;
  net_answers_again(member->host);
  if (count_up() == 1)
    etcd_back_at = sim_now;
  members_changed();
}

static void on_back(struct event *event) {
  start_member(list_entry(event, struct member, back));
}

static void on_hang_end(struct event *event) {
  struct member *member = list_entry(event, struct member, end_of_hang);
  if (member->process)
    process_thaw(member->process);
  members_changed();
}

static void on_isolation_end(struct event *event) {
  list_entry(event, struct member, end_of_isolation)->isolated = false;
  members_changed();
}

static void kill_member(struct member *member, bool silent, int64_t back_at) {
  if (member->process) {
    process_kill(member->process, silent);
    member->process = NULL;
    event_cancel(&member->end_of_hang);
  }
  event_schedule(&member->back, back_at, on_back);
  members_changed();
}

void etcd_outage(int64_t until, bool silent) {
  for (unsigned i = 0; i < etcd_plan.members; i++)
    kill_member(&members[i], silent, until);
}

/* From a tenth of a second to thirteen, shorter ones more often. */
static int64_t draw_length(void) {
  return 100 * MS << sim_below(8);
}

static void inject_into(struct member *member, enum etcd_fault fault) {
  if (fault == MEMBER_HANG) {
    process_freeze(member->process);
    event_schedule(&member->end_of_hang, sim_now + draw_length(), on_hang_end);
  } else if (fault == MEMBER_ISOLATED) {
    member->isolated = true;
    event_schedule(&member->end_of_isolation, sim_now + draw_length(), on_isolation_end);
  } else if (fault == STREAMS_CUT) {
    member->cuts++;
    queue_wake(&store.changed, SIZE_MAX);
    return;
  } else {
    kill_member(member, fault == MEMBER_POWER, sim_now + draw_length());
  }
  members_changed();
}

/* The last revisions stay, as by etcd's automatic compaction. */
static void compact(void) {
  int64_t to = store.revision - (int64_t)sim_below(3);
  if (to > store.compacted)
    store.compacted = to;
  queue_wake(&store.changed, SIZE_MAX);
}

void etcd_inject(enum etcd_fault fault) {
  struct member *member = &members[sim_below(etcd_plan.members)];
  sim_faults++;
  sim_trace("fault: %s, member %u", etcd_fault_names[fault], member->number);
  if (fault == ALL_MEMBERS)
    etcd_outage(sim_now + draw_length(), sim_chance(300000));
  else if (fault == LEADER_LOST)
    lose_leader();
  else if (fault == COMPACTION)
    compact();
  else if (member->process)
    inject_into(member, fault);
}

void etcd_heal(void) {
  etcd_plan.slow = etcd_plan.errors = etcd_plan.broken = 0;
  if (etcd_plan.service > 10 * MS)
    etcd_plan.service = 10 * MS;
  for (unsigned i = 0; i < etcd_plan.members; i++) {
    struct member *member = &members[i];
    on_hang_end(&member->end_of_hang);
    on_isolation_end(&member->end_of_isolation);
    if (!member->process)
      event_schedule(&member->back, sim_now, on_back);
  }
}

void etcd_start(unsigned host) {
  store_start();
  list_init(&working);
  for (unsigned i = 0; i < etcd_plan.members; i++) {
    members[i].number = i;
    members[i].host = host_create(host + i);
    net_add_host(members[i].host);
    start_member(&members[i]);
  }
  etcd_back_at = 0;
  event_schedule(&lease_check, LEASE_CHECK, on_lease_check);
}

const char *etcd_directory(void) {
  static char text[128];
  size_t used = (size_t)snprintf(text, sizeof text, "etcd://");
  for (unsigned i = 0; i < etcd_plan.members; i++) {
    uint32_t address = members[i].host->address;
    used += (size_t)snprintf(text + used, sizeof text - used, "%s10.%u.%u.%u", i ? "," : "",
                             address >> 16 & 255, address >> 8 & 255, address & 255);
  }
  snprintf(text + used, sizeof text - used, "/sim");
  return text;
}

static void count_all(void) {
  static int64_t second;
  static unsigned count, after_outage;
  static int64_t outage_counted;
  if (second != sim_now / S)
    count = 0;
  second = sim_now / S;
  if (++count > etcd_peak)
    etcd_peak = count;
  if (!etcd_back_at || sim_now > etcd_back_at + S)
    return;
  if (outage_counted != etcd_back_at)
    after_outage = 0;
  outage_counted = etcd_back_at;
  if (++after_outage > etcd_peak_after_outage)
    etcd_peak_after_outage = after_outage;
}

#define CLIENTS 65536 /* more than there are processes */
static struct client clients[CLIENTS];

void count_request(pid_t pid, enum purpose purpose) {
  struct client *client = &clients[pid % CLIENTS];
  if (purpose == CONNECTS) {
    etcd_connects++;
  } else {
    etcd_requests++;
    count_all();
  }
  if (client->second != sim_now / S)
    memset(client->count, 0, sizeof client->count);
  client->second = sim_now / S;
  if (++client->count[purpose] > etcd_client_peak[purpose])
    etcd_client_peak[purpose] = client->count[purpose];
  if (purpose != LOOKS_UP && client->count[purpose] > CLIENT_MOST)
    sim_fail("load", "process %d makes %u requests to etcd in a second", (int)pid,
             client->count[purpose]);
}
