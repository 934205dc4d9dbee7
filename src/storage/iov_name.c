/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <string.h>

#include "storage/intake.h"

static int digit(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  if (c >= 'a' && c <= 'f')
    return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The id, and where the text goes on; NULL: there is none. */
static const char *parse_id(const char *text, uint8_t id[16]) {
  for (unsigned i = 0; i < 32; i++, text++) {
    if (*text == '-' && (i == 8 || i == 12 || i == 16 || i == 20))
      text++;
    int value = digit(*text);
    if (value < 0)
      return NULL;
    id[i / 2] = (uint8_t)(i % 2 ? id[i / 2] | value : value << 4);
  }
  return text;
}

/* The number in `text` up to `end`, none of whose digits is past `base`; false: it is none, or is
 * more than `most`. */
static bool parse_number(const char *text, const char *end, unsigned base, uint64_t most,
                         uint64_t *number) {
  uint64_t value = 0;
  if (text == end)
    return false;
  for (; text < end; text++) {
    int next = digit(*text);
    if (next < 0 || (unsigned)next >= base || value > (most - (uint64_t)next) / base)
      return false;
    value = value * base + (uint64_t)next;
  }
  *number = value;
  return true;
}

static bool parse_depth(const char *text, const char *end, struct iov_name *name) {
  bool negative = text < end && *text == '-';
  uint64_t depth;
  if (!parse_number(text + negative, end, 10, INT32_MAX, &depth))
    return false;
  name->depth = negative ? -(int32_t)depth : (int32_t)depth;
  return true;
}

static bool parse_priority(const char *text, const char *end, struct iov_name *name) {
  if (end - text > 1)
    return false;
  switch (text == end ? 'n' : *text) {
  case 'h':
    name->priority = RING_HIGH;
    return true;
  case 'n':
    name->priority = RING_NORMAL;
    return true;
  case 'l':
    name->priority = RING_LOW;
    return true;
  default:
    return false;
  }
}

/* One mark, without its dot; which kinds there were is in `seen`. */
static bool parse_mark(const char *text, const char *end, struct iov_name *name, unsigned *seen) {
  static const char kinds[] = "brwptf";
  const char *kind = text < end ? strchr(kinds, *text) : NULL;
  uint64_t number = 0;
  if (!kind || *kind == '\0')
    return false;
  unsigned bit = 1u << (*kind == 'w' ? 1 : kind - kinds);
  if (*seen & bit)
    return false;
  *seen |= bit;
  text++;
  switch (*kind) {
  case 'b':
    return parse_number(text, end, 10, INT64_MAX, &name->block) && name->block > 0;
  case 'r':
  case 'w':
    name->ring = true;
    name->for_read = *kind == 'r';
    return parse_depth(text, end, name);
  case 'p':
    return parse_priority(text, end, name);
  case 't':
    if (!parse_number(text, end, 10, INT32_MAX, &number))
      return false;
    name->timeout_ms = (int32_t)number;
    return true;
  default:
    return parse_number(text, end, 2, UINT64_MAX, &name->flags);
  }
}

int iov_name_parse(const char *text, struct iov_name *name) {
  unsigned seen = 0;
  *name = (struct iov_name){.priority = RING_NORMAL, .for_read = true};
  text = parse_id(text, name->id);
  while (text && *text == '.') {
    const char *end = strchrnul(++text, '.');
    text = parse_mark(text, end, name, &seen) ? end : NULL;
  }
  if (!text || *text)
    return -EINVAL;
  return (seen & ~1u) && !name->ring ? -EINVAL : 0;
}
