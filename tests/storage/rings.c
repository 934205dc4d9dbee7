/* SPDX-License-Identifier: MIT
 * Rings with valid and invalid contents: the daemon's treatment of every field. */
#include "support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "client.h"

#define MIB ((size_t)1 << 20)

static struct rig rig;
static const struct iov_name reads = {.for_read = true, .priority = RING_NORMAL};
static const struct iov_name writes = {.for_read = false, .priority = RING_NORMAL};

static int set_up(void **state) {
  *state = &rig;
  rig_open(&rig, 2);
  return 0;
}

static void assert_file(const struct client *client, size_t at, uint64_t offset, size_t length) {
  for (size_t i = 0; i < length; i++)
    if ((uint8_t)client->buffer.memory[at + i] != rig_byte(offset + i))
      fail_msg("byte %zu is not the file's", i);
}

static void invalid_fields_complete_with_an_error(void **state) {
  (void)state;
  struct client client;
  client_open(&client, &rig, &reads, 8, MIB);
  const struct {
    uint64_t at, file, offset, length;
    int64_t result;
  } wrong[] = {
      {0, rig.inode, 0, 0, -EINVAL},
      {MIB, rig.inode, 0, 1, -EINVAL},
      {MIB - 1, rig.inode, 0, 2, -EINVAL},
      {0, rig.inode, 0, MIB + 1, -EINVAL},
      {UINT64_MAX, rig.inode, 0, 2, -EINVAL},
      {1, rig.inode, 0, UINT64_MAX, -EINVAL},
      {0, rig.inode, UINT64_MAX, 1, -EINVAL},
      {0, rig.inode, INT64_MAX, 1, -EINVAL},
      {0, rig.inode, (uint64_t)1 << 63, 1, -EINVAL},
      {0, rig.inode + 1, 0, 1, -EBADF},
      {0, 0, 0, 1, -EBADF},
      {0, UINT64_MAX, 0, 1, -EBADF},
  };
  for (size_t i = 0; i < COUNT(wrong); i++) {
    struct ring_completion completion;
    client_prepare(&client, 3, wrong[i].file, wrong[i].at, wrong[i].offset, wrong[i].length);
    client_submit(&client);
    assert_true(client_take(&client, &completion, 10000));
    assert_int_equal(completion.index, 3);
    assert_int_equal(completion.result, wrong[i].result);
  }
  memset(client.buffer.name.id, 7, 16);
  assert_int_equal(client_do(&client, 0, 0, 1), -ENOENT);
  client_close(&client);
}

static void an_invalid_index_completes_with_an_error(void **state) {
  (void)state;
  struct client client;
  const int32_t wrong[] = {-1, 9, INT32_MAX, INT32_MIN};
  client_open(&client, &rig, &reads, 8, MIB);
  for (size_t i = 0; i < COUNT(wrong); i++) {
    struct ring_completion completion;
    client_prepare(&client, wrong[i], rig.inode, 0, 0, 1);
    client_submit(&client);
    assert_true(client_take(&client, &completion, 10000));
    assert_int_equal(completion.index, wrong[i]);
    assert_int_equal(completion.result, -EINVAL);
  }
  assert_int_equal(client_do(&client, 0, 0, 100), 100);
  client_close(&client);
}

/* Other rings, also of the same client, continue. */
static void a_ring_with_invalid_indices_is_dropped(void **state) {
  (void)state;
  const int32_t wrong[] = {-1, 9, INT32_MAX, INT32_MIN};
  struct client good;
  client_open(&good, &rig, &reads, 8, MIB);
  for (size_t i = 0; i < 2 * COUNT(wrong); i++) {
    struct client client;
    client_open(&client, &rig, &reads, 8, MIB);
    atomic_store(i % 2 ? &client.view.indices->complete_tail : &client.view.indices->submit_head,
                 wrong[i / 2]);
    if (i % 2)
      client_prepare(&client, 0, rig.inode, 0, 0, 1);
    client_submit(&client);
    assert_int_equal(client_do(&good, 0, 0, 100), 100);
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    assert_int_equal(atomic_load(&client.view.indices->complete_head), 0);
    client_close(&client);
  }
  client_close(&good);
}

/* Fills the ring with random bytes repeatedly; only this client is affected. */
static void random_bytes_harm_their_client_alone(void **state) {
  (void)state;
  struct client good, bad;
  unsigned seed = 1;
  client_open(&good, &rig, &reads, 8, MIB);
  for (unsigned round = 0; round < 50; round++) {
    client_open(&bad, &rig, round % 2 ? &reads : &writes, 16, MIB);
    for (unsigned again = 0; again < 20; again++) {
      for (size_t i = sizeof(struct ring_indices); i < bad.ring.length; i += 4) {
        int word = rand_r(&seed);
        memcpy(bad.ring.memory + i, &word, round % 3 ? 4 : 1);
      }
      atomic_store(&bad.view.indices->submit_head, rand_r(&seed) % 17);
      atomic_store(&bad.view.indices->complete_tail, rand_r(&seed) % 17);
      client_submit(&bad);
    }
    assert_int_equal(client_do(&good, 0, round, 100), 100);
    assert_file(&good, 0, round, 100);
    client_close(&bad);
  }
  client_close(&good);
}

/* Opens the rig itself, as cmocka installs its own SIGBUS handler at the start of a test. */
static void truncated_memory_ends_its_ring_alone(void **state) {
  struct client good, bad;
  set_up(state);
  client_open(&good, &rig, &reads, 8, MIB);
  for (unsigned which = 0; which < 3; which++) {
    struct ring_completion completion;
    client_open(&bad, &rig, &reads, 64, MIB);
    client_prepare(&bad, 0, rig.inode, 0, 0, MIB);
    const struct piece *piece = which == 0 ? &bad.buffer : &bad.ring;
    assert_int_equal(truncate(piece->path, which == 2 ? 4096 : 0), 0);
    client_submit(&bad);
    if (which == 0) {
      assert_true(client_take(&bad, &completion, 10000));
      assert_int_equal(completion.result, -EFAULT);
    }
    assert_int_equal(client_do(&good, 0, 0, 100), 100);
    client_close(&bad);
  }
  client_close(&good);
  rig_tear_down(state);
}

static void access_modes_of_open_files_are_enforced(void **state) {
  (void)state;
  struct client client;
  int fd = open(rig.path, O_RDONLY);
  client_open(&client, &rig, &writes, 8, MIB);
  files_remove(rig.files, rig.handle);
  assert_int_equal(client_do(&client, 0, 0, 1), -EBADF);
  uint64_t handle = rig_add_file(&rig, fd, rig.caller.uid + 1, true, true);
  assert_int_equal(client_do(&client, 0, 0, 1), -EBADF);
  rig.handle = rig_add_file(&rig, fd, rig.caller.uid, true, false);
  assert_int_equal(client_do(&client, 0, 0, 1), -EACCES);
  files_remove(rig.files, handle);
  close(fd);
  client_close(&client);
}

static void buffers_of_other_users_are_not_found(void **state) {
  (void)state;
  struct client client;
  struct piece other;
  struct rig stranger = rig;
  if (getuid() != 0) {
    fprintf(stderr, "skipped another user's buffer: this is not root\n");
    skip();
  }
  client_open(&client, &rig, &reads, 8, MIB);
  stranger.caller.uid = 12345;
  assert_int_equal(piece_open(&other, &stranger, &(struct iov_name){.ring = false}, 4096), 0);
  memcpy(client.buffer.name.id, other.name.id, 16);
  assert_int_equal(client_do(&client, 0, 0, 1), -ENOENT);
  client_close(&client);
  piece_close(&other);
}

static void reads_return_the_files_data(void **state) {
  (void)state;
  struct client client;
  const struct {
    uint64_t at, offset, length;
  } ranges[] = {{0, 0, 1},        {0, 0, 4096},    {0, 4096, 4096},   {5, 77, 4001},   {0, 0, MIB},
                {4096, 1, 65536}, {1, 4096, 8192}, {0, 3 * MIB, MIB}, {8192, 512, 512}};
  client_open(&client, &rig, &reads, 8, 2 * MIB);
  for (size_t i = 0; i < COUNT(ranges); i++) {
    memset(client.buffer.memory, 0, client.buffer.length);
    assert_int_equal(client_do(&client, ranges[i].at, ranges[i].offset, ranges[i].length),
                     (int64_t)ranges[i].length);
    assert_file(&client, ranges[i].at, ranges[i].offset, ranges[i].length);
    assert_int_equal(client.buffer.memory[ranges[i].at + ranges[i].length], 0);
  }
  client_close(&client);
}

static void reads_at_the_end_are_short(void **state) {
  (void)state;
  struct client client;
  client_open(&client, &rig, &reads, 8, 2 * MIB);
  assert_int_equal(client_do(&client, 0, PATTERN_BYTES - 100, 4096), 100);
  assert_file(&client, 0, PATTERN_BYTES - 100, 100);
  assert_int_equal(client_do(&client, 0, PATTERN_BYTES - 4096, MIB), 4096);
  assert_int_equal(client_do(&client, 0, PATTERN_BYTES, 4096), 0);
  assert_int_equal(client_do(&client, 0, 8 * PATTERN_BYTES, 1), 0);
  /* As if another process truncated the file during the read. */
  assert_int_equal(ftruncate(rig.fd, 5000), 0);
  assert_int_equal(client_do(&client, 0, 4096, 4096), 904);
  client_close(&client);
}

static void holes_read_as_zeros_or_fail(void **state) {
  (void)state;
  struct client client;
  struct iov_name strict = reads;
  strict.flags = RING_NO_HOLES;
  assert_int_equal(fallocate(rig.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, MIB, MIB), 0);
  client_open(&client, &rig, &reads, 8, 2 * MIB);
  memset(client.buffer.memory, 1, MIB);
  assert_int_equal(client_do(&client, 0, MIB, MIB), MIB);
  for (size_t i = 0; i < MIB; i++)
    assert_int_equal(client.buffer.memory[i], 0);
  client_close(&client);
  client_open(&client, &rig, &strict, 8, 2 * MIB);
  assert_int_equal(client_do(&client, 0, MIB, MIB), -ENODATA);
  assert_int_equal(client_do(&client, 0, MIB - 4096, 8192), -ENODATA);
  assert_int_equal(client_do(&client, 0, 0, MIB), MIB);
  assert_int_equal(client_do(&client, 0, PATTERN_BYTES - 100, 4096), 100);
  client_close(&client);
}

static void writes_reach_the_file(void **state) {
  (void)state;
  static char got[MIB];
  const uint64_t flags[] = {0, RING_DURABLE};
  for (size_t i = 0; i < COUNT(flags); i++) {
    struct client client;
    struct iov_name how = writes;
    how.flags = flags[i];
    client_open(&client, &rig, &how, 8, MIB);
    memset(client.buffer.memory, (int)i + 65, MIB);
    assert_int_equal(client_do(&client, 0, 4096, 65536), 65536);
    assert_int_equal(client_do(&client, 3, 100001, 777), 777);
    assert_int_equal(client_do(&client, 0, 2 * PATTERN_BYTES, 5), 5);
    assert_int_equal(pread(rig.fd, got, 65536, 4096), 65536);
    assert_memory_equal(got, client.buffer.memory, 65536);
    assert_int_equal(pread(rig.fd, got, 777, 100001), 777);
    assert_memory_equal(got, client.buffer.memory, 777);
    client_close(&client);
  }
}

/* A write through a ring clears set-user-ID bits as the user's own write(2) would, even if the
 * daemon is root. */
static void writes_clear_the_setuid_bit(void **state) {
  (void)state;
  struct client client;
  struct stat stat;
  client_open(&client, &rig, &writes, 8, MIB);
  for (uint64_t at = 0; at < 2; at++) {
    assert_int_equal(fchmod(rig.fd, 06777), 0);
    assert_int_equal(client_do(&client, at, 4096, 8192),
                     8192); /* direct, and through the page cache */
    assert_int_equal(fstat(rig.fd, &stat), 0);
    assert_int_equal(stat.st_mode & 07777, 0777);
  }
  client_close(&client);
}

/* Thousands of operations in a few entries; each completes once. */
static void a_ring_wraps_many_times(void **state) {
  (void)state;
  const int32_t sizes[] = {1, 3, 64};
  for (size_t s = 0; s < COUNT(sizes); s++) {
    struct client client;
    struct ring_completion completion;
    int32_t entries = sizes[s];
    bool out[65] = {false};
    client_open(&client, &rig, &reads, entries, MIB);
    for (int32_t done = 0, prepared = 0, free = entries; done < 3000; done++) {
      for (int32_t i = 0; i < entries && prepared < 3000 && free > 0; i++) {
        if (out[i])
          continue;
        out[i] = true;
        free--;
        client_prepare(&client, i, rig.inode, (uint64_t)i * 512, (uint64_t)prepared++ * 512, 512);
      }
      client_submit(&client);
      assert_true(client_take(&client, &completion, 10000));
      assert_in_range(completion.index, 0, entries - 1);
      assert_true(out[completion.index]);
      assert_int_equal(completion.result, 512);
      out[completion.index] = false;
      free++;
    }
    client_close(&client);
  }
}

/* A buffer that is used often is registered with io_uring, and the next one may get its slot. */
static void a_reused_buffer_slot_is_not_mixed_up(void **state) {
  (void)state;
  for (uint64_t round = 0; round < 20; round++) {
    struct client client;
    client_open(&client, &rig, round % 3 == 2 ? &writes : &reads, 8, 65536);
    for (uint64_t i = 0; i < 4; i++) {
      uint64_t offset = round * 65536 + i * 4096;
      if (round % 3 == 2) {
        for (size_t k = 0; k < 65536; k++)
          client.buffer.memory[k] = (char)rig_byte(offset + k);
        assert_int_equal(client_do(&client, 0, offset, 65536), 65536);
      } else {
        memset(client.buffer.memory, 0, 65536);
        assert_int_equal(client_do(&client, 0, offset, 65536), 65536);
        assert_file(&client, 0, offset, 65536);
      }
    }
    client_close(&client);
  }
}

int main(void) {
  if (!rig_is_possible())
    return 77;
#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, rig_tear_down)
  const struct CMUnitTest tests[] = {
      TEST(invalid_fields_complete_with_an_error),
      TEST(an_invalid_index_completes_with_an_error),
      TEST(a_ring_with_invalid_indices_is_dropped),
      TEST(random_bytes_harm_their_client_alone),
      cmocka_unit_test(truncated_memory_ends_its_ring_alone),
      TEST(access_modes_of_open_files_are_enforced),
      TEST(buffers_of_other_users_are_not_found),
      TEST(reads_return_the_files_data),
      TEST(reads_at_the_end_are_short),
      TEST(holes_read_as_zeros_or_fail),
      TEST(writes_reach_the_file),
      TEST(writes_clear_the_setuid_bit),
      TEST(a_ring_wraps_many_times),
      TEST(a_reused_buffer_slot_is_not_mixed_up),
  };
  return cmocka_run_group_tests_name("storage/rings", tests, NULL, NULL);
}
