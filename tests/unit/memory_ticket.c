/* SPDX-License-Identifier: MIT
 * Tickets are untrusted bytes: first all rejections. */
#include "support/check.h"

#include <string.h>
#include <xxhash.h>

#include "memory/ticket.h"

static struct ticket example(void) {
  struct ticket ticket = {.place = {HAUL_SIM, 3},
                          .length = 4096,
                          .generation = 77,
                          .rights = HAUL_READ | HAUL_WRITE,
                          .has_layout = true,
                          .layout = {.type = 2,
                                     .bits = 16,
                                     .lanes = 1,
                                     .dimensions = 2,
                                     .offset = 64,
                                     .shape = {4, 8},
                                     .strides = {8, 1}}};
  memset(ticket.capability, 0xc5, sizeof ticket.capability);
  memset(ticket.extra, 0xe7, sizeof ticket.extra);
  return ticket;
}

static void pack_example(struct haul_ticket *packed) {
  struct ticket ticket = example();
  ticket_pack(&ticket, packed);
}

/* A forger can compute the checksum. */
static void sign(struct haul_ticket *packed) {
  size_t summed = sizeof packed->bytes - 8;
  uint64_t sum = XXH3_64bits(packed->bytes, summed);
  for (size_t i = 0; i < 8; i++)
    packed->bytes[summed + i] = (uint8_t)(sum >> (8 * i));
}

static void rejects_zeros(void **state) {
  (void)state;
  struct haul_ticket packed = {{0}};
  struct ticket ticket;
  assert_fails(HAUL_ETICKET, ticket_unpack(&packed, &ticket));
}

static void rejects_each_flipped_bit(void **state) {
  (void)state;
  struct haul_ticket packed;
  struct ticket ticket;
  pack_example(&packed);
  for (size_t bit = 0; bit < 8 * sizeof packed.bytes; bit++) {
    packed.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    assert_fails(HAUL_ETICKET, ticket_unpack(&packed, &ticket));
    packed.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
  }
}

static void rejects_other_versions(void **state) {
  (void)state;
  struct haul_ticket packed;
  struct ticket ticket;
  pack_example(&packed);
  packed.bytes[4] = 9;
  sign(&packed);
  assert_fails(HAUL_ETICKET, ticket_unpack(&packed, &ticket));
  assert_non_null(strstr(haul_error_last()->text, "version 9"));
}

static void rejects_layout_and_token_at_once(void **state) {
  (void)state;
  struct haul_ticket packed;
  struct ticket ticket;
  pack_example(&packed);
  packed.bytes[6] |= 2;
  sign(&packed);
  assert_fails(HAUL_ETICKET, ticket_unpack(&packed, &ticket));
}

static void carries_a_token(void **state) {
  (void)state;
  struct ticket lent = example(), found;
  struct haul_ticket packed;
  lent.has_layout = false;
  lent.has_token = true;
  for (unsigned i = 0; i < IPC_TOKEN; i++)
    lent.token[i] = (uint8_t)(i * 7 + 1);
  memset(lent.identity, 0x1d, sizeof lent.identity);
  ticket_pack(&lent, &packed);
  assert_works(ticket_unpack(&packed, &found));
  assert_true(found.has_token && !found.has_layout);
  assert_memory_equal(found.token, lent.token, IPC_TOKEN);
  assert_memory_equal(found.identity, lent.identity, sizeof lent.identity);
  assert_memory_equal(found.extra, lent.extra, sizeof lent.extra);
}

static void rejects_unknown_flags(void **state) {
  (void)state;
  struct haul_ticket packed;
  struct ticket ticket;
  pack_example(&packed);
  packed.bytes[6] |= 0x80;
  sign(&packed);
  assert_fails(HAUL_ETICKET, ticket_unpack(&packed, &ticket));
}

static void rejects_forged_fields(void **state) {
  (void)state;
  struct ticket bad[8];
  for (size_t i = 0; i < COUNT(bad); i++)
    bad[i] = example();
  bad[0].length = 0;
  bad[1].length = UINT64_MAX;
  bad[2].offset = UINT64_MAX - 100;
  bad[3].offset = INT64_MAX;
  bad[4].rights = HAUL_WRITE;
  bad[5].rights = 0xff;
  bad[6].layout.dimensions = 9;
  bad[7].layout.shape[0] = INT64_MAX;
  for (size_t i = 0; i < COUNT(bad); i++) {
    struct haul_ticket packed;
    struct ticket ticket;
    ticket_pack(&bad[i], &packed);
    assert_fails(HAUL_ETICKET, ticket_unpack(&packed, &ticket));
  }
}

static void carries_every_field(void **state) {
  (void)state;
  struct haul_ticket packed;
  struct ticket before = example(), after;
  before.offset = 12;
  ticket_pack(&before, &packed);
  assert_works(ticket_unpack(&packed, &after));
  assert_int_equal(after.place.kind, before.place.kind);
  assert_int_equal(after.place.device, before.place.device);
  assert_int_equal(after.length, before.length);
  assert_int_equal(after.offset, before.offset);
  assert_int_equal(after.generation, before.generation);
  assert_int_equal(after.rights, before.rights);
  assert_memory_equal(after.capability, before.capability, sizeof after.capability);
  assert_memory_equal(after.extra, before.extra, sizeof after.extra);
  assert_true(after.has_layout);
  assert_memory_equal(&after.layout, &before.layout, sizeof after.layout);
}

static void works_without_a_layout(void **state) {
  (void)state;
  struct haul_ticket packed;
  struct ticket before = example(), after;
  before.has_layout = false;
  before.layout.dimensions = 99; /* neither checked nor carried */
  ticket_pack(&before, &packed);
  assert_works(ticket_unpack(&packed, &after));
  assert_false(after.has_layout);
  assert_int_equal(after.layout.dimensions, 0);
}

static void layouts_outside_the_region_are_rejected(void **state) {
  (void)state;
  const struct haul_tensor bad[] = {
      {.bits = 8, .lanes = 1, .dimensions = 9},
      {.bits = 0, .lanes = 1},
      {.bits = 8, .lanes = 0},
      {.bits = 8, .lanes = 1, .offset = 101},
      {.bits = 8, .lanes = 1, .offset = 100},
      {.bits = 8, .lanes = 1, .offset = UINT64_MAX},
      {.bits = 8, .lanes = 1, .dimensions = 1, .shape = {-1}, .strides = {1}},
      {.bits = 8, .lanes = 1, .dimensions = 1, .shape = {101}, .strides = {1}},
      {.bits = 8, .lanes = 1, .dimensions = 1, .shape = {51}, .strides = {2}},
      {.bits = 8, .lanes = 1, .dimensions = 1, .shape = {2}, .strides = {-1}},
      {.bits = 255, .lanes = 65535, .dimensions = 1, .shape = {2}, .strides = {INT64_MAX}},
      {.bits = 8, .lanes = 1, .dimensions = 1, .shape = {INT64_MAX}, .strides = {INT64_MIN}},
      {.bits = 8, .lanes = 1, .dimensions = 2, .shape = {2, 2}, .strides = {INT64_MAX, INT64_MAX}},
      {.bits = 4, .lanes = 1, .dimensions = 1, .shape = {201}, .strides = {1}},
  };
  for (size_t i = 0; i < COUNT(bad); i++)
    assert_fails(HAUL_EINVAL, tensor_check(&bad[i], 100));
}

static void layouts_within_the_region_are_accepted(void **state) {
  (void)state;
  const struct haul_tensor good[] = {
      {.bits = 8, .lanes = 1, .offset = 99},
      {.bits = 8, .lanes = 1, .dimensions = 1, .shape = {100}, .strides = {1}},
      {.bits = 8, .lanes = 1, .dimensions = 1, .shape = {50}, .strides = {2}},
      {.bits = 8, .lanes = 1, .dimensions = 1, .offset = 99, .shape = {100}, .strides = {-1}},
      {.bits = 8, .lanes = 1, .dimensions = 1, .shape = {1000}, .strides = {0}},
      {.bits = 8, .lanes = 1, .dimensions = 2, .offset = 100, .shape = {0, 9}, .strides = {9, 1}},
      {.bits = 4, .lanes = 1, .dimensions = 1, .shape = {200}, .strides = {1}},
      {.bits = 16, .lanes = 2, .dimensions = 2, .shape = {5, 5}, .strides = {5, 1}},
  };
  for (size_t i = 0; i < COUNT(good); i++)
    assert_works(tensor_check(&good[i], 100));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rejects_zeros),
      cmocka_unit_test(rejects_each_flipped_bit),
      cmocka_unit_test(rejects_other_versions),
      cmocka_unit_test(rejects_layout_and_token_at_once),
      cmocka_unit_test(carries_a_token),
      cmocka_unit_test(rejects_unknown_flags),
      cmocka_unit_test(rejects_forged_fields),
      cmocka_unit_test(carries_every_field),
      cmocka_unit_test(works_without_a_layout),
      cmocka_unit_test(layouts_outside_the_region_are_rejected),
      cmocka_unit_test(layouts_within_the_region_are_accepted),
  };
  return cmocka_run_group_tests_name("memory/ticket", tests, NULL, NULL);
}
