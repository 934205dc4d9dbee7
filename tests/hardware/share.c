/* SPDX-License-Identifier: MIT
 * Sharing GPU memory between two processes by the public calls: each test has an owner and an
 * importer, one of them in a child process. Runs on a GPU, or with the mocked driver. */
#include "support/check.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/child.h"

#define MIB   ((uint64_t)1 << 20)
#define SLOTS 4
#define BOUND haul_deadline_in(INT64_C(60000000000))
#define BOTH  (HAUL_READ | HAUL_WRITE)

enum operation { ALLOC, EXPORT, IMPORT, FILL, COMPARE, RELEASE };

struct request {
  enum operation operation;
  unsigned slot;
  uint64_t length, seed;
  struct haul_ticket ticket;
};

struct response {
  int code; /* COMPARE: 0 or HAUL_ECHECKSUM */
  struct haul_place place;
  uint64_t length;
  struct haul_ticket ticket;
  char text[192];
};

static haul_node *node;
static haul_region *regions[SLOTS];

static struct haul_place device(void) {
  const char *name = getenv("HAUL_TEST_DEVICE");
  struct haul_place place;
  assert_works(haul_place_parse(name ? name : "cuda:0", &place));
  return place;
}

static int compare(const haul_region *bytes, uint64_t length, uint64_t seed) {
  char *wanted = malloc(length);
  assert_non_null(wanted);
  pattern_fill(wanted, length, seed);
  int differs = memcmp(haul_region_address(bytes), wanted, length);
  free(wanted);
  return differs ? HAUL_ECHECKSUM : 0;
}

/* Through host memory, as the CPU cannot access the GPU's. */
static int fill_or_compare(const struct request *request) {
  haul_region *region = regions[request->slot], *bytes;
  bool fills = request->operation == FILL;
  int code = haul_region_alloc(node, (struct haul_place){HAUL_HOST, 0}, request->length,
                               HAUL_REGION_PRIVATE, &bytes);
  if (code)
    return code;
  if (fills)
    pattern_fill(haul_region_address(bytes), request->length, request->seed);
  code = haul_region_copy(fills ? region : bytes, 0, fills ? bytes : region, 0, request->length,
                          BOUND);
  if (code == 0 && !fills)
    code = compare(bytes, request->length, request->seed);
  haul_region_release(bytes);
  return code;
}

/* IMPORT takes a descriptor, EXPORT returns one; else -1. */
static int perform(const struct request *request, int descriptor, struct response *response) {
  haul_region **region = &regions[request->slot];
  int given = -1;
  memset(response, 0, sizeof *response);
  switch (request->operation) {
  case ALLOC:
    response->code = haul_region_alloc(node, device(), request->length, 0, region);
    break;
  case EXPORT:
    response->code = haul_region_export(*region, BOTH, NULL, &response->ticket, &given);
    break;
  case IMPORT:
    response->code = haul_region_import(node, &request->ticket, descriptor, region);
    break;
  case FILL:
  case COMPARE:
    response->code = fill_or_compare(request);
    break;
  case RELEASE:
    haul_region_release(*region);
    *region = NULL;
    break;
  }
  if (descriptor >= 0)
    close(descriptor);
  if (response->code)
    snprintf(response->text, sizeof response->text, "%s", haul_error_last()->text);
  else if (*region) {
    response->place = haul_region_place(*region);
    response->length = haul_region_length(*region);
  }
  return given;
}

/* `child` 0: this process. */
struct side {
  pid_t child;
  int socket;
};

static _Noreturn void serve(void) {
  struct request request;
  struct response response;
  assert_works(haul_node_open(NULL, &node));
  for (;;) {
    int descriptor = child_receive(3, &request, sizeof request);
    int given = perform(&request, descriptor, &response);
    child_send(3, &response, sizeof response, given);
    if (given >= 0)
      close(given);
  }
}

static struct side here(void) {
  return (struct side){0, -1};
}

static struct side start_other(void) {
  struct side side;
  side.child = child_start("serve", &side.socket);
  return side;
}

static void kill_other(const struct side *side) {
  int status;
  if (side->child == 0)
    return;
  kill(side->child, SIGKILL);
  waitpid(side->child, &status, 0);
  close(side->socket);
}

/* Returns the received descriptor, or -1. Takes `descriptor`. */
static int send_request(const struct side *side, const struct request *request, int descriptor,
                        struct response *response) {
  if (side->child == 0)
    return perform(request, descriptor, response);
  child_send(side->socket, request, sizeof *request, descriptor);
  if (descriptor >= 0)
    close(descriptor);
  return child_receive(side->socket, response, sizeof *response);
}

static void run(const struct side *side, struct request request) {
  struct response response;
  send_request(side, &request, -1, &response);
  if (response.code)
    fail_msg("request %d in slot %u: %s: %s", request.operation, request.slot,
             haul_error_name(response.code), response.text);
}

static int export_of(const struct side *owner, unsigned slot, struct haul_ticket *ticket) {
  struct response response;
  int descriptor =
      send_request(owner, &(struct request){.operation = EXPORT, .slot = slot}, -1, &response);
  assert_int_equal(response.code, 0);
  assert_true(descriptor >= 0);
  *ticket = response.ticket;
  return descriptor;
}

/* `descriptor` -1: only by the ticket. */
static struct response import_at(const struct side *importer, unsigned slot,
                                 const struct haul_ticket *ticket, int descriptor) {
  struct response response;
  send_request(importer, &(struct request){.operation = IMPORT, .slot = slot, .ticket = *ticket},
               descriptor, &response);
  return response;
}

/* Shares a new filled region of the owner, in slot 0 of both. */
static struct haul_ticket share(const struct side *owner, const struct side *importer,
                                uint64_t length, uint64_t seed) {
  struct haul_ticket ticket;
  run(owner, (struct request){.operation = ALLOC, .length = length});
  run(owner, (struct request){.operation = FILL, .length = length, .seed = seed});
  int descriptor = export_of(owner, 0, &ticket);
  struct response response = import_at(importer, 0, &ticket, descriptor);
  if (response.code)
    fail_msg("import of %llu bytes: %s", (unsigned long long)length, response.text);
  assert_int_equal(response.length, length);
  return ticket;
}

static void pass_tensors(const struct side *owner, const struct side *importer) {
  const uint64_t large = getenv("HAUL_TEST_SLOW") ? 32 * MIB : 256 * MIB;
  const uint64_t lengths[] = {4, 4096, 2 * MIB, 3 * MIB + 4, large};
  for (size_t i = 0; i < COUNT(lengths); i++) {
    uint64_t length = lengths[i], seed = 10 * i;
    share(owner, importer, length, seed);
    run(importer, (struct request){.operation = COMPARE, .length = length, .seed = seed});
    run(importer, (struct request){.operation = FILL, .length = length, .seed = seed + 1});
    run(owner, (struct request){.operation = COMPARE, .length = length, .seed = seed + 1});
    run(owner, (struct request){.operation = FILL, .length = length, .seed = seed + 2});
    run(importer, (struct request){.operation = COMPARE, .length = length, .seed = seed + 2});
    run(importer, (struct request){.operation = RELEASE});
    run(owner, (struct request){.operation = RELEASE});
  }
}

static void tensors_of_this_process(void **state) {
  struct side owner = here(), importer = start_other();
  (void)state;
  pass_tensors(&owner, &importer);
  kill_other(&importer);
}

static void tensors_of_the_other_process(void **state) {
  struct side owner = start_other(), importer = here();
  (void)state;
  pass_tensors(&owner, &importer);
  kill_other(&owner);
}

static void a_further_ticket_needs_no_descriptor(void **state) {
  struct side owner = start_other(), importer = here();
  struct haul_ticket other;
  (void)state;
  struct haul_ticket ticket = share(&owner, &importer, 8 * MIB, 1);
  assert_int_equal(import_at(&importer, 1, &ticket, -1).code, 0);
  run(&importer, (struct request){.operation = COMPARE, .slot = 1, .length = 8 * MIB, .seed = 1});
  run(&importer, (struct request){.operation = RELEASE});
  run(&importer, (struct request){.operation = RELEASE, .slot = 1});
  assert_int_equal(import_at(&importer, 2, &ticket, -1).code, 0);
  run(&owner, (struct request){.operation = FILL, .length = 8 * MIB, .seed = 2});
  run(&importer, (struct request){.operation = COMPARE, .slot = 2, .length = 8 * MIB, .seed = 2});
  run(&importer, (struct request){.operation = RELEASE, .slot = 2});

  run(&owner, (struct request){.operation = ALLOC, .slot = 1, .length = MIB});
  close(export_of(&owner, 1, &other));
  assert_int_equal(import_at(&importer, 3, &other, -1).code, HAUL_ETICKET);
  kill_other(&owner);
}

static void memory_outlives_its_owner(void **state) {
  struct side owner = start_other(), importer = here();
  (void)state;
  share(&owner, &importer, 64 * MIB, 3);
  kill_other(&owner);
  run(&importer, (struct request){.operation = COMPARE, .length = 64 * MIB, .seed = 3});
  run(&importer, (struct request){.operation = FILL, .length = 64 * MIB, .seed = 4});
  run(&importer, (struct request){.operation = COMPARE, .length = 64 * MIB, .seed = 4});
  run(&importer, (struct request){.operation = RELEASE});
}

static void memory_outlives_its_release(void **state) {
  struct side owner = here(), importer = start_other();
  (void)state;
  share(&owner, &importer, 64 * MIB, 5);
  run(&owner, (struct request){.operation = RELEASE});
  run(&owner, (struct request){.operation = ALLOC, .length = 64 * MIB});
  run(&owner, (struct request){.operation = FILL, .length = 64 * MIB, .seed = 6});
  run(&importer, (struct request){.operation = COMPARE, .length = 64 * MIB, .seed = 5});
  run(&owner, (struct request){.operation = RELEASE});
  kill_other(&importer);
}

static void an_importer_may_end_first(void **state) {
  struct side owner = here(), importer = start_other(), next;
  struct haul_ticket ticket;
  (void)state;
  share(&owner, &importer, 64 * MIB, 7);
  kill_other(&importer);
  run(&owner, (struct request){.operation = COMPARE, .length = 64 * MIB, .seed = 7});
  next = start_other();
  int descriptor = export_of(&owner, 0, &ticket);
  assert_int_equal(import_at(&next, 0, &ticket, descriptor).code, 0);
  run(&next, (struct request){.operation = COMPARE, .length = 64 * MIB, .seed = 7});
  run(&next, (struct request){.operation = RELEASE});
  run(&owner, (struct request){.operation = RELEASE});
  kill_other(&next);
}

static unsigned count_gpus(void) {
  struct haul_device devices[64];
  size_t count = COUNT(devices);
  unsigned gpus = 0;
  assert_works(haul_device_list(node, devices, &count));
  for (size_t i = 0; i < count && i < COUNT(devices); i++)
    gpus += devices[i].place.kind == HAUL_CUDA;
  return gpus;
}

/* Another process with CUDA_VISIBLE_DEVICES; this one has initialized the driver. */
static struct side start_other_with(const char *visible) {
  const char *before = getenv("CUDA_VISIBLE_DEVICES");
  char *kept = before ? strdup(before) : NULL;
  setenv("CUDA_VISIBLE_DEVICES", visible, 1);
  struct side side = start_other();
  if (kept)
    setenv("CUDA_VISIBLE_DEVICES", kept, 1);
  else
    unsetenv("CUDA_VISIBLE_DEVICES");
  free(kept);
  return side;
}

static void gpus_in_another_order(void **state) {
  struct side owner = here(), importer;
  (void)state;
  if (getenv("CUDA_VISIBLE_DEVICES") || count_gpus() < 2 || device().device > 1) {
    print_message("skipped gpus_in_another_order: needs two GPUs, and "
                  "CUDA_VISIBLE_DEVICES unset\n");
    skip();
  }
  importer = start_other_with("1,0");
  share(&owner, &importer, 8 * MIB, 8);
  run(&importer, (struct request){.operation = COMPARE, .length = 8 * MIB, .seed = 8});
  run(&importer, (struct request){.operation = FILL, .length = 8 * MIB, .seed = 9});
  run(&owner, (struct request){.operation = COMPARE, .length = 8 * MIB, .seed = 9});
  struct response response;
  send_request(&importer, &(struct request){.operation = FILL, .length = 8, .seed = 9}, -1,
               &response);
  assert_int_equal(response.place.kind, HAUL_CUDA);
  assert_int_equal(response.place.device, 1 - device().device);
  run(&owner, (struct request){.operation = RELEASE});
  kill_other(&importer);
}

static void an_invisible_gpu_is_an_error(void **state) {
  struct side owner = here(), importer = start_other_with("");
  struct haul_ticket ticket;
  (void)state;
  run(&owner, (struct request){.operation = ALLOC, .length = 8 * MIB});
  int descriptor = export_of(&owner, 0, &ticket);
  struct response response = import_at(&importer, 0, &ticket, descriptor);
  assert_int_equal(response.code, HAUL_EPLACE);
  assert_true(response.text[0]);
  run(&owner, (struct request){.operation = RELEASE});
  kill_other(&importer);
}

static int open_node(void **state) {
  (void)state;
  assert_works(haul_node_open(NULL, &node));
  return 0;
}

static int close_node(void **state) {
  (void)state;
  haul_node_close(node);
  return 0;
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "serve") == 0)
    serve();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tensors_of_this_process),
      cmocka_unit_test(tensors_of_the_other_process),
      cmocka_unit_test(a_further_ticket_needs_no_descriptor),
      cmocka_unit_test(memory_outlives_its_owner),
      cmocka_unit_test(memory_outlives_its_release),
      cmocka_unit_test(an_importer_may_end_first),
      cmocka_unit_test(gpus_in_another_order),
      cmocka_unit_test(an_invisible_gpu_is_an_error),
  };
  return cmocka_run_group_tests_name("hardware/share", tests, open_node, close_node);
}
