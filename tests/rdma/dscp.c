/* SPDX-License-Identifier: MIT
 * Not a test by itself: prints the DSCP of the first RoCE v2 packet that arrives at an interface,
 * for the virtual machine. */
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#define ROCE_PORT 4791 /* UDP (InfiniBand Architecture Specification, annex A17) */

/* IPv4 with a header of 20 bytes. */
static int dscp_of(const uint8_t *packet, ssize_t length) {
  uint16_t port;
  if (length < 28 || packet[0] != 0x45 || packet[9] != 17)
    return -1;
  memcpy(&port, packet + 22, sizeof port);
  return ntohs(port) == ROCE_PORT ? packet[1] >> 2 : -1;
}

int main(int argc, char **argv) {
  if (argc != 2) {
    printf("skipped all: it needs the name of an interface; tests/vm/guest/rdma.sh runs it\n");
    return 77;
  }
  int packets = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_IP));
  struct sockaddr_ll at = {.sll_family = AF_PACKET,
                           .sll_protocol = htons(ETH_P_IP),
                           .sll_ifindex = (int)if_nametoindex(argv[1])};
  struct timeval bound = {.tv_sec = 60};
  uint8_t packet[2048];
  int dscp = -1;
  if (packets < 0 || bind(packets, (struct sockaddr *)&at, sizeof at) != 0) {
    perror(argv[1]);
    return 1;
  }
  setsockopt(packets, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof bound);
  printf("listening\n");
  fflush(stdout);
  for (ssize_t length; dscp < 0 && (length = recv(packets, packet, sizeof packet, 0)) >= 0;)
    dscp = dscp_of(packet, length);
  printf("dscp %d\n", dscp);
  return dscp < 0;
}
