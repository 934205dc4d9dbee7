/* SPDX-License-Identifier: MIT
 * Stores in processes of their own, and clients of this process. The test's main calls
 * cache_store_main when its first argument is CACHE_STORE_MODE. */
#ifndef HAUL_TESTS_SERVICES_RIG_CACHE_H
#define HAUL_TESTS_SERVICES_RIG_CACHE_H

#include <stdbool.h>
#include <sys/types.h>

#include <haul/cache.h>

#define CACHE_STORE_MODE "store"

struct cache_store {
  pid_t pid;
  int socket;
  char address[160], path[128];
  char directory[96], name[16]; /* "": none */
  bool has_file;                /* a file tier, in PATH.file */
  uint64_t device_capacity;     /* of a device tier at owners_device_place(); 0: none */
  char network[64];             /* name of the network namespace that it runs in; "": the test's */
};

int cache_store_main(void);

/* Starts a store with a new file, or again with that of `store`. `address` NULL: an abstract
 * socket. */
void cache_store_begin(struct cache_store *store, const char *address, uint64_t capacity);
/* With a file tier. */
void cache_store_begin_tiers(struct cache_store *store, const char *address, uint64_t capacity,
                             uint64_t file_capacity);
/* With a device tier, by default on the emulated accelerator; file_capacity 0: without a file tier.
 */
void cache_store_begin_device(struct cache_store *store, const char *address,
                              uint64_t device_capacity, uint64_t capacity, uint64_t file_capacity);
/* Registered under this name, with a lease of 2 s. */
void cache_store_begin_named(struct cache_store *store, const char *directory, const char *name,
                             uint64_t capacity);
/* The same in a network namespace of ip-netns(8), without a key. */
void cache_store_begin_in(struct cache_store *store, const char *network, const char *address,
                          uint64_t capacity);
void cache_store_again(struct cache_store *store);
int cache_store_end(struct cache_store *store); /* its exit status; the file stays */
void cache_store_kill(struct cache_store *store);
void cache_store_forget(struct cache_store *store); /* removes the file */

/* For the thread sanitizer: readers over tcp race with a store by design, and verify what they got.
 * The kernel reads the memory for a socket within sendmsg, which the sanitizer takes for an access
 * of the process. */
void cache_expect_races(void *address, size_t length);

/* A path in memory, or in /tmp, that is unique to this process. */
void cache_path(char path[128]);

struct cache_client {
  haul_node *node;
  haul_cache *cache;
  haul_region *region; /* host memory, attached */
  uint8_t *bytes;
};

/* `only` is the path that it uses, or NULL. Its members are the stores, or, if the first one is
 * registered, those in the directory. */
void cache_client_begin(struct cache_client *client, const struct cache_store *stores, size_t count,
                        unsigned replicas, const char *only, size_t length);
void cache_client_end(struct cache_client *client);

/* One key: the calls of cache.h for `length` bytes at `offset` of the client's region. */
int cache_put(struct cache_client *client, const char *key, uint64_t offset, uint64_t length,
              unsigned flags);
int cache_get(struct cache_client *client, const char *key, uint64_t offset, uint64_t *length);
int cache_exists(struct cache_client *client, const char *key);
int cache_remove(struct cache_client *client, const char *key);
int cache_pin(struct cache_client *client, const char *key, unsigned seconds);

/* A store in this process, and a client of it over tcp. */
struct cache_here {
  haul_node *node;
  haul_cache_store *store;
  struct cache_store seen; /* as the client connects to it */
  struct cache_client client;
};
/* With this capacity; also of a tier at `device`, unless that is NULL. */
void cache_here_begin(struct cache_here *here, uint64_t capacity, const struct haul_place *device);
void cache_here_end(struct cache_here *here);

#endif
