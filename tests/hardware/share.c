/* SPDX-License-Identifier: MIT
 * GPU memory between two processes by the public calls: each test has an owner and an importer, and
 * one of the two is another process. On a GPU, or on the double of its driver. */
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

/* ---- What each of the two can be asked to do ---- */

enum what { MAKE, EXPORT, IMPORT, FILL, COMPARE, RELEASE };

struct order {
  enum what what;
  unsigned slot;
  uint64_t length, seed;
  struct haul_ticket ticket;
};

struct answer {
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

/* The bytes go through host memory: no processor touches a GPU's. */
static int fill_or_compare(const struct order *order) {
  haul_region *region = regions[order->slot], *bytes;
  bool fills = order->what == FILL;
  int code = haul_region_alloc(node, (struct haul_place){HAUL_HOST, 0}, order->length,
                               HAUL_REGION_PRIVATE, &bytes);
  if (code)
    return code;
  if (fills)
    pattern_fill(haul_region_address(bytes), order->length, order->seed);
  code =
      haul_region_copy(fills ? region : bytes, 0, fills ? bytes : region, 0, order->length, BOUND);
  if (code == 0 && !fills)
    code = compare(bytes, order->length, order->seed);
  haul_region_release(bytes);
  return code;
}

/* A descriptor comes with IMPORT and goes with EXPORT; -1: none. */
static int obey(const struct order *order, int descriptor, struct answer *answer) {
  haul_region **region = &regions[order->slot];
  int given = -1;
  memset(answer, 0, sizeof *answer);
  switch (order->what) {
  case MAKE:
    answer->code = haul_region_alloc(node, device(), order->length, 0, region);
    break;
  case EXPORT:
    answer->code = haul_region_export(*region, BOTH, NULL, &answer->ticket, &given);
    break;
  case IMPORT:
    answer->code = haul_region_import(node, &order->ticket, descriptor, region);
    break;
  case FILL:
  case COMPARE:
    answer->code = fill_or_compare(order);
    break;
  case RELEASE:
    haul_region_release(*region);
    *region = NULL;
    break;
  }
  if (descriptor >= 0)
    close(descriptor);
  if (answer->code)
    snprintf(answer->text, sizeof answer->text, "%s", haul_error_last()->text);
  else if (*region) {
    answer->place = haul_region_place(*region);
    answer->length = haul_region_length(*region);
  }
  return given;
}

/* ---- The two processes ---- */

/* `child` 0: this process. */
struct side {
  pid_t child;
  int socket;
};

static _Noreturn void serve(void) {
  struct order order;
  struct answer answer;
  assert_works(haul_node_open(NULL, &node));
  for (;;) {
    int descriptor = child_receive(3, &order, sizeof order);
    int given = obey(&order, descriptor, &answer);
    child_send(3, &answer, sizeof answer, given);
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

/* In the middle of what it does. */
static void kill_other(const struct side *side) {
  int status;
  if (side->child == 0)
    return;
  kill(side->child, SIGKILL);
  waitpid(side->child, &status, 0);
  close(side->socket);
}

/* Returns the descriptor that came back, or -1. Takes `descriptor`. */
static int ask(const struct side *side, const struct order *order, int descriptor,
               struct answer *answer) {
  if (side->child == 0)
    return obey(order, descriptor, answer);
  child_send(side->socket, order, sizeof *order, descriptor);
  if (descriptor >= 0)
    close(descriptor);
  return child_receive(side->socket, answer, sizeof *answer);
}

static void tell(const struct side *side, struct order order) {
  struct answer answer;
  ask(side, &order, -1, &answer);
  if (answer.code)
    fail_msg("order %d in slot %u: %s: %s", order.what, order.slot, haul_error_name(answer.code),
             answer.text);
}

static int export_of(const struct side *owner, unsigned slot, struct haul_ticket *ticket) {
  struct answer answer;
  int descriptor = ask(owner, &(struct order){.what = EXPORT, .slot = slot}, -1, &answer);
  assert_int_equal(answer.code, 0);
  assert_true(descriptor >= 0);
  *ticket = answer.ticket;
  return descriptor;
}

/* `descriptor` -1: by the ticket alone. */
static struct answer import_at(const struct side *importer, unsigned slot,
                               const struct haul_ticket *ticket, int descriptor) {
  struct answer answer;
  ask(importer, &(struct order){.what = IMPORT, .slot = slot, .ticket = *ticket}, descriptor,
      &answer);
  return answer;
}

/* The owner's new region of this length, filled, in slot 0 of both. */
static struct haul_ticket share(const struct side *owner, const struct side *importer,
                                uint64_t length, uint64_t seed) {
  struct haul_ticket ticket;
  tell(owner, (struct order){.what = MAKE, .length = length});
  tell(owner, (struct order){.what = FILL, .length = length, .seed = seed});
  int descriptor = export_of(owner, 0, &ticket);
  struct answer answer = import_at(importer, 0, &ticket, descriptor);
  if (answer.code)
    fail_msg("import of %llu bytes: %s", (unsigned long long)length, answer.text);
  assert_int_equal(answer.length, length);
  return ticket;
}

/* ---- Tests: with the owner here, and with the importer here ---- */

static void pass_tensors(const struct side *owner, const struct side *importer) {
  const uint64_t large = getenv("HAUL_TEST_SLOW") ? 32 * MIB : 256 * MIB;
  const uint64_t lengths[] = {4, 4096, 2 * MIB, 3 * MIB + 4, large};
  for (size_t i = 0; i < COUNT(lengths); i++) {
    uint64_t length = lengths[i], seed = 10 * i;
    share(owner, importer, length, seed);
    tell(importer, (struct order){.what = COMPARE, .length = length, .seed = seed});
    tell(importer, (struct order){.what = FILL, .length = length, .seed = seed + 1});
    tell(owner, (struct order){.what = COMPARE, .length = length, .seed = seed + 1});
    tell(owner, (struct order){.what = FILL, .length = length, .seed = seed + 2});
    tell(importer, (struct order){.what = COMPARE, .length = length, .seed = seed + 2});
    tell(importer, (struct order){.what = RELEASE});
    tell(owner, (struct order){.what = RELEASE});
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

static void a_ticket_alone_opens_what_was_imported(void **state) {
  struct side owner = start_other(), importer = here();
  struct haul_ticket other;
  (void)state;
  struct haul_ticket ticket = share(&owner, &importer, 8 * MIB, 1);
  assert_int_equal(import_at(&importer, 1, &ticket, -1).code, 0);
  tell(&importer, (struct order){.what = COMPARE, .slot = 1, .length = 8 * MIB, .seed = 1});
  tell(&importer, (struct order){.what = RELEASE});
  tell(&importer, (struct order){.what = RELEASE, .slot = 1});
  assert_int_equal(import_at(&importer, 2, &ticket, -1).code, 0);
  tell(&owner, (struct order){.what = FILL, .length = 8 * MIB, .seed = 2});
  tell(&importer, (struct order){.what = COMPARE, .slot = 2, .length = 8 * MIB, .seed = 2});
  tell(&importer, (struct order){.what = RELEASE, .slot = 2});

  tell(&owner, (struct order){.what = MAKE, .slot = 1, .length = MIB});
  close(export_of(&owner, 1, &other));
  assert_int_equal(import_at(&importer, 3, &other, -1).code, HAUL_ETICKET);
  kill_other(&owner);
}

static void an_owner_that_ends_first_leaves_the_bytes(void **state) {
  struct side owner = start_other(), importer = here();
  (void)state;
  share(&owner, &importer, 64 * MIB, 3);
  kill_other(&owner);
  tell(&importer, (struct order){.what = COMPARE, .length = 64 * MIB, .seed = 3});
  tell(&importer, (struct order){.what = FILL, .length = 64 * MIB, .seed = 4});
  tell(&importer, (struct order){.what = COMPARE, .length = 64 * MIB, .seed = 4});
  tell(&importer, (struct order){.what = RELEASE});
}

static void an_owner_that_releases_first_leaves_the_bytes(void **state) {
  struct side owner = here(), importer = start_other();
  (void)state;
  share(&owner, &importer, 64 * MIB, 5);
  tell(&owner, (struct order){.what = RELEASE});
  tell(&owner, (struct order){.what = MAKE, .length = 64 * MIB});
  tell(&owner, (struct order){.what = FILL, .length = 64 * MIB, .seed = 6});
  tell(&importer, (struct order){.what = COMPARE, .length = 64 * MIB, .seed = 5});
  tell(&owner, (struct order){.what = RELEASE});
  kill_other(&importer);
}

static void an_importer_that_ends_first_harms_nobody(void **state) {
  struct side owner = here(), importer = start_other(), next;
  struct haul_ticket ticket;
  (void)state;
  share(&owner, &importer, 64 * MIB, 7);
  kill_other(&importer);
  tell(&owner, (struct order){.what = COMPARE, .length = 64 * MIB, .seed = 7});
  next = start_other();
  int descriptor = export_of(&owner, 0, &ticket);
  assert_int_equal(import_at(&next, 0, &ticket, descriptor).code, 0);
  tell(&next, (struct order){.what = COMPARE, .length = 64 * MIB, .seed = 7});
  tell(&next, (struct order){.what = RELEASE});
  tell(&owner, (struct order){.what = RELEASE});
  kill_other(&next);
}

/* ---- Which GPUs a process sees ---- */

static unsigned count_gpus(void) {
  struct haul_device devices[64];
  size_t count = COUNT(devices);
  unsigned gpus = 0;
  assert_works(haul_device_list(node, devices, &count));
  for (size_t i = 0; i < count && i < COUNT(devices); i++)
    gpus += devices[i].place.kind == HAUL_CUDA;
  return gpus;
}

/* Another process that sees these GPUs; this one has looked already. */
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

static void gpus_in_another_order_are_found(void **state) {
  struct side owner = here(), importer;
  (void)state;
  if (getenv("CUDA_VISIBLE_DEVICES") || count_gpus() < 2 || device().device > 1) {
    print_message("skipped gpus_in_another_order_are_found: it takes two GPUs, and "
                  "CUDA_VISIBLE_DEVICES unset\n");
    skip();
  }
  importer = start_other_with("1,0");
  share(&owner, &importer, 8 * MIB, 8);
  tell(&importer, (struct order){.what = COMPARE, .length = 8 * MIB, .seed = 8});
  tell(&importer, (struct order){.what = FILL, .length = 8 * MIB, .seed = 9});
  tell(&owner, (struct order){.what = COMPARE, .length = 8 * MIB, .seed = 9});
  struct answer answer;
  ask(&importer, &(struct order){.what = FILL, .length = 8, .seed = 9}, -1, &answer);
  assert_int_equal(answer.place.kind, HAUL_CUDA);
  assert_int_equal(answer.place.device, 1 - device().device);
  tell(&owner, (struct order){.what = RELEASE});
  kill_other(&importer);
}

static void a_process_that_does_not_see_the_gpu_is_told(void **state) {
  struct side owner = here(), importer = start_other_with("");
  struct haul_ticket ticket;
  (void)state;
  tell(&owner, (struct order){.what = MAKE, .length = 8 * MIB});
  int descriptor = export_of(&owner, 0, &ticket);
  struct answer answer = import_at(&importer, 0, &ticket, descriptor);
  assert_int_equal(answer.code, HAUL_EPLACE);
  assert_true(answer.text[0]);
  tell(&owner, (struct order){.what = RELEASE});
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
      cmocka_unit_test(a_ticket_alone_opens_what_was_imported),
      cmocka_unit_test(an_owner_that_ends_first_leaves_the_bytes),
      cmocka_unit_test(an_owner_that_releases_first_leaves_the_bytes),
      cmocka_unit_test(an_importer_that_ends_first_harms_nobody),
      cmocka_unit_test(gpus_in_another_order_are_found),
      cmocka_unit_test(a_process_that_does_not_see_the_gpu_is_told),
  };
  return cmocka_run_group_tests_name("hardware/share", tests, open_node, close_node);
}
