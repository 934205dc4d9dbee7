/* SPDX-License-Identifier: MIT
 * Rendezvous of processes that torchrun, MPI or Slurm started together, through the environment
 * variables of the launcher.
 *
 * The conventions of haul.h apply. Every declaration exists since version 0.1.0. */
#ifndef HAUL_WORLD_H
#define HAUL_WORLD_H

#include <haul/haul.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct haul_world haul_world;

/* Waits for all ranks and learns their addresses. Release with haul_world_leave.
 *
 * Rank and size come from RANK and WORLD_SIZE (torchrun), else OMPI_COMM_WORLD_RANK and _SIZE (Open
 * MPI), PMI_RANK and PMI_SIZE (MPICH, Intel MPI), SLURM_PROCID and SLURM_NTASKS. The host of rank 0
 * is MASTER_ADDR, else SLURM_LAUNCH_NODE_IPADDR, else this host. Its port is HAUL_WORLD_PORT, else
 * MASTER_PORT + 1, as torch uses that one itself, else 7421. A node that does not listen on TCP yet
 * listens on the address from which it reaches rank 0; beyond loopback that requires a key, or
 * `insecure`.
 *
 * HAUL_ENOTSUP: no launcher sets these variables. HAUL_EINVAL: their values are invalid.
 * HAUL_EEXIST: another process has this rank. HAUL_EPROTO: rank 0 has another number of ranks.
 * HAUL_ETIMEDOUT: the text counts the ranks that arrived. Also the errors of haul_node_listen and
 * haul_peer_connect. */
HAUL_API int haul_world_join(haul_node *node, haul_deadline until, haul_world **world);
/* Closes the connections that the world made, except references of the caller. The node stays. */
HAUL_API void haul_world_leave(haul_world *world);

HAUL_API unsigned haul_world_rank(const haul_world *world);
HAUL_API unsigned haul_world_size(const haul_world *world);
/* The address that the rank listens on, valid until haul_world_leave; NULL if there is no such
 * rank. */
HAUL_API const char *haul_world_address(const haul_world *world, unsigned rank);

/* Returns a reference to the peer of that rank, to be released with haul_peer_close. Connects on
 * first use, and again after the connection has ended; blocks until `until` for that. Must not be
 * called after haul_node_close: the world does not keep the node. HAUL_ERANGE: there is no such
 * rank, or it is this process. Else the errors of haul_peer_connect. */
HAUL_API int haul_world_peer(haul_world *world, unsigned rank, haul_deadline until,
                             haul_peer **peer);

#ifdef __cplusplus
}
#endif

#endif
