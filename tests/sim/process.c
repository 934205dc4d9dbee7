/* SPDX-License-Identifier: MIT
 * Hosts and processes: clocks, the library's variables, heaps, mappings, descriptors, death. All
 * processes share the real address space; each block, mapping and descriptor has an owner, so that
 * a death takes exactly its own. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "calls.h"
#include "cards.h"
#include "sim.h"

struct host *host_create(unsigned number) {
  struct host *host = calloc(1, sizeof *host);
  host->number = number;
  host->address = 10u << 24 | (number + 1);
  host->offset = sim_between(S, 1000000 * S);
  host->drift = sim_between(-200, 200);
  host->next_port = 20000;
  for (size_t i = 0; i < sizeof host->boot_id; i++)
    host->boot_id[i] = (uint8_t)sim_random();
  list_init(&host->bound);
  list_init(&host->files);
  return host;
}

int64_t host_clock(const struct host *host, int64_t at) {
  return host->offset + at + at / 1000000 * host->drift;
}

/* The first world time at which the host's clock shows `own`, or a little later. */
int64_t host_time_to_world(const struct host *host, int64_t own) {
  int64_t passed = own - host->offset;
  return passed <= 0 ? 0 : passed - passed / 1000000 * host->drift + 1;
}

extern char __start_sim_data[], __stop_sim_data[], __start_sim_bss[], __stop_sim_bss[];

/* Most variables never change. So an image consists of the pieces that differ from the start of the
 * program, and a switch touches little but these. */
#define PIECE 64
#define BLOCK 256 /* compared at a time */

struct image {
  size_t count, room;
  struct piece {
    char *at;
    char bytes[PIECE];
  } * pieces;
};

static char *first_data, *first_bss; /* the sections at the start of the program */
static struct process *resident;     /* whose variables are in place */

static size_t piece_length(const char *at, const char *end) {
  return end - at < PIECE ? (size_t)(end - at) : PIECE;
}

/* What was at `at` when the program started. */
static const char *first_of(const char *at) {
  return at >= __start_sim_bss && at < __stop_sim_bss ? first_bss + (at - __start_sim_bss)
                                                      : first_data + (at - __start_sim_data);
}

static const char *end_of(const char *at) {
  return at >= __start_sim_bss && at < __stop_sim_bss ? __stop_sim_bss : __stop_sim_data;
}

static void save_pieces(struct image *image, char *start, char *end) {
  for (char *at = start; at < end; at += PIECE) {
    size_t length = piece_length(at, end);
    if (memcmp(at, first_of(at), length) == 0)
      continue;
    if (image->count == image->room) {
      image->room += 16;
      image->pieces = realloc(image->pieces, image->room * sizeof *image->pieces);
    }
    image->pieces[image->count].at = at;
    memcpy(image->pieces[image->count++].bytes, at, length);
  }
}

static void save_section(struct image *image, char *start, char *end) {
  const char *first = first_of(start);
  for (char *at = start; at < end; at += BLOCK) {
    size_t length = end - at < BLOCK ? (size_t)(end - at) : BLOCK;
    if (memcmp(at, first + (at - start), length) != 0)
      save_pieces(image, at, at + length);
  }
}

static void image_save(struct image *image) {
  image->count = 0;
  save_section(image, __start_sim_data, __stop_sim_data);
  save_section(image, __start_sim_bss, __stop_sim_bss);
}

static void image_take_away(const struct image *image) {
  for (size_t i = 0; i < image->count; i++) {
    char *at = image->pieces[i].at;
    memcpy(at, first_of(at), piece_length(at, end_of(at)));
  }
}

static void image_put(const struct image *image) {
  for (size_t i = 0; i < image->count; i++) {
    char *at = image->pieces[i].at;
    memcpy(at, image->pieces[i].bytes, piece_length(at, end_of(at)));
  }
}

static void evict_resident(void) {
  if (!resident)
    return;
  image_save(resident->image);
  image_take_away(resident->image);
  resident = NULL;
}

void process_enter(struct process *process) {
  if (resident == process || !process->image)
    return;
  evict_resident();
  image_put(process->image);
  resident = process;
}

static char *copy_of(const char *start, const char *end) {
  return memcpy(malloc((size_t)(end - start)), start, (size_t)(end - start));
}

void processes_start(void) {
  first_data = copy_of(__start_sim_data, __stop_sim_data);
  first_bss = copy_of(__start_sim_bss, __stop_sim_bss);
}

static void image_free(struct process *process) {
  if (process->image)
    free(process->image->pieces);
  free(process->image);
  process->image = NULL;
}

#define PROCESSES 65536

static struct process *processes[PROCESSES]; /* by pid; dead ones are NULL */
static pid_t last_pid = 100;

struct process *process_find(pid_t pid) {
  return pid > 0 && pid < PROCESSES ? processes[pid] : NULL;
}

struct process *process_current(void) {
  return fiber_current() ? fiber_current()->process : NULL;
}

struct process *process_start(struct host *host, unsigned program, unsigned life,
                              void *(*run)(void *argument), void *argument) {
  struct process *process = calloc(1, sizeof *process);
  do
    last_pid = last_pid + 1 < PROCESSES ? last_pid + 1 : 100;
  while (processes[last_pid]);
  process->host = host;
  process->pid = last_pid;
  process->program = program;
  process->life = life;
  process->image = calloc(1, sizeof *process->image);
  list_init(&process->fibers);
  list_init(&process->joining);
  list_init(&process->blocks);
  processes[process->pid] = process;
  fiber_start(process, run, argument)->detached = true;
  return process;
}

void process_freeze(struct process *process) {
  if (process->frozen)
    return;
  process->frozen = true;
  process->frozen_at = sim_now;
  fibers_freeze(process);
}

void process_thaw(struct process *process) {
  if (!process->frozen)
    return;
  process->frozen = false;
  process->frozen_for += sim_now - process->frozen_at;
  fibers_thaw(process);
}

static bool refuses(unsigned share, unsigned *next) {
  bool refused = sim_chance(share) || (*next > 0 && --*next == 0);
  sim_faults += refused;
  return refused;
}

bool refuses_memory(void) {
  struct process *process = process_current();
  return process && refuses(process->refuse_memory, &process->next_memory);
}

bool refuses_descriptor(void) {
  struct process *process = process_current();
  return process && refuses(process->refuse_descriptors, &process->next_descriptor);
}

struct block {
  struct list link;
  struct process *owner;
  size_t size;
  void *caller;
  uint64_t magic;
};
_Static_assert(sizeof(struct block) % 16 == 0, "alignment of malloc");

#define ALIVE 0x616c697665616c69u
#define FREED 0x6672656564667265u

static void *block_new(size_t size, bool zero, void *caller) {
  struct process *process = process_current();
  struct block *block = malloc(sizeof *block + size);
  if (!block)
    return NULL;
  *block = (struct block){.owner = process, .size = size, .caller = caller, .magic = ALIVE};
  list_append(&process->blocks, &block->link);
  process->block_count++;
  process->block_bytes += size;
  memset(block + 1, zero ? 0 : 0xa5, size);
  return block + 1;
}

static void *block_allocate(size_t size, bool zero, void *caller) {
  sim_point(30);
  if (refuses_memory() || size > SIZE_MAX / 2) {
    errno = ENOMEM;
    return NULL;
  }
  return block_new(size, zero, caller);
}

/* For jansson, which loses parts of a text when memory is refused. */
void *allocate_always(size_t size) {
  sim_point(30);
  return block_new(size, false, __builtin_return_address(0));
}

static struct block *block_of(void *bytes) {
  struct block *block = (struct block *)bytes - 1;
  if (block->magic == FREED)
    sim_fail("heap", "%p is freed twice", bytes);
  if (block->magic != ALIVE)
    sim_fail("heap", "%p is no block", bytes);
  if (block->owner != process_current())
    sim_fail("heap", "a block of process %d is freed by %d", (int)block->owner->pid,
             (int)process_current()->pid);
  return block;
}

/* Overwrites the content, so that a use after the release shows. */
static void block_free(struct block *block) {
  list_remove(&block->link);
  block->owner->block_count--;
  block->owner->block_bytes -= block->size;
  block->magic = FREED;
  memset(block + 1, 0xdd, block->size < 256 ? block->size : 256);
  free(block);
}

void *world_malloc(size_t size) {
  return block_allocate(size, false, __builtin_return_address(0));
}

void *world_calloc(size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes))
    bytes = SIZE_MAX;
  return block_allocate(bytes, true, __builtin_return_address(0));
}

char *world_strdup(const char *text) {
  char *copy = block_allocate(strlen(text) + 1, false, __builtin_return_address(0));
  return copy ? strcpy(copy, text) : NULL;
}

void world_free(void *bytes) {
  sim_point(20);
  if (bytes)
    block_free(block_of(bytes));
}

void *world_realloc(void *bytes, size_t size) {
  void *made = block_allocate(size, false, __builtin_return_address(0));
  if (!made || !bytes)
    return made;
  struct block *block = block_of(bytes);
  memcpy(made, bytes, block->size < size ? block->size : size);
  block_free(block);
  return made;
}

struct mapping {
  char *from, *to;
};

static void mapping_add(struct process *process, char *from, char *to) {
  if (process->mapping_count == process->mapping_room) {
    process->mapping_room = process->mapping_room ? process->mapping_room * 2 : 16;
    process->mappings =
        realloc(process->mappings, process->mapping_room * sizeof *process->mappings);
  }
  process->mappings[process->mapping_count++] = (struct mapping){from, to};
}

/* Cuts the range out of each mapping that it meets. */
static void mapping_cut(struct process *process, char *from, char *to) {
  verbs_unmapped(process, from, to);
  for (size_t i = process->mapping_count; i-- > 0;) {
    struct mapping was = process->mappings[i];
    if (was.to <= from || to <= was.from)
      continue;
    process->mappings[i] = process->mappings[--process->mapping_count];
    if (was.from < from)
      mapping_add(process, was.from, from);
    if (to < was.to)
      mapping_add(process, to, was.to);
  }
}

static char *page_end(char *at, size_t length) {
  return at + ((length + 4095) & ~(size_t)4095);
}

void *world_mmap(void *address, size_t length, int protection, int flags, int descriptor,
                 off_t offset) {
  int real = -1;
  sim_point(2 * US);
  if (refuses_memory()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  if (!(flags & MAP_ANONYMOUS)) {
    struct file *file = file_of(descriptor);
    if (!file)
      return MAP_FAILED;
    if ((real = memfile_real(file)) < 0) {
      errno = ENODEV;
      return MAP_FAILED;
    }
  }
  char *got = mmap(address, length, protection, flags, real, offset);
  if (got == MAP_FAILED)
    return got;
  struct process *process = process_current();
  mapping_cut(process, got, page_end(got, length));
  mapping_add(process, got, page_end(got, length));
  return got;
}

int world_munmap(void *address, size_t length) {
  struct process *process = process_current();
  char *from = address, *to = page_end(from, length);
  bool own = false;
  sim_point(2 * US);
  for (size_t i = 0; i < process->mapping_count; i++)
    own |= process->mappings[i].from < to && from < process->mappings[i].to;
  if (!own)
    sim_fail("mappings", "%p of %zu bytes is unmapped and is not mapped", address, length);
  mapping_cut(process, from, to);
  return munmap(address, length);
}

int world_madvise(void *address, size_t length, int advice) {
  sim_point(1 * US);
  return advice == MADV_WIPEONFORK ? 0 : madvise(address, length, advice);
}

int world_msync(void *address, size_t length, int flags) {
  sim_point(1 * US);
  return msync(address, length, flags);
}

/* May the process's memory there be accessed from outside? */
bool process_has(const struct process *process, const void *bytes, size_t length) {
  const char *from = bytes;
  for (size_t i = 0; i < process->mapping_count; i++)
    if (process->mappings[i].from <= from && from + length <= process->mappings[i].to)
      return true;
  list_each(item, &process->blocks) {
    const struct block *block = list_entry(item, struct block, link);
    const char *own = (const char *)(block + 1);
    if (own <= from && from + length <= own + block->size)
      return true;
  }
  return false;
}

bool process_has_pages(const struct process *process, const void *bytes, size_t length) {
  const char *at = bytes, *end = at + length;
  for (size_t i = 0; at < end && i < process->mapping_count;)
    if (process->mappings[i].from <= at && at < process->mappings[i].to) {
      at = process->mappings[i].to;
      i = 0;
    } else {
      i++;
    }
  return at >= end;
}

/* Another process's memory has to belong to it; then the kernel copies within the real process,
 * which finds pages without access. A long copy is cut short, as the call may be. */
static ssize_t copy_between(pid_t pid, const struct iovec *local, unsigned long locals,
                            const struct iovec *remote, unsigned long remotes, bool writes) {
  struct iovec cut = remote[0];
  sim_point(1 * US + (int64_t)(remotes ? remote[0].iov_len / 10 : 0));
  struct process *target = process_find(pid); /* it may have died by now */
  if (!target) {
    errno = ESRCH;
    return -1;
  }
  for (unsigned long i = 0; target != process_current() && i < remotes; i++)
    if (!process_has(target, remote[i].iov_base, remote[i].iov_len)) {
      errno = EFAULT;
      return -1;
    }
  if (target != process_current() && cut.iov_len > 1 && sim_chance(20000)) {
    sim_faults++;
    cut.iov_len = 1 + sim_below(cut.iov_len - 1);
    remote = &cut;
    remotes = 1;
  }
  return writes ? process_vm_writev(getpid(), local, locals, remote, remotes, 0)
                : process_vm_readv(getpid(), local, locals, remote, remotes, 0);
}

ssize_t world_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals,
                               const struct iovec *remote, unsigned long remotes,
                               unsigned long flags) {
  (void)flags;
  return copy_between(pid, local, locals, remote, remotes, false);
}

ssize_t world_process_vm_writev(pid_t pid, const struct iovec *local, unsigned long locals,
                                const struct iovec *remote, unsigned long remotes,
                                unsigned long flags) {
  (void)flags;
  return copy_between(pid, local, locals, remote, remotes, true);
}

void file_init(struct file *file, enum file_kind kind) {
  file->kind = kind;
  file->references = 1;
  file->opened = sim_now;
  list_init(&file->waiting);
  list_init(&file->watches);
}

void file_drop(struct file *file) {
  if (--file->references > 0)
    return;
  watches_free(file);
  switch (file->kind) {
  case FILE_SOCKET:
    socket_free(file);
    break;
  case FILE_EPOLL:
    epoll_free(file);
    break;
  case FILE_TIMER:
    timer_free(file);
    break;
  case FILE_MEMORY:
    memfile_free(file);
    break;
  case FILE_PIPE:
    pipe_free(file);
    break;
  default:
    free(file);
  }
}

struct file *file_of(int descriptor) {
  struct process *process = process_current();
  if (descriptor < 0 || (size_t)descriptor >= process->descriptor_room ||
      !process->descriptors[descriptor]) {
    errno = EBADF;
    return NULL;
  }
  return process->descriptors[descriptor];
}

int file_install(struct file *file) {
  struct process *process = process_current();
  size_t at = process->descriptor_free > 3 ? process->descriptor_free : 3;
  if (refuses_descriptor()) {
    file_drop(file);
    errno = EMFILE;
    return -1;
  }
  while (at < process->descriptor_room && process->descriptors[at])
    at++;
  if (at >= process->descriptor_room) {
    size_t was = process->descriptor_room, room = was ? was * 2 : 64;
    process->descriptors = realloc(process->descriptors, room * sizeof *process->descriptors);
    memset(process->descriptors + was, 0, (room - was) * sizeof *process->descriptors);
    process->descriptor_room = room;
  }
  process->descriptors[at] = file;
  process->descriptor_free = at + 1;
  process->descriptor_count++;
  return (int)at;
}

void files_check_closed(const struct process *process) {
  static const char *const kinds[] = {"",     "socket",  "epoll", "eventfd", "timer", "memory file",
                                      "text", "process", "pipe",  "NIC"};
  for (size_t i = 0; i < process->descriptor_room; i++) {
    const struct file *file = process->descriptors[i];
    if (file)
      sim_fail("leaks", "%zu descriptors are open after the close; %zu: a %s, since %.9f",
               process->descriptor_count, i, kinds[file->kind], (double)file->opened / S);
  }
}

int world_close(int descriptor) {
  sim_point(500);
  struct file *file = file_of(descriptor);
  if (!file)
    sim_fail("descriptors", "%d is closed and is not open", descriptor);
  struct process *process = process_current();
  process->descriptors[descriptor] = NULL;
  process->descriptor_count--;
  if ((size_t)descriptor < process->descriptor_free)
    process->descriptor_free = (size_t)descriptor;
  file_drop(file);
  return 0;
}

ssize_t world_read(int descriptor, void *bytes, size_t length) {
  sim_point(300);
  struct file *file = file_of(descriptor);
  if (!file)
    return -1;
  switch (file->kind) {
  case FILE_EVENT:
    return event_read(file, bytes, length);
  case FILE_TIMER:
    return timer_read(file, bytes, length);
  case FILE_SOCKET:
    return socket_read(file, bytes, length);
  case FILE_TEXT:
    return text_read(file, bytes, length);
  default:
    errno = EINVAL;
    return -1;
  }
}

ssize_t world_write(int descriptor, const void *bytes, size_t length) {
  sim_point(300);
  struct file *file = file_of(descriptor);
  if (!file)
    return -1;
  if (file->kind == FILE_EVENT)
    return event_write(file, bytes, length);
  if (file->kind == FILE_SOCKET)
    return socket_write(file, bytes, length);
  errno = EINVAL;
  return -1;
}

static void close_all(struct process *process, bool silent) {
  for (size_t i = 0; i < process->descriptor_room; i++) {
    struct file *file = process->descriptors[i];
    if (!file)
      continue;
    if (file->kind == FILE_SOCKET && file->references == 1)
      socket_process_died(file, silent);
    process->descriptors[i] = NULL;
    file_drop(file);
  }
  free(process->descriptors);
}

static void release_memory(struct process *process) {
  while (!list_empty(&process->blocks))
    block_free(list_entry(process->blocks.next, struct block, link));
  for (size_t i = 0; i < process->mapping_count; i++)
    munmap(process->mappings[i].from,
           (size_t)(process->mappings[i].to - process->mappings[i].from));
  free(process->mappings);
  image_free(process);
}

/* `silent`: the host lost power, and its peers hear nothing. */
void process_kill(struct process *process, bool silent) {
  process->dead = true;
  if (resident == process)
    evict_resident();
  while (!list_empty(&process->fibers))
    fiber_end(list_entry(process->fibers.next, struct fiber, link));
  processes[process->pid] = NULL;
  verbs_process_died(process);
  close_all(process, silent);
  openssl_process_died(process);
  release_memory(process);
  free(process);
}
