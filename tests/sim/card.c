/* SPDX-License-Identifier: MIT
 * Cards: addresses, ports, what the seed draws, and faults of whole cards. */
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"
#include "net.h"
#include "verbs.h"

#define CARDS_MOST 6

struct cards cards;

static bool started;
static struct card all[PROGRAMS][CARDS_MOST]; /* by host */
static struct event next_fault;

void cards_draw(bool only) {
  cards.atomics = only || !sim_chance(200000);
  cards.global = sim_chance(500000);
  cards.gid = only || !sim_chance(50000);
  cards.faults = sim_chance(300000) ? 0 : (unsigned)sim_between(100, 20000);
  cards.losses = sim_chance(500000) ? 0 : (unsigned)sim_between(100, 30000);
  cards.slowness = (unsigned)sim_between(1, 4);
  cards.late = sim_chance(500000) ? 0 : sim_between(0, 500 * US);
  cards.registers = sim_chance(500000) ? 0 : sim_between(0, 5 * MS);
  cards.shared = !sim_chance(200000);
}

unsigned cards_of(const struct host *host) {
  return cards.uneven && cards.per_host > 0 ? 1 + (host->number * 7 + 3) % cards.per_host
                                            : cards.per_host;
}

/* A host with fewer cards is in the first networks. */
static unsigned network_of(const struct host *host, unsigned number) {
  unsigned count = cards_of(host);
  if (!cards.shuffled)
    return number;
  return host->number % 2 ? (number + host->number) % count : count - 1 - number;
}

struct card *card_of(struct host *host, unsigned number) {
  struct card *card = &all[host->number][number];
  if (!card->host) {
    card->host = host;
    card->number = number;
    card->network = network_of(host, number);
    list_init(&card->contexts);
  }
  return card;
}

/* Of 12 bits, as the netmask has it. */
#define NETWORK_AT 20

static uint32_t address_of(const struct card *card) {
  return card->host->address + (card->network << NETWORK_AT);
}

/* An IPv4 address. */
void card_gid(const struct card *card, uint8_t gid[16]) {
  uint32_t address = address_of(card);
  memset(gid, 0, 10);
  gid[10] = gid[11] = 0xff;
  for (int i = 0; i < 4; i++)
    gid[12 + i] = (uint8_t)(address >> (24 - 8 * i));
}

struct card *card_by_gid(const uint8_t gid[16]) {
  uint8_t own[16];
  for (unsigned i = 0; i < PROGRAMS; i++)
    for (unsigned j = 0; j < CARDS_MOST; j++) {
      if (!all[i][j].host)
        continue;
      card_gid(&all[i][j], own);
      if (memcmp(own, gid, sizeof own) == 0)
        return &all[i][j];
    }
  return NULL;
}

bool card_is_down(const struct card *card) {
  return card->down && load.phase == FAULTY;
}

bool card_fault(unsigned rarity) {
  if (load.phase != FAULTY || !sim_chance(cards.faults / rarity))
    return false;
  sim_faults++;
  return true;
}

static void raise_at_all(struct card *card, enum ibv_event_type type) {
  list_each(item, &card->contexts) events_raise(list_entry(item, struct context, link), type, NULL);
}

static void on_up(struct event *event) {
  struct card *card = list_entry(event, struct card, up);
  card->down = false;
  raise_at_all(card, IBV_EVENT_PORT_ACTIVE);
}

static void take_down(struct card *card) {
  sim_trace("fault: the port of card %u of host %u is down", card->number, card->host->number);
  card->down = true;
  raise_at_all(card, IBV_EVENT_PORT_ERR);
  event_schedule(&card->up, sim_now + (MS << sim_below(13)), on_up);
}

/* A context that was open stays dead. Processes that open the card later find it again. */
static void take_away(struct card *card) {
  sim_trace("fault: card %u of host %u is removed", card->number, card->host->number);
  list_each(item, &card->contexts) {
    struct context *context = list_entry(item, struct context, link);
    if (context->removal == PRESENT)
      context->removal = sim_chance(500000) ? FLUSHED : VANISHED;
    queue_pairs_removed(context);
    events_raise(context, IBV_EVENT_DEVICE_FATAL, NULL);
  }
}

static void on_fault(struct event *event) {
  if (load.phase != FAULTY)
    return;
  struct card *card = &all[sim_below(PROGRAMS)][sim_below(CARDS_MOST)];
  if (card->host) {
    sim_faults++;
    if (sim_chance(200000) && strcmp(plan.paths, "rdma") != 0)
      take_away(card);
    else if (!card->down)
      take_down(card);
  }
  event_schedule(event, sim_now + sim_between(0, 4 * plan.fault_interval), on_fault);
}

void cards_start(void) {
  started = true;
  if (cards.per_host > 0 && cards.faults > 0)
    event_schedule(&next_fault, sim_now + plan.fault_interval, on_fault);
}

int64_t cards_slack(void) {
  return cards.per_host > 0 ? 2 * S : 0;
}

static int64_t refused_at = -3600 * S;

void verbs_note_refusal(void) {
  refused_at = sim_now;
}

bool verbs_refused_lately(void) {
  return sim_now < refused_at + 20 * S;
}

bool verbs_is(const char *name) {
  return started && cards.per_host > 0 && strcmp(name, "libibverbs.so.1") == 0;
}

struct own_address {
  struct ifaddrs entry;
  char name[16];
  struct sockaddr_in address, netmask;
};

bool verbs_addresses(struct ifaddrs **addresses) {
  struct host *host = process_current()->host;
  unsigned count = started && cards.per_host > 0 ? cards_of(host) : 0;
  struct own_address *own = count > 0 ? calloc(count, sizeof *own) : NULL; /* freed as one block */
  for (unsigned i = 0; i < count; i++) {
    snprintf(own[i].name, sizeof own[i].name, "eth%u", i);
    own[i].address.sin_family = own[i].netmask.sin_family = AF_INET;
    own[i].address.sin_addr.s_addr = htonl(address_of(card_of(host, i)));
    own[i].netmask.sin_addr.s_addr = htonl(UINT32_MAX << NETWORK_AT);
    own[i].entry = (struct ifaddrs){.ifa_next = i + 1 < count ? &own[i + 1].entry : NULL,
                                    .ifa_name = own[i].name,
                                    .ifa_addr = (struct sockaddr *)(void *)&own[i].address,
                                    .ifa_netmask = (struct sockaddr *)(void *)&own[i].netmask};
  }
  *addresses = own ? &own->entry : NULL;
  return own;
}

bool verbs_text(const char *path, char *text, size_t size) {
  unsigned card;
  int end = 0;
  if (!started || sscanf(path, "/sys/class/infiniband/card%u/%n", &card, &end) != 1 || !end ||
      card >= cards_of(process_current()->host))
    return false;
  if (strcmp(path + end, "device/numa_node") == 0)
    snprintf(text, size, "0\n");
  else if (strncmp(path + end, "ports/1/gid_attrs/ndevs/", 24) == 0)
    snprintf(text, size, "eth%u\n", card);
  else
    return false;
  return true;
}
