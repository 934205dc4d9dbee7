/* SPDX-License-Identifier: MIT
 * The configuration of nodes that the file service uses, at either end. */
#ifndef HAUL_STORAGE_NODE_H
#define HAUL_STORAGE_NODE_H

#include <string.h>
#include <unistd.h>

#include <haul/haul.h>

/* Where requests and answers come in a row, a sleep between two of them costs both ends: a third of
 * the rate where both run on one host (bench/run fileservice). */
#define STORAGE_SPIN_NS 50000

/* Threads that copy for a client on the same host, which checks each byte as well: one reads and
 * writes 3.9 GB/s, two 6.1 (bench/run fileservice). */
#define STORAGE_COPIERS 2

/* Driven by a thread of the caller's, told of peers; polls a while, and has helpers, unless
 * settings say otherwise. */
static inline void storage_node_config(struct haul_node_config *config) {
  struct haul_setting settings[64];
  size_t count = sizeof settings / sizeof settings[0];
  config->progress = HAUL_PROGRESS_CALLER;
  config->peer_events = 1;
  if (haul_setting_list(config, settings, &count) != 0)
    return; /* opening the node says the same */
  for (size_t i = 0; i < count && i < sizeof settings / sizeof settings[0]; i++) {
    if (strcmp(settings[i].origin, "default") != 0)
      continue;
    if (strcmp(settings[i].name, "spin") == 0)
      config->spin_ns = STORAGE_SPIN_NS;
    else if (strcmp(settings[i].name, "copy_threads") == 0 && sysconf(_SC_NPROCESSORS_ONLN) > 1)
      config->copy_threads = STORAGE_COPIERS;
  }
}

#endif
