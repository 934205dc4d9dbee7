/* SPDX-License-Identifier: MIT
 * A mount for USRBIO clients: the ioctls, 3fs-virt, and a ring from its registration to the death
 * of its process. The clients are other processes. */
#include "support/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <haul/usrbio.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "calls.h"
#include "mounted.h"
#include "support/child.h"

#define BUFFER  "00112233-4455-6677-8899-aabbccddee01"
#define RING    "00112233-4455-6677-8899-aabbccddee02"
#define IOVS    "3fs-virt/iovs"
#define ENTRIES 8

static struct mounted mounted;
static struct call_holes holes;

static int set_up_with(const char *const *options) {
  mounted_make(&mounted);
  folder_put(mounted.source, "file", "hello");
  assert_int_equal(mkdir(at_source(&mounted, "folder"), 0755), 0);
  mounted_start(&mounted, options);
  return 0;
}

static int set_up(void **state) {
  const char *const options[] = {"--name", "weights", NULL};
  *state = &mounted;
  return set_up_with(options);
}

static int set_up_read_only(void **state) {
  const char *const options[] = {"--read-only", NULL};
  *state = &mounted;
  return set_up_with(options);
}

static int error_of(int result) {
  return result < 0 ? errno : 0;
}

static int open_at(const char *name, int flags) {
  int fd = open(at_point(&mounted, name), flags | O_CLOEXEC);
  assert_true(fd >= 0);
  return fd;
}

/* Opens a file or folder for one ioctl. */
static int call_on(const char *name, int flags, unsigned long command, void *argument) {
  int fd = open_at(name, flags);
  int failed = error_of(ioctl(fd, command, argument));
  close(fd);
  return failed;
}

static int link_from(const char *name, int flags, uint64_t folder, const char *link) {
  struct call_link call = {.folder = folder};
  memcpy(call.name, link, strlen(link));
  return call_on(name, flags, CALL_LINK, &call);
}

static uint64_t number_of(const char *name) {
  struct stat stat_of;
  assert_int_equal(stat(at_point(&mounted, name), &stat_of), 0);
  return stat_of.st_ino;
}

static void links_need_an_existing_folder_and_a_valid_name(void **state) {
  (void)state;
  uint64_t folder = number_of("folder");
  struct call_link call = {.folder = folder};
  memset(call.name, 'n', sizeof call.name); /* without a zero byte */
  assert_int_equal(call_on("file", O_RDONLY, CALL_LINK, &call), ENAMETOOLONG);
  assert_int_equal(link_from("file", O_RDONLY, folder, ""), EINVAL);
  assert_int_equal(link_from("file", O_RDONLY, folder, ".."), EINVAL);
  assert_int_equal(link_from("file", O_RDONLY, folder, "../file2"), EINVAL);
  assert_int_equal(link_from("file", O_RDONLY, number_of("file"), "link"), ENOTDIR);
  assert_int_equal(link_from("file", O_RDONLY, 0, "link"), ESTALE);
  assert_int_equal(link_from("file", O_RDONLY, UINT64_MAX, "link"), EPERM);
  assert_int_equal(link_from("file", O_RDONLY, number_of("3fs-virt/iovs"), "link"), EPERM);
  assert_int_equal(link_from("file", O_RDONLY, number_of("."), "3fs-virt"), EPERM);
  assert_int_equal(link_from("folder", O_RDONLY, folder, "link"), EPERM);
  assert_int_equal(call_on("file", O_RDONLY, CALL_LINK, NULL), EFAULT);
  assert_int_equal(link_from("file", O_RDONLY, folder, "link"), 0);
  assert_int_equal(link_from("file", O_RDONLY, folder, "link"), EEXIST);
  assert_int_equal(number_of("folder/link"), number_of("file"));
}

/* `folder` is named twice, as hf3fs_utils does: by the descriptor and by its number. */
static int move_name(const char *folder, const char *name, uint64_t to, const char *new_name,
                     bool to_trash) {
  struct call_move call = {.folder = number_of(folder), .new_folder = to, .to_trash = to_trash};
  strcpy(call.name, name);
  strcpy(call.new_name, new_name);
  return call_on(folder, O_RDONLY, CALL_MOVE, &call);
}

static int remove_name(const char *folder, const char *name, bool recursive) {
  struct call_remove call = {.folder = number_of(folder), .recursive = recursive};
  strcpy(call.name, name);
  return call_on(folder, O_RDONLY, CALL_REMOVE, &call);
}

static bool is_there(const char *name) {
  return access(at_point(&mounted, name), F_OK) == 0;
}

/* The kernel has cached the old names before. */
static void moved_names_are_seen_at_once(void **state) {
  (void)state;
  uint64_t number = number_of("file"), folder = number_of("folder");
  assert_int_equal(move_name(".", "file", folder, "moved", false), 0);
  assert_false(is_there("file"));
  assert_int_equal(number_of("folder/moved"), number);
  assert_int_equal(move_name("folder", "moved", number_of("."), "file", false), 0);
  assert_false(is_there("folder/moved"));
  folder_put(mounted.point, "other", "other");
  assert_int_equal(move_name(".", "file", number_of("."), "other", true), EEXIST);
  assert_int_equal(move_name(".", "file", number_of("."), "other", false), 0);
  assert_int_equal(number_of("other"), number);
  assert_int_equal(move_name(".", "other", number_of("."), "file", false), 0);
  assert_int_equal(move_name(".", "folder", number_of("."), "of-late", false), 0);
  assert_false(is_there("folder"));
  assert_int_equal(number_of("of-late"), folder);
  assert_int_equal(move_name(".", "of-late", folder, "inner", false), EINVAL);
}

static void moves_need_valid_names_and_known_folders(void **state) {
  (void)state;
  struct call_move call = {.folder = number_of("."), .new_folder = number_of("."), .name = "file"};
  uint64_t root = number_of(".");
  assert_int_equal(move_name(".", "absent", root, "new", false), ENOENT);
  assert_int_equal(move_name(".", "file", root, "", false), EINVAL);
  assert_int_equal(move_name(".", "file", root, "..", false), EINVAL);
  assert_int_equal(move_name(".", "file", root, "folder/new", false), EINVAL);
  assert_int_equal(move_name(".", "folder/../file", root, "new", false), EINVAL);
  assert_int_equal(move_name(".", "file", number_of("file"), "new", false), ENOTDIR);
  assert_int_equal(move_name(".", "file", 0, "new", false), ESTALE);
  assert_int_equal(move_name(".", "file", UINT64_MAX, "new", false), EPERM);
  assert_int_equal(move_name(".", "file", number_of("3fs-virt/iovs"), "new", false), EPERM);
  assert_int_equal(move_name(".", "file", root, "3fs-virt", false), EPERM);
  assert_int_equal(move_name(".", "3fs-virt", root, "new", false), EPERM);
  assert_int_equal(move_name("3fs-virt", "iovs", root, "new", false), EPERM);
  memset(call.new_name, 'n', sizeof call.new_name); /* without a zero byte */
  assert_int_equal(call_on(".", O_RDONLY, CALL_MOVE, &call), ENAMETOOLONG);
  memset(call.name, 'n', sizeof call.name);
  assert_int_equal(call_on(".", O_RDONLY, CALL_MOVE, &call), ENAMETOOLONG);
  call = (struct call_move){.folder = root, .new_folder = root, .name = "file", .new_name = "new"};
  assert_int_equal(call_on("folder", O_RDONLY, CALL_MOVE, &call), EINVAL);
  assert_int_equal(call_on("file", O_RDONLY, CALL_MOVE, &call), ENOTDIR);
  assert_int_equal(call_on(".", O_RDONLY, CALL_MOVE, NULL), EFAULT);
  assert_true(is_there("file"));
}

static void names_are_removed_with_all_that_they_contain(void **state) {
  (void)state;
  char name[PATH_MAX] = "tree";
  assert_int_equal(remove_name(".", "absent", true), ENOENT);
  assert_int_equal(remove_name(".", "3fs-virt", true), EPERM);
  assert_int_equal(remove_name(".", "..", true), EINVAL);
  assert_int_equal(remove_name(".", "folder/inner", true), EINVAL);
  for (int level = 0; level < 100; level++) {
    assert_int_equal(mkdir(at_source(&mounted, name), 0700), 0);
    if (level % 10 == 0) {
      char full[PATH_MAX + 8];
      snprintf(full, sizeof full, "%s/file", name);
      folder_put(mounted.source, full, "text");
    }
    strcat(name, "/inner");
  }
  assert_int_equal(symlink("../file", at_source(&mounted, "tree/link")), 0);
  assert_int_equal(remove_name(".", "tree", false), ENOTEMPTY);
  assert_true(is_there("tree/inner/inner"));
  assert_int_equal(remove_name("tree", "link", true), 0);
  assert_int_equal(symlink("..", at_source(&mounted, "tree/link")), 0);
  assert_int_equal(remove_name(".", "tree", true), 0);
  assert_false(is_there("tree"));
  assert_true(is_there("file"));
  assert_int_equal(remove_name(".", "file", false), 0);
  assert_false(is_there("file"));
  assert_int_equal(remove_name(".", "folder", false), 0);
}

static pid_t other; /* a process that uses the mount, too; 0: none */

/* Until it is killed, the test ends, or the mount ends. */
static void use_names(pid_t parent) {
  char name[64];
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent)
    _exit(0);
  for (unsigned i = 0;; i++) {
    snprintf(name, sizeof name, "folder/other-%u", i % 8);
    if (mkdir(at_point(&mounted, name), 0700) || rmdir(at_point(&mounted, name)))
      _exit(1);
  }
}

static int end_other(void) {
  int status = 0;
  if (other > 0) {
    kill(other, SIGKILL);
    waitpid(other, &status, 0);
  }
  other = 0;
  return status;
}

static int tear_down_both(void **state) {
  end_other();
  return mounted_tear_down(state);
}

/* The kernel holds the lock of the folder for them, which dropping a name needs, too. */
static void names_change_while_others_use_them(void **state) {
  (void)state;
  pid_t parent = getpid();
  other = fork();
  assert_true(other >= 0);
  if (other == 0)
    use_names(parent);
  for (int i = 0; i < 300; i++) {
    folder_put(mounted.point, "folder/mine", "");
    assert_int_equal(move_name("folder", "mine", number_of("folder"), "moved", true), 0);
    assert_int_equal(remove_name("folder", "moved", true), 0);
  }
  assert_true(WIFSIGNALED(end_other())); /* else one of its calls has failed */
}

static int punch(int flags) {
  return call_on("file", flags, CALL_HOLES, &holes);
}

static void all_holes_are_checked_before_the_first_is_punched(void **state) {
  (void)state;
  char bytes[8] = {0};
  holes = (struct call_holes){.count = 2, .end = {5, 4}, .start = {0, 5}};
  assert_int_equal(punch(O_RDWR), EINVAL); /* its end is before its start */
  holes.count = -1;
  assert_int_equal(punch(O_RDWR), EINVAL);
  holes.count = 1001;
  assert_int_equal(punch(O_RDWR), EINVAL);
  holes.count = 1;
  holes.end[0] = SIZE_MAX;
  assert_int_equal(punch(O_RDWR), EINVAL);
  holes.end[0] = 5;
  holes.flags = 1;
  assert_int_equal(punch(O_RDWR), EINVAL);
  holes.flags = 0;
  assert_int_equal(punch(O_RDONLY), EBADF);
  assert_int_equal(call_on("folder", O_RDONLY, CALL_HOLES, &holes), EISDIR);
  assert_int_equal(call_on("file", O_RDWR, CALL_HOLES, NULL), EFAULT);
  int fd = open_at("file", O_RDONLY);
  assert_int_equal(read(fd, bytes, sizeof bytes), 5);
  assert_string_equal(bytes, "hello");
  close(fd);
}

static void a_thousand_holes_are_punched_at_once(void **state) {
  (void)state;
  static char bytes[4000], zeros[2];
  int fd = open_at("file", O_RDWR);
  memset(bytes, 'x', sizeof bytes);
  assert_int_equal(pwrite(fd, bytes, sizeof bytes, 0), sizeof bytes);
  holes = (struct call_holes){.count = 1000};
  for (size_t i = 0; i < 1000; i++) {
    holes.start[i] = 4 * i;
    holes.end[i] = 4 * i + 2;
  }
  int failed = punch(O_RDWR);
  if (failed == EOPNOTSUPP)
    skip();
  assert_int_equal(failed, 0);
  assert_int_equal(pread(fd, bytes, sizeof bytes, 0), sizeof bytes);
  for (size_t i = 0; i < 1000; i++) {
    assert_memory_equal(bytes + 4 * i, zeros, 2);
    assert_memory_equal(bytes + 4 * i + 2, "xx", 2);
  }
  holes.count = 0;
  assert_int_equal(punch(O_RDWR), 0);
  close(fd);
}

static void every_file_and_folder_has_the_magic(void **state) {
  (void)state;
  const char *const names[] = {"file", "folder", ".", "3fs-virt", "3fs-virt/iovs"};
  for (size_t i = 0; i < COUNT(names); i++) {
    char name[32] = {0};
    uint32_t number = 0;
    assert_int_equal(call_on(names[i], O_RDONLY, CALL_MAGIC, &number), 0);
    assert_int_equal(number, 0x8f3f5fff);
    assert_int_equal(call_on(names[i], O_RDONLY, CALL_VERSION, &number), 0);
    assert_int_equal(number, 1);
    assert_int_equal(call_on(names[i], O_RDONLY, CALL_NAME, name), 0);
    assert_string_equal(name, "weights");
    assert_int_equal(call_on(names[i], O_RDONLY, CALL_SYNC, &number), 0);
    assert_int_equal(call_on(names[i], O_RDONLY, CALL_SYNC, NULL), 0);
    assert_int_equal(call_on(names[i], O_RDONLY, 0x8004687ful, &number), ENOTTY);
  }
}

static bool lists(const char *folder, const char *name) {
  bool found = false;
  DIR *open_one = opendir(at_point(&mounted, folder));
  assert_non_null(open_one);
  for (const struct dirent *entry; (entry = readdir(open_one));)
    found |= strcmp(entry->d_name, name) == 0;
  closedir(open_one);
  return found;
}

static void the_control_directory_is_found_and_not_listed(void **state) {
  (void)state;
  struct stat stat_of;
  assert_int_equal(stat(at_point(&mounted, "3fs-virt"), &stat_of), 0);
  assert_true(S_ISDIR(stat_of.st_mode));
  assert_false(lists(".", "3fs-virt"));
  assert_true(lists("3fs-virt", "iovs"));
  assert_true(lists(IOVS, "submit-ios"));
  assert_int_equal(error_of(stat(at_point(&mounted, "folder/3fs-virt"), &stat_of)), ENOENT);
}

static void the_control_directory_covers_the_sources_name(void **state) {
  (void)state;
  assert_int_equal(mkdir(at_source(&mounted, "3fs-virt"), 0755), 0);
  folder_put(mounted.source, "3fs-virt/own", "");
  assert_int_equal(error_of(access(at_point(&mounted, "3fs-virt/own"), F_OK)), ENOENT);
  assert_false(lists(".", "3fs-virt"));
  assert_int_equal(error_of(rmdir(at_point(&mounted, "3fs-virt"))), EPERM);
  assert_int_equal(access(at_source(&mounted, "3fs-virt/own"), F_OK), 0);
}

static void the_control_directory_takes_registrations_alone(void **state) {
  (void)state;
  const char *const folders[] = {"3fs-virt", IOVS};
  assert_int_equal(error_of(mkdir(at_point(&mounted, "3fs-virt"), 0755)), EEXIST);
  assert_int_equal(error_of(rename(at_point(&mounted, "folder"), at_point(&mounted, "3fs-virt"))),
                   EPERM);
  assert_int_equal(error_of(rename(at_point(&mounted, "3fs-virt"), at_point(&mounted, "other"))),
                   EPERM);
  for (size_t i = 0; i < COUNT(folders); i++) {
    char name[128];
    snprintf(name, sizeof name, "%s/new", folders[i]);
    const char *path = at_point(&mounted, name);
    assert_int_equal(error_of(open(path, O_CREAT | O_RDWR, 0600)), EPERM);
    assert_int_equal(error_of(mkdir(path, 0700)), EPERM);
    assert_int_equal(error_of(mknod(path, S_IFREG | 0600, 0)), EPERM);
    assert_int_equal(error_of(link(at_point(&mounted, "file"), path)), EPERM);
    assert_int_equal(error_of(rename(at_point(&mounted, "file"), path)), EPERM);
    assert_int_equal(error_of(chmod(at_point(&mounted, folders[i]), 0777)), EPERM);
  }
  assert_int_equal(error_of(symlink("/dev/shm/x", at_point(&mounted, "3fs-virt/" BUFFER))), EPERM);
}

/* A client's memory and its registered name. */
struct piece {
  char path[64], link[128];
  char *memory;
};

static void piece_make(struct piece *piece, const char *name, size_t length) {
  snprintf(piece->path, sizeof piece->path, "/dev/shm/haul-rings-%d-%.36s", (int)getpid(), name);
  snprintf(piece->link, sizeof piece->link, "%s/" IOVS "/%s", mounted.point, name);
  int fd = open(piece->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  assert_true(fd >= 0);
  assert_int_equal(ftruncate(fd, (off_t)length), 0);
  piece->memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  assert_true(piece->memory != MAP_FAILED);
  close(fd);
}

/* Some clients unlink the memory right after registering it. */
static int piece_register(const struct piece *piece) {
  int failed = error_of(symlink(piece->path, piece->link));
  unlink(piece->path);
  return failed;
}

static void invalid_registrations_are_rejected(void **state) {
  (void)state;
  struct piece piece;
  char link[160];
  int folder =
      open_at(IOVS, O_RDONLY | O_DIRECTORY); /* closing the last handle ends all registrations */
  assert_int_equal(error_of(symlink("/etc/passwd", at_point(&mounted, IOVS "/" BUFFER))), EINVAL);
  assert_int_equal(error_of(symlink("/dev/shm/x", at_point(&mounted, IOVS "/no-name"))), EINVAL);
  piece_make(&piece, BUFFER, 4096);
  assert_int_equal(error_of(symlink(piece.path, piece.link)), 0);
  assert_int_equal(error_of(symlink(piece.path, piece.link)), EEXIST);
  assert_true(readlink(piece.link, link, sizeof link) == (ssize_t)strlen(piece.path));
  assert_memory_equal(link, piece.path, strlen(piece.path));
  assert_true(lists(IOVS, BUFFER));
  assert_int_equal(unlink(piece.link), 0);
  assert_int_equal(error_of(unlink(piece.link)), ENOENT);
  assert_false(lists(IOVS, BUFFER));
  munmap(piece.memory, 4096);
  unlink(piece.path);
  close(folder);
}

struct client {
  int folder;
  struct piece buffer, ring;
  struct ring_view view;
  sem_t *bell;
};

static void client_start(struct client *client) {
  char bell[256] = {0};
  client->folder = open_at(IOVS, O_RDONLY | O_DIRECTORY);
  piece_make(&client->buffer, BUFFER, 65536);
  piece_make(&client->ring, RING ".r0", ring_bytes(ENTRIES));
  assert_true(ring_view_init(&client->view, client->ring.memory, ring_bytes(ENTRIES)));
  sem_init(client->view.semaphore, 1, 0);
  assert_int_equal(piece_register(&client->buffer), 0);
  assert_int_equal(piece_register(&client->ring), 0);
  assert_true(readlink(at_point(&mounted, IOVS "/submit-ios"), bell, sizeof bell - 1) > 13);
  client->bell = sem_open(bell + strlen("/dev/shm/sem."), 0);
  assert_true(client->bell != SEM_FAILED);
}

static void client_end(struct client *client) {
  unlink(client->ring.link);
  unlink(client->buffer.link);
  munmap(client->ring.memory, ring_bytes(ENTRIES));
  munmap(client->buffer.memory, 65536);
  sem_close(client->bell);
  close(client->folder);
}

/* Reads into the buffer; returns the result. */
static int64_t client_read(struct client *client, uint64_t file, uint64_t offset, uint64_t length) {
  static const uint8_t id[16] = {0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77,
                                 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0x01};
  struct ring_indices *indices = client->view.indices;
  int32_t head = indices->submit_head, tail = indices->complete_tail;
  struct timespec until;
  client->view.records[0] = (struct ring_record){.file = file, .offset = offset, .length = length};
  memcpy(client->view.records[0].buffer, id, sizeof id);
  client->view.submissions[head] = (struct ring_submission){.index = 0};
  indices->submit_head = (head + 1) % client->view.slots;
  sem_post(client->bell);
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 10;
  while (indices->complete_head == tail)
    assert_int_equal(sem_timedwait(client->view.semaphore, &until), 0);
  indices->complete_tail = (tail + 1) % client->view.slots;
  return client->view.completions[tail].result;
}

static void a_ring_reads_its_users_open_files(void **state) {
  (void)state;
  struct client client;
  struct stat stat_of;
  client_start(&client);
  assert_int_equal(client_read(&client, number_of("file"), 0, 100), -EBADF);
  int fd = open_at("file", O_RDONLY);
  assert_int_equal(fstat(fd, &stat_of), 0);
  assert_int_equal(client_read(&client, stat_of.st_ino, 0, 100), 5);
  assert_memory_equal(client.buffer.memory, "hello", 5);
  close(fd);
  assert_true(eventually(client_read(&client, stat_of.st_ino, 0, 100) == -EBADF));
  client_end(&client);
}

/* Registration does not depend on --read-only. */
static void rings_read_on_a_read_only_mount(void **state) {
  (void)state;
  struct client client;
  client_start(&client);
  int fd = open_at("file", O_RDONLY);
  assert_int_equal(client_read(&client, number_of("file"), 1, 100), 4);
  assert_memory_equal(client.buffer.memory, "ello", 4);
  close(fd);
  client_end(&client);
}

/* Reports its registration, then waits to be killed. */
static int be_client(void) {
  struct client client;
  const char *point = getenv("POINT");
  snprintf(mounted.point, sizeof mounted.point, "%s", point);
  client_start(&client);
  child_send(3, "r", 1, -1);
  pause();
  return 0;
}

static void registrations_end_with_their_client(void **state) {
  (void)state;
  char byte;
  int socket, folder = open_at(IOVS, O_RDONLY | O_DIRECTORY); /* of another process */
  setenv("POINT", mounted.point, 1);
  pid_t client = child_start("client", &socket);
  child_receive(socket, &byte, 1);
  assert_true(lists(IOVS, BUFFER));
  assert_true(lists(IOVS, RING ".r0"));
  kill(client, SIGKILL);
  assert_int_equal(child_end(client, socket), 128 + SIGKILL);
  assert_true(eventually(!lists(IOVS, BUFFER) && !lists(IOVS, RING ".r0")));
  close(folder);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, mounted_tear_down)

int main(int count, char **arguments) {
  const struct CMUnitTest tests[] = {
      TEST(links_need_an_existing_folder_and_a_valid_name),
      TEST(moved_names_are_seen_at_once),
      TEST(moves_need_valid_names_and_known_folders),
      TEST(names_are_removed_with_all_that_they_contain),
      cmocka_unit_test_setup_teardown(names_change_while_others_use_them, set_up, tear_down_both),
      TEST(all_holes_are_checked_before_the_first_is_punched),
      TEST(a_thousand_holes_are_punched_at_once),
      TEST(every_file_and_folder_has_the_magic),
      TEST(the_control_directory_is_found_and_not_listed),
      TEST(the_control_directory_covers_the_sources_name),
      TEST(the_control_directory_takes_registrations_alone),
      TEST(invalid_registrations_are_rejected),
      TEST(a_ring_reads_its_users_open_files),
      cmocka_unit_test_setup_teardown(rings_read_on_a_read_only_mount, set_up_read_only,
                                      mounted_tear_down),
      TEST(registrations_end_with_their_client),
  };
  mounted_need_fuse();
  if (count > 1 && strcmp(arguments[1], "client") == 0)
    return be_client();
  return cmocka_run_group_tests(tests, NULL, NULL);
}
