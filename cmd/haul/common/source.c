/* SPDX-License-Identifier: MIT */
#include "source.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../command.h"
#include "fail.h"
#include "process.h"
#include "text.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* linux/mman.h, since Linux 5.14 */
#endif

static int check_kind(struct source *source, const struct stat *status) {
  if (S_ISDIR(status->st_mode))
    return fail_system(EISDIR, "cannot read %s", source->label);
  if (!S_ISREG(status->st_mode) || status->st_size == 0)
    return EXIT_DONE;
  /* Standard input may be a file at an offset. */
  off_t at = lseek(source->descriptor, 0, SEEK_CUR);
  source->at = at > 0 ? (uint64_t)at : 0;
  uint64_t size = (uint64_t)status->st_size;
  source->length = source->at < size ? size - source->at : 0;
  return EXIT_DONE;
}

/* O_NONBLOCK is for the open of a FIFO, which would wait for a writer. */
static int open_input(const char *path) {
  int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor >= 0)
    fcntl(descriptor, F_SETFL, O_RDONLY);
  return descriptor;
}

int source_open(struct source *source, const char *path) {
  struct stat status;
  bool standard = strcmp(path, "-") == 0;
  *source =
      (struct source){.label = standard ? "standard input" : path, .length = SOURCE_LENGTH_UNKNOWN};
  source->descriptor = standard ? STDIN_FILENO : open_input(path);
  if (source->descriptor < 0 && !*path)
    return fail_because("check for an empty shell variable", "the name of the input file is empty");
  if (source->descriptor < 0)
    return fail_system(errno, "cannot open %s", path);
  if (fstat(source->descriptor, &status))
    return fail_system(errno, "cannot read %s", source->label);
  return check_kind(source, &status);
}

/* One thread reports a file that was cut short, others leave it to that one. */
static atomic_int report;
enum { REPORT_NONE, REPORT_BEGUN, REPORT_PRINTED };

/* False: another one has begun it. Async-signal-safe. */
static bool begin_report(void) {
  int none = REPORT_NONE;
  return atomic_compare_exchange_strong(&report, &none, REPORT_BEGUN);
}

/* SIGBUS: the file no longer backs a mapped page. Only async-signal-safe calls are allowed here. */
static void explain_bus_error(int number) {
  static const char text[] =
      "haul: put: the file was cut short, or its disk failed, during the transfer\n"
      "hint: put the file again; the region has a part of it\n";
  (void)number;
  if (begin_report()) {
    ssize_t ignored = write(STDERR_FILENO, text, sizeof(text) - 1);
    (void)ignored;
    _exit(EXIT_FAILED);
  }
  while (atomic_load(&report) == REPORT_BEGUN)
    poll(NULL, 0, 1);
  _exit(EXIT_FAILED);
}

void source_note_change(const struct source *source) {
  struct stat status;
  if (source->region && atomic_load(&report) == REPORT_NONE &&
      fstat(source->descriptor, &status) == 0 && (uint64_t)status.st_size < source->mapped)
    fail_note("%s became shorter during the transfer", source->label);
}

int source_map(struct source *source, haul_node *node) {
  if (source->length == SOURCE_LENGTH_UNKNOWN || source->length == 0)
    return EXIT_DONE;
  size_t bytes = (size_t)(source->at + source->length);
  int code = haul_region_wrap_file(node, source->descriptor, 0, bytes, &source->region);
  if (code == HAUL_ERANGE)
    return fail_library("%s became shorter", source->label);
  if (code)
    return EXIT_DONE; /* the file is read instead, and the report says so */
  source->mapped = bytes;
  signal(SIGBUS, explain_bus_error);
  madvise(haul_region_address(source->region), bytes, MADV_SEQUENTIAL);
  return EXIT_DONE;
}

/* Populates the pages of a window, whose start need not be aligned. */
static int populate(const struct source *source, uint64_t length) {
  uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
  uint64_t start = source->at & ~(page - 1);
  char *address = (char *)haul_region_address(source->region) + start;
  int result = madvise(address, source->at + length - start, MADV_POPULATE_READ);
  /* EINVAL: an older kernel, which faults the pages in on use */
  if (!result || errno == EINVAL)
    return EXIT_DONE;
  if (begin_report()) {
    fail_because(NULL, "cannot read %s: it was cut short", source->label);
    atomic_store(&report, REPORT_PRINTED);
  }
  return EXIT_FAILED;
}

static int next_window(struct source *source, struct slot *slot) {
  uint64_t remaining = source->mapped - source->at;
  uint64_t length = remaining < RING_CHUNK ? remaining : RING_CHUNK;
  slot->region = source->region;
  slot->piece.local = source->at;
  slot->piece.length = length;
  if (length == 0)
    return EXIT_DONE;
  int status = populate(source, length);
  source->at += length;
  return status;
}

int source_wait(const struct source *source, haul_peer *peer, haul_deadline until) {
  struct pollfd entry = {source->descriptor, POLLIN, 0};
  int ready;
  do {
    ready = poll(&entry, 1, INTERRUPT_SLICE_NS / 1000000);
    if (interrupted())
      return fail_because(NULL, "interrupted");
    if (peer && haul_peer_status(peer))
      return fail_library("the connection failed");
    if (now_ns() >= until)
      return fail_because(NULL, "timed out waiting for %s", source->label);
  } while (ready <= 0);
  return EXIT_DONE;
}

static int next_read(struct source *source, struct slot *slot, haul_peer *peer,
                     haul_deadline until) {
  char *buffer = haul_region_address(slot->buffer);
  slot->piece.local = 0;
  slot->piece.length = 0;
  while (slot->piece.length < RING_CHUNK) {
    int status = source_wait(source, peer, until);
    if (status)
      return status;
    ssize_t got = read(source->descriptor, buffer + slot->piece.length,
                       (size_t)(RING_CHUNK - slot->piece.length));
    if (got == 0)
      return EXIT_DONE;
    if (got < 0 && errno != EINTR && errno != EAGAIN)
      return fail_system(errno, "cannot read %s", source->label);
    if (got > 0)
      slot->piece.length += (uint64_t)got;
  }
  return EXIT_DONE;
}

int source_next(struct source *source, struct slot *slot, haul_peer *peer, haul_deadline until) {
  return source->region ? next_window(source, slot) : next_read(source, slot, peer, until);
}

static int fail_keep(const struct source *source) {
  return fail_because(
      "set TMPDIR to a folder with enough space, or add --partial, which writes the "
      "input as it arrives",
      "cannot keep %s in a temporary file: %s", source->label, strerror(errno));
}

/* A file without a name, open for reading and writing; -1 with errno. */
static int open_unnamed(const char *folder) {
  char name[4096];
  int descriptor = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
    return descriptor;
  snprintf(name, sizeof(name), "%s/haul-put.XXXXXX", folder);
  descriptor = mkostemp(name, O_CLOEXEC);
  if (descriptor >= 0)
    unlink(name);
  return descriptor;
}

static int copy_input(const struct source *source, int to, uint64_t most, haul_peer *peer,
                      haul_deadline until) {
  static char buffer[1 << 18];
  for (uint64_t at = 0; at <= most;) {
    int status = source_wait(source, peer, until);
    if (status)
      return status;
    uint64_t wanted = most - at + 1;
    ssize_t got =
        read(source->descriptor, buffer, wanted < sizeof(buffer) ? (size_t)wanted : sizeof(buffer));
    if (got == 0)
      return EXIT_DONE;
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
      continue;
    if (got < 0)
      return fail_system(errno, "cannot read %s", source->label);
    for (ssize_t done = 0, put; done < got; done += put) {
      put = TEMP_FAILURE_RETRY(write(to, buffer + done, (size_t)(got - done)));
      if (put < 0)
        return fail_keep(source);
    }
    at += (uint64_t)got;
  }
  return EXIT_DONE;
}

int source_keep(struct source *source, uint64_t most, haul_peer *peer, haul_deadline until) {
  const char *folder = getenv("TMPDIR");
  int file = open_unnamed(folder && *folder ? folder : "/tmp");
  if (file < 0)
    return fail_keep(source);
  int status = copy_input(source, file, most, peer, until);
  off_t length = lseek(file, 0, SEEK_END);
  if (status == EXIT_DONE &&
      lseek(file, 0, SEEK_SET) != 0) /* it is read where it cannot be mapped */
    status = fail_keep(source);
  if (source->descriptor > STDIN_FILENO)
    close(source->descriptor);
  source->descriptor = file;
  source->length = length > 0 ? (uint64_t)length : 0;
  source->kept = true;
  return status;
}

void source_close(struct source *source) {
  haul_region_release(source->region);
  if (source->descriptor > STDIN_FILENO)
    close(source->descriptor);
}
