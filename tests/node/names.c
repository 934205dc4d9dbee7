/* SPDX-License-Identifier: MIT
 * Names: publishing, looking up, listing, taking back; the paths and reports behind them; and
 * memory that its owner takes away while others write to it. */
#include "support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "support/owner.h"
#include "support/seams.h"

#define BOUND (20 * S)
#define BOTH  (HAUL_READ | HAUL_WRITE)

static struct {
  struct haul_node *owner, *user;
  struct haul_peer *peer;
  struct haul_region *region;
  unsigned descriptors;
} t;

static haul_deadline soon(void) {
  return haul_deadline_in(BOUND);
}

static int set_up(void **state) {
  char address[160];
  (void)state;
  t.descriptors = open_descriptors();
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.name = "owner";
  config.max_regions = 1010;
  assert_works(haul_node_open(&config, &t.owner));
  assert_works(haul_node_listen(t.owner, "tcp://127.0.0.1:0"));
  assert_works(haul_node_address(t.owner, 0, address, sizeof address));
  assert_works(haul_node_open(NULL, &t.user));
  assert_works(haul_peer_connect(t.user, address, soon(), &t.peer));
  t.region = region_make(t.owner, KIND_HOST, 4096);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  haul_region_release(t.region);
  haul_peer_close(t.peer);
  haul_node_close(t.user);
  haul_node_close(t.owner);
  assert_int_equal(open_descriptors(), t.descriptors);
  assert_int_equal(haul_mappings(), 0);
  return 0;
}

static void impossible_names_are_refused(void **state) {
  (void)state;
  char text[300];
  memset(text, 'n', sizeof text);
  text[256] = '\0';
  static const char *const bad[] = {"",       " ",    "a b",  "tab\t",
                                    "line\n", "\x7f", "\x01", "w\xc3\xa4rme"};
  for (size_t i = 0; i < COUNT(bad); i++) {
    assert_fails(HAUL_EINVAL, haul_region_publish(t.region, bad[i], BOTH));
    assert_fails(HAUL_EINVAL, haul_peer_lookup(t.peer, bad[i], soon(), &(struct haul_remote *){0}));
    assert_non_null(strstr(haul_error_last()->hint, "printable ASCII"));
    assert_fails(HAUL_ENAME, haul_region_unpublish(t.region, bad[i]));
    if (!*bad[i])
      continue; /* the default name of a node */
    struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
    struct haul_node *node;
    config.name = bad[i];
    assert_fails(HAUL_EINVAL, haul_node_open(&config, &node));
    assert_non_null(strstr(haul_error_last()->text, "printable ASCII"));
  }
  assert_fails(HAUL_EINVAL, haul_region_publish(t.region, NULL, BOTH));
  assert_fails(HAUL_EINVAL, haul_region_publish(t.region, text, BOTH));
  assert_fails(HAUL_EINVAL, haul_region_publish(NULL, "name", BOTH));
  assert_fails(HAUL_EINVAL, haul_region_publish(t.region, "name", 0));
  assert_fails(HAUL_EINVAL, haul_region_publish(t.region, "name", 4));
  struct haul_remote *remote;
  assert_fails(HAUL_EINVAL, haul_peer_lookup(t.peer, NULL, soon(), &remote));
  assert_fails(HAUL_EINVAL, haul_peer_lookup(t.peer, text, soon(), &remote));
  assert_fails(HAUL_EINVAL, haul_peer_lookup(NULL, "name", soon(), &remote));
  assert_fails(HAUL_EINVAL, haul_peer_lookup(t.peer, "name", soon(), NULL));
  text[255] = '\0';
  assert_works(haul_region_publish(t.region, text, BOTH));
  assert_works(haul_peer_lookup(t.peer, text, soon(), &remote));
  assert_int_equal(haul_remote_length(remote), 4096);
  haul_remote_release(remote);
}

static void a_name_is_one_nodes_and_one_regions(void **state) {
  (void)state;
  struct haul_region *other = region_make(t.owner, KIND_HOST, 8192);
  struct haul_region *foreign = region_make(t.user, KIND_SIM, 100);
  struct haul_remote *remote;
  assert_works(haul_region_publish(t.region, "name", HAUL_READ));
  assert_fails(HAUL_EEXIST, haul_region_publish(t.region, "name", HAUL_READ));
  assert_fails(HAUL_EEXIST, haul_region_publish(other, "name", BOTH));
  assert_fails(HAUL_ENAME, haul_region_unpublish(other, "name"));
  assert_fails(HAUL_ENAME, haul_region_unpublish(t.region, "nam"));
  assert_fails(HAUL_EINVAL, haul_region_unpublish(t.region, NULL));
  assert_works(haul_region_publish(foreign, "name", BOTH)); /* another node's */
  assert_works(haul_peer_lookup(t.peer, "name", soon(), &remote));
  assert_int_equal(haul_remote_length(remote), 4096);
  assert_int_equal(haul_remote_rights(remote), HAUL_READ);
  assert_int_equal(haul_remote_place(remote).kind, HAUL_HOST);
  haul_remote_release(remote);
  haul_region_release(foreign);
  haul_region_release(other);
}

static void a_name_can_be_taken_back_and_given_again(void **state) {
  (void)state;
  struct haul_remote *before, *after;
  struct haul_region *local = region_make(t.user, KIND_HOST, 8192);
  struct haul_piece piece = {0, 0, 4096};
  assert_works(haul_region_publish(t.region, "name", BOTH));
  assert_works(haul_peer_lookup(t.peer, "name", soon(), &before));
  assert_works(haul_region_unpublish(t.region, "name"));
  assert_fails(HAUL_ENAME, haul_peer_lookup(t.peer, "name", soon(), &after));
  struct haul_region *other = region_make(t.owner, KIND_HOST, 8192);
  assert_works(haul_region_publish(other, "name", BOTH));
  assert_works(haul_peer_lookup(t.peer, "name", soon(), &after));
  assert_int_equal(haul_remote_length(after), 8192);
  region_fill(t.owner, t.region, 0, 4096, 1);
  region_fill(t.user, local, 0, 4096, 2);
  static const char *const ways[] = {"map", "tcp"};
  for (unsigned i = 0; i < 2; i++) { /* the old remote does not reach the new region */
    struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
    options.only = ways[i];
    assert_fails(HAUL_ESTALE, haul_write(before, local, &piece, 1, &options, NULL));
    assert_string_equal(haul_error_last()->object, "name");
    assert_works(haul_write(after, local, &piece, 1, &options, NULL));
  }
  pattern_check(haul_region_address(t.region), 4096, 1);
  pattern_check(haul_region_address(other), 4096, 2);
  haul_region_release(other); /* takes its name back */
  assert_fails(HAUL_ESTALE, haul_write(after, local, &piece, 1, NULL, NULL));
  assert_works(haul_region_publish(t.region, "name", BOTH));
  haul_remote_release(before);
  haul_remote_release(after);
  haul_region_release(local);
}

/* The device's copy is not begun, so the memory may be published again at once. */
static void a_device_leaves_withdrawn_memory_alone(void **state) {
  (void)state;
  struct haul_remote *remote;
  struct haul_region *local = region_make(t.user, KIND_SIM, 4096);
  struct haul_piece piece = {0, 0, 4096};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = "map";
  assert_works(haul_region_publish(t.region, "name", BOTH));
  assert_works(haul_peer_lookup(t.peer, "name", soon(), &remote));
  assert_works(haul_region_unpublish(t.region, "name"));
  region_fill(t.owner, t.region, 0, 4096, 1);
  region_fill(t.user, local, 0, 4096, 2);
  assert_fails(HAUL_ESTALE, haul_write(remote, local, &piece, 1, &options, NULL));
  pattern_check(haul_region_address(t.region), 4096, 1);
  haul_remote_release(remote);
  haul_region_release(local);
}

static void names_are_bounded(void **state) {
  (void)state;
  char name[16];
  for (unsigned i = 0; i < 1010; i++) {
    snprintf(name, sizeof name, "n%u", i);
    assert_works(haul_region_publish(t.region, name, BOTH));
  }
  assert_fails(HAUL_ELIMIT, haul_region_publish(t.region, "one-more", BOTH));
  assert_works(haul_region_unpublish(t.region, "n500"));
  assert_works(haul_region_publish(t.region, "one-more", BOTH));
}

static void lists_have_every_name_in_order(void **state) {
  (void)state;
  static struct haul_published entries[1001];
  size_t count = 0;
  assert_works(haul_peer_list(t.peer, soon(), NULL, &count));
  assert_int_equal(count, 0);
  struct haul_region *device = region_make(t.owner, KIND_SIM, 12345);
  assert_works(haul_region_publish(device, "n-device", HAUL_WRITE));
  count = 5;
  assert_works(haul_peer_list(t.peer, soon(), entries, &count));
  assert_int_equal(count, 1);
  assert_string_equal(entries[0].name, "n-device");
  assert_int_equal(entries[0].length, 12345);
  assert_int_equal(entries[0].place.kind, HAUL_SIM);
  assert_int_equal(entries[0].rights, HAUL_WRITE);
  for (unsigned i = 0; i < 1000; i++) { /* long names: an answer holds few of them */
    char name[256];
    memset(name, 'z', 255);
    snprintf(name, sizeof name, "m%04u", (i * 7) % 1000);
    if (i % 2) {
      name[5] = 'z';
      name[255] = '\0';
    }
    assert_works(haul_region_publish(t.region, name, HAUL_READ));
  }
  const size_t rooms[] = {0, 1, 24, 25, 1000, 1001};
  for (size_t r = 0; r < COUNT(rooms); r++) {
    memset(entries, 0, sizeof entries);
    count = rooms[r];
    assert_works(haul_peer_list(t.peer, soon(), rooms[r] ? entries : NULL, &count));
    assert_int_equal(count, 1001);
    for (size_t i = 1; i < rooms[r]; i++)
      assert_true(strcmp(entries[i - 1].name, entries[i].name) < 0);
  }
  assert_string_equal(entries[1000].name, "n-device");
  assert_fails(HAUL_EINVAL, haul_peer_list(t.peer, soon(), NULL, &(size_t){1}));
  assert_fails(HAUL_EINVAL, haul_peer_list(t.peer, soon(), entries, NULL));
  haul_region_release(device);
}

#define PATHS 3 /* map, rdma, tcp */

static void a_path_that_cannot_be_taken_says_why(void **state) {
  (void)state;
  struct haul_remote *remote;
  struct haul_region *local = region_make(t.user, KIND_HOST, 4096);
  struct haul_piece piece = {0, 0, 4096};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  assert_works(haul_region_publish(t.region, "name", BOTH));
  assert_works(haul_peer_lookup(t.peer, "name", soon(), &remote));
  options.only = "tcp";
  options.flags = HAUL_REQUIRE_ZERO_COPY;
  assert_fails(HAUL_ENOPATH, haul_write(remote, local, &piece, 1, &options, NULL));
  assert_non_null(strstr(haul_error_last()->hint, "not tcp: "));
  assert_non_null(strstr(haul_error_last()->hint, "zero copy"));
  assert_non_null(strstr(haul_error_last()->hint, "not map: "));
  options.only = NULL;
  assert_works(haul_write(remote, local, &piece, 1, &options, NULL)); /* map has none to make */
  haul_remote_release(remote);
  haul_region_release(local);
}

static void a_report_has_every_field(void **state) {
  (void)state;
  struct haul_remote *remote;
  struct haul_region *local = region_make(t.user, KIND_SIM, 8 << 20);
  struct haul_region *large = region_make(t.owner, KIND_HOST, 8 << 20);
  struct haul_piece pieces[2] = {{0, 4 << 20, 3 << 20}, {4 << 20, 0, 3 << 20}};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  char text[2048];
  assert_works(haul_region_publish(large, "large", BOTH));
  assert_works(haul_peer_lookup(t.peer, "large", soon(), &remote));
  static const char *const ways[] = {"map", "tcp"};
  for (unsigned i = 0; i < 2; i++) {
    struct haul_transfer *transfer;
    struct haul_report report = HAUL_REPORT_INIT;
    options.only = ways[i];
    options.flags = HAUL_CHECKSUM;
    assert_works(haul_write(remote, local, pieces, 2, &options, &transfer));
    assert_works(haul_transfer_wait(transfer, soon()));
    assert_works(haul_transfer_report(transfer, &report));
    haul_transfer_release(transfer);
    assert_int_equal(report.status, 0);
    assert_int_equal(report.operation, HAUL_OP_WRITE);
    assert_int_equal(report.bytes, 6 << 20);
    assert_int_equal(report.pieces, 2);
    assert_int_equal(report.slices, 6);
    assert_int_equal(report.checksum, 1);
    assert_true(report.wire_ns > 0 && report.queued_ns >= 0);
    assert_int_equal(report.cpu_ns, 0); /* not measured */
    assert_int_equal(report.from.kind, HAUL_SIM);
    assert_int_equal(report.to.kind, HAUL_HOST);
    assert_string_equal(report.peer, "owner");
    assert_string_equal(report.name, "large");
    assert_int_equal(report.path_count, PATHS);
    const struct haul_path *path = &report.paths[0];
    assert_string_equal(path->name, ways[i]);
    assert_true(path->open && path->chosen && !path->reason[0]);
    assert_int_equal(path->copies_dma, 1); /* by the device's engine, straight or into a stage */
    assert_int_equal(path->copies_cpu, 0);
    assert_int_equal(path->copies_kernel > 0, i == 1);
    assert_int_equal(path->zero_copy, i == 0);
    for (unsigned other = 1; other < PATHS; other++)
      assert_true(report.paths[other].reason[0] && !report.paths[other].open);
    int length = haul_report_format(&report, text, sizeof text);
    assert_int_equal(length, strlen(text));
    assert_non_null(strstr(text, "write 6.00 MiB sim:0 -> owner/large at host"));
    assert_non_null(strstr(text, i ? "not map: " : "not tcp: "));
    assert_non_null(strstr(text, "checksum verified"));
    char small[16];
    assert_int_equal(haul_report_format(&report, small, sizeof small), length);
    assert_int_equal(strlen(small), sizeof small - 1);
    assert_int_equal(haul_report_format(&report, NULL, 0), length);
  }
  struct haul_report report = HAUL_REPORT_INIT;
  assert_fails(HAUL_EINVAL, haul_transfer_report(NULL, &report));
  haul_remote_release(remote);
  haul_region_release(local);
  haul_region_release(large);
}

/* 262,144 times 64 TiB are 2^64. */
static void more_bytes_than_can_be_counted_are_refused(void **state) {
  (void)state;
  static struct haul_piece pieces[HAUL_PIECES_MAX];
  size_t length = (size_t)1 << 46;
  void *bytes = mmap(NULL, length, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  struct haul_region *here, *there;
  struct haul_remote *remote;
  if (bytes == MAP_FAILED) {
    print_message("skipped: 64 TiB cannot be mapped here\n");
    skip();
  }
  for (size_t i = 0; i < HAUL_PIECES_MAX; i++)
    pieces[i] = (struct haul_piece){0, 0, length};
  assert_works(haul_region_wrap(t.user, bytes, length, &here));
  assert_works(haul_region_wrap(t.owner, bytes, length, &there));
  assert_works(haul_region_publish(there, "vast", BOTH));
  assert_works(haul_peer_lookup(t.peer, "vast", soon(), &remote));
  assert_fails(HAUL_ELIMIT, haul_write(remote, here, pieces, HAUL_PIECES_MAX, NULL, NULL));
  haul_remote_release(remote);
  haul_region_release(here);
  haul_region_release(there);
  munmap(bytes, length);
}

static const struct haul_path *path_named(const struct haul_path paths[PATHS], const char *name) {
  for (unsigned i = 0; i < PATHS; i++)
    if (strcmp(paths[i].name, name) == 0)
      return &paths[i];
  fail_msg("no path %s", name);
  return NULL;
}

static void explain_orders_the_paths(void **state) {
  (void)state;
  struct haul_remote *remote;
  struct haul_region *local = region_make(t.user, KIND_HOST, 4096);
  struct haul_path paths[HAUL_PATHS_MAX];
  size_t count = HAUL_PATHS_MAX;
  assert_works(haul_region_publish(t.region, "name", BOTH));
  assert_works(haul_peer_lookup(t.peer, "name", soon(), &remote));
  assert_works(haul_explain(local, remote, HAUL_OP_READ, 4096, NULL, paths, &count));
  assert_int_equal(count, PATHS);
  const struct haul_path *tcp = path_named(paths, "tcp"), *rdma = path_named(paths, "rdma");
  assert_string_equal(paths[0].name, "map");
  assert_true(paths[0].chosen && paths[0].open && tcp->open && !tcp->chosen);
  assert_true(paths[0].cost_ns < tcp->cost_ns);
  assert_non_null(strstr(tcp->reason, " times slower with warm pages"));
  assert_true(rdma->reason[0] && !rdma->chosen); /* open where there is a NIC */
  count = 0;
  assert_works(haul_explain(local, remote, HAUL_OP_READ, 4096, NULL, NULL, &count));
  assert_int_equal(count, PATHS);
  assert_fails(HAUL_EINVAL, haul_explain(local, remote, 3, 1, NULL, paths, &count));
  assert_fails(HAUL_EINVAL, haul_explain(NULL, remote, HAUL_OP_READ, 1, NULL, paths, &count));
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  options.only = "pigeon";
  assert_fails(HAUL_EINVAL, haul_explain(local, remote, HAUL_OP_READ, 1, &options, paths, &count));
  haul_remote_release(remote);
  assert_works(haul_region_publish(t.region, "to-read", HAUL_READ));
  assert_works(haul_peer_lookup(t.peer, "to-read", soon(), &remote));
  assert_fails(HAUL_EACCESS, haul_explain(local, remote, HAUL_OP_WRITE, 1, NULL, paths, &count));
  haul_remote_release(remote);
  haul_region_release(local);
}

static unsigned kernel_copies(struct haul_region *local, struct haul_remote *remote,
                              enum haul_operation operation, uint64_t length) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_path path;
  options.only = "tcp";
  assert_works(haul_explain(local, remote, operation, length, &options, &path, &(size_t){1}));
  assert_string_equal(path.name, "tcp");
  return path.copies_kernel;
}

/* Large writes pass pages of haul's own memory to the socket; all else is copied there too. */
static void explain_counts_the_copies_of_writes(void **state) {
  (void)state;
  struct haul_remote *remote;
  struct haul_region *local = region_make(t.user, KIND_HOST, 1 << 20);
  struct haul_region *wrapped = region_make(t.user, KIND_WRAPPED, 1 << 20);
  assert_works(haul_region_publish(t.region, "name", BOTH));
  assert_works(haul_peer_lookup(t.peer, "name", soon(), &remote));
  assert_int_equal(kernel_copies(local, remote, HAUL_OP_WRITE, 1 << 20), 1);
  assert_int_equal(kernel_copies(local, remote, HAUL_OP_WRITE, 4096), 2);
  assert_int_equal(kernel_copies(wrapped, remote, HAUL_OP_WRITE, 1 << 20), 2);
  assert_int_equal(kernel_copies(local, remote, HAUL_OP_READ, 1 << 20), 2);
  assert_int_equal(kernel_copies(local, remote, HAUL_OP_READ, 4096), 2);
  haul_remote_release(remote);
  region_drop(wrapped, KIND_WRAPPED);
  haul_region_release(local);
}

static uint64_t counter(struct haul_node *node, const char *name) {
  uint64_t value;
  assert_works(haul_counter_read(node, name, &value));
  return value;
}

static void counters_count(void **state) {
  (void)state;
  struct haul_remote *remote;
  uint64_t value;
  struct haul_region *local = region_make(t.user, KIND_HOST, 4096);
  struct haul_piece piece = {0, 0, 1000};
  assert_fails(HAUL_ENAME, haul_counter_read(t.user, "no.such.counter", &value));
  assert_fails(HAUL_EINVAL, haul_counter_read(t.user, NULL, &value));
  assert_fails(HAUL_EINVAL, haul_counter_read(t.user, "pool.hits", NULL));
  assert_works(haul_region_publish(t.region, "name", BOTH));
  assert_int_equal(counter(t.owner, "node.published"), 1);
  assert_int_equal(counter(t.owner, "node.peers"), 1);
  assert_works(haul_peer_lookup(t.peer, "name", soon(), &remote));
  static const char *const ways[] = {"map", "tcp"};
  for (unsigned i = 0; i < 2; i++) {
    struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
    char name[64];
    options.only = ways[i];
    assert_works(haul_write(remote, local, &piece, 1, &options, NULL));
    assert_works(haul_write(remote, local, &piece, 1, &options, NULL));
    assert_works(haul_read(local, remote, &piece, 1, &options, NULL));
    snprintf(name, sizeof name, "path.%s.writes", ways[i]);
    assert_int_equal(counter(t.user, name), 2);
    snprintf(name, sizeof name, "peer.owner.%s.reads", ways[i]);
    assert_int_equal(counter(t.user, name), 1);
    snprintf(name, sizeof name, "path.%s.bytes_out", ways[i]);
    assert_int_equal(counter(t.user, name), 2000);
    snprintf(name, sizeof name, "path.%s.bytes_in", ways[i]);
    assert_int_equal(counter(t.user, name), 1000);
  }
  assert_int_equal(counter(t.owner, "path.tcp.served"), 3);
  haul_remote_release(remote);
  haul_region_release(local);
}

static void start_writes(struct haul_remote *remote, struct haul_region *local, const char *only,
                         struct haul_transfer **transfers, size_t count) {
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  struct haul_piece piece = {0, 0, haul_remote_length(remote)};
  options.only = only;
  for (size_t i = 0; i < count; i++)
    assert_works(haul_write(remote, local, &piece, 1, &options, &transfers[i]));
}

/* In each round writes are under way when the owner releases; the owner puts other pages in the
 * place of the released ones at once, and they stay as they are. */
static void copies_by_a_device_are_counted(void **state) {
  (void)state;
  struct haul_remote *remote;
  struct haul_region *local = region_make(t.user, KIND_SIM, 4096);
  struct haul_piece piece = {0, 0, 4096};
  struct haul_transfer_options options = HAUL_TRANSFER_OPTIONS_INIT;
  uint64_t value;
  options.only = "map";
  assert_works(haul_region_publish(t.region, "name", BOTH));
  assert_works(haul_peer_lookup(t.peer, "name", soon(), &remote));
  assert_works(haul_write(remote, local, &piece, 1, &options, NULL));
  assert_works(haul_counter_read(t.user, "path.map.bytes_out", &value));
  assert_int_equal(value, 4096);
  haul_remote_release(remote);
  haul_region_release(local);
}

static void released_memory_is_not_touched_again(void **state) {
  (void)state;
  enum { TRANSFERS = 16, LENGTH = 1 << 20 };
  static const char *const ways[] = {"map", "tcp"};
  struct owner owner;
  uint64_t seed = test_seed();
  owner_start(&owner, "tcp://127.0.0.1:0", NULL);
  struct haul_peer *peer;
  assert_works(haul_peer_connect(t.user, owner.address, soon(), &peer));
  struct haul_region *local = region_make(t.user, KIND_HOST, LENGTH);
  memset(haul_region_address(local), 0xee, LENGTH);
  for (unsigned round = 0; round < (SANITIZED ? 40 : 300); round++) {
    struct haul_remote *remote;
    struct haul_transfer *transfers[TRANSFERS];
    assert_int_equal(owner_publish(&owner, 0, KIND_WRAPPED, LENGTH, "prey", BOTH), 0);
    assert_works(haul_peer_lookup(peer, "prey", soon(), &remote));
    start_writes(remote, local, ways[round % 2], transfers, TRANSFERS);
    if (next_random(&seed) % 2)
      nanosleep(&(struct timespec){0, (long)(next_random(&seed) % 1000000)}, NULL);
    assert_int_equal(owner_release(&owner, 0), 0);
    for (unsigned i = 0; i < TRANSFERS; i++) {
      int code = haul_transfer_wait(transfers[i], soon());
      if (code != 0 && code != HAUL_ESTALE)
        fail_msg("round %u: %s: %s", round, haul_error_name(code), haul_error_last()->text);
      haul_transfer_release(transfers[i]);
    }
    if (!owner_pages_untouched(&owner, 0))
      fail_msg("round %u: memory was written to after its release, over %s", round,
               ways[round % 2]);
    haul_remote_release(remote);
  }
  haul_region_release(local);
  haul_peer_close(peer);
  assert_int_equal(owner_end(&owner), 0);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], OWNER_MODE) == 0)
    return owner_main();
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
  const struct CMUnitTest tests[] = {
      TEST(impossible_names_are_refused),
      TEST(a_name_is_one_nodes_and_one_regions),
      TEST(a_name_can_be_taken_back_and_given_again),
      TEST(a_device_leaves_withdrawn_memory_alone),
      TEST(names_are_bounded),
      TEST(lists_have_every_name_in_order),
      TEST(a_path_that_cannot_be_taken_says_why),
      TEST(a_report_has_every_field),
      TEST(more_bytes_than_can_be_counted_are_refused),
      TEST(explain_orders_the_paths),
      TEST(explain_counts_the_copies_of_writes),
      TEST(counters_count),
      TEST(copies_by_a_device_are_counted),
      TEST(released_memory_is_not_touched_again),
  };
  return cmocka_run_group_tests_name("names", tests, NULL, NULL);
}
