/* SPDX-License-Identifier: MIT */
#include "memory/ticket.h"

#include "core/error.h"
#include "core/sum.h"
#include "core/wire.h"

#define TICKET_MAGIC   0x544c5548u /* "HULT" */
#define TICKET_VERSION 1
#define HAS_LAYOUT     1u
#define HAS_TOKEN      2u
#define LAYOUT         (8 + 16 * HAUL_TENSOR_DIMENSIONS + 8) /* bytes */
#define SUMMED         (sizeof((struct haul_ticket *)0)->bytes - 8)

static void layout_fields(struct wire *wire, struct haul_tensor *layout) {
  WIRE(wire, 8, layout->type);
  WIRE(wire, 8, layout->bits);
  WIRE(wire, 16, layout->lanes);
  WIRE(wire, 32, layout->dimensions);
  WIRE(wire, 64, layout->offset);
  for (size_t i = 0; i < HAUL_TENSOR_DIMENSIONS; i++)
    WIRE(wire, 64, layout->shape[i]);
  for (size_t i = 0; i < HAUL_TENSOR_DIMENSIONS; i++)
    WIRE(wire, 64, layout->strides[i]);
}

/* Behind magic, version and flags. A token takes the place of the layout. */
static void ticket_fields(struct wire *wire, struct ticket *ticket) {
  uint8_t rest[LAYOUT - IPC_TOKEN] = {0};
  WIRE(wire, 16, ticket->place.kind);
  WIRE(wire, 16, ticket->place.device);
  WIRE(wire, 32, ticket->rights);
  WIRE(wire, 64, ticket->length);
  WIRE(wire, 64, ticket->offset);
  WIRE(wire, 64, ticket->generation);
  wire_bytes(wire, ticket->capability, sizeof ticket->capability);
  wire_bytes(wire, ticket->extra, sizeof ticket->extra);
  if (ticket->has_token) {
    wire_bytes(wire, ticket->token, IPC_TOKEN);
    wire_bytes(wire, rest, sizeof rest);
  } else {
    layout_fields(wire, &ticket->layout);
  }
  wire_bytes(wire, ticket->identity, sizeof ticket->identity);
}

void ticket_pack(const struct ticket *ticket, struct haul_ticket *packed) {
  struct ticket copy = *ticket;
  if (!ticket->has_layout)
    copy.layout = (struct haul_tensor){0};
  memset(packed, 0, sizeof *packed);
  struct wire wire = wire_over(packed->bytes, SUMMED);
  wire_put32(&wire, TICKET_MAGIC);
  wire_put16(&wire, TICKET_VERSION);
  wire_put16(&wire, ticket->has_layout ? HAS_LAYOUT : ticket->has_token ? HAS_TOKEN : 0);
  ticket_fields(&wire, &copy);
  struct wire sum = wire_over(packed->bytes + SUMMED, 8);
  wire_put64(&sum, XXH3_64bits(packed->bytes, SUMMED));
}

static int bad_ticket(const char *why) {
  return error_set(HAUL_ETICKET, 0, NULL, "send the 256 bytes from haul_region_export as they are",
                   "%s", why);
}

static int check_envelope(const struct haul_ticket *packed, struct wire *wire) {
  struct wire sum = wire_over(packed->bytes + SUMMED, 8);
  if (wire_get32(wire) != TICKET_MAGIC)
    return bad_ticket("these bytes are not a ticket");
  unsigned version = wire_get16(wire);
  if (version != TICKET_VERSION)
    return error_set(HAUL_ETICKET, 0, NULL, "run the same version of haul on both sides",
                     "the ticket has version %u, this library reads version %d", version,
                     TICKET_VERSION);
  if (wire_get64(&sum) != XXH3_64bits(packed->bytes, SUMMED))
    return bad_ticket("the ticket is damaged");
  return 0;
}

static int check_fields(const struct ticket *ticket, unsigned flags) {
  uint64_t end;
  if (flags > HAS_TOKEN)
    return bad_ticket("the ticket carries unknown flags");
  if (!(ticket->rights & HAUL_READ) || ticket->rights & ~(HAUL_READ | HAUL_WRITE))
    return bad_ticket("the ticket carries impossible rights");
  if (ticket->length == 0 || __builtin_add_overflow(ticket->offset, ticket->length, &end) ||
      end > (uint64_t)INT64_MAX)
    return bad_ticket("the ticket names an impossible range");
  if (ticket->has_layout && tensor_check(&ticket->layout, ticket->length) != 0)
    return bad_ticket("the ticket's layout does not lie within its memory");
  return 0;
}

int ticket_unpack(const struct haul_ticket *packed, struct ticket *ticket) {
  struct wire wire = wire_from(packed->bytes, SUMMED);
  int status = check_envelope(packed, &wire);
  if (status != 0)
    return status;
  unsigned flags = wire_get16(&wire);
  *ticket = (struct ticket){.has_layout = flags == HAS_LAYOUT, .has_token = flags == HAS_TOKEN};
  ticket_fields(&wire, ticket);
  return check_fields(ticket, flags);
}

/* Adds the extent of dimension `i`, in elements, to *low or *high; false on overflow. */
static bool reach(const struct haul_tensor *layout, uint32_t i, int64_t *low, int64_t *high) {
  int64_t far;
  if (__builtin_mul_overflow(layout->shape[i] - 1, layout->strides[i], &far))
    return false;
  int64_t *bound = far < 0 ? low : high;
  return !__builtin_add_overflow(*bound, far, bound);
}

/* Do all elements lie in [0, length)? Counted in bits, as sub-byte elements are packed. */
static bool lies_within(const struct haul_tensor *layout, uint64_t length) {
  int64_t low = 0, high = 0, start, first, last;
  int64_t element = (int64_t)layout->bits * layout->lanes;
  for (uint32_t i = 0; i < layout->dimensions; i++)
    if (!reach(layout, i, &low, &high))
      return false;
  if (length > INT64_MAX / 8)
    length = INT64_MAX / 8;
  if (layout->offset > length)
    return false;
  start = (int64_t)layout->offset * 8;
  if (__builtin_mul_overflow(low, element, &first) || __builtin_add_overflow(first, start, &first))
    return false;
  if (__builtin_add_overflow(high, 1, &high) || __builtin_mul_overflow(high, element, &last) ||
      __builtin_add_overflow(last, start, &last))
    return false;
  return first >= 0 && last <= (int64_t)length * 8;
}

static int bad_tensor(const char *why) {
  return error_set(HAUL_EINVAL, 0, "tensor layout",
                   "shape and strides count elements, offset counts bytes", "%s", why);
}

int tensor_check(const struct haul_tensor *layout, uint64_t length) {
  if (layout->dimensions > HAUL_TENSOR_DIMENSIONS)
    return bad_tensor("there are too many dimensions");
  if (layout->bits == 0 || layout->lanes == 0)
    return bad_tensor("the elements have no bits");
  bool empty = false;
  for (uint32_t i = 0; i < layout->dimensions; i++) {
    if (layout->shape[i] < 0)
      return bad_tensor("a dimension is negative");
    empty |= layout->shape[i] == 0;
  }
  if (layout->offset > length)
    return bad_tensor("the first element lies behind the region");
  if (!empty && !lies_within(layout, length))
    return bad_tensor("elements lie outside the region");
  return 0;
}
