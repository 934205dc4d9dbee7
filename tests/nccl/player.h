/* SPDX-License-Identifier: MIT
 * NCCL's side of its interface for networks: loads the plugin as NCCL does, by version, and calls
 * it as its proxy threads do. */
#ifndef HAUL_TESTS_NCCL_PLAYER_H
#define HAUL_TESTS_NCCL_PLAYER_H

#include <stdbool.h>
#include <stdint.h>

#include "interface.h"

extern const int player_versions[];
#define PLAYER_VERSIONS 5

/* Opens the plugin that HAUL_NCCL names, and starts it. The result of its init. */
int player_open(int version);
int player_close(void);
/* What the plugin logged since, warnings alone; and whether any line has this text. */
unsigned player_warnings(void);
bool player_said(const char *text);

int net_devices(int *count);
struct player_properties {
  char name[32];
  int pointers, speed, max_receives;
  bool has_pci;
};
int net_properties(int device, struct player_properties *properties);
int net_listen(int device, void *handle, void **comm);
int net_connect(int device, void *handle, void **comm);
int net_accept(void *listener, void **comm);
int net_register(void *comm, void *data, size_t size, int type, void **memory);
int net_register_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                        void **memory);
int net_deregister(void *comm, void *memory);
int net_send(void *comm, void *data, size_t size, int tag, void *memory, void **request);
int net_receive(void *comm, int count, void **data, size_t *sizes, int *tags, void **memories,
                void **request);
int net_flush(void *comm, void *data, int size, void *memory, void **request);
int net_test(void *request, int *done, int *sizes);
int net_close_send(void *comm);
int net_close_receive(void *comm);
int net_close_listen(void *comm);

#endif
