/* SPDX-License-Identifier: MIT */
#include "fabric/rdma/frame.h"

#include "core/wire.h"
#include "haul/haul.h"

#define MAGIC  0x414d4452u /* "RDMA" */
#define BITS24 0xffffffu

static void put_end(struct wire *wire, const struct rdma_end *end) {
  wire_put_string(wire, end->nic);
  wire_put8(wire, end->ethernet);
  wire_put8(wire, end->mtu);
  wire_put8(wire, end->reads);
  wire_put8(wire, end->receives);
  wire_put8(wire, end->atomics);
  wire_put16(wire, end->lid);
  wire_put_bytes(wire, end->gid, 16);
  wire_put32(wire, end->queue_pair);
  wire_put32(wire, end->packet);
}

static void get_end(struct wire *wire, struct rdma_end *end) {
  wire_get_string(wire, end->nic, sizeof end->nic);
  end->ethernet = wire_get8(wire);
  end->mtu = wire_get8(wire);
  end->reads = wire_get8(wire);
  end->receives = wire_get8(wire);
  end->atomics = wire_get8(wire);
  end->lid = wire_get16(wire);
  wire_get_bytes(wire, end->gid, 16);
  end->queue_pair = wire_get32(wire);
  end->packet = wire_get32(wire);
  if (end->ethernet > 1 || end->mtu < 1 || end->mtu > 5 || end->atomics > 2 ||
      end->queue_pair > BITS24 || end->packet > BITS24)
    wire->failed = true;
}

static bool has_spans(unsigned type) {
  return type == RDMA_CHECKSUM || type == RDMA_COPY_IN || type == RDMA_COPY_OUT;
}

static void put_spans(struct wire *wire, const struct rdma_record *record) {
  wire_put64(wire, record->sum);
  wire_put64(wire, record->at);
  wire_put8(wire, record->span_count);
  for (size_t i = 0; i < record->span_count; i++) {
    wire_put64(wire, record->spans[i].offset);
    wire_put32(wire, record->spans[i].length);
  }
}

static void get_spans(struct wire *wire, struct rdma_record *record) {
  record->sum = wire_get64(wire);
  record->at = wire_get64(wire);
  record->span_count = wire_get8(wire);
  if (record->span_count == 0 || record->span_count > RDMA_SPANS) {
    record->span_count = 0;
    wire->failed = true;
  }
  for (size_t i = 0; i < record->span_count; i++) {
    record->spans[i].offset = wire_get64(wire);
    record->spans[i].length = wire_get32(wire);
    if (record->spans[i].length == 0) /* no segment is empty */
      wire->failed = true;
  }
}

static int32_t get_status(struct wire *wire) {
  int32_t status = (int32_t)wire_get32(wire);
  if (status > 0 || status < HAUL_EPATH)
    wire->failed = true;
  return status;
}

size_t rdma_pack(const struct rdma_record *record, uint8_t bytes[RDMA_RECORD]) {
  memset(bytes, 0, RDMA_RECORD);
  struct wire wire = wire_over(bytes, RDMA_RECORD);
  wire_put32(&wire, MAGIC);
  wire_put16(&wire, record->type);
  wire_put32(&wire, record->request);
  wire_put64(&wire, record->handle);
  if (record->type == RDMA_HELLO) {
    wire_put8(&wire, record->rails);
    for (size_t i = 0; i < record->rails; i++)
      put_end(&wire, &record->ends[i]);
    if (record->rails == 0)
      wire_put_string(&wire, record->reason);
    wire_put8(&wire, record->restores);
    wire_put8(&wire, record->more);
    wire_put16(&wire, record->paired);
  } else if (record->type == RDMA_ATTACHED) {
    wire_put32(&wire, (uint32_t)record->status);
    wire_put64(&wire, record->address);
    wire_put64(&wire, record->length);
    wire_put8(&wire, record->rails);
    for (size_t i = 0; i < record->rails; i++)
      wire_put32(&wire, record->keys[i]);
    wire_put8(&wire, record->flags);
    wire_put8(&wire, record->slots);
    wire_put32(&wire, record->number);
    wire_put_string(&wire, record->reason);
  } else if (has_spans(record->type)) {
    put_spans(&wire, record);
  } else if (record->type == RDMA_RESPONSE || record->type == RDMA_FENCED) {
    wire_put32(&wire, (uint32_t)record->status);
    wire_put8(&wire, record->rails);
  }
  return RDMA_RECORD - wire_left(&wire);
}

static void get_attached(struct wire *wire, struct rdma_record *record) {
  uint64_t end;
  record->status = get_status(wire);
  record->address = wire_get64(wire);
  record->length = wire_get64(wire);
  record->rails = wire_get8(wire);
  for (size_t i = 0; i < record->rails && i < RDMA_RAILS_MAX; i++)
    record->keys[i] = wire_get32(wire);
  record->flags = wire_get8(wire);
  record->slots = wire_get8(wire);
  record->number = wire_get32(wire);
  wire_get_string(wire, record->reason, sizeof record->reason);
  if (__builtin_add_overflow(record->address, record->length, &end))
    wire->failed = true;
}

/* The fields behind the ends are 0 of older peers. */
static void get_hello(struct wire *wire, struct rdma_record *record) {
  record->rails = wire_get8(wire);
  for (size_t i = 0; i < record->rails && i < RDMA_ENDS; i++)
    get_end(wire, &record->ends[i]);
  if (record->rails == 0)
    wire_get_string(wire, record->reason, sizeof record->reason);
  record->restores = wire_get8(wire) == 1;
  record->more = wire_get8(wire);
  record->paired = wire_get16(wire);
  if (record->rails > RDMA_ENDS || record->rails + record->more > RDMA_RAILS_MAX ||
      (record->rails == 0 && record->more > 0))
    wire->failed = true;
}

int rdma_parse(const uint8_t bytes[RDMA_RECORD], struct rdma_record *record) {
  struct wire wire = wire_over((uint8_t *)(uintptr_t)bytes, RDMA_RECORD);
  memset(record, 0, sizeof *record);
  uint32_t magic = wire_get32(&wire);
  record->type = wire_get16(&wire);
  record->request = wire_get32(&wire);
  record->handle = wire_get64(&wire);
  if (magic != MAGIC || record->type < RDMA_HELLO || record->type > RDMA_FENCED)
    return HAUL_EPROTO;
  if (record->type == RDMA_HELLO) {
    get_hello(&wire, record);
  } else if (record->type == RDMA_ATTACHED) {
    get_attached(&wire, record);
  } else if (has_spans(record->type)) {
    get_spans(&wire, record);
  } else if (record->type == RDMA_RESPONSE || record->type == RDMA_FENCED) {
    record->status = get_status(&wire);
    /* These are for this side to set: a work that ends with one is posted again, and a peer could
     * repeat that for ever. */
    if (record->status == HAUL_EPATH || record->status == HAUL_ENOPATH)
      return HAUL_EPROTO;
    record->rails = wire_get8(&wire);
  }
  return wire.failed || record->rails > RDMA_RAILS_MAX ? HAUL_EPROTO : 0;
}
