/* SPDX-License-Identifier: MIT */
#include "core/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/sys.h"

static _Thread_local struct haul_error last;
static _Thread_local char formatted_hint[sizeof last.hint], formatted_object[sizeof last.object];
_Thread_local __attribute__((tls_model("initial-exec"))) const char *error_call = "";

int error_enter(const char *call) {
  return error_enter_inline(call);
}

int error_forked(void) {
  return error_set(HAUL_EFORK, 0, NULL, "call exec first, or fork before the first node is opened",
                   "this process is a fork of the one that opened the node");
}

/* The hint of a code, where the failing function gives none. */
static const char *usual_hint(int code) {
  switch (code) {
  case HAUL_ETIMEDOUT:
    return "allow more time, or check that the peer still runs";
  case HAUL_ECANCELED:
    return "this side canceled it; start it again if it is still needed";
  case HAUL_EPEER:
    return "check that the peer process still runs, and connect again";
  case HAUL_ENAME:
    return "list the names: haul ls NODE";
  case HAUL_ERANGE:
  case HAUL_EINVAL:
    return "check the call's arguments; its comment in haul.h says what it takes";
  case HAUL_EACCESS:
    return "share or publish it with the rights that the operation needs";
  case HAUL_ESTALE:
    return "look it up again, or ask the owner for a new ticket";
  case HAUL_EPROTO:
  case HAUL_EVERSION:
    return "run the same version of haul on both sides";
  case HAUL_ENOPATH:
  case HAUL_EPATH:
    return "run haul explain, or haul doctor for what each path needs";
  case HAUL_ECLOSED:
    return "open a new node";
  case HAUL_ECHECKSUM:
    return "do not change the source during a transfer; else check memory and network";
  case HAUL_ETICKET:
    return "ask the owner for a new ticket and its descriptor";
  default:
    return "run haul doctor: it prints what is missing on this host";
  }
}

const char *error_hint(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(formatted_hint, sizeof formatted_hint, format, arguments);
  va_end(arguments);
  return formatted_hint;
}

const char *error_object(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(formatted_object, sizeof formatted_object, format, arguments);
  va_end(arguments);
  return formatted_object;
}

int error_set(int code, int system, const char *object, const char *hint, const char *format, ...) {
  struct haul_error next = {.code = code, .system = system};
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(next.text, sizeof next.text, format, arguments);
  va_end(arguments);
  snprintf(next.call, sizeof next.call, "%s", error_call);
  snprintf(next.object, sizeof next.object, "%s", object ? object : "");
  snprintf(next.hint, sizeof next.hint, "%s", hint ? hint : usual_hint(code));
  last = next;
  return code;
}

int error_code(int code, const char *object) {
  return error_set(code, 0, object, NULL, "%s", haul_error_text(code));
}

const char *error_quote(const char *words) {
  static _Thread_local char quoted[sizeof last.text];
  size_t at = 0;
  quoted[at++] = '"';
  for (const char *byte = words; *byte && at + sizeof "\\xNN\"" <= sizeof quoted; byte++) {
    bool printable = *byte >= ' ' && *byte <= '~' && *byte != '"' && *byte != '\\';
    at += (size_t)snprintf(quoted + at, sizeof quoted - at, printable ? "%c" : "\\x%02x",
                           (unsigned char)*byte);
  }
  snprintf(quoted + at, sizeof quoted - at, "\"");
  return quoted;
}

int error_system(int system, const char *object, const char *call) {
  if (system == EMFILE || system == ENFILE)
    return error_set(HAUL_ELIMIT, system, object,
                     "raise the limit (ulimit -n 65536), or allocate with HAUL_REGION_PRIVATE what "
                     "is not shared",
                     "%s: no descriptor left", call);
  if (system == ENOMEM || system == ENOSPC)
    return error_set(
        HAUL_ENOMEM, system, object,
        "release regions, or check free -m, df /dev/shm and the limits of this control group",
        "%s: the system has no memory left", call);
  return error_set(HAUL_ESYSTEM, system, object,
                   "see the system error, which comes from the kernel", "%s: %s", call,
                   strerror(system));
}

int error_if_passed(haul_deadline until, const char *object) {
  if (until > clock_now())
    return 0;
  return error_set(HAUL_ETIMEDOUT, 0, object, "pass a later deadline",
                   "the deadline had passed before the call");
}

int error_memory(const char *what) {
  return error_set(HAUL_ENOMEM, ENOMEM, what,
                   "release regions and ended transfers, or raise the memory limit of this process",
                   "no memory left for bookkeeping");
}

void error_about(const char *object) {
  if (!last.object[0])
    snprintf(last.object, sizeof last.object, "%s", object);
}

void error_save(struct haul_error *into) {
  *into = last;
}

int error_restore(const struct haul_error *from) {
  if (from->code == 0)
    return 0;
  last = *from;
  snprintf(last.call, sizeof last.call, "%s", error_call);
  return last.code;
}

void error_reset(const struct haul_error *before) {
  last = *before;
}

HAUL_API const struct haul_error *haul_error_last(void) {
  return &last;
}

HAUL_API int haul_error_set(const struct haul_error *error) {
  last = *error;
  return last.code;
}

HAUL_API const char *haul_error_name(int code) {
  switch (code) {
  case HAUL_OK:
    return "ok";
#define NAME(symbol, value, name, text)                                                            \
  case symbol:                                                                                     \
    return name;
    HAUL_ERROR_LIST(NAME)
#undef NAME
  default:
    return "unknown";
  }
}

HAUL_API const char *haul_error_text(int code) {
  switch (code) {
  case HAUL_OK:
    return "no error";
#define TEXT(symbol, value, name, text)                                                            \
  case symbol:                                                                                     \
    return text;
    HAUL_ERROR_LIST(TEXT)
#undef TEXT
  default:
    return "unknown code";
  }
}
