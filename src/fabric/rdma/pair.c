/* SPDX-License-Identifier: MIT
 * The rails of a connection. The initiator offers an end at each of its ports. The acceptor pairs
 * them with its own, and tells which it has paired. Pairs are numbered in the order of the
 * initiator's ends. A peer of the version before pairs ends by their number. */
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "fabric/rdma/endpoint.h"

/* Ports that are not usable now are left out. */
static int make_rails(struct rdma_endpoint *endpoint) {
  struct rdma_node *node = endpoint->node;
  unsigned most = rdma_pairs_rails(endpoint) ? RDMA_RAILS_MAX : RDMA_ENDS;
  int code = 0;
  endpoint->rails = alloc_zero(node->count, sizeof *endpoint->rails);
  if (!endpoint->rails)
    return error_memory("rdma rails");
  for (unsigned i = 0; i < node->count && endpoint->rail_count < most; i++) {
    struct rdma_rail *rail = alloc_zero(1, sizeof *rail);
    if (!rail)
      return error_memory("rdma rail");
    rail->endpoint = endpoint;
    rail->device = &node->devices[i];
    rail->number = endpoint->rail_count;
    code = rdma_rail_look(rail);
    if (code)
      alloc_free(rail);
    else
      endpoint->rails[endpoint->rail_count++] = rail;
  }
  return endpoint->rail_count > 0 ? 0 : code;
}

void rdma_rails_close(struct rdma_endpoint *endpoint) {
  for (unsigned i = 0; i < endpoint->rail_count; i++)
    rdma_close_rail(endpoint->rails[i]);
}

void rdma_rails_free(struct rdma_endpoint *endpoint) {
  while (endpoint->rail_count > 0)
    alloc_free(endpoint->rails[--endpoint->rail_count]);
  alloc_free(endpoint->rails);
  endpoint->rails = NULL;
}

int rdma_rails_offer(struct rdma_endpoint *endpoint) {
  int code = make_rails(endpoint);
  for (unsigned i = 0; i < endpoint->rail_count && code == 0; i++)
    code = rdma_open_rail(endpoint->rails[i]);
  return code;
}

/* Keeps these rails, in this order. A forked child looks at the endpoint's at any time. */
static void keep_rails(struct rdma_endpoint *endpoint, struct rdma_rail *const kept[],
                       unsigned count) {
  struct rdma_rail *all[RDMA_RAILS_MAX];
  unsigned had = endpoint->rail_count;
  memcpy(all, endpoint->rails, had * sizeof all[0]);
  for (unsigned i = 0; i < had; i++)
    all[i]->number = RDMA_RAILS_MAX;
  for (unsigned i = 0; i < count; i++) {
    kept[i]->number = i;
    endpoint->rails[i] = kept[i];
  }
  endpoint->rail_count = count;
  for (unsigned i = 0; i < had; i++)
    if (all[i]->number == RDMA_RAILS_MAX) {
      rdma_close_rail(all[i]);
      alloc_free(all[i]);
    }
}

static int connect_rail(struct rdma_rail *rail, const struct rdma_end *peer) {
  combiner_lock(&rail->endpoint->combiner);
  int code = rdma_rail_connect(rail, peer);
  combiner_unlock(&rail->endpoint->combiner);
  return code;
}

int rdma_rails_connect(struct rdma_endpoint *endpoint, const struct rdma_greeting *peer) {
  int code = 0;
  for (unsigned i = 0; i < endpoint->rail_count && code == 0; i++)
    code = connect_rail(endpoint->rails[i], &peer->ends[i]);
  return code;
}

/* NICs of other kinds never reach each other. */
static bool are_alike(const struct rdma_end *own, const struct rdma_end *peer) {
  return own->ethernet == peer->ethernet &&
         (!own->ethernet || nic_gid_kind(own->gid) == nic_gid_kind(peer->gid));
}

/* By the netmask or prefix of this side. */
static bool share_subnet(const struct rdma_rail *rail, const struct rdma_end *peer) {
  const uint8_t *own = rail->end.gid;
  unsigned bits = rail->port.subnet_bits, bytes = bits / 8;
  return bits > 0 && are_alike(&rail->end, peer) && memcmp(own, peer->gid, bytes) == 0 &&
         (bits % 8 == 0 || (own[bytes] ^ peer->gid[bytes]) >> (8 - bits % 8) == 0);
}

int rdma_rails_settle(struct rdma_endpoint *endpoint, const struct rdma_greeting *peer,
                      uint16_t paired) {
  struct rdma_rail *kept[RDMA_RAILS_MAX] = {NULL};
  unsigned all = (1u << endpoint->rail_count) - 1, count = 0;
  unsigned pairs = paired ? paired : all & ((1u << peer->count) - 1);
  for (unsigned i = 0; i < endpoint->rail_count; i++)
    if (pairs & 1u << i)
      kept[count++] = endpoint->rails[i];
  if (pairs & ~all || (paired && count != peer->count))
    return HAUL_EPROTO;
  keep_rails(endpoint, kept, count);
  for (unsigned i = 0; i < count; i++)
    kept[i]->by_order = !share_subnet(kept[i], &peer->ends[i]);
  return rdma_rails_connect(endpoint, peer);
}

/* Finds a rail for each end of the peer: first in its subnet, then among the remaining ones of its
 * kind. For older peers it has the end's number. `partners`: by the peer's ends; NULL: none. */
static void pair_ends(const struct rdma_endpoint *endpoint, const struct rdma_greeting *peer,
                      struct rdma_rail *partners[RDMA_RAILS_MAX]) {
  bool pairs = rdma_pairs_rails(endpoint);
  unsigned taken = 0;
  for (int by_order = 0; by_order < 2; by_order++)
    for (unsigned i = 0; i < peer->count; i++)
      for (unsigned j = 0; j < endpoint->rail_count && !partners[i]; j++) {
        struct rdma_rail *rail = endpoint->rails[j];
        const struct rdma_end *end = &peer->ends[i];
        bool fits = !pairs     ? i == j
                    : by_order ? are_alike(&rail->end, end)
                               : share_subnet(rail, end);
        if (!fits || taken & 1u << j)
          continue;
        partners[i] = rail;
        taken |= 1u << j;
      }
}

/* A rail whose NIC finds no route to a peer in another subnet fails alone. */
int rdma_rails_accept(struct rdma_endpoint *endpoint, const struct rdma_greeting *peer,
                      uint16_t *paired) {
  bool pairs = rdma_pairs_rails(endpoint);
  struct rdma_rail *partners[RDMA_RAILS_MAX] = {NULL};
  unsigned count = 0;
  int code = make_rails(endpoint);
  if (code)
    return code;
  pair_ends(endpoint, peer, partners);
  code = error_set(HAUL_ENOPATH, 0, NULL, NULL,
                   "no NICs of both sides have addresses of one kind: InfiniBand, IPv4 or IPv6");
  for (unsigned i = 0; i < peer->count; i++) {
    struct rdma_rail *rail = partners[i];
    if (!rail)
      continue;
    rail->by_order = !share_subnet(rail, &peer->ends[i]);
    code = rdma_open_rail(rail);
    if (code == 0)
      code = connect_rail(rail, &peer->ends[i]);
    if (code && (!pairs || !rail->by_order))
      return code;
    if (code)
      continue;
    *paired |= (uint16_t)((unsigned)pairs << i);
    partners[count++] = rail;
  }
  if (count == 0)
    return code;
  keep_rails(endpoint, partners, count);
  return 0;
}
