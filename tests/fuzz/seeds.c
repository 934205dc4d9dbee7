/* SPDX-License-Identifier: MIT
 * Writes the seeds of every fuzz target to FOLDER/TARGET/NAME: what the real packers write, so that
 * they follow the formats. A fuzzer starts from them; elsewhere they are tests.
 *
 *   fuzz_seeds FOLDER */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/sys.h"
#include "core/wire.h"
#include "fabric/map/map.h"
#include "fabric/tcp/frame.h"
#include "memory/ticket.h"
#include "rig.h"
#include "seeds.h"

static const char *folder;
static uint8_t room[RIG_INPUT];

struct wire seed_begin(void) {
  memset(room, 0, sizeof room);
  return wire_over(room, sizeof room);
}

void seed_save(const char *target, const char *name, const struct wire *wire) {
  char path[4096];
  RIG_ASSERT(!wire->failed);
  snprintf(path, sizeof path, "%s/%s", folder, target);
  RIG_ASSERT(mkdir(path, 0777) == 0 || errno == EEXIST);
  snprintf(path, sizeof path, "%s/%s/%s", folder, target, name);
  FILE *file = fopen(path, "wb");
  size_t length = (size_t)(wire->at - room);
  RIG_ASSERT(file && fwrite(room, 1, length, file) == length && fclose(file) == 0);
}

static void addresses(void) {
  static const char *const texts[] = {
      "tcp://127.0.0.1:7420",
      "tcp://[::1]:0",
      "tcp://localhost:80",
      "unix:///run/haul.sock",
      "unix://@name",
      "host",
      "sim:0",
      "sim:65535",
  };
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    char name[16];
    struct wire wire = seed_begin();
    wire_put_bytes(&wire, texts[i], strlen(texts[i]));
    snprintf(name, sizeof name, "%zu", i);
    seed_save("address", name, &wire);
  }
}

static void put_frame(struct wire *wire, const struct frame *frame,
                      const struct frame_segment *pieces) {
  static const struct frame_trailer trailer = {0, 0};
  uint8_t *at = wire_take(wire, FRAME_HEADER);
  frame_pack(frame, at);
  for (uint16_t i = 0; i < frame->count; i++)
    frame_pack_segment(&pieces[i], wire_take(wire, FRAME_SEGMENT));
  if (frame->type != FRAME_WRITE && frame->type != FRAME_DATA)
    return;
  RIG_ASSERT(wire_take(wire, (size_t)frame->payload));
  frame_pack_trailer(&trailer, wire_take(wire, FRAME_TRAILER));
}

/* Of each type, towards each kind of region, and the answers to what the target asked. */
static const struct {
  const char *name;
  struct frame frame;
  struct frame_segment pieces[2];
} frames[] = {
    {"write", {FRAME_WRITE, 0, 1, 0, 9, RIG_HANDLE(RIG_HOST), 64}, {{0, 64}}},
    {"write-pieces", {FRAME_WRITE, 0, 2, 0, 9, RIG_HANDLE(RIG_HOST), 96}, {{0, 64}, {99, 32}}},
    {"write-sim", {FRAME_WRITE, 0, 2, 0, 9, RIG_HANDLE(RIG_SIM), 9000}, {{0, 8999}, {9000, 1}}},
    {"write-checksum", {FRAME_WRITE, 1, 1, 0, 9, RIG_HANDLE(RIG_HOST), 64}, {{0, 64}}},
    {"write-refused", {FRAME_WRITE, 0, 1, 0, 9, RIG_HANDLE(RIG_READ_ONLY), 64}, {{0, 64}}},
    {"write-beyond", {FRAME_WRITE, 0, 1, 0, 9, RIG_HANDLE(RIG_HOST), 64}, {{RIG_BYTES - 1, 64}}},
    {"write-nowhere", {FRAME_WRITE, 0, 1, 0, 9, 1, 64}, {{0, 64}}},
    {"write-large", {FRAME_WRITE, 0, 1, 0, 9, RIG_HANDLE(RIG_HOST), 20000}, {{0, 20000}}},
    {"read", {FRAME_READ, 0, 1, 0, 9, RIG_HANDLE(RIG_HOST), 64}, {{0, 64}}},
    {"read-pieces",
     {FRAME_READ, 1, 2, 0, 9, RIG_HANDLE(RIG_HOST), 9000},
     {{0, 8000}, {9000, 1000}}},
    {"read-sim", {FRAME_READ, 1, 1, 0, 9, RIG_HANDLE(RIG_SIM), 9000}, {{0, 9000}}},
    {"read-wrapped", {FRAME_READ, 0, 1, 0, 9, RIG_HANDLE(RIG_WRAPPED), 9000}, {{0, 9000}}},
    {"ack-write", {FRAME_ACK, 0, 0, 0, RIG_REQUEST, 0, 0}, {{0}}},
    {"ack-refusal", {FRAME_ACK, 0, 0, HAUL_ESTALE, RIG_REQUEST + 1, 0, 0}, {{0}}},
    {"data", {FRAME_DATA, 0, 0, 0, RIG_REQUEST + 1, 0, 128}, {{0}}},
    {"add", {FRAME_FETCH_ADD, 0, 2, 0, 9, RIG_HANDLE(RIG_HOST), 8}, {{64, 8}, {77, 0}}},
    {"add-askew", {FRAME_FETCH_ADD, 0, 2, 0, 9, RIG_HANDLE(RIG_HOST), 8}, {{4, 8}, {77, 0}}},
    {"add-sim", {FRAME_FETCH_ADD, 0, 2, 0, 9, RIG_HANDLE(RIG_SIM), 8}, {{0, 8}, {1, 0}}},
    {"add-refused", {FRAME_FETCH_ADD, 0, 2, 0, 9, RIG_HANDLE(RIG_READ_ONLY), 8}, {{0, 8}, {1, 0}}},
    {"swap", {FRAME_COMPARE_SWAP, 0, 2, 0, 9, RIG_HANDLE(RIG_WRAPPED), 8}, {{8, 8}, {0, 5}}},
    {"swap-beyond",
     {FRAME_COMPARE_SWAP, 0, 2, 0, 9, RIG_HANDLE(RIG_HOST), 8},
     {{RIG_BYTES - 4, 8}, {0, 5}}},
    {"data-of-add", {FRAME_DATA, 0, 0, 0, RIG_REQUEST + 2, 0, 8}, {{0}}},
    {"ack-of-add", {FRAME_ACK, 0, 0, HAUL_ENOTSUP, RIG_REQUEST + 2, 0, 0}, {{0}}},
    {"park", {FRAME_PARK, 0, 0, 0, 0, 0, 0}, {{0}}},
    {"parked", {FRAME_PARKED, 0, 0, 0, 0, 0, 0}, {{0}}},
    {"unparked", {FRAME_UNPARKED, 0, 0, 0, 0, 0, 0}, {{0}}},
};
#define FRAMES (sizeof frames / sizeof frames[0])

static void rails(void) {
  for (size_t i = 0; i < FRAMES; i++) {
    struct wire wire = seed_begin();
    put_frame(&wire, &frames[i].frame, frames[i].pieces);
    seed_save("frame", frames[i].name, &wire);
    wire = seed_begin();
    wire_put8(&wire, i % 2 ? 61 : 0); /* in parts to an acceptor, or whole to an initiator */
    put_frame(&wire, &frames[i].frame, frames[i].pieces);
    put_frame(&wire, &frames[FRAMES - 1 - i].frame, frames[FRAMES - 1 - i].pieces);
    put_frame(&wire, &frames[(i + 5) % FRAMES].frame, frames[(i + 5) % FRAMES].pieces);
    seed_save("rail", frames[i].name, &wire);
  }
  /* An acceptor whose requests are answered parks the rail; then comes one frame too many. */
  struct wire wire = seed_begin();
  static const char *const answers[] = {"ack-write", "data", "data-of-add", "park", "park"};
  wire_put8(&wire, 61);
  for (size_t k = 0; k < sizeof answers / sizeof answers[0]; k++)
    for (size_t i = 0; i < FRAMES; i++)
      if (strcmp(frames[i].name, answers[k]) == 0)
        put_frame(&wire, &frames[i].frame, frames[i].pieces);
  seed_save("rail", "parked-for-good", &wire);
}

static struct hello make_hello(enum role role) {
  struct hello hello = {.lowest = PROTOCOL_LOWEST,
                        .highest = PROTOCOL_HIGHEST,
                        .role = (uint8_t)role,
                        .message_window = 65536,
                        .window = 128,
                        .transport = "tcp"};
  snprintf(hello.name, sizeof hello.name, "fuzzer");
  memset(hello.token, RIG_RANDOM, sizeof hello.token);
  boot_id(hello.boot); /* the map path wants the same host */
  return hello;
}

static void put_hello(struct wire *wire, enum role role, const char *transport) {
  uint8_t bytes[HANDSHAKE_MAX];
  struct hello hello = make_hello(role);
  snprintf(hello.transport, sizeof hello.transport, "%s", transport);
  wire_put_bytes(wire, bytes, hello_pack(&hello, bytes));
}

static void handshakes(void) {
  uint8_t bytes[HANDSHAKE_MAX];
  struct welcome welcome = {.version = PROTOCOL_HIGHEST,
                            .lowest = PROTOCOL_LOWEST,
                            .highest = PROTOCOL_HIGHEST,
                            .name = "node",
                            .companion = "haul-1",
                            .message_window = 4096,
                            .window = 1};
  struct welcome refusal = {.lowest = 7, .highest = 9, .code = HAUL_EVERSION, .reason = "no"};
  struct wire wire = seed_begin();
  put_hello(&wire, ROLE_CONTROL, "");
  seed_save("handshake", "control", &wire);
  wire = seed_begin();
  put_hello(&wire, ROLE_CHANNEL, "tcp");
  seed_save("handshake", "channel", &wire);
  wire = seed_begin();
  wire_put_bytes(&wire, bytes, welcome_pack(&welcome, bytes));
  seed_save("handshake", "welcome", &wire);
  welcome.version = PROTOCOL_LOWEST;
  wire = seed_begin();
  wire_put_bytes(&wire, bytes, welcome_pack(&welcome, bytes));
  seed_save("handshake", "welcome-older", &wire);
  wire = seed_begin();
  wire_put_bytes(&wire, bytes, welcome_pack(&refusal, bytes));
  seed_save("handshake", "refusal", &wire);
}

static void put_control(struct wire *wire, enum control_type type, uint32_t request,
                        const void *body, size_t length) {
  wire_put32(wire, 0x4c544348u); /* HCTL */
  wire_put16(wire, (uint16_t)type);
  wire_put16(wire, 0);
  wire_put32(wire, (uint32_t)length);
  wire_put32(wire, request);
  wire_put_bytes(wire, body, length);
}

static size_t string_body(const char *text, uint8_t *body) {
  struct wire wire = wire_over(body, 300);
  wire_put_string(&wire, text);
  return 300 - wire_left(&wire);
}

static size_t found_body(uint8_t *body) {
  struct wire wire = wire_over(body, 300);
  wire_put32(&wire, 0);
  wire_put64(&wire, RIG_HANDLE(1));
  wire_put64(&wire, RIG_BYTES);
  wire_put16(&wire, HAUL_HOST);
  wire_put16(&wire, 0);
  wire_put32(&wire, HAUL_READ);
  return 300 - wire_left(&wire);
}

static size_t names_body(uint8_t *body) {
  struct wire wire = wire_over(body, 300);
  wire_put32(&wire, 3);
  wire_put16(&wire, 2);
  for (char name[2] = "a"; name[0] < 'c'; name[0]++) {
    wire_put64(&wire, RIG_BYTES);
    wire_put16(&wire, HAUL_SIM);
    wire_put16(&wire, 0);
    wire_put32(&wire, HAUL_READ | HAUL_WRITE);
    wire_put_string(&wire, name);
  }
  return 300 - wire_left(&wire);
}

static void put_asking(struct wire *wire) {
  uint8_t body[300];
  static const uint8_t message[24] = "\1\2\3\4\5\6\7\10a message here";
  static const uint8_t credit[4] = {64, 0, 0, 0};
  put_control(wire, CONTROL_READY, 0, NULL, 0);
  put_control(wire, CONTROL_PING, 0, NULL, 0);
  put_control(wire, CONTROL_LOOKUP, 1, body, string_body("sim", body));
  put_control(wire, CONTROL_LOOKUP, 2, body, string_body("nothing", body));
  put_control(wire, CONTROL_LIST, 3, body, string_body("", body));
  put_control(wire, CONTROL_STATS, 4, "\0\0\0\0\0\0\0\0", 8);
  put_control(wire, CONTROL_TRACE, 5, "\0\0\0\0\0\0\0\0\200", 10);
  put_control(wire, CONTROL_MESSAGE, 0, message, sizeof message);
  put_control(wire, CONTROL_MESSAGE, 0, message, 8);
  put_control(wire, CONTROL_CREDIT, 0, credit, sizeof credit);
  put_control(wire, CONTROL_HELD, 6, "\0\0\0\0", 4);
}

static size_t state_body(uint8_t *body) {
  struct wire wire = wire_over(body, 300);
  wire_put32(&wire, 0);
  wire_put64(&wire, 1000000);
  for (int i = 0; i < 3; i++)
    wire_put32(&wire, 1);
  for (int i = 0; i < 5; i++)
    wire_put64(&wire, 7);
  wire_put8(&wire, 0);
  wire_put16(&wire, 1);
  wire_put64(&wire, 1);
  wire_put_string(&wire, "peer");
  wire_put_string(&wire, "uid:0");
  wire_put8(&wire, 3);
  wire_put32(&wire, 2);
  wire_put64(&wire, 5);
  wire_put8(&wire, 1);
  wire_put_string(&wire, "tcp");
  wire_put8(&wire, 1);
  for (int i = 0; i < 9; i++)
    wire_put64(&wire, 4096);
  return 300 - wire_left(&wire);
}

static size_t traced_body(uint8_t *body) {
  struct wire wire = wire_over(body, 300);
  wire_put32(&wire, 0);
  wire_put64(&wire, 1000000);
  wire_put64(&wire, 3);
  wire_put64(&wire, 0);
  wire_put16(&wire, 2);
  for (uint8_t i = 0; i < 2; i++) {
    wire_put64(&wire, 900000);
    wire_put8(&wire, i ? HAUL_TRACE_COMPLETE : HAUL_TRACE_SUBMIT);
    wire_put8(&wire, HAUL_OP_WRITE);
    wire_put8(&wire, i ? 0 : 255);
    wire_put32(&wire, 1);
    wire_put32(&wire, i ? (uint32_t)HAUL_ESTALE : 0);
    wire_put64(&wire, 7);
    wire_put64(&wire, 1);
    wire_put64(&wire, 4096);
  }
  return 300 - wire_left(&wire);
}

static void controls(void) {
  uint8_t body[300];
  struct wire wire = seed_begin();
  wire_put8(&wire, 0);
  put_asking(&wire);
  put_control(&wire, CONTROL_GOODBYE, 0, NULL, 0);
  seed_save("control", "asking", &wire);
  wire = seed_begin();
  wire_put8(&wire, 0);
  put_control(&wire, CONTROL_READY, 0, "\3\0tcp\2", 6);
  put_control(&wire, CONTROL_REFUSED, 0, "\3\0tcp\376\377\377\377\2\0no", 13);
  seed_save("control", "on-demand", &wire);
  wire = seed_begin();
  wire_put8(&wire, 1);
  put_control(&wire, CONTROL_DIAL, 0, "\3\0tcp", 5);
  put_control(&wire, CONTROL_HOLD, 1, NULL, 0);
  put_control(&wire, CONTROL_RELEASE, 0, NULL, 0);
  seed_save("control", "dial", &wire);
  wire = seed_begin();
  wire_put8(&wire, 0);
  memset(body, 0, 48);
  body[16] = 100; /* of the region, and from byte 40 on of the payload */
  body[24] = HAUL_HOST;
  body[28] = HAUL_READ;
  body[40] = 100;
  put_control(&wire, CONTROL_OFFER, 3, body, 48);
  put_control(&wire, CONTROL_TAKEN, 1, "\0\0\0\0", 4);
  seed_save("control", "offer", &wire);
  wire = seed_begin();
  wire_put8(&wire, 1);
  put_control(&wire, CONTROL_FOUND, 1, body, found_body(body));
  seed_save("control", "found", &wire);
  wire = seed_begin();
  wire_put8(&wire, 1);
  wire_put_bytes(&wire, "", 0);
  put_control(&wire, CONTROL_FOUND, 1, "\371\377\377\377", 4); /* HAUL_ENAME */
  seed_save("control", "not-found", &wire);
  wire = seed_begin();
  wire_put8(&wire, 2);
  put_control(&wire, CONTROL_NAMES, 1, body, names_body(body));
  put_control(&wire, CONTROL_NAMES, 2, "\3\0\0\0\0\0", 6);
  seed_save("control", "names", &wire);
  wire = seed_begin();
  wire_put8(&wire, 3);
  put_control(&wire, CONTROL_STATE, 1, body, state_body(body));
  seed_save("control", "state", &wire);
  wire = seed_begin();
  wire_put8(&wire, 4);
  put_control(&wire, CONTROL_TRACED, 1, body, traced_body(body));
  seed_save("control", "traced", &wire);
}

static void put_step(struct wire *wire, uint8_t head, uint8_t **length_at, const uint8_t **from) {
  wire_put8(wire, head);
  *length_at = wire_take(wire, 2);
  *from = wire->at;
}

static void end_step(const struct wire *wire, uint8_t *length_at, const uint8_t *from) {
  size_t length = (size_t)(wire->at - from);
  length_at[0] = (uint8_t)length;
  length_at[1] = (uint8_t)(length >> 8);
}

static void connections(void) {
  uint8_t *length_at;
  const uint8_t *from;
  struct wire wire = seed_begin();
  put_step(&wire, 0, &length_at, &from);
  put_hello(&wire, ROLE_CONTROL, "");
  put_asking(&wire);
  end_step(&wire, length_at, from);
  put_step(&wire, 1, &length_at, &from);
  put_hello(&wire, ROLE_CHANNEL, "tcp");
  for (size_t i = 0; i < FRAMES - 3; i++)
    put_frame(&wire, &frames[i].frame, frames[i].pieces);
  end_step(&wire, length_at, from);
  put_step(&wire, 0x80, &length_at, &from);
  end_step(&wire, length_at, from);
  seed_save("connections", "tcp", &wire);

  wire = seed_begin();
  put_step(&wire, 0, &length_at, &from);
  put_hello(&wire, ROLE_CONTROL, "");
  end_step(&wire, length_at, from);
  put_step(&wire, 1, &length_at, &from);
  put_hello(&wire, ROLE_CHANNEL, "map");
  end_step(&wire, length_at, from);
  put_step(&wire, 2, &length_at, &from);
  put_hello(&wire, ROLE_CHANNEL, "none");
  end_step(&wire, length_at, from);
  put_step(&wire, 0x83, &length_at, &from);
  put_hello(&wire, ROLE_CHANNEL, "tcp");
  end_step(&wire, length_at, from);
  seed_save("connections", "map", &wire);
}

static void put_ticket(struct wire *wire, const struct ticket *ticket) {
  struct haul_ticket packed;
  ticket_pack(ticket, &packed);
  wire_put_bytes(wire, packed.bytes, sizeof packed.bytes);
}

static struct ticket make_ticket(void) {
  struct ticket ticket = {.place = {HAUL_HOST, 0},
                          .length = RIG_BYTES,
                          .generation = 1,
                          .rights = HAUL_READ | HAUL_WRITE};
  struct wire extra = wire_over(ticket.extra, sizeof ticket.extra);
  wire_put64(&extra, RIG_BYTES);
  memset(ticket.capability, RIG_RANDOM, sizeof ticket.capability);
  return ticket;
}

static void tickets(void) {
  struct ticket ticket = make_ticket();
  for (uint8_t sign = 0; sign < 2; sign++) {
    struct wire wire = seed_begin();
    wire_put8(&wire, sign);
    put_ticket(&wire, &ticket);
    seed_save("ticket", sign ? "layout" : "plain", &wire);
    ticket.has_layout = true;
    ticket.layout = (struct haul_tensor){
        .type = 2, .bits = 16, .lanes = 1, .dimensions = 2, .shape = {4, 8}, .strides = {8, 1}};
  }
}

static void settings(void) {
  static const char text[] = "# all\nname = a\ninsecure = yes\nspin = always\nliveness = 2min\n"
                             "deadline = 5s\ntcp_rails = 4\ncopy_threads = none\n"
                             "message_window = 2M\npool = 1G\nmax_peers = 7\nmax_regions = 9\n"
                             "tcp_rate = 2M\n";
  struct wire wire = seed_begin();
  wire_put_bytes(&wire, text, sizeof text - 1);
  seed_save("config", "all", &wire);
}

static void memories(void) {
  static const uint8_t makings[] = {3, 19, 11, 2, 1, 7};
  for (size_t i = 0; i < sizeof makings; i++) {
    char name[16];
    struct wire wire = seed_begin();
    struct shm_footer footer = {.magic = UINT64_C(0x31304d454d4c5548), /* HULMEM01 */
                                .alive = 1,
                                .version = 1,
                                .length = 8192};
    uint8_t capability[16], extra[32] = {0, 0x20};
    memset(capability, RIG_RANDOM, sizeof capability);
    memcpy(footer.capability, capability, sizeof capability);
    wire_put8(&wire, makings[i]);
    wire_put8(&wire, 1); /* two pages */
    wire_put64(&wire, 8192);
    wire_put64(&wire, 0);
    wire_put_bytes(&wire, capability, sizeof capability);
    wire_put_bytes(&wire, extra, sizeof extra);
    wire_put_bytes(&wire, &footer, sizeof footer);
    snprintf(name, sizeof name, "making-%u", makings[i]);
    seed_save("shm", name, &wire);
  }
}

enum { GREETING = 1, REQUEST = 2, ANSWER = 3 };

static void put_record(struct wire *wire, uint8_t descriptors, unsigned type,
                       const struct wire *body, const uint8_t *bytes) {
  wire_put8(wire, descriptors);
  uint8_t *at = wire_take(wire, MAP_RECORD);
  RIG_ASSERT(at);
  struct wire record = wire_over(at, MAP_RECORD);
  wire_put32(&record, 0x50414d48u); /* HMAP */
  wire_put32(&record, type);
  wire_put32(&record, type == ANSWER);
  wire_put_bytes(&record, bytes, (size_t)(body->at - bytes));
}

static void put_greeting(struct wire *wire) {
  uint8_t bytes[MAP_RECORD] = {0}, capability[16];
  struct wire body = wire_over(bytes, sizeof bytes);
  memset(capability, RIG_RANDOM, sizeof capability);
  wire_put64(&body, 0x1000);
  wire_put64(&body, 1);
  wire_put32(&body, 65536); /* slots */
  wire_put_bytes(&body, capability, sizeof capability);
  wire_put64(&body, sizeof(struct hazards));
  wire_put_bytes(&body, capability, sizeof capability);
  put_record(wire, 2 << 6 | 1 << 2 | 0, GREETING, &body, bytes);
}

static void channels(void) {
  uint8_t bytes[MAP_RECORD];
  struct ticket ticket = make_ticket();
  for (unsigned kind = 0; kind < 4; kind++) {
    static const char *const names[] = {"requests", "mapped", "attach", "refused"};
    struct wire wire = seed_begin(), body = wire_over(bytes, sizeof bytes);
    put_greeting(&wire);
    for (unsigned slot = RIG_HOST; kind == 0 && slot <= RIG_WRAPPED + 1; slot++) {
      body = wire_over(bytes, sizeof bytes);
      wire_put64(&body, RIG_HANDLE(slot));
      put_record(&wire, 0, REQUEST, &body, bytes);
    }
    wire_put32(&body, kind);
    if (kind == 1)
      put_ticket(&body, &ticket);
    if (kind == 2)
      wire_put64(&body, 0x10000);
    if (kind == 3)
      wire_put_string(&body, "it is private");
    if (kind > 0)
      put_record(&wire, kind == 1 ? 1 << 6 : 0, ANSWER, &body, bytes);
    seed_save("channel", names[kind], &wire);
  }
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: fuzz_seeds FOLDER\n");
    return 2;
  }
  folder = argv[1];
  RIG_ASSERT(mkdir(folder, 0777) == 0 || errno == EEXIST);
  addresses();
  rails();
  handshakes();
  controls();
  connections();
  tickets();
  settings();
  memories();
  channels();
  seeds_of_rdma();
  return 0;
}
