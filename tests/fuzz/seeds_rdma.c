/* SPDX-License-Identifier: MIT
 * Conversations on the rdma channel, as rdma.c takes them: a byte that says what this side does,
 * and what the peer says. */
#include <stdio.h>

#include "fabric/rdma/frame.h"
#include "rig.h"
#include "seeds.h"

#include "haul/haul.h"

enum { ASKS = 1, SIM = 2, SUMS = 4, LOOPED = 8, REVOKES = 16, CANCELS = 32, ADDS = 128 };

static void put(struct wire *wire, const struct rdma_record *record) {
  uint8_t *at = wire_take(wire, RDMA_RECORD);
  RIG_ASSERT(at);
  rdma_pack(record, at);
}

static void put_plain(struct wire *wire, enum rdma_record_type type, uint32_t request,
                      unsigned slot) {
  put(wire, &(struct rdma_record){
                .type = (uint16_t)type, .request = request, .handle = slot ? RIG_HANDLE(slot) : 0});
}

/* The last byte of an IPv4 address. */
static struct rdma_end end_at(uint8_t address) {
  return (struct rdma_end){.nic = "fuzzer",
                           .ethernet = 1,
                           .mtu = 3,
                           .reads = 16,
                           .receives = 128,
                           .atomics = 2,
                           .gid = {[10] = 0xff, 0xff, 10, 0, 0, address},
                           .queue_pair = 77,
                           .packet = 9};
}

static void put_greeting(struct wire *wire) {
  put(wire, &(struct rdma_record){.type = RDMA_HELLO, .rails = 1, .ends = {end_at(1)}});
  put_plain(wire, RDMA_READY, 0, 0);
}

/* A hello of two records; `more`: what the second says that follows it. */
static void put_long_greeting(struct wire *wire, uint8_t more, uint16_t paired) {
  struct rdma_record hello = {.type = RDMA_HELLO, .rails = 4, .more = 2, .paired = paired};
  for (uint8_t i = 0; i < 4; i++)
    hello.ends[i] = end_at(i);
  hello.ends[2] = (struct rdma_end){.nic = "infiniband", .mtu = 4, .lid = 9, .gid = {[7] = 3}};
  hello.ends[3] = (struct rdma_end){.nic = "local", .ethernet = 1, .mtu = 5, .gid = {0xfe, 0x80}};
  put(wire, &hello);
  hello.rails = 2;
  hello.more = more;
  put(wire, &hello);
  put_plain(wire, RDMA_READY, 0, 0);
}

static void greetings(void) {
  static const struct {
    const char *name;
    unsigned kind;
    uint8_t more;
    uint16_t paired;
  } seeds[] = {
      {"greeting-long", 0, 0, 0},           {"greeting-goes-on", 0, 1, 0},
      {"greeting-by-number", LOOPED, 0, 0}, {"greeting-paired", LOOPED, 0, 1},
      {"greeting-beyond", LOOPED, 0, 0x3f},
  };
  for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
    struct wire wire = seed_begin();
    wire_put8(&wire, (uint8_t)seeds[i].kind);
    put_long_greeting(&wire, seeds[i].more, seeds[i].paired);
    put_plain(&wire, RDMA_ATTACH, 1, RIG_HOST);
    seed_save("rdma", seeds[i].name, &wire);
  }
  struct wire wire = seed_begin();
  wire_put8(&wire, LOOPED);
  put(&wire,
      &(struct rdma_record){.type = RDMA_HELLO, .rails = 1, .paired = 1, .ends = {end_at(1)}});
  put_plain(&wire, RDMA_READY, 0, 0);
  seed_save("rdma", "greeting-one-paired", &wire);
}

static struct wire start(unsigned kind) {
  struct wire wire = seed_begin();
  wire_put8(&wire, (uint8_t)kind);
  put_greeting(&wire);
  return wire;
}

static struct rdma_record question(enum rdma_record_type type, unsigned slot, uint64_t at) {
  return (struct rdma_record){.type = (uint16_t)type,
                              .request = 9,
                              .handle = RIG_HANDLE(slot),
                              .at = at,
                              .span_count = 2,
                              .spans = {{0, 4096}, {RIG_BYTES - 4096, 4096}}};
}

static void put_question(struct wire *wire, enum rdma_record_type type, unsigned slot,
                         uint64_t at) {
  struct rdma_record record = question(type, slot, at);
  put(wire, &record);
}

static void attaching(void) {
  for (unsigned slot = RIG_HOST; slot <= RIG_WRAPPED + 1; slot++) {
    char name[32];
    struct wire wire = start(slot % 2 ? 0 : REVOKES);
    put_plain(&wire, RDMA_ATTACH, 1, slot);
    put_plain(&wire, RDMA_ATTACH, 2, slot);
    put_question(&wire, RDMA_CHECKSUM, slot, 0);
    put_plain(&wire, RDMA_FENCE, 3, slot);
    put_question(&wire, RDMA_COPY_IN, slot, 0);
    put_question(&wire, RDMA_COPY_OUT, slot, 1 << 20);
    put_plain(&wire, RDMA_DETACH, 0, slot);
    put_plain(&wire, RDMA_REVOKE_ACK, 0, slot);
    snprintf(name, sizeof name, "owner-%u", slot);
    seed_save("rdma", name, &wire);
  }
}

/* What is well-formed and not allowed, or not now. */
static void bad_questions(void) {
  struct rdma_record record = question(RDMA_COPY_OUT, RIG_SIM, UINT64_MAX - 4096);
  struct wire wire = start(0);
  put_plain(&wire, RDMA_ATTACH, 1, RIG_SIM);
  put(&wire, &record);
  record.at = (uint64_t)8 << 20;
  put(&wire, &record);
  record.at = 0;
  record.spans[1] = (struct rdma_span){UINT64_MAX - 1, 4};
  put(&wire, &record);
  record.spans[1] = (struct rdma_span){RIG_BYTES - 1, 2};
  put(&wire, &record);
  record.type = RDMA_CHECKSUM;
  record.span_count = RDMA_SPANS;
  for (size_t i = 0; i < RDMA_SPANS; i++)
    record.spans[i] = (struct rdma_span){0, RIG_BYTES};
  put(&wire, &record);
  put_plain(&wire, RDMA_RESPONSE, 9, RIG_SIM);
  put_plain(&wire, RDMA_BROKEN_ACK, 0, 0);
  seed_save("rdma", "owner-refused", &wire);
}

static void endings(void) {
  struct wire wire = start(0);
  put_plain(&wire, RDMA_ATTACH, 1, RIG_SIM);
  put_question(&wire, RDMA_COPY_OUT, RIG_SIM, 0);
  put_plain(&wire, RDMA_BROKEN, 0, 0);
  put_question(&wire, RDMA_COPY_IN, RIG_SIM, 0);
  put_plain(&wire, RDMA_BROKEN_ACK, 0, 0);
  seed_save("rdma", "owner-broken", &wire);
  wire = seed_begin();
  wire_put8(&wire, 0);
  put_plain(&wire, RDMA_BROKEN, 0, 0);
  put_greeting(&wire);
  seed_save("rdma", "owner-broken-first", &wire);
  wire = start(0);
  put_greeting(&wire);
  seed_save("rdma", "owner-twice", &wire);
  wire = start(0);
  put_plain(&wire, RDMA_DETACH, 0, RIG_HOST);
  seed_save("rdma", "owner-detach", &wire);
}

static void put_attached(struct wire *wire, unsigned flags, int status) {
  struct rdma_record record = {.type = RDMA_ATTACHED,
                               .request = 1,
                               .handle = RIG_HANDLE(RIG_HOST),
                               .status = status,
                               .address = 0x100000,
                               .length = RIG_BYTES,
                               .rails = 1,
                               .flags = (uint8_t)flags,
                               .slots = flags & RDMA_STAGED ? 8 : 0,
                               .number = 1,
                               .keys = {0x100}};
  if (status)
    snprintf(record.reason, sizeof record.reason, "it is private");
  put(wire, &record);
}

static void put_answers(struct wire *wire, unsigned flags, int status) {
  if (flags == RDMA_FENCED_WRITES)
    put(wire, &(struct rdma_record){.type = RDMA_FENCED, .request = 1, .status = status});
  for (uint32_t request = 2; request < 8; request++)
    put(wire, &(struct rdma_record){.type = RDMA_RESPONSE,
                                    .request = request,
                                    .handle = RIG_HANDLE(RIG_HOST),
                                    .status = status});
}

static void save_answers(const char *name, unsigned kind, unsigned flags, int status,
                         enum rdma_record_type ending) {
  struct wire wire = start(ASKS | kind);
  put_attached(&wire, flags, 0);
  put_answers(&wire, flags, status);
  put_plain(&wire, ending, 0, RIG_HOST);
  put_plain(&wire, RDMA_BROKEN_ACK, 0, 0);
  seed_save("rdma", name, &wire);
}

static void answering(void) {
  static const char *const names[] = {"plain", "staged", "fenced"};
  for (unsigned kind = 0; kind < 64; kind += 2) {
    char name[32];
    for (unsigned flags = 0; flags <= RDMA_FENCED_WRITES; flags++) {
      snprintf(name, sizeof name, "asker-%s-%u", names[flags], kind);
      save_answers(name, kind, flags, kind % 3 ? 0 : HAUL_ESTALE,
                   kind % 4 ? RDMA_BROKEN : RDMA_REVOKED);
    }
  }
  for (unsigned kind = ADDS; kind < 2 * ADDS; kind += 8) {
    char name[32];
    snprintf(name, sizeof name, "asker-adds-%u", kind);
    save_answers(name, kind, RDMA_ATOMIC, 0, kind % 3 ? RDMA_BROKEN : RDMA_REVOKED);
  }
  struct wire wire = start(ASKS);
  put_attached(&wire, 0, HAUL_ENOTSUP);
  seed_save("rdma", "asker-refused", &wire);
}

static void records(void) {
  for (unsigned type = RDMA_HELLO; type <= RDMA_FENCED; type++) {
    char name[32];
    struct wire wire = seed_begin();
    if (type == RDMA_HELLO)
      put_greeting(&wire);
    else if (type == RDMA_ATTACHED)
      put_attached(&wire, RDMA_STAGED, 0);
    else
      put_question(&wire, type, RIG_HOST, 0);
    snprintf(name, sizeof name, "rdma-%u", type);
    seed_save("frame", name, &wire);
  }
}

void seeds_of_rdma(void) {
  greetings();
  attaching();
  bad_questions();
  endings();
  answering();
  records();
}
