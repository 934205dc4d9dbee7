/* SPDX-License-Identifier: MIT
 * One source, many receivers: each receiver passes on what it has while it receives the rest, so
 * that the source's link carries the bytes about once. In libhaul-services (pkg-config
 * haul-services).
 *
 * A source publishes versions of a range of bytes under a name. Receivers read it in chunks, each
 * from the member before it in a chain, whose order keeps members of one host together. A member
 * that is gone, hangs or is slow is passed over. A chunk counts, and is passed on, once its XXH3
 * equals the source's. That finds errors, not a peer that forges collisions: give keys to trusted
 * peers only.
 *
 * Members reach each other by transfers alone: no messages, no threads. A receiver serves others
 * whenever its node makes progress. The names NAME.head, NAME.members, NAME.V.sums, NAME.V.data and
 * NAME.V.have of a node belong to its broadcast NAME, V being a version.
 *
 * The conventions of haul.h apply, but that one thread at a time uses a handle. Every declaration
 * exists since version 0.1.0. */
#ifndef HAUL_BROADCAST_H
#define HAUL_BROADCAST_H

#include <haul/haul.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The part of this node in a broadcast: its source or a receiver. */
typedef struct haul_broadcast haul_broadcast;

struct haul_broadcast_options {
  size_t size;      /* sizeof(struct haul_broadcast_options), set by the initializer */
  unsigned members; /* source: receivers at a time, at most 65536; 0: 1024 */
  uint64_t chunk;   /* source: bytes, a power of two from 4 KiB to 1 GiB; 0: by the length, 64 KiB
                       to 4 MiB, so that a chain of a hundred is filled in a tenth of the time */
  const char *address; /* receiver: where other members reach this node; NULL: the first address
                          that it listens on. A node that does not listen passes nothing on */
  const char *member;  /* receiver: its name in lists, 1 to 63 bytes; NULL: HOST:PID. It replaces an
                          earlier receiver of that name on its host */
  unsigned in_flight;  /* receiver: chunks that are read at a time, at most 64; 0: 4 MiB, 4 to 16 */
  /* Receiver: called by haul_broadcast_receive, unless NULL, some ten times a second with the bytes
   * that are there. A result other than 0 ends that call with HAUL_ECANCELED. */
  int (*progress)(void *user, uint64_t bytes);
  void *user;
};

#define HAUL_BROADCAST_OPTIONS_INIT                                                                \
  { sizeof(struct haul_broadcast_options), 0, 0, NULL, NULL, 0, NULL, NULL }

/* Becomes the source of `name`, which has 1 to 200 bytes, for those peers that may use the node.
 * `options` may be NULL. Release with haul_broadcast_close, before the node is closed. HAUL_EEXIST:
 * this node takes part in a broadcast of that name. */
HAUL_API int haul_broadcast_open(haul_node *node, const char *name,
                                 const struct haul_broadcast_options *options,
                                 haul_broadcast **broadcast);

/* Publishes the region as the next version, and its number in *version: the microseconds since
 * 1970, so that numbers grow over restarts of a source. NULL publishes a version without bytes.
 * Blocks while the checksums are computed, at most until `until`.
 *
 * The version before stays available, as receivers may still read it; the one before that is
 * withdrawn. The bytes of an available version must not change, nor its region be released: call
 * haul_broadcast_withdraw first. HAUL_EBUSY: the region is that of an available version. Else as
 * haul_region_publish and haul_region_copy. */
HAUL_API int haul_broadcast_publish(haul_broadcast *broadcast, haul_region *region,
                                    haul_deadline until, uint64_t *version);

/* Ends the service of a version by this node, whether source or receiver, and of all older ones; 0:
 * of all. Afterwards no peer accesses their regions. Receivers that lack chunks find them at other
 * members. Blocks as haul_region_unpublish. */
HAUL_API int haul_broadcast_withdraw(haul_broadcast *broadcast, uint64_t version);

/* Becomes a receiver of the broadcast `name` of the node at `address` (haul_peer_connect). Blocks
 * until the source has responded. HAUL_ENAME: that node is not its source. HAUL_ELIMIT: it has no
 * room for a member more. HAUL_EPROTO, and the errors of haul_peer_connect, haul_read and
 * haul_region_publish. */
HAUL_API int haul_broadcast_join(haul_node *node, const char *address, const char *name,
                                 const struct haul_broadcast_options *options, haul_deadline until,
                                 haul_broadcast **broadcast);

struct haul_broadcast_version {
  uint64_t number; /* 0: none */
  uint64_t length, chunk;
};

/* Waits for a version newer than `after`, the number of the last one received or 0. Looks ten times
 * a second. HAUL_ETIMEDOUT: none by `until`. If the connection to the source ended, connects again
 * until then, and fails as haul_peer_connect. */
HAUL_API int haul_broadcast_next(haul_broadcast *broadcast, uint64_t after, haul_deadline until,
                                 struct haul_broadcast_version *version);

#define HAUL_BROADCAST_KEEP  1u /* keep chunks of the region that are right already */
#define HAUL_BROADCAST_NEWER 2u /* fail with HAUL_ESTALE once the source has a newer version */

struct haul_broadcast_report {
  size_t size; /* sizeof(struct haul_broadcast_report), set by the initializer */
  uint64_t version, bytes;
  uint64_t kept;       /* bytes that the region had already (HAUL_BROADCAST_KEEP) */
  uint64_t retries;    /* chunks read again: of feeders that left, were late or sent wrong bytes */
  uint64_t corrupt;    /* of these, whose checksum was wrong */
  int64_t duration_ns; /* of the call */
};

#define HAUL_BROADCAST_REPORT_INIT                                                                 \
  { sizeof(struct haul_broadcast_report), 0, 0, 0, 0, 0, 0 }

/* Receives a version, as haul_broadcast_next gave it, into the first bytes of a region of any
 * place, NULL if it has none. Returns 0 once all bytes are there and right; the region is the
 * version, and never has a part of another one. Until then its bytes are undefined.
 *
 * Double buffering: receive each version into the region that does not have the current one, and
 * use the new one after the return. In place: receive into the same region; the older version ends
 * first. From the call on other members read its chunks, until haul_broadcast_withdraw, the
 * second next call, one into the same region, or haul_broadcast_close. Until then the region must
 * not change, nor be released. A failed call withdraws the version. It waits up to 5 s for reads
 * from members that hang: later ones may still change the region, until it is released.
 *
 * If a newer version is published meanwhile, this one is completed, from members that have it; with
 * HAUL_BROADCAST_NEWER the call fails with HAUL_ESTALE. HAUL_ESTALE also if neither the source nor
 * a member that is known has the chunks any more: some seconds after the source withdrew the
 * version, or ended, so that its node is gone and its address refuses connections. A source that
 * does not respond is waited for. HAUL_ETIMEDOUT: the text counts the chunks that are missing.
 * HAUL_ECHECKSUM: the source sends wrong bytes again and again, as they changed. HAUL_EEXIST: the
 * node has this version in another region; withdraw it first, or receive into that region. `report`
 * may be NULL and is filled on failure, too. */
HAUL_API int haul_broadcast_receive(haul_broadcast *broadcast,
                                    const struct haul_broadcast_version *version,
                                    haul_region *region, unsigned flags, haul_deadline until,
                                    struct haul_broadcast_report *report);

/* A member that chunks came from, or that was passed over, in the last haul_broadcast_receive, or
 * so far in the one that calls `progress`. */
struct haul_broadcast_feeder {
  char name[64]; /* of its node */
  char path[16]; /* of the last chunk: "map", "rdma", "tcp" */
  int source;    /* 1: the source */
  uint64_t bytes;
  uint64_t retries; /* chunks that had to be read again */
  char reason[128]; /* why it was passed over last, or "" */
};

HAUL_API int haul_broadcast_feeders(haul_broadcast *broadcast,
                                    struct haul_broadcast_feeder *feeders, size_t *count);

enum haul_broadcast_state {
  HAUL_BROADCAST_WAITING = 1, /* joined, receives nothing */
  HAUL_BROADCAST_RECEIVING = 2,
  HAUL_BROADCAST_COMPLETE = 3,
  HAUL_BROADCAST_SILENT = 4, /* has reported nothing for 5 s: see haul_broadcast_members */
  HAUL_BROADCAST_LEFT = 5
};

/* What a receiver reports to the source, unverified. */
struct haul_broadcast_member {
  char name[64], address[96]; /* of its node; "" if it does not listen */
  int state;                  /* enum haul_broadcast_state */
  uint64_t version, bytes;    /* complete bytes of that version */
  uint64_t retries;
  int64_t duration_ns; /* since it began to receive, final when it is complete */
  char feeder[64];     /* name of the node that it reads from, "" if from none */
  char path[16];
};

/* Lists the receivers at the source, in the order of the chain. Receivers report twice a second
 * while they receive or wait in haul_broadcast_next; one that reports no more is listed as silent,
 * until another member finds it gone. Those that left come last, until others take their places.
 * Rebuilds a list that a peer damaged, as haul_broadcast_publish does. Does not block. HAUL_EINVAL:
 * not the source. */
HAUL_API int haul_broadcast_members(haul_broadcast *broadcast,
                                    struct haul_broadcast_member *members, size_t *count);

/* Leaves, or ends the broadcast at its source: members that have the bytes go on among themselves.
 * Withdraws all names; regions stay the caller's. */
HAUL_API void haul_broadcast_close(haul_broadcast *broadcast);

#ifdef __cplusplus
}
#endif

#endif
