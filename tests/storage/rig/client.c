/* SPDX-License-Identifier: MIT */
#include "client.h"

#include <fcntl.h>
#include <liburing.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "note.h"
#include "support/check.h"

uint8_t rig_byte(uint64_t offset) {
  return (uint8_t)(offset * 131 + (offset >> 9));
}

static void fill_file(int fd) {
  static uint8_t bytes[65536];
  for (uint64_t at = 0; at < PATTERN_BYTES; at += sizeof bytes) {
    for (size_t i = 0; i < sizeof bytes; i++)
      bytes[i] = rig_byte(at + i);
    assert_int_equal(pwrite(fd, bytes, sizeof bytes, (off_t)at), sizeof bytes);
  }
}

bool rig_is_possible(void) {
  struct io_uring uring;
  struct statfs shm;
  int code = io_uring_queue_init(2, &uring, 0);
  if (code)
    printf("skipped all: io_uring is not allowed here: %s\n", strerror(-code));
  else
    io_uring_queue_exit(&uring);
  bool has_shm = statfs("/dev/shm", &shm) == 0 && shm.f_type == TMPFS_MAGIC;
  if (!has_shm)
    printf("skipped all: /dev/shm is no tmpfs here\n");
  return code == 0 && has_shm;
}

uint64_t rig_add_file(struct rig *rig, int fd, uid_t uid, bool reads, bool writes) {
  const struct file_open open = {.inode = rig->inode,
                                 .fd = rig->remote ? -1 : fd,
                                 .remote = rig->remote,
                                 .uid = uid,
                                 .may = {reads, writes}};
  uint64_t handle;
  assert_int_equal(files_add(rig->files, &open, &handle), 0);
  return handle;
}

static struct note note = NOTE_INIT;

const char *rig_note(void) {
  return note_text(&note);
}

static void open_parts(struct rig *rig, unsigned workers, struct source *source) {
  assert_int_equal(files_open(&rig->files), 0);
  rig->handle = rig_add_file(rig, rig->fd, rig->caller.uid, true, true);
  const struct control_config config = {
      .files = rig->files, .workers = workers, .source = source, .log = note_keep, .user = &note};
  assert_int_equal(control_dir_open(&config, &rig->control), 0);
}

void rig_open(struct rig *rig, unsigned workers) {
  struct stat stat;
  *rig = (struct rig){.caller = {getuid(), getgid(), gettid()}};
  snprintf(rig->path, sizeof rig->path, "/var/tmp/haul-storage-XXXXXX"); /* mostly that of a disk */
  rig->fd = mkstemp(rig->path);
  assert_true(rig->fd >= 0);
  fill_file(rig->fd);
  assert_int_equal(fstat(rig->fd, &stat), 0);
  rig->inode = stat.st_ino;
  open_parts(rig, workers, NULL);
}

void rig_open_remote(struct rig *rig, unsigned workers, struct source *source, const char *folder) {
  const struct source_caller caller = {.uid = getuid(), .gid = getgid(), .checked = true};
  struct source_entry entry;
  struct source_file *file;
  *rig = (struct rig){.caller = {getuid(), getgid(), gettid()}};
  snprintf(rig->path, sizeof rig->path, "%.50s/file", folder);
  rig->fd = open(rig->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  assert_true(rig->fd >= 0);
  fill_file(rig->fd);
  assert_int_equal(source->ops->lookup(source, SOURCE_ROOT, "file", &entry), 0);
  assert_int_equal(source->ops->open(source, &caller, entry.node, O_RDWR, &file), 0);
  rig->inode = file->inode;
  rig->remote = remote_file_new(source, file);
  open_parts(rig, workers, source);
}

void rig_close(struct rig *rig) {
  control_dir_close(rig->control);
  files_remove(rig->files, rig->handle);
  remote_file_put(rig->remote);
  files_close(rig->files);
  close(rig->fd);
  unlink(rig->path);
}

uint64_t rig_counter(const struct rig *rig, const char *name) {
  struct control_link entry;
  char text[512];
  assert_int_equal(control_dir_lookup(rig->control, &rig->caller, "haul-counters", &entry), 0);
  assert_int_equal(control_dir_readlink(rig->control, entry.id, text, sizeof text), 0);
  const char *found = strstr(text, name);
  assert_non_null(found);
  return strtoull(found + strlen(name), NULL, 10);
}

int rig_tear_down(void **state) {
  rig_close(*state);
  return 0;
}

int piece_open(struct piece *piece, struct rig *rig, const struct iov_name *name, size_t length) {
  struct control_link entry;
  *piece = (struct piece){.rig = rig, .name = *name, .length = length};
  assert_int_equal(getrandom(piece->name.id, sizeof piece->name.id, 0), sizeof piece->name.id);
  iov_name_format(&piece->name, piece->text);
  snprintf(piece->path, sizeof piece->path, "/dev/shm/hf3fs-iov-%.36s", piece->text);
  int fd = open(piece->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  assert_true(fd >= 0);
  assert_int_equal(ftruncate(fd, (off_t)length), 0);
  if (rig->caller.uid != getuid())
    assert_int_equal(fchown(fd, rig->caller.uid, rig->caller.gid), 0);
  piece->memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  assert_true(piece->memory != MAP_FAILED);
  close(fd);
  int code = control_dir_symlink(rig->control, &rig->caller, piece->text, piece->path, &entry);
  if (code) {
    munmap(piece->memory, length);
    unlink(piece->path);
  }
  return code;
}

void piece_close(struct piece *piece) {
  if (piece->rig->control)
    control_dir_unlink(piece->rig->control, &piece->rig->caller, piece->text);
  munmap(piece->memory, piece->length);
  unlink(piece->path);
}

static sem_t *map_bell(struct rig *rig, uint8_t priority) {
  struct control_link entry;
  char path[256];
  assert_int_equal(
      control_dir_lookup(rig->control, &rig->caller, ring_semaphore_link(priority), &entry), 0);
  assert_int_equal(control_dir_readlink(rig->control, entry.id, path, sizeof path), 0);
  assert_memory_equal(path, "/dev/shm/sem.", 13);
  sem_t *bell = sem_open(path + 13, 0);
  assert_true(bell != SEM_FAILED);
  return bell;
}

void client_open(struct client *client, struct rig *rig, const struct iov_name *how,
                 int32_t entries, size_t buffer) {
  struct iov_name name = *how;
  name.ring = true;
  assert_int_equal(piece_open(&client->buffer, rig, &(struct iov_name){.ring = false}, buffer), 0);
  assert_int_equal(piece_open(&client->ring, rig, &name, ring_bytes(entries)), 0);
  assert_true(ring_view_init(&client->view, client->ring.memory, client->ring.length));
  assert_int_equal(client->view.slots, entries + 1);
  sem_init(client->view.semaphore, 1, 0);
  client->bell = map_bell(rig, name.priority);
}

void client_close(struct client *client) {
  sem_close(client->bell);
  piece_close(&client->ring);
  piece_close(&client->buffer);
}

void client_prepare(struct client *client, int32_t index, uint64_t file, uint64_t buffer_offset,
                    uint64_t offset, uint64_t length) {
  struct ring_view *view = &client->view;
  int32_t head = atomic_load(&view->indices->submit_head);
  if (index >= 0 && index < view->slots) {
    view->records[index] = (struct ring_record){.buffer_offset = buffer_offset,
                                                .file = file,
                                                .offset = offset,
                                                .length = length,
                                                .userdata = (uint64_t)index};
    memcpy(view->records[index].buffer, client->buffer.name.id, 16);
  }
  view->submissions[head] = (struct ring_submission){.index = index, .userdata = (uint64_t)index};
  atomic_store(&view->indices->submit_head, (head + 1) % view->slots);
}

void client_submit(struct client *client) {
  sem_post(client->bell);
}

bool client_take(struct client *client, struct ring_completion *completion, int milliseconds) {
  struct ring_view *view = &client->view;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += milliseconds / 1000;
  until.tv_nsec += milliseconds % 1000 * 1000000;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  int32_t tail = atomic_load(&view->indices->complete_tail);
  while (tail == atomic_load(&view->indices->complete_head))
    if (sem_timedwait(view->semaphore, &until) != 0)
      return false;
  *completion = view->completions[tail];
  atomic_store(&view->indices->complete_tail, (tail + 1) % view->slots);
  return true;
}

int64_t client_do(struct client *client, uint64_t buffer_offset, uint64_t offset, uint64_t length) {
  struct ring_completion completion;
  client_prepare(client, 0, client->ring.rig->inode, buffer_offset, offset, length);
  client_submit(client);
  assert_true(client_take(client, &completion, 10000));
  assert_int_equal(completion.index, 0);
  return completion.result;
}
