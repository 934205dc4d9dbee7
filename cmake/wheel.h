/* SPDX-License-Identifier: MIT
 * Included before every source of a wheel: what is younger than glibc 2.34 and GCC 11, which
 * manylinux_2_34 permits. */
#ifdef __cplusplus
/* GCC 12 gave it a new version for `noexcept` alone. */
__asm__(".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE, "
        "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
#else
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>
#define epoll_pwait2(epoll, events, count, span, signals)                                          \
  ((int)syscall(SYS_epoll_pwait2, epoll, events, count, span, signals, sizeof(uint64_t)))
#endif
