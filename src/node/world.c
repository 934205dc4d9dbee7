/* SPDX-License-Identifier: MIT
 * Rendezvous of a job's ranks, built on the public calls. Rank 0 publishes a table with a row for
 * each rank. Every other rank writes its address into its row and increments `arrived`; once that
 * is the number of ranks it reads the table and increments `read`. Then rank 0 withdraws the table.
 */
#include <errno.h>
#include <haul/world.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sys.h"
#include "node/listen.h"
#include "node/peer.h"

#define SIZE_MAX_RANKS 100000
#define PORT_DEFAULT   7421
#define PAUSE_MIN      1000000LL /* ns between two polls of the counts; doubled up to PAUSE_MAX */
#define PAUSE_MAX      50000000LL
#define TABLE_HEAD     64u
#define SCRATCH        48u /* offset in the head of a local copy: old values of atomics */
#define ADDRESS_BYTES  160

struct row {
  uint64_t taken; /* incremented by each process that is started with this rank */
  char address[184];
};

/* At the start of the table's head. */
struct counts {
  _Atomic uint64_t arrived, read;
};

struct haul_world {
  struct haul_node *node;
  unsigned rank, size;
  struct row *rows;
  pthread_mutex_t lock; /* guards the next one */
  haul_peer **peers;
};

static const char *const launchers[][2] = {{"RANK", "WORLD_SIZE"},
                                           {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                           {"PMI_RANK", "PMI_SIZE"},
                                           {"SLURM_PROCID", "SLURM_NTASKS"}};

static int read_variable(const char *name, long min, long max, long *number) {
  const char *text = secure_getenv(name);
  char *end;
  errno = 0;
  *number = text ? strtol(text, &end, 10) : -1;
  if (!text || !*text || *end || errno || *number < min || *number > max)
    return error_set(HAUL_EINVAL, 0, name, "set the variable, or start the job with its launcher",
                     "invalid %s '%.40s': expected a number from %ld to %ld", name,
                     text ? text : "", min, max);
  return 0;
}

static int read_rank(struct haul_world *world) {
  for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
    long rank, size;
    if (!secure_getenv(launchers[i][0]) || !secure_getenv(launchers[i][1]))
      continue;
    int code = read_variable(launchers[i][1], 1, SIZE_MAX_RANKS, &size);
    if (code == 0)
      code = read_variable(launchers[i][0], 0, size - 1, &rank);
    if (code)
      return code;
    world->rank = (unsigned)rank;
    world->size = (unsigned)size;
    return 0;
  }
  return error_set(
      HAUL_ENOTSUP, 0, NULL,
      "start it with torchrun, mpirun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT",
      "no launcher has set this process's rank");
}

/* The address of rank 0. Rank 0 of torch listens on MASTER_PORT itself. */
static int read_master(char address[ADDRESS_BYTES]) {
  long port = PORT_DEFAULT, base;
  int code = 0;
  const char *host = secure_getenv("MASTER_ADDR");
  if (!host || !*host)
    host = secure_getenv("SLURM_LAUNCH_NODE_IPADDR");
  if (!host || !*host || strlen(host) >= 120)
    host = "127.0.0.1";
  if (secure_getenv("HAUL_WORLD_PORT"))
    code = read_variable("HAUL_WORLD_PORT", 1, 65535, &port);
  else if (secure_getenv("MASTER_PORT") &&
           (code = read_variable("MASTER_PORT", 1, 65534, &base)) == 0)
    port = base + 1;
  bool bare_6 = strchr(host, ':') && host[0] != '[';
  snprintf(address, ADDRESS_BYTES, bare_6 ? "tcp://[%s]:%ld" : "tcp://%s:%ld", host, port);
  return code;
}

/* Differs between starts of a job, so that a table of an earlier start is not found. */
static void table_name(char *name, size_t size) {
  static const char *const parts[] = {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                                      "SLURM_JOB_ID", "SLURM_STEP_ID"};
  size_t used = (size_t)snprintf(name, size, "haul.world");
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    const char *part = secure_getenv(parts[i]);
    if (part && *part && name_is_valid(part, 40))
      used += (size_t)snprintf(name + used, size - used, ".%s", part);
  }
}

/* The host's address on the route to rank 0, from a datagram socket, which sends nothing. */
static int own_host(const struct address *to, char *host, size_t size) {
  struct address own = {.length = sizeof own.storage};
  char text[64];
  int fd = socket(to->storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  bool known = fd >= 0 && connect(fd, (const struct sockaddr *)&to->storage, to->length) == 0 &&
               getsockname(fd, (struct sockaddr *)&own.storage, &own.length) == 0;
  int system = errno;
  if (fd >= 0)
    close(fd);
  if (!known)
    return error_system(system, "rank 0", "connect");
  address_format(&own, text, sizeof text);
  *strrchr(text, ':') = '\0';
  snprintf(host, size, "%s", text + strlen("tcp://"));
  return 0;
}

static int first_tcp(struct haul_node *node, char address[ADDRESS_BYTES]) {
  int code;
  for (size_t i = 0; (code = haul_node_address(node, i, address, ADDRESS_BYTES)) == 0; i++)
    if (strncmp(address, "tcp://", 6) == 0)
      return 0;
  return code;
}

/* The first TCP listener's address; without one the node begins to listen. */
static int find_own_address(struct haul_world *world, const char *rank0, int64_t until,
                            char address[ADDRESS_BYTES]) {
  struct address to;
  char host[64], listen[96];
  int code = address_parse(rank0, until, &to);
  if (code == 0)
    code = own_host(&to, host, sizeof host);
  if (code)
    return code;
  if (first_tcp(world->node, address) != 0) {
    snprintf(listen, sizeof listen, "tcp://%s:0", host);
    code = haul_node_listen(world->node, listen);
    if (code == 0)
      code = first_tcp(world->node, address);
  }
  if (code == 0)
    listener_set_host(address, ADDRESS_BYTES, host);
  return code;
}

/* If rank 0's address is not one of this host's own (a forwarded one), it listens on all. */
static int listen_as_master(struct haul_world *world, const char *rank0) {
  char any[64];
  int code = haul_node_listen(world->node, rank0);
  if (code != HAUL_EADDRESS)
    return code;
  snprintf(any, sizeof any, "tcp://0.0.0.0%s", strrchr(rank0, ':'));
  return haul_node_listen(world->node, any);
}

static size_t table_bytes(const struct haul_world *world) {
  return TABLE_HEAD + world->size * sizeof(struct row);
}

static int64_t pause_after(int64_t pause) {
  return pause * 2 < PAUSE_MAX ? pause * 2 : PAUSE_MAX;
}

static int timed_out(const struct haul_world *world, uint64_t arrived) {
  return error_set(HAUL_ETIMEDOUT, 0, "world", "see the launcher's log for the other ranks",
                   "%llu of %u ranks arrived in time", (unsigned long long)arrived, world->size);
}

/* Sleeps, or drives a node that its caller drives. */
static void pause_for(const struct haul_world *world, int64_t pause, int64_t until) {
  int64_t end = clock_after(clock_now(), pause);
  if (end > until)
    end = until;
  for (int64_t left; (left = end - clock_now()) > 0;) {
    if (world->node->has_thread)
      nanosleep(&(struct timespec){left / 1000000000, left % 1000000000}, NULL);
    else
      haul_node_progress(world->node, end);
  }
}

/* Rank 0: waits until a count of the table is the number of ranks. */
static int await_count(const struct haul_world *world, const _Atomic uint64_t *count,
                       int64_t until) {
  while (atomic_load(count) < world->size) {
    if (clock_now() >= until)
      return timed_out(world, atomic_load(count));
    pause_for(world, PAUSE_MIN, until);
  }
  return 0;
}

static int serve_table(struct haul_world *world, const char *rank0, const char *name,
                       int64_t until) {
  haul_region *table;
  char address[ADDRESS_BYTES];
  int code = listen_as_master(world, rank0);
  if (code == 0)
    code = find_own_address(world, rank0, until, address);
  if (code == 0)
    code = haul_region_alloc(world->node, (struct haul_place){HAUL_HOST, 0}, table_bytes(world), 0,
                             &table);
  if (code)
    return code;
  char *at = haul_region_address(table);
  memset(at, 0, table_bytes(world));
  struct counts *counts = (struct counts *)(void *)at;
  struct row *rows = (struct row *)(void *)(at + TABLE_HEAD);
  rows[0].taken = 1;
  snprintf(rows[0].address, sizeof rows[0].address, "%s", address);
  atomic_store(&counts->arrived, 1);
  atomic_store(&counts->read, 1);
  code = haul_region_publish(table, name, HAUL_READ | HAUL_WRITE);
  if (code == 0)
    code = await_count(world, &counts->arrived, until);
  if (code == 0)
    memcpy(world->rows, rows, world->size * sizeof *rows);
  if (code == 0)
    code = await_count(world, &counts->read, until);
  haul_region_release(table);
  return code;
}

/* Connects to rank 0 and looks the table up, again and again: rank 0 may start later. */
static int reach_table(const struct haul_world *world, const char *rank0, const char *name,
                       int64_t until, haul_peer **peer, haul_remote **table) {
  *peer = NULL;
  for (int64_t pause = PAUSE_MIN;; pause = pause_after(pause)) {
    int code = *peer ? 0 : haul_peer_connect(world->node, rank0, until, peer);
    if (code == 0)
      code = haul_peer_lookup(*peer, name, until, table);
    bool again = code == HAUL_ECONNECT || code == HAUL_ENAME || code == HAUL_EPEER ||
                 code == HAUL_ELIMIT || code == HAUL_ECLOSED;
    if (!again || clock_now() >= until)
      return code;
    if (code != HAUL_ENAME && *peer) { /* of an earlier start, or at a limit */
      haul_peer_close(*peer);
      *peer = NULL;
    }
    pause_for(world, pause, until);
  }
}

/* The path that any two nodes have, whatever the setting `paths` allows. */
static struct haul_transfer_options over_tcp(void) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = "tcp";
  return options;
}

/* Increments a number in the table; *before is its old value. */
static int increment(haul_remote *table, uint64_t offset, haul_region *copy, uint64_t *before) {
  const struct haul_transfer_options options = over_tcp();
  int code = haul_fetch_add(copy, SCRATCH, table, offset, 1, &options, NULL);
  memcpy(before, (char *)haul_region_address(copy) + SCRATCH, sizeof *before);
  return code;
}

static int enter_row(const struct haul_world *world, haul_remote *table, haul_region *copy,
                     const char *address) {
  struct row *row =
      (struct row *)(void *)((char *)haul_region_address(copy) + TABLE_HEAD) + world->rank;
  uint64_t offset = TABLE_HEAD + world->rank * sizeof *row, before = 0;
  int code = increment(table, offset, copy, &before);
  if (code == 0 && before > 0)
    return error_set(HAUL_EEXIST, 0, "world", "start one process for each rank",
                     "another process has joined as rank %u", world->rank);
  snprintf(row->address, sizeof row->address, "%s", address);
  const struct haul_piece piece = {offset + offsetof(struct row, address),
                                   offset + offsetof(struct row, address), sizeof row->address};
  const struct haul_transfer_options options = over_tcp();
  if (code == 0)
    code = haul_write(table, copy, &piece, 1, &options, NULL);
  if (code == 0)
    code = increment(table, offsetof(struct counts, arrived), copy, &before);
  return code;
}

static int read_rows(const struct haul_world *world, haul_remote *table, haul_region *copy,
                     int64_t until) {
  const struct haul_piece head = {0, 0, 8}, all = {0, 0, table_bytes(world)};
  const struct counts *counts = haul_region_address(copy);
  const struct haul_transfer_options options = over_tcp();
  for (int64_t pause = PAUSE_MIN;; pause = pause_after(pause)) {
    int code = haul_read(copy, table, &head, 1, &options, NULL);
    uint64_t arrived = code ? 0 : atomic_load(&counts->arrived);
    if (code || arrived >= world->size)
      return code ? code : haul_read(copy, table, &all, 1, &options, NULL);
    if (clock_now() >= until)
      return timed_out(world, arrived);
    pause_for(world, pause, until);
  }
}

static int exchange_rows(struct haul_world *world, haul_remote *table, const char *address,
                         int64_t until) {
  haul_region *copy;
  uint64_t before;
  if (haul_remote_length(table) != table_bytes(world))
    return error_set(HAUL_EPROTO, 0, "world", "start all ranks with the same WORLD_SIZE",
                     "rank 0 has another number of ranks");
  int code = haul_region_alloc(world->node, (struct haul_place){HAUL_HOST, 0}, table_bytes(world),
                               0, &copy);
  if (code)
    return code;
  code = enter_row(world, table, copy, address);
  if (code == 0)
    code = read_rows(world, table, copy, until);
  if (code == 0) {
    memcpy(world->rows, (char *)haul_region_address(copy) + TABLE_HEAD,
           world->size * sizeof *world->rows);
    code = increment(table, offsetof(struct counts, read), copy, &before);
  }
  haul_region_release(copy);
  return code;
}

static int use_table(struct haul_world *world, const char *rank0, const char *name, int64_t until) {
  haul_peer *peer;
  haul_remote *table = NULL;
  char address[ADDRESS_BYTES];
  int code = find_own_address(world, rank0, until, address);
  if (code)
    return code;
  code = reach_table(world, rank0, name, until, &peer, &table);
  if (code == 0)
    code = exchange_rows(world, table, address, until);
  haul_remote_release(table);
  haul_peer_close(peer);
  return code;
}

/* Peers wrote the rows: terminates and checks the addresses. */
static int check_rows(const struct haul_world *world) {
  for (unsigned i = 0; i < world->size; i++) {
    world->rows[i].address[sizeof world->rows[i].address - 1] = '\0';
    if (!name_is_valid(world->rows[i].address, sizeof world->rows[i].address))
      return error_set(HAUL_EPROTO, 0, "world", NULL, "rank %u has entered no valid address", i);
  }
  return 0;
}

static int world_join(struct haul_world *world, int64_t until) {
  char rank0[ADDRESS_BYTES], name[NAME_MAX_BYTES + 1];
  int code = read_rank(world);
  if (code == 0)
    code = read_master(rank0);
  if (code)
    return code;
  world->rows = alloc_zero(world->size, sizeof *world->rows);
  world->peers = alloc_zero(world->size, sizeof *world->peers);
  if (!world->rows || !world->peers)
    return error_memory("world");
  table_name(name, sizeof name);
  code = world->rank == 0 ? serve_table(world, rank0, name, until)
                          : use_table(world, rank0, name, until);
  return code ? code : check_rows(world);
}

HAUL_API int haul_world_join(haul_node *node, haul_deadline until, haul_world **out) {
  int code = node_enter("haul_world_join", node && out, "node or world is NULL");
  if (code == 0)
    code = error_if_passed(until, NULL);
  if (code)
    return code;
  struct haul_world *world = alloc_zero(1, sizeof *world);
  if (!world)
    return error_memory("world");
  world->node = node;
  pthread_mutex_init(&world->lock, NULL);
  code = world_join(world, until);
  if (code) {
    struct haul_error error;
    error_save(&error);
    haul_world_leave(world);
    return error_restore(&error);
  }
  *out = world;
  return 0;
}

HAUL_API void haul_world_leave(haul_world *world) {
  if (!world)
    return;
  for (unsigned i = 0; world->peers && i < world->size; i++)
    haul_peer_close(world->peers[i]);
  pthread_mutex_destroy(&world->lock);
  alloc_free(world->peers);
  alloc_free(world->rows);
  alloc_free(world);
}

HAUL_API unsigned haul_world_rank(const haul_world *world) {
  return world ? world->rank : 0;
}

HAUL_API unsigned haul_world_size(const haul_world *world) {
  return world ? world->size : 0;
}

HAUL_API const char *haul_world_address(const haul_world *world, unsigned rank) {
  return world && rank < world->size ? world->rows[rank].address : NULL;
}

/* Connections are made without the lock, so two threads may make one each: the first is kept.
 * `made` may be NULL. Returns a handle of the caller's, or NULL. */
static haul_peer *keep_peer(struct haul_world *world, unsigned rank, haul_peer *made) {
  pthread_mutex_lock(&world->lock);
  haul_peer **slot = &world->peers[rank];
  if (*slot && atomic_load(&(*slot)->base.ended)) {
    haul_peer_close(*slot);
    *slot = NULL;
  }
  if (!*slot)
    *slot = haul_peer_retain(made);
  haul_peer *kept = haul_peer_retain(*slot);
  pthread_mutex_unlock(&world->lock);
  return kept;
}

HAUL_API int haul_world_peer(haul_world *world, unsigned rank, haul_deadline until,
                             haul_peer **peer) {
  haul_peer *made;
  int code = node_enter("haul_world_peer", world && peer, "world or peer is NULL");
  if (code)
    return code;
  if (rank >= world->size || rank == world->rank)
    return error_set(HAUL_ERANGE, 0, "world", NULL,
                     "invalid rank %u: expected one below %u, other than this one", rank,
                     world->size);
  *peer = keep_peer(world, rank, NULL);
  if (*peer)
    return 0;
  code = haul_peer_connect(world->node, world->rows[rank].address, until, &made);
  if (code)
    return code;
  *peer = keep_peer(world, rank, made);
  haul_peer_close(made);
  return 0;
}
