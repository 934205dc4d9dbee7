/* SPDX-License-Identifier: MIT
 * An etcd of the test's own, on loopback. */
#ifndef HAUL_TESTS_ETCD_H
#define HAUL_TESTS_ETCD_H

#include <stdbool.h>
#include <sys/types.h>

struct etcd {
  pid_t pid;
  unsigned short port, peer_port;
  char folder[64];
  char directory[96]; /* etcd://127.0.0.1:PORT/test */
  const char
      *certificates; /* a folder: there is a second listener, which proves to be etcd by
                        server.pem and server.key, and takes who proves who he is to ca.pem */
  unsigned short secure_port;
};

bool etcd_is_installed(void);
/* Returns once it answers; fails the test if that takes 20 s. */
void etcd_start(struct etcd *etcd);
/* At its old port, with what it had or with nothing. */
void etcd_start_again(struct etcd *etcd, bool empty);
/* Returns once none of its threads runs. */
void etcd_stop(const struct etcd *etcd);
void etcd_go_on(const struct etcd *etcd);
void etcd_kill(struct etcd *etcd);
void etcd_remove(struct etcd *etcd); /* kills it, and its folder goes */

/* Asks it something, whatever it answers: false, with no user's rights. */
bool etcd_ask(const struct etcd *etcd, const char *path, const char *body);
/* Puts a value there by hand. */
void etcd_put(const struct etcd *etcd, const char *key, const char *value);

#endif
