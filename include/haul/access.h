/* SPDX-License-Identifier: MIT
 *
 * Who may reach a node: key files, and the name under which a peer proved who it is.
 *
 * What haul.h says of all its calls holds here. Everything here is there since version 0.1.
 */
#ifndef HAUL_ACCESS_H
#define HAUL_ACCESS_H

#include <haul/haul.h>

#ifdef __cplusplus
extern "C" {
#endif

struct haul_key {
  char name[64];
  char fingerprint[17]; /* 16 hexadecimal digits: tells whether two files have the same key, and
                           nothing about it; "" where there is no OpenSSL */
};

/* Makes a key and writes it to a new file that its owner alone may read. Whoever has the line may
 * connect to a node that has it, and is known there by the name: 1 to 63 printable ASCII bytes
 * without blanks and '#', that do not begin with "uid:". Files may be put together. HAUL_EEXIST,
 * HAUL_EINVAL, HAUL_ESYSTEM. */
HAUL_API int haul_key_new(const char *path, const char *name);

/* The keys in a file: fills up to *count entries and sets *count to how many there are. HAUL_EINVAL
 * (FILE:LINE), HAUL_EINSECURE: others than its owner may read it, or the owner is neither this user
 * nor root; HAUL_ELIMIT: more than 4096 keys, HAUL_ENOMEM. */
HAUL_API int haul_key_list(const char *path, struct haul_key *keys, size_t *count);

/* Who the peer proved to be: the name of its key, the common name of its certificate, or "uid:1000"
 * over a Unix socket, as seen from its server's side; "" where nothing is proved. Stays as long as
 * the peer's handle. */
HAUL_API const char *haul_peer_identity(const haul_peer *peer);

#define HAUL_GRANTS_MAX 256

/* Who may do what: a peer's identity as haul_peer_identity tells it, or "*", everybody who can
 * connect; HAUL_READ, HAUL_WRITE or both. */
struct haul_grant {
  const char *who;
  unsigned rights;
};

/* Publishes the region for these alone: to others the name is as if it were not there. A peer that
 * is named several times has all of its rights. As haul_region_publish else; HAUL_EINVAL also for
 * no grants, or over HAUL_GRANTS_MAX. They are copied. */
HAUL_API int haul_region_publish_to(haul_region *region, const char *name,
                                    const struct haul_grant *grants, size_t count);

#ifdef __cplusplus
}
#endif

#endif
