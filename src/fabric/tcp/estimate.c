/* SPDX-License-Identifier: MIT
 * What the path would cost. */
#include <stdio.h>
#include <string.h>

#include "fabric/tcp/tcp.h"

size_t tcp_splice_from(const struct fabric *fabric) {
  double bytes = SPLICE_NS * provider_of(HAUL_HOST)->copy_bytes_per_ns;
  size_t pages = ((size_t)bytes + SPLICE_PIECE - 1) / SPLICE_PIECE;
  return fabric->config->tcp_zero_copy ? fabric->config->tcp_zero_copy : pages * SPLICE_PIECE;
}

static bool is_staged(const struct provider *provider) {
  return provider && provider->copy_start;
}

/* One time a byte for both: a copy into the socket overlaps with the peer's out of its own. */
static void estimate_lines(const struct tcp_endpoint *endpoint, bool by_pages, double latency_ns,
                           double ns_per_byte, struct estimate *estimate) {
  uint64_t most = by_pages ? endpoint->splice_from - 1 : UINT64_MAX;
  estimate->lines[SEND_BUFFERED] = (struct line){most, latency_ns, ns_per_byte};
  if (by_pages)
    estimate->lines[SEND_ZERO_COPY] = (struct line){UINT64_MAX, latency_ns, ns_per_byte};
}

/* Where it was set from which size on pages are passed, that is told. */
static void say_threshold(const struct tcp_endpoint *endpoint, char *detail, size_t size) {
  size_t set = endpoint->base.link->fabric->config->tcp_zero_copy, at = strlen(detail);
  if (set == SIZE_MAX)
    snprintf(detail + at, size - at, ", all copied, as set");
  else if (set)
    snprintf(detail + at, size - at, ", direct from %zu KiB, as set", (set + 1023) / 1024);
}

/* As bench/run tls-write shows: one processor at each end. */
#define TLS_BYTES_PER_NS 1.5

static const char *const protections[] = {
    [STREAM_BARE] = "",
    [STREAM_PROVED] = ", not encrypted (plain_data)",
    [STREAM_PROCESS] = ", TLS by the process",
    [STREAM_KERNEL] = ", TLS by the kernel",
};

void tcp_estimate(struct endpoint *base, const struct remote_key *key, void *binding,
                  const struct memory *local, enum haul_operation operation,
                  struct estimate *estimate) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  const struct link *link = base->link;
  unsigned rails = atomic_load(&endpoint->open_rails);
  unsigned staged = (local->view ? 0u : 1u) + (is_staged(provider_of(key->place.kind)) ? 1u : 0u);
  (void)binding;
  *estimate = (struct estimate){.open = true, .rails = rails, .copies_dma = staged};
  /* By reference out of the source, one copy into the destination; else one at each end. */
  enum protection protection = (enum protection)atomic_load(&endpoint->protection);
  bool encrypted = protection >= STREAM_PROCESS;
  bool by_pages = operation == HAUL_OP_WRITE && tcp_lends(local) && !encrypted &&
                  endpoint->splice_from != SIZE_MAX;
  estimate->copies_kernel = by_pages ? 1 : 2;
  estimate->copies_cpu = protection == STREAM_PROCESS ? 2 : 0;
  estimate->copies_kernel_buffered = by_pages ? 1 : 0;
  estimate->small_piece = by_pages ? SPLICE_PIECE : 0;
  /* Starting values: loopback as bench/run tcp-write and tcp-latency show, else what a processor
   * does, or the line where it is slower: of a frame's 1538 bytes on it 1448 are payload. */
  double line = endpoint->line * 1448 / 1538, processor = encrypted        ? TLS_BYTES_PER_NS
                                                          : link->loopback ? 6
                                                                           : 3;
  double set = (double)link->fabric->config->tcp_rate * rails / 1e9; /* a Unix socket has none */
  if (!link->local && set < processor)
    processor = set;
  double latency_ns = (link->loopback ? 10000.0 : 30000.0) + 5000.0 * staged;
  double ns_per_byte = 1 / (line > 0 && line < processor ? line : processor) + 0.05 * staged;
  estimate_lines(endpoint, by_pages, latency_ns, ns_per_byte, estimate);
  snprintf(estimate->detail, sizeof estimate->detail, "%s%u rail%s%s%s",
           link->local ? "over a Unix socket, " : "", rails, rails == 1 ? "" : "s",
           staged ? ", staged" : "", protections[protection]);
  if (operation == HAUL_OP_WRITE && tcp_lends(local) && !encrypted)
    say_threshold(endpoint, estimate->detail, sizeof estimate->detail);
  if (operation_is_atomic(operation) && is_staged(provider_of(key->place.kind))) {
    estimate->open = false;
    snprintf(estimate->reason, sizeof estimate->reason,
             "the peer's memory is a device's, out of its processors' reach");
  }
}
