/* SPDX-License-Identifier: MIT
 * Cost estimates of the path, and checks of this host for its speed. */
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/check.h"
#include "core/tls/openssl.h"
#include "core/tls/tls.h"
#include "fabric/tcp/rails.h"

#define TLS_BYTES_PER_NS 1.5 /* one CPU at each end (bench/run tls-write) */

size_t tcp_splice_min(const struct fabric *fabric) {
  double bytes = SPLICE_NS * provider_of(HAUL_HOST)->copy_bytes_per_ns;
  size_t pages = ((size_t)bytes + SPLICE_SEGMENT - 1) / SPLICE_SEGMENT;
  return fabric->config->tcp_zero_copy ? fabric->config->tcp_zero_copy : pages * SPLICE_SEGMENT;
}

static bool is_staged(struct haul_place place) {
  const struct provider *provider = provider_of(place.kind);
  return provider && provider->copy_start;
}

/* Starting values: loopback from bench/run tcp-write and tcp-latency; else the speed of a CPU, or
 * of the link where it is slower. 1448 of the 1538 bytes of an Ethernet frame are payload. */
static double ns_per_byte(const struct tcp_endpoint *endpoint, unsigned rails, bool encrypted) {
  const struct link *link = endpoint->base.link;
  double wire = endpoint->link_speed * 1448 / 1538;
  double cpu = encrypted ? TLS_BYTES_PER_NS : link->loopback ? 6 : 3;
  double paced = (double)link->fabric->config->tcp_rate * rails / 1e9;
  if (!link->local && paced < cpu) /* a Unix socket is not paced */
    cpu = paced;
  return 1 / (wire > 0 && wire < cpu ? wire : cpu);
}

static void describe_path(const struct tcp_endpoint *endpoint, enum protection protection,
                          bool splices, unsigned staged, struct estimate *estimate) {
  static const char *const protections[] = {
      [STREAM_BARE] = "",
      [STREAM_PROVED] = ", not encrypted (plain_data)",
      [STREAM_PROCESS] = ", TLS by the process",
      [STREAM_KERNEL] = ", TLS by the kernel",
  };
  const struct link *link = endpoint->base.link;
  size_t set = link->fabric->config->tcp_zero_copy, size = sizeof estimate->detail;
  snprintf(estimate->detail, size, "%s%u rail%s%s%s", link->local ? "over a Unix socket, " : "",
           estimate->rails, estimate->rails == 1 ? "" : "s", staged ? ", staged" : "",
           protections[protection]);
  size_t at = strlen(estimate->detail);
  if (splices && set == SIZE_MAX)
    snprintf(estimate->detail + at, size - at, ", all copied, as set");
  else if (splices && set)
    snprintf(estimate->detail + at, size - at, ", direct from %zu KiB, as set",
             (set + 1023) / 1024);
}

void tcp_estimate(struct endpoint *base, const struct remote_key *key, void *binding,
                  const struct memory *local, enum haul_operation operation,
                  struct estimate *estimate) {
  struct tcp_endpoint *endpoint = (struct tcp_endpoint *)base;
  enum protection protection = (enum protection)atomic_load(&endpoint->protection);
  unsigned rails = atomic_load(&endpoint->rails_expected);
  unsigned staged = (local->view ? 0u : 1u) + (is_staged(key->place) ? 1u : 0u);
  bool encrypted = protection >= STREAM_PROCESS;
  bool splices = operation == HAUL_OP_WRITE && tcp_may_splice(local) && !encrypted;
  bool by_pages = splices && endpoint->splice_min != SIZE_MAX;
  (void)binding;
  *estimate = (struct estimate){.open = true, .rails = rails, .copies_dma = staged};
  /* Spliced: one copy, into the destination; else one at each end. */
  estimate->copies_kernel = by_pages ? 1 : 2;
  estimate->copies_cpu = protection == STREAM_PROCESS ? 2 : 0;
  estimate->copies_kernel_buffered = by_pages ? 1 : 0;
  estimate->small_piece = by_pages ? SPLICE_SEGMENT : 0;
  /* Both modes cost the same per byte: the copy into the socket overlaps with the peer's copy out
   * of its own. */
  struct line line = {.most = UINT64_MAX,
                      .latency_ns = (base->link->loopback ? 10000.0 : 30000.0) + 5000.0 * staged,
                      .ns_per_byte = ns_per_byte(endpoint, rails, encrypted) + 0.05 * staged};
  if (by_pages)
    estimate->lines[SEND_DIRECT] = line;
  if (by_pages)
    line.most = endpoint->splice_min - 1;
  estimate->lines[SEND_BUFFERED] = line;
  describe_path(endpoint, protection, splices, staged, estimate);
  if (operation_is_atomic(operation) && is_staged(key->place)) {
    estimate->open = false;
    snprintf(estimate->reason, sizeof estimate->reason,
             "the peer's CPU cannot access its device memory");
  }
}

static bool same_address(const struct sockaddr *a, const struct sockaddr *b) {
  const struct sockaddr_in *a4 = (const void *)a, *b4 = (const void *)b;
  const struct sockaddr_in6 *a6 = (const void *)a, *b6 = (const void *)b;
  if (!a || a->sa_family != b->sa_family)
    return false;
  return a->sa_family == AF_INET ? memcmp(&a4->sin_addr, &b4->sin_addr, 4) == 0
                                 : memcmp(&a6->sin6_addr, &b6->sin6_addr, 16) == 0;
}

/* The name of the interface with this address, IPv4 or IPv6. */
static bool find_interface(const struct sockaddr *address, char name[IFNAMSIZ]) {
  struct ifaddrs *addresses;
  bool found = false;
  if (getifaddrs(&addresses) != 0)
    return false;
  for (const struct ifaddrs *one = addresses; one && !found; one = one->ifa_next) {
    found = same_address(one->ifa_addr, address);
    if (found)
      snprintf(name, IFNAMSIZ, "%s", one->ifa_name);
  }
  freeifaddrs(addresses);
  return found;
}

double tcp_link_speed(int fd) {
  struct sockaddr_storage address = {0};
  socklen_t length = sizeof address;
  struct ethtool_cmd command = {.cmd = ETHTOOL_GSET};
  struct ifreq request = {0};
  request.ifr_data = (void *)&command;
  if (getsockname(fd, (struct sockaddr *)&address, &length) != 0 ||
      !find_interface((const struct sockaddr *)&address, request.ifr_name) ||
      ioctl(fd, SIOCETHTOOL, &request) != 0)
    return 0;
  uint32_t megabits = ethtool_cmd_speed(&command);
  return megabits == (uint32_t)SPEED_UNKNOWN ? 0 : megabits / 8000.0;
}

/* `limit`: a name in net.core. */
static void check_buffer(struct haul_check *check, const char *name, const char *limit,
                         long wanted) {
  char path[64], text[32] = "";
  check_begin(check, "tcp", name);
  snprintf(path, sizeof path, "/proc/sys/net/core/%s", limit);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  if (fd >= 0)
    close(fd);
  long value = strtol(text, NULL, 10);
  if (got <= 0) {
    check_set(check, HAUL_CHECK_OK, "the limit of socket buffers is not readable here");
  } else if (value >= wanted) {
    check_set(check, HAUL_CHECK_OK, "net.core.%s is %ld bytes", limit, value);
  } else {
    check_set(check, HAUL_CHECK_LIMITED,
              "net.core.%s is %ld bytes: large writes within this host are slower", limit, value);
    check_hint(check, "sysctl -w net.core.%s=%ld", limit, wanted);
  }
}

static void check_splice(struct haul_check *check) {
  check_begin(check, "tcp", "splice");
  int system = tcp_probe_splice();
  if (system == 0) {
    check_set(check, HAUL_CHECK_OK, "large writes leave allocated memory by reference");
    return;
  }
  check_set(check, HAUL_CHECK_LIMITED, "vmsplice and splice: %s; large writes are copied",
            strerror(system));
  check_hint(check, system == EMFILE ? "ulimit -n 65536"
                                     : "allow pipe2, vmsplice and splice in this sandbox's filter");
}

static void check_tls(struct haul_check *check) {
  check_begin(check, "tcp", "tls");
  if (openssl_open()) {
    check_set(check, HAUL_CHECK_OK, "OpenSSL is available: nodes with a key encrypt");
    return;
  }
  check_set(check, HAUL_CHECK_LIMITED, "%.140s: no node here can have a key",
            haul_error_last()->text);
  check_hint(check, "sudo apt-get install libssl3");
}

static void check_kernel_tls(struct haul_check *check) {
  check_begin(check, "tcp", "kernel-tls");
  bool loaded = tls_kernel_is_there();
  check_set(check, HAUL_CHECK_OK,
            loaded ? "the kernel can encrypt for nodes with a key"
                   : "the kernel's module tls is not loaded: processes encrypt");
  if (!loaded)
    check_hint(check, "sudo modprobe tls");
}

size_t tcp_checks(struct haul_check *checks, size_t room) {
  struct haul_check all[5];
  check_buffer(&all[0], "send-buffer", "wmem_max", 1 << 20);
  check_buffer(&all[1], "receive-buffer", "rmem_max", 512 << 10);
  check_splice(&all[2]);
  check_tls(&all[3]);
  check_kernel_tls(&all[4]);
  for (size_t i = 0; i < 5 && i < room; i++)
    checks[i] = all[i];
  return 5;
}
