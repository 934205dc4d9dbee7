/* SPDX-License-Identifier: MIT
 * Copies to and from memory that a client shares with us: it may write there at the same time, or
 * have two operations use the same bytes, and gets what comes of it. */
#ifndef HAUL_STORAGE_FOREIGN_H
#define HAUL_STORAGE_FOREIGN_H

#include <string.h>

#ifdef __has_feature
#define FOREIGN_IS_WATCHED __has_feature(thread_sanitizer)
#elif defined(__SANITIZE_THREAD__)
#define FOREIGN_IS_WATCHED 1
#else
#define FOREIGN_IS_WATCHED 0
#endif

#if FOREIGN_IS_WATCHED
/* The thread sanitizer's own: it does not look at what lies between the two. */
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
#endif

static inline void foreign_copy(void *to, const void *from, size_t length) {
#if FOREIGN_IS_WATCHED
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
  memcpy(to, from, length);
#if FOREIGN_IS_WATCHED
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
}

#endif
