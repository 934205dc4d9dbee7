/* SPDX-License-Identifier: MIT */
#include <errno.h>

#include "storage/ring.h"

static int digit(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  if (c >= 'a' && c <= 'f')
    return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Returns the end of the id; NULL: there is none. */
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

/* False: not a number of this base, or more than `most`. */
static bool parse_number(const char *text, const char *end, unsigned base, uint64_t most,
                         uint64_t *number) {
  *number = 0;
  if (text == end)
    return false;
  for (; text < end; text++) {
    int value = digit(*text);
    if (value < 0 || (unsigned)value >= base || *number > (most - (uint64_t)value) / base)
      return false;
    *number = *number * base + (uint64_t)value;
  }
  return true;
}

static bool parse_depth(const char *text, const char *end, int32_t *depth) {
  bool negative = text < end && *text == '-';
  uint64_t number;
  if (!parse_number(text + negative, end, 10, INT32_MAX, &number))
    return false;
  *depth = negative ? -(int32_t)number : (int32_t)number;
  return true;
}

static bool parse_priority(const char *text, const char *end, uint8_t *priority) {
  static const char letters[] = "hnl"; /* as enum ring_priority; none: normal */
  const char *letter = text == end ? letters + RING_NORMAL : strchr(letters, *text);
  if (end - text > 1 || !letter || !*letter)
    return false;
  *priority = (uint8_t)(letter - letters);
  return true;
}

/* One attribute without its dot. `seen` has a bit for each kind that occurred. */
static bool parse_attribute(const char *text, const char *end, struct iov_name *name,
                            unsigned *seen) {
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
    return parse_depth(text, end, &name->depth);
  case 'p':
    return parse_priority(text, end, &name->priority);
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
  const unsigned block = 1u; /* the only attribute of a buffer */
  unsigned seen = 0;
  *name = (struct iov_name){.priority = RING_NORMAL, .for_read = true};
  text = parse_id(text, name->id);
  while (text && *text == '.') {
    const char *end = strchrnul(++text, '.');
    text = parse_attribute(text, end, name, &seen) ? end : NULL;
  }
  if (!text || *text || ((seen & ~block) && !name->ring))
    return -EINVAL;
  return 0;
}
