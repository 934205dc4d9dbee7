/* SPDX-License-Identifier: MIT
 * Access control: key files, the identity that a peer has proved, and regions that are published to
 * some identities only.
 *
 * The conventions of haul.h apply. Every declaration exists since version 0.1.0. */
#ifndef HAUL_ACCESS_H
#define HAUL_ACCESS_H

#include <haul/haul.h>

#ifdef __cplusplus
extern "C" {
#endif

struct haul_key {
  char name[64];
  char fingerprint[17]; /* 16 hexadecimal digits that identify the key without revealing it; ""
                           without OpenSSL */
};

/* Generates a key of 256 random bits and writes it to a new file that only its owner can read: one
 * line, NAME and 64 hexadecimal digits. Anyone who has the line can connect to a node that has it,
 * under that name: 1 to 63 printable ASCII bytes without blanks and '#', neither "*" nor beginning
 * with "uid:". Key files can be concatenated. Blocks for the file system. HAUL_EEXIST (the file
 * exists), HAUL_EINVAL (the name), HAUL_ESYSTEM. */
HAUL_API int haul_key_new(const char *path, const char *name);

/* Lists the keys in a file, in its order. Blocks for the file system. HAUL_EINVAL: the file cannot
 * be read, is over 512 KiB, or has no key; or a line is not a key (the object is FILE:LINE).
 * HAUL_EINSECURE: others than its owner can read or write it, or its owner is neither this user nor
 * root. HAUL_ELIMIT: more than 4096 keys. */
HAUL_API int haul_key_list(const char *path, struct haul_key *keys, size_t *count);

/* The identity that the peer has proved: the name of its key, the common name of its certificate,
 * or, on the listening side of a Unix socket, "uid:1000"; "" without proof. Valid as long as the
 * reference to the peer. */
HAUL_API const char *haul_peer_identity(const haul_peer *peer);

#define HAUL_GRANTS_MAX 256

/* Rights of an identity. */
struct haul_grant {
  const char *who; /* as from haul_peer_identity, or "*": every peer */
  unsigned rights; /* HAUL_READ, HAUL_WRITE or both */
};

/* Publishes the region to these identities only; for other peers the name does not exist. Several
 * grants to one identity add up. The grants, 1 to HAUL_GRANTS_MAX, are copied. Otherwise like
 * haul_region_publish, with its errors; HAUL_EINVAL also for an invalid grant. */
HAUL_API int haul_region_publish_to(haul_region *region, const char *name,
                                    const struct haul_grant *grants, size_t count);

#ifdef __cplusplus
}
#endif

#endif
