/* SPDX-License-Identifier: MIT
 * NCCL's side of the plugin interface: loads one version of the plugin and calls it like NCCL's
 * proxy threads. */
#ifndef HAUL_TESTS_NCCL_HARNESS_H
#define HAUL_TESTS_NCCL_HARNESS_H

#include <stdbool.h>
#include <stdint.h>

#include "interface.h"

extern const int harness_versions[];
#define HARNESS_VERSIONS 5

/* Loads the plugin that HAUL_NCCL names. Returns the result of its init. */
int harness_open(int version);
int harness_close(void);
/* The warnings since the last call; and whether a logged line contains the text. */
unsigned harness_warnings(void);
bool harness_logged(const char *text);

int net_devices(int *count);
struct harness_properties {
  char name[32];
  int pointers, speed, max_receives;
  bool has_pci;
};
int net_properties(int device, struct harness_properties *properties);
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
