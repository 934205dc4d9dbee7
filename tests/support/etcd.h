/* SPDX-License-Identifier: MIT
 * An etcd process of the test, on loopback. */
#ifndef HAUL_TESTS_ETCD_H
#define HAUL_TESTS_ETCD_H

#include <stdbool.h>
#include <sys/types.h>

struct etcd {
  pid_t pid;
  unsigned short port, peer_port;
  char folder[64];
  char directory[96];       /* etcd://127.0.0.1:PORT/test */
  const char *certificates; /* a folder: a second listener authenticates with server.pem and
                               server.key, and requires client certificates of ca.pem */
  unsigned short secure_port;
};

bool etcd_is_installed(void);
/* Returns when it responds; fails the test after 20 s. */
void etcd_start(struct etcd *etcd);
/* At its old port, with its former data or none. */
void etcd_start_again(struct etcd *etcd, bool empty);
/* Returns when none of its threads runs. */
void etcd_stop(const struct etcd *etcd);
void etcd_go_on(const struct etcd *etcd);
void etcd_kill(struct etcd *etcd);
void etcd_remove(struct etcd *etcd); /* kills it and removes its folder */

/* Sends a request without a user; false if it fails. */
bool etcd_ask(const struct etcd *etcd, const char *path, const char *body);
/* Stores a value directly. */
void etcd_put(const struct etcd *etcd, const char *key, const char *value);

#endif
