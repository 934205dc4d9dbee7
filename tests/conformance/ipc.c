/* SPDX-License-Identifier: MIT
 * IPC mapping of a GPU's memory that the owner's application may free after the region's release.
 * Peers of the host map it only during copies. The emulated driver aborts an owner that frees
 * memory mapped elsewhere. */
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "support/gpu.h"
#include "support/owner.h"
#include "support/seams.h"

#define MIB   ((uint64_t)1 << 20)
#define BOUND (30 * S)
#define BOTH  (HAUL_READ | HAUL_WRITE)

static struct {
  struct owner owner;
  struct haul_node *user;
  struct haul_peer *peer;
  unsigned descriptors;
} t;

static haul_deadline soon(void) {
  return haul_deadline_in(BOUND);
}

static int set_up(void **state) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  (void)state;
  config.liveness_ns = 3 * S;
  t.descriptors = open_descriptors();
  owner_start(&t.owner, "tcp://127.0.0.1:0", &config);
  assert_works(haul_node_open(&config, &t.user));
  assert_works(haul_peer_connect(t.user, t.owner.address, soon(), &t.peer));
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  haul_peer_close(t.peer);
  haul_node_close(t.user);
  return owner_end(&t.owner);
}

static struct haul_remote *look_up(uint64_t length, unsigned rights) {
  struct haul_remote *remote;
  assert_int_equal(owner_publish(&t.owner, 0, KIND_WRAPPED, length, "ipc", rights), 0);
  assert_works(haul_peer_lookup(t.peer, "ipc", soon(), &remote));
  return remote;
}

static struct haul_path map_path(struct haul_region *local, struct haul_remote *remote,
                                 enum haul_operation operation) {
  struct haul_path paths[HAUL_PATHS_MAX];
  size_t count = HAUL_PATHS_MAX;
  assert_works(haul_explain(local, remote, operation, MIB, NULL, paths, &count));
  for (size_t i = 0; i < count; i++)
    if (strcmp(paths[i].name, "map") == 0)
      return paths[i];
  fail_msg("explain names no map");
  return paths[0];
}

static struct haul_transfer *start(struct haul_remote *remote, struct haul_region *local,
                                   enum haul_operation operation) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, haul_region_length(local)};
  struct haul_transfer *transfer;
  options.only = "map";
  options.deadline = soon();
  assert_works(operation == HAUL_OP_WRITE
                   ? haul_write(remote, local, &piece, 1, &options, &transfer)
                   : haul_read(local, remote, &piece, 1, &options, &transfer));
  return transfer;
}

static int finish(struct haul_transfer *transfer) {
  int code = haul_transfer_wait(transfer, soon());
  haul_transfer_release(transfer);
  return code;
}

static void read_only_exports_are_rejected(void **state) {
  (void)state;
  struct haul_remote *remote = look_up(MIB, HAUL_READ);
  struct haul_region *local = region_make(t.user, KIND_HOST, MIB);
  struct haul_path path = map_path(local, remote, HAUL_OP_READ);
  assert_false(path.open);
  assert_non_null(strstr(path.reason, "read-only"));
  haul_remote_release(remote);
  haul_region_release(local);
}

/* The driver maps memory of other processes only; within a process another path copies. */
static void a_process_cannot_map_its_own_memory(void **state) {
  (void)state;
  struct haul_node *node;
  struct haul_peer *self;
  struct haul_remote *remote;
  char address[160];
  assert_works(haul_node_open(NULL, &node));
  assert_works(haul_node_listen(node, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(node, 0, address, sizeof address));
  struct haul_region *region = region_make(node, KIND_WRAPPED, MIB);
  struct haul_region *local = region_make(t.user, KIND_HOST, MIB);
  assert_works(haul_region_publish(region, "own", BOTH));
  assert_works(haul_peer_connect(t.user, address, soon(), &self));
  assert_works(haul_peer_lookup(self, "own", soon(), &remote));
  struct haul_path path = map_path(local, remote, HAUL_OP_WRITE);
  assert_false(path.open);
  assert_non_null(strstr(path.reason, "of the same process by IPC"));
  struct haul_piece piece = {0, 0, MIB};
  assert_works(haul_write(remote, local, &piece, 1, NULL, NULL));
  haul_remote_release(remote);
  haul_peer_close(self);
  haul_region_release(local);
  region_drop(region, KIND_WRAPPED);
  haul_node_close(node);
}

#define LENDS (BOTH | HAUL_LEND)

static void a_ticket_maps_wrapped_memory(void **state) {
  (void)state;
  struct haul_region *region = region_make(t.user, KIND_WRAPPED, MIB), *other;
  const struct haul_tensor layout = {
      .type = 2, .bits = 32, .lanes = 1, .dimensions = 1, .shape = {4}, .strides = {1}};
  struct haul_ticket ticket;
  int descriptor = 7;
  assert_fails(HAUL_ENOTSUP, haul_region_export(region, BOTH, NULL, &ticket, &descriptor));
  assert_fails(HAUL_EINVAL,
               haul_region_export(region, HAUL_READ | HAUL_LEND, NULL, &ticket, &descriptor));
  assert_fails(HAUL_ENOTSUP, haul_region_export(region, LENDS, &layout, &ticket, &descriptor));
  assert_works(haul_region_export(region, LENDS, NULL, &ticket, NULL));
  assert_works(haul_region_export(region, LENDS, NULL, &ticket, &descriptor));
  assert_int_equal(descriptor, -1);
  assert_fails(HAUL_ENAME, haul_ticket_layout(&ticket, &(struct haul_tensor){0}));
  assert_fails(HAUL_ENOTSUP, haul_region_import(t.user, &ticket, -1, &other));
  assert_non_null(strstr(haul_error_last()->text, "of the same process by IPC"));
  region_drop(region, KIND_WRAPPED);
}

/* Shareable memory is shared by descriptor; other kinds have no IPC. */
static void other_memory_is_rejected(void **state) {
  (void)state;
  struct haul_region *region = region_make(t.user, KIND_SIM, MIB), *host;
  static char bytes[4096];
  struct haul_ticket ticket;
  int descriptor;
  assert_works(haul_region_export(region, LENDS, NULL, &ticket, &descriptor));
  assert_true(descriptor >= 0);
  close(descriptor);
  haul_region_release(region);
  assert_works(haul_region_wrap(t.user, bytes, sizeof bytes, &host));
  assert_fails(HAUL_ENOTSUP, haul_region_export(host, LENDS, NULL, &ticket, &descriptor));
  haul_region_release(host);
}

static void copies_are_direct(void **state) {
  (void)state;
  struct haul_remote *remote = look_up(8 * MIB, BOTH);
  struct haul_region *local = region_make(t.user, KIND_SIM, 8 * MIB);
  struct haul_path path = map_path(local, remote, HAUL_OP_WRITE);
  assert_true(path.open && path.chosen && path.zero_copy);
  assert_int_equal(path.copies_dma, 1);
  assert_int_equal(path.copies_cpu, 0);
  region_fill(t.user, local, 0, 8 * MIB, 5);
  assert_works(finish(start(remote, local, HAUL_OP_WRITE)));
  assert_true(owner_sum(&t.owner, 0, 0, 8 * MIB) == region_sum(t.user, local, 0, 8 * MIB));
  haul_remote_release(remote);
  haul_region_release(local);
  assert_int_equal(owner_release(&t.owner, 0), 0);
}

/* More regions than can be mapped at a time: the others wait. */
static void many_regions_are_mapped_in_turn(void **state) {
  (void)state;
  enum { REGIONS = 48 };
  struct haul_remote *remotes[REGIONS];
  struct haul_transfer *transfers[REGIONS];
  struct haul_region *local = region_make(t.user, KIND_HOST, 4 * MIB);
  char name[16];
  for (unsigned i = 0; i < REGIONS; i++) {
    snprintf(name, sizeof name, "lent%u", i);
    assert_int_equal(owner_publish(&t.owner, i, KIND_WRAPPED, 4 * MIB, name, BOTH), 0);
    assert_works(haul_peer_lookup(t.peer, name, soon(), &remotes[i]));
  }
  for (unsigned i = 0; i < REGIONS; i++)
    transfers[i] = start(remotes[i], local, HAUL_OP_WRITE);
  for (unsigned i = 0; i < REGIONS; i++)
    assert_works(finish(transfers[i]));
  for (unsigned i = 0; i < REGIONS; i++) {
    haul_remote_release(remotes[i]);
    assert_int_equal(owner_release(&t.owner, i), 0);
  }
  haul_region_release(local);
}

static void no_mapping_is_open_at_a_free(void **state) {
  (void)state;
  enum { TRANSFERS = 16 };
  uint64_t seed = test_seed();
  struct haul_region *local = region_make(t.user, KIND_HOST, MIB);
  for (unsigned round = 0; round < (SANITIZED ? 40 : 200); round++) {
    struct haul_transfer *transfers[TRANSFERS];
    struct haul_remote *remote = look_up(MIB, BOTH);
    for (unsigned i = 0; i < TRANSFERS; i++)
      transfers[i] = start(remote, local, round % 2 ? HAUL_OP_READ : HAUL_OP_WRITE);
    nanosleep(&(struct timespec){0, (long)(next_random(&seed) % 1000000)}, NULL);
    assert_int_equal(owner_release(&t.owner, 0), 0);
    for (unsigned i = 0; i < TRANSFERS; i++) {
      int code = finish(transfers[i]);
      assert_true(code == 0 || code == HAUL_ESTALE);
    }
    haul_remote_release(remote);
  }
  haul_region_release(local);
}

/* An owner that closes its node frees its wrapped memory at once. */
static void no_mapping_is_open_when_the_owner_closes(void **state) {
  (void)state;
  enum { TRANSFERS = 8 };
  struct haul_region *local = region_make(t.user, KIND_HOST, 4 * MIB);
  for (unsigned round = 0; round < (SANITIZED ? 5 : 20); round++) {
    struct haul_transfer *transfers[TRANSFERS];
    struct haul_remote *remote = look_up(4 * MIB, BOTH);
    for (unsigned i = 0; i < TRANSFERS; i++)
      transfers[i] = start(remote, local, HAUL_OP_WRITE);
    assert_int_equal(owner_end(&t.owner), 0);
    for (unsigned i = 0; i < TRANSFERS; i++)
      finish(transfers[i]);
    haul_remote_release(remote);
    haul_peer_close(t.peer);
    owner_start(&t.owner, "tcp://127.0.0.1:0", NULL);
    assert_works(haul_peer_connect(t.user, t.owner.address, soon(), &t.peer));
  }
  haul_region_release(local);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
  setenv("HAUL_TEST_WRAPPED", "gpu", 1);
  if (!gpu_is_there())
    return 77;
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(read_only_exports_are_rejected),
      TEST(a_process_cannot_map_its_own_memory),
      TEST(a_ticket_maps_wrapped_memory),
      TEST(other_memory_is_rejected),
      TEST(copies_are_direct),
      TEST(many_regions_are_mapped_in_turn),
      TEST(no_mapping_is_open_at_a_free),
      TEST(no_mapping_is_open_when_the_owner_closes),
  };
  return cmocka_run_group_tests_name("ipc", tests, NULL, NULL);
}
