/* SPDX-License-Identifier: MIT
 *
 * Processes that were started together, by torchrun, MPI or Slurm, find each other through what
 * these put into the environment.
 *
 * What haul.h says of all its calls holds here. Everything here is there since version 0.1.
 */
#ifndef HAUL_WORLD_H
#define HAUL_WORLD_H

#include <haul/haul.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct haul_world haul_world;

/* Waits for all ranks, and learns their addresses. Who this is comes from RANK and WORLD_SIZE
 * (torchrun), OMPI_COMM_WORLD_RANK and _SIZE (Open MPI), PMI_RANK and PMI_SIZE (MPICH, Intel MPI)
 * or SLURM_PROCID and SLURM_NTASKS; where rank 0 is, from MASTER_ADDR, else
 * SLURM_LAUNCH_NODE_IPADDR, else it is this host. There rank 0 listens on port HAUL_WORLD_PORT,
 * else MASTER_PORT + 1, as that one is torch's own, else 7421. A node that listens nowhere yet
 * listens at the address that it reaches rank 0 from; beyond loopback it needs a key, or
 * `insecure`.
 *
 * Blocks until `until`. HAUL_ENOTSUP: no such variables; HAUL_EINVAL: they contradict themselves;
 * HAUL_EEXIST: another process has this rank; HAUL_EPROTO: rank 0 counts other ranks;
 * HAUL_ETIMEDOUT says how many came; those of haul_node_listen and haul_peer_connect. */
HAUL_API int haul_world_join(haul_node *node, haul_deadline until, haul_world **world);
/* Closes the connections that it made. `node` is still there. */
HAUL_API void haul_world_leave(haul_world *world);

HAUL_API unsigned haul_world_rank(const haul_world *world);
HAUL_API unsigned haul_world_size(const haul_world *world);
/* Where the rank listens; stays as long as the world. NULL past the last. */
HAUL_API const char *haul_world_address(const haul_world *world, unsigned rank);

/* The peer of that rank, to be closed by the caller: connected when it is first asked for, and
 * again when the connection ended. HAUL_ERANGE: there is no such rank, or it is this one; else as
 * haul_peer_connect. */
HAUL_API int haul_world_peer(haul_world *world, unsigned rank, haul_deadline until,
                             haul_peer **peer);

#ifdef __cplusplus
}
#endif

#endif
