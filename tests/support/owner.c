/* SPDX-License-Identifier: MIT */
#include "support/owner.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "support/check.h"
#include "support/child.h"
#include "support/gpu.h"
#include "support/seams.h"

enum request_type {
  OPEN,
  END,
  PUBLISH,
  NAME,
  UNPUBLISH,
  RELEASE,
  UNTOUCHED,
  FILL,
  SUM,
  ADD,
  RECEIVE,
  DESCRIPTORS,
  RESIDENT,
  COUNTER
};

struct request {
  enum request_type type;
  unsigned slot, rights, kind;
  uint64_t a, b, c;
  bool named;
  char name[256];
  struct haul_node_config config;
};

struct response {
  int code;
  uint64_t a, b, c;
  char text[160];
};

static void must(int code, const char *what) {
  if (code == 0)
    return;
  const struct haul_error *error = haul_error_last();
  fprintf(stderr, "%s: %s: %s (%s)\n", what, haul_error_name(code), error->text, error->hint);
  abort();
}

static void *pages(size_t length) {
  void *got = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED)
    abort();
  return got;
}

bool wraps_gpu(void) {
  return getenv("HAUL_TEST_WRAPPED");
}

static void *memory_to_wrap(size_t length) {
  return wraps_gpu() ? gpu_alloc(length) : pages(length);
}

static bool is_owner; /* this process is the owner */

static struct haul_place place_of(const char *name) {
  struct haul_place place = {HAUL_SIM, 0};
  if (name)
    must(haul_place_parse(name, &place), name);
  return place;
}

struct haul_place owners_device_place(void) {
  const char *owners = getenv("HAUL_TEST_OWNER_DEVICE");
  return place_of(owners ? owners : getenv("HAUL_TEST_DEVICE"));
}

struct haul_place device_place(void) {
  return is_owner ? owners_device_place() : place_of(getenv("HAUL_TEST_DEVICE"));
}

static void start(haul_node *node, struct haul_place place) {
  struct haul_region *region;
  must(haul_region_alloc(node, place, 4096, 0, &region), "haul_region_alloc");
  haul_region_release(region);
}

/* A copy between two kinds of devices starts both drivers in the requester. */
void device_start(void) {
  struct haul_node *node;
  must(haul_node_open(NULL, &node), "haul_node_open");
  start(node, device_place());
  start(node, owners_device_place());
  haul_node_close(node);
}

struct haul_region *region_make(struct haul_node *node, enum memory_kind kind, size_t length) {
  struct haul_region *region;
  struct haul_place place = kind == KIND_SIM ? device_place() : (struct haul_place){HAUL_HOST, 0};
  if (kind == KIND_WRAPPED)
    must(haul_region_wrap(node, memory_to_wrap(length), length, &region), "haul_region_wrap");
  else
    must(haul_region_alloc(node, place, length, kind == KIND_PRIVATE ? HAUL_REGION_PRIVATE : 0,
                           &region),
         "haul_region_alloc");
  return region;
}

void region_drop(struct haul_region *region, enum memory_kind kind) {
  void *address = haul_region_address(region);
  size_t length = haul_region_length(region);
  haul_region_release(region);
  if (kind == KIND_WRAPPED && wraps_gpu())
    gpu_free(address);
  else if (kind == KIND_WRAPPED)
    munmap(address, length);
}

static struct haul_region *staging(struct haul_node *node, uint64_t length) {
  struct haul_region *bytes;
  must(haul_region_alloc(node, (struct haul_place){HAUL_HOST, 0}, length, HAUL_REGION_PRIVATE,
                         &bytes),
       "staging");
  return bytes;
}

/* Peers' writes are ordered with this access through another process, which the thread sanitizer
 * cannot see. The call takes a lock that the node's thread takes, too. */
static void meet_thread_of(struct haul_node *node) {
  char address[160];
  haul_node_address(node, 0, address, sizeof address);
}

void region_fill(struct haul_node *node, struct haul_region *region, uint64_t offset,
                 uint64_t length, uint64_t seed) {
  if (haul_region_place(region).kind == HAUL_HOST) {
    pattern_fill((char *)haul_region_address(region) + offset, length, seed);
    return;
  }
  struct haul_region *bytes = staging(node, length);
  pattern_fill(haul_region_address(bytes), length, seed);
  meet_thread_of(node);
  must(haul_region_copy(region, offset, bytes, 0, length, HAUL_FOREVER), "haul_region_copy");
  haul_region_release(bytes);
  meet_thread_of(node);
}

uint64_t region_sum(struct haul_node *node, struct haul_region *region, uint64_t offset,
                    uint64_t length) {
  if (haul_region_place(region).kind == HAUL_HOST)
    return XXH3_64bits((char *)haul_region_address(region) + offset, length);
  struct haul_region *bytes = staging(node, length);
  meet_thread_of(node);
  must(haul_region_copy(bytes, 0, region, offset, length, HAUL_FOREVER), "haul_region_copy");
  meet_thread_of(node);
  uint64_t sum = XXH3_64bits(haul_region_address(bytes), length);
  haul_region_release(bytes);
  return sum;
}

static struct haul_node *node;
static struct {
  struct haul_region *region;
  enum memory_kind kind;
  void *address;
  size_t length;
} slots[OWNER_SLOTS];

#define UNTOUCHED_SEED 77

static int release(unsigned slot) {
  haul_region_release(slots[slot].region);
  slots[slot].region = NULL;
  if (slots[slot].kind != KIND_WRAPPED)
    return 0;
  if (wraps_gpu()) { /* the emulated driver aborts if it is mapped elsewhere */
    gpu_free(slots[slot].address);
    return 0;
  }
  void *got = mmap(slots[slot].address, slots[slot].length, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (got == MAP_FAILED)
    abort();
  pattern_fill(got, slots[slot].length, UNTOUCHED_SEED);
  return 0;
}

static bool is_untouched(unsigned slot) {
  if (wraps_gpu())
    return true;
  char *wanted = pages(slots[slot].length);
  pattern_fill(wanted, slots[slot].length, UNTOUCHED_SEED);
  bool same = memcmp(wanted, slots[slot].address, slots[slot].length) == 0;
  munmap(wanted, slots[slot].length);
  return same;
}

static int publish(const struct request *request) {
  if (slots[request->slot].region)
    haul_region_release(slots[request->slot].region);
  struct haul_region *region = region_make(node, request->kind, request->a);
  slots[request->slot].region = region;
  slots[request->slot].kind = request->kind;
  slots[request->slot].address = haul_region_address(region);
  slots[request->slot].length = request->a;
  return request->named ? haul_region_publish(region, request->name, request->rights) : 0;
}

static void add_by_processor(struct haul_region *region, uint64_t offset, uint64_t times) {
  _Atomic uint64_t *number = (void *)((char *)haul_region_address(region) + offset);
  for (uint64_t i = 0; i < times; i++)
    atomic_fetch_add(number, 1);
}

static int receive(const struct request *request, struct response *response) {
  struct haul_message message;
  int code = haul_message_receive(node, &message, haul_deadline_in(20 * S));
  if (code)
    return code;
  if (request->a)
    response->c = region_sum(node, slots[request->slot].region, 0, request->a);
  response->a = message.tag;
  response->b = message.length;
  haul_message_release(&message);
  return 0;
}

static uint64_t resident(void) {
  unsigned long size = 0, pages_in = 0;
  FILE *file = fopen("/proc/self/statm", "re");
  if (!file || fscanf(file, "%lu %lu", &size, &pages_in) != 2)
    abort();
  fclose(file);
  return pages_in * (uint64_t)sysconf(_SC_PAGESIZE);
}

static int open_node(struct request *request, struct response *response) {
  request->config.name = "owner";
  int code = haul_node_open(&request->config, &node);
  if (code == 0)
    code = haul_node_listen(node, request->name);
  if (code == 0)
    code = haul_node_address(node, 0, response->text, sizeof response->text);
  return code;
}

static void handle(struct request *request, struct response *response) {
  struct haul_region *region = slots[request->slot].region;
  switch (request->type) {
  case OPEN:
    response->code = open_node(request, response);
    break;
  case END:
    haul_node_close(node);
    for (unsigned i = 0; i < OWNER_SLOTS; i++)
      if (slots[i].region)
        release(i);
    break;
  case PUBLISH:
    response->code = publish(request);
    break;
  case NAME:
    response->code = haul_region_publish(region, request->name, request->rights);
    break;
  case UNPUBLISH:
    response->code = haul_region_unpublish(region, request->name);
    break;
  case RELEASE:
    response->code = release(request->slot);
    break;
  case UNTOUCHED:
    response->a = is_untouched(request->slot);
    break;
  case FILL:
    region_fill(node, region, request->a, request->b, request->c);
    break;
  case SUM:
    response->a = region_sum(node, region, request->a, request->b);
    break;
  case ADD:
    add_by_processor(region, request->a, request->b);
    break;
  case RECEIVE:
    response->code = receive(request, response);
    break;
  case DESCRIPTORS:
    response->a = open_descriptors();
    break;
  case RESIDENT:
    response->a = resident();
    break;
  case COUNTER:
    response->code = haul_counter_read(node, request->name, &response->a);
    break;
  }
}

int owner_main(void) {
  is_owner = true;
  struct request request;
  do {
    struct response response = {0};
    if (read(3, &request, sizeof request) != (ssize_t)sizeof request)
      return 0; /* the test has ended */
    handle(&request, &response);
    child_send(3, &response, sizeof response, -1);
  } while (request.type != END);
  return 0;
}

static struct response call_owner(struct owner *owner, const struct request *request) {
  struct response response;
  child_send(owner->socket, request, sizeof *request, -1);
  child_receive(owner->socket, &response, sizeof response);
  return response;
}

struct haul_node_config patient_config(void) {
  struct haul_node_config config = HAUL_NODE_CONFIG_INIT;
  config.liveness_ns = SANITIZED ? 30 * S : 0;
  return config;
}

void owner_start(struct owner *owner, const char *address, const struct haul_node_config *config) {
  struct request request = {.type = OPEN, .config = config ? *config : patient_config()};
  snprintf(request.name, sizeof request.name, "%s", address);
  owner->pid = child_start(OWNER_MODE, &owner->socket);
  struct response response = call_owner(owner, &request);
  must(response.code, "the owner's node");
  memcpy(owner->address, response.text, sizeof owner->address);
}

void owner_go_on(struct owner *owner) {
  kill(owner->pid, SIGCONT);
}

/* A failed test may have left it stopped. */
int owner_end(struct owner *owner) {
  owner_go_on(owner);
  call_owner(owner, &(struct request){.type = END});
  return child_end(owner->pid, owner->socket);
}

void owner_kill(struct owner *owner) {
  kill(owner->pid, SIGKILL);
  child_end(owner->pid, owner->socket);
}

void owner_stop(struct owner *owner) {
  child_stop(owner->pid);
}

static struct request named(enum request_type type, unsigned slot, const char *name,
                            unsigned rights) {
  struct request request = {.type = type, .slot = slot, .rights = rights, .named = name != NULL};
  snprintf(request.name, sizeof request.name, "%s", name ? name : "");
  return request;
}

int owner_publish(struct owner *owner, unsigned slot, enum memory_kind kind, uint64_t length,
                  const char *name, unsigned rights) {
  struct request request = named(PUBLISH, slot, name, rights);
  request.kind = kind;
  request.a = length;
  return call_owner(owner, &request).code;
}

int owner_name(struct owner *owner, unsigned slot, const char *name, unsigned rights) {
  struct request request = named(NAME, slot, name, rights);
  return call_owner(owner, &request).code;
}

int owner_unpublish(struct owner *owner, unsigned slot, const char *name) {
  struct request request = named(UNPUBLISH, slot, name, 0);
  return call_owner(owner, &request).code;
}

int owner_release(struct owner *owner, unsigned slot) {
  return call_owner(owner, &(struct request){.type = RELEASE, .slot = slot}).code;
}

bool owner_pages_untouched(struct owner *owner, unsigned slot) {
  return call_owner(owner, &(struct request){.type = UNTOUCHED, .slot = slot}).a;
}

int owner_fill(struct owner *owner, unsigned slot, uint64_t offset, uint64_t length,
               uint64_t seed) {
  return call_owner(
             owner,
             &(struct request){.type = FILL, .slot = slot, .a = offset, .b = length, .c = seed})
      .code;
}

uint64_t owner_sum(struct owner *owner, unsigned slot, uint64_t offset, uint64_t length) {
  return call_owner(owner, &(struct request){.type = SUM, .slot = slot, .a = offset, .b = length})
      .a;
}

void owner_add(struct owner *owner, unsigned slot, uint64_t offset, uint64_t times) {
  call_owner(owner, &(struct request){.type = ADD, .slot = slot, .a = offset, .b = times});
}

int owner_receive(struct owner *owner, unsigned slot, uint64_t length, uint64_t *tag,
                  uint64_t *message_length, uint64_t *sum) {
  struct response response =
      call_owner(owner, &(struct request){.type = RECEIVE, .slot = slot, .a = length});
  *tag = response.a;
  *message_length = response.b;
  *sum = response.c;
  return response.code;
}

unsigned owner_descriptors(struct owner *owner) {
  return (unsigned)call_owner(owner, &(struct request){.type = DESCRIPTORS}).a;
}

uint64_t owner_resident(struct owner *owner) {
  return call_owner(owner, &(struct request){.type = RESIDENT}).a;
}

uint64_t owner_counter(struct owner *owner, const char *name) {
  struct request request = named(COUNTER, 0, name, 0);
  return call_owner(owner, &request).a;
}

uint64_t test_seed(void) {
  static uint64_t seed;
  if (seed)
    return seed;
  const char *given = getenv("HAUL_TEST_SEED");
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  seed = given ? strtoull(given, NULL, 0) : (uint64_t)now.tv_nsec ^ (uint64_t)now.tv_sec << 20;
  seed |= 1;
  print_message("HAUL_TEST_SEED=%llu repeats this run\n", (unsigned long long)seed);
  return seed;
}

/* xorshift64 (Marsaglia 2003). */
uint64_t next_random(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}
