/* SPDX-License-Identifier: MIT
 * Reads and writes of a local file, straight to and from peer-to-peer memory of a PCI device:
 *
 *   storage_p2p PATH           a new file at PATH, on the disk that publishes the memory
 *   storage_p2p PATH refused   on another disk, which cannot reach the memory
 *
 * Without such a disk nothing is tested. tests/vm/guest/p2p.sh runs it. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include <xxhash.h>

#include "client.h"
#include "haul/haul.h"
#include "storage/buffers.h"
#include "storage/worker_internal.h"

#define LENGTH ((size_t)8 << 20)

static const char *path;

/* The daemon's parts without its control directory: it takes buffers of other processes alone, and
 * no process can share this memory. */
static struct {
  haul_node *node;
  haul_region *region;
  char *bytes; /* of the region */
  struct files *files;
  struct buffers *buffers;
  struct buffer *buffer;
  struct workers *workers;
  int fd;
  uint64_t inode, handle;
  uint8_t *random; /* the file's bytes */
} t;

static int set_up(void **state) {
  const struct buffer like = {.id = {1}, .uid = getuid(), .length = LENGTH, .descriptor = -1};
  struct buffer mapped = like;
  struct stat stat;
  (void)state;
  assert_works(haul_node_open(NULL, &t.node));
  assert_works(haul_region_alloc(t.node, (struct haul_place){HAUL_P2P, 0}, LENGTH, 0, &t.region));
  mapped.address = t.bytes = haul_region_address(t.region);
  t.random = malloc(LENGTH);
  assert_non_null(t.random);
  for (size_t at = 0; at < LENGTH; at += 256)
    assert_int_equal(getrandom(t.random + at, 256, 0), 256);
  t.fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  assert_true(t.fd >= 0);
  assert_int_equal(pwrite(t.fd, t.random, LENGTH, 0), LENGTH);
  assert_int_equal(fsync(t.fd), 0);
  assert_int_equal(posix_fadvise(t.fd, 0, 0, POSIX_FADV_DONTNEED), 0);
  assert_int_equal(fstat(t.fd, &stat), 0);
  t.inode = stat.st_ino;
  const struct file_open open = {t.inode, t.fd, NULL, getuid(), {true, true}};
  assert_int_equal(files_open(&t.files), 0);
  assert_int_equal(files_add(t.files, &open, &t.handle), 0);
  assert_int_equal(buffers_open(&t.buffers), 0);
  assert_int_equal(buffers_add(t.buffers, &mapped, &t.buffer), 0);
  assert_int_equal(workers_open(t.files, t.buffers, 1, 1, &t.workers), 0);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  workers_close(t.workers);
  /* The table unmaps its buffers, and the release does it once more, with no other thread left. */
  buffers_remove(t.buffers, t.buffer);
  haul_region_release(t.region);
  haul_node_close(t.node);
  buffers_close(t.buffers);
  files_remove(t.files, t.handle);
  files_close(t.files);
  close(t.fd);
  unlink(path);
  free(t.random);
  return 0;
}

/* One operation of a ring; its result. */
static int64_t move(bool reads, uint64_t offset) {
  const struct iov_name name = {.ring = true, .for_read = reads, .priority = RING_NORMAL};
  struct client_memory memory = {.length = ring_bytes(2)};
  struct client client = {.buffer.name.id = {1}};
  struct ring_completion completion;
  struct client_ring *ring;
  sem_t bell;
  memory.memory =
      mmap(NULL, memory.length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(memory.memory != MAP_FAILED);
  assert_true(ring_view_init(&client.view, memory.memory, memory.length));
  sem_init(client.view.semaphore, 1, 0);
  sem_init(&bell, 0, 0);
  client.bell = &bell;
  assert_int_equal(client_ring_new(&name, getuid(), &memory, &ring), 0);
  client_prepare(&client, 0, t.inode, 0, offset, LENGTH);
  workers_add(t.workers, ring);
  assert_true(client_take(&client, &completion, 100000));
  workers_remove(ring);
  client_ring_put(ring);
  return completion.result;
}

static unsigned cached_pages(void) {
  static unsigned char resident[LENGTH / 4096];
  unsigned count = 0;
  void *mapped = mmap(NULL, LENGTH, PROT_READ, MAP_SHARED, t.fd, 0);
  assert_true(mapped != MAP_FAILED);
  assert_int_equal(mincore(mapped, LENGTH, resident), 0);
  munmap(mapped, LENGTH);
  for (size_t i = 0; i < sizeof resident; i++)
    count += resident[i] & 1;
  return count;
}

/* Neither through bounce buffers nor through the page cache. */
static void assert_direct(unsigned operations) {
  const struct workers_counters *counters = workers_counters(t.workers);
  assert_int_equal(counters->direct, operations);
  assert_int_equal(counters->staged, 0);
  assert_int_equal(counters->buffered_file + counters->buffered_alignment, 0);
  assert_int_equal(counters->unpinned, operations); /* io_uring registers no such buffer */
  assert_int_equal(cached_pages(), 0);
}

static void the_disk_reads_into_it_and_writes_from_it(void **state) {
  haul_region *host;
  (void)state;
  memset(t.bytes, 0, LENGTH);
  assert_int_equal(move(true, 0), LENGTH);
  assert_direct(1);
  assert_int_equal(XXH3_64bits(t.bytes, LENGTH), XXH3_64bits(t.random, LENGTH));
  assert_works(haul_region_alloc(t.node, (struct haul_place){HAUL_HOST, 0}, LENGTH, 0, &host));
  assert_works(haul_region_copy(host, 0, t.region, 0, LENGTH, HAUL_FOREVER));
  assert_memory_equal(haul_region_address(host), t.random, LENGTH);
  t.bytes[LENGTH - 1] ^= 1;
  t.random[LENGTH - 1] ^= 1;
  assert_int_equal(move(false, LENGTH), LENGTH);
  assert_direct(2);
  assert_int_equal(pread(t.fd, haul_region_address(host), LENGTH, LENGTH), LENGTH);
  assert_memory_equal(haul_region_address(host), t.random, LENGTH);
  haul_region_release(host);
}

/* The local source of exports and mounts opens files without O_DIRECT. */
static void a_source_reads_into_it_from_the_page_cache(void **state) {
  const struct source_caller caller = {.uid = getuid(), .gid = getgid(), .checked = true};
  const char *name = strrchr(path, '/');
  char folder[PATH_MAX];
  struct source_entry entry;
  struct source_file *file;
  struct source *source;
  (void)state;
  snprintf(folder, sizeof folder, "%.*s", (int)(name - path), path);
  memset(t.bytes, 0, LENGTH);
  assert_int_equal(local_source_open(folder, true, &source), 0);
  assert_int_equal(source->ops->lookup(source, SOURCE_ROOT, name + 1, &entry), 0);
  assert_int_equal(source->ops->open(source, &caller, entry.node, O_RDONLY, &file), 0);
  assert_int_equal(source->ops->read(source, file, t.bytes, LENGTH, 0), LENGTH);
  assert_memory_equal(t.bytes, t.random, LENGTH);
  source->ops->release(source, file);
  source->ops->close(source);
}

/* So nothing but O_DIRECT may count on it. */
static void other_pins_are_refused(void **state) {
  char byte;
  struct iovec mine = {&byte, 1}, span = {t.bytes, 1};
  int ends[2];
  (void)state;
  assert_int_equal(process_vm_readv(getpid(), &mine, 1, &span, 1, 0), -1);
  assert_int_equal(errno, EFAULT);
  assert_int_equal(pipe(ends), 0);
  assert_int_equal(vmsplice(ends[1], &span, 1, SPLICE_F_NONBLOCK), -1);
  assert_int_equal(errno, EREMOTEIO);
  close(ends[0]);
  close(ends[1]);
}

/* The kernel refuses: it knows no way between the two devices (pci_p2pdma_map_type). */
static void another_disk_does_not_reach_it(void **state) {
  (void)state;
  memset(t.bytes, 0, LENGTH);
  assert_int_equal(move(true, 0), -EREMOTEIO);
  assert_direct(1);
}

static bool has_memory(void) {
  struct haul_device devices[64];
  size_t count = COUNT(devices);
  bool found = false;
  haul_node *node;
  assert_works(haul_node_open(NULL, &node));
  assert_works(haul_device_list(node, devices, &count));
  for (size_t i = 0; i < count && i < COUNT(devices); i++)
    found |= devices[i].place.kind == HAUL_P2P;
  haul_node_close(node);
  return found;
}

int main(int count, char **arguments) {
  const struct CMUnitTest refused[] = {
      cmocka_unit_test_setup_teardown(another_disk_does_not_reach_it, set_up, tear_down)};
  const struct CMUnitTest works[] = {
      cmocka_unit_test_setup_teardown(the_disk_reads_into_it_and_writes_from_it, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_source_reads_into_it_from_the_page_cache, set_up,
                                      tear_down),
      cmocka_unit_test_setup_teardown(other_pins_are_refused, set_up, tear_down),
  };
  path = count > 1 ? arguments[1] : NULL;
  if (!path || !has_memory()) {
    printf("skipped all: %s\n", path ? "no PCI device of this host publishes memory"
                                     : "it needs a file on a disk that publishes memory");
    return 77;
  }
  return count > 2 ? cmocka_run_group_tests_name("storage/p2p refused", refused, NULL, NULL)
                   : cmocka_run_group_tests_name("storage/p2p", works, NULL, NULL);
}
